"""Linear layers for many models on one GPU, with as few launches as for one model.

``torch.nn.functional.linear`` mapped over models with ``torch.vmap`` becomes a product, a scaling
of the bias and a sum, and its gradient of the weights is transposed. Here M models take one batched
product forward and two backward, and every gradient has the memory layout of its parameter.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softperm.ops.operators import mapped_axis_first

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
