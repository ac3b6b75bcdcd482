"""Small modules that several systems share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.ops.linear import Linear
from softperm.ops.normalisation import VertexBatchNorm


class Dropout(nn.Module):
    """Dropout whose randomness is part of the module: a function of its seed and its steps.

    Torch's dropout draws from a global generator, so that a model trained beside others, or
    resumed, would see other zeros than alone. Here entry (i, j) of step t is dropped when a hash
    of (seed, t, i, j) falls below the rate; rate, seed and step are buffers, which travel with the
    weights and may differ between models trained side by side. An empty batch is no step.

    Args:
        rate: probability with which an entry is dropped; the others grow by 1 / (1 − rate).
    """

    rate: Tensor
    seed: Tensor
    step: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1; got {rate}")
        self.register_buffer("rate", torch.tensor(rate))
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x: Float[Tensor, "K F"], count: Int[Tensor, ""]) -> Float[Tensor, "K F"]:
        """Drops entries while training; ``count`` is the number of real vertices of the batch."""
        if not self.training:
            return x
        row = torch.arange(x.shape[0], device=x.device)[:, None]
        column = torch.arange(x.shape[1], device=x.device)
        drawn = _hash(_hash(_hash(self.seed + self.step * 0x9E3779B9) + row) + column)  # (K, F)
        self.step.add_(count > 0)
        return torch.where(drawn < self.rate * 2**32, 0.0, x / (1 - self.rate))


def _hash(value: Int[Tensor, ...]) -> Int[Tensor, ...]:
    """Mixes whole numbers into uniform ones of 32 bits (Wellons' lowbias32)."""
    value = value & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return value ^ (value >> 16)


class VertexMLP(nn.Module):
    """Linear, batch normalisation over real vertices, ReLU; as often as there are layers.

    Args:
        sizes: of input, hidden layers and output.
        plain_last: whether the last layer is linear alone.
    """

    def __init__(self, sizes: Sequence[int], plain_last: bool = False) -> None:
        super().__init__()
        self.linears = nn.ModuleList(Linear(a, b) for a, b in pairwise(sizes))
        normalised = sizes[1:-1] if plain_last else sizes[1:]
        self.norms = nn.ModuleList(VertexBatchNorm(size, relu=True) for size in normalised)

    def forward(self, x: Float[Tensor, "V F"], count: Int[Tensor, ""]) -> Float[Tensor, "V H"]:
        """The vectors of all rows, normalised with the statistics of the first ``count``."""
        for k, linear in enumerate(self.linears):
            x = linear(x)
            if k < len(self.norms):
                x = self.norms[k](x, count)
        return x
