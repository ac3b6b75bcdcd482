"""Linear algebra on graphs laid end to end: cost follows real vertices and edges, never padding.

Three operators, closed under differentiation, each for all graphs of all models at once:
:func:`propagate` multiplies by the sparse adjacency, :func:`pool` multiplies two ragged matrices
into one small matrix per graph, :func:`spread` is the adjoint of the latter. Beside them the
largest values over neighbours and over graphs: :func:`neighbour_maximum` and :func:`graph_maximum`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.ops.derivatives import only_backward
from softperm.ops.ragged.maximum import graph_maximum, neighbour_maximum, owners
from softperm.ops.ragged.operators import pool_op, propagate_op, row_offsets_op, spread_op

__all__ = ["graph_maximum", "neighbour_maximum", "owners", "pool", "propagate", "spread"]


def propagate(
    x: Float[Tensor, "V F"],
    edge_index: Int[Tensor, "2 E"],
    edge_weight: Float[Tensor, " E"] | None = None,
    *,
    canonical: bool = False,
) -> Float[Tensor, "V F"]:
    r"""Multiplies by the adjacency matrix: :math:`y_i = \sum_{(i, j) \in E} w_{ij} x_j`.

    Args:
        x: a vector for each vertex.
        edge_index: directed edges (i, j): row i of the adjacency matrix, column j.
        edge_weight: weight of each edge, 1 by default; carries no gradient.
        canonical: promises that edges are sorted by row and symmetric, weights included, as
            :mod:`softperm.data.graphs` makes them, which saves sorting them twice.

    Returns:
        A vector for each vertex.
    """
    _check_rows(x=x)
    if edge_index.ndim != 2 or len(edge_index) != 2 or not _whole(edge_index):
        raise ValueError(
            f"edge_index must be (2, E) whole numbers; got {edge_index.dtype} of shape "
            f"{tuple(edge_index.shape)}"
        )
    if edge_weight is not None and edge_weight.shape != edge_index.shape[1:]:
        raise ValueError(
            f"there are {edge_index.shape[1]} edges, but edge_weight has shape "
            f"{tuple(edge_weight.shape)}; expected a number for each"
        )
    only_backward(x)
    kind = _summed(x)
    if edge_weight is not None:
        edge_weight = edge_weight.detach().to(kind)
    if not canonical:
        order = edge_index[0].argsort(stable=True)
        edge_index = edge_index[:, order]
        edge_weight = None if edge_weight is None else edge_weight[order]
    edges, weights = edge_index[None], None if edge_weight is None else edge_weight[None]
    row_ptr = row_offsets_op(edges, len(x), canonical)  # (1, V + 1)
    out = propagate_op(x.to(kind)[None], row_ptr, edges[:, 1], weights, canonical)
    return out.squeeze(0).to(x.dtype)


def pool(
    left: Float[Tensor, "V P"], right: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]
) -> Float[Tensor, "B P F"]:
    """One product per graph: the transpose of its rows of ``left`` times its rows of ``right``."""
    _check_rows(ptr, left=left, right=right)
    only_backward(left, right)
    kind = _summed(left)
    out = pool_op(left.to(kind)[None], right.to(kind)[None], ptr[None])
    return out.squeeze(0).to(left.dtype)


def spread(
    small: Float[Tensor, "B P F"], right: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]
) -> Float[Tensor, "V P"]:
    """Each vertex's vector times its graph's matrix; zero for a vertex outside every graph."""
    _check_rows(ptr, right=right)
    if small.ndim != 3 or len(small) != len(ptr) - 1 or small.shape[2] != right.shape[1]:
        raise ValueError(
            f"expected a matrix with {right.shape[1]} columns for each of {len(ptr) - 1} graphs; "
            f"got {tuple(small.shape)}"
        )
    only_backward(small, right)
    kind = _summed(right)
    out = spread_op(small.to(kind)[None], right.to(kind)[None], ptr[None])
    return out.squeeze(0).to(right.dtype)


def _check_rows(ptr: Tensor | None = None, **rows: Tensor) -> None:
    """Raises ValueError for matrices without a row for each vertex, or no vector of offsets."""
    counts = {name: x.shape[0] for name, x in rows.items() if x.ndim == 2}
    if len(counts) < len(rows) or len(set(counts.values())) > 1:
        found = ", ".join(f"{name} {tuple(x.shape)}" for name, x in rows.items())
        raise ValueError(f"expected matrices with a row for each vertex; got {found}")
    if ptr is not None and (ptr.ndim != 1 or not _whole(ptr)):
        raise ValueError(
            f"ptr must be a vector of whole numbers; got {ptr.dtype} of shape {tuple(ptr.shape)}"
        )


def _whole(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _summed(x: Tensor) -> torch.dtype:
    """The type in which to sum: that of the numbers, float32 if it is shorter."""
    return torch.promote_types(x.dtype, torch.float32)
