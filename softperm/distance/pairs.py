"""Graphs as the solver reads them: dense matrices, bit sets, and padded pairs of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64
from numba import types
from numba.extending import intrinsic

from softperm.errors import GraphError
from softperm.jit import kernel
from softperm.pyg import Data

PADDING = -1  # label of a padding vertex, which may be matched with any label


@intrinsic
@no_type_check
def count_bits(typing_context, word):
    """Number of ones in a 64-bit word: the processor's own instruction."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@kernel
def contains(sets, i, j):
    """Whether set i holds vertex j."""
    return (sets[i, j >> 6] >> np.uint64(j & 63)) & np.uint64(1) != 0


@kernel
def remove(sets, i, j):
    """Take vertex j out of set i."""
    sets[i, j >> 6] &= ~(np.uint64(1) << np.uint64(j & 63))


@kernel
def insert(sets, i, j):
    """Put vertex j into set i."""
    sets[i, j >> 6] |= np.uint64(1) << np.uint64(j & 63)


def unpack(sets: UInt64[np.ndarray, "N W"]) -> Bool[np.ndarray, "N N"]:
    """N sets of N vertices as a matrix of truth values."""
    vertices = np.arange(len(sets), dtype=np.uint64)
    return (sets[:, vertices >> 6] >> (vertices & 63)) & 1 == 1


class Packed(NamedTuple):
    """The adjacency matrices and label codes of B graphs.

    Args:
        weight: all matrices, row by row and end to end.
        label: codes of all vertices, end to end; 0 throughout when labels play no part.
        size: (B,) number of vertices of each graph.
        weight_ptr: (B + 1,) where each graph's matrix begins.
        label_ptr: (B + 1,) where each graph's labels begin.
    """

    weight: Float[np.ndarray, " _"]
    label: Int[np.ndarray, " V"]
    size: Int[np.ndarray, " B"]
    weight_ptr: Int[np.ndarray, " B1"]
    label_ptr: Int[np.ndarray, " B1"]


def pack(graphs: Sequence[Data], *, labels: bool) -> Packed:
    """Lay canonical graphs end to end.

    Args:
        graphs: canonical graphs.
        labels: whether vertex labels are read; one code stands for equal labels in all graphs.

    Returns:
        The packed graphs.
    """
    codes: dict[object, int] = {}
    matrices = [adjacency(graph) for graph in graphs]
    named = [_labels(graph, i) if labels else [0] * len(m) for i, (graph, m) in
             enumerate(zip(graphs, matrices, strict=True))]  # fmt: skip
    coded = [codes.setdefault(name, len(codes)) for names in named for name in names]
    size = np.array([len(matrix) for matrix in matrices], dtype=np.int64)
    return Packed(
        weight=np.concatenate([matrix.ravel() for matrix in matrices]),
        label=np.array(coded, dtype=np.int64),
        size=size,
        weight_ptr=np.append(0, np.cumsum(size**2)),
        label_ptr=np.append(0, np.cumsum(size)),
    )


def adjacency(graph: Data) -> Float[np.ndarray, "N N"]:
    """The dense adjacency matrix of a canonical graph, in double precision."""
    assert graph.num_nodes is not None
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    weight = graph.get("edge_weight")
    row, column = graph.edge_index.numpy()
    matrix[row, column] = 1.0 if weight is None else weight.numpy()
    return matrix


def _labels(graph: Data, index: int) -> list:
    """The label of each vertex as something that can be compared: a number, a string, a tuple."""
    label = graph.get("label")
    if label is None:
        raise GraphError(
            index,
            "it has no vertex labels to match; set its label, or compare without labels: "
            "labels=False, or --no-labels",
        )
    listed = label if isinstance(label, list) else label.tolist()
    return [tuple(entry) if isinstance(entry, list) else entry for entry in listed]


@kernel
def pair_of(packed: Packed, first: int, second: int) -> Pair:
    """Two of the packed graphs as a pair."""
    n, m = packed.size[first], packed.size[second]
    a = packed.weight[packed.weight_ptr[first] : packed.weight_ptr[first + 1]]
    b = packed.weight[packed.weight_ptr[second] : packed.weight_ptr[second + 1]]
    label_a = packed.label[packed.label_ptr[first] : packed.label_ptr[first + 1]]
    label_b = packed.label[packed.label_ptr[second] : packed.label_ptr[second + 1]]
    return make_pair(a.reshape((n, n)), label_a, b.reshape((m, m)), label_b)


