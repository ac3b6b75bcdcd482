"""Branch and bound over permutations, in numba: one node is one assignment problem.

A node fixes the images of some rows. Its bound is the Gilmore–Lawler bound: the cost among fixed
rows, plus the cheapest assignment of the free rows to the free columns, where matching i with j
costs its disagreements with the fixed rows in full and half of what i and j must disagree on among
free vertices, whatever the rest is (for simple graphs half the difference of their free degrees).
The assignment's reduced costs then forbid single matches; the matches left are bit sets, and the
row with the smallest set is the next to be fixed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from softperm.distance.assignment import assign
from softperm.distance.local import improve, may_match


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
    degree_a: np.ndarray  # (N+1, N) weight towards free rows
    degree_b: np.ndarray  # (N+1, N) weight towards free columns
    u: np.ndarray  # (N+1, N) dual of the rows
    v: np.ndarray  # (N+1, N) dual of the columns
    branch: np.ndarray  # (N+1,) position of the row to fix next
    child: np.ndarray  # (N+1, N) positions of the columns to try, best first
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
    degree_a = np.zeros((n + 1, n))
    degree_b = np.zeros((n + 1, n))
    linear = np.zeros((n + 1, n, n))
    u = np.zeros((n + 1, n))
    v = np.zeros((n + 1, n))
    children = np.zeros(n + 1, np.int64)
    cursor = np.zeros(n + 1, np.int64)
    image = np.zeros(n, np.int64)
    best = np.zeros(n, np.int64)
    for i in range(n):
        rows[0, i] = columns[0, i] = i
        for w in range(words):
            domain[0, i, w] = pair.allowed[i, w]
        for k in range(n):
            degree_a[0, i] += pair.a[i, k]
            degree_b[0, i] += pair.b[i, k]
    fixed = np.zeros(n + 1)
    branch = np.zeros(n + 1, np.int64)
    child = np.empty((n + 1, n), np.int64)
    child_bound = np.empty((n + 1, n))
    value = np.array([np.inf])
    place = np.array([0, 1])
    cost = np.empty((n, n))
    match = np.zeros(n, np.int64)
    return Tree(
        fixed, linear, domain, rows, columns, degree_a, degree_b, u, v, branch, child,
        child_bound, children, cursor, image, best, value, place, cost, match,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def start(pair, tree, restarts, seed):
    """Bound the root, and descend from its assignment; returns the root's lower bound."""
    bound = _bound(pair, tree, tree.place[0], np.inf)
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
            _descend_to(pair, tree, t, tree.child[t, c])
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
def _bound(pair, tree, t, limit):
    """The Gilmore–Lawler bound of level t; leaves the assignment and its duals behind."""
    m = pair.a.shape[0] - t
    columns = tree.columns[t]
    domain = tree.domain[t]
    linear = tree.linear[t]
    if pair.order_a.shape[0] > 0:
        free_a = _sort_free(pair.a, pair.order_a, tree.rows[t], m)
        free_b = _sort_free(pair.b, pair.order_b, columns, m)
        for x in range(m):
            for y in range(m):
                free = 0.0
                for k in range(m - 1):
                    difference = free_a[x, k] - free_b[y, k]
                    free += difference * difference
                matched = linear[x, y] + 0.5 * free
                tree.cost[x, y] = matched if may_match(domain, x, columns[y]) else np.inf
    else:
        for x in range(m):
            for y in range(m):
                matched = linear[x, y] + 0.5 * abs(tree.degree_a[t, x] - tree.degree_b[t, y])
                tree.cost[x, y] = matched if may_match(domain, x, columns[y]) else np.inf
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
def _expand(pair, tree, t):
    """Bound level t, try its assignment as a permutation, and list the children worth a visit."""
    tree.children[t] = 0
    tree.cursor[t] = 0
    m = pair.a.shape[0] - t
    bound = _bound(pair, tree, t, tree.value[0] - pair.gap)
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
        u, v, domain = tree.u[t], tree.v[t], tree.domain[t]
        x = _narrowest_row(tree.cost, u, v, m, slack, domain, columns)
        if pair.order_a.shape[0] == 0:
            for _ in range(ROUNDS):
                before = _count(domain, m)
                _refine(pair.a, pair.b, rows, columns, m, domain, tree.linear[t], tree.cost)
                bound2 = tree.fixed[t] + assign(tree.cost, m, u, v, tree.match, tree.value[0] - pair.gap - tree.fixed[t])
                if bound2 > tree.value[0] - pair.gap or bound2 == np.inf:
                    return
                bound = bound2
                slack = tree.value[0] - pair.gap - bound
                x = _narrowest_row(tree.cost, u, v, m, slack, domain, columns)
                if _count(domain, m) == before: break
        kind = pair.orbit_b if t == 0 else pair.twin_b
        tree.branch[t] = x
        tree.children[t] = _list_children(
            tree.cost[x], bound - u[x], v, m, domain[x : x + 1], columns, kind, t == 0,
            tree.child[t], tree.child_bound[t],
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _narrowest_row(cost, u, v, m, slack, domain, columns):
    """Drop matches that cannot lead to a better permutation; the row with the fewest left."""
    chosen, fewest, largest = 0, m + 1, -1.0
    for x in range(m):
        left = 0
        total = 0.0
        for y in range(m):
            reduced = cost[x, y] - u[x] - v[y]
            if reduced <= slack:
                left += 1
                total += reduced
            elif reduced < np.inf:
                j = columns[y]
                domain[x, j >> 6] &= ~(np.uint64(1) << np.uint64(j & 63))
        if left < fewest or (left == fewest and total > largest):
            chosen, fewest, largest = x, left, total
    return chosen


@njit(cache=True, nogil=True)
def _list_children(cost, base, v, m, domain, columns, kind, whole, child, child_bound):
    """The columns to try for the branching row, one of each kind, by their bounds.

    While every column is free (``whole``) a kind is represented by its least member or, where that
    one is ruled out, not at all.
    """
    count = 0
    for y in range(m):
        j = columns[y]
        wanted = may_match(domain, 0, j) and (not whole or kind[j] == j)
        for c in range(count):
            wanted = wanted and kind[columns[child[c]]] != kind[j]
        if wanted:
            bound = base + cost[y] - v[y]
            c = count
            while c > 0 and child_bound[c - 1] > bound:
                child_bound[c] = child_bound[c - 1]
                child[c] = child[c - 1]
                c -= 1
            child_bound[c] = bound
            child[c] = y
            count += 1
    return count


@njit(cache=True, nogil=True)
def _descend_to(pair, tree, t, chosen):
    """Fill level t + 1: the branching row of level t takes the chosen column."""
    m = pair.a.shape[0] - t
    x0, y0 = tree.branch[t], chosen
    i, j = tree.rows[t, x0], tree.columns[t, y0]
    s = t + 1
    tree.image[i] = j
    tree.fixed[s] = tree.fixed[t] + tree.linear[t, x0, y0]
    for y in range(m - 1):
        old = y if y < y0 else y + 1
        column = tree.columns[t, old]
        tree.columns[s, y] = column
        tree.degree_b[s, y] = tree.degree_b[t, old] - pair.b[j, column]
        tree.v[s, y] = tree.v[t, old]
    for x in range(m - 1):
        old = x if x < x0 else x + 1
        row = tree.rows[t, old]
        weight = pair.a[i, row]
        tree.rows[s, x] = row
        tree.degree_a[s, x] = tree.degree_a[t, old] - weight
        for w in range(tree.domain.shape[2]):
            tree.domain[s, x, w] = tree.domain[t, old, w]
        tree.domain[s, x, j >> 6] &= ~(np.uint64(1) << np.uint64(j & 63))
        if pair.twin_a[row] == pair.twin_a[i]:
            _keep_later(tree.domain[s, x], tree.columns[s], m - 1, pair.orbit_b, pair.twin_b, j)
        for y in range(m - 1):
            difference = weight - pair.b[j, tree.columns[s, y]]
            before = tree.linear[t, old, y if y < y0 else y + 1]
            tree.linear[s, x, y] = before + difference * difference


@njit(cache=True, nogil=True)
def _keep_later(domain, columns, m, orbit, twin, j):
    """Twins of a fixed row take columns no earlier than its own: other orders say the same."""
    for y in range(m):
        k = columns[y]
        if orbit[k] < orbit[j] or (orbit[k] == orbit[j] and twin[k] < twin[j]):
            domain[k >> 6] &= ~(np.uint64(1) << np.uint64(k & 63))


ROUNDS = 3

@njit(cache=True, nogil=True)
def _popcount(x):
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))

