"""The ragged products on the GPU, in Triton: no padding, no atomics, the same bits on every run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # vertices that one step of a program reads


@triton.jit
def _span(ptr, g, B, V):
    """Where graph g = m · B + b begins and ends among the vertices of all models."""
    m = g // B
    begin = m * V
    return begin + tl.load(ptr + g + m), begin + tl.load(ptr + g + m + 1)


@triton.jit
def _pool_kernel(
    left, right, ptr, out, B, V, P, F, splits, graphs,
    ROWS: tl.constexpr, BP: tl.constexpr, BF: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Program (g · splits + s, p, f): a tile of graph g's product, over its s-th share of rows."""
    g, s = tl.program_id(0).to(tl.int64) // splits, tl.program_id(0) % splits
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    f = tl.program_id(2) * BF + tl.arange(0, BF)
    first, last = _span(ptr, g, B, V)
    total = tl.zeros((BP, BF), dtype=out.dtype.element_ty)
    for start in range(first + s * ROWS, last, splits * ROWS):
        v = start + tl.arange(0, ROWS)
        inside = v[:, None] < last
        a = tl.load(left + v[:, None] * P + p[None, :], inside & (p[None, :] < P), other=0.0)
        b = tl.load(right + v[:, None] * F + f[None, :], inside & (f[None, :] < F), other=0.0)
        if DOT:
            total += tl.dot(tl.trans(a), b, input_precision="ieee")
        else:
            total += tl.sum(a[:, :, None] * b[:, None, :], axis=0)
    place = out + ((s * graphs + g) * P + p[:, None]) * F + f[None, :]
    tl.store(place, total, (p[:, None] < P) & (f[None, :] < F))


