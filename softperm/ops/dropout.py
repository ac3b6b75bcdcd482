"""Dropout whose units are a function of a seed, the number of a step and the place of a unit.

So a network drops the same units alone and in a stack of many, before and after an interruption, on
every device, and in a CUDA graph. Torch's own dropout draws from a generator that all share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.jit import inner, kernel
from softperm.ops.operators import over_models, register
from softperm.parallel import over_ranges

BLOCK = 1 << 12  # units that a thread takes at a time
_LOW_32 = 0xFFFFFFFF


def drop(
    x: Float[Tensor, "*axes"], p: float, seed: Int[Tensor, ""], step: Int[Tensor, ""]
) -> Float[Tensor, "*axes"]:
    r"""Sets a share p of the units to 0 and scales the others by :math:`1 / (1 - p)`."""
    key = mix(mix(step) ^ seed)  # not the step itself, which changes before the gradient
    return drop_op(x.reshape(1, -1), key.view(1), p).view(x.shape)


def mix(value: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
    """A bijection of the lowest 32 bits that spreads every bit (Wellons' lowbias32)."""
    value = value & _LOW_32
    value = ((value ^ (value >> 16)) * 0x7FEB352D) & _LOW_32
    value = ((value ^ (value >> 15)) * 0x846CA68B) & _LOW_32
    return value ^ (value >> 16)


def _threshold(p: float) -> int:
    """The hash below which a unit is dropped."""
    return int(p * 2**32)


def _drop_reference(x: Tensor, key: Tensor, p: float) -> Tensor:
    key = key[:, None]  # (M, 1)
    place = torch.arange(x.shape[1], device=x.device)  # (K,)
    kept = mix(mix(place + key) ^ key) >= _threshold(p)  # (M, K)
    return torch.where(kept, x / (1 - p), 0)


def _drop_cpu(x: Tensor, key: Tensor, p: float) -> Tensor:
    if x.dtype not in (torch.float32, torch.float64):
        return _drop_reference(x, key, p)
    rows, keys = x.detach().contiguous().numpy(), key.numpy().astype(np.uint32)
    out = np.empty_like(rows)
    numbers = np.uint32(_threshold(p)), rows.dtype.type(1 - p)
    blocks = len(rows) * -(-rows.shape[1] // BLOCK)
    over_ranges(_drop_blocks, blocks, 4 * rows.size, rows, keys, *numbers, out)
    return torch.from_numpy(out)


@inner
def _mix(value):
    value = np.uint32((value ^ (value >> np.uint32(16))) * np.uint32(0x7FEB352D))
    value = np.uint32((value ^ (value >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(value ^ (value >> np.uint32(16)))


@kernel(error_model="numpy")
def _drop_blocks(x, keys, threshold, share, out, first, last):
    units = x.shape[1]
    blocks = -(-units // BLOCK)  # of one model
    for block in range(first, last):
        m, begin = block // blocks, block % blocks * BLOCK
        key = keys[m]
        for i in range(begin, min(begin + BLOCK, units)):
            number = _mix(np.uint32(_mix(np.uint32(np.uint32(i) + key)) ^ key))
            out[m, i] = x[m, i] / share if number >= threshold else x.dtype.type(0)


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    _, key, ctx.p = inputs
    ctx.save_for_backward(key)


def _backward(ctx: Any, grad: Tensor) -> tuple:
    return drop_op(grad, *ctx.saved_tensors, ctx.p), None, None


drop_op = register(
    "drop(Tensor x, Tensor key, float p) -> Tensor",
    fake=lambda x, key, p: torch.empty_like(x),
    reference=_drop_reference,
    cpu=_drop_cpu,
    save=_save,
    backward=_backward,
    vmap=over_models,
)
"""(M, K), (M,) -> (M, K): the units that remain, of M models with a key each."""
