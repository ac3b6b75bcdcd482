"""Branch and bound over permutations: each node solves one assignment problem.

A node fixes the images of some rows. The candidates of each free row are a bit set of columns. The
node's bound (:func:`bound_node`) is the cheapest assignment of the free rows. Its reduced costs
eliminate single matches; the search branches on the row or column with the fewest candidates. Near
the root a long search *probes*: it bounds every single match before it branches.

Symmetry. Exchanging twins does not change the cost, so only one column of each class of twins is
tried, and the twins of a fixed row take columns no earlier than its own; the same holds with rows
and columns exchanged. At the root, orbits replace twins. Padding vertices are twins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from softperm.distance.pairs import contains, count_bits, edge_cost, insert, lowest_bit, remove
from softperm.jit import inner, kernel

GLANCE = 300  # relaxations of a search without probing; enough for most small pairs
SMALL = 40  # vertices up to which probing pays: its cost grows with their square


class Tree(NamedTuple):
    """The state of a depth-first search; level t has t fixed rows and m = N − t free ones.

    Quantities of a level are numbered by the position of a row or column among the free ones,
    ``rows[t, :m]`` and ``columns[t, :m]``, except the bit sets, which hold column numbers.
    """

    fixed: np.ndarray  # (N+1,) cost among fixed rows
    linear: np.ndarray  # (N+1, N, N) cost of matching against the fixed rows
    domain: np.ndarray  # (N+1, N, W) bit sets of the columns left to each row
    rows: np.ndarray  # (N+1, N)
    columns: np.ndarray  # (N+1, N)
    u: np.ndarray  # (N+1, N) dual of the rows
    v: np.ndarray  # (N+1, N) dual of the columns
    branch: np.ndarray  # (N+1,) what to fix next: row x as x, column y as m + y
    child: np.ndarray  # (N+1, N) positions to match it with, best first
    child_bound: np.ndarray  # (N+1, N) a lower bound of each, ascending
    children: np.ndarray  # (N+1,) how many
    cursor: np.ndarray  # (N+1,) how many are done or under way
    image: np.ndarray  # (N,) the images of fixed rows
    best: np.ndarray  # (N,) the best permutation known
    value: np.ndarray  # (1,) its cost
    level: np.ndarray  # (1,) the current level; −1 when the search is complete
    fresh: np.ndarray  # (1,) whether that level has not been bounded yet
    probed: np.ndarray  # (1,) number of levels whose matches are probed
    cost: np.ndarray  # (N, N) the assignment problem of the node
    match: np.ndarray  # (N,) its solution
    bound: np.ndarray  # (N, N) a lower bound of each child; infinite where ruled out


@kernel
def plant(pair):
    """A new search: all vertices free, no permutation known, no level probed."""
    n, words = pair.allowed.shape
    linear = np.empty((n + 1, n, n))  # only levels in use are accessed
    for i in range(n):
        for j in range(n):
            linear[0, i, j] = pair.vertex[i, j] if pair.vertex.shape[0] > 0 else 0.0
    rows = np.empty((n + 1, n), np.int64)
    columns = np.empty((n + 1, n), np.int64)
    domain = np.empty((n + 1, n, words), np.uint64)
    for i in range(n):
        rows[0, i] = columns[0, i] = i
        for w in range(words):
            domain[0, i, w] = pair.allowed[i, w]
    return Tree(
        fixed=np.zeros(n + 1),
        linear=linear,
        domain=domain,
        rows=rows,
        columns=columns,
        u=np.zeros((n + 1, n)),
        v=np.zeros((n + 1, n)),
        branch=np.zeros(n + 1, np.int64),
        child=np.empty((n + 1, n), np.int64),
        child_bound=np.empty((n + 1, n)),
        children=np.zeros(n + 1, np.int64),
        cursor=np.zeros(n + 1, np.int64),
        image=np.zeros(n, np.int64),
        best=np.zeros(n, np.int64),
        value=np.array([np.inf]),
        level=np.array([0]),
        fresh=np.array([True]),
        probed=np.array([0]),
        cost=np.empty((n, n)),
        match=np.zeros(n, np.int64),
        bound=np.empty((n, n)),
    )


@inner
def fix(pair, tree, t, x0, y0):
    """Fills level t + 1 from level t, whose row x0 is matched with column y0."""
    m = pair.label_a.size - t
    i, j = tree.rows[t, x0], tree.columns[t, y0]
    s = t + 1
    tree.image[i] = j
    tree.fixed[s] = tree.fixed[t] + tree.linear[t, x0, y0]
    for y in range(m - 1):
        old = y if y < y0 else y + 1
        tree.columns[s, y] = tree.columns[t, old]
        tree.v[s, y] = tree.v[t, old]
    for x in range(m - 1):
        old = x if x < x0 else x + 1
        row = tree.rows[t, old]
        tree.rows[s, x] = row
        for w in range(tree.domain.shape[2]):
            tree.domain[s, x, w] = tree.domain[t, old, w]
        remove(tree.domain[s], x, j)
        for y in range(m - 1):
            cost = edge_cost(pair.model, pair.kind_a[i, row], pair.kind_b[j, tree.columns[s, y]])
            tree.linear[s, x, y] = tree.linear[t, old, y if y < y0 else y + 1] + cost


@inner
def order_rows(pair, rows, columns, m, domain, i, j):
    """Row i has been matched with column j: its twins take columns that are not earlier."""
    for x in range(m):
        if pair.twin_a[rows[x]] == pair.twin_a[i]:
            for y in range(m):
                if _earlier(pair.orbit_b, pair.twin_b, columns[y], j):
                    remove(domain, x, columns[y])


@inner
def order_columns(pair, rows, columns, m, domain, i, j):
    """Column j has been matched with row i: its twins take rows that are not earlier."""
    for y in range(m):
        if pair.twin_b[columns[y]] == pair.twin_b[j]:
            for x in range(m):
                if _earlier(pair.orbit_a, pair.twin_a, rows[x], i):
                    remove(domain, x, columns[y])


@inner
def _earlier(orbit, twin, k, j):
    """Whether vertex k comes before vertex j in the order by orbit, then twin class."""
    return orbit[k] < orbit[j] or (orbit[k] == orbit[j] and twin[k] < twin[j])


@kernel
def round_up(pair, lower):
    """The least possible cost that is not below a lower bound."""
    step = pair.model.step
    if step == 0.0 or lower == np.inf:
        return lower
    return pair.offset - step * np.floor((pair.offset - lower) / step + 1e-6)


@kernel
def round_down(pair, upper):
    """The greatest possible cost that is not above an upper bound."""
    step = pair.model.step
    if step == 0.0 or upper == np.inf:
        return upper
    return pair.offset - step * np.ceil((pair.offset - upper) / step - 1e-6)


@kernel
def value_above(pair, target):
    """A value for the search to improve on that admits costs up to the target and no others."""
    return target + pair.gap + pair.model.step * 2.0**-5


# Numba compiles a function again for each whole number written out in a call to it: the level of
# the root and the efforts therefore come from variables.
@kernel
def search_briefly(pair, limit, glance, effort):
    """Searches with and without probing for a while.

    Args:
        pair: the two graphs.
        limit: permutations that cost more are not searched for; infinite for no limit.
        glance: node bounds computed by the search without probing.
        effort: node bounds times squared vertices of the search with probing.

    Returns:
        The search, the root's lower bound, and whether the search is complete. The value of the
        search is that of :func:`value_above` if it found no permutation.
    """
    n = pair.label_a.size
    effort //= max(n * n, 1)
    limit = round_down(pair, limit)
    tree = plant(pair)
    bound = bound_node(pair, tree, tree.level[0], limit)
    if limit < np.inf:
        tree.value[0] = value_above(pair, limit)
        if bound > tree.value[0] - pair.gap:
            tree.level[0] = -1
            return tree, bound, True
    else:
        for i in range(n):
            tree.best[i] = tree.match[i]
        tree.value[0] = improve(pair, tree.best, np.inf, bound, min(n, 32))
    if advance(pair, tree, min(glance, effort)):
        return tree, bound, True
    probing = plant(pair)
    probing.probed[0] = 2 if n <= SMALL else 0
    probing.value[0] = tree.value[0]
    for i in range(n):
        probing.best[i] = tree.best[i]
    return probing, bound, advance(pair, probing, effort)


@kernel
def advance(pair, tree, effort):
    """Continues for about ``effort`` node bounds; returns True when the search is complete."""
    while tree.level[0] >= 0:
        t = tree.level[0]
        if tree.fresh[0]:
            if effort <= 0:
                return False
            effort -= _expand(pair, tree, t)
            tree.fresh[0] = False
        c = tree.cursor[t]
        if c < tree.children[t] and tree.child_bound[t, c] <= tree.value[0] - pair.gap:
            tree.cursor[t] = c + 1
            _descend(pair, tree, t, tree.child[t, c])
            tree.level[0] = t + 1
            tree.fresh[0] = True
        else:
            tree.level[0] = t - 1
    return True


def open_bound(tree: Tree) -> float:
    """A lower bound of the optimum: the least bound of all open nodes, or the value."""
    level, fresh = int(tree.level[0]), bool(tree.fresh[0])
    least = tree.value[0]
    for t in range(level + 1):
        if fresh and t == level:
            parent = tree.child_bound[t - 1, tree.cursor[t - 1] - 1] if t else 0.0
            least = min(least, parent)
        elif tree.cursor[t] < tree.children[t]:
            least = min(least, tree.child_bound[t, tree.cursor[t]])
    return float(least)


@inner
def _expand(pair, tree, t):
    """Bounds level t and lists its children; returns the number of node bounds computed."""
    tree.children[t] = 0
    tree.cursor[t] = 0
    m = pair.label_a.size - t
    bound = bound_node(pair, tree, t, tree.value[0] - pair.gap)
    if bound > tree.value[0] - pair.gap or bound == np.inf:
        return 1
    rows, columns, linear = tree.rows[t], tree.columns[t], tree.linear[t]
    value = _complete(pair, rows, columns, m, linear, tree.match, tree.image)
    if tree.fixed[t] + value < tree.value[0]:
        tree.value[0] = tree.fixed[t] + value
        for i in range(tree.best.size):
            tree.best[i] = tree.image[i]
    limit = tree.value[0] - pair.gap
    if m <= 1 or bound > limit:
        return 1
    u, v, domain = tree.u[t], tree.v[t], tree.domain[t]
    _rule_out(tree.cost, u, v, m, bound, limit, columns, domain, tree.bound)
    spent = 1 + _probe(pair, tree, t, m, limit) if t < tree.probed[0] else 1
    line = _narrowest(tree.bound, m)
    tree.branch[t] = line
    children, bounds = tree.child[t], tree.child_bound[t]
    if line < m:
        kind = pair.twin_b if t else pair.orbit_b
        choices = tree.bound[line]
        tree.children[t] = _list(choices, m, kind, columns, t == 0, children, bounds)
    else:
        kind = pair.twin_a if t else pair.orbit_a
        choices = tree.bound[:, line - m].copy()
        tree.children[t] = _list(choices, m, kind, rows, t == 0, children, bounds)
    return spent


@inner
def _complete(pair, rows, columns, m, linear, match, image):
    """Completes the permutation by the node's assignment; returns the additional cost."""
    cost = 0.0
    for x in range(m):
        i = rows[x]
        j = columns[match[x]]
        image[i] = j
        cost += linear[x, match[x]]
        for y in range(x):
            k = rows[y]
            cost += edge_cost(pair.model, pair.kind_a[i, k], pair.kind_b[j, image[k]])
    return cost