@triton.jit
def _spread_kernel(
    small, right, ptr, out, B, V, P, F, splits,
    ROWS: tl.constexpr, BP: tl.constexpr, BF: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Program (g · splits + s, p): a block of columns for graph g's s-th share of rows."""
    g, s = tl.program_id(0).to(tl.int64) // splits, tl.program_id(0) % splits
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    first, last = _span(ptr, g, B, V)
    for start in range(first + s * ROWS, last, splits * ROWS):
        v = start + tl.arange(0, ROWS)
        inside = v[:, None] < last
        total = tl.zeros((ROWS, BP), dtype=out.dtype.element_ty)
        for block in range(0, F, BF):
            f = block + tl.arange(0, BF)
            b = tl.load(right + v[:, None] * F + f[None, :], inside & (f[None, :] < F), other=0.0)
            fits = (p[:, None] < P) & (f[None, :] < F)
            m = tl.load(small + (g * P + p[:, None]) * F + f[None, :], fits, other=0.0)
            if DOT:
                total += tl.dot(b, tl.trans(m), input_precision="ieee")
            else:
                total += tl.sum(b[:, None, :] * m[None, :, :], axis=2)
        tl.store(out + v[:, None] * P + p[None, :], total, inside & (p[None, :] < P))


@triton.jit
def _row_offsets_kernel(row, out, V, E, halvings, models, BV: tl.constexpr):
    """Program k: where the edges of the k-th block of rows of all models begin."""
    place = tl.program_id(0).to(tl.int64) * BV + tl.arange(0, BV)
    m = place // (V + 1)
    there = m < models
    v, begin = place - m * (V + 1), m * E
    low = tl.zeros((BV,), dtype=tl.int64)
    high = low + E
    for _ in range(0, halvings):
        middle = (low + high) // 2
        searched = there & (low < high)
        before = tl.load(row + begin + middle, searched, other=0) < v
        low = tl.where(searched & before, middle + 1, low)
        high = tl.where(before, high, tl.where(searched, middle, high))
    tl.store(out + place, low, there)


@triton.jit
def _weighted_sum(
    x, col, weight, first, last, own, f, F, EDGES: tl.constexpr, WEIGHTED: tl.constexpr
):  # fmt: skip
    """The sum over the first EDGES of the edges ``first:last``, of vertices counted from own."""
    e = first + tl.arange(0, EDGES)
    there = e < last
    source = own + tl.load(col + e, there, other=0)
    inside = there[:, None] & (f[None, :] < F)
    values = tl.load(x + source[:, None] * F + f[None, :], inside, other=0.0)
    if WEIGHTED:
        values *= tl.load(weight + e, there, other=0.0)[:, None]
    return tl.sum(values, axis=0)


@triton.jit
def _propagate_kernel(
    x, row_ptr, col, weight, out, rows, V, E, F, WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr, STEPS: tl.constexpr, MANY: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    """Program (k, f): a block of columns of the sums of ROWS vertices over their edges.

    The first STEPS edges of all vertices are read in step, one of each at a time: what a vertex
    with few edges waits for, others wait for too. Further edges of a vertex are read MANY at a
    time. Row v of all models is the row v − m · V of model m, which has an offset more than rows.
    """
    row = tl.arange(0, ROWS)
    v = tl.program_id(0).to(tl.int64) * ROWS + row
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    m = v // V
    own = m * V
    first = m * E + tl.load(row_ptr + v + m, v < rows, other=0)
    last = m * E + tl.load(row_ptr + v + m + 1, v < rows, other=0)
    total = tl.zeros((ROWS, BF), dtype=out.dtype.element_ty)
    longest = tl.max(last - first, axis=0)
    for step in range(0, tl.minimum(longest, STEPS)):
        e = first + step
        there = e < last
        source = own[:, None] + tl.load(col + e[:, None], there[:, None], other=0)
        inside = there[:, None] & (f[None, :] < F)
        values = tl.load(x + source * F + f[None, :], inside, other=0.0)
        if WEIGHTED:
            values *= tl.load(weight + e[:, None], there[:, None], other=0.0)
        total += values
    if longest > STEPS:
        for k in range(0, ROWS):
            at = tl.minimum(tl.program_id(0).to(tl.int64) * ROWS + k, rows - 1)
            model = at // V
            start = model * E + tl.load(row_ptr + at + model) + STEPS
            end = model * E + tl.load(row_ptr + at + model + 1)
            for some in range(start, end, MANY):
                part = _weighted_sum(x, col, weight, some, end, model * V, f, F, MANY, WEIGHTED)
                total = tl.where((row == k)[:, None], total + part[None, :], total)
    tl.store(out + v[:, None] * F + f[None, :], total, (v[:, None] < rows) & (f[None, :] < F))


def block(size: int, most: int) -> int:
    """The power of two that covers ``size``, at least 16 and at most ``most``."""
    return min(most, max(16, triton.next_power_of_2(size)))


def _splits(vertices: int, graphs: int) -> int:
    """Into how many shares a graph's rows are cut, so that one large graph does not hold up all."""
    return max(1, min(16, vertices // max(graphs, 1) // 64))


def pool(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """See :func:`softperm.ops.ragged.operators.pool_op`."""
    (m, v, p), f, b = left.shape, right.shape[2], ptr.shape[1] - 1
    splits = _splits(m * v, m * b)
    out = left.new_empty(splits, m, b, p, f)
    dot = left.dtype == torch.float32
    bp, bf = (block(p, 64), block(f, 64)) if dot else (16, 16)
    if out.numel():
        _pool_kernel[(m * b * splits, triton.cdiv(p, bp), triton.cdiv(f, bf))](
            left.contiguous(), right.contiguous(), ptr.contiguous(), out, b, v, p, f, splits,
            m * b, ROWS=ROWS if dot else 8, BP=bp, BF=bf, DOT=dot,
        )  # fmt: skip
    return out.sum(0) if splits > 1 else out[0]


def spread(small: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """See :func:`softperm.ops.ragged.operators.spread_op`."""
    (m, b, p, f), v = small.shape, right.shape[1]
    splits = _splits(m * v, m * b)
    out = right.new_zeros(m, v, p)
    dot = right.dtype == torch.float32
    bp, bf = (block(p, 64), block(f, 64)) if dot else (16, 16)
    if out.numel() and b:
        _spread_kernel[(m * b * splits, triton.cdiv(p, bp))](
            small.contiguous(), right.contiguous(), ptr.contiguous(), out, b, v, p, f, splits,
            ROWS=ROWS if dot else 8, BP=bp, BF=bf, DOT=dot,
        )  # fmt: skip
    return out


def row_offsets(edge_index: Tensor, vertices: int) -> Tensor:
    """See :func:`softperm.ops.ragged.operators.row_offsets_op`."""
    models, _, edges = edge_index.shape
    out = edge_index.new_empty(models, vertices + 1, dtype=torch.long)
    if out.numel():
        _row_offsets_kernel[(triton.cdiv(out.numel(), 128),)](
            edge_index[:, 0].contiguous(), out, vertices, edges, edges.bit_length(), models,
            BV=128, num_warps=4,
        )  # fmt: skip
    return out


def propagate(x: Tensor, row_ptr: Tensor, col: Tensor, weight: Tensor | None) -> Tensor:
    """See :func:`softperm.ops.ragged.operators.propagate_op`."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    models, vertices, features = x.shape
    columns, rows, edges = block(features, 128), models * vertices, col.shape[1]
    if edges < 8 * vertices:  # ROWS or MANY × columns numbers are held at a time
        plan = {"ROWS": 512 // columns, "STEPS": 16, "MANY": 1024 // columns, "num_warps": 2}
    else:
        plan = {"ROWS": 1, "STEPS": 0, "MANY": max(16, 1024 // columns), "num_warps": 1}
    if out.numel():
        _propagate_kernel[(triton.cdiv(rows, plan["ROWS"]), triton.cdiv(features, columns))](
            x.contiguous(), row_ptr.contiguous(), col.contiguous(),
            x if weight is None else weight.contiguous(), out, rows, vertices, edges, features,
            WEIGHTED=weight is not None, BF=columns, **plan,
        )  # fmt: skip
    return out
