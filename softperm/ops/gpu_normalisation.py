"""Batch normalisation of many models on the GPU, in Triton: two launches forward, two backward.

The rows of a model are divided into shares. Every program that needs a sum over all rows adds the
sums of the shares in the same order: no atomics, the same bits on every run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from softperm.jit import gpu_kernel
from softperm.ops.ragged.gpu import block

ROWS = 32  # rows that one step of a program reads
SHARE = 128  # rows in a share, unless that makes more than MOST_SHARES
MOST_SHARES = 32


@gpu_kernel(do_not_specialize=["V", "shares"], do_not_specialize_on_alignment=["count"])
def _moments_kernel(
    x, count, rows, mean, power, V, H, shares, ROWS: tl.constexpr, BH: tl.constexpr
):  # fmt: skip
    """Program (m · shares + s, h): mean and squared deviations of the s-th share of real rows."""
    m, s = tl.program_id(0) // shares, tl.program_id(0) % shares
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    last = tl.minimum(tl.load(count + m), V).to(tl.int32)
    base = x + m.to(tl.int64) * V * H
    kind = mean.dtype.element_ty
    seen = tl.zeros((1,), dtype=kind)
    average = tl.zeros((BH,), dtype=kind)
    squares = tl.zeros((BH,), dtype=kind)
    for start in range(s * ROWS, last, shares * ROWS):
        v = start + tl.arange(0, ROWS).to(tl.int64)
        inside = (v[:, None] < last) & (h[None, :] < H)
        values = tl.load(base + v[:, None] * H + h[None, :], inside, other=0.0)
        here = tl.minimum(last - start, ROWS).to(kind)
        middle = tl.sum(values, axis=0) / here
        apart = tl.where(inside, values - middle[None, :], 0.0)
        step = middle - average
        share = here / (seen + here)
        squares += tl.sum(apart * apart, axis=0) + step * step * seen * share
        average += step * share
        seen += here
    place = (m * shares + s) * H + h
    tl.store(mean + place, average, h < H)
    tl.store(power + place, squares, h < H)
    tl.store(rows + m * shares + s + tl.arange(0, 1), seen)


@gpu_kernel(do_not_specialize=["V", "shares"])
def _normalise_kernel(
    x, weight, bias, running_mean, running_var, rows, means, powers, y, mean, var,
    new_mean, new_var, V, H, shares,
    EPS: tl.constexpr, RELU: tl.constexpr, MOMENTUM: tl.constexpr,
    ROWS: tl.constexpr, BH: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Program (m · blocks + k, h): the k-th block of rows, with the moments of all shares."""
    m, k = tl.program_id(0) // tl.cdiv(V, ROWS), tl.program_id(0) % tl.cdiv(V, ROWS)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    s = m * shares + tl.arange(0, SHARES)
    there = tl.arange(0, SHARES) < shares
    filled = there[:, None] & (h[None, :] < H)
    n = tl.load(rows + s, there, other=0.0)
    parts = tl.load(means + s[:, None] * H + h[None, :], filled, other=0.0)
    squares = tl.load(powers + s[:, None] * H + h[None, :], filled, other=0.0)
    count = tl.sum(n, axis=0)
    total = tl.maximum(count, 1.0)
    middle = tl.sum(parts * n[:, None], axis=0) / total
    apart = parts - middle[None, :]
    spread = (tl.sum(squares, axis=0) + tl.sum(n[:, None] * apart * apart, axis=0)) / total
    if k == 0:
        at = m * H + h
        tl.store(mean + at, middle, h < H)
        tl.store(var + at, spread, h < H)
        rate = tl.full((1,), MOMENTUM, count.dtype)  # a bare number would be a float32
        rate *= (count > 0).to(count.dtype)  # an empty batch changes nothing
        old = tl.load(running_mean + at, h < H, other=0.0)
        tl.store(new_mean + at, old + rate * (middle - old), h < H)
        old = tl.load(running_var + at, h < H, other=0.0)
        unbiased = spread * (count / tl.maximum(count - 1, 1.0))
        tl.store(new_var + at, old + rate * (unbiased - old), h < H)
    scale = tl.load(weight + m * H + h, h < H, other=0.0) / tl.sqrt(spread + EPS)
    shift = tl.load(bias + m * H + h, h < H, other=0.0)
    v = k.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (v[:, None] < V) & (h[None, :] < H)
    place = m.to(tl.int64) * V * H + v[:, None] * H + h[None, :]
    values = tl.load(x + place, inside, other=0.0)
    result = (values - middle[None, :]) * scale[None, :] + shift[None, :]
    if RELU:
        result = tl.where(result < 0, 0.0, result)  # NaN stays
    tl.store(y + place, result, inside)


