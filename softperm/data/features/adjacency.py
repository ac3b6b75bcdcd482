"""Neighbour lists of a whole collection, checked once, and threads over its graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from softperm.jit import kernel
from softperm.parallel import over_ranges

PIECES = 64  # of about equal work, so that threads stay balanced where sizes of graphs differ


@dataclass(frozen=True)
class Adjacency:
    """Neighbour lists of canonical graphs laid end to end.

    Attributes:
        ptr: graph ``i`` owns the vertices ``ptr[i]:ptr[i + 1]``.
        row_ptr: vertex ``v`` owns the neighbours ``column[row_ptr[v]:row_ptr[v + 1]]``.
        column: neighbours, numbered within their graph, in ascending order.
    """

    ptr: Int[np.ndarray, " B1"]
    row_ptr: Int[np.ndarray, " V1"]
    column: Int[np.ndarray, " E"]

    @classmethod
    def of(cls, edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"] | int) -> Adjacency:
        """The neighbour lists of a collection; its tensors may lie on any device.

        Args:
            edge_index: both directions of every edge, vertices numbered through the whole
                collection, no self-loops, no duplicates, sorted by (row, column).
            ptr: where each graph's vertices begin, with the total at the end; or, for one graph,
                its number of vertices.

        Raises:
            ValueError: the edges are not of this form, or join two graphs.
        """
        bounds = torch.tensor([0, ptr]) if isinstance(ptr, int) else ptr
        bounds = bounds.cpu().long().numpy()  # (B + 1,)
        row, column = edge_index.cpu().long().contiguous().numpy()  # (E,), (E,)
        edge_ptr = np.searchsorted(row, bounds)  # (B + 1,)
        inside = edge_ptr[0] == 0 and edge_ptr[-1] == row.size and (np.diff(edge_ptr) >= 0).all()
        adjacency = cls(
            bounds, np.zeros(bounds[-1] + 1, dtype=np.int64), np.empty(row.size, dtype=np.int32)
        )
        sound = np.full(PIECES, inside)
        if inside and row.size:
            cuts = _cuts(np.diff(bounds) + np.diff(edge_ptr))
            arrays = (row, column, edge_ptr, *adjacency.arrays, sound, cuts)
            over_ranges(_fill_rows, len(cuts) - 1, row.size, *arrays)
        if not sound.all():
            raise ValueError(
                "edge_index is not canonical: expected both directions of every edge inside one "
                "graph, sorted by (row, column), without self-loops or duplicates; "
                "softperm.data.graphs.as_graph makes such graphs"
            )
        return adjacency

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``ptr``, ``row_ptr`` and ``column``, in the order in which kernels take them."""
        return self.ptr, self.row_ptr, self.column

    @property
    def vertices(self) -> int:
        """Number V of vertices of all graphs."""
        return self.row_ptr.size - 1

    @property
    def degree(self) -> Int[np.ndarray, " V"]:
        """Number of neighbours of every vertex."""
        return np.diff(self.row_ptr)

    @property
    def sizes(self) -> Int[np.ndarray, " B"]:
        """Number of vertices of every graph."""
        return np.diff(self.ptr)

    @property
    def edge_counts(self) -> Int[np.ndarray, " B"]:
        """Number of directed edges of every graph."""
        return np.diff(self.row_ptr[self.ptr])

    def over_graphs(
        self, kernel: Callable[..., object], work: Int[np.ndarray, " B"], *arguments: object
    ) -> None:
        """Calls ``kernel(ptr, row_ptr, column, *arguments, cuts, first, last)`` on threads.

        A call works on the graphs ``cuts[first]:cuts[last]``.

        Args:
            kernel: compiled with ``nogil``; graphs must be independent of each other.
            work: rough number of operations for each graph.
            arguments: passed behind the neighbour lists.
        """
        if not work.size:
            return
        cuts = _cuts(work)
        total = int(min(work.sum(dtype=np.float64), 2.0**62))
        over_ranges(kernel, len(cuts) - 1, total, *self.arrays, *arguments, cuts)


