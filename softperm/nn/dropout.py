"""Dropout that depends on a network's own seed and step, not on a random state shared by all.

The units that are dropped are a function of the seed, the number of training steps and the place of
a unit. So a network drops the same units alone and in a stack of many, before and after an
interruption, on every device, and in a CUDA graph, which replays the counting of steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

_LOW_32 = 0xFFFFFFFF


class Dropout(nn.Module):
    r"""Sets a share p of the units to 0 in training and scales the others by :math:`1 / (1 - p)`.

    The network that it is part of counts its training steps: see :func:`count_step`.

    Args:
        p: the share.
    """

    seed: Tensor
    step: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("seed", torch.randint(1 << 32, ()))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """The units that remain; all of them outside training."""
        if not self.training:
            return x
        kept = keep_mask(x.shape, self.p, self.seed, self.step)
        return torch.where(kept, x / (1 - self.p), 0)


def dropout(p: float) -> nn.Module:
    """A :class:`Dropout`, or nothing for p = 0."""
    return Dropout(p) if p else nn.Identity()


@torch.no_grad()
def count_step(modules: Iterable[nn.Module], vertices: Int[Tensor, ""]) -> None:
    """Counts a training step: the next one will drop other units.

    A stack of networks goes on until the last of them has seen its graphs. An empty mini-batch is
    no step, so that a network in a stack drops the units that it would drop alone.

    Args:
        modules: parts of a network; those that are no :class:`Dropout` do not count.
        vertices: number of vertices of the mini-batch.
    """
    for module in modules:
        if isinstance(module, Dropout):
            module.step.add_((vertices > 0).long())


def keep_mask(
    shape: torch.Size, p: float, seed: Int[Tensor, ""], step: Int[Tensor, ""]
) -> Bool[Tensor, "*axes"]:
    """Which units of a tensor remain: all but a share p, chosen by seed, step and place."""
    place = torch.arange(shape.numel(), device=seed.device).view(shape)
    key = _mix(_mix(step & _LOW_32) ^ seed)
    return _mix(_mix((place + key) & _LOW_32) ^ key) >= int(p * 2**32)


def _mix(value: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
    """A bijection of 32-bit numbers, held in 64 bits, that spreads every bit (lowbias32)."""
    value = ((value ^ (value >> 16)) * 0x7FEB352D) & _LOW_32
    value = ((value ^ (value >> 15)) * 0x846CA68B) & _LOW_32
    return value ^ (value >> 16)