@gpu_kernel
def _reaching(
    grad, x, place, inside, middle, inverse, weight, shift, RELU: tl.constexpr
):  # fmt: skip
    """The gradient that reaches the normalised values, and those values before weight and bias."""
    g = tl.load(grad + place, inside, other=0.0)
    unit = (tl.load(x + place, inside, other=0.0) - middle[None, :]) * inverse[None, :]
    if RELU:
        g = tl.where(unit * weight[None, :] + shift[None, :] > 0, g, 0.0)
    return g, unit


@gpu_kernel(do_not_specialize=["V", "shares"])
def _sums_kernel(
    grad, x, weight, bias, mean, var, d_weight, d_bias, V, H, shares,
    EPS: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Program (m · shares + s, h): the s-th share's part of the gradients of weight and bias."""
    m, s = tl.program_id(0) // shares, tl.program_id(0) % shares
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    there = h < H
    middle = tl.load(mean + m * H + h, there, other=0.0)
    inverse = 1.0 / tl.sqrt(tl.load(var + m * H + h, there, other=0.0) + EPS)
    w = tl.load(weight + m * H + h, there, other=0.0)
    shift = tl.load(bias + m * H + h, there, other=0.0)
    of_weight = tl.zeros((BH,), dtype=d_weight.dtype.element_ty)
    of_bias = tl.zeros((BH,), dtype=d_weight.dtype.element_ty)
    for start in range(s * ROWS, V, shares * ROWS):
        v = start + tl.arange(0, ROWS).to(tl.int64)
        inside = (v[:, None] < V) & there[None, :]
        place = m.to(tl.int64) * V * H + v[:, None] * H + h[None, :]
        g, unit = _reaching(grad, x, place, inside, middle, inverse, w, shift, RELU)
        of_weight += tl.sum(tl.where(inside, g * unit, 0.0), axis=0)
        of_bias += tl.sum(g, axis=0)
    tl.store(d_weight + (m * shares + s) * H + h, of_weight, there)
    tl.store(d_bias + (m * shares + s) * H + h, of_bias, there)


@gpu_kernel(do_not_specialize=["V", "shares"], do_not_specialize_on_alignment=["count"])
def _backward_kernel(
    grad, x, weight, bias, mean, var, count, weights, biases, d_x, d_weight, d_bias,
    V, H, shares,
    EPS: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, BH: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Program (m · blocks + k, h): the gradient of the k-th block of model m's rows."""
    m, k = tl.program_id(0) // tl.cdiv(V, ROWS), tl.program_id(0) % tl.cdiv(V, ROWS)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    there = h < H
    s = m * shares + tl.arange(0, SHARES)
    filled = (tl.arange(0, SHARES) < shares)[:, None] & there[None, :]
    of_weight = tl.sum(tl.load(weights + s[:, None] * H + h[None, :], filled, other=0.0), axis=0)
    of_bias = tl.sum(tl.load(biases + s[:, None] * H + h[None, :], filled, other=0.0), axis=0)
    if k == 0:
        tl.store(d_weight + m * H + h, of_weight, there)
        tl.store(d_bias + m * H + h, of_bias, there)
    last = tl.minimum(tl.load(count + m), V)
    total = tl.maximum(last, 1).to(of_bias.dtype)
    middle = tl.load(mean + m * H + h, there, other=0.0)
    inverse = 1.0 / tl.sqrt(tl.load(var + m * H + h, there, other=0.0) + EPS)
    w = tl.load(weight + m * H + h, there, other=0.0)
    shift = tl.load(bias + m * H + h, there, other=0.0)
    v = k.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (v[:, None] < V) & there[None, :]
    place = m.to(tl.int64) * V * H + v[:, None] * H + h[None, :]
    g, unit = _reaching(grad, x, place, inside, middle, inverse, w, shift, RELU)
    through = (of_bias[None, :] + unit * of_weight[None, :]) / total  # mean and variance
    g -= tl.where(v[:, None] < last, through, 0.0)
    tl.store(d_x + place, g * (w * inverse)[None, :], inside)


def _layout(x: Tensor) -> tuple[int, int, int, dict[str, int]]:
    """Number of rows V, of columns H, of shares of rows, and the sizes of blocks."""
    _, v, h = x.shape
    shares = min(MOST_SHARES, triton.next_power_of_2(max(1, triton.cdiv(v, SHARE))))
    return v, h, shares, {"ROWS": ROWS, "BH": block(h, 64)}


def normalise(
    x: Tensor, weight: Tensor, bias: Tensor, count: Tensor, running_mean: Tensor,
    running_var: Tensor, eps: float, relu: bool, momentum: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """See :data:`softperm.ops.layers.normalise_op`."""
    if not x.numel():
        zeros = torch.zeros_like(weight)
        return x.clone(), zeros, zeros.clone(), running_mean.clone(), running_var.clone()
    x, count = x.contiguous(), count.contiguous()
    models, (v, h, shares, blocks) = len(x), _layout(x)
    columns = triton.cdiv(h, blocks["BH"])
    rows, (means, powers) = x.new_empty(models, shares), x.new_empty(2, models, shares, h)
    y, statistics = torch.empty_like(x), [x.new_empty(models, h) for _ in range(4)]
    _moments_kernel[(models * shares, columns)](
        x, count, rows, means, powers, v, h, shares, **blocks
    )
    _normalise_kernel[(models * triton.cdiv(v, ROWS), columns)](
        x, *(t.contiguous() for t in (weight, bias, running_mean, running_var)),
        rows, means, powers, y, *statistics, v, h, shares,
        EPS=eps, RELU=relu, MOMENTUM=momentum, SHARES=shares, **blocks,
    )  # fmt: skip
    return y, *statistics


def normalise_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, count: Tensor, mean: Tensor,
    var: Tensor, eps: float, relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """See :data:`softperm.ops.layers.normalise_backward_op`."""
    if not x.numel():
        return x.clone(), torch.zeros_like(weight), torch.zeros_like(bias)
    x, grad, count = x.contiguous(), grad.contiguous(), count.contiguous()
    models, (v, h, shares, blocks) = len(x), _layout(x)
    columns = triton.cdiv(h, blocks["BH"])
    weights, biases = x.new_empty(2, models, shares, h)
    d_x, d_weight, d_bias = torch.empty_like(x), x.new_empty(models, h), x.new_empty(models, h)
    inputs = grad, x, *(t.contiguous() for t in (weight, bias, mean, var))
    _sums_kernel[(models * shares, columns)](
        *inputs, weights, biases, v, h, shares, EPS=eps, RELU=relu, **blocks
    )
    _backward_kernel[(models * triton.cdiv(v, ROWS), columns)](
        *inputs, count, weights, biases, d_x, d_weight, d_bias, v, h, shares,
        EPS=eps, RELU=relu, SHARES=shares, **blocks,
    )  # fmt: skip
    return d_x, d_weight, d_bias
