"""The ragged products as registered operators: kernels, shapes, gradients, stacking of models.

Every operator takes the arrays of M models, each with vertices, graphs and edges of its own. Mapped
over models by ``torch.vmap`` it is still a single call.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from softperm.ops.ragged import cpu


def _owner(ptr: Tensor, vertices: int) -> Tensor:
    """(M, B + 1) -> (M, V): the graph of each vertex; B for a vertex outside every graph."""
    vertex = torch.arange(vertices, device=ptr.device).repeat(len(ptr), 1)
    owner = torch.searchsorted(ptr[:, 1:].contiguous(), vertex, right=True)
    return torch.where(ptr.gather(1, owner) <= vertex, owner, ptr.shape[1] - 1)


@torch.library.custom_op("softperm::pool", mutates_args=())
def pool_op(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """(M, V, P), (M, V, F), (M, B + 1) -> (M, B, P, F): one product of transposes per graph."""
    products = left[:, :, :, None] * right[:, :, None, :]  # (M, V, P, F)
    place = _owner(ptr, left.shape[1])[:, :, None, None].expand_as(products)
    out = left.new_zeros(*ptr.shape, *products.shape[2:])
    return out.scatter_add_(1, place, products)[:, :-1].clone()


@torch.library.custom_op("softperm::spread", mutates_args=())
def spread_op(small: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """(M, B, P, F), (M, V, F), (M, B + 1) -> (M, V, P): vertices' vectors times their matrices."""
    matrices = torch.cat([small, small.new_zeros(len(small), 1, *small.shape[2:])], dim=1)
    model = torch.arange(len(small), device=small.device)[:, None]
    return torch.einsum("mvpf,mvf->mvp", matrices[model, _owner(ptr, right.shape[1])], right)


@torch.library.custom_op("softperm::row_offsets", mutates_args=())
def row_offsets_op(edge_index: Tensor, vertices: int, sound: bool) -> Tensor:
    """(M, 2, E) sorted by row -> (M, V + 1): where the edges of each row begin and end.

    ``sound`` promises that edges name vertices; the CPU refuses others where that is not promised.
    """
    vertex = torch.arange(vertices + 1, device=edge_index.device).expand(len(edge_index), -1)
    return torch.searchsorted(edge_index[:, 0].contiguous(), vertex.contiguous())


@torch.library.custom_op("softperm::propagate", mutates_args=())
def propagate_op(
    x: Tensor, row_ptr: Tensor, col: Tensor, weight: Tensor | None, symmetric: bool
) -> Tensor:
    """(M, V, F), (M, V + 1), (M, E), (M, E) -> (M, V, F): adjacency times ``x``."""
    place, source = (t[:, :, None].expand(-1, -1, x.shape[2]) for t in (_rows(row_ptr, col), col))
    values = x.gather(1, source)  # (M, E, F)
    if weight is not None:
        values = values * weight[:, :, None]
    return torch.zeros_like(x).scatter_add_(1, place, values)


def _rows(row_ptr: Tensor, col: Tensor) -> Tensor:
    """(M, V + 1), (M, E) -> (M, E): the row of each edge."""
    edge = torch.arange(col.shape[1], device=col.device).repeat(len(col), 1)
    return torch.searchsorted(row_ptr[:, 1:].contiguous(), edge, right=True)


pool_op.register_kernel("cpu")(cpu.pool)
spread_op.register_kernel("cpu")(cpu.spread)
row_offsets_op.register_kernel("cpu")(cpu.row_offsets)
propagate_op.register_kernel("cpu")(cpu.propagate)


@pool_op.register_kernel("cuda")
def _(left, right, ptr):
    from softperm.ops.ragged import gpu  # needs Triton

    return gpu.pool(left, right, ptr)


@spread_op.register_kernel("cuda")
def _(small, right, ptr):
    from softperm.ops.ragged import gpu

    return gpu.spread(small, right, ptr)


@row_offsets_op.register_kernel("cuda")
def _(edge_index, vertices, sound):
    from softperm.ops.ragged import gpu

    return gpu.row_offsets(edge_index, vertices)


@propagate_op.register_kernel("cuda")
def _(x, row_ptr, col, weight, symmetric):
    from softperm.ops.ragged import gpu

    return gpu.propagate(x, row_ptr, col, weight)


@pool_op.register_fake
def _(left, right, ptr):
    m, b1 = ptr.shape
    return left.new_empty(m, b1 - 1, left.shape[2], right.shape[2])


@spread_op.register_fake
def _(small, right, ptr):
    return right.new_empty(*right.shape[:2], small.shape[2])


@row_offsets_op.register_fake
def _(edge_index, vertices, sound):
    return edge_index.new_empty(edge_index.shape[0], vertices + 1, dtype=torch.long)


@propagate_op.register_fake
def _(x, row_ptr, col, weight, symmetric):
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
    _, *edges, ctx.symmetric = inputs
    ctx.save_for_backward(*edges)


def _propagate_backward(ctx, grad):
    row_ptr, col, weight = ctx.saved_tensors
    if not ctx.symmetric:
        order = col.argsort(dim=1, stable=True)
        turned = torch.stack([col, _rows(row_ptr, col)], dim=1)  # (M, 2, E)
        turned = turned.gather(2, order[:, None].expand_as(turned))
        row_ptr, col = row_offsets_op(turned, grad.shape[1], True), turned[:, 1]
        weight = None if weight is None else weight.gather(1, order)
    return propagate_op(grad, row_ptr, col, weight, ctx.symmetric), None, None, None, None


pool_op.register_autograd(_pool_backward, setup_context=_save_inputs)
spread_op.register_autograd(_spread_backward, setup_context=_save_inputs)
propagate_op.register_autograd(_propagate_backward, setup_context=_save_edges)


def to_front(info, in_dims, *tensors):
    """Each tensor with the mapped axis first, expanded where it was not mapped."""
    return (
        t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip(tensors, in_dims, strict=True)
    )


def stacked(op: Callable) -> Callable:
    """The rule of ``torch.vmap`` for an operator over models: models of models are models."""

    def rule(info, in_dims, *arguments):
        given = list(arguments)
        at = [k for k, argument in enumerate(arguments) if isinstance(argument, Tensor)]
        front = to_front(info, [in_dims[k] for k in at], *(arguments[k] for k in at))
        for k, tensor in zip(at, front, strict=True):
            size = tensor.shape[:2]  # the same of all
            given[k] = tensor.flatten(0, 1)
        made = op(*given)
        if isinstance(made, Tensor):
            return made.unflatten(0, size), 0
        return tuple(t.unflatten(0, size) for t in made), (0,) * len(made)

    return rule


pool_op.register_vmap(stacked(pool_op))
spread_op.register_vmap(stacked(spread_op))
row_offsets_op.register_vmap(stacked(row_offsets_op))
propagate_op.register_vmap(stacked(propagate_op))
