"""Batch normalisation over the real vertices of a batch, for one model or for many at once."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.ops.operators import deferred, over_models, register


class VertexBatchNorm(nn.Module):
    """Batch normalisation over the real vertices of a batch only.

    Args:
        features: size of each vertex's vector.
        momentum: weight of the newest batch in the running statistics.
        eps: added to the variance.
        relu: whether negative results become 0.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, features: int, momentum: float = 0.1, eps: float = 1e-5, *, relu: bool = False
    ) -> None:
        super().__init__()
        self.momentum, self.eps, self.relu = momentum, eps, relu
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, x: Float[Tensor, "V H"], count: Int[Tensor, ""]) -> Float[Tensor, "V H"]:
        """Normalises all rows with the statistics of the first ``count``."""
        if not self.training:
            return self._scaled(x - self.running_mean, self.running_var)
        if _has_kernels(x, self.weight):
            running = self.running_mean, self.running_var
            tensors = [t[None] for t in (x, self.weight, self.bias, count, *running)]
            y, _, _, *updated = normalise_op(*tensors, self.eps, self.relu, self.momentum)
            with torch.no_grad():
                for old, new in zip(running, updated, strict=True):
                    old.copy_(new.squeeze(0))
            return y.squeeze(0)
        real = (torch.arange(len(x), device=x.device) < count).to(x.dtype)[:, None]  # (V, 1)
        total = count.clamp(min=1).to(x.dtype)
        mean = (x * real).sum(0) / total
        centred = x - mean  # (V, H)
        var = (centred.square() * real).sum(0) / total
        self._update_running(mean, var, count)
        return self._scaled(centred, var)

    def _scaled(self, centred: Float[Tensor, "V H"], var: Float[Tensor, " H"]) -> Tensor:
        y = torch.addcmul(self.bias, centred, torch.rsqrt(var + self.eps) * self.weight)
        return torch.relu(y) if self.relu else y

    @torch.no_grad()
    def _update_running(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Updates the running statistics with those of a batch; an empty batch changes nothing."""
        total = count.to(var.dtype)
        unbiased = var * (total / (total - 1).clamp(min=1))
        weight = self.momentum * (count > 0).to(var.dtype)
        self.running_mean.add_(weight * (mean - self.running_mean))
        self.running_var.add_(weight * (unbiased - self.running_var))


def _has_kernels(x: Tensor, weight: Tensor) -> bool:
    """Whether the operators below are used; mixed precision is left to torch."""
    return x.is_cuda and x.dtype == weight.dtype


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, _, _, ctx.eps, ctx.relu, _ = inputs
    ctx.save_for_backward(*tensors, *output[1:3])
    ctx.set_materialize_grads(False)  # no zeros for the statistics, which have no gradient


def _backward(ctx: Any, grad: Tensor | None, *of_statistics: Tensor | None) -> tuple:
    if grad is None:
        return (None,) * 9
    gradients = normalise_backward_op(grad, *ctx.saved_tensors, ctx.eps, ctx.relu)
    return *gradients, *[None] * 6


normalise_op = register(
    "normalise(Tensor x, Tensor weight, Tensor bias, Tensor count, Tensor running_mean, "
    "Tensor running_var, float eps, bool relu, float momentum) -> "
    "(Tensor y, Tensor mean, Tensor var, Tensor new_running_mean, Tensor new_running_var)",
    fake=lambda x, weight, *_: tuple(t.new_empty(t.shape) for t in (x, *[weight] * 4)),
    reference=deferred("softperm.ops.normalisation.gpu", "normalise"),
    save=_save,
    backward=_backward,
    vmap=over_models,
)
"""(M, V, H), of the others (M, H) or (M,) -> rows (M, V, H), four statistics (M, H).

The mean and variance of each model's first ``count`` rows, and the updated running statistics;
statistics receive no gradient.
"""

normalise_backward_op = register(
    "normalise_backward(Tensor grad, Tensor x, Tensor weight, Tensor bias, Tensor count, "
    "Tensor mean, Tensor var, float eps, bool relu) -> "
    "(Tensor d_x, Tensor d_weight, Tensor d_bias)",
    fake=lambda grad, x, weight, *_: tuple(t.new_empty(t.shape) for t in (x, weight, weight)),
    reference=deferred("softperm.ops.normalisation.gpu", "normalise_backward"),
)
"""The gradients of rows, weight and bias, in their shapes."""
