"""Linear algebra on graphs stored end to end: the cost follows real vertices and edges, no padding.

Four operators, closed under differentiation, each for all graphs of all models at once:
:func:`propagate` multiplies by the sparse adjacency matrix, :func:`pool` multiplies two ragged
matrices into one small matrix per graph, :func:`spread` is the adjoint of :func:`pool`, and
:func:`transfer` sums lists of rows. In addition, the maximum over neighbours and over graphs:
:func:`neighbour_maximum` and :func:`graph_maximum`.

The registered operators take the arrays of M models, each with its own vertices, graphs and edges.
Mapped over models with ``torch.vmap``, an operator is still a single call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch._ops import OpOverload

from softperm.jit import kernel
from softperm.ops.operators import (
    check_offsets,
    deferred,
    mapped_axis_first,
    over_models,
    refuse_function_transforms,
    register,
)
from softperm.parallel import over_ranges

__all__ = [
    "Lists",
    "graph_maximum",
    "neighbour_maximum",
    "owners",
    "pool",
    "propagate",
    "spread",
    "transfer",
]

_GPU = "softperm.ops.ragged.gpu"
FAST = {"contract", "reassoc", "nsz"}


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
        edge_weight: weight of each edge, 1 by default; receives no gradient.
        canonical: whether edges are known to be sorted by row and symmetric, weights included, as
            :mod:`softperm.data.graphs` returns them; this saves sorting them twice.
    """
    _check_rows(x=x)
    if edge_index.ndim != 2 or len(edge_index) != 2 or not _is_integral(edge_index):
        raise ValueError(
            f"edge_index must be (2, E) whole numbers; got {edge_index.dtype} of shape "
            f"{tuple(edge_index.shape)}"
        )
    if edge_weight is not None and edge_weight.shape != edge_index.shape[1:]:
        raise ValueError(
            f"there are {edge_index.shape[1]} edges, but edge_weight has shape "
            f"{tuple(edge_weight.shape)}; expected one number for each edge"
        )
    refuse_function_transforms(x)
    dtype = _accumulation_type(x)
    if edge_weight is not None:
        edge_weight = edge_weight.detach().to(dtype)
    if not canonical:
        order = edge_index[0].argsort(stable=True)
        edge_index = edge_index[:, order]
        edge_weight = None if edge_weight is None else edge_weight[order]
    edges, weights = edge_index[None], None if edge_weight is None else edge_weight[None]
    row_ptr = row_offsets_op(edges, len(x), canonical)  # (1, V + 1)
    out = propagate_op(x.to(dtype)[None], row_ptr, edges[:, 1], weights, canonical)
    return out.squeeze(0).to(x.dtype)


def pool(
    left: Float[Tensor, "V P"], right: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]
) -> Float[Tensor, "B P F"]:
    """One product per graph: the transpose of its rows of ``left`` times its rows of ``right``."""
    _check_rows(ptr, left=left, right=right)
    refuse_function_transforms(left, right)
    dtype = _accumulation_type(left)
    out = pool_op(left.to(dtype)[None], right.to(dtype)[None], ptr[None])
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
    refuse_function_transforms(small, right)
    dtype = _accumulation_type(right)
    out = spread_op(small.to(dtype)[None], right.to(dtype)[None], ptr[None])
    return out.squeeze(0).to(right.dtype)


@dataclass(frozen=True)
class Lists:
    """A list of items for each place.

    Attributes:
        ptr: where each place's list begins, with the end of the last one.
        item: the items of all lists, those of one place after those of another.
    """

    ptr: Int[Tensor, " R1"]
    item: Int[Tensor, " K"]