@inner
def _rule_out(cost, u, v, m, bound, limit, columns, domain, out):
    """Bounds each match by its reduced cost, and rules out matches above the limit."""
    for x in range(m):
        for y in range(m):
            value = bound + (cost[x, y] - u[x] - v[y])
            if value > limit:
                value = np.inf
                remove(domain, x, columns[y])
            out[x, y] = value


@inner
def _probe(pair, tree, t, m, limit):
    """Bounds each remaining match by a node bound of its own; returns how many there were."""
    spent = 0
    for x in range(m):
        for y in range(m):
            if tree.bound[x, y] < np.inf:
                fix(pair, tree, t, x, y)
                value = max(tree.bound[x, y], bound_node(pair, tree, t + 1, limit))
                if value > limit:
                    value = np.inf
                    remove(tree.domain[t], x, tree.columns[t, y])
                tree.bound[x, y] = value
                spent += 1
    return spent


@inner
def _narrowest(bound, m):
    """The row x (as x) or column y (as m + y) with the fewest candidates."""
    left = np.zeros(2 * m, np.int64)
    total = np.zeros(2 * m)
    for x in range(m):
        for y in range(m):
            if bound[x, y] < np.inf:
                left[x] += 1
                left[m + y] += 1
                total[x] += bound[x, y]
                total[m + y] += bound[x, y]
    chosen = 0
    for line in range(1, 2 * m):
        tie = left[line] == left[chosen] and total[line] > total[chosen]
        if left[line] < left[chosen] or tie:
            chosen = line
    return chosen


