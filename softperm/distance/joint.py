"""One permutation for each graph of a collection, so that all pairs are aligned at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from softperm.data.graphs import as_graphs
from softperm.distance.matrix import frobenius_intervals
from softperm.distance.pack import adjacency
from softperm.distance.placement import align


@dataclass(frozen=True, eq=False)
class JointAlignment:
    """The graphs of a collection, each with its vertices in a place of their own.

    Args:
        permutations: (B, N) vertex ``permutations[g, i]`` of graph g, zero-padded to N vertices,
            stands in place i, so its aligned matrix is ``A[p][:, p]`` with ``p = permutations[g]``.
        distances: (B, B) Frobenius norms of the differences of aligned matrices.
        objective: their sum over all ordered pairs, which the alignment makes small.
        lower_bound: the sum of the Frobenius distances over all ordered pairs. With weights of both
            signs those of the graphs padded to N, which may be smaller: two places that are
            adjacent with unlike signs are better left to padding.
    """

    permutations: Int[np.ndarray, "B N"]
    distances: Float[np.ndarray, "B B"]
    objective: float
    lower_bound: float


def joint_alignment(
    graphs: Iterable[Any],
    *,
    seed: int = 0,
    restarts: int = 8,
    distances: Float[np.ndarray, "B B"] | None = None,
) -> JointAlignment:
    r"""Align a whole collection (Equation 2 of the paper), by alternating local search.

    .. math:: \min_{P_1, \ldots, P_B \in \Pi} \sum_i \sum_j
              \| P_i A_i P_i^\top - P_j A_j P_j^\top \|_F

    over permutations of the vertices, the graphs zero-padded to the size N of the largest. Each
    aligned distance is at least the Frobenius distance of the padded pair, so the sum of these is a
    lower bound; it is met only by collections that Euclidean space can hold in this way.

    Graph after graph, in random order, exchanges of two places are made while they lower the sum
    for that graph with all others as they are, from where the graph is and from random placements,
    until nothing moves. The result is the best of several such local optima.

    Args:
        graphs: the graphs, all of one kind.
        seed: of the random placements.
        restarts: how many times everything is begun anew.
        distances: (B, B) Frobenius distances, of padded graphs where signs of weights differ, or
            lower bounds of them, for the lower bound; computed if not given.

    Returns:
        The permutations, the aligned distances, their sum and its lower bound.

    >>> import networkx as nx
    >>> paths = joint_alignment([nx.path_graph(n) for n in (2, 3, 4)])
    >>> round(paths.objective, 4) == round(paths.lower_bound, 4)
    True
    """
    made = as_graphs(graphs)
    matrices = _padded([adjacency(graph) for graph in made])
    if distances is None:
        mixed = matrices.min() < 0 < matrices.max()
        distances = frobenius_intervals(list(matrices) if mixed else made).lower_bound
    if np.shape(distances) != (len(made), len(made)):
        raise ValueError(
            f"distances has shape {np.shape(distances)}; expected {(len(made), len(made))}, one "
            f"row and one column for each graph"
        )
    if restarts < 0:
        raise ValueError(f"restarts is {restarts}; expected zero or more")
    rng = np.random.default_rng(seed)
    best, least = None, np.inf
    for _ in range(restarts + 1):
        order = rng.permutation(len(made))
        places = np.tile(np.arange(matrices.shape[1]), (len(made), 1))
        aligned = align(matrices[order], places, int(rng.integers(1, 2**62)))
        if aligned.sum() < least:
            back = np.argsort(order)
            best, least = (places[back], aligned[np.ix_(back, back)]), aligned.sum()
    assert best is not None
    places, aligned = best
    return JointAlignment(places, aligned, float(aligned.sum()), float(np.sum(distances)))


def _padded(matrices: list[np.ndarray]) -> Float[np.ndarray, "B N N"]:
    """The matrices zero-padded to the largest."""
    n = max(len(matrix) for matrix in matrices)
    padded = np.zeros((len(matrices), n, n))
    for place, matrix in zip(padded, matrices, strict=True):
        place[: len(matrix), : len(matrix)] = matrix
    return padded
