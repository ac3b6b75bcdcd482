"""Branch and bound over permutations, in numba: one node is one assignment problem.

A node fixes the images of some rows. The matches left to the free rows are bit sets. The node's
bound (:mod:`softperm.distance.relaxation`) is the cheapest assignment of the free rows; its reduced
costs rule out single matches, and the row or column with the fewest matches left is fixed next.
Near the root a long search *probes*: it bounds every single match before it chooses.

Symmetry. Exchanging twins changes nothing, so of the columns that are twins of each other one is
tried, and the twins of a fixed row take columns no earlier than its own; likewise with rows and
columns exchanged. At the root orbits take the place of twins. Padding vertices are twins.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from softperm.distance.bits import remove
from softperm.distance.local import improve
from softperm.distance.relaxation import relax
from softperm.distance.tree import Tree, fix, order_columns, order_rows, plant

GLANCE = 300  # relaxations of a search without probing; nearly all small pairs need fewer
SMALL = 40  # vertices up to which probing pays; it multiplies the work of a node by their square


# Numba compiles a function anew for each whole number written out in a call to it, so that the
# level of the root and the efforts come from variables.
@njit(cache=True, nogil=True)
@no_type_check
def search_briefly(pair, glance, effort):
    """Search with and without probing for a while.

    Args:
        pair: the two graphs.
        glance: relaxations of the search without probing.
        effort: relaxations times squared vertices of the search with probing.

    Returns:
        The search, the root's lower bound, and whether the search came to its end.
    """
    n = pair.a.shape[0]
    effort //= n * n
    tree = plant(pair)
    bound = relax(pair, tree, tree.level[0], np.inf)
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


@njit(cache=True, nogil=True)
@no_type_check
def advance(pair, tree, effort):
    """Search on for about ``effort`` relaxations; True when the tree is exhausted."""
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
    """A lower bound of the optimum: the least among the nodes not yet searched and the best."""
    level, fresh = int(tree.level[0]), bool(tree.fresh[0])
    least = tree.value[0]
    for t in range(level + 1):
        if fresh and t == level:
            parent = tree.child_bound[t - 1, tree.cursor[t - 1] - 1] if t else 0.0
            least = min(least, parent)
        elif tree.cursor[t] < tree.children[t]:
            least = min(least, tree.child_bound[t, tree.cursor[t]])
    return float(least)


@njit(cache=True, nogil=True)
@no_type_check
def _expand(pair, tree, t):
    """Bound level t and list the children worth a visit; returns the relaxations it took."""
    tree.children[t] = 0
    tree.cursor[t] = 0
    m = pair.a.shape[0] - t
    bound = relax(pair, tree, t, tree.value[0] - pair.gap)
    if bound > tree.value[0] - pair.gap or bound == np.inf:
        return 1
    rows, columns, linear = tree.rows[t], tree.columns[t], tree.linear[t]
    value = _complete(pair.a, pair.b, rows, columns, m, linear, tree.match, tree.image)
    if tree.fixed[t] + value < tree.value[0]:
        tree.value[0] = tree.fixed[t] + value
        for i in range(tree.best.size):
            tree.best[i] = tree.image[i]
    limit = tree.value[0] - pair.gap
    if m == 1 or bound > limit:
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


@njit(cache=True, nogil=True)
@no_type_check
def _complete(a, b, rows, columns, m, linear, match, image):
    """Give the free rows the images of the node's assignment; returns the cost that adds."""
    cost = 0.0
    for x in range(m):
        i = rows[x]
        j = columns[match[x]]
        image[i] = j
        cost += linear[x, match[x]]
        for y in range(x):
            difference = a[i, rows[y]] - b[j, image[rows[y]]]
            cost += difference * difference
    return cost


@njit(cache=True, nogil=True)
@no_type_check
def _rule_out(cost, u, v, m, bound, limit, columns, domain, out):
    """Bound each match by its reduced cost, and rule out those past the limit."""
    for x in range(m):
        for y in range(m):
            value = bound + (cost[x, y] - u[x] - v[y])
            if value > limit:
                value = np.inf
                remove(domain, x, columns[y])
            out[x, y] = value


@njit(cache=True, nogil=True)
@no_type_check
def _probe(pair, tree, t, m, limit):
    """Bound each match left by its own relaxation; returns how many there were."""
    spent = 0
    for x in range(m):
        for y in range(m):
            if tree.bound[x, y] < np.inf:
                fix(pair, tree, t, x, y)
                value = max(tree.bound[x, y], relax(pair, tree, t + 1, limit))
                if value > limit:
                    value = np.inf
                    remove(tree.domain[t], x, tree.columns[t, y])
                tree.bound[x, y] = value
                spent += 1
    return spent


@njit(cache=True, nogil=True)
@no_type_check
def _narrowest(bound, m):
    """The row x, as x, or column y, as m + y, with the fewest matches left."""
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


@njit(cache=True, nogil=True)
@no_type_check
def _list(choices, m, kind, vertices, root, child, child_bound):
    """The matches of one row or column, one of each kind, by their bounds.

    At the root a kind is represented by its least member or, where that one is ruled out, not at
    all.
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


@njit(cache=True, nogil=True)
@no_type_check
def _descend(pair, tree, t, z):
    """Match the chosen row or column of level t with position z, and use the symmetry of that."""
    m = pair.a.shape[0] - t
    line = tree.branch[t]
    x, y = (line, z) if line < m else (z, line - m)
    fix(pair, tree, t, x, y)
    i, j = tree.rows[t, x], tree.columns[t, y]
    rows, columns, domain = tree.rows[t + 1], tree.columns[t + 1], tree.domain[t + 1]
    if line < m:
        order_rows(pair, rows, columns, m - 1, domain, i, j)
    else:
        order_columns(pair, rows, columns, m - 1, domain, i, j)