@inner
def _list(choices, m, kind, vertices, root, child, child_bound):
    """Lists the matches of one row or column by their bounds, one for each symmetry class.

    At the root a class is represented by its least member only, even if that is ruled out.
    """
    count = 0
    for z in range(m):
        k = vertices[z]
        wanted = choices[z] < np.inf and (not root or kind[k] == k)
        for c in range(count):
            wanted = wanted and kind[vertices[child[c]]] != kind[k]
        if wanted:
            c = count
            while c > 0 and child_bound[c - 1] > choices[z]:
                child_bound[c] = child_bound[c - 1]
                child[c] = child[c - 1]
                c -= 1
            child_bound[c] = choices[z]
            child[c] = z
            count += 1
    return count


@inner
def _descend(pair, tree, t, z):
    """Matches the chosen row or column of level t with position z, and breaks symmetries."""
    m = pair.label_a.size - t
    line = tree.branch[t]
    x, y = (line, z) if line < m else (z, line - m)
    fix(pair, tree, t, x, y)
    i, j = tree.rows[t, x], tree.columns[t, y]
    rows, columns, domain = tree.rows[t + 1], tree.columns[t + 1], tree.domain[t + 1]
    if line < m:
        order_rows(pair, rows, columns, m - 1, domain, i, j)
    else:
        order_columns(pair, rows, columns, m - 1, domain, i, j)


