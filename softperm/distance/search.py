"""Branch and bound over permutations, in numba: one node is one assignment problem.

A node fixes the images of some rows. The matches left to the free rows are bit sets. The node's
bound (:mod:`softperm.distance.relaxation`) is the cheapest assignment of the free rows; its reduced
costs rule out single matches, and the row or column with the fewest matches left is fixed next.

Symmetry. Exchanging twins changes nothing, so of the columns that are twins of each other one is
tried, and the twins of a fixed row take columns no earlier than its own; likewise with rows and
columns exchanged. At the root orbits take the place of twins. Padding vertices are twins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from softperm.distance.bits import contains, remove
from softperm.distance.local import improve
from softperm.distance.relaxation import relax


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
    place: np.ndarray  # (2,) current level; 1 if that level is still to be bounded
    cost: np.ndarray  # (N, N) the assignment problem of the node
    match: np.ndarray  # (N,) its solution


@njit(cache=True, nogil=True)
def plant(pair):
    """A search that has not begun: everything free, no permutation known."""
    n, words = pair.allowed.shape
    rows = np.empty((n + 1, n), np.int64)
    columns = np.empty((n + 1, n), np.int64)
    domain = np.empty((n + 1, n, words), np.uint64)
    for i in range(n):
        rows[0, i] = columns[0, i] = i
        for w in range(words):
            domain[0, i, w] = pair.allowed[i, w]
    return Tree(
        fixed=np.zeros(n + 1),
        linear=np.zeros((n + 1, n, n)),
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
        place=np.array([0, 1]),
        cost=np.empty((n, n)),
        match=np.zeros(n, np.int64),
    )


@njit(cache=True, nogil=True)
def start(pair, tree, restarts, seed):
    """Bound the root, and descend from its assignment; returns the root's lower bound."""
    bound = relax(pair, tree, tree.place[0], np.inf)
    if bound < np.inf:
        for i in range(tree.best.size):
            tree.best[i] = tree.match[i]
        tree.value[0] = improve(pair, tree.best, np.inf, bound, restarts, seed)
    return bound


@njit(cache=True, nogil=True)
def advance(pair, tree, budget):
    """Search on for at most ``budget`` nodes; True when the tree is exhausted."""
    while tree.place[0] >= 0:
        t = tree.place[0]
        if tree.place[1]:
            if budget == 0:
                return False
            budget -= 1
            _expand(pair, tree, t)
            tree.place[1] = 0
        c = tree.cursor[t]
        if c < tree.children[t] and tree.child_bound[t, c] <= tree.value[0] - pair.gap:
            tree.cursor[t] = c + 1
            _fix(pair, tree, t, tree.child[t, c])
            tree.place[0] = t + 1
            tree.place[1] = 1
        else:
            tree.place[0] = t - 1
    return True


def open_bound(tree: Tree) -> float:
    """A lower bound of the optimum: the least among the nodes not yet searched and the best."""
    level, fresh = tree.place
    least = tree.value[0]
    for t in range(level + 1):
        if fresh and t == level:
            parent = tree.child_bound[t - 1, tree.cursor[t - 1] - 1] if t else 0.0
            least = min(least, parent)
        elif tree.cursor[t] < tree.children[t]:
            least = min(least, tree.child_bound[t, tree.cursor[t]])
    return float(least)


