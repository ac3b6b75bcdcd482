"""Fingerprints of graphs: small integer vectors whose difference bounds the distance from below.

For each label l of a vertex, each label l′ of its neighbours and each t = 1, 2, …, count the
vertices of label l that have at least t neighbours of label l′. Inserting an edge raises one count
for each of its two ends by one, so half the ℓ₁ difference of two fingerprints never exceeds the
number of edges on which an alignment of the graphs disagrees. This holds for each class of edges by
itself (all edges, and those of one edge label), and it still holds if counts are added to each
other or cut off at a maximum. EmbAssi (Bause, Schubert and Kriege, 2022) searches by vectors of
the same idea.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from softperm.distance.costs import Model
from softperm.distance.pairs import Packed
from softperm.jit import kernel

COLUMNS = 48  # bytes of a fingerprint
HIGHEST = 255  # counts are cut off here
SAMPLE = 20_000  # graphs from which the columns are chosen
MOST_LABELS = 128  # vertex labels that a fingerprint distinguishes


class Layout(NamedTuple):
    """Which column of the fingerprint receives each count.

    Columns come in three blocks: counts of all edges, counts of edges of one label, and numbers of
    vertices of one label. The first column of a block receives the counts that have no column of
    their own, such as those of labels that appear after the layout was chosen.

    Args:
        column: (1 + C, L, L, T) the column of the vertices that have at least t + 1 neighbours, by
            class of edges (0 for all edges, then one class for each edge label), label of the
            vertex and label of the neighbours.
        vertex_column: (L,) the column of the number of vertices of each label.
        start: (4,) the first column of each block, then the number of columns.
    """

    column: Int[np.ndarray, "C1 L L T"]
    vertex_column: Int[np.ndarray, " L"]
    start: Int[np.ndarray, " 4"]


class Prices(NamedTuple):
    """The cost of a unit of difference in each block; see :func:`prices`."""

    edge: float
    edge_label: float
    vertex: float
    relabel: float
    strict: bool


def prices(model: Model, edge_label: Int[np.ndarray, " K"]) -> Prices:
    """Prices with which the differences of fingerprints never exceed the cost."""
    alone = np.abs(model.value[1:]) ** model.power
    least = float(alone.min(initial=np.inf)) if alone.size else 0.0
    by_label = 0.0
    if model.table.size and np.unique(edge_label[1:]).size > 1:
        apart = edge_label[1:, None] != edge_label[1:]
        by_label = min(float(model.table[1:, 1:][apart].min()) / 2, least)
    relabel = min(model.relabel, 2 * model.vertex)
    return Prices(least - by_label, by_label, model.vertex, relabel, model.strict)


def choose_layout(
    packed: Packed, edge_label: Int[np.ndarray, " K"], price: Prices, seed: int = 0
) -> Layout:
    """Gives the counts that vary most among a sample of the graphs a column of their own.

    Other counts of at least t neighbours share the column of the next smaller t that has one.

    Args:
        packed: the graphs.
        edge_label: label of each kind of edge.
        price: the prices of the blocks.
        seed: of the sample.
    """
    graphs = packed.ptr.size - 1
    rng = np.random.default_rng(seed)
    sample = np.sort(rng.choice(graphs, SAMPLE, replace=False)) if graphs > SAMPLE else None
    chosen = np.arange(graphs) if sample is None else sample
    labels = min(int(packed.label.max(initial=0)) + 1, MOST_LABELS) if price.strict else 1
    classes = int(edge_label.max(initial=0)) + 1
    most = _most_neighbours(packed, chosen)
    shape = (classes, labels, labels, most)
    wide = Layout(
        np.arange(np.prod(shape), dtype=np.int64).reshape(shape),
        np.arange(labels),
        np.array([0, 0, 0, np.prod(shape)]),
    )
    total, squares = _moments(packed, chosen, edge_label, wide, price.strict)
    deviation = np.sqrt(np.maximum(squares / chosen.size - (total / chosen.size) ** 2, 0.0))
    deviation = deviation.reshape(shape)
    deviation[0] *= price.edge
    deviation[1:] *= price.edge_label
    vertex_columns = 0
    if price.vertex > 0 or not price.strict:
        vertex_columns = min(int(packed.label.max(initial=0)) + 2, COLUMNS // 3)
    own = np.argsort(-deviation.ravel(), kind="stable")[: COLUMNS - 2 - vertex_columns]
    own = own[deviation.ravel()[own] > 0]
    is_own = np.zeros(deviation.size, bool)
    is_own[own] = True
    is_own = is_own.reshape(shape)
    columns_any = int(is_own[0].sum()) + 1
    columns_label = int(is_own[1:].sum()) + 1 if classes > 1 else 0
    column = np.zeros(shape, np.int64)
    column[0] = _with_own(is_own[0], 0)
    column[1:] = _with_own(is_own[1:], columns_any)
    start = np.cumsum([0, columns_any, columns_label, vertex_columns])
    by_label = start[2] + np.arange(max(int(packed.label.max(initial=0)) + 1, 1))
    vertex_column = np.where(by_label + 1 < start[3], by_label + 1, start[2])
    return Layout(column.astype(np.int16), vertex_column.astype(np.int16), start.astype(np.int64))


def _with_own(is_own: np.ndarray, first: int) -> np.ndarray:
    """Numbers the chosen counts; others along the last axis share the column before them."""
    number = np.where(is_own, first + np.cumsum(is_own).reshape(is_own.shape), first)
    return np.maximum.accumulate(number, axis=-1)


def fingerprints(
    packed: Packed, edge_label: Int[np.ndarray, " K"], layout: Layout, strict: bool
) -> UInt8[np.ndarray, "B D"]:
    """The fingerprint of each graph.

    Args:
        packed: the graphs.
        edge_label: label of each kind of edge; 0 for edges whose label is not in the layout.
        layout: the columns.
        strict: whether only vertices of equal label can be matched.
    """
    graphs = packed.ptr.size - 1
    vectors = np.zeros((graphs, COLUMNS), np.uint8)
    row = np.zeros(layout.start[3], np.int64)
    _fill(packed, np.arange(graphs), edge_label, layout, strict, row, vectors)
    return vectors


@kernel
def _most_neighbours(packed, chosen):
    """The largest degree of the chosen graphs."""
    most = 1
    degree = np.zeros(1, np.int64)
    for g in chosen:
        n = np.int64(packed.ptr[g + 1] - packed.ptr[g])
        if degree.size < n:
            degree = np.zeros(2 * n, np.int64)
        degree[:n] = 0
        for k in range(packed.edge_ptr[g], packed.edge_ptr[g + 1]):
            for side in range(2):
                v = packed.ends[k, side]
                degree[v] += 1
                most = max(most, degree[v])
    return most


@kernel
def _count(packed, g, edge_label, layout, strict, row):
    """Adds the counts of graph g to a row."""
    classes, labels, _, most = layout.column.shape
    base = packed.ptr[g]
    n = np.int64(packed.ptr[g + 1] - base)
    seen = np.zeros((n, classes, labels + 1), np.int64)
    for k in range(packed.edge_ptr[g], packed.edge_ptr[g + 1]):
        if packed.kind[k] == 0:  # an edge of weight 0 costs as little as no edge
            continue
        own_class = edge_label[packed.kind[k]]
        for side in range(2):
            v, other = packed.ends[k, side], packed.ends[k, 1 - side]
            own = np.int64(packed.label[base + v]) if strict else 0
            near = np.int64(packed.label[base + other]) if strict else 0
            for which in range(2 if 0 < own_class < classes else 1):
                c = own_class if which else 0
                if own >= labels or near >= labels:
                    row[layout.start[which]] += 1
                else:
                    t = seen[v, c, near]
                    seen[v, c, near] += 1
                    row[layout.column[c, own, near, min(t, most - 1)]] += 1
    if layout.start[2] < layout.start[3]:
        for v in range(n):
            own = np.int64(packed.label[base + v])
            known = own < layout.vertex_column.size
            row[layout.vertex_column[own] if known else layout.start[2]] += 1


@kernel
def _moments(packed, chosen, edge_label, layout, strict):
    """Sums of all counts, and of their squares, over the chosen graphs."""
    total = np.zeros(layout.start[3])
    squares = np.zeros(layout.start[3])
    row = np.zeros(layout.start[3], np.int64)
    for g in chosen:
        row[:] = 0
        _count(packed, g, edge_label, layout, strict, row)
        for k in range(row.size):
            total[k] += row[k]
            squares[k] += row[k] * row[k]
    return total, squares


@kernel
def _fill(packed, chosen, edge_label, layout, strict, row, vectors):
    """Writes the fingerprint of each graph."""
    for g in chosen:
        row[:] = 0
        _count(packed, g, edge_label, layout, strict, row)
        for k in range(row.size):
            vectors[g, k] = min(row[k], HIGHEST)


def lower_bounds(
    query: UInt8[np.ndarray, " D"],
    size: int,
    vectors: UInt8[np.ndarray, "B D"],
    sizes: Int[np.ndarray, " B"],
    layout: Layout,
    price: Prices,
) -> Float[np.ndarray, " B"]:
    """Lower bounds of the costs of matching a graph with each of B graphs.

    Args:
        query: fingerprint of the graph.
        size: its number of vertices.
        vectors: fingerprints of the others.
        sizes: their numbers of vertices.
        layout: the columns.
        price: the prices of the blocks.
    """
    any_edge, one_label, vertices = (
        _differences(query, vectors, int(first), int(last))
        for first, last in pairwise(layout.start)
    )
    bounds = 0.5 * price.edge * any_edge
    if price.edge_label > 0.0:
        bounds += 0.5 * price.edge_label * one_label
    if layout.start[2] == layout.start[3]:
        return bounds
    if price.strict:
        return bounds + price.vertex * vertices
    apart = np.abs(sizes - size)
    relabelled = np.maximum(0, (vertices - apart + 1) // 2)
    return bounds + price.vertex * apart + price.relabel * relabelled


@kernel
def _differences(query, vectors, first, last):
    """(B,) ℓ₁ differences between the query and each vector in some columns."""
    total = np.zeros(vectors.shape[0], np.int32)
    own = query[first:last]
    for g in range(vectors.shape[0]):
        row = vectors[g, first:last]
        apart = np.int32(0)
        for k in range(own.size):
            apart += abs(np.int32(row[k]) - np.int32(own[k]))
        total[g] = apart
    return total
