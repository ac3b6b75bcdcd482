"""Bit sets: rows of 64-bit words that hold sets of vertices."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Bool, UInt64
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
@no_type_check
def count_bits(typing_context, word):
    """Number of ones in a 64-bit word: the processor's own instruction."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@njit(cache=True, nogil=True)
@no_type_check
def contains(sets, i, j):
    """Whether set i holds vertex j."""
    return (sets[i, j >> 6] >> np.uint64(j & 63)) & np.uint64(1) != 0


@njit(cache=True, nogil=True)
@no_type_check
def remove(sets, i, j):
    """Take vertex j out of set i."""
    sets[i, j >> 6] &= ~(np.uint64(1) << np.uint64(j & 63))


@njit(cache=True, nogil=True)
@no_type_check
def insert(sets, i, j):
    """Put vertex j into set i."""
    sets[i, j >> 6] |= np.uint64(1) << np.uint64(j & 63)


def unpack(sets: UInt64[np.ndarray, "N W"]) -> Bool[np.ndarray, "N N"]:
    """N sets of N vertices as a matrix of truth values."""
    vertices = np.arange(len(sets), dtype=np.uint64)
    return (sets[:, vertices >> 6] >> (vertices & 63)) & 1 == 1
