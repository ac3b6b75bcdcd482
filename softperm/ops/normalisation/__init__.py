"""Batch normalisation over the real vertices of a batch, for one model or many side by side."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.ops.ragged.operators import stacked


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
            running = self.running_mean, self.running_var
            given = [t[None] for t in (x, self.weight, self.bias, count, *running)]
            y, _, _, *learnt = normalise_op(*given, self.eps, self.relu, self.momentum)
            with torch.no_grad():
                for old, new in zip(running, learnt, strict=True):
                    old.copy_(new.squeeze(0))
            return y.squeeze(0)
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
        weight = self.momentum * (count > 0).to(var.dtype)
        self.running_mean.add_(weight * (mean - self.running_mean))
        self.running_var.add_(weight * (unbiased - self.running_var))


def _has_kernels(x: Tensor, weight: Tensor) -> bool:
    """Whether the operators below are for it; mixed precision is left to torch."""
    return x.is_cuda and x.dtype == weight.dtype


@torch.library.custom_op("softperm::normalise", mutates_args=())
def normalise_op(
    x: Tensor, weight: Tensor, bias: Tensor, count: Tensor, running_mean: Tensor,
    running_var: Tensor, eps: float, relu: bool, momentum: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(M, V, H), of the others (M, H) or (M,) -> rows (M, V, H), four statistics (M, H).

    The means and variances of each model's first ``count`` rows, and the running ones with these
    taken in; they carry no gradient of their own.
    """
    from softperm.ops.normalisation.gpu import normalise  # needs Triton

    return normalise(x, weight, bias, count, running_mean, running_var, eps, relu, momentum)


@torch.library.custom_op("softperm::normalise_backward", mutates_args=())
def normalise_backward_op(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, count: Tensor, mean: Tensor,
    var: Tensor, eps: float, relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of rows, weight and bias, of their shapes."""
    from softperm.ops.normalisation.gpu import normalise_backward

    return normalise_backward(grad, x, weight, bias, count, mean, var, eps, relu)


@normalise_op.register_fake
def _(x, weight, bias, count, running_mean, running_var, eps, relu, momentum):
    return tuple(t.new_empty(t.shape) for t in (x, *[weight] * 4))


@normalise_backward_op.register_fake
def _(grad, x, weight, bias, count, mean, var, eps, relu):
    return tuple(t.new_empty(t.shape) for t in (x, weight, weight))


def _save(ctx, inputs, output):
    *tensors, _, _, ctx.eps, ctx.relu, _ = inputs
    ctx.save_for_backward(*tensors, *output[1:3])
    ctx.set_materialize_grads(False)  # statistics have none: no zeros for them


def _backward(ctx, grad, *of_statistics):
    if grad is None:
        return (None,) * 9
    made = normalise_backward_op(grad, *ctx.saved_tensors, ctx.eps, ctx.relu)
    return *made, *[None] * 6


normalise_op.register_autograd(_backward, setup_context=_save)
normalise_op.register_vmap(stacked(normalise_op))
normalise_backward_op.register_vmap(stacked(normalise_backward_op))
