"""Products and maxima over graphs on the GPU, in Triton: no padding, no atomics, reproducible."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from softperm.jit import gpu_kernel

ROWS = 32  # vertices that one step of a program reads
LISTED = 16  # rows that one step of a maximum reads


@gpu_kernel
def _span(ptr, g, B, V):
    """First vertex and end of graph g = m · B + b among the vertices of all models."""
    m = g // B
    begin = m * V
    return begin + tl.load(ptr + g + m), begin + tl.load(ptr + g + m + 1)


@gpu_kernel(do_not_specialize=["B", "V", "splits", "graphs"])
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


@gpu_kernel(do_not_specialize=["B", "V", "splits"])
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


@gpu_kernel(do_not_specialize=["V", "E", "halvings", "models"])
def _row_offsets_kernel(row, out, V, E, halvings, models, BV: tl.constexpr):
    """Program k: first edge of each row of the k-th block of rows of all models."""
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


@gpu_kernel
def _weighted_sum(
    x, col, weight, first, last, own, f, F, EDGES: tl.constexpr, WEIGHTED: tl.constexpr
):  # fmt: skip
    """Sum over the first EDGES of the edges ``first:last``; sources are relative to ``own``."""
    e = first + tl.arange(0, EDGES)
    there = e < last
    source = own + tl.load(col + e, there, other=0)
    inside = there[:, None] & (f[None, :] < F)
    values = tl.load(x + source[:, None] * F + f[None, :], inside, other=0.0)
    if WEIGHTED:
        values *= tl.load(weight + e, there, other=0.0)[:, None]
    return tl.sum(values, axis=0)


@gpu_kernel(
    do_not_specialize=["rows", "V", "S", "E"],
    do_not_specialize_on_alignment=["row_ptr", "col", "weight"],
)
def _propagate_kernel(
    x, row_ptr, col, weight, out, rows, V, S, E, F, WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr, STEPS: tl.constexpr, MANY: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    """Program (k, f): a block of columns of the sums of ROWS vertices over their edges.

    The first STEPS edges of all vertices are read together, one edge of each at a time, which hides
    the latency of memory. Further edges of a vertex are read MANY at a time. Row v of all models is
    the row v − m · V of model m, which has one offset more than rows, and S rows in ``x``.
    """
    row = tl.arange(0, ROWS)
    v = tl.program_id(0).to(tl.int64) * ROWS + row
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    m = v // V
    own = m * S
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
                part = _weighted_sum(x, col, weight, some, end, model * S, f, F, MANY, WEIGHTED)
                total = tl.where((row == k)[:, None], total + part[None, :], total)
    tl.store(out + v[:, None] * F + f[None, :], total, (v[:, None] < rows) & (f[None, :] < F))


def block(size: int, most: int) -> int:
    """The next power of two, at least 16 and at most ``most``."""
    return min(most, max(16, triton.next_power_of_2(size)))


def _splits(vertices: int, graphs: int) -> int:
    """Number of shares of a graph's rows, so that one large graph does not delay the others."""
    return max(1, min(16, vertices // max(graphs, 1) // 64))


def pool(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """See :data:`softperm.ops.ragged.pool_op`."""
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
    """See :data:`softperm.ops.ragged.spread_op`."""
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


def row_offsets(edge_index: Tensor, vertices: int, valid: bool) -> Tensor:
    """See :data:`softperm.ops.ragged.row_offsets_op`."""
    models, _, edges = edge_index.shape
    out = edge_index.new_empty(models, vertices + 1, dtype=torch.long)
    if out.numel():
        _row_offsets_kernel[(triton.cdiv(out.numel(), 128),)](
            edge_index[:, 0].contiguous(), out, vertices, edges, edges.bit_length(), models,
            BV=128, num_warps=4,
        )  # fmt: skip
    return out


def propagate(
    x: Tensor, row_ptr: Tensor, col: Tensor, weight: Tensor | None, symmetric: bool
) -> Tensor:
    """See :data:`softperm.ops.ragged.propagate_op`."""
    (models, sources, features), vertices = x.shape, row_ptr.shape[1] - 1
    out = x.new_empty(models, vertices, features)
    columns, rows, edges = block(features, 128), models * vertices, col.shape[1]
    if edges < 8 * vertices:  # a program holds ROWS or MANY × columns numbers
        plan = {"ROWS": 512 // columns, "STEPS": 16, "MANY": 1024 // columns, "num_warps": 2}
    else:
        plan = {"ROWS": 1, "STEPS": 0, "MANY": max(16, 1024 // columns), "num_warps": 1}
    if out.numel():
        _propagate_kernel[(triton.cdiv(rows, plan["ROWS"]), triton.cdiv(features, columns))](
            x.contiguous(), row_ptr.contiguous(), col.contiguous(),
            x if weight is None else weight.contiguous(), out, rows, vertices, sources, edges,
            features,
            WEIGHTED=weight is not None, BF=columns, **plan,
        )  # fmt: skip
    return out


def transfer(x: Tensor, ptr: Tensor, item: Tensor, *back: Tensor) -> Tensor:
    """See :data:`softperm.ops.ragged.transfer_op`."""
    return propagate(x, ptr, item, None, symmetric=False)


# Maxima over lists of rows.


@gpu_kernel(do_not_specialize_on_alignment=["begin", "end", "source"])
def _maximum_kernel(
    x, begin, end, source, out, ties, F, ROWS: tl.constexpr, BF: tl.constexpr
):  # fmt: skip
    """Program (r, f): maximum of the rows that reach place r, and how many rows attain it."""
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
        wrong |= tl.max((values != values).to(tl.int32), axis=0)  # tl.max ignores NaN
        here = tl.maximum(most, tl.max(values, axis=0))
        as_large = tl.where(inside & (values == here[None, :]), 1.0, 0.0)
        count = tl.where(here == most, count, 0.0) + tl.sum(as_large, axis=0)
        most = here
    most = tl.where(wrong != 0, float("nan"), most)
    tl.store(out + r * F + f, tl.where(first < last, most, 0.0), f < F)
    tl.store(ties + r * F + f, count, f < F)


@gpu_kernel(do_not_specialize_on_alignment=["begin", "end", "target"])
def _maximum_backward_kernel(
    share, x, out, begin, end, target, d_x, F, ROWS: tl.constexpr, BF: tl.constexpr
):  # fmt: skip
    """Program (v, f): gradient of row v from the places where it attains the maximum."""
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


def maximum(
    x: Tensor, begin: Tensor, end: Tensor, source: Tensor, *for_backward: Tensor
) -> tuple[Tensor, Tensor]:
    """See :data:`softperm.ops.ragged.maximum_op`."""
    features = x.shape[1]
    out = x.new_empty(len(begin), features)
    ties = torch.empty_like(out)
    columns = block(features, 128)
    if out.numel():
        _maximum_kernel[(len(out), triton.cdiv(features, columns))](
            x.contiguous(), begin.contiguous(), end.contiguous(), source.contiguous(), out, ties,
            features, ROWS=LISTED, BF=columns, num_warps=1,
        )  # fmt: skip
    return out, ties


def maximum_backward(
    share: Tensor, x: Tensor, out: Tensor, begin: Tensor, end: Tensor, target: Tensor
) -> Tensor:
    """See :data:`softperm.ops.ragged.maximum_backward_op`."""
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    features = x.shape[1]
    columns = block(features, 128)
    if d_x.numel():
        _maximum_backward_kernel[(len(x), triton.cdiv(features, columns))](
            share.contiguous(), x.contiguous(), out.contiguous(), begin.contiguous(),
            end.contiguous(), target.contiguous(), d_x, features,
            ROWS=LISTED, BF=columns, num_warps=1,
        )  # fmt: skip
    return d_x
