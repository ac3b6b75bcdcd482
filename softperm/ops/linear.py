"""Linear layers that many models on one GPU share: as few launches as one model takes.

``torch.nn.functional.linear`` mapped over models by ``torch.vmap`` becomes a product, a scaling of
the bias and a sum, and leaves the weights' gradient transposed. Here M models take one batched
product forward and two backward, with every gradient as the parameters lie in memory.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

SHARE = 64
"""Rows of the input that one part of the weights' gradient sums over on a GPU.

Vertices are many and weights few: a batched product would leave most of the GPU without work. The
rows are divided where their number allows it; stacked training takes care that it does.
"""


def linear(
    x: Float[Tensor, "V I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "V O"]:
    """X Wᵀ + b. Under ``torch.vmap`` all three may belong to one of many models."""
    if not _launches_shared(x):
        return nn.functional.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return]


def _launches_shared(x: Tensor) -> bool:
    """Whether many models share launches on a GPU; elsewhere torch's own layer costs less.

    Mixed precision is left to torch as well, which casts what its layer multiplies.
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
    """:func:`linear` for what soft permutations are made from.

    On a CPU a float32 product rounds a row by its place and by the number of rows. Where all
    vertices of a graph are alike, LayerNorm behind the alignment turns that into 1e-5 and more, so
    that outputs would depend on the order of vertices and graphs. There it is formed in float64.
    """
    if x.is_cuda or x.dtype != torch.float32:
        return linear(x, weight, bias)
    wide = None if bias is None else bias.double()
    return nn.functional.linear(x.double(), weight.double(), wide).to(x.dtype)


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
        def stacked(tensor: Tensor | None, at: int | None) -> Tensor | None:
            if tensor is None:
                return None
            if at is None:  # shared by all models
                return tensor.expand(info.batch_size, *tensor.shape)
            return tensor.movedim(at, 0)

        arguments = [stacked(t, at) for t, at in zip((x, weight, bias), in_dims, strict=True)]
        return _StackedLinear.apply(*arguments), 0


class _StackedLinear(_Linear):
    """M models side by side: x (M, V, I), weight (M, O, I), bias (M, O)."""

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
