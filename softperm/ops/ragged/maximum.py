"""The largest values over each vertex's neighbours and over each graph's vertices.

A gradient is shared by all that are as large as the largest. On the CPU both are torch's scatter;
on the GPU each is one kernel forward and one backward, which reads who received instead of adding
to who sent.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.ops.ragged.operators import to_front


def neighbour_maximum(
    x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]
) -> Float[Tensor, "V F"]:
    """The largest value of each feature over each vertex's neighbours; 0 without any.

    Args:
        x: a vector for each vertex.
        edge_index: directed edges, sorted by row and symmetric.
    """
    if not _has_kernels(x):
        return _scatter(x[edge_index[1]], edge_index[0], len(x))
    degree = edge_index.new_zeros(len(x)).scatter_add(0, edge_index[0], edge_index[0] * 0 + 1)
    end = degree.cumsum(0)
    neighbours = end - degree, end, edge_index[1]
    return maximum_op(x, *neighbours, *neighbours)[0]


def graph_maximum(x: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B F"]:
    """The largest value of each feature over each graph's vertices; 0 for an empty graph."""
    owner = owners(ptr, len(x))
    if not _has_kernels(x):
        return _scatter(x, owner, ptr.numel())[:-1]
    vertex = torch.arange(len(x), device=x.device)
    inside = (owner < ptr.numel() - 1).long()
    return maximum_op(x, ptr[:-1], ptr[1:], vertex, vertex, vertex + inside, owner)[0]


def owners(ptr: Int[Tensor, " B1"], vertices: int) -> Int[Tensor, " V"]:
    """The graph of each vertex; B for a vertex outside every graph."""
    ends = ptr.new_zeros(vertices + 1).scatter_add(0, ptr[1:], torch.ones_like(ptr[1:]))
    before = torch.arange(vertices, device=ptr.device) < ptr[0]
    return ends.cumsum(0)[:vertices].masked_fill(before, ptr.numel() - 1)


def _has_kernels(x: Tensor) -> bool:
    """Whether the operators below are for it."""
    return x.is_cuda


def _scatter(
    values: Float[Tensor, "K F"], place: Int[Tensor, " K"], places: int
) -> Float[Tensor, "places F"]:
    index = place[:, None].expand(-1, values.shape[1])
    least = values.new_full((places, values.shape[1]), -torch.inf)  # never a share of the gradient
    most = least.scatter_reduce(0, index, values, "amax")
    return torch.where(most.isneginf(), 0.0, most)


@torch.library.custom_op("softperm::maximum", mutates_args=())
def maximum_op(
    x: Tensor, begin: Tensor, end: Tensor, source: Tensor,
    back_begin: Tensor, back_end: Tensor, target: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(V, F) -> (R, F) the largest of the rows that reach each place, and how many are that large.

    Rows ``source[begin[r]:end[r]]`` reach place r; in return, row v reaches the places
    ``target[back_begin[v]:back_end[v]]``.
    """
    from softperm.ops.ragged.gpu_maximum import maximum  # needs Triton

    return maximum(x, begin, end, source)


@torch.library.custom_op("softperm::maximum_backward", mutates_args=())
def maximum_backward_op(
    share: Tensor, x: Tensor, out: Tensor, begin: Tensor, end: Tensor, target: Tensor
) -> Tensor:
    """(R, F), (V, F), (R, F) -> (V, F): the shares of the places where a row is the largest."""
    from softperm.ops.ragged.gpu_maximum import maximum_backward

    return maximum_backward(share, x, out, begin, end, target)


@maximum_op.register_fake
def _(x, begin, end, source, back_begin, back_end, target):
    made = x.new_empty(begin.shape[0], x.shape[1])
    return made, torch.empty_like(made)


@maximum_backward_op.register_fake
def _(share, x, out, begin, end, target):
    return x.new_empty(x.shape)


def _save(ctx, inputs, output):
    x, _, _, _, *back = inputs
    ctx.save_for_backward(x, *output, *back)


def _backward(ctx, grad, of_ties):
    x, out, ties, *back = ctx.saved_tensors
    share = grad / ties.clamp(min=1)
    return maximum_backward_op(share, x, out, *back), *[None] * 6


maximum_op.register_autograd(_backward, setup_context=_save)


@maximum_op.register_vmap
def _(info, in_dims, *tensors):
    x, *forth_and_back = to_front(info, in_dims, *tensors)
    forth, back = forth_and_back[:3], forth_and_back[3:]
    places = forth[0].shape[1]
    out = maximum_op(x.flatten(0, 1), *_one_list(forth, x.shape[1]), *_one_list(back, places))
    return tuple(t.unflatten(0, (info.batch_size, places)) for t in out), (0, 0)


@maximum_backward_op.register_vmap
def _(info, in_dims, *tensors):
    share, x, out, *back = to_front(info, in_dims, *tensors)
    rows = (t.flatten(0, 1) for t in (share, x, out))
    d_x = maximum_backward_op(*rows, *_one_list(back, share.shape[1]))
    return d_x.unflatten(0, x.shape[:2]), 0


def _one_list(lists: Sequence[Tensor], step: int) -> tuple[Tensor, ...]:
    """The lists of all models behind each other, of rows numbered one after the other."""
    begin, end, rows = lists
    length = rows.shape[1]
    return (
        _shifted(begin, length).flatten(),
        _shifted(end, length).flatten(),
        _shifted(rows, step).flatten(),
    )


def _shifted(index: Tensor, step: int) -> Tensor:
    """(M, K) with m · step added to model m's."""
    return index + step * torch.arange(len(index), device=index.device)[:, None]
