"""Graphs as the search reads them: ragged arrays, bit sets, and padded pairs of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64
from numba import types
from numba.extending import intrinsic as numba_intrinsic

from softperm.distance.costs import Codes, Model
from softperm.errors import GraphError
from softperm.jit import inner, kernel
from softperm.pyg import Data

intrinsic: Any = numba_intrinsic  # its first parameter is not part of a call
PADDING = -1  # label of a padding vertex: its match is deleted or inserted


class Packed(NamedTuple):
    """B graphs laid end to end.

    Args:
        ptr: (B + 1,) where each graph's vertices begin.
        edge_ptr: (B + 1,) where each graph's edges begin; an undirected edge is listed once.
        label: (V,) label code of each vertex; 0 for all if labels are not compared.
        ends: (E, 2) the two vertices of each edge, numbered within their graph.
        kind: (E,) kind of each edge, 1 or more; see :class:`softperm.distance.costs.Model`.
    """

    ptr: Int[np.ndarray, " B1"]
    edge_ptr: Int[np.ndarray, " B1"]
    label: Int[np.ndarray, " V"]
    ends: Int[np.ndarray, "E 2"]
    kind: Int[np.ndarray, " E"]


def pack(graphs: Sequence[Data], codes: Codes) -> Packed:
    """Lays canonical graphs end to end; new labels and kinds of edges get new codes."""
    sizes = np.array([graph.num_nodes or 0 for graph in graphs], dtype=np.int64)
    listed = np.array([graph.edge_index.shape[1] for graph in graphs], dtype=np.int64)
    none = np.zeros((2, 0), np.int64)
    u, v = np.concatenate([none, *(graph.edge_index.numpy() for graph in graphs)], axis=1)
    once = np.flatnonzero(u < v)  # canonical graphs list both directions of every edge
    edges = np.bincount(np.repeat(np.arange(len(graphs)), listed)[once], minlength=len(graphs))
    return Packed(
        ptr=np.append(0, np.cumsum(sizes)),
        edge_ptr=np.append(0, np.cumsum(edges)),
        label=_label_codes(graphs, sizes, codes),
        ends=np.stack([u[once], v[once]], axis=1),
        kind=_kind_codes(graphs, listed, codes)[once],
    )


def _label_codes(
    graphs: Sequence[Data], sizes: Int[np.ndarray, " B"], codes: Codes
) -> Int[np.ndarray, " V"]:
    if not codes.labels:
        return np.zeros(sizes.sum(), np.int64)
    names = chain.from_iterable(
        _names(graph.get("label"), i, "vertex", "labels=False")
        for i, graph in enumerate(graphs)
        if sizes[i]
    )
    known = codes.vertex
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


def _kind_codes(
    graphs: Sequence[Data], listed: Int[np.ndarray, " B"], codes: Codes
) -> Int[np.ndarray, " _"]:
    """Kinds of all directed edges."""
    with_edges = [i for i, count in enumerate(listed) if count]
    weighted = any(graphs[i].get("edge_weight") is not None for i in with_edges)
    known = codes.edge
    if not codes.edge_labels and not weighted:
        return np.full(listed.sum(), known.setdefault((None, 1.0), len(known)) if with_edges else 0)
    kinds = []
    for i in with_edges:
        weight = graphs[i].get("edge_weight")
        weights = [1.0] * int(listed[i]) if weight is None else weight.double().tolist()
        names: list = [None] * len(weights)
        if codes.edge_labels:
            names = _names(graphs[i].get("edge_label"), i, "edge", "edge_labels=False")
        kinds += [known.setdefault(kind, len(known)) for kind in zip(names, weights, strict=True)]
    return np.array(kinds, dtype=np.int64)


def _names(labels: object, index: int, of: str, option: str) -> list:
    """Labels as values that can be compared: numbers, strings or tuples."""
    if labels is None:
        raise GraphError(index, f"it has no {of} labels to compare; add them, or use {option}")
    if isinstance(labels, list):
        return labels
    values = labels.tolist()  # type: ignore[attr-defined]
    return [tuple(entry) if isinstance(entry, list) else entry for entry in values]


def adjacency(graph: Data) -> Float[np.ndarray, "N N"]:
    """The dense adjacency matrix of a canonical graph, in double precision."""
    n = graph.num_nodes or 0
    matrix = np.zeros((n, n))
    weight = graph.get("edge_weight")
    row, column = graph.edge_index.numpy()
    matrix[row, column] = 1.0 if weight is None else weight.numpy()
    return matrix


class Pair(NamedTuple):
    """Two graphs padded to one size N; the vertices of the first are rows, of the second columns.

    The cost of a permutation p is ``Σ_i vertex[i, p[i]] + Σ_{i<k} cost(kind_a[i, k],
    kind_b[p[i], p[k]])``. W is the number of 64-bit words that hold a set of N vertices. A group
    is a channel together with a label of the neighbour; if vertices of different label can be
    matched, it is the channel alone.

    Args:
        model: the costs.
        kind_a: (N, N) kinds of the edges of the first graph.
        kind_b: (N, N) kinds of the edges of the second graph.
        label_a: (N,) labels of the rows; ``PADDING`` for padding vertices that differ from others.
        label_b: (N,) labels of the columns.
        vertex: (N, N) cost of matching a row with a column; (0, 0) if that is free.
        allowed: (N, W) bit sets of the columns each row may be matched with.
        twin_a: (N,) class of each row; exchanging rows of one class never changes the cost.
        twin_b: (N,) class of each column, numbered by its least member.
        orbit_a: (N,) orbit of each row under automorphisms, numbered by its least member; the
            twin classes if the orbits are not known.
        orbit_b: (N,) the same of each column.
        near_a: (G, N, W) bit sets of the neighbours of each row in each group.
        near_b: (G, N, W) the same of each column.
        price: (G,) price of each group's channel.
        order_a: (N, N) columns of each row of the first graph by weight; (0, 0) with channels.
        order_b: the same of the second graph.
        dense: whether non-neighbours are scarce enough to help the bound.
        offset: the cost of matching nothing at all; other costs differ by multiples of the step.
        gap: a better permutation is better by more than this.
    """

    model: Model
    kind_a: np.ndarray
    kind_b: np.ndarray
    label_a: np.ndarray
    label_b: np.ndarray
    vertex: np.ndarray
    allowed: np.ndarray
    twin_a: np.ndarray
    twin_b: np.ndarray
    orbit_a: np.ndarray
    orbit_b: np.ndarray
    near_a: np.ndarray
    near_b: np.ndarray
    price: np.ndarray
    order_a: np.ndarray
    order_b: np.ndarray
    dense: bool
    offset: float
    gap: float


@kernel
def pair_of(model, packed_a, first, packed_b, second):
    """The pair of a graph of one packed collection and a graph of another, with equal codes."""
    label_a = packed_a.label[packed_a.ptr[first] : packed_a.ptr[first + 1]].astype(np.int64)
    label_b = packed_b.label[packed_b.ptr[second] : packed_b.ptr[second + 1]].astype(np.int64)
    labels = _renumber(label_a, label_b)
    n = _common_size(model, label_a, label_b, labels)
    distinct = not model.strict or model.vertex > 0.0 or labels > 1
    full_a = _pad_labels(label_a, n, distinct)
    full_b = _pad_labels(label_b, n, distinct)
    kind_a = _kinds(packed_a, first, n)
    kind_b = _kinds(packed_b, second, n)
    return make_pair(model, kind_a, full_a, kind_b, full_b, labels)


@kernel
def make_pair(model, kind_a, label_a, kind_b, label_b, labels):
    """Prepares two graphs of one size for the search; ``labels`` is the number of labels."""
    n = label_a.size
    twin_a = _twins(kind_a, label_a)
    twin_b = _twins(kind_b, label_b)
    sorted_rows = 0 if model.price.size else n
    groups = labels if model.strict else 1
    near_a = _neighbours(model, kind_a, label_a, groups)
    near_b = _neighbours(model, kind_b, label_b, groups)
    kept = _merge_groups(near_a, near_b, groups)
    price = model.price[kept // groups]
    offset, edges = _offset(model, kind_a, label_a, kind_b, label_b)
    dense = near_a.shape[0] == 1 and price.size == 1 and edges > 0.3 * n * (n - 1)
    gap = model.step * (1.0 - 2.0**-5)
    if model.step == 0.0 or offset > 2.0**48:
        gap = 1e-9 * offset if offset > 0.0 else 1e-12  # weights may be tiny
    return Pair(
        model=model,
        kind_a=kind_a,
        kind_b=kind_b,
        label_a=label_a,
        label_b=label_b,
        vertex=_vertex_costs(model, label_a, label_b),
        allowed=_allowed(model, label_a, label_b),
        twin_a=twin_a,
        twin_b=twin_b,
        orbit_a=twin_a,
        orbit_b=twin_b,
        near_a=near_a[: kept.size],
        near_b=near_b[: kept.size],
        price=price,
        order_a=_by_weight(model, kind_a, sorted_rows),
        order_b=_by_weight(model, kind_b, sorted_rows),
        dense=dense,
        offset=offset,
        gap=gap,
    )


@inner
def edge_cost(model, e, f):
    """Cost of matching a pair of vertices of kind e with a pair of kind f."""
    if model.plain:
        return 1.0 if e != f else 0.0
    if model.table.shape[0] > 0:
        return model.table[e, f]
    difference = abs(model.value[e] - model.value[f])
    return difference * difference if model.power == 2 else difference


@inner
def _renumber(label_a, label_b):
    """Renumbers the labels of two graphs from 0 in place; returns how many there are."""
    seen = np.empty(label_a.size + label_b.size, np.int64)
    labels = 0
    for label in (label_a, label_b):
        for i in range(label.size):
            code = 0
            while code < labels and seen[code] != label[i]:
                code += 1
            if code == labels:
                seen[labels] = label[i]
                labels += 1
            label[i] = code
    return max(labels, 1)


@inner
def _common_size(model, label_a, label_b, labels):
    """Number of vertices after padding.

    If only equal labels match, that is the larger count of each label, summed. Otherwise it is the
    larger graph's size if a substitution is never dearer than a deletion and an insertion.
    """
    if not model.strict:
        if model.relabel <= 2.0 * model.vertex:
            return max(label_a.size, label_b.size)
        return label_a.size + label_b.size
    count = np.zeros((2, labels), np.int64)
    for label in label_a:
        count[0, label] += 1
    for label in label_b:
        count[1, label] += 1
    size = 0
    for label in range(labels):
        size += max(count[0, label], count[1, label])
    return size


@inner
def _pad_labels(label, n, distinct):
    """The labels, then that of padding: an isolated vertex like any other unless ``distinct``."""
    padded = np.empty(n, np.int64)
    for i in range(n):
        padded[i] = label[i] if i < label.size else (PADDING if distinct else 0)
    return padded


@inner
def _kinds(packed, graph, n):
    """(n, n) kinds of the edges of one packed graph."""
    kind = np.zeros((n, n), np.int64)
    for k in range(packed.edge_ptr[graph], packed.edge_ptr[graph + 1]):
        u, v = packed.ends[k, 0], packed.ends[k, 1]
        kind[u, v] = kind[v, u] = packed.kind[k]
    return kind


@inner
def _offset(model, kind_a, label_a, kind_b, label_b):
    """Cost of matching nothing, and the number of edges."""
    offset = 0.0
    edges = 0
    for kind in (kind_a, kind_b):
        for i in range(kind.shape[0]):
            for k in range(i):
                if kind[i, k] > 0:
                    weight = abs(model.value[kind[i, k]])
                    offset += weight * weight if model.power == 2 else weight
                    edges += 1
    for label in (label_a, label_b):
        for i in range(label.size):
            if label[i] != PADDING:
                offset += model.vertex
    return offset, edges


@inner
def _vertex_costs(model, label_a, label_b):
    """(N, N) cost of matching each row with each column; (0, 0) if there are no such costs."""
    n = label_a.size
    if model.vertex == 0.0 and (model.strict or model.relabel == 0.0):
        return np.zeros((0, 0))
    cost = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if (label_a[i] == PADDING) != (label_b[j] == PADDING):
                cost[i, j] = model.vertex
            elif label_a[i] != label_b[j]:
                cost[i, j] = model.relabel
    return cost


@inner
def _by_weight(model, kind, n):
    """The columns of each of the first n rows, by ascending weight."""
    order = np.empty((n, n), np.int64)
    for i in range(n):
        for j in range(n):
            k = j
            while k > 0 and model.value[kind[i, order[i, k - 1]]] > model.value[kind[i, j]]:
                order[i, k] = order[i, k - 1]
                k -= 1
            order[i, k] = j
    return order


@inner
def _twins(kind, label):
    """Class of each vertex: exchanging two vertices of one class leaves the graph unchanged."""
    n = label.size
    twin = np.arange(n)
    for i in range(n):
        for j in range(i):
            if twin[j] != j or label[i] != label[j]:
                continue
            same = True
            for k in range(n):
                if kind[i, k] != kind[j, k] and k != i and k != j:
                    same = False
                    break
            if same:
                twin[i] = j
                break
    return twin


@inner
def _neighbours(model, kind, label, groups):
    """Bit sets of the neighbours of each vertex, for each channel and each label."""
    n = label.size
    near = np.zeros((model.price.size * groups, n, (n + 63) // 64), np.uint64)
    for i in range(n):
        for j in range(n):
            if kind[i, j] > 0:
                for c in range(model.price.size):
                    if model.member[c, kind[i, j]]:
                        group = c * groups + (label[j] if groups > 1 else 0)
                        insert(near[group], i, j)
    return near


@inner
def _merge_groups(near_a, near_b, groups):
    """Merges the groups of a channel that only one graph has: none of their edges finds a match.

    The remaining groups move to the front in place.

    Args:
        near_a: (G, N, W) bit sets of the neighbours of each row in each group.
        near_b: the same of each column.
        groups: number of groups of each channel.

    Returns:
        The former number of each remaining group.
    """
    kept = np.empty(near_a.shape[0], np.int64)
    count, channel = 0, -1
    alone_a, alone_b = -1, -1  # the channel's merged groups
    for g in range(near_a.shape[0]):
        if g // groups != channel:
            channel, alone_a, alone_b = g // groups, -1, -1
        in_a, in_b = _any(near_a[g]), _any(near_b[g])
        into = count
        if in_a and not in_b:
            alone_a = into = alone_a if alone_a >= 0 else count
        elif in_b and not in_a:
            alone_b = into = alone_b if alone_b >= 0 else count
        elif not in_a:
            continue
        for i in range(near_a.shape[1]):
            for w in range(near_a.shape[2]):
                fresh = into == count
                near_a[into, i, w] = near_a[g, i, w] | (near_a[into, i, w] * np.uint64(not fresh))
                near_b[into, i, w] = near_b[g, i, w] | (near_b[into, i, w] * np.uint64(not fresh))
        if into == count:
            kept[count] = g
            count += 1
    return kept[:count]


@inner
def _any(sets):
    """Whether one of the sets has a member."""
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            if sets[i, w]:
                return True
    return False


@inner
def _allowed(model, label_a, label_b):
    """Bit sets of the columns that each row may be matched with."""
    n = label_a.size
    allowed = np.zeros((n, (n + 63) // 64), np.uint64)
    for i in range(n):
        for j in range(n):
            equal = label_a[i] == label_b[j] or label_a[i] == PADDING or label_b[j] == PADDING
            if equal or not model.strict:
                insert(allowed, i, j)
    return allowed


@intrinsic
@no_type_check
def count_bits(typing_context, word):
    """Number of ones in a 64-bit word: the processor's own instruction."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@intrinsic
@no_type_check
def lowest_bit(typing_context, word):
    """Position of the lowest one in a 64-bit word that is not zero."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return types.int64(types.uint64), generate


@inner
def contains(sets, i, j):
    """Whether set i holds vertex j."""
    return (sets[i, j >> 6] >> np.uint64(j & 63)) & np.uint64(1) != 0


@inner
def remove(sets, i, j):
    """Removes vertex j from set i."""
    sets[i, j >> 6] &= ~(np.uint64(1) << np.uint64(j & 63))


@inner
def insert(sets, i, j):
    """Adds vertex j to set i."""
    sets[i, j >> 6] |= np.uint64(1) << np.uint64(j & 63)


def unpack(sets: UInt64[np.ndarray, "N W"]) -> Bool[np.ndarray, "N N"]:
    """N sets of N vertices as a matrix of truth values."""
    vertices = np.arange(len(sets), dtype=np.uint64)
    return (sets[:, vertices >> 6] >> (vertices & 63)) & 1 == 1