def transfer(x: Float[Tensor, "S F"], of: Lists, back: Lists) -> Float[Tensor, "R F"]:
    """The sum of the rows that each place lists; 0 for an empty list.

    Args:
        x: the rows.
        of: the rows that each place lists.
        back: the places that list each row, with which gradients are summed in a fixed order.

    >>> x = torch.tensor([[1.0], [10.0]])
    >>> of = Lists(torch.arange(4), torch.tensor([0, 1, 1]))
    >>> back = Lists(torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2]))
    >>> transfer(x, of, back).tolist(), transfer(torch.ones(3, 1), back, of).tolist()
    ([[1.0], [10.0], [10.0]], [[1.0], [2.0]])
    """
    refuse_function_transforms(x)
    arrays = (array[None] for array in (of.ptr, of.item, back.ptr, back.item))
    return transfer_op(x.to(_accumulation_type(x))[None], *arrays).squeeze(0).to(x.dtype)


def neighbour_maximum(
    x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]
) -> Float[Tensor, "V F"]:
    """The maximum of each feature over each vertex's neighbours; 0 for a vertex without any.

    The gradient is divided equally among all neighbours that attain the maximum.

    Args:
        x: a vector for each vertex.
        edge_index: directed edges, sorted by row and symmetric.
    """
    if not _has_kernels(x):
        return _scatter_maximum(x[edge_index[1]], edge_index[0], len(x))
    degree = edge_index.new_zeros(len(x)).scatter_add(0, edge_index[0], edge_index[0] * 0 + 1)
    end = degree.cumsum(0)
    neighbours = end - degree, end, edge_index[1]
    return maximum_op(x, *neighbours, *neighbours)[0]


def graph_maximum(x: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B F"]:
    """The maximum of each feature over each graph's vertices; 0 for an empty graph.

    The gradient is divided equally among all vertices that attain the maximum.
    """
    owner = owners(ptr, len(x))
    if not _has_kernels(x):
        return _scatter_maximum(x, owner, ptr.numel())[:-1]
    vertex = torch.arange(len(x), device=x.device)
    inside = (owner < ptr.numel() - 1).long()
    return maximum_op(x, ptr[:-1], ptr[1:], vertex, vertex, vertex + inside, owner)[0]


def owners(ptr: Int[Tensor, " B1"], vertices: int) -> Int[Tensor, " V"]:
    """The graph of each vertex; B for a vertex outside every graph."""
    ends = ptr.new_zeros(vertices + 1).scatter_add(0, ptr[1:], torch.ones_like(ptr[1:]))
    before = torch.arange(vertices, device=ptr.device) < ptr[0]
    return ends.cumsum(0)[:vertices].masked_fill(before, ptr.numel() - 1)


def _check_rows(ptr: Tensor | None = None, **rows: Tensor) -> None:
    """Raises ValueError for matrices without a row for each vertex, or invalid offsets."""
    counts = {name: x.shape[0] for name, x in rows.items() if x.ndim == 2}
    if len(counts) < len(rows) or len(set(counts.values())) > 1:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in rows.items())
        raise ValueError(f"expected matrices with a row for each vertex; got {shapes}")
    if ptr is not None and (ptr.ndim != 1 or not _is_integral(ptr)):
        raise ValueError(
            f"ptr must be a vector of whole numbers; got {ptr.dtype} of shape {tuple(ptr.shape)}"
        )


