"""The state of a search: which rows are fixed, and what that leaves to the others."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from numba import njit

from softperm.distance.bits import remove


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
    level: np.ndarray  # (1,) the current level; −1 when all is searched
    fresh: np.ndarray  # (1,) whether that level is still to be bounded
    probed: np.ndarray  # (1,) how many levels have their matches probed one by one
    cost: np.ndarray  # (N, N) the assignment problem of the node
    match: np.ndarray  # (N,) its solution
    bound: np.ndarray  # (N, N) a lower bound of each child; infinite where ruled out


@njit(cache=True, nogil=True)
@no_type_check
def plant(pair):
    """A search that has not begun: everything free, no permutation known, no level probed."""
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
        level=np.array([0]),
        fresh=np.array([True]),
        probed=np.array([0]),
        cost=np.empty((n, n)),
        match=np.zeros(n, np.int64),
        bound=np.empty((n, n)),
    )


@njit(cache=True, nogil=True)
@no_type_check
def fix(pair, tree, t, x0, y0):
    """Fill level t + 1 from level t, whose row x0 is matched with column y0."""
    m = pair.a.shape[0] - t
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


@njit(cache=True, nogil=True)
@no_type_check
def order_rows(pair, rows, columns, m, domain, i, j):
    """Row i was fixed to j: its twins take columns no earlier, other orders say the same."""
    for x in range(m):
        if pair.twin_a[rows[x]] == pair.twin_a[i]:
            for y in range(m):
                if _earlier(pair.orbit_b, pair.twin_b, columns[y], j):
                    remove(domain, x, columns[y])


@njit(cache=True, nogil=True)
@no_type_check
def order_columns(pair, rows, columns, m, domain, i, j):
    """Column j was given to row i: its twins go to rows no earlier."""
    for y in range(m):
        if pair.twin_b[columns[y]] == pair.twin_b[j]:
            for x in range(m):
                if _earlier(pair.orbit_a, pair.twin_a, rows[x], i):
                    remove(domain, x, columns[y])


@njit(cache=True, nogil=True)
@no_type_check
def _earlier(orbit, twin, k, j):
    """Whether vertex k comes before vertex j in the order by orbit, then twin class."""
    return orbit[k] < orbit[j] or (orbit[k] == orbit[j] and twin[k] < twin[j])
