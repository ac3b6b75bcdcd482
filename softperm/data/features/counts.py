"""Counts around a vertex: neighbours, triangles, cores, rings."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.data.features.adjacency import Adjacency, twins
from softperm.jit import kernel

MAX_BIT_WORDS = 1 << 24  # 128 MiB for one graph's neighbourhoods as bits
RING_BUDGET = 1 << 14
"""Edges that :func:`rings` looks at from one vertex for one length."""


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
    r"""Number of triangles that each vertex lies in.

    .. math:: t_v = |\{\{u, w\} : (v, u), (u, w), (w, v) \in E\}|

    In a sparse graph every edge is directed towards its end of larger degree, which leaves few
    edges out of any vertex, hubs included; each triangle is then found once, at its vertex of
    smallest degree. In a dense graph neighbourhoods are rows of bits, and the common neighbours of
    an edge's ends are counted 64 at a time. Whichever takes fewer steps is used.

    Args:
        edge_index: edges of canonical graphs laid end to end; see :meth:`Adjacency.of`.
        ptr: where each graph's vertices begin, with the total at the end; or, for one graph, its
            number of vertices.

    Returns:
        Triangle counts, (V,) int64 (exact), on the device of ``edge_index``. The work runs on the
        CPU.

    Raises:
        ValueError: the edges are not sorted, repeat, are loops, join two graphs, or go one way.

    >>> triangles(torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]), 4)
    tensor([1, 1, 1, 0])
    """
    return torch.from_numpy(count_triangles(Adjacency.of(edge_index, ptr))).to(edge_index.device)


def count_triangles(graphs: Adjacency) -> Int[np.ndarray, " V"]:
    """Number of triangles that each vertex lies in; see :func:`triangles`."""
    count = np.zeros(graphs.vertices, dtype=np.int64)
    work = graphs.edge_counts * (1 + graphs.edge_counts // (graphs.sizes + 1))
    graphs.over_graphs(_triangles, work, count)
    return count


def clustering(
    degree: Int[np.ndarray, " V"], triangles: Int[np.ndarray, " V"]
) -> Float[np.ndarray, " V"]:
    r"""Local clustering coefficient: the share of pairs of neighbours that are neighbours.

    .. math:: c_v = \frac{2 t_v}{d_v (d_v - 1)}, \quad 0 \text{ where } d_v < 2
    """
    pairs = degree * (degree - 1)
    return 2.0 * triangles / np.maximum(pairs, 1)


def core_number(graphs: Adjacency) -> Int[np.ndarray, " V"]:
    """Largest k such that the vertex belongs to a subgraph of smallest degree k.

    Found by removing vertices in the order of their remaining degree (Batagelj and Zaveršnik), in
    time proportional to the edges.
    """
    core = np.zeros(graphs.vertices, dtype=np.int64)
    graphs.over_graphs(_cores, graphs.sizes + graphs.edge_counts, core)
    return core


def neighbour_degrees(graphs: Adjacency) -> Float[np.ndarray, "V 2"]:
    """Mean and maximum of the neighbours' degrees; 0 for a vertex without neighbours."""
    found = np.zeros((graphs.vertices, 2))
    graphs.over_graphs(_neighbour_degrees, graphs.sizes + graphs.edge_counts, found)
    return found


def rings(
    graphs: Adjacency, longest: int, budget: int = RING_BUDGET
) -> Int[np.ndarray, "V lengths"]:
    r"""Number of rings of each length 4, 5, …, ``longest`` that pass through a vertex.

    A ring is a chordless cycle: a cycle whose vertices have no other edges among them. In molecules
    these are the rings of chemistry (the outer ten-ring of naphthalene has a chord and is none),
    and a clique of any size has none beyond its triangles, which :func:`count_triangles` counts.

    Rings through a vertex are found by following the chordless paths that begin there, length by
    length. Where this takes a look at more than ``budget`` edges, the count for this length and
    all longer ones is ``budget`` itself. How many edges it takes does not depend on the numbering
    of vertices, so neither does the result.

    Args:
        graphs: the collection.
        longest: greatest length, at least 4.
        budget: edges to look at from one vertex for one length.

    Returns:
        Counts, a column for each length.
    """
    found = np.zeros((graphs.vertices, longest - 3), dtype=np.int64)
    core, twin = core_number(graphs), twins(graphs, smallest=32)
    graphs.over_graphs(_rings, graphs.edge_counts * 64, core, twin, budget, found)
    return found