def _is_integral(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _accumulation_type(x: Tensor) -> torch.dtype:
    """The type in which sums are formed: that of the numbers, and at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def _has_kernels(x: Tensor) -> bool:
    """Whether ``maximum_op`` has a kernel for this device; torch's scatter is used elsewhere."""
    return x.is_cuda or x.is_meta


def _scatter_maximum(
    values: Float[Tensor, "K F"], place: Int[Tensor, " K"], places: int
) -> Float[Tensor, "places F"]:
    index = place[:, None].expand(-1, values.shape[1])
    lowest = values.new_full((places, values.shape[1]), -torch.inf)  # receives no gradient
    maximum = lowest.scatter_reduce(0, index, values, "amax")
    return torch.where(maximum.isneginf(), 0.0, maximum)


# The products as operators: implementations in plain torch, for devices without kernels.


def _pool_reference(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    products = left[:, :, :, None] * right[:, :, None, :]  # (M, V, P, F)
    place = _owners_of_models(ptr, left.shape[1])[:, :, None, None].expand_as(products)
    out = left.new_zeros(*ptr.shape, *products.shape[2:])
    return out.scatter_add_(1, place, products)[:, :-1].clone()


def _spread_reference(small: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    matrices = torch.cat([small, small.new_zeros(len(small), 1, *small.shape[2:])], dim=1)
    model = torch.arange(len(small), device=small.device)[:, None]
    owner = _owners_of_models(ptr, right.shape[1])
    return torch.einsum("mvpf,mvf->mvp", matrices[model, owner], right)


def _owners_of_models(ptr: Tensor, vertices: int) -> Tensor:
    """(M, B + 1) -> (M, V): the graph of each vertex; B for a vertex outside every graph."""
    vertex = torch.arange(vertices, device=ptr.device).repeat(len(ptr), 1)
    owner = torch.searchsorted(ptr[:, 1:].contiguous(), vertex, right=True)
    return torch.where(ptr.gather(1, owner) <= vertex, owner, ptr.shape[1] - 1)


def _row_offsets_reference(edge_index: Tensor, vertices: int, valid: bool) -> Tensor:
    vertex = torch.arange(vertices + 1, device=edge_index.device).expand(len(edge_index), -1)
    return torch.searchsorted(edge_index[:, 0].contiguous(), vertex.contiguous())


def _propagate_reference(
    x: Tensor, row_ptr: Tensor, col: Tensor, weight: Tensor | None, symmetric: bool
) -> Tensor:
    place, source = (t[:, :, None].expand(-1, -1, x.shape[2]) for t in (_rows(row_ptr, col), col))
    values = x.gather(1, source)  # (M, E, F)
    if weight is not None:
        values = values * weight[:, :, None]
    out = x.new_zeros(len(x), row_ptr.shape[1] - 1, x.shape[2])
    return out.scatter_add_(1, place, values)


def _rows(row_ptr: Tensor, col: Tensor) -> Tensor:
    """(M, V + 1), (M, E) -> (M, E): the row of each edge."""
    edge = torch.arange(col.shape[1], device=col.device).repeat(len(col), 1)
    return torch.searchsorted(row_ptr[:, 1:].contiguous(), edge, right=True)


# On the CPU, in numba: graphs or rows are divided among threads.


@kernel(fastmath=FAST)
def _pool(left, right, begin, end, out, first, last):
    held, row = np.empty(out.shape[1:]), np.empty(right.shape[1])
    for g in range(first, last):
        held[:] = 0.0
        for v in range(begin[g], end[g]):
            for f in range(right.shape[1]):
                row[f] = right[v, f]
            for p in range(left.shape[1]):
                scale = np.float64(left[v, p])
                for f in range(right.shape[1]):
                    held[p, f] += scale * row[f]
        for p in range(left.shape[1]):
            for f in range(right.shape[1]):
                out[g, p, f] = held[p, f]


@kernel(fastmath=FAST)
def _spread(small, right, begin, end, out, first, last):
    for g in range(first, last):
        for v in range(begin[g], end[g]):
            for f in range(right.shape[1]):
                scale = right[v, f]
                for p in range(out.shape[1]):
                    out[v, p] += scale * small[g, f, p]


@kernel(fastmath=FAST)
def _propagate(x, row_ptr, col, weight, out, rows, sources, edges, first, last):
    held = np.empty(x.shape[1])
    for v in range(first, last):
        m = v // rows  # the model; it has one offset more than rows
        held[:] = 0.0
        for e in range(m * edges + row_ptr[v + m], m * edges + row_ptr[v + m + 1]):
            scale = np.float64(weight[e]) if weight.size else 1.0
            source = m * sources + col[e]
            for f in range(x.shape[1]):
                held[f] += scale * x[source, f]
        for f in range(x.shape[1]):
            out[v, f] = held[f]


@kernel
def _row_offsets(rows, out):
    for m in range(len(rows)):
        v = 0
        for e in range(rows.shape[1]):
            while v < out.shape[1] and v <= rows[m, e]:
                out[m, v] = e
                v += 1
        out[m, v:] = rows.shape[1]


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _spans(ptr: Tensor, vertices: int) -> tuple[np.ndarray, np.ndarray]:
    """First vertex of each graph m · B + b, and the end of its vertices."""
    check_offsets(ptr, vertices)
    if len(ptr) > 1:
        ptr = ptr + vertices * torch.arange(len(ptr))[:, None]
    return _array(ptr[:, :-1].flatten()), _array(ptr[:, 1:].flatten())


def _pool_cpu(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    (m, b1), (_, v, p), f = ptr.shape, left.shape, right.shape[2]
    out = left.new_zeros(m * (b1 - 1), p, f)
    rows = [_array(t.flatten(0, 1)) for t in (left, right)]
    over_ranges(_pool, len(out), left.numel() * f, *rows, *_spans(ptr, v), out.numpy())
    return out.unflatten(0, (m, b1 - 1))


def _spread_cpu(small: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    m, v, f = right.shape
    out = right.new_zeros(m * v, small.shape[2])
    transposed = _array(small.flatten(0, 1).mT)  # (MB, F, P)
    rows = _array(right.flatten(0, 1))
    over_ranges(
        _spread, len(transposed), out.numel() * f, transposed, rows, *_spans(ptr, v), out.numpy()
    )
    return out.unflatten(0, (m, v))


def _row_offsets_cpu(edge_index: Tensor, vertices: int, valid: bool) -> Tensor:
    if not valid and edge_index.numel():
        low, high = (int(end) for end in edge_index.aminmax())
        if low < 0 or high >= vertices:
            raise ValueError(
                f"edge_index must name vertices from 0 to {vertices - 1}; got {low} to {high}"
            )
    out = torch.empty(len(edge_index), vertices + 1, dtype=torch.int64)
    _row_offsets(_array(edge_index[:, 0]), out.numpy())
    return out


def _propagate_cpu(
    x: Tensor, row_ptr: Tensor, col: Tensor, weight: Tensor | None, symmetric: bool
) -> Tensor:
    (m, sources, f), rows = x.shape, row_ptr.shape[1] - 1
    out = x.new_empty(m * rows, f)
    weight = x.new_empty(0) if weight is None else weight
    given = (x.flatten(0, 1), row_ptr.flatten(), col.flatten(), weight.flatten(), out)
    arrays = [_array(t) for t in given]
    over_ranges(_propagate, len(out), col.numel() * f, *arrays, rows, sources, col.shape[1])
    return out.unflatten(0, (m, rows))


def _transfer_reference(x: Tensor, ptr: Tensor, item: Tensor, *back: Tensor) -> Tensor:
    place, source = (t[:, :, None].expand(-1, -1, x.shape[2]) for t in (_rows(ptr, item), item))
    out = x.new_zeros(len(x), ptr.shape[1], x.shape[2])  # a place more, for items of no list
    return out.scatter_add_(1, place, x.gather(1, source))[:, :-1].clone()


def _transfer_cpu(x: Tensor, ptr: Tensor, item: Tensor, *back: Tensor) -> Tensor:
    return _propagate_cpu(x, ptr, item, None, False)


# Their gradients.


def _save_inputs(ctx: Any, inputs: tuple, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _pool_backward(ctx: Any, grad: Tensor) -> tuple:
    left, right, ptr = ctx.saved_tensors
    d_left = spread_op(grad, right, ptr) if ctx.needs_input_grad[0] else None
    d_right = spread_op(grad.mT, left, ptr) if ctx.needs_input_grad[1] else None
    return d_left, d_right, None


def _spread_backward(ctx: Any, grad: Tensor) -> tuple:
    small, right, ptr = ctx.saved_tensors
    d_small = pool_op(grad, right, ptr) if ctx.needs_input_grad[0] else None
    d_right = spread_op(small.mT, grad, ptr) if ctx.needs_input_grad[1] else None
    return d_small, d_right, None


def _save_edges(ctx: Any, inputs: tuple, output: Any) -> None:
    _, *edges, ctx.symmetric = inputs
    ctx.save_for_backward(*edges)


def _propagate_backward(ctx: Any, grad: Tensor) -> tuple:
    row_ptr, col, weight = ctx.saved_tensors
    if not ctx.symmetric:
        order = col.argsort(dim=1, stable=True)
        turned = torch.stack([col, _rows(row_ptr, col)], dim=1)  # (M, 2, E)
        turned = turned.gather(2, order[:, None].expand_as(turned))
        row_ptr, col = row_offsets_op(turned, grad.shape[1], True), turned[:, 1]
        weight = None if weight is None else weight.gather(1, order)
    return propagate_op(grad, row_ptr, col, weight, ctx.symmetric), None, None, None, None


def _save_lists(ctx: Any, inputs: tuple, output: Any) -> None:
    ctx.save_for_backward(*inputs[1:])


def _transfer_backward(ctx: Any, grad: Tensor) -> tuple:
    ptr, item, back_ptr, back = ctx.saved_tensors
    return transfer_op(grad, back_ptr, back, ptr, item), None, None, None, None


pool_op = register(
    "pool(Tensor left, Tensor right, Tensor ptr) -> Tensor",
    fake=lambda left, right, ptr: left.new_empty(
        ptr.shape[0], ptr.shape[1] - 1, left.shape[2], right.shape[2]
    ),
    reference=_pool_reference,
    cpu=_pool_cpu,
    gpu=deferred(_GPU, "pool"),
    save=_save_inputs,
    backward=_pool_backward,
    vmap=over_models,
)
"""(M, V, P), (M, V, F), (M, B + 1) -> (M, B, P, F): one product of transposes per graph."""

spread_op = register(
    "spread(Tensor small, Tensor right, Tensor ptr) -> Tensor",
    fake=lambda small, right, ptr: right.new_empty(*right.shape[:2], small.shape[2]),
    reference=_spread_reference,
    cpu=_spread_cpu,
    gpu=deferred(_GPU, "spread"),
    save=_save_inputs,
    backward=_spread_backward,
    vmap=over_models,
)
"""(M, B, P, F), (M, V, F), (M, B + 1) -> (M, V, P): vertices' vectors times their matrices."""

row_offsets_op = register(
    "row_offsets(Tensor edge_index, int vertices, bool valid) -> Tensor",
    fake=lambda edge_index, vertices, valid: edge_index.new_empty(
        edge_index.shape[0], vertices + 1, dtype=torch.long
    ),
    reference=_row_offsets_reference,
    cpu=_row_offsets_cpu,
    gpu=deferred(_GPU, "row_offsets"),
    vmap=over_models,
)
"""(M, 2, E) sorted by row -> (M, V + 1): first edge of each row, with the number of edges.

``valid`` states that edges name existing vertices; otherwise the CPU checks it.
"""

propagate_op = register(
    "propagate(Tensor x, Tensor row_ptr, Tensor col, Tensor? weight, bool symmetric) -> Tensor",
    fake=lambda x, row_ptr, col, weight, symmetric: x.new_empty(x.shape),
    reference=_propagate_reference,
    cpu=_propagate_cpu,
    gpu=deferred(_GPU, "propagate"),
    save=_save_edges,
    backward=_propagate_backward,
    vmap=over_models,
)
"""(M, V, F), (M, V + 1), (M, E), (M, E) -> (M, V, F): adjacency times ``x``."""

transfer_op = register(
    "transfer(Tensor x, Tensor ptr, Tensor item, Tensor back_ptr, Tensor back) -> Tensor",
    fake=lambda x, ptr, *_: x.new_empty(x.shape[0], ptr.shape[1] - 1, x.shape[2]),
    reference=_transfer_reference,
    cpu=_transfer_cpu,
    gpu=deferred(_GPU, "transfer"),
    save=_save_lists,
    backward=_transfer_backward,
    vmap=over_models,
)
"""(M, S, F), (M, R + 1), (M, K), (M, S + 1), (M, L) -> (M, R, F): sums of listed rows."""


# The maximum as an operator.


def _save_maximum(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, _, _, _, *back = inputs
    ctx.save_for_backward(x, *output, *back)


def _maximum_backward(ctx: Any, grad: Tensor, grad_of_ties: Tensor | None) -> tuple:
    x, out, ties, *back = ctx.saved_tensors
    share = grad / ties.clamp(min=1)
    return maximum_backward_op(share, x, out, *back), *[None] * 6


def _map_maximum(operator: OpOverload, info: Any, in_dims: tuple, *tensors: Tensor) -> tuple:
    x, *lists = mapped_axis_first(info, in_dims, tensors)
    forward, back = lists[:3], lists[3:]
    places = forward[0].shape[1]
    out = operator(x.flatten(0, 1), *_one_list(forward, x.shape[1]), *_one_list(back, places))
    return tuple(t.unflatten(0, (info.batch_size, places)) for t in out), (0, 0)


def _map_maximum_backward(
    operator: OpOverload, info: Any, in_dims: tuple, *tensors: Tensor
) -> tuple:
    share, x, out, *back = mapped_axis_first(info, in_dims, tensors)
    rows = (t.flatten(0, 1) for t in (share, x, out))
    d_x = operator(*rows, *_one_list(back, share.shape[1]))
    return d_x.unflatten(0, x.shape[:2]), 0


def _one_list(lists: Sequence[Tensor], step: int) -> tuple[Tensor, ...]:
    """Concatenates the lists of all models; the rows of all models are numbered consecutively."""
    begin, end, rows = lists
    length = rows.shape[1]
    return (
        _shifted(begin, length).flatten(),
        _shifted(end, length).flatten(),
        _shifted(rows, step).flatten(),
    )


def _shifted(index: Tensor, step: int) -> Tensor:
    """(M, K) with m · step added to the indices of model m."""
    return index + step * torch.arange(len(index), device=index.device)[:, None]


maximum_op = register(
    "maximum(Tensor x, Tensor begin, Tensor end, Tensor source, Tensor back_begin, "
    "Tensor back_end, Tensor target) -> (Tensor maximum, Tensor ties)",
    fake=lambda x, begin, *_: (
        x.new_empty(begin.shape[0], x.shape[1]),
        x.new_empty(begin.shape[0], x.shape[1]),
    ),
    reference=deferred(_GPU, "maximum"),
    save=_save_maximum,
    backward=_maximum_backward,
    vmap=_map_maximum,
)
"""(V, F) -> (R, F): maximum of the rows that reach each place, and how many rows attain it.

Rows ``source[begin[r]:end[r]]`` reach place r; conversely, row v reaches the places
``target[back_begin[v]:back_end[v]]``.
"""

maximum_backward_op = register(
    "maximum_backward(Tensor share, Tensor x, Tensor maximum, Tensor begin, Tensor end, "
    "Tensor target) -> Tensor",
    fake=lambda share, x, *_: x.new_empty(x.shape),
    reference=deferred(_GPU, "maximum_backward"),
    vmap=_map_maximum_backward,
)
"""(R, F), (V, F), (R, F) -> (V, F): sum of the shares of the places where a row is the maximum."""
