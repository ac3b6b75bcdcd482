"""Linear layers and batch normalisation over vertices, for one model or for many at once.

``torch.nn.functional.linear`` mapped over models with ``torch.vmap`` becomes a product, a scaling
of the bias and a sum, and its gradient of the weights is transposed. Here M models take one batched
product forward and two backward, and every gradient has the memory layout of its parameter.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from softperm.ops.operators import deferred, mapped_axis_first, over_models, register

SHARE = 64
"""Rows of the input that one part of the weights' gradient sums over on a GPU.

There are many vertices and few weights: a batched product would use a small part of the GPU. The
rows are divided if their number is a multiple of this, as it is in stacked training.
"""


def linear(
    x: Float[Tensor, "V I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "V O"]:
    """X Wᵀ + b. Under ``torch.vmap`` all three may belong to one of many models."""
    if not _launches_shared(x):
        return nn.functional.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return]


def _launches_shared(x: Tensor) -> bool:
    """Whether many models share launches on a GPU; otherwise torch's own layer is faster.

    Mixed precision is left to torch, whose layer casts its arguments.
    """
    mapped = torch._C._are_functorch_transforms_active()
    return x.is_cuda and mapped and not torch.is_autocast_enabled(x.device.type)


class Linear(nn.Linear):
    """``torch.nn.Linear`` for rows of vectors, by :func:`linear`."""

    def forward(self, input: Float[Tensor, "V I"]) -> Float[Tensor, "V O"]:
        """X Wᵀ + b."""
        return linear(input, self.weight, self.bias)


def vertex_linear(
    x: Float[Tensor, "V I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "V O"]:
    """:func:`linear` for the scores of soft permutations, in float64 on the CPU.

    On the CPU the rounding of a row of a float32 product depends on its position and on the number
    of rows. If all vertices of a graph are identical, LayerNorm after the alignment amplifies this
    to 1e-5 and more, and outputs would depend on the order of vertices and graphs.
    """
    if x.is_cuda or x.dtype != torch.float32:
        return linear(x, weight, bias)
    bias = None if bias is None else bias.double()
    return nn.functional.linear(x.double(), weight.double(), bias).to(x.dtype)


class VertexLinear(Linear):
    """:class:`Linear` by :func:`vertex_linear`."""

    def forward(self, input: Float[Tensor, "V I"]) -> Float[Tensor, "V O"]:
        """X Wᵀ + b."""
        return vertex_linear(input, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    """One model: x (V, I), weight (O, I), bias (O,)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        d_x = grad @ weight if needs[0] else None
        d_weight = weight_gradient(grad, x) if needs[1] else None
        return d_x, d_weight, grad.sum(-2) if needs[2] else None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple:
        tensors = [x, weight] if bias is None else [x, weight, bias]
        stacked = list(mapped_axis_first(info, in_dims[: len(tensors)], tensors))
        return _StackedLinear.apply(*stacked, *[None] * (3 - len(stacked))), 0


class _StackedLinear(_Linear):
    """M models at once: x (M, V, I), weight (M, O, I), bias (M, O)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias[:, None], x, weight.mT)


def weight_gradient(
    grad: Float[Tensor, "*M V O"], x: Float[Tensor, "*M V I"]
) -> Float[Tensor, "*M O I"]:
    """Σ over the rows of each model of their outer products, gradᵀ x."""
    rows = x.shape[-2]
    if x.ndim == 2 or not x.is_cuda or rows < 4 * SHARE or rows % SHARE:
        return grad.mT @ x
    shares = [t.unflatten(1, (-1, SHARE)).flatten(0, 1) for t in (grad, x)]  # (M · S, SHARE, …)
    parts = torch.bmm(shares[0].mT, shares[1])  # (M · S, O, I)
    return parts.unflatten(0, (len(x), -1)).sum(1)


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
        return self.over(x, real, count)

    def over(
        self, x: Float[Tensor, "V H"], real: Float[Tensor, "V 1"], count: Shaped[Tensor, ""]
    ) -> Float[Tensor, "V H"]:
        """Normalises all rows, while training with the statistics of those where ``real`` is 1.

        Args:
            x: the rows.
            real: 1 or 0 for each row.
            count: the sum of ``real``.
        """
        if not self.training:
            return self._scaled(x - self.running_mean, self.running_var)
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
    return (x.is_cuda or x.is_meta) and x.dtype == weight.dtype


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
    reference=deferred("softperm.ops.gpu_normalisation", "normalise"),
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
    reference=deferred("softperm.ops.gpu_normalisation", "normalise_backward"),
)
"""The gradients of rows, weight and bias, in their shapes."""