@kernel
def _triangles(ptr, row_ptr, column, count, cuts, first, last):
    """Adds to ``count`` the triangles of a range of graphs."""
    begin, end = cuts[first], cuts[last]
    vertices = np.diff(ptr[begin : end + 1]).max()
    out_ptr = np.empty(vertices + 1, dtype=np.int64)  # where the edges kept by _orient begin
    out = np.empty(np.diff(row_ptr[ptr[begin : end + 1]]).max() + 1, dtype=np.int32)
    seen = np.empty(vertices, dtype=np.int32)  # seen[w] == u: u points to w
    for graph in range(begin, end):
        low, high = ptr[graph], ptr[graph + 1]
        rows, size = row_ptr[low : high + 1], high - low
        steps = _orient(rows, column, out_ptr, out)
        words = (size + 63) // 64
        if size * words <= MAX_BIT_WORDS and (size + out_ptr[size]) * words < steps:
            _count_by_bits(rows, column, words, count[low:high])
        else:
            _count_by_marks(out_ptr, out, seen, count[low:high])


@kernel
def _orient(rows, column, out_ptr, out):
    """Keeps each edge once, towards its end of larger degree (ties: larger number).

    Returns the number of steps that :func:`_count_by_marks` will take.
    """
    size, filled = rows.size - 1, 0
    for u in range(size):
        out_ptr[u] = filled
        mine = rows[u + 1] - rows[u]
        for k in range(rows[u], rows[u + 1]):
            v = column[k]
            theirs = rows[v + 1] - rows[v]
            out[filled] = v
            filled += theirs > mine or (theirs == mine and v > u)
    out_ptr[size] = filled
    steps = 0
    for k in range(filled):
        steps += out_ptr[out[k] + 1] - out_ptr[out[k]]
    return steps


@kernel
def _count_by_marks(out_ptr, out, seen, count):
    """Counts each triangle u → v → w, u → w of a sparse graph at its three vertices."""
    seen[: count.size] = -1
    for u in range(count.size):
        if out_ptr[u + 1] - out_ptr[u] < 2:
            continue
        for k in range(out_ptr[u], out_ptr[u + 1]):
            seen[out[k]] = u
        for k in range(out_ptr[u], out_ptr[u + 1]):
            v = out[k]
            closed = 0
            for m in range(out_ptr[v], out_ptr[v + 1]):
                if seen[out[m]] == u:
                    count[out[m]] += 1
                    closed += 1
            count[v] += closed
            count[u] += closed


