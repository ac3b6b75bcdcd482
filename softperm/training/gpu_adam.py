"""Adam's update of many models on the GPU, in Triton: one launch, each number moved once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _adam_kernel(
    parameter, gradient, mean, square, active, size, root, K,
    BETA1: tl.constexpr, BETA2: tl.constexpr, DECAY: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (m, j): the j-th block of model m's parameters."""
    m = tl.program_id(0)
    if tl.load(active + m):
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = k < K
        place = m.to(tl.int64) * K + k
        p = tl.load(parameter + place, inside)
        g = tl.load(gradient + place, inside) + DECAY * p
        average = tl.load(mean + place, inside)
        average += (1 - BETA1) * (g - average)
        power = BETA2 * tl.load(square + place, inside) + (1 - BETA2) * g * g
        change = tl.load(size + m) * average / (tl.sqrt(power) / tl.load(root + m) + EPS)
        tl.store(mean + place, average, inside)
        tl.store(square + place, power, inside)
        tl.store(parameter + place, p - change, inside)


def update(
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    active: Tensor,
    size: Tensor,
    root: Tensor,
    beta1: float,
    beta2: float,
    decay: float,
    eps: float,
) -> None:
    """Updates parameters and moments (M, K) in place; see ``StackedAdam``."""
    models, count = parameter.shape
    _adam_kernel[(models, triton.cdiv(count, BLOCK))](
        parameter, gradient, mean, square, active, size.contiguous(), root.contiguous(), count,
        BETA1=beta1, BETA2=beta2, DECAY=decay, EPS=eps, BLOCK=BLOCK,
    )  # fmt: skip