# The lower bound of a search node: the bound of Gilmore and Lawler, sharpened by bit sets.
#
# Matching row i with column j costs its disagreements with the fixed rows in full, and half of what
# i and j must disagree on among the free vertices: half, because both ends of an edge count it. For
# many different weights that is the cheapest pairing of the two rows of weights, sorted against
# sorted. For channels it is the price of the edges at i and at j that cannot be matched with each
# other. In each group of neighbours, at most e neighbours of i find a neighbour of j among their
# candidates, so d(i) + d(j) − 2e edges have no match; e is bounded by counting from either side
# and, in dense graphs, by counting non-neighbours.


@kernel
def bound_node(pair, tree, t, limit):
    """The bound of level t; also computes the assignment and its duals.

    Args:
        pair: the two graphs.
        tree: the search; its ``cost``, ``match``, ``u[t]`` and ``v[t]`` are written.
        t: the level.
        limit: the computation stops early if the bound exceeds this cost.
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
    elif pair.price.size == 1 and domain.shape[1] == 1:
        _pair_plain_neighbours(pair, rows, columns, m, domain, tree.cost)
    else:
        _pair_neighbours(pair, rows, columns, m, domain, tree.cost)
    for x in range(m):
        for y in range(m):
            tree.cost[x, y] = tree.linear[t, x, y] + 0.5 * tree.cost[x, y]
    below = tree.fixed[t]
    return below + assign(tree.cost, m, tree.u[t], tree.v[t], tree.match, limit - below)


@inner
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


@inner
def _pair_weights(free_a, free_b, power, m, out):
    """Distance of each two rows of sorted weights."""
    for x in range(m):
        for y in range(m):
            total = 0.0
            for k in range(m - 1):
                difference = abs(free_a[x, k] - free_b[y, k])
                total += difference * difference if power == 2 else difference
            out[x, y] = total


@inner
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


@inner
def _pair_plain_neighbours(pair, rows, columns, m, domain, out):
    """The same numbers for one group and sets of one word, as plain graphs have them: faster."""
    one, price = np.uint64(1), pair.price[0]
    sets = np.zeros((4, m), np.uint64)
    near_a, near_b, domains, codomains = sets
    free_a, free_b = np.uint64(0), np.uint64(0)
    for x in range(m):
        free_a |= one << np.uint64(rows[x])
        free_b |= one << np.uint64(columns[x])
    for x in range(m):
        near_a[x] = pair.near_a[0, rows[x], 0] & free_a
        near_b[x] = pair.near_b[0, columns[x], 0] & free_b
        domains[x] = domain[x, 0]
        row = np.uint64(rows[x])
        for y in range(m):
            codomains[y] |= ((domains[x] >> np.uint64(columns[y])) & one) << row
    reach_a, far_a = _plain_reach(near_a, rows, domains)
    reach_b, far_b = _plain_reach(near_b, columns, codomains)
    for x in range(m):
        degree, row = count_bits(near_a[x]), one << np.uint64(rows[x])
        for y in range(m):
            column = one << np.uint64(columns[y])
            if domains[x] & column == 0:
                out[x, y] = np.inf
                continue
            degrees = degree + count_bits(near_b[y])
            met = min(count_bits(reach_a[x] & near_b[y]), count_bits(reach_b[y] & near_a[x]))
            if pair.dense:
                apart_a = count_bits(far_a[x] & free_b & ~(near_b[y] | column))
                apart_b = count_bits(far_b[y] & free_a & ~(near_a[x] | row))
                met = min(met, min(apart_a, apart_b) - (m - 1) + degrees)
            out[x, y] = price * (degrees - 2.0 * met)


@inner
def _plain_reach(near, vertices, domains):
    """Unions of the candidates of each vertex's neighbours, and of the other free vertices."""
    m = domains.size
    reach = np.zeros((2, m), np.uint64)
    for x in range(m):
        for k in range(m):
            linked = (near[x] >> np.uint64(vertices[k])) & np.uint64(1)
            reach[0, x] |= domains[k] & (np.uint64(0) - linked)
            reach[1, x] |= domains[k] & (linked - np.uint64(1)) & (np.uint64(0) - np.uint64(k != x))
    return reach