@kernel
def _count_by_bits(rows, column, words, count):
    """Counts the common neighbours of every edge's ends; a triangle has two edges at a vertex."""
    bits = np.zeros((count.size, words), dtype=np.uint64)
    for u in range(count.size):
        for k in range(rows[u], rows[u + 1]):
            v = column[k]
            bits[u, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    for u in range(count.size):
        for k in range(rows[u], rows[u + 1]):
            v = column[k]
            if v > u:
                common = 0
                for word in range(words):
                    common += _ones(bits[u, word] & bits[v, word])
                count[u] += common
                count[v] += common
    count //= 2


@kernel
def _ones(word):
    """Number of ones in 64 bits, in the form that compilers turn into one instruction."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    fours = np.uint64(0x3333333333333333)
    word = (word & fours) + ((word >> np.uint64(2)) & fours)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def _cores(ptr, row_ptr, column, core, cuts, first, last):
    """Removes vertices in ascending order of remaining degree, kept sorted in bins."""
    begin, end = cuts[first], cuts[last]
    vertices = np.diff(ptr[begin : end + 1]).max()
    order = np.empty(vertices, dtype=np.int32)  # vertices by remaining degree
    place = np.empty(vertices, dtype=np.int32)  # position of each vertex in it
    start = np.empty(vertices + 1, dtype=np.int64)  # where each remaining degree begins in it
    for graph in range(begin, end):
        low, high = ptr[graph], ptr[graph + 1]
        rows, size = row_ptr[low : high + 1], high - low
        left = core[low:high]
        start[: size + 1] = 0
        for v in range(size):
            left[v] = rows[v + 1] - rows[v]
            start[left[v] + 1] += 1
        for k in range(size):
            start[k + 1] += start[k]
        for v in range(size):
            place[v] = start[left[v]]
            order[place[v]] = v
            start[left[v]] += 1
        for k in range(size, 0, -1):
            start[k] = start[k - 1]
        start[0] = 0
        for i in range(size):
            v = order[i]
            for k in range(rows[v], rows[v + 1]):
                u = column[k]
                if left[u] > left[v]:  # move u to the front of its bin, then to the bin below
                    at, w = start[left[u]], order[start[left[u]]]
                    order[at], order[place[u]] = u, w
                    place[w], place[u] = place[u], at
                    start[left[u]] += 1
                    left[u] -= 1


@kernel
def _neighbour_degrees(ptr, row_ptr, column, found, cuts, first, last):
    """Mean and maximum degree of the neighbours of a range of graphs' vertices."""
    for graph in range(cuts[first], cuts[last]):
        low = ptr[graph]
        for v in range(low, ptr[graph + 1]):
            total, largest = 0, 0
            for k in range(row_ptr[v], row_ptr[v + 1]):
                u = low + column[k]
                theirs = row_ptr[u + 1] - row_ptr[u]
                total += theirs
                largest = max(largest, theirs)
            if total:
                found[v, 0] = total / (row_ptr[v + 1] - row_ptr[v])
                found[v, 1] = largest


@kernel
def _rings(ptr, row_ptr, column, core, twin, budget, found, cuts, first, last):
    """Counts the rings through every vertex of a range of graphs, length by length."""
    begin, end = cuts[first], cuts[last]
    vertices = np.diff(ptr[begin : end + 1]).max()
    longest = found.shape[1] + 3
    rows = np.empty(vertices + 1, dtype=np.int64)
    inner = np.empty(np.diff(row_ptr[ptr[begin : end + 1]]).max() + 1, dtype=np.int32)
    distance = np.full(vertices, -1, dtype=np.int32)  # from the vertex in turn
    queue = np.empty(vertices, dtype=np.int32)
    touched = np.zeros(vertices, dtype=np.int32)
    path = np.empty(longest, dtype=np.int32)
    edge = np.empty(longest, dtype=np.int64)  # next edge to follow from each vertex of the path
    for graph in range(begin, end):
        low, high = ptr[graph], ptr[graph + 1]
        _two_core(row_ptr[low : high + 1], column, core[low:high], rows, inner)
        own, scratch = rows[: high - low + 1], (distance, queue, touched, path, edge)
        if _most_looks(own, inner, longest) <= budget or _few_looks(
            own, inner, longest, budget, distance, queue
        ):
            _all_rings(own, inner, scratch, found[low:high])
            continue
        for v in range(high - low):
            if core[low + v] < 2 or twin[low + v] != low + v:
                continue
            reached = _distances(rows, inner, v, longest // 2, distance, queue)
            for length in range(4, longest + 1):
                count = _rings_of(rows, inner, v, length, budget, distance, touched, path, edge)
                if count < 0:
                    found[low + v, length - 4 :] = budget
                    break
                found[low + v, length - 4] = count
            for k in range(reached):
                distance[queue[k]] = -1
        for v in range(low, high):
            found[v] = found[twin[v]]


@kernel
def _two_core(rows, column, core, inner_rows, inner):
    """The neighbour lists of the 2-core, outside of which there are no cycles."""
    filled = 0
    for v in range(core.size):
        inner_rows[v] = filled
        if core[v] >= 2:
            for k in range(rows[v], rows[v + 1]):
                inner[filled] = column[k]
                filled += core[column[k]] >= 2
    inner_rows[core.size] = filled


@kernel
def _most_looks(rows, column, longest):
    """A bound on the edges that :func:`_rings_of` looks at from any vertex, for any length.

    Its paths are walks that never turn back at once. From an edge (u, v) there are as many of k
    edges as of k − 1 from all edges of v but (v, u).
    """
    size = rows.size - 1
    walks = np.ones(rows[size])  # that begin with each edge
    looks = np.zeros(size)
    for k in range(1, longest):
        from_vertex = np.zeros(size)
        for v in range(size):
            for e in range(rows[v], rows[v + 1]):
                from_vertex[v] += walks[e]
        looks += (2.0 if k < longest - 1 else 1.0) * from_vertex  # at its end, on and back
        place = rows[:size].copy()
        longer = np.empty_like(walks)
        for v in range(size):  # in this order, the edges into each vertex come as those out of it
            for e in range(rows[v], rows[v + 1]):
                w = column[e]
                longer[e] = from_vertex[w] - walks[place[w]]
                place[w] += 1
        walks = longer
    return looks.max() if size else 0.0


@kernel
def _few_looks(rows, column, longest, budget, distance, queue):
    """Whether :func:`_rings_of` keeps within the budget from every vertex, by a closer bound.

    It counts walks like :func:`_most_looks`, from each vertex, without those that come too far away
    to return in time or next to the first vertex again, which the paths do not.
    """
    size = rows.size - 1
    reverse, place = np.empty(rows[size], dtype=np.int64), rows[:size].copy()
    for v in range(size):
        for e in range(rows[v], rows[v + 1]):
            reverse[e] = place[column[e]]
            place[column[e]] += 1
    walks, longer = np.zeros(rows[size]), np.zeros(rows[size])  # that end with each edge
    for start in range(size):
        reached = _distances(rows, column, start, longest // 2, distance, queue)
        looks = rows[start + 1] - rows[start]
        walks[rows[start] : rows[start + 1]] = 1.0
        for k in range(1, longest - 1):
            for i in range(reached):
                w = queue[i]
                arrived = 0.0
                if distance[w] <= longest - k and (distance[w] > 1 or k == 1):
                    for e in range(rows[w], rows[w + 1]):
                        arrived += walks[reverse[e]]
                looks += arrived * (rows[w + 1] - rows[w])
                for e in range(rows[w], rows[w + 1]):
                    longer[e] = arrived - walks[reverse[e]] if arrived > 0 else 0.0
            walks, longer = longer, walks
        for i in range(reached):
            w = queue[i]
            walks[rows[w] : rows[w + 1]] = 0.0
            longer[rows[w] : rows[w + 1]] = 0.0
            distance[w] = -1
        if looks > budget:
            return False
    return True


@kernel
def _all_rings(rows, column, scratch, found):
    """Finds every ring of a graph once, from its smallest vertex, and counts it at its vertices."""
    distance, queue, touched, path, edge = scratch
    longest = found.shape[1] + 3
    for start in range(rows.size - 1):
        reached = _distances(rows, column, start, longest // 2, distance, queue, start)
        _mark(rows, column, start, 1, touched)
        path[0], edge[0], last = start, rows[start], 0
        while last >= 0:
            u = path[last]
            if edge[last] == rows[u + 1]:
                _mark(rows, column, u, -1, touched)
                last -= 1
                continue
            w = column[edge[last]]
            edge[last] += 1
            if distance[w] < 0 or distance[w] > longest - last - 1:
                continue
            if last > 1 and distance[w] == 1 and touched[w] == 2 and w > path[1]:
                for k in range(last + 1):
                    found[path[k], last - 2] += 1
                found[w, last - 2] += 1
            elif touched[w] == 1 and last < longest - 2:
                last += 1
                path[last], edge[last] = w, rows[w]
                _mark(rows, column, w, 1, touched)
        for k in range(reached):
            distance[queue[k]] = -1


@kernel
def _distances(rows, column, start, most, distance, queue, smallest=0):
    """Distances up to ``most`` from a vertex, by way of vertices from ``smallest`` on.

    Returns the number of vertices that are reached.
    """
    queue[0], distance[start], reached, k = start, 0, 1, 0
    while k < reached and distance[queue[k]] < most:
        u = queue[k]
        k += 1
        for e in range(rows[u], rows[u + 1]):
            w = column[e]
            if distance[w] < 0 and w >= smallest:
                distance[w] = distance[u] + 1
                queue[reached] = w
                reached += 1
    return reached


@kernel
def _rings_of(rows, column, start, length, budget, distance, touched, path, edge):
    """Counts the rings of one length through ``start``; −1 if it must look at too many edges.

    ``touched[w]`` is the number of path vertices that are ``w`` or have ``w`` as a neighbour. The
    path is extended by vertices that are touched by its last vertex alone, and closed by one that
    is touched by its first and last vertex alone.
    """
    path[0], edge[0] = start, rows[start]
    last, closed, looks = 0, 0, _mark(rows, column, start, 1, touched)
    while last >= 0:
        u = path[last]
        if edge[last] == rows[u + 1] or looks > budget:
            _mark(rows, column, u, -1, touched)
            last -= 1
            continue
        w = column[edge[last]]
        edge[last] += 1
        if distance[w] < 0 or distance[w] > length - last - 1:
            continue
        if last == length - 2:
            closed += distance[w] == 1 and touched[w] == 2
        elif touched[w] == 1:
            last += 1
            path[last], edge[last] = w, rows[w]
            looks += _mark(rows, column, w, 1, touched)
    return -1 if looks > budget else closed // 2  # each ring was followed both ways


@kernel
def _mark(rows, column, v, change, touched):
    """Adds ``change`` at a vertex and its neighbours; returns the number of neighbours."""
    touched[v] += change
    for k in range(rows[v], rows[v + 1]):
        touched[column[k]] += change
    return rows[v + 1] - rows[v]
