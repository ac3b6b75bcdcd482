"""Isomorphism and automorphism, decided by the search for a permutation of cost zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from softperm.distance.branch_and_bound import advance, plant, value_above
from softperm.distance.costs import Model
from softperm.distance.pairs import Packed, Pair, make_pair, pair_of

EFFORT = 2_000  # node bounds for one decision; an undecided one counts as "not isomorphic"


def with_orbits(pair: Pair, over: Callable[[], bool]) -> Pair:
    """The pair with the orbits of the vertices of both graphs in place of their twin classes."""
    orbit_a = orbits(pair.model, pair.kind_a, pair.label_a, pair.twin_a, over)
    orbit_b = orbits(pair.model, pair.kind_b, pair.label_b, pair.twin_b, over)
    return pair._replace(orbit_a=orbit_a, orbit_b=orbit_b)


def orbits(
    model: Model,
    kind: Int[np.ndarray, "N N"],
    label: Int[np.ndarray, " N"],
    twin: Int[np.ndarray, " N"],
    over: Callable[[], bool] = lambda: False,
) -> Int[np.ndarray, " N"]:
    """The orbits of a graph's vertices under its automorphisms.

    Two vertices of one orbit may be given different orbits if the search for the automorphism takes
    too long: that costs time, not correctness.

    Returns:
        The least vertex of each vertex's orbit.
    """
    n = label.size
    names, code = np.unique(label, return_inverse=True)
    strict = model._replace(strict=True, vertex=0.0, relabel=np.inf)
    itself = make_pair(strict, kind, code, kind, code, names.size)
    profile = np.sort(kind, axis=1)
    orbit = np.arange(n)
    for j in range(n):
        orbit[j] = orbit[twin[j]]
        for least in np.unique(orbit[:j]) if twin[j] == j else []:
            alike = label[j] == label[least] and (profile[j] == profile[least]).all()
            if alike and not over() and _exchangeable(itself, int(least), j):
                orbit[j] = least
                break
    return orbit


def representatives(model: Model, packed: Packed) -> Int[np.ndarray, " B"]:
    """The first graph that is isomorphic to each graph, with equal labels and weights.

    Returns:
        Indices of graphs; a graph's own index if no earlier graph is isomorphic to it.
    """
    count = packed.ptr.size - 1
    first = np.arange(count)
    alike: dict[tuple, list[int]] = {}
    strict = model._replace(strict=True, vertex=0.0, relabel=np.inf)
    for g in range(count):
        candidates = alike.setdefault(_invariant(packed, g), [])
        for earlier in candidates:
            if _isomorphic(pair_of(strict, packed, earlier, packed, g)):
                first[g] = earlier
                break
        else:
            candidates.append(g)
    return first


def _isomorphic(pair: Pair) -> bool:
    """Whether the search finds a permutation of cost zero within its effort."""
    tree = plant(pair)
    tree.value[0] = value_above(pair, 0.0) + 1e-12
    advance(pair, tree, EFFORT)
    return bool(tree.value[0] == 0.0)


def _exchangeable(itself: Pair, j: int, k: int) -> bool:
    """Whether an automorphism maps vertex j to vertex k."""
    allowed = itself.allowed.copy()
    allowed[j] = 0
    allowed[j, k >> 6] = np.uint64(1) << np.uint64(k & 63)
    alone = np.arange(itself.label_a.size)  # twins of row j are not restricted as row j is
    return _isomorphic(
        itself._replace(allowed=allowed, twin_a=alone, twin_b=alone, orbit_a=alone, orbit_b=alone)
    )


def _invariant(packed: Packed, g: int) -> tuple:
    """A value that isomorphic graphs share: colours, three times refined by those of neighbours."""
    colour = packed.label[packed.ptr[g] : packed.ptr[g + 1]].tolist()
    edges = slice(packed.edge_ptr[g], packed.edge_ptr[g + 1])
    neighbours: list[list[tuple[int, int]]] = [[] for _ in colour]
    for (u, v), kind in zip(packed.ends[edges].tolist(), packed.kind[edges].tolist(), strict=True):
        neighbours[u].append((kind, v))
        neighbours[v].append((kind, u))
    for _ in range(3):
        colour = [
            hash((own, tuple(sorted((kind, colour[k]) for kind, k in around))))
            for own, around in zip(colour, neighbours, strict=True)
        ]
    return len(colour), tuple(sorted(colour))
