"""Vertex features that survive renumbering, over whole collections: degree and triangles."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_EDGES_PER_TASK = 1 << 17  # large enough to hide a thread's hand-over, small enough to balance
_MOST_WORDS = 1 << 24  # 128 MiB for one graph's neighbourhoods as bits


def degree(edge_index: Int[Tensor, "2 E"], num_nodes: int) -> Int[Tensor, " V"]:
    r"""Number of neighbours of every vertex.

    .. math:: d_v = |\{u : (v, u) \in E\}|

    Args:
        edge_index: both directions of every edge, in any order.
        num_nodes: number of vertices V.

    Returns:
        Degrees, (V,) int64, on the device of ``edge_index``.

    >>> degree(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 4)
    tensor([1, 2, 1, 0])
    """
    return torch.bincount(edge_index[0], minlength=num_nodes)


def triangles(edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"] | int) -> Int[Tensor, " V"]:
    r"""Number of triangles each vertex lies in.

    .. math:: t_v = |\{\{u, w\} : (v, u), (u, w), (w, v) \in E\}|

    In a sparse graph every edge is directed towards its end of larger degree, which leaves few
    edges out of any vertex, hubs included; each triangle is then found once, at its vertex of
    smallest degree. In a dense graph neighbourhoods are rows of bits, and the common neighbours of
    an edge's ends are counted 64 at a time. Whichever takes fewer steps is used.

    The work runs on the CPU, on as many threads as there are cores; a tensor from another device
    is copied there and the counts are copied back.

    Args:
        edge_index: edges of canonical graphs laid end to end, vertices numbered through the whole
            collection: both directions, no self-loops, no duplicates, sorted by (row, column).
        ptr: where each graph's vertices begin, with the total at the end; or, for one graph, its
            number of vertices. Graphs are the unit of parallel work.

    Returns:
        Triangle counts, (V,) int64 (exact), on the device of ``edge_index``.

    Raises:
        ValueError: if the edges are not sorted, repeat, are loops, join two graphs, or go one way.

    >>> triangles(torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]), 4)
    tensor([1, 1, 1, 0])
    """
    if isinstance(ptr, int):
        ptr = torch.tensor([0, ptr])
    row, column = edge_index.cpu().long().contiguous().numpy()  # (E,), (E,)
    bounds = ptr.cpu().long().numpy()  # (B + 1,)
    count = np.zeros(bounds[-1], dtype=np.int64)  # (V,)
    if not _count_all(row, column, bounds, count):
        raise ValueError(
            "edge_index is not canonical: expected both directions of every edge inside one graph, "
            "sorted by (row, column), without self-loops or duplicates; "
            "softperm.data.graphs.as_graph makes such graphs"
        )
    return torch.from_numpy(count).to(edge_index.device)


def structural_features(
    edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
) -> Float[Tensor, "V 2"]:
    """Degree and triangle count of every vertex of a collection, as the model reads them.

    Counts are exact integers until the last step. Float32 holds every integer up to
    2²⁴ = 16,777,216; a larger count, which takes a vertex of degree above 5,793, is rounded to
    float32's relative precision of 6e-8.

    Args:
        edge_index: edges of canonical graphs laid end to end (see :func:`triangles`).
        ptr: where each graph's vertices begin, with the total at the end.

    Returns:
        ``(degree, triangles)`` of every vertex, (V, 2) float32, on the device of ``edge_index``.

    >>> structural_features(torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), torch.tensor([0, 2, 4]))
    tensor([[1., 0.],
            [1., 0.],
            [1., 0.],
            [1., 0.]])
    """
    counts = triangles(edge_index, ptr)  # (V,)
    return torch.stack([degree(edge_index, counts.numel()), counts], dim=1).float()  # (V, 2)


def _count_all(row: np.ndarray, column: np.ndarray, ptr: np.ndarray, count: np.ndarray) -> bool:
    """Count the triangles of all graphs, a span of graphs at a time; False if not canonical."""
    edge_ptr = np.searchsorted(row, ptr)  # (B + 1,)
    if edge_ptr[0] != 0 or edge_ptr[-1] != row.size or (np.diff(edge_ptr) < 0).any():
        return False
    wanted = np.arange(_EDGES_PER_TASK, row.size, _EDGES_PER_TASK)
    cuts = np.unique(np.concatenate([[0], np.searchsorted(edge_ptr, wanted), [ptr.size - 1]]))
    spans = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    arrays = (row, column, ptr, edge_ptr, count)
    if len(spans) <= 1:
        return all(_count_span(*arrays, *span) for span in spans)
    # Threads around a kernel without the GIL, not numba's own: OpenMP's pool dies in a forked
    # process, and numba's fallback aborts when two threads of the caller meet in it.
    with ThreadPoolExecutor(min(len(spans), _cores())) as pool:
        return all(pool.map(lambda span: _count_span(*arrays, *span), spans))


def _cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# The kernels are compiled, so shape checks must not wrap them: hence no_type_check.


@numba.njit(nogil=True, cache=True)
@no_type_check
def _count_span(row, column, ptr, edge_ptr, count, first, last):
    """Add to ``count`` the triangles of graphs ``first:last``; False if one is not canonical."""
    vertices = np.diff(ptr[first : last + 1]).max()
    row_ptr = np.empty(vertices + 1, dtype=np.int64)  # where each vertex's edges begin
    out_ptr = np.empty(vertices + 1, dtype=np.int64)  # the same, of the edges kept by _orient
    out = np.empty(np.diff(edge_ptr[first : last + 1]).max(), dtype=np.int32)
    seen = np.empty(vertices, dtype=np.int32)  # edges into w; then seen[w] == u: u points to w
    for graph in range(first, last):
        low, size = ptr[graph], ptr[graph + 1] - ptr[graph]
        edges = slice(edge_ptr[graph], edge_ptr[graph + 1])
        if not _fill_row_ptr(row[edges], column[edges], low, size, row_ptr, seen):
            return False
        steps = _orient(column[edges], low, size, row_ptr, out_ptr, out)
        words = (size + 63) // 64
        if size * words <= _MOST_WORDS and (size + out_ptr[size]) * words < steps:
            _count_by_bits(column[edges], low, words, row_ptr, count[low : low + size])
        else:
            _count_by_marks(out_ptr, out, seen, count[low : low + size])
    return True


@numba.njit(nogil=True, cache=True)
@no_type_check
def _fill_row_ptr(row, column, low, size, row_ptr, into):
    """Find each vertex's edges; False unless sorted, without loops, and inside the graph.

    Compiled code does not check bounds, so this also keeps a wrong index from reading elsewhere.
    As many edges must end in a vertex as begin there, which ``into`` counts.
    """
    into[:size] = 0
    u, before = -1, -1
    for k in range(row.size):
        v, w = row[k] - low, column[k] - low
        if v < u or v >= size or w < 0 or w >= size or v == w or (v == u and w <= before):
            return False
        while u < v:
            u += 1
            row_ptr[u] = k
        before = w
        into[w] += 1
    row_ptr[u + 1 : size + 1] = row.size
    return (into[:size] == np.diff(row_ptr[: size + 1])).all()


@numba.njit(nogil=True, cache=True)
@no_type_check
def _orient(column, low, size, row_ptr, out_ptr, out):
    """Keep each edge once, towards its end of larger degree (ties: larger number).

    Returns the number of steps that :func:`_count_by_marks` will take.
    """
    filled = 0
    for u in range(size):
        out_ptr[u] = filled
        mine = row_ptr[u + 1] - row_ptr[u]
        for k in range(row_ptr[u], row_ptr[u + 1]):
            v = column[k] - low
            theirs = row_ptr[v + 1] - row_ptr[v]
            out[filled] = v
            filled += theirs > mine or (theirs == mine and v > u)
    out_ptr[size] = filled
    steps = 0
    for k in range(filled):
        steps += out_ptr[out[k] + 1] - out_ptr[out[k]]
    return steps


@numba.njit(nogil=True, cache=True)
@no_type_check
def _count_by_marks(out_ptr, out, seen, count):
    """Count each triangle u → v → w, u → w of a sparse graph at its three vertices."""
    seen[: count.size] = -1
    for u in range(count.size):
        if out_ptr[u + 1] - out_ptr[u] < 2:
            continue
        for k in range(out_ptr[u], out_ptr[u + 1]):
            seen[out[k]] = u
        for k in range(out_ptr[u], out_ptr[u + 1]):
            v = out[k]
            found = 0
            for m in range(out_ptr[v], out_ptr[v + 1]):
                if seen[out[m]] == u:
                    count[out[m]] += 1
                    found += 1
            count[v] += found
            count[u] += found


@numba.njit(nogil=True, cache=True)
@no_type_check
def _count_by_bits(column, low, words, row_ptr, count):
    """Count the common neighbours of every edge's ends; a triangle has two edges at each vertex."""
    bits = np.zeros((count.size, words), dtype=np.uint64)
    for u in range(count.size):
        for k in range(row_ptr[u], row_ptr[u + 1]):
            v = column[k] - low
            bits[u, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    for u in range(count.size):
        for k in range(row_ptr[u], row_ptr[u + 1]):
            v = column[k] - low
            if v > u:
                common = 0
                for word in range(words):
                    common += _ones(bits[u, word] & bits[v, word])
                count[u] += common
                count[v] += common
    count //= 2


@numba.njit(nogil=True, cache=True)
@no_type_check
def _ones(word):
    """Number of ones in 64 bits, in the form that compilers turn into one instruction."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    fours = np.uint64(0x3333333333333333)
    word = (word & fours) + ((word >> np.uint64(2)) & fours)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))
