"""The lower bound of a search node: the bound of Gilmore and Lawler, sharpened by bit sets.

Matching row i with column j costs its disagreements with the fixed rows in full, and half of what i
and j must disagree on among the free vertices: half, because both ends of an edge count it. For
many different weights that is the cheapest pairing of the two rows of weights, sorted against
sorted. For channels it is the price of the edges at i and at j that cannot be matched with each
other. In each group of neighbours, at most e neighbours of i find a neighbour of j among their
candidates, so d(i) + d(j) − 2e edges have no match; e is bounded by counting from either side and,
in dense graphs, by counting non-neighbours.
"""

from __future__ import annotations

import numpy as np

from softperm.distance.assignment import assign
from softperm.distance.pairs import contains, count_bits, insert, lowest_bit
from softperm.jit import kernel


@kernel
def bound_node(pair, tree, t, limit):
    """The bound of level t; also computes the assignment and its duals.

    Args:
        pair: the two graphs.
        tree: the search; its ``cost``, ``match``, ``u[t]`` and ``v[t]`` are written.
        t: the level.
        limit: the computation stops early if the bound exceeds this cost.

    Returns:
        A lower bound of the cost of every permutation below this node.
    """
    m = pair.label_a.size - t
    rows, columns, domain = tree.rows[t], tree.columns[t], tree.domain[t]
    if pair.order_a.shape[0] > 0:
        free_a = _sort_free(pair.model.value, pair.kind_a, pair.order_a, rows, m)
        free_b = _sort_free(pair.model.value, pair.kind_b, pair.order_b, columns, m)
        _pair_weights(free_a, free_b, pair.model.power, m, tree.cost)
        for x in range(m):
            for y in range(m):
                if not contains(domain, x, columns[y]):
                    tree.cost[x, y] = np.inf
    else:
        _pair_neighbours(pair, rows, columns, m, domain, tree.cost)
    for x in range(m):
        for y in range(m):
            tree.cost[x, y] = tree.linear[t, x, y] + 0.5 * tree.cost[x, y]
    below = tree.fixed[t]
    return below + assign(tree.cost, m, tree.u[t], tree.v[t], tree.match, limit - below)


@kernel
def _sort_free(value, kind, order, free, m):
    """(m, m - 1) weights from each free vertex to the other free ones, ascending."""
    is_free = np.zeros(kind.shape[0], np.bool_)
    weights = np.empty((m, m))
    for x in range(m):
        is_free[free[x]] = True
    for x in range(m):
        i = free[x]
        count = 0
        for k in order[i]:
            if is_free[k] and k != i:
                weights[x, count] = value[kind[i, k]]
                count += 1
    return weights


@kernel
def _pair_weights(free_a, free_b, power, m, out):
    """Distance of each two rows of sorted weights."""
    for x in range(m):
        for y in range(m):
            total = 0.0
            for k in range(m - 1):
                difference = abs(free_a[x, k] - free_b[y, k])
                total += difference * difference if power == 2 else difference
            out[x, y] = total


@kernel
def _pair_neighbours(pair, rows, columns, m, domain, out):
    """Least price of edges at x and at y without a match; infinite if x and y cannot be matched."""
    groups, words = pair.price.size, domain.shape[1]
    position = np.empty(2 * pair.label_a.size, np.int64)
    position_a, position_b = position[: pair.label_a.size], position[pair.label_a.size :]
    for x in range(m):
        position_a[rows[x]] = x
        position_b[columns[x]] = x
    codomain = np.zeros((m, words), np.uint64)  # rows that may be matched with each column
    for x in range(m):
        for w in range(words):
            left = domain[x, w]
            while left:
                insert(codomain, position_b[64 * w + lowest_bit(left)], rows[x])
                left &= left - np.uint64(1)
    free = np.zeros((2, words), np.uint64)
    for x in range(m):
        insert(free, 0, rows[x])
        insert(free, 1, columns[x])
    near_a, reach_a, degree_a = _reach(
        pair.near_a, pair.price, rows, m, free[0], position_a, domain
    )
    near_b, reach_b, degree_b = _reach(
        pair.near_b, pair.price, columns, m, free[1], position_b, codomain
    )
    for x in range(m):
        for y in range(m):
            out[x, y] = np.inf
    used = np.empty(groups, np.int64)
    for x in range(m):
        count = 0
        for g in range(groups):
            if degree_a[x, g] > 0:
                used[count] = g
                count += 1
        for w in range(words):
            left = domain[x, w]
            while left:
                y = position_b[64 * w + lowest_bit(left)]
                left &= left - np.uint64(1)
                cost = degree_a[x, groups] + degree_b[y, groups]
                for c in range(count):
                    g = used[c]
                    if degree_b[y, g] > 0:
                        from_a, from_b = 0, 0
                        for v in range(words):
                            from_a += count_bits(reach_a[x, g, v] & near_b[y, g, v])
                            from_b += count_bits(reach_b[y, g, v] & near_a[x, g, v])
                        met = min(from_a, from_b)
                        cost -= 2.0 * pair.price[g] * met
                out[x, y] = cost
    if pair.dense:
        far_a = _reach_apart(near_a, rows, m, domain)
        far_b = _reach_apart(near_b, columns, m, codomain)
        for x in range(m):
            for y in range(m):
                if out[x, y] < np.inf:
                    from_a, from_b = 0, 0
                    for v in range(words):
                        outside_b = free[1, v] & ~near_b[y, 0, v]
                        outside_a = free[0, v] & ~near_a[x, 0, v]
                        from_a += count_bits(far_a[x, v] & outside_b)
                        from_b += count_bits(far_b[y, v] & outside_a)
                    from_a -= contains(far_a, x, columns[y])
                    from_b -= contains(far_b, y, rows[x])
                    degrees = degree_a[x, 0] + degree_b[y, 0]
                    met = min(from_a, from_b) - (m - 1) + degrees
                    out[x, y] = max(out[x, y], pair.price[0] * (degrees - 2.0 * met))


@kernel
def _reach_apart(near, vertices, m, domain):
    """Unions of the candidates of the free vertices that are not neighbours of each vertex."""
    reach = np.zeros((m, domain.shape[1]), np.uint64)
    for x in range(m):
        for k in range(m):
            if k != x and not contains(near[x], 0, vertices[k]):
                for v in range(domain.shape[1]):
                    reach[x, v] |= domain[k, v]
    return reach


@kernel
def _reach(near, price, vertices, m, free, position, domain):
    """Free neighbours of each free vertex by group, the unions of their candidates, and degrees.

    The last column of the degrees is the price of all edges at a vertex.
    """
    groups, words = near.shape[0], near.shape[2]
    neighbours = np.empty((m, groups, words), np.uint64)
    reach = np.zeros((m, groups, words), np.uint64)
    degree = np.zeros((m, groups + 1))
    for x in range(m):
        for g in range(groups):
            for w in range(words):
                left = near[g, vertices[x], w] & free[w]
                neighbours[x, g, w] = left
                degree[x, g] += count_bits(left)
                while left:
                    k = position[64 * w + lowest_bit(left)]
                    left &= left - np.uint64(1)
                    for v in range(words):
                        reach[x, g, v] |= domain[k, v]
            degree[x, groups] += price[g] * degree[x, g]
    return neighbours, reach, degree
