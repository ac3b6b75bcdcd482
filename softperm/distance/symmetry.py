"""Isomorphism and automorphism, decided by the same search: a permutation of cost zero or none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

from softperm.distance.branch_and_bound import advance, plant
from softperm.distance.pairs import Packed, Pair, make_pair, pair_of, unpack

EFFORT = (
    2_000  # relaxations spent on one question; past that the answer is "not known", taken as "no"
)


def with_orbits(pair: Pair, over: Callable[[], bool]) -> Pair:
    """The pair with the orbits of the vertices of both graphs in place of their twin classes."""
    allowed = unpack(pair.allowed)
    orbit_a = orbits(pair.a, pair.twin_a, allowed, over)
    return pair._replace(orbit_a=orbit_a, orbit_b=orbits(pair.b, pair.twin_b, allowed.T, over))


def orbits(
    matrix: Float[np.ndarray, "N N"],
    twin: Int[np.ndarray, " N"],
    allowed: Bool[np.ndarray, "N N"],
    over: Callable[[], bool] = lambda: False,
) -> Int[np.ndarray, " N"]:
    """The orbits of a graph's vertices under its symmetries.

    A symmetry is an automorphism that takes each vertex to one with the same allowed matches. Two
    vertices may be given different orbits although they share one, where the search for the
    symmetry is too long: that costs time and nothing else.

    Args:
        matrix: the adjacency matrix.
        twin: the twin class of each vertex, numbered by its least member.
        allowed: a row for each vertex: what it may be matched with.
        over: says when to stop looking for symmetries.

    Returns:
        The least vertex of each vertex's orbit.
    """
    n = len(matrix)
    kind = np.unique(allowed, axis=0, return_inverse=True)[1].reshape(n).astype(np.int64)
    itself = make_pair(matrix, kind, matrix, kind)
    profile = np.sort(matrix, axis=1)
    orbit = np.arange(n)
    for j in range(n):
        orbit[j] = orbit[twin[j]]
        for least in np.unique(orbit[:j]) if twin[j] == j else []:
            alike = kind[j] == kind[least] and (profile[j] == profile[least]).all()
            if alike and not over() and _exchangeable(itself, int(least), j):
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
        itself._replace(allowed=allowed, twin_a=alone, twin_b=alone, orbit_a=alone, orbit_b=alone)
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
