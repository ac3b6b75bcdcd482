"""The Frobenius distance by enumeration of all permutations, and random graphs to try it on."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import networkx as nx
import numpy as np

from softperm.distance.costs import Frobenius
from softperm.distance.exact import read
from softperm.distance.pairs import Pair, pair_of


def read_pair(g1: object, g2: object, *, labels: bool = False) -> Pair:
    """Two graphs as the search reads them."""
    packed, model = read(g1, g2, Frobenius(labels))
    return pair_of(model, packed, 0, packed, 1)


@cache
def _index(n: int) -> tuple[np.ndarray, np.ndarray]:
    """All permutations (n!, n), and where each sends the entries above the diagonal (n!, pairs)."""
    every = np.array(list(permutations(range(n))), dtype=np.uint8).reshape(-1, n)
    i, k = np.triu_indices(n, k=1)
    return every, every[:, i] * np.uint8(n) + every[:, k]


def enumerate_distance(a: np.ndarray, b: np.ndarray, allowed: np.ndarray | None = None) -> float:
    """The least norm of ``a − b[p][:, p]`` over all (allowed) permutations p."""
    n = max(len(a), len(b))
    a, b = pad(a, n), pad(b, n)
    every, entries = _index(n)
    if allowed is not None:
        kept = allowed[np.arange(n), every].all(axis=1)
        entries = entries[kept]
        assert len(entries), "the oracle needs at least one allowed permutation"
    upper = a[np.triu_indices(n, k=1)]
    least = ((upper - b.ravel()[entries]) ** 2).sum(axis=1).min() if n > 1 else 0.0
    return float(np.sqrt(2 * least))


def enumerate_labelled(a: np.ndarray, la: list, b: np.ndarray, lb: list) -> float:
    """The same with labels: padding to twice the need, padding vertices match anything."""
    n = len(a) + len(b)
    full_a, full_b = [*la, *[None] * len(lb)], [*lb, *[None] * len(la)]
    allowed = np.array([[x is None or y is None or x == y for y in full_b] for x in full_a])
    return enumerate_distance(pad(a, n), pad(b, n), allowed)


def pad(matrix: np.ndarray, n: int) -> np.ndarray:
    """The matrix with zero rows and columns up to n."""
    return np.pad(matrix, (0, n - len(matrix)))


def attained(a: np.ndarray, b: np.ndarray, p: np.ndarray) -> float:
    """The norm that a permutation attains."""
    assert sorted(p) == list(range(len(p)))
    return float(np.linalg.norm(pad(a, len(p)) - pad(b, len(p))[p][:, p]))


def random_matrix(rng: np.random.Generator, n: int, density: float | None = None) -> np.ndarray:
    """The adjacency matrix of a simple random graph, with an edge at least where there is room."""
    density = rng.random() if density is None else density
    upper = np.triu(rng.random((n, n)) < density, k=1)
    if n > 1:
        upper[0, 1] |= not upper.any()
    return (upper | upper.T).astype(float)


def weigh(rng: np.random.Generator, matrix: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The same graph with a weight drawn for each edge."""
    drawn = np.triu(rng.choice(weights, size=matrix.shape), k=1)
    return matrix * (drawn + drawn.T)


def shuffled(rng: np.random.Generator, matrix: np.ndarray) -> np.ndarray:
    """The same graph with its vertices renumbered."""
    p = rng.permutation(len(matrix))
    return matrix[p][:, p]


def labelled_graph(matrix: np.ndarray, labels: list) -> nx.Graph:
    """A NetworkX graph with vertex labels."""
    graph = nx.from_numpy_array(matrix)
    nx.set_node_attributes(graph, dict(enumerate(labels)), "label")
    return graph