@njit(cache=True, nogil=True)
def _expand(pair, tree, t):
    """Bound level t, try its assignment as a permutation, and list the children worth a visit."""
    tree.children[t] = 0
    tree.cursor[t] = 0
    m = pair.a.shape[0] - t
    bound = relax(pair, tree, t, tree.value[0] - pair.gap)
    if bound > tree.value[0] - pair.gap or bound == np.inf:
        return
    rows, columns = tree.rows[t], tree.columns[t]
    cost = tree.fixed[t]
    for x in range(m):
        i = rows[x]
        j = columns[tree.match[x]]
        tree.image[i] = j
        cost += tree.linear[t, x, tree.match[x]]
        for y in range(x):
            difference = pair.a[i, rows[y]] - pair.b[j, tree.image[rows[y]]]
            cost += difference * difference
    if cost < tree.value[0]:
        tree.value[0] = cost
        for i in range(tree.best.size):
            tree.best[i] = tree.image[i]
    slack = tree.value[0] - pair.gap - bound
    if m > 1 and slack >= 0.0:
        line = _narrowest(tree.cost, tree.u[t], tree.v[t], m, slack, tree.domain[t], columns)
        tree.branch[t] = line
        if line < m:
            kind = pair.twin_b if t else pair.orbit_b
            others = columns
        else:
            kind = pair.twin_a if t else pair.orbit_a
            others = rows
        tree.children[t] = _list_children(
            tree.cost, line, m, bound, tree.u[t], tree.v[t], tree.domain[t], columns, kind, others,
            t == 0, tree.child[t], tree.child_bound[t],
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _narrowest(cost, u, v, m, slack, domain, columns):
    """Rule out what cannot lead to a better permutation; the row or column with the fewest left."""
    left = np.zeros(2 * m, np.int64)
    total = np.zeros(2 * m)
    for x in range(m):
        for y in range(m):
            reduced = cost[x, y] - u[x] - v[y]
            if reduced <= slack:
                left[x] += 1
                left[m + y] += 1
                total[x] += reduced
                total[m + y] += reduced
            elif reduced < np.inf:
                remove(domain, x, columns[y])
    chosen = 0
    for line in range(1, 2 * m):
        tie = left[line] == left[chosen] and total[line] > total[chosen]
        if left[line] < left[chosen] or tie:
            chosen = line
    return chosen


@njit(cache=True, nogil=True)
def _list_children(
    cost, line, m, bound, u, v, domain, columns, kind, others, whole, child, child_bound
):
    """What to match the chosen row or column with, one of each kind, by their bounds.

    At the root (``whole``) a kind is represented by its least member or, where that one is ruled
    out, not at all.
    """
    count = 0
    for z in range(m):
        x, y = (line, z) if line < m else (z, line - m)
        wanted = contains(domain, x, columns[y]) and (not whole or kind[others[z]] == others[z])
        for c in range(count):
            wanted = wanted and kind[others[child[c]]] != kind[others[z]]
        if wanted:
            value = bound + cost[x, y] - u[x] - v[y]
            c = count
            while c > 0 and child_bound[c - 1] > value:
                child_bound[c] = child_bound[c - 1]
                child[c] = child[c - 1]
                c -= 1
            child_bound[c] = value
            child[c] = z
            count += 1
    return count


@njit(cache=True, nogil=True)
def _fix(pair, tree, t, z):
    """Fill level t + 1: the chosen row or column of level t is matched with position z."""
    m = pair.a.shape[0] - t
    line = tree.branch[t]
    x0, y0 = (line, z) if line < m else (z, line - m)
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
            difference = pair.a[i, row] - pair.b[j, tree.columns[s, y]]
            before = tree.linear[t, old, y if y < y0 else y + 1]
            tree.linear[s, x, y] = before + difference * difference
    rows, columns = tree.rows[s], tree.columns[s]
    if line < m:
        _order_rows(pair, rows, columns, m - 1, tree.domain[s], i, j)
    else:
        _order_columns(pair, rows, columns, m - 1, tree.domain[s], i, j)


@njit(cache=True, nogil=True)
def _order_rows(pair, rows, columns, m, domain, i, j):
    """Twins of row i take columns no earlier than j: other orders say the same."""
    for x in range(m):
        if pair.twin_a[rows[x]] == pair.twin_a[i]:
            for y in range(m):
                if _earlier(pair.orbit_b, pair.twin_b, columns[y], j):
                    remove(domain, x, columns[y])


@njit(cache=True, nogil=True)
def _order_columns(pair, rows, columns, m, domain, i, j):
    """Twins of column j are taken by rows no earlier than i."""
    for y in range(m):
        if pair.twin_b[columns[y]] == pair.twin_b[j]:
            for x in range(m):
                if _earlier(pair.orbit_a, pair.twin_a, rows[x], i):
                    remove(domain, x, columns[y])


@njit(cache=True, nogil=True)
def _earlier(orbit, twin, k, j):
    """Whether vertex k comes before vertex j in the order by orbit, then twin class."""
    return orbit[k] < orbit[j] or (orbit[k] == orbit[j] and twin[k] < twin[j])
