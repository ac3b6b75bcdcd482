"""Branch and bound over permutations: each node solves one assignment problem.

A node fixes the images of some rows. The candidates of each free row are a bit set of columns. The
node's bound (:mod:`softperm.distance.node_bound`) is the cheapest assignment of the free rows. Its
reduced costs eliminate single matches; the search branches on the row or column with the fewest
candidates. Near the root a long search *probes*: it bounds every single match before it branches.

Symmetry. Exchanging twins does not change the cost, so only one column of each class of twins is
tried, and the twins of a fixed row take columns no earlier than its own; the same holds with rows
and columns exchanged. At the root, orbits replace twins. Padding vertices are twins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from softperm.distance.local_search import improve
from softperm.distance.node_bound import bound_node
from softperm.distance.pairs import edge_cost, remove
from softperm.jit import kernel

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
    linear = np.empty((n + 1, n, n))  # only the level in use is ever touched
    linear[0] = 0.0
    if pair.vertex.shape[0] > 0:
        linear[0] = pair.vertex
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


@kernel
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


@kernel
def order_rows(pair, rows, columns, m, domain, i, j):
    """Row i has been matched with column j: its twins take columns that are not earlier."""
    for x in range(m):
        if pair.twin_a[rows[x]] == pair.twin_a[i]:
            for y in range(m):
                if _earlier(pair.orbit_b, pair.twin_b, columns[y], j):
                    remove(domain, x, columns[y])


@kernel
def order_columns(pair, rows, columns, m, domain, i, j):
    """Column j has been matched with row i: its twins take rows that are not earlier."""
    for y in range(m):
        if pair.twin_b[columns[y]] == pair.twin_b[j]:
            for x in range(m):
                if _earlier(pair.orbit_a, pair.twin_a, rows[x], i):
                    remove(domain, x, columns[y])


@kernel
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


@kernel
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


@kernel
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


@kernel
def _rule_out(cost, u, v, m, bound, limit, columns, domain, out):
    """Bounds each match by its reduced cost, and rules out matches above the limit."""
    for x in range(m):
        for y in range(m):
            value = bound + (cost[x, y] - u[x] - v[y])
            if value > limit:
                value = np.inf
                remove(domain, x, columns[y])
            out[x, y] = value


@kernel
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


@kernel
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


@kernel
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


@kernel
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
