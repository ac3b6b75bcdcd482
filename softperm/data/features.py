"""Structural features of vertices, which do not depend on how vertices are numbered.

:func:`structural_features` computes the features that :class:`StructuralFeatures` selects, for all
vertices of a collection at once: counts (degree, triangles, cores, rings), random walks and the
heat kernel. :class:`ColourVocabulary` turns Weisfeiler–Leman colours into vertex labels. All of
them read the neighbour lists of an :class:`Adjacency`, in kernels that run over graphs in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from math import exp, lgamma, log
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.jit import inner, kernel
from softperm.parallel import over_ranges
from softperm.settings import StructuralFeatures
from softperm.vectors import WIDE, fill, fma, load, store

if TYPE_CHECKING:
    from softperm.data.collection import Collection


def structural_features(
    edge_index: Int[Tensor, "2 E"],
    ptr: Int[Tensor, " B1"],
    settings: StructuralFeatures | None = None,
) -> Float[Tensor, "V S"]:
    """The structural features of every vertex of a collection; by default the paper's two.

    Numbers are computed as whole numbers or in float64 until the last step. Float32 holds every
    whole number up to 2²⁴; a larger count is rounded to a relative precision of 6e-8.

    Args:
        edge_index: edges of canonical graphs laid end to end; see :meth:`Adjacency.of`.
        ptr: where each graph's vertices begin, with the total at the end.
        settings: the features that are switched on.

    Returns:
        A row for each vertex, float32, on the device of ``edge_index``; the columns are
        ``settings.names``.

    Raises:
        ValueError: the edges are not canonical.

    >>> structural_features(torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), torch.tensor([0, 2, 4]))
    tensor([[1., 0.],
            [1., 0.],
            [1., 0.],
            [1., 0.]])
    """
    settings = settings or StructuralFeatures()
    graphs = Adjacency.of(edge_index, ptr)
    columns: list[np.ndarray] = []
    if settings.degree:
        columns.append(graphs.degree)
    if settings.triangles or settings.clustering:
        count = count_triangles(graphs)
        columns += [count] if settings.triangles else []
        columns += [clustering(graphs.degree, count)] if settings.clustering else []
    if settings.core:
        columns.append(core_number(graphs))
    if settings.neighbours:
        columns += [*neighbour_degrees(graphs).T]
    if settings.rings:
        columns += [*rings(graphs, settings.rings).T]
    columns += _walk_columns(graphs, settings)
    table = np.stack(columns, axis=1).astype(np.float32)  # (V, S)
    return torch.from_numpy(table).to(edge_index.device)


def _walk_columns(graphs: Adjacency, settings: StructuralFeatures) -> list[np.ndarray]:
    """Return probabilities and the heat kernel, from the same walks."""
    steps = max([settings.walks, *map(heat_steps, settings.heat or ())])
    if steps < 2:
        return []
    returns = return_probabilities(graphs, steps)  # (V, steps)
    columns = [*returns[:, 1 : settings.walks].T]  # no walk is back after one step
    return columns + ([*heat_kernel(returns, settings.heat).T] if settings.heat else [])


@dataclass(frozen=True)
class VertexFeatures:
    """The features of a trained model: those switched on, and the codes of colours.

    Attributes:
        settings: the features that are switched on.
        colours: the colours of the training graphs; None where they are switched off.
    """

    settings: StructuralFeatures
    colours: ColourVocabulary | None = None

    @classmethod
    def learn(
        cls, graphs: Collection, index: Int[Tensor, " b"], settings: StructuralFeatures
    ) -> VertexFeatures:
        """The features of training graphs.

        Args:
            graphs: all graphs.
            index: the training graphs, whose colours have codes; other graphs are not read.
            settings: the features that are switched on.
        """
        several = graphs.label is not None and graphs.label.shape[1] > 1
        if not settings.colours and not (settings.joint_labels and several):
            return cls(settings)
        colours = ColourVocabulary.learn(
            graphs,
            index,
            rounds=settings.colours,
            size=settings.colour_size,
            min_graphs=settings.colour_min_graphs,
            degree=settings.colour_degree,
        )
        return cls(settings, colours)

    def extend(self, graphs: Collection) -> Collection:
        """The collection with these features as its structure, and with colours as labels.

        Args:
            graphs: a collection with degree and triangles as its structure, without colours.
        """
        if self.settings.names != StructuralFeatures().names:
            graphs = replace(graphs, structure=graphs.map_vertices(self._structure))
        return graphs if self.colours is None else self.colours.extend(graphs)

    def _structure(self, graphs: Collection) -> Float[Tensor, "V S"]:
        return structural_features(graphs.edges, graphs.ptr, self.settings)


# Neighbour lists of a whole collection, checked once, and threads over its graphs.


SPAN_VERTICES = 1 << 20  # of graphs whose colours are in memory together
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
    def of(cls, edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]) -> Adjacency:
        """The neighbour lists of a collection; its tensors may lie on any device.

        Args:
            edge_index: both directions of every edge, vertices numbered through the whole
                collection, no self-loops, no duplicates, sorted by (row, column).
            ptr: where each graph's vertices begin, with the total at the end.

        Raises:
            ValueError: the edges are not of this form, or join two graphs.
        """
        bounds = ptr.cpu().long().numpy()  # (B + 1,)
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


def twins(graphs: Adjacency) -> Int[np.ndarray, " V"]:
    """The representative of each vertex: the first of its twins, or the vertex itself.

    Twins have the same neighbours, not counting each other. Exchanging them maps the graph onto
    itself, so every feature that survives renumbering is the same for both and needs to be computed
    once. Threads of a forum and unions of cliques consist mostly of twins.
    """
    stand_in = np.arange(graphs.vertices)
    graphs.over_graphs(_twins, graphs.sizes * 8 + graphs.edge_counts, stand_in)
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


@inner
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
def _twins(ptr, row_ptr, column, stand_in, cuts, first, last):
    """Finds twins by sums of mixed neighbours, without and with the vertex itself."""
    begin, end = cuts[first], cuts[last]
    vertices = _most_vertices(ptr, begin, end)
    mixed = np.empty(vertices, dtype=np.uint64)
    for v in range(vertices):
        mixed[v] = mix(np.uint64(v))
    key = np.empty(vertices, dtype=np.uint64)
    table = np.empty(_slots(vertices), dtype=np.int32)
    for graph in range(begin, end):
        low, high = ptr[graph], ptr[graph + 1]
        rows, size = row_ptr[low : high + 1], high - low
        own = table[: _slots(size)]
        for v in range(size):
            total = np.uint64(0)
            for k in range(rows[v], rows[v + 1]):
                total += mixed[column[k]]
            key[v] = total
        _join_equal(rows, column, key, own, stand_in[low:high], low)
        for v in range(size):
            key[v] += mixed[v]
        _join_equal(rows, column, key, own, stand_in[low:high], low)


@inner
def _slots(size):
    """Size of a hash table of so many vertices: a power of two, at most a quarter of it filled."""
    slots = 4
    while slots < 4 * size:
        slots *= 2
    return slots


@inner
def _join_equal(rows, column, key, table, stand_in, low):
    """Joins the vertices of equal key to the first of them, where they are twins indeed."""
    table[:] = -1
    mask = np.uint64(table.size - 1)
    for v in range(stand_in.size):
        if stand_in[v] != low + v:
            continue  # its twins are not its neighbours, and all of them are found
        slot = key[v] & mask
        while table[slot] >= 0:
            u = table[slot]
            if key[u] == key[v] and _are_twins(rows, column, u, v):
                stand_in[v] = low + u
                break
            slot = (slot + np.uint64(1)) & mask
        else:
            table[slot] = v


@inner
def _are_twins(rows, column, u, v):
    """Whether two vertices have the same neighbours, not counting each other."""
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


# Counts around a vertex: neighbours, triangles, cores, rings.


MAX_BIT_WORDS = 1 << 24  # 128 MiB for one graph's neighbourhoods as bits
RING_BUDGET = 1 << 14
"""Edges that :func:`rings` looks at from one vertex for one length."""


def count_triangles(graphs: Adjacency) -> Int[np.ndarray, " V"]:
    r"""Number of triangles that each vertex lies in, exactly.

    .. math:: t_v = |\{\{u, w\} : (v, u), (u, w), (w, v) \in E\}|

    In a sparse graph every edge is directed towards the end with the larger degree, so that every
    vertex, even a hub, has few outgoing edges; each triangle is then found once, at its vertex of
    smallest degree. In a dense graph neighbourhoods are rows of bits, and the common neighbours of
    an edge's ends are counted 64 at a time. Whichever takes fewer steps is used.
    """
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
    degrees = np.zeros((graphs.vertices, 2))
    graphs.over_graphs(_neighbour_degrees, graphs.sizes + graphs.edge_counts, degrees)
    return degrees


def rings(
    graphs: Adjacency, longest: int, budget: int = RING_BUDGET
) -> Int[np.ndarray, "V lengths"]:
    r"""Number of rings of each length 4, 5, …, ``longest`` that pass through a vertex.

    A ring is a chordless cycle: a cycle whose vertices have no other edges among them. In molecules
    these are the rings of chemistry (the outer ten-ring of naphthalene has a chord and is none),
    and a clique of any size has none beyond its triangles, which :func:`count_triangles` counts.

    Rings through a vertex are found by following the chordless paths that begin there, length by
    length. Where this visits more than ``budget`` edges, the count for this length and
    all longer ones is ``budget`` itself. How many edges it takes does not depend on the numbering
    of vertices, so neither does the result.

    Args:
        graphs: the collection.
        longest: greatest length, at least 4.
        budget: maximum number of edges visited from one vertex for one length.
    """
    counts = np.zeros((graphs.vertices, longest - 3), dtype=np.int64)
    core, twin = core_number(graphs), twins(graphs)
    graphs.over_graphs(_rings, graphs.edge_counts * 64, core, twin, budget, counts)
    return counts


@inner
def _most_vertices(ptr, begin, end):
    """Vertices of the largest graph of a range; np.diff would take three seconds to compile."""
    most = 0
    for graph in range(begin, end):
        most = max(most, ptr[graph + 1] - ptr[graph])
    return most


@inner
def _most_edges(ptr, row_ptr, begin, end):
    """Directed edges of the graph of a range that has most of them."""
    most = 0
    for graph in range(begin, end):
        most = max(most, row_ptr[ptr[graph + 1]] - row_ptr[ptr[graph]])
    return most


@kernel
def _triangles(ptr, row_ptr, column, count, cuts, first, last):
    """Adds to ``count`` the triangles of a range of graphs."""
    begin, end = cuts[first], cuts[last]
    vertices = _most_vertices(ptr, begin, end)
    out_ptr = np.empty(vertices + 1, dtype=np.int64)  # where the edges kept by _orient begin
    out = np.empty(_most_edges(ptr, row_ptr, begin, end) + 1, dtype=np.int32)
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


@inner
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
    vertices = _most_vertices(ptr, begin, end)
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
    vertices = _most_vertices(ptr, begin, end)
    longest = found.shape[1] + 3
    rows = np.empty(vertices + 1, dtype=np.int64)
    inner = np.empty(_most_edges(ptr, row_ptr, begin, end) + 1, dtype=np.int32)
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

    Its paths are walks that never turn back at once. The number of walks of k edges from an edge
    (u, v) is that of walks of k − 1 edges from all edges of v except (v, u).
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


@inner
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
    """Counts the rings of one length through ``start``; −1 if it visits too many edges.

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


