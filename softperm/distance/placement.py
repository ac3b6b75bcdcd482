"""The local search of joint alignment: place one graph at a time among all the others."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "nsz"}  # sums over graphs may be taken in any order
TRIES = 8  # random placements of a graph in each round, besides the one it has
GAIN = 1e-9  # least relative improvement that counts


@njit(cache=True, nogil=True)
@no_type_check
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


@njit(cache=True, nogil=True)
@no_type_check
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


@njit(cache=True, nogil=True)
@no_type_check
def _put(aligned, g, matrix, place):
    """Write graph g with its vertices in their places."""
    for i in range(place.size):
        for k in range(place.size):
            aligned[i, k, g] = matrix[place[i], place[k]]


@njit(cache=True, nogil=True)
@no_type_check
def _shuffle(place, state):
    """Permute in place at random; returns the next state of the generator."""
    for i in range(place.size - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        k = np.int64(state % np.uint64(i + 1))
        place[i], place[k] = place[k], place[i]
    return state


@njit(cache=True, nogil=True)
@no_type_check
def _squares(aligned, seen, moved):
    """(seen,) squared distances of a matrix to the first aligned ones."""
    squares = np.zeros(seen)
    for i in range(moved.shape[0]):
        for k in range(moved.shape[0]):
            for h in range(seen):
                difference = moved[i, k] - aligned[i, k, h]
                squares[h] += difference * difference
    return squares


@njit(cache=True, nogil=True, fastmath=FAST)
@no_type_check
def _total(squares):
    """Sum of the distances that belong to squared ones, which rounding may make negative."""
    total = 0.0
    for h in range(squares.size):
        total += np.sqrt(max(squares[h], 0.0))
    return total


@njit(cache=True, nogil=True)
@no_type_check
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


@njit(cache=True, nogil=True)
@no_type_check
def _exchange(aligned, moved, i, k, squares, changed):
    """The squared distances after an exchange of two places."""
    for h in range(squares.size):
        changed[h] = squares[h]
    for t in range(moved.shape[0]):
        weight = 4.0 * (moved[i, t] - moved[k, t])
        if weight != 0.0 and t != i and t != k:  # most entries agree and cost nothing
            for h in range(squares.size):
                changed[h] -= weight * (aligned[k, t, h] - aligned[i, t, h])
