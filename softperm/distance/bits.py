"""Bit sets: rows of 64-bit words that hold sets of vertices."""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
def count_bits(typing_context, word):
    """Number of ones in a 64-bit word: the processor's own instruction."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@njit(cache=True, nogil=True)
def contains(sets, i, j):
    """Whether set i holds vertex j."""
    return (sets[i, j >> 6] >> np.uint64(j & 63)) & np.uint64(1) != 0


@njit(cache=True, nogil=True)
def remove(sets, i, j):
    """Take vertex j out of set i."""
    sets[i, j >> 6] &= ~(np.uint64(1) << np.uint64(j & 63))


@njit(cache=True, nogil=True)
def insert(sets, i, j):
    """Put vertex j into set i."""
    sets[i, j >> 6] |= np.uint64(1) << np.uint64(j & 63)


@njit(cache=True, nogil=True)
def count_common(sets, i, others, k):
    """Size of the intersection of set i and another set k."""
    total = 0
    for w in range(sets.shape[1]):
        total += np.int64(count_bits(sets[i, w] & others[k, w]))
    return total


@njit(cache=True, nogil=True)
def count_outside(sets, i, others, k):
    """Size of set i without another set k and without vertex k itself."""
    total = 0
    for w in range(sets.shape[1]):
        total += np.int64(count_bits(sets[i, w] & ~others[k, w]))
    return total - np.int64(contains(sets, i, k) and not contains(others, k, k))