@inner
def _mark(rows, column, v, change, touched):
    """Adds ``change`` at a vertex and its neighbours; returns the number of neighbours."""
    touched[v] += change
    for k in range(rows[v], rows[v + 1]):
        touched[column[k]] += change
    return rows[v + 1] - rows[v]


# Random walks: the probability of return after each number of steps; and the heat kernel.


HEAT_TOLERANCE = 1e-7  # about what float32 resolves
_SMALL = 64
"""Classes of twins of a graph in which every walk is followed to all of them."""


def return_probabilities(graphs: Adjacency, steps: int) -> Float[np.ndarray, "V steps"]:
    r"""Probability that a random walk from a vertex is there again after 1, 2, …, k steps.

    .. math:: p_k(v) = \left[(D^{-1} A)^k\right]_{vv}

    with the diagonal matrix D of degrees; 0 for a vertex without neighbours. Column 0 (one step) is
    0 for every vertex of a simple graph.

    Twins are one vertex here. A walk from v begins with :math:`1_c / s_c`, anywhere in the class c
    of its :math:`s_c` twins, plus :math:`e_v - 1_c / s_c`, which every step multiplies by
    :math:`\mu = -1 / d_v` if the twins are neighbours of each other and by :math:`\mu = 0` if not.
    Let the first part be in class u after k steps with probability :math:`q_k(u) \, d_u / d_v`.
    Half the steps are enough, since walks backwards have the same probabilities up to degrees:

    .. math::
        p_k(v) = \frac{q_k(c)}{s_c} + \Bigl(1 - \frac{1}{s_c}\Bigr) \mu^k, \quad
        \frac{q_{j+k}(c)}{s_c} = \sum_u \frac{d_u}{d_v s_u} \, q_j(u) \, q_k(u)

    :data:`~softperm.vectors.WIDE` classes are followed at once. In graphs of more than
    ``_SMALL`` classes these are close to each other, and the work is the number of edges within
    reach of them. Exact up to rounding in float64.
    """
    returns = np.empty((graphs.vertices, steps))
    work = np.minimum(graphs.sizes, 1 << 20) * graphs.edge_counts * (1 + steps // 2)
    graphs.over_graphs(_walks, work, twins(graphs), returns)
    return returns


def heat_kernel(
    returns: Float[np.ndarray, "V steps"], times: Sequence[int | float]
) -> Float[np.ndarray, "V times"]:
    r"""Heat-kernel signature: heat left at a vertex after a time, beyond what never moved.

    .. math:: h_t(v) = \left[e^{-t L}\right]_{vv} - e^{-t}, \quad L = I - D^{-1/2} A D^{-1/2}

    The kernel is a random walk that steps at random times, so that

    .. math:: h_t(v) = \sum_{k \ge 1} e^{-t} \frac{t^k}{k!} \, p_k(v)

    with the return probabilities :math:`p_k`; :math:`e^{-t}` is the same for every vertex, and
    without it a vertex without neighbours has 0. The sum ends after the steps given; what is left
    out is less than :data:`HEAT_TOLERANCE` if there are :func:`heat_steps` of them.

    Args:
        returns: return probabilities after 1, 2, … steps; see :func:`return_probabilities`.
        times: times t.
    """
    k = np.arange(1, returns.shape[1] + 1)
    logs = np.array([lgamma(step + 1) for step in k])
    weights = np.exp([k * log(t) - t - logs for t in times]).reshape(len(times), len(k))
    heat = np.empty((len(returns), len(times)))
    over_ranges(_weigh, len(returns), returns.size * len(times), returns, weights, heat)
    return heat


def heat_steps(time: int | float) -> int:
    """Number of steps after which a walk at random times has stopped, but for the tolerance.

    >>> heat_steps(1.0)
    10
    """
    share = exp(-time)
    left, steps = 1 - share, 0
    while left > HEAT_TOLERANCE:
        steps += 1
        share *= time / steps
        left -= share
    return steps


@kernel(fastmath={"contract", "reassoc"})
def _weigh(returns, weights, heat, first, last):
    """Fills heat = returns @ weights.T; BLAS would start threads for so small a product."""
    for v in range(first, last):
        for t in range(len(weights)):
            total = 0.0
            for k in range(weights.shape[1]):
                total += returns[v, k] * weights[t, k]
            heat[v, t] = total


@kernel
def _walks(ptr, row_ptr, column, twin, found, cuts, first, last):
    """Return probabilities of a range of graphs, ``WIDE`` classes of twins at a time."""
    begin, end = cuts[first], cuts[last]
    vertices = _most_vertices(ptr, begin, end)
    size = np.empty(vertices, dtype=np.int32)  # of the class that a vertex represents, or 0
    place = np.empty(vertices, dtype=np.int32)  # number of that class, or -1
    member = np.empty(vertices, dtype=np.int32)  # the vertex that represents a class
    rows = np.empty(vertices + 1, dtype=np.int64)
    links = np.empty(_most_edges(ptr, row_ptr, begin, end) + 1, dtype=np.int32)
    share, loop = np.empty(vertices), np.empty(vertices)
    order = np.empty(vertices + 1, dtype=np.int32)
    tables = np.zeros((2, vertices, WIDE))
    space = tables[0], tables[1], np.zeros(vertices, dtype=np.bool_), order
    back = np.empty((2 * max(2, (found.shape[1] + 1) // 2), WIDE))
    for graph in range(begin, end):
        low, high = ptr[graph], ptr[graph + 1]
        own = row_ptr[low : high + 1]
        classes = _class_sizes(own, twin[low:high], low, size, place)
        if classes <= _SMALL:
            _number_by_degree(own, size, place, member, order)
        else:
            _number_by_distance(own, column, size, place, member)
        quotient = rows[: classes + 1], links, share, loop
        _fill_quotient(own, column, size, place, member, quotient)
        for block in range(0, classes, WIDE):
            _block_walks(quotient, block, space, back)
            for c in range(block, min(block + WIDE, classes)):
                v = member[c]
                degree = own[v + 1] - own[v]
                _write_returns(back, c - block, size[v], degree, loop[c] > 0.0, found, low + v)
        for v in range(low, high):
            if row_ptr[v] == row_ptr[v + 1]:
                found[v] = 0.0
            elif twin[v] != v:
                found[v] = found[twin[v]]


@inner
def _class_sizes(rows, twin, low, size, place):
    """Counts the classes of twins that have neighbours, and the members of each."""
    classes = 0
    size[: twin.size] = 0
    place[: twin.size] = -1
    for v in range(twin.size):
        if rows[v] < rows[v + 1]:
            size[twin[v] - low] += 1
            classes += twin[v] == low + v
    return classes


@inner
def _number_by_degree(rows, size, place, member, begin):
    """Numbers classes in the order of degrees, for which branches of loops are predicted best."""
    count = rows.size - 1
    begin[: count + 1] = 0
    for v in range(count):
        begin[rows[v + 1] - rows[v]] += size[v] > 0
    total = 0
    for d in range(count):
        total, begin[d] = total + begin[d], total
    for v in range(count):
        if size[v] > 0:
            degree = rows[v + 1] - rows[v]
            place[v] = begin[degree]
            member[place[v]] = v
            begin[degree] += 1


@inner
def _number_by_distance(rows, column, size, place, member):
    """Numbers classes breadth first, so that consecutive ones are close to each other."""
    classes, done = 0, 0
    for start in range(rows.size - 1):
        if size[start] == 0 or place[start] >= 0:
            continue
        place[start], member[classes] = classes, start
        classes += 1
        while done < classes:
            u = member[done]
            done += 1
            for e in range(rows[u], rows[u + 1]):
                w = column[e]
                if size[w] > 0 and place[w] < 0:
                    place[w], member[classes] = classes, w
                    classes += 1


@inner
def _fill_quotient(rows, column, size, place, member, quotient):
    """Fills the neighbour lists of classes and the factors of a step; see :func:`_block_walks`."""
    own, links, share, loop = quotient
    filled = 0
    for c in range(own.size - 1):
        v, others = member[c], 0
        own[c] = filled
        for e in range(rows[v], rows[v + 1]):
            w = column[e]
            links[filled] = place[w]
            filled += place[w] >= 0
            others += size[w]
        degree = rows[v + 1] - rows[v]
        share[c] = size[v] / degree
        loop[c] = (size[v] - 1) / size[v] if others < degree else 0.0  # neighbours of each other
    own[own.size - 1] = filled


@kernel
def _block_walks(quotient, block, space, back):
    r"""Follows the walks from the classes ``block``, ``block + 1``, … side by side.

    Writes :math:`q_k(c)` to row k − 1 of ``back`` for the first half of its rows, and the sums over
    u without the factor :math:`1 / d_v` for the others; leaves ``space`` with zeros. A step is

    .. math::
        q_{k+1}(u) = \frac{s_u}{d_u} \Bigl(
            \sum_{w \in N(u)} q_k(w) + \frac{s_u - 1}{s_u} \, q_k(u)\Bigr)

    with the last term where the twins in u are neighbours.
    """
    rows, links, share, loop = quotient
    now, after, reached, order = space
    half, classes = len(back) // 2, rows.size - 1
    count = _first_step(quotient, block, now, reached, order)
    width = previous = min(WIDE, classes - block)
    for k in range(2, half + 1):
        if classes > _SMALL:
            previous, count = count, _reach_further(quotient, previous, count, reached, order)
        odd = even = fill(load(now, 0), 0.0)
        for i in range(count):
            u = order[i]
            e = rows[u]
            if loop[u] > 0.0:
                total = load(now, u) * fill(odd, loop[u])
            else:  # then the class has neighbours
                total = load(now, links[e])
                e += 1
            while e < rows[u + 1]:
                total = total + load(now, links[e])
                e += 1
            step = total * fill(total, share[u])
            store(after, u, step)
            if 2 * k > half:
                odd = fma(load(now, u), total, odd)
                even = fma(step, total, even)
        if 2 * k > half:
            store(back, 2 * k - 2, odd)
            store(back, 2 * k - 1, even)
        now, after = after, now
        for j in range(width):
            back[k - 1, j] = now[block + j, j]
    zeros = fill(load(now, 0), 0.0)
    for i in range(count):
        store(now, order[i], zeros)
        store(after, order[i], zeros)
        reached[order[i]] = False


@inner
def _first_step(quotient, block, now, reached, order):
    """Fills ``now`` with the first step; returns the number of classes in ``order``.

    These are all classes of a small graph, else those of the block and their neighbours.
    """
    rows, links, share, loop = quotient
    classes = rows.size - 1
    last = min(block + WIDE, classes)
    for c in range(block, last):
        now[c, c - block] = loop[c] * share[c]
        for e in range(rows[c], rows[c + 1]):
            now[links[e], c - block] = share[links[e]]
    if classes <= _SMALL:
        for c in range(classes):
            order[c] = c
        return classes
    for c in range(block, last):
        order[c - block], reached[c] = c, True
    return _reach_further(quotient, 0, last - block, reached, order)


@inner
def _reach_further(quotient, previous, count, reached, order):
    """Adds the neighbours of the classes order[previous:count] to the order."""
    rows, links = quotient[0], quotient[1]
    for i in range(previous, count):
        u = order[i]
        for e in range(rows[u], rows[u + 1]):
            if not reached[links[e]]:
                reached[links[e]] = True
                order[count] = links[e]
                count += 1
    return count


@inner
def _write_returns(back, lane, size, degree, adjacent, found, v):
    """Return probabilities of one vertex, after 1, 2, … steps; none after the first."""
    half, moved = len(back) // 2, -1.0 / degree if adjacent else 0.0
    rest = moved * (1.0 - 1.0 / size)
    found[v, 0] = 0.0
    for k in range(1, found.shape[1]):
        rest *= moved
        factor = 1.0 / size if k < half else 1.0 / degree
        found[v, k] = back[k, lane] * factor + rest


# Weisfeiler–Leman colours of vertices, and the codes of those that training graphs have.


def wl_colours(
    graphs: Adjacency,
    rounds: int,
    *,
    label: Int[np.ndarray, "V L"] | None = None,
    edge_label: Int[np.ndarray, "E Le"] | None = None,
    degree: bool = False,
) -> Int[np.ndarray, "V rounds1"]:
    r"""Colours of every vertex after 0, 1, …, r rounds of colour refinement.

    .. math::
        c_0(v) = (\text{label}_v, d_v), \quad
        c_{k+1}(v) = \left(c_k(v), \{\!\{ (c_k(u), \text{label}_{vu}) : u \in N(v) \}\!\}\right)

    Two vertices of any two graphs have the same colour after r rounds if their neighbourhoods
    unfolded to depth r are the same. A colour is a 64-bit hash, the same on every machine: among a
    million different colours two coincide with a probability of 3e-8.

    Args:
        graphs: the collection.
        rounds: number r of rounds.
        label: discrete vertex labels, all columns taken together; none by default.
        edge_label: discrete edge labels in the order of the edges, in the same form.
        degree: whether the degree is part of the first colour.

    Returns:
        Colours, one column for each number of rounds.
    """
    columns = [] if label is None else [*label.T]
    columns += [graphs.degree] if degree else []
    edge_colour = hash_columns([] if edge_label is None else [*edge_label.T], graphs.column.size)
    colours = np.empty((rounds + 1, graphs.vertices), dtype=np.uint64)
    colours[0] = hash_columns(columns, graphs.vertices)
    work = graphs.sizes + graphs.edge_counts * 4
    for k in range(rounds):
        mixed = _mix_all(colours[k])
        graphs.over_graphs(_refine, work, edge_colour, colours[k], mixed, colours[k + 1])
    return colours.view(np.int64).T


@dataclass(frozen=True)
class ColourVocabulary:
    """Codes of the colours that training graphs have, a label column for each round.

    A colour that too few training graphs have is rare. Rare colours share one code, the last one
    of the column; a colour that no training graph has counts as rare. A column without rare
    colours has no such code, and there an unseen colour is an unknown label, code −1.

    Attributes:
        rounds: number of rounds of each column.
        colours: colours of each column in ascending order; their positions are their codes.
        pooled: whether each column has a code for rare colours.
        degree: whether the degree is part of the first colour.
    """

    rounds: tuple[int, ...]
    colours: tuple[tuple[int, ...], ...]
    pooled: tuple[bool, ...]
    degree: bool = False

    @classmethod
    def learn(
        cls,
        collection: Collection,
        index: Int[Tensor, " b"],
        *,
        rounds: int,
        size: int | None,
        min_graphs: int,
        degree: bool = False,
        every_round: bool = False,
    ) -> ColourVocabulary:
        """The vocabulary of the chosen graphs; other graphs are not read.

        Args:
            collection: graphs without columns of colours.
            index: the training graphs.
            rounds: number r of rounds.
            size: maximum number of colours of a column, of which the most common ones are taken;
                None for no limit.
            min_graphs: number of training graphs in which a colour must occur.
            degree: whether the degree is part of the first colour.
            every_round: keep the column of round 0 also where it says no more than a column of
                labels already does; by default it is left out there.
        """
        several = collection.label is not None and collection.label.shape[1] > 1
        columns = tuple(range(0 if degree or several or every_round else 1, rounds + 1))
        counts: list[list[_Counts]] = [[] for _ in columns]
        for part in collection.split(index.cpu().unique(), SPAN_VERTICES):
            some = collection.select(part)
            vertex_colours = collection_colours(some, rounds, degree)
            owner = some.owner.cpu().numpy()
            for of, c in zip(counts, columns, strict=True):
                of.append(_count_graphs(vertex_colours[:, c], owner))
        known = [_common(of, size, min_graphs) for of in counts]
        return cls(
            rounds=columns,
            colours=tuple(tuple(colours.tolist()) for colours, _ in known),
            pooled=tuple(rare for _, rare in known),
            degree=degree,
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each column."""
        pairs = zip(self.colours, self.pooled, strict=True)
        return tuple(len(colours) + pooled for colours, pooled in pairs)

    def encode(self, collection: Collection) -> Int[Tensor, "V R"]:
        """The codes of every vertex's colours, on the CPU."""
        vertex_colours = collection_colours(collection, max(self.rounds, default=0), self.degree)
        codes = np.empty((len(vertex_colours), len(self.rounds)), dtype=np.int64)
        for c, (k, colours) in enumerate(zip(self.rounds, self.colours, strict=True)):
            known = np.asarray(colours, dtype=np.int64)
            place = np.searchsorted(known, vertex_colours[:, k])
            seen = np.append(known, 0)[place] == vertex_colours[:, k]
            seen &= place < len(known)
            codes[:, c] = np.where(seen, place, len(known) if self.pooled[c] else -1)
        return torch.from_numpy(codes)

    def extend(self, collection: Collection) -> Collection:
        """The collection with the codes as further label columns, on its own device."""

        def labels(part: Collection) -> Int[Tensor, "V L"]:
            codes = self.encode(part).to(part.ptr.device)
            return codes if part.label is None else torch.cat([part.label, codes], dim=1)

        label = collection.map_vertices(labels)
        return replace(collection, label=label, label_sizes=collection.label_sizes + self.sizes)

    def to_config(self) -> dict[str, Any]:
        """The vocabulary as plain values that survive JSON unchanged."""
        lists = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**lists, "colours": [list(column) for column in self.colours]}

    @classmethod
    def from_config(cls, config: Any) -> ColourVocabulary:
        """The vocabulary that :meth:`to_config` described.

        Raises:
            ValueError: a key is unknown or missing, or a value has the wrong type.
        """
        check_keys("colours", config, [field.name for field in fields(cls)])
        rounds, colours, pooled = (config[k] for k in ("rounds", "colours", "pooled"))
        sound = (
            all(isinstance(values, list) for values in (rounds, colours, pooled))
            and len(rounds) == len(colours) == len(pooled)
            and all(type(k) is int and k >= 0 for k in rounds)
            and all(type(rare) is bool for rare in [*pooled, config["degree"]])
            and all(_is_column(column) for column in colours)
        )
        if not sound:
            raise ValueError(
                "colours: expected lists of rounds, colours in ascending order and pooled, of one "
                "length, and degree true or false"
            )
        return cls(tuple(rounds), tuple(map(tuple, colours)), tuple(pooled), config["degree"])


def check_keys(name: str, config: Any, expected: Sequence[str]) -> None:
    """Raises ValueError unless a value of a file is a mapping with these keys."""
    found = sorted(config) if isinstance(config, Mapping) else type(config).__name__
    if found != sorted(expected):
        raise ValueError(f"{name}: expected the keys {sorted(expected)}, found {found}")


def colour_counts(collection: Collection, vocabulary: ColourVocabulary) -> scipy.sparse.csr_array:
    """How many vertices of each graph have each colour of a vocabulary, after every round.

    Args:
        collection: graphs with the labels of those of which the vocabulary was learnt.
        vocabulary: colours of training graphs.

    Returns:
        Counts (B, colours), float32: the codes of each column of the vocabulary side by side, rare
        colours last in their column. Colours without a code are not counted.
    """
    codes = vocabulary.encode(collection).numpy()  # (V, R)
    first = np.cumsum([0, *vocabulary.sizes])
    known = codes >= 0
    place = (codes + first[:-1])[known].astype(np.int32)  # scikit-learn takes no wider indices
    graph = collection.owner.cpu().numpy()[:, None]  # (V, 1)
    owner = np.broadcast_to(graph, codes.shape)[known].astype(np.int32)
    ones = np.ones(len(place), dtype=np.float32)
    shape = (len(collection), int(first[-1]))
    return scipy.sparse.coo_array((ones, (owner, place)), shape).tocsr()


def collection_colours(
    collection: Collection, rounds: int, degree: bool = False
) -> Int[np.ndarray, "V rounds1"]:
    """Colours of a collection's vertices, from its labels and edge labels where it has some."""
    graphs = Adjacency.of(collection.edges, collection.ptr)
    labels = (collection.label, collection.edge_label)
    label, edge_label = (None if t is None else t.cpu().long().numpy() for t in labels)
    return wl_colours(graphs, rounds, label=label, edge_label=edge_label, degree=degree)


_Counts = tuple[np.ndarray, np.ndarray]  # colours in ascending order, the number of their graphs


def _count_graphs(colours: Int[np.ndarray, " v"], owner: Int[np.ndarray, " v"]) -> _Counts:
    """In how many graphs each colour occurs."""
    known, place = np.unique(colours, return_inverse=True)
    pairs = np.unique(place * (owner.max(initial=0) + 1) + owner)
    graphs = np.bincount(pairs // (owner.max(initial=0) + 1), minlength=len(known))
    return known, graphs


def _common(
    counts: Sequence[_Counts], size: int | None, min_graphs: int
) -> tuple[Int[np.ndarray, " K"], bool]:
    """The colours found in most graphs of all parts, ascending, and whether there are others."""
    if not counts:
        return np.empty(0, dtype=np.int64), False
    known, place = np.unique(np.concatenate([of[0] for of in counts]), return_inverse=True)
    graphs = np.bincount(place, np.concatenate([of[1] for of in counts]), len(known))
    ranked = np.lexsort([known, -graphs])[:size]
    common = np.sort(known[ranked[graphs[ranked] >= min_graphs]])
    return common, len(common) < len(known)


def _is_column(column: Any) -> bool:
    whole = isinstance(column, list) and all(type(colour) is int for colour in column)
    return whole and all(a < b for a, b in pairwise(column))


def hash_columns(columns: Sequence[np.ndarray], count: int) -> np.ndarray:
    """A hash of each row of labels, (count,) uint64; of no labels, the same for all."""
    hashes = np.zeros(count, dtype=np.uint64)
    for column in columns:
        hashes = _mix_all(hashes + np.uint64(1) + column.astype(np.int64).view(np.uint64))
    return _mix_all(hashes)


@kernel
def _mix_all(values):
    mixed = np.empty_like(values)
    for i in range(len(values)):
        mixed[i] = mix(values[i])
    return mixed


@kernel
def _refine(ptr, row_ptr, column, edge_colour, colour, mixed, refined, cuts, first, last):
    """One round: a vertex's colour with the multiset of its neighbours' and edges' colours."""
    for graph in range(cuts[first], cuts[last]):
        low = ptr[graph]
        for v in range(low, ptr[graph + 1]):
            total = np.uint64(row_ptr[v + 1] - row_ptr[v])
            for e in range(row_ptr[v], row_ptr[v + 1]):
                total += mix(mixed[low + column[e]] ^ edge_colour[e])
            refined[v] = mix(mixed[v] + mix(total))
