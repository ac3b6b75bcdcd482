"""The ragged products as registered operators: kernels, shapes, gradients, stacking of models.

Every operator takes ``ptr`` as (M, B + 1), offsets into vertices that may leave gaps between
models, so that mapping over models with ``torch.vmap`` still makes a single call.
"""

import torch
from torch import Tensor

from softperm.ragged import cpu


def _owner(ptr: Tensor, count: int) -> Tensor:
    """The graph m · B + b of each vertex; M · B for a vertex in a gap."""
    m, b1 = ptr.shape
    vertex = torch.arange(count, device=ptr.device)
    begin, end = ptr[:, :-1].flatten(), ptr[:, 1:].flatten()
    owner = torch.searchsorted(end.contiguous(), vertex, right=True)
    if m * (b1 - 1) == 0:
        return owner
    inside = begin[owner.clamp(max=len(begin) - 1)] <= vertex
    return torch.where(inside, owner, len(begin))


@torch.library.custom_op("softperm::pool", mutates_args=())
def pool_op(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """(V, P), (V, F), (M, B + 1) -> (M, B, P, F): one product of transposes per graph."""
    m, b1 = ptr.shape
    out = left.new_zeros(m * (b1 - 1) + 1, left.shape[1], right.shape[1])
    out.index_add_(0, _owner(ptr, len(left)), left[:, :, None] * right[:, None, :])
    return out[:-1].unflatten(0, (m, b1 - 1)).clone()


@torch.library.custom_op("softperm::spread", mutates_args=())
def spread_op(small: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """(M, B, P, F), (V, F), (M, B + 1) -> (V, P): each vertex's vector times its graph's matrix."""
    flat = torch.cat([small.flatten(0, 1), small.new_zeros(1, *small.shape[2:])])
    return torch.einsum("vpf,vf->vp", flat[_owner(ptr, len(right))], right)


@torch.library.custom_op("softperm::propagate", mutates_args=())
def propagate_op(x: Tensor, edge_index: Tensor, edge_weight: Tensor, symmetric: bool) -> Tensor:
    """(V, F), (2, E) sorted by row, (E,) -> (V, F): adjacency times ``x``."""
    return torch.zeros_like(x).index_add_(0, edge_index[0], x[edge_index[1]] * edge_weight[:, None])


pool_op.register_kernel("cpu")(cpu.pool)
spread_op.register_kernel("cpu")(cpu.spread)
propagate_op.register_kernel("cpu")(cpu.propagate)


@pool_op.register_kernel("cuda")
def _(left, right, ptr):
    from softperm.ragged import gpu  # needs Triton

    return gpu.pool(left, right, ptr)


@spread_op.register_kernel("cuda")
def _(small, right, ptr):
    from softperm.ragged import gpu

    return gpu.spread(small, right, ptr)


@propagate_op.register_kernel("cuda")
def _(x, edge_index, edge_weight, symmetric):
    from softperm.ragged import gpu

    return gpu.propagate(x, edge_index, edge_weight)


@pool_op.register_fake
def _(left, right, ptr):
    m, b1 = ptr.shape
    return left.new_empty(m, b1 - 1, left.shape[1], right.shape[1])


@spread_op.register_fake
def _(small, right, ptr):
    return right.new_empty(right.shape[0], small.shape[2])


@propagate_op.register_fake
def _(x, edge_index, edge_weight, symmetric):
    return x.new_empty(x.shape)


def _save_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _pool_backward(ctx, grad):
    left, right, ptr = ctx.saved_tensors
    d_left = spread_op(grad, right, ptr) if ctx.needs_input_grad[0] else None
    d_right = spread_op(grad.mT, left, ptr) if ctx.needs_input_grad[1] else None
    return d_left, d_right, None


def _spread_backward(ctx, grad):
    small, right, ptr = ctx.saved_tensors
    d_small = pool_op(grad, right, ptr) if ctx.needs_input_grad[0] else None
    d_right = spread_op(small.mT, grad, ptr) if ctx.needs_input_grad[1] else None
    return d_small, d_right, None


def _save_edges(ctx, inputs, output):
    _, edge_index, edge_weight, ctx.symmetric = inputs
    ctx.save_for_backward(edge_index, edge_weight)


def _propagate_backward(ctx, grad):
    edge_index, edge_weight = ctx.saved_tensors
    if not ctx.symmetric:
        order = edge_index[1].argsort(stable=True)
        edge_index, edge_weight = edge_index.flip(0)[:, order], edge_weight[order]
    return propagate_op(grad, edge_index, edge_weight, ctx.symmetric), None, None, None


pool_op.register_autograd(_pool_backward, setup_context=_save_inputs)
spread_op.register_autograd(_spread_backward, setup_context=_save_inputs)
propagate_op.register_autograd(_propagate_backward, setup_context=_save_edges)


def to_front(info, in_dims, *tensors):
    """Each tensor with the mapped axis first, expanded where it was not mapped."""
    return (
        t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip(tensors, in_dims, strict=True)
    )


def shift(index: Tensor, step: int) -> Tensor:
    """Adds m · step to slice m: vertices of stacked models are numbered one after the other."""
    begin = torch.arange(len(index), device=index.device) * step
    return index + begin.view(-1, *[1] * (index.ndim - 1))


def side_by_side(edge_index: Tensor, step: int) -> Tensor:
    """(M, 2, E) -> (2, M · E): the edges of stacked models; one pass if the two ends lie apart."""
    begin = torch.arange(len(edge_index), device=edge_index.device) * step
    return (edge_index.movedim(1, 0) + begin[:, None]).flatten(1)


@pool_op.register_vmap
def _(info, in_dims, left, right, ptr):
    left, right, ptr = to_front(info, in_dims, left, right, ptr)
    ptr = shift(ptr, left.shape[1])
    out = pool_op(left.flatten(0, 1), right.flatten(0, 1), ptr.flatten(0, 1))
    return out.unflatten(0, ptr.shape[:2]), 0


@spread_op.register_vmap
def _(info, in_dims, small, right, ptr):
    small, right, ptr = to_front(info, in_dims, small, right, ptr)
    size = right.shape[:2]
    ptr = shift(ptr, size[1])
    out = spread_op(small.flatten(0, 1), right.flatten(0, 1), ptr.flatten(0, 1))
    return out.unflatten(0, size), 0


@propagate_op.register_vmap
def _(info, in_dims, x, edge_index, edge_weight, symmetric):
    x, edge_index, edge_weight = to_front(info, in_dims[:3], x, edge_index, edge_weight)
    edge_index = side_by_side(edge_index, x.shape[1])  # (2, M · E)
    out = propagate_op(x.flatten(0, 1), edge_index, edge_weight.flatten(), symmetric)
    return out.unflatten(0, x.shape[:2]), 0