class Pair(NamedTuple):
    """Two adjacency matrices of one size N, and what the search may exploit in them.

    The cost of a permutation p is ``Σ_{i<k} (a[i, k] − b[p[i], p[k]])²``, half the squared
    Frobenius distance. W is the number of 64-bit words that hold a set of N vertices.

    Args:
        a: (N, N) adjacency of the first graph; its vertices are the rows of every assignment.
        b: (N, N) adjacency of the second graph; its vertices are the columns.
        allowed: (N, W) bit sets of the columns each row may be matched with.
        twin_a: (N,) class of each row; rows of one class can be exchanged without any effect.
        twin_b: (N,) class of each column, numbered by its least member.
        orbit_a: (N,) orbit of each row under automorphisms, numbered by its least member; the
            twin classes where the orbits are not known.
        orbit_b: (N,) the same of each column.
        near_a: (N, W) bit sets of the neighbours of each row.
        near_b: (N, W) bit sets of the neighbours of each column.
        order_a: (N, N) columns of each row of ``a`` by weight; (0, 0) when weights are 0 or 1.
        order_b: the same of ``b``.
        gap: least amount by which a better permutation is better.
        whole: whether all weights are whole numbers; costs then differ by 2 at least.
    """

    a: np.ndarray
    b: np.ndarray
    allowed: np.ndarray
    twin_a: np.ndarray
    twin_b: np.ndarray
    orbit_a: np.ndarray
    orbit_b: np.ndarray
    near_a: np.ndarray
    near_b: np.ndarray
    order_a: np.ndarray
    order_b: np.ndarray
    gap: float
    whole: bool


@kernel
def _common_size(label_a, label_b):
    """Vertices after padding, for each label the larger count; and the number of labels."""
    kinds = 1
    for label in label_a:
        kinds = max(kinds, label + 1)
    for label in label_b:
        kinds = max(kinds, label + 1)
    count = np.zeros((2, kinds), np.int64)
    for label in label_a:
        count[0, label] += 1
    for label in label_b:
        count[1, label] += 1
    size = 0
    for kind in range(kinds):
        size += max(count[0, kind], count[1, kind])
    return size, kinds


@kernel
def make_pair(a, label_a, b, label_b):
    """Pad two graphs to their common size and find what the search may exploit."""
    n, kinds = _common_size(label_a, label_b)
    padding = PADDING if kinds > 1 else 0  # without labels an isolated vertex is one like any other
    padded_a, full_a = _pad(a, label_a, n, padding)
    padded_b, full_b = _pad(b, label_b, n, padding)
    binary, whole, gap = _precision(padded_a, padded_b)
    twin_a = _twins(padded_a, full_a)
    twin_b = _twins(padded_b, full_b)
    near_a = _neighbours(padded_a)
    near_b = _neighbours(padded_b)
    order_a = _by_weight(padded_a, 0 if binary else n)
    order_b = _by_weight(padded_b, 0 if binary else n)
    allowed = _allowed(full_a, full_b)
    return Pair(
        padded_a, padded_b, allowed, twin_a, twin_b, twin_a, twin_b, near_a, near_b,
        order_a, order_b, gap, whole,
    )  # fmt: skip


@kernel
def _pad(matrix, label, n, padding):
    """The matrix with zero rows and columns up to n, and the labels with that of padding."""
    size = matrix.shape[0]
    padded = np.zeros((n, n))
    labels = np.empty(n, np.int64)
    for i in range(n):
        labels[i] = label[i] if i < size else padding
        for j in range(size if i < size else 0):
            padded[i, j] = matrix[i, j]
    return padded, labels


@kernel
def _precision(a, b):
    """Whether all weights are 0 or 1, whether all are whole, and the gap between two costs.

    With whole weights the cost is ``Σ_{i<k} (a² + b²) − 2 Σ_{i<k} a b``, so costs differ by 2 at
    least; otherwise costs closer than a billionth of the two graphs' own size count as equal.
    """
    binary = True
    whole = True
    size = 0.0
    for matrix in (a, b):
        for x in matrix.flat:
            binary = binary and (x == 0.0 or x == 1.0)
            whole = whole and x == np.floor(x)
            size += 0.5 * x * x
    if whole and size < 2.0**48:
        return binary, True, 2.0 - 2.0**-4
    return False, False, 1e-9 * size


@kernel
def _by_weight(matrix, n):
    """The columns of each of the first n rows, by ascending weight."""
    order = np.empty((n, n), np.int64)
    for i in range(n):
        for j in range(n):
            k = j
            while k > 0 and matrix[i, order[i, k - 1]] > matrix[i, j]:
                order[i, k] = order[i, k - 1]
                k -= 1
            order[i, k] = j
    return order


@kernel
def _twins(matrix, label):
    """Class of each vertex: i and j are twins when exchanging them leaves the matrix as it is."""
    n = matrix.shape[0]
    twin = np.arange(n)
    for i in range(n):
        for j in range(i):
            if twin[j] != j or label[i] != label[j]:
                continue
            same = True
            for k in range(n):
                if k != i and k != j and matrix[i, k] != matrix[j, k]:
                    same = False
                    break
            if same:
                twin[i] = j
                break
    return twin


@kernel
def _neighbours(matrix):
    """Bit sets of the neighbours of each vertex."""
    n = matrix.shape[0]
    near = np.zeros((n, (n + 63) // 64), np.uint64)
    for i in range(n):
        for j in range(n):
            if matrix[i, j] != 0.0:
                insert(near, i, j)
    return near


@kernel
def _allowed(label_a, label_b):
    """Bit sets of the vertices of b that each vertex of a may be matched with."""
    n = label_a.size
    allowed = np.zeros((n, (n + 63) // 64), np.uint64)
    for i in range(n):
        for j in range(n):
            if label_a[i] == label_b[j] or label_a[i] == PADDING or label_b[j] == PADDING:
                insert(allowed, i, j)
    return allowed
