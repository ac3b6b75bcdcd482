"""Graphs as dense matrices laid end to end, the form in which the search reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float, Int
from numba import njit
from torch_geometric.data import Data

from softperm.distance.pairs import Pair, make_pair


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
        raise ValueError(
            f"graph {index} has no vertex labels to match; set its label, or leave labels "
            f"out of it: labels=False, or --no-labels"
        )
    listed = label if isinstance(label, list) else label.tolist()
    return [tuple(entry) if isinstance(entry, list) else entry for entry in listed]


@njit(cache=True, nogil=True)
@no_type_check
def pair_of(packed: Packed, first: int, second: int) -> Pair:
    """Two of the packed graphs as a pair."""
    n, m = packed.size[first], packed.size[second]
    a = packed.weight[packed.weight_ptr[first] : packed.weight_ptr[first + 1]]
    b = packed.weight[packed.weight_ptr[second] : packed.weight_ptr[second + 1]]
    label_a = packed.label[packed.label_ptr[first] : packed.label_ptr[first + 1]]
    label_b = packed.label[packed.label_ptr[second] : packed.label_ptr[second + 1]]
    return make_pair(a.reshape((n, n)), label_a, b.reshape((m, m)), label_b)
