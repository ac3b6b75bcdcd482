"""The fused transport as registered operators: device kernels, shapes, gradients, stacking.

``softperm::sinkhorn`` and its backward run in one call over all problems of all models. Being
registered operators they can be compiled, captured in a CUDA graph, and mapped with
``torch.vmap``: mapping over models lays their problems end to end and still makes one call.
"""

import torch

from softperm.ops.transport import cpu

_LIBRARY = torch.library.Library("softperm", "FRAGMENT")
_INPUTS = (
    "Tensor scores, Tensor ptr, Tensor row_mass, Tensor column_mass, Tensor extra, "
    "Tensor extra_mass, Tensor bin_score"
)
# Defined by schema rather than with custom_op, whose first call loads torch's compiler, which takes
# seconds.
_LIBRARY.define(
    f"sinkhorn({_INPUTS}, int iterations, float tolerance, int gradient, int largest)"
    " -> (Tensor plan, Tensor history, Tensor used, Tensor error)",
    tags=torch.Tag.pt2_compliant_tag,
)
_LIBRARY.define(
    f"sinkhorn_backward(Tensor grad_plan, Tensor plan, {_INPUTS}, Tensor history, Tensor used,"
    " Tensor error, float tolerance, int gradient, int largest)"
    " -> (Tensor d_scores, Tensor d_extra, Tensor d_bin)",
    tags=torch.Tag.pt2_compliant_tag,
)

sinkhorn_op = torch.ops.softperm.sinkhorn.default
"""Plan (V, P), column potentials of each iteration (M, B, T, C), iterations used, error."""

sinkhorn_backward_op = torch.ops.softperm.sinkhorn_backward.default
"""Gradients of scores (V, P), and per problem of extra rows (M, B, R, C) and bin (M, B)."""


@torch.library.impl(_LIBRARY, "sinkhorn", "CPU")
def _(*inputs):
    *arguments, _gradient, _largest = inputs
    return cpu.forward(*arguments)


@torch.library.impl(_LIBRARY, "sinkhorn", "CUDA")
def _(*inputs):
    from softperm.ops.transport import gpu  # Triton may be absent where there is no GPU

    *arguments, _gradient, largest = inputs
    return gpu.forward(*arguments, largest=largest)


@torch.library.impl(_LIBRARY, "sinkhorn_backward", "CPU")
def _(*inputs):
    *arguments, _largest = inputs
    return cpu.backward(*arguments)


@torch.library.impl(_LIBRARY, "sinkhorn_backward", "CUDA")
def _(*inputs):
    from softperm.ops.transport import gpu

    return gpu.backward(*inputs)


@torch.library.register_fake("softperm::sinkhorn", lib=_LIBRARY)
def _(
    scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    iterations, tolerance, gradient, largest,
):  # fmt: skip
    m, b, c = column_mass.shape
    return (
        torch.empty_like(scores),
        scores.new_empty(m, b, iterations, c, dtype=torch.float64),
        scores.new_empty(m, b, dtype=torch.int32),
        scores.new_empty(m, b),
    )


@torch.library.register_fake("softperm::sinkhorn_backward", lib=_LIBRARY)
def _(
    grad_plan, plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    history, used, error, tolerance, gradient, largest,
):  # fmt: skip
    m, b, c = column_mass.shape
    return (
        torch.empty_like(scores),
        scores.new_empty(m, b, extra.shape[1], c),
        scores.new_empty(m, b),
    )


def _save(ctx, inputs, output):
    *tensors, _iterations, tolerance, gradient, largest = inputs
    plan, history, used, error = output
    ctx.mark_non_differentiable(history, used, error)
    ctx.set_materialize_grads(False)  # else zeros as large as the history, for nobody
    ctx.save_for_backward(plan, *tensors, history, used, error)
    ctx.settings = tolerance, gradient, largest


def _backward(ctx, grad_plan, *_):
    if grad_plan is None:
        return (None,) * 11
    plan, *tensors, history, used, error = ctx.saved_tensors
    d_scores, d_extra, d_bin = sinkhorn_backward_op(
        grad_plan.contiguous(), plan, *tensors, history, used, error, *ctx.settings
    )
    # Summed over the problems of a model in a fixed order: the same bits on every run.
    return d_scores, None, None, None, d_extra.sum(1), None, d_bin.sum(1), *(None,) * 4


def _no_second(ctx, *grads):
    raise NotImplementedError(
        "the fused transport has first derivatives only: for second ones use backend='reference'"
    )


torch.library.register_autograd("softperm::sinkhorn", _backward, setup_context=_save, lib=_LIBRARY)
torch.library.register_autograd("softperm::sinkhorn_backward", _no_second, lib=_LIBRARY)


@torch.library.register_vmap("softperm::sinkhorn", lib=_LIBRARY)
def _(
    info, in_dims, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    iterations, tolerance, gradient, largest,
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
        bin_score.flatten(0, 1), iterations, tolerance, gradient, largest,
    )  # fmt: skip
    plan, *others = outputs
    others = [t.unflatten(0, (size, inner)) for t in others]
    return (plan.unflatten(0, (size, v)), *others), (0, 0, 0, 0)