@njit(cache=True, nogil=True)
def _count(domain, m):
    c=0
    for x in range(m): c+=_popcount(domain[x,0])
    return c

@njit(cache=True, nogil=True)
def _refine(a, b, rows, columns, m, domain, linear, cost):
    one=np.uint64(1)
    # local bit sets
    da=np.zeros(m,np.uint64); db=np.zeros(m,np.uint64); dom=np.zeros(m,np.uint64); cod=np.zeros(m,np.uint64)
    full=(one<<np.uint64(m))-one
    for x in range(m):
        for y in range(m):
            if a[rows[x],rows[y]]!=0: da[x]|=one<<np.uint64(y)
            if b[columns[x],columns[y]]!=0: db[x]|=one<<np.uint64(y)
            if (domain[x,0]>>np.uint64(columns[y]))&one:
                dom[x]|=one<<np.uint64(y); cod[y]|=one<<np.uint64(x)
    U=np.zeros(m,np.uint64);V=np.zeros(m,np.uint64);U2=np.zeros(m,np.uint64);V2=np.zeros(m,np.uint64)
    for x in range(m):
        for k in range(m):
            if k==x: continue
            if (da[x]>>np.uint64(k))&one: U[x]|=dom[k]
            else: V[x]|=dom[k]
            if (db[x]>>np.uint64(k))&one: U2[x]|=cod[k]
            else: V2[x]|=cod[k]
    for x in range(m):
        dx=_popcount(da[x]); na=full&~da[x]&~(one<<np.uint64(x))
        for y in range(m):
            if not (dom[x]>>np.uint64(y))&one:
                cost[x,y]=np.inf; continue
            dy=_popcount(db[y]); nb=full&~db[y]&~(one<<np.uint64(y))
            e=min(_popcount(db[y]&U[x]),_popcount(da[x]&U2[y]))
            z=min(_popcount(nb&V[x]),_popcount(na&V2[y]))
            e=min(e, z-(m-1)+dx+dy)
            cost[x,y]=linear[x,y]+0.5*(dx+dy-2*e)
