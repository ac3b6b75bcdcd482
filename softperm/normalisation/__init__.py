"""Batch normalisation over the real vertices of a batch, for one model or many side by side."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.ragged.operators import to_front


class VertexBatchNorm(nn.Module):
    """Batch normalisation over the real vertices of a batch only.

    Args:
        features: size of each vertex's vector.
        momentum: weight of the newest batch in the running statistics.
        eps: added to the variance.
        relu: whether what is negative afterwards becomes 0.
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
            given = x[None], self.weight[None], self.bias[None], count[None]
            y, mean, var = normalise_op(*given, self.eps, self.relu)
            self._learn(mean[0], var[0], count)
            return y[0]
        real = (torch.arange(len(x), device=x.device) < count).to(x.dtype)[:, None]  # (V, 1)
        total = count.clamp(min=1).to(x.dtype)
        mean = (x * real).sum(0) / total
        centred = x - mean  # (V, H)
        var = (centred.square() * real).sum(0) / total
        self._learn(mean, var, count)
        return self._scaled(centred, var)

    def _scaled(self, centred: Float[Tensor, "V H"], var: Float[Tensor, " H"]) -> Tensor:
        y = torch.addcmul(self.bias, centred, torch.rsqrt(var + self.eps) * self.weight)
        return torch.relu(y) if self.relu else y

    @torch.no_grad()
    def _learn(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Takes the statistics of a batch into the running ones; an empty batch teaches nothing."""
        total = count.to(var.dtype)
        unbiased = var * (total / (total - 1).clamp(min=1))
        weight = self.momentum * (count > 0)
        self.running_mean.add_(weight * (mean - self.running_mean))
        self.running_var.add_(weight * (unbiased - self.running_var))


def _has_kernels(x: Tensor, weight: Tensor) -> bool:
    """Whether the operators below are for it; mixed precision is left to torch."""
    return x.is_cuda and x.dtype == weight.dtype


@torch.library.custom_op("softperm::normalise", mutates_args=())
def normalise_op(
    x: Tensor, weight: Tensor, bias: Tensor, count: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(M, V, H), (M, H), (M, H), (M,) -> normalised rows, means (M, H) and variances (M, H).

    Statistics are those of each model's first ``count`` rows and carry no gradient of their own.
    """
    from softperm.normalisation.gpu import normalise  # needs Triton

    return normalise(x, weight, bias, count, eps, relu)


@torch.library.custom_op("softperm::normalise_backward", mutates_args=())
def normalise_backward_op(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, count: Tensor, mean: Tensor,
    var: Tensor, eps: float, relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of rows, weight and bias, of their shapes."""
    from softperm.normalisation.gpu import normalise_backward

    return normalise_backward(grad, x, weight, bias, count, mean, var, eps, relu)


@normalise_op.register_fake
def _(x, weight, bias, count, eps, relu):
    return tuple(t.new_empty(t.shape) for t in (x, weight, weight))


@normalise_backward_op.register_fake
def _(grad, x, weight, bias, count, mean, var, eps, relu):
    return tuple(t.new_empty(t.shape) for t in (x, weight, weight))


def _save(ctx, inputs, output):
    *tensors, ctx.eps, ctx.relu = inputs
    ctx.save_for_backward(*tensors, *output[1:])


def _backward(ctx, grad, *of_statistics):
    made = normalise_backward_op(grad, *ctx.saved_tensors, ctx.eps, ctx.relu)
    return *made, None, None, None


normalise_op.register_autograd(_backward, setup_context=_save)


def _stacked(op):
    """The rule that makes one call of many: models of models are models."""

    def rule(info, in_dims, *arguments):
        *tensors, eps, relu = arguments
        front = list(to_front(info, in_dims[:-2], *tensors))
        made = op(*(t.flatten(0, 1) for t in front), eps, relu)
        return tuple(t.unflatten(0, front[0].shape[:2]) for t in made), (0, 0, 0)

    return rule


normalise_op.register_vmap(_stacked(normalise_op))
normalise_backward_op.register_vmap(_stacked(normalise_backward_op))
