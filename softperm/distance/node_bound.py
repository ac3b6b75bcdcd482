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

from softperm.distance.assignment import assign
from softperm.distance.pairs import contains, count_bits
from softperm.jit import kernel


@kernel
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
    elif domain.shape[1] == 1:
        _pair_neighbours(pair, rows, columns, m, domain, tree.cost)
    else:
        _pair_degrees(pair, rows, columns, m, tree.cost)
    for x in range(m):
        for y in range(m):
            if contains(domain, x, columns[y]):
                tree.cost[x, y] = tree.linear[t, x, y] + 0.5 * tree.cost[x, y]
            else:
                tree.cost[x, y] = np.inf
    below = tree.fixed[t]
    return below + assign(tree.cost, m, tree.u[t], tree.v[t], tree.match, limit - below)


@kernel
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


@kernel
def _pair_weights(free_a, free_b, m, out):
    """Squared distance of each two rows of sorted weights."""
    for x in range(m):
        for y in range(m):
            total = 0.0
            for k in range(m - 1):
                difference = free_a[x, k] - free_b[y, k]
                total += difference * difference
            out[x, y] = total


@kernel
def _pair_degrees(pair, rows, columns, m, out):
    """Least number of edges at x and at y that do not meet: the difference of their degrees."""
    degree_x = np.zeros(m)
    degree_y = np.zeros(m)
    for x in range(m):
        for k in range(m):
            degree_x[x] += pair.a[rows[x], rows[k]]
            degree_y[x] += pair.b[columns[x], columns[k]]
    for x in range(m):
        for y in range(m):
            out[x, y] = abs(degree_x[x] - degree_y[y])


@kernel
def _pair_neighbours(pair, rows, columns, m, domain, out):
    """The same, sharper, for sets of one word: edges meet only where matches are left."""
    one = np.uint64(1)
    sets = np.zeros((8, m), np.uint64)
    left_x, left_y, near_a, near_b, near_x, near_y, far_x, far_y = sets
    for x in range(m):
        left_x[x] = domain[x, 0]
        near_a[x] = pair.near_a[rows[x], 0]
        near_b[x] = pair.near_b[columns[x], 0]
        row = one << np.uint64(rows[x])
        for y in range(m):
            if (left_x[x] >> np.uint64(columns[y])) & one:
                left_y[y] |= row
    _reach(near_a, rows, left_x, near_x, far_x)
    _reach(near_b, columns, left_y, near_y, far_y)
    free_rows, free_columns = _members(rows, m), _members(columns, m)
    for x in range(m):
        i = one << np.uint64(rows[x])
        degree_x = count_bits(near_a[x] & free_rows)
        for y in range(m):
            j = one << np.uint64(columns[y])
            degrees = degree_x + count_bits(near_b[y] & free_columns)
            met = min(count_bits(near_x[x] & near_b[y]), count_bits(near_y[y] & near_a[x]))
            apart_x = count_bits(far_x[x] & ~(near_b[y] | j))
            apart_y = count_bits(far_y[y] & ~(near_a[x] | i))
            met = min(met, min(apart_x, apart_y) - (m - 1) + degrees)
            out[x, y] = degrees - 2 * met


@kernel
def _members(free, m):
    """The set of the free vertices."""
    members = np.uint64(0)
    for x in range(m):
        members |= np.uint64(1) << np.uint64(free[x])
    return members


@kernel
def _reach(near, free, left, reach_near, reach_far):
    """Unions of the matches left to each free vertex's neighbours, and to the other vertices."""
    for x in range(left.size):
        for k in range(left.size):
            linked = (near[x] >> np.uint64(free[k])) & np.uint64(1)
            reach_near[x] |= left[k] & (np.uint64(0) - linked)
            reach_far[x] |= left[k] & (linked - np.uint64(1)) & (np.uint64(0) - np.uint64(k != x))
