"""The fused transport as registered operators: device kernels, shapes, gradients, stacking.

``softperm::sinkhorn`` and its backward run in one call over all problems of all models. Being
registered operators they can be compiled, captured in a CUDA graph, and mapped with
``torch.vmap``: mapping over models lays their problems end to end and still makes one call.
"""

import torch
from torch import Tensor

from softperm.transport import cpu

GRADIENTS = {"auto": 0, "truncated": 1, "implicit": 2}


@torch.library.custom_op("softperm::sinkhorn", mutates_args=(), device_types="cpu")
def sinkhorn_op(
    scores: Tensor,
    ptr: Tensor,
    row_mass: Tensor,
    column_mass: Tensor,
    extra: Tensor,
    extra_mass: Tensor,
    bin_score: Tensor,
    iterations: int,
    tolerance: float,
    gradient: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plan (V, P), column potentials of each iteration (M, B, T, C), iterations used, error."""
    return cpu.forward(
        scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score, iterations, tolerance
    )


@sinkhorn_op.register_kernel("cuda")
def _(
    scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score, iterations, tolerance, gradient
):
    from softperm.transport import gpu  # Triton may be absent where there is no GPU

    return gpu.forward(
        scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score, iterations, tolerance
    )


@sinkhorn_op.register_fake
def _(
    scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score, iterations, tolerance, gradient
):
    m, b, c = column_mass.shape
    return (
        torch.empty_like(scores),
        scores.new_empty(m, b, iterations, c, dtype=torch.float64),
        scores.new_empty(m, b, dtype=torch.int32),
        scores.new_empty(m, b),
    )


@torch.library.custom_op("softperm::sinkhorn_backward", mutates_args=(), device_types="cpu")
def sinkhorn_backward_op(
    grad_plan: Tensor,
    plan: Tensor,
    scores: Tensor,
    ptr: Tensor,
    row_mass: Tensor,
    column_mass: Tensor,
    extra: Tensor,
    extra_mass: Tensor,
    bin_score: Tensor,
    history: Tensor,
    used: Tensor,
    error: Tensor,
    tolerance: float,
    gradient: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of scores (V, P), and per problem of extra rows (M, B, R, C) and bin (M, B)."""
    return cpu.backward(
        grad_plan, plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
        history, used, error, tolerance, gradient,
    )  # fmt: skip


@sinkhorn_backward_op.register_kernel("cuda")
def _(
    grad_plan, plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    history, used, error, tolerance, gradient,
):  # fmt: skip
    from softperm.transport import gpu  # Triton may be absent where there is no GPU

    return gpu.backward(
        grad_plan, plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
        history, used, error, tolerance, gradient,
    )  # fmt: skip


@sinkhorn_backward_op.register_fake
def _(
    grad_plan, plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    history, used, error, tolerance, gradient,
):  # fmt: skip
    m, b, c = column_mass.shape
    return (
        torch.empty_like(scores),
        scores.new_empty(m, b, extra.shape[1], c),
        scores.new_empty(m, b),
    )


def _save(ctx, inputs, output):
    *tensors, iterations, tolerance, gradient = inputs
    plan, history, used, error = output
    ctx.mark_non_differentiable(history, used, error)
    ctx.save_for_backward(plan, *tensors, history, used, error)
    ctx.tolerance, ctx.gradient = tolerance, gradient


def _backward(ctx, grad_plan, *_):
    plan, *tensors, history, used, error = ctx.saved_tensors
    d_scores, d_extra, d_bin = sinkhorn_backward_op(
        grad_plan.contiguous(), plan, *tensors, history, used, error, ctx.tolerance, ctx.gradient
    )
    # Summed over the problems of a model in a fixed order: the same bits on every run.
    return d_scores, None, None, None, d_extra.sum(1), None, d_bin.sum(1), None, None, None


sinkhorn_op.register_autograd(_backward, setup_context=_save)


@sinkhorn_op.register_vmap
def _(
    info, in_dims, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    iterations, tolerance, gradient,
):  # fmt: skip
    """Lays the problems of all mapped models end to end: one call, whatever their number."""
    size = info.batch_size
    tensors = (scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score)
    scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score = (
        t.expand(size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip(tensors, in_dims[:7], strict=True)
    )
    v = scores.shape[1]
    begin = torch.arange(size, device=ptr.device).view(size, 1, 1) * v
    inner = ptr.shape[1]
    outputs = sinkhorn_op(
        scores.flatten(0, 1), (ptr + begin).flatten(0, 1), row_mass.flatten(0, 1),
        column_mass.flatten(0, 1), extra.flatten(0, 1), extra_mass.flatten(0, 1),
        bin_score.flatten(0, 1), iterations, tolerance, gradient,
    )  # fmt: skip
    plan, *others = outputs
    others = [t.unflatten(0, (size, inner)) for t in others]
    return (plan.unflatten(0, (size, v)), *others), (0, 0, 0, 0)