def twins(graphs: Adjacency, smallest: int = 0) -> Int[np.ndarray, " V"]:
    """The vertex that stands for each vertex: one of its twins, the same for all, or itself.

    Twins have the same neighbours, not counting each other. Exchanging them maps the graph onto
    itself, so every feature that survives renumbering is the same for both and needs to be computed
    once. Threads of a forum and unions of cliques consist mostly of twins.

    Args:
        graphs: the collection.
        smallest: size of the smallest graph in which twins are looked for; in smaller ones every
            vertex stands for itself.
    """
    stand_in = np.arange(graphs.vertices)
    graphs.over_graphs(_twins, graphs.sizes * 8 + graphs.edge_counts, smallest, stand_in)
    return stand_in


def _cuts(work: Int[np.ndarray, " B"]) -> Int[np.ndarray, " pieces1"]:
    """Where to cut consecutive graphs into at most ``PIECES`` pieces of about equal work."""
    done = np.concatenate([[0.0], np.cumsum(work + 1.0)])
    wanted = np.linspace(0, done[-1], PIECES + 1)
    return np.unique(np.searchsorted(done, wanted))


@kernel
def _fill_rows(row, column, edge_ptr, ptr, row_ptr, local, sound, cuts, first, last):
    """Fills ``row_ptr`` and ``local`` for a range of graphs; marks the pieces that are wrong."""
    for piece in range(first, last):
        for graph in range(cuts[piece], cuts[piece + 1]):
            edges = edge_ptr[graph], edge_ptr[graph + 1]
            if not _fill_graph(row, column, edges, ptr[graph], ptr[graph + 1], row_ptr, local):
                sound[piece] = False
                break


@kernel
def _fill_graph(row, column, edges, low, high, row_ptr, local):
    """Fills one graph's rows; False unless its edges are sorted, simple and symmetric.

    Compiled code does not check bounds, so this also keeps a wrong index from reading elsewhere.
    """
    begin, end = edges
    u, before = low - 1, low - 1
    for k in range(begin, end):
        v, w = row[k], column[k]
        if v < u or v >= high or w < low or w >= high or v == w or (v == u and w <= before):
            return False
        while u < v:
            u += 1
            row_ptr[u] = k
        before = w
        local[k] = w - low
    row_ptr[u + 1 : high + 1] = end
    # The neighbours of every vertex ascend, so its reverse edges come in the order of its list.
    reverse = row_ptr[low:high].copy()
    for v in range(low, high):
        for k in range(row_ptr[v], row_ptr[v + 1]):
            w = local[k]
            at = reverse[w]
            if at >= row_ptr[low + w + 1] or local[at] != v - low:
                return False
            reverse[w] = at + 1
    return True


@kernel
def mix(value):
    """A bijection of 64-bit numbers that spreads every bit (Stafford's variant 13)."""
    value += np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def _twins(ptr, row_ptr, column, smallest, stand_in, cuts, first, last):
    """Finds twins by sums of mixed neighbours, without and with the vertex itself."""
    for graph in range(cuts[first], cuts[last]):
        low, high = ptr[graph], ptr[graph + 1]
        rows, size = row_ptr[low : high + 1], high - low
        if size < smallest:
            continue
        key = np.zeros(size, dtype=np.uint64)
        for v in range(size):
            for k in range(rows[v], rows[v + 1]):
                key[v] += mix(np.uint64(column[k]))
        _join_equal(rows, column, key, low, stand_in)
        for v in range(size):
            key[v] += mix(np.uint64(v))
        _join_equal(rows, column, key, low, stand_in)


@kernel
def _join_equal(rows, column, key, low, stand_in):
    """Joins the vertices of equal key to the first of them, where they are twins indeed."""
    order = np.argsort(key)
    begin = 0
    for i in range(1, key.size):
        if key[order[i]] != key[order[begin]]:
            begin = i
        elif _are_twins(rows, column, order[i], order[begin]):
            stand_in[low + order[i]] = low + order[begin]


@kernel
def _are_twins(rows, column, u, v):
    """Whether two vertices have the same neighbours beside each other."""
    i, j = rows[u], rows[v]
    while True:
        if i < rows[u + 1] and column[i] == v:
            i += 1
        if j < rows[v + 1] and column[j] == u:
            j += 1
        if i == rows[u + 1] or j == rows[v + 1]:
            return i == rows[u + 1] and j == rows[v + 1]
        if column[i] != column[j]:
            return False
        i += 1
        j += 1
