"""The linear assignment problem, small and many times over: the bound of every search node."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from softperm.jit import kernel


@kernel
def assign(
    cost: Float[np.ndarray, "N N"],
    m: int,
    u: Float[np.ndarray, " N"],
    v: Float[np.ndarray, " N"],
    column_of: Int[np.ndarray, " N"],
    limit: float,
) -> float:
    """Cheapest one-to-one matching of the first m rows and columns, by shortest augmenting paths.

    ``max Σ u + Σ v  subject to  u[i] + v[j] <= cost[i, j]``: the dual is grown from the given v, so
    its value is a lower bound at any moment and the work stops as soon as it passes ``limit``.

    Args:
        cost: infinite where row and column may not be matched.
        m: how many rows and columns take part.
        u: dual of the rows, written.
        v: dual of the columns, read as the start and written.
        column_of: the column matched with each row, written.
        limit: a value past which the caller no longer cares.

    Returns:
        The optimal value; or some lower bound above ``limit``; or infinity if nothing matches.
    """
    row_of = np.empty(m, np.int64)
    for i in range(m):
        row_of[i] = column_of[i] = -1
    total = _reduce_rows(cost, m, u, v, row_of, column_of)
    distance = np.empty(m)
    parent = np.empty(m, np.int64)
    done = np.empty(m, np.bool_)
    for row in range(m):
        if total > limit or total == np.inf:
            return total
        if column_of[row] < 0:
            total += _augment(cost, m, u, v, row_of, column_of, row, distance, parent, done)
    return total


@kernel
def _reduce_rows(cost, m, u, v, row_of, column_of):
    """Give each row its cheapest column where that is free; returns the dual value."""
    total = 0.0
    for i in range(m):
        least = np.inf
        chosen = -1
        for j in range(m):
            reduced = cost[i, j] - v[j]
            tie = chosen >= 0 and reduced == least
            if reduced < least or (tie and row_of[j] < 0 <= row_of[chosen]):
                least = reduced
                chosen = j
        if chosen < 0:
            return np.inf
        u[i] = least
        total += least + v[i]
        if row_of[chosen] < 0:
            row_of[chosen] = i
            column_of[i] = chosen
    return total


@kernel
def _augment(cost, m, u, v, row_of, column_of, row, distance, parent, done):
    """Match one more row along the shortest alternating path; returns the path's length."""
    for j in range(m):
        distance[j] = cost[row, j] - u[row] - v[j]
        parent[j] = row
        done[j] = False
    while True:
        length = np.inf
        sink = -1
        for j in range(m):
            if not done[j] and (distance[j] < length or (distance[j] == length and row_of[j] < 0)):
                length = distance[j]
                sink = j
        if length == np.inf:
            return np.inf
        done[sink] = True
        i = row_of[sink]
        if i < 0:
            break
        offset = length - u[i]
        for j in range(m):
            through = offset + cost[i, j] - v[j]
            if not done[j] and through < distance[j]:
                distance[j] = through
                parent[j] = i
    for j in range(m):
        if done[j] and j != sink:
            u[row_of[j]] += length - distance[j]
            v[j] -= length - distance[j]
    u[row] += length
    while True:
        i = parent[sink]
        row_of[sink] = i
        sink, column_of[i] = column_of[i], sink
        if i == row:
            return length
