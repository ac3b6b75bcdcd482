"""Isomorphism and automorphism, decided by the same search: a permutation of cost zero or none."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from softperm.distance.pack import Packed, pair_of
from softperm.distance.pairs import Pair, make_pair
from softperm.distance.search import advance, plant

EFFORT = 2_000  # nodes spent on one question; past that the answer is "not known", taken as "no"


def orbits(pair: Pair) -> Int[np.ndarray, " N"]:
    """The orbits of the second graph's vertices under the symmetries of the problem.

    A symmetry is an automorphism of ``b`` that leaves ``allowed`` as it is. Two vertices may be
    given different orbits although they share one, where the search for the symmetry is too long:
    that costs time and nothing else.

    Args:
        pair: the two graphs.

    Returns:
        The least vertex of each vertex's orbit.
    """
    n = pair.b.shape[0]
    columns = np.arange(n, dtype=np.uint64)
    bit = (pair.allowed[:, columns >> 6] >> (columns & 63)) & 1  # (N, N)
    kind = np.unique(bit, axis=1, return_inverse=True)[1].reshape(n).astype(np.int64)
    itself = make_pair(pair.b, kind, pair.b, kind)
    profile = np.sort(pair.b, axis=1)
    orbit = np.arange(n)
    for j in range(n):
        for least in np.unique(orbit[:j]):
            alike = kind[j] == kind[least] and (profile[j] == profile[least]).all()
            if alike and (pair.twin_b[j] == least or _exchangeable(itself, least, j)):
                orbit[j] = least
                break
    return orbit


def representatives(packed: Packed) -> Int[np.ndarray, " B"]:
    """For each graph the first graph that is isomorphic to it, labels and weights included.

    Args:
        packed: the graphs.

    Returns:
        Numbers of graphs; a graph's own number where it has no earlier copy.
    """
    first = np.arange(packed.size.size)
    alike: dict[tuple, list[int]] = {}
    for g in range(packed.size.size):
        candidates = alike.setdefault(_invariant(packed, g), [])
        for earlier in candidates:
            if _isomorphic(pair_of(packed, earlier, g)):
                first[g] = earlier
                break
        else:
            candidates.append(g)
    return first


def _isomorphic(pair: Pair) -> bool:
    """Whether the search finds a permutation of cost zero; False also where it gives up."""
    tree = plant(pair)
    tree.value[0] = pair.gap * (1 + 2**-20)
    advance(pair, tree, EFFORT)
    return bool(tree.value[0] == 0.0)


def _exchangeable(itself: Pair, j: int, k: int) -> bool:
    """Whether a symmetry takes vertex j to vertex k."""
    n = itself.a.shape[0]
    allowed = itself.allowed.copy()
    allowed[j] = 0
    allowed[j, k >> 6] = np.uint64(1) << np.uint64(k & 63)
    alone = np.arange(n)  # the restriction of row j is one that twins do not share
    return _isomorphic(
        itself._replace(allowed=allowed, twin_a=alone, twin_b=alone, orbit_b=alone)
    )


def _invariant(packed: Packed, g: int) -> tuple:
    """What isomorphic graphs share: colours of the vertices, refined by those of neighbours."""
    n = packed.size[g]
    matrix = packed.weight[packed.weight_ptr[g] : packed.weight_ptr[g + 1]].reshape(n, n)
    colour = packed.label[packed.label_ptr[g] : packed.label_ptr[g + 1]].tolist()
    neighbours = [np.flatnonzero(row).tolist() for row in matrix]
    weights = matrix.tolist()
    for _ in range(3):
        colour = [
            hash((colour[i], tuple(sorted((weights[i][k], colour[k]) for k in neighbours[i]))))
            for i in range(n)
        ]
    return int(n), tuple(sorted(colour))
