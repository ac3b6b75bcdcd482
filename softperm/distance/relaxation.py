"""The bound of a search node: Gilmore and Lawler's, sharpened by the matches that are left.

Matching i with j costs its disagreements with the fixed rows in full, and half of what i and j must
disagree on among the free vertices whatever the rest is: half, because both ends of an edge count
it. For weights that is the cheapest pairing of the two rows of weights, sorted against sorted. For
simple graphs it is the number of edges at i and at j that cannot meet. Of the neighbours of i at
most e find a neighbour of j among the matches left to them, so d(i) + d(j) − 2e edges do not meet;
e is bounded by counting, from either side, and once more by counting non-neighbours.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from softperm.distance.assignment import assign
from softperm.distance.bits import contains, count_common, count_outside, insert


@njit(cache=True, nogil=True)
def relax(pair, tree, t, limit):
    """The bound of level t; leaves the assignment and its duals behind.

    Args:
        pair: the two graphs.
        tree: the search; its ``cost``, ``match``, ``u[t]`` and ``v[t]`` are written.
        t: the level.
        limit: a cost past which the caller no longer cares.

    Returns:
        A lower bound of the cost of every permutation below this node.
    """
    m = pair.a.shape[0] - t
    rows, columns, domain = tree.rows[t], tree.columns[t], tree.domain[t]
    if pair.order_a.shape[0] > 0:
        free_a = _sort_free(pair.a, pair.order_a, rows, m)
        free_b = _sort_free(pair.b, pair.order_b, columns, m)
        _pair_weights(free_a, free_b, m, tree.cost)
    else:
        _pair_neighbours(pair, rows, columns, m, domain, tree.cost)
    for x in range(m):
        for y in range(m):
            if contains(domain, x, columns[y]):
                tree.cost[x, y] = tree.linear[t, x, y] + 0.5 * tree.cost[x, y]
            else:
                tree.cost[x, y] = np.inf
    below = tree.fixed[t]
    return below + assign(tree.cost, m, tree.u[t], tree.v[t], tree.match, limit - below)


@njit(cache=True, nogil=True)
def _sort_free(matrix, order, free, m):
    """(m, m - 1) weights from each free vertex to the other free ones, ascending."""
    is_free = np.zeros(matrix.shape[0], np.bool_)
    weights = np.empty((m, m))
    for x in range(m):
        is_free[free[x]] = True
    for x in range(m):
        i = free[x]
        count = 0
        for k in order[i]:
            if is_free[k] and k != i:
                weights[x, count] = matrix[i, k]
                count += 1
    return weights


@njit(cache=True, nogil=True)
def _pair_weights(free_a, free_b, m, out):
    """Squared distance of each two rows of sorted weights."""
    for x in range(m):
        for y in range(m):
            total = 0.0
            for k in range(m - 1):
                difference = free_a[x, k] - free_b[y, k]
                total += difference * difference
            out[x, y] = total


@njit(cache=True, nogil=True)
def _pair_neighbours(pair, rows, columns, m, domain, out):
    """Least number of edges at x and at y that do not meet, x matched with y."""
    words = domain.shape[1]
    reverse = np.zeros((m, words), np.uint64)  # the rows left to each column
    for x in range(m):
        for y in range(m):
            if contains(domain, x, columns[y]):
                insert(reverse, y, rows[x])
    near_x, far_x, degree_x = _reach(pair.a, rows, m, domain)
    near_y, far_y, degree_y = _reach(pair.b, columns, m, reverse)
    near_a, near_b = pair.near_a, pair.near_b
    for x in range(m):
        i = rows[x]
        for y in range(m):
            j = columns[y]
            degrees = degree_x[x] + degree_y[y]
            met = min(count_common(near_x, x, near_b, j), count_common(near_y, y, near_a, i))
            apart = min(count_outside(far_x, x, near_b, j), count_outside(far_y, y, near_a, i))
            out[x, y] = degrees - 2 * min(met, apart - (m - 1) + degrees)


@njit(cache=True, nogil=True)
def _reach(matrix, free, m, sets):
    """Unions of the sets of each free vertex's free neighbours and of its other free vertices.

    Returns:
        Both unions (m, W), and the number of free neighbours (m,).
    """
    degree = np.zeros(m, np.int64)
    near = np.zeros((m, sets.shape[1]), np.uint64)
    far = np.zeros((m, sets.shape[1]), np.uint64)
    for x in range(m):
        for k in range(m):
            if k != x:
                linked = matrix[free[x], free[k]] != 0.0
                degree[x] += linked
                union = near if linked else far
                for w in range(sets.shape[1]):
                    union[x, w] |= sets[k, w]
    return near, far, degree
