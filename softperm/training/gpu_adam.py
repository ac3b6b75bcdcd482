"""Adam's update of many models on the GPU, in Triton: each number is moved once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from softperm.jit import gpu_kernel

BLOCK = 1024
LARGE = 4096  # columns that are worth a launch of their own, rather than a copy


@gpu_kernel(do_not_specialize=["K"])
def _adam_kernel(
    parameter, mean, square, gradient, active, size, root, stride, K,
    BETA1: tl.constexpr, BETA2: tl.constexpr, DECAY: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (m, j): the j-th block of model m's parameters."""
    m = tl.program_id(0)
    if tl.load(active + m):
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = k < K
        place = m.to(tl.int64) * stride + k
        p = tl.load(parameter + place, inside)
        g = tl.load(gradient + m.to(tl.int64) * K + k, inside) + DECAY * p
        average = tl.load(mean + place, inside)
        average += (1 - BETA1) * (g - average)
        power = BETA2 * tl.load(square + place, inside) + (1 - BETA2) * g * g
        change = tl.load(size + m) * average / (tl.sqrt(power) / tl.load(root + m) + EPS)
        tl.store(mean + place, average, inside)
        tl.store(square + place, power, inside)
        tl.store(parameter + place, p - change, inside)


def update(
    parameter: Tensor,
    mean: Tensor,
    square: Tensor,
    gradients: Iterable[Tensor],
    active: Tensor,
    size: Tensor,
    root: Tensor,
    beta1: float,
    beta2: float,
    decay: float,
    eps: float,
) -> None:
    """Updates parameters and moments (M, K) in place, given the gradient in blocks of columns."""
    begin = 0
    for gradient in _joined(gradients):
        models, count = gradient.shape
        _adam_kernel[(models, triton.cdiv(count, BLOCK))](
            *(t[:, begin:] for t in (parameter, mean, square)), gradient.contiguous(),
            active, size, root, parameter.stride(0), count,
            BETA1=beta1, BETA2=beta2, DECAY=decay, EPS=eps, BLOCK=BLOCK,
        )  # fmt: skip
        begin += count


def _joined(blocks: Iterable[Tensor]) -> Iterator[Tensor]:
    """The same columns in fewer blocks: small ones beside each other become one."""
    small: list[Tensor] = []
    for block in blocks:
        if block.shape[1] < LARGE:
            small.append(block)
            continue
        if small:
            yield torch.cat(small, dim=1)
            small = []
        yield block
    if small:
        yield torch.cat(small, dim=1)
