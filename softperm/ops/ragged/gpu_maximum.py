"""Largest values over neighbours and over graphs on the GPU, in Triton, without atomics."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from softperm.ops.ragged.gpu import block

ROWS = 16  # that one step of a program reads


@triton.jit
def _maximum_kernel(
    x, begin, end, source, out, ties, F, ROWS: tl.constexpr, BF: tl.constexpr
):  # fmt: skip
    """Program (r, f): the largest of the rows that reach r, and how many of them are that large."""
    r = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    first, last = tl.load(begin + r), tl.load(end + r)
    most = tl.full((BF,), float("-inf"), dtype=out.dtype.element_ty)
    count = tl.zeros((BF,), dtype=out.dtype.element_ty)
    wrong = tl.zeros((BF,), dtype=tl.int32)
    for start in range(first, last, ROWS):
        e = start + tl.arange(0, ROWS)
        row = tl.load(source + e, e < last, other=0)
        inside = (e < last)[:, None] & (f[None, :] < F)
        values = tl.load(x + row[:, None] * F + f[None, :], inside, other=float("-inf"))
        wrong |= tl.max((values != values).to(tl.int32), axis=0)  # NaN, which a maximum skips
        here = tl.maximum(most, tl.max(values, axis=0))
        as_large = tl.where(inside & (values == here[None, :]), 1.0, 0.0)
        count = tl.where(here == most, count, 0.0) + tl.sum(as_large, axis=0)
        most = here
    most = tl.where(wrong != 0, float("nan"), most)
    tl.store(out + r * F + f, tl.where(first < last, most, 0.0), f < F)
    tl.store(ties + r * F + f, count, f < F)


@triton.jit
def _maximum_backward_kernel(
    share, x, out, begin, end, target, d_x, F, ROWS: tl.constexpr, BF: tl.constexpr
):  # fmt: skip
    """Program (v, f): what comes back to row v from where it is among the largest."""
    v = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    first, last = tl.load(begin + v), tl.load(end + v)
    own = tl.load(x + v * F + f, f < F, other=0.0)
    total = tl.zeros((BF,), dtype=d_x.dtype.element_ty)
    for start in range(first, last, ROWS):
        e = start + tl.arange(0, ROWS)
        row = tl.load(target + e, e < last, other=0)
        inside = (e < last)[:, None] & (f[None, :] < F)
        place = row[:, None] * F + f[None, :]
        most = tl.load(out + place, inside, other=0.0)
        given = tl.load(share + place, inside, other=0.0)
        total += tl.sum(tl.where(inside & (most == own[None, :]), given, 0.0), axis=0)
    tl.store(d_x + v * F + f, total, f < F)


def maximum(x: Tensor, begin: Tensor, end: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`softperm.ops.ragged.maximum.maximum_op`."""
    features = x.shape[1]
    out = x.new_empty(len(begin), features)
    ties = torch.empty_like(out)
    columns = block(features, 128)
    if out.numel():
        _maximum_kernel[(len(out), triton.cdiv(features, columns))](
            x.contiguous(), begin.contiguous(), end.contiguous(), source.contiguous(), out, ties,
            features, ROWS=ROWS, BF=columns, num_warps=1,
        )  # fmt: skip
    return out, ties


def maximum_backward(
    share: Tensor, x: Tensor, out: Tensor, begin: Tensor, end: Tensor, target: Tensor
) -> Tensor:
    """See :func:`softperm.ops.ragged.maximum.maximum_backward_op`."""
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    features = x.shape[1]
    columns = block(features, 128)
    if d_x.numel():
        _maximum_backward_kernel[(len(x), triton.cdiv(features, columns))](
            share.contiguous(), x.contiguous(), out.contiguous(), begin.contiguous(),
            end.contiguous(), target.contiguous(), d_x, features,
            ROWS=ROWS, BF=columns, num_warps=1,
        )  # fmt: skip
    return d_x
