"""Joint alignment: one permutation for each graph of a collection, by local search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from softperm.data.graphs import as_graphs
from softperm.distance.matrix import frobenius_intervals
from softperm.distance.pairs import adjacency
from softperm.jit import kernel

FAST = {"reassoc", "contract", "nsz"}  # sums over graphs may be taken in any order
TRIES = 8  # random placements of a graph in each round, besides its current one
GAIN = 1e-9  # least relative improvement that counts


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
    data = as_graphs(graphs)
    matrices = _padded([adjacency(graph) for graph in data])
    if distances is None:
        mixed = bool((matrices < 0).any() and (matrices > 0).any())
        distances = frobenius_intervals(list(matrices) if mixed else data).lower_bound
    if np.shape(distances) != (len(data), len(data)):
        raise ValueError(
            f"distances has shape {np.shape(distances)}; expected {(len(data), len(data))}, one "
            f"row and one column for each graph"
        )
    if not np.isfinite(distances).all():
        raise ValueError(
            "distances holds NaN or infinite numbers; expected a distance of each pair"
        )
    if restarts < 0:
        raise ValueError(f"restarts is {restarts}; expected zero or more")
    rng = np.random.default_rng(seed)
    best, least = None, np.inf
    for _ in range(restarts + 1):
        order = rng.permutation(len(data))
        places = np.tile(np.arange(matrices.shape[1]), (len(data), 1))
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


@kernel
def align(matrices, places, seed):
    """Place the graphs one after another, then each anew, until a round changes nothing.

    In the first round a graph sees those before it only, which are placed; the order matters.

    Args:
        matrices: (B, N, N) zero-padded adjacency matrices.
        places: (B, N) the vertex in each place of each graph, written.
        seed: of the random placements, not zero.

    Returns:
        (B, B) distances of the aligned matrices.
    """
    count, n = places.shape
    aligned = np.zeros((n, n, count))
    state = np.uint64(seed)
    rounds = 0
    improved = True
    while improved:
        improved = False
        for g in range(count):
            seen = count if rounds else g
            _put(aligned, g, matrices[g], places[g])
            better, state = _replace(aligned, g, seen, matrices[g], places[g], state)
            improved = improved or better or rounds == 0
        rounds += 1
    distances = np.zeros((count, count))
    for g in range(count):
        squares = _squares(aligned, count, aligned[:, :, g].copy())
        for h in range(count):
            distances[g, h] = np.sqrt(squares[h])
    return distances


@kernel
def _replace(aligned, g, seen, matrix, place, state):
    """Descend from where graph g is and from random placements; keeps the best, in place."""
    n = place.size
    moved = aligned[:, :, g].copy()
    squares = _squares(aligned, seen, moved)
    if g < seen:
        squares[g] = 0.0
    value = _total(squares)
    improved = False
    for attempt in range(TRIES + 1):
        trial = place.copy()
        if attempt:
            state = _shuffle(trial, state)
        for i in range(n):
            for k in range(n):
                moved[i, k] = matrix[trial[i], trial[k]]
        reached = _descend(aligned, g, seen, moved, trial)
        if reached < value - GAIN * (1.0 + value):
            value = reached
            improved = True
            for i in range(n):
                place[i] = trial[i]
            _put(aligned, g, matrix, place)
    return improved, state


@kernel
def _put(aligned, g, matrix, place):
    """Write graph g with its vertices in their places."""
    for i in range(place.size):
        for k in range(place.size):
            aligned[i, k, g] = matrix[place[i], place[k]]


@kernel
def _shuffle(place, state):
    """Permute in place at random; returns the next state of the generator."""
    for i in range(place.size - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        k = np.int64(state % np.uint64(i + 1))
        place[i], place[k] = place[k], place[i]
    return state


@kernel
def _squares(aligned, seen, moved):
    """(seen,) squared distances of a matrix to the first aligned ones."""
    squares = np.zeros(seen)
    for i in range(moved.shape[0]):
        for k in range(moved.shape[0]):
            for h in range(seen):
                difference = moved[i, k] - aligned[i, k, h]
                squares[h] += difference * difference
    return squares


@kernel(fastmath=FAST)
def _total(squares):
    """Sum of the distances that belong to squared ones, which rounding may make negative."""
    total = 0.0
    for h in range(squares.size):
        total += np.sqrt(max(squares[h], 0.0))
    return total


@kernel
def _descend(aligned, g, seen, moved, place):
    """Exchange places of graph g while that lowers its total, both in place; returns the total."""
    n = place.size
    squares = _squares(aligned, seen, moved)
    if g < seen:
        squares[g] = 0.0
    value = _total(squares)
    changed = np.empty(seen)
    improved = True
    while improved:
        improved = False
        for i in range(n):
            for k in range(i):
                _exchange(aligned, moved, i, k, squares, changed)
                if g < seen:
                    changed[g] = 0.0
                reached = _total(changed)
                if reached < value - GAIN * (1.0 + value):
                    value = reached
                    improved = True
                    squares, changed = changed, squares
                    place[i], place[k] = place[k], place[i]
                    for t in range(n):
                        moved[i, t], moved[k, t] = moved[k, t], moved[i, t]
                    for t in range(n):
                        moved[t, i], moved[t, k] = moved[t, k], moved[t, i]
    return value


@kernel
def _exchange(aligned, moved, i, k, squares, changed):
    """The squared distances after an exchange of two places."""
    for h in range(squares.size):
        changed[h] = squares[h]
    for t in range(moved.shape[0]):
        weight = 4.0 * (moved[i, t] - moved[k, t])
        if weight != 0.0 and t != i and t != k:  # most entries agree and cost nothing
            for h in range(squares.size):
                changed[h] -= weight * (aligned[k, t, h] - aligned[i, t, h])