@inner
def _reach_apart(near, vertices, m, domain):
    """Unions of the candidates of the free vertices that are not neighbours of each vertex."""
    reach = np.zeros((m, domain.shape[1]), np.uint64)
    for x in range(m):
        for k in range(m):
            if k != x and not contains(near[x], 0, vertices[k]):
                for v in range(domain.shape[1]):
                    reach[x, v] |= domain[k, v]
    return reach


@inner
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


# The linear assignment problem, small and many times over: the bound of every search node.


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


@inner
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


@inner
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


# Local search: exchange two images while that lowers the cost.


@kernel
def cost_of(pair, p):
    """Cost of a permutation; see :class:`softperm.distance.pairs.Pair`."""
    total = 0.0
    for i in range(p.size):
        if pair.vertex.shape[0] > 0:
            total += pair.vertex[i, p[i]]
        for k in range(i):
            total += edge_cost(pair.model, pair.kind_a[i, k], pair.kind_b[p[i], p[k]])
    return total


@kernel
def descend(pair, p):
    """Exchanges images in place until no exchange of two helps; returns the cost."""
    model, kind_a, kind_b = pair.model, pair.kind_a, pair.kind_b
    threshold = 1e-12 + 1e-6 * pair.gap
    improved = True
    while improved:
        improved = False
        for i in range(p.size):
            for k in range(i):
                x, y = p[i], p[k]
                if not (contains(pair.allowed, i, y) and contains(pair.allowed, k, x)):
                    continue
                gain = 0.0
                if pair.vertex.shape[0] > 0:
                    gain = pair.vertex[i, x] + pair.vertex[k, y]
                    gain -= pair.vertex[i, y] + pair.vertex[k, x]
                if model.plain:
                    change = 2 * kind_a[i, k] * kind_b[x, y]  # takes away what t = i and t = k add
                    for t in range(p.size):
                        apart = kind_a[i, t] - kind_a[k, t]
                        change += apart * (kind_b[y, p[t]] - kind_b[x, p[t]])
                    gain += 2.0 * change
                else:
                    for t in range(p.size):
                        e, f = kind_a[i, t], kind_a[k, t]
                        if e != f and t != i and t != k:
                            g, h = kind_b[x, p[t]], kind_b[y, p[t]]
                            if g != h:
                                gain += edge_cost(model, e, g) + edge_cost(model, f, h)
                                gain -= edge_cost(model, e, h) + edge_cost(model, f, g)
                if gain > threshold:
                    p[i], p[k] = y, x
                    improved = True
    return cost_of(pair, p)


@inner
def shake(pair, p, state):
    """Exchanges images at random in place where that is allowed; returns the next state."""
    n = p.size
    for i in range(n - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        k = np.int64(state % np.uint64(i + 1))
        if contains(pair.allowed, i, p[k]) and contains(pair.allowed, k, p[i]):
            p[i], p[k] = p[k], p[i]
    return state


@kernel
def improve(pair, best, value, bound, restarts):
    """Restarts the descent from shaken copies of ``best``; returns the least cost.

    Args:
        pair: the two graphs.
        best: (N,) an allowed permutation; overwritten by a cheaper one.
        value: the cost of ``best``, or infinity if it is not known.
        bound: a lower bound of the cost, at which the search ends.
        restarts: number of shaken copies.
    """
    state = np.uint64(88172645463325252)
    trial = best.copy()
    for _ in range(restarts + 1):
        cost = descend(pair, trial)
        if cost < value:
            value = cost
            for i in range(best.size):
                best[i] = trial[i]
        if bound > value - pair.gap:
            break
        state = shake(pair, trial, state)
    return value
