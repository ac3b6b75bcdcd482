"""The ragged products on the GPU, in Triton: no padding, no atomics, the same bits on every run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # vertices that one step of a program reads


@triton.jit
def _pool_kernel(
    left, right, begin, end, out, P, F, splits, graphs,
    ROWS: tl.constexpr, BP: tl.constexpr, BF: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Program (g · splits + s, p, f): a tile of graph g's product, over its s-th share of rows."""
    g, s = tl.program_id(0) // splits, tl.program_id(0) % splits
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    f = tl.program_id(2) * BF + tl.arange(0, BF)
    first, last = tl.load(begin + g), tl.load(end + g)
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
    small, right, begin, end, out, P, F, splits,
    ROWS: tl.constexpr, BP: tl.constexpr, BF: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Program (g · splits + s, p): a block of columns for graph g's s-th share of rows."""
    g, s = tl.program_id(0) // splits, tl.program_id(0) % splits
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    first, last = tl.load(begin + g), tl.load(end + g)
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
def _weighted_sum(x, col, weight, first, last, f, F, EDGES: tl.constexpr):
    """The sum over the first EDGES of the edges ``first:last``."""
    e = first + tl.arange(0, EDGES)
    there = e < last
    source = tl.load(col + e, there, other=0)
    w = tl.load(weight + e, there, other=0.0)
    inside = there[:, None] & (f[None, :] < F)
    values = tl.load(x + source[:, None] * F + f[None, :], inside, other=0.0)
    return tl.sum(values * w[:, None], axis=0)


@triton.jit
def _propagate_kernel(
    x, row_ptr, col, weight, out, V, F,
    ROWS: tl.constexpr, STEPS: tl.constexpr, MANY: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    """Program (k, f): a block of columns of the sums of ROWS vertices over their edges.

    The first STEPS edges of all vertices are read in step, one of each at a time: what a vertex
    with few edges waits for, others wait for too. Further edges of a vertex are read MANY at a
    time.
    """
    row = tl.arange(0, ROWS)
    v = tl.program_id(0) * ROWS + row
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    first = tl.load(row_ptr + v, v < V, other=0)
    last = tl.load(row_ptr + v + 1, v < V, other=0)
    total = tl.zeros((ROWS, BF), dtype=out.dtype.element_ty)
    longest = tl.max(last - first, axis=0)
    for step in range(0, tl.minimum(longest, STEPS)):
        e = first + step
        there = e < last
        source = tl.load(col + e[:, None], there[:, None], other=0)
        w = tl.load(weight + e[:, None], there[:, None], other=0.0)
        inside = there[:, None] & (f[None, :] < F)
        total += w * tl.load(x + source * F + f[None, :], inside, other=0.0)
    if longest > STEPS:
        for k in range(0, ROWS):
            begin = tl.load(row_ptr + tl.minimum(tl.program_id(0) * ROWS + k, V))
            end = tl.load(row_ptr + tl.minimum(tl.program_id(0) * ROWS + k + 1, V))
            for start in range(begin + STEPS, end, MANY):
                part = _weighted_sum(x, col, weight, start, end, f, F, MANY)
                total = tl.where((row == k)[:, None], total + part[None, :], total)
    tl.store(out + v[:, None] * F + f[None, :], total, (v[:, None] < V) & (f[None, :] < F))


def block(size: int, most: int) -> int:
    """The power of two that covers ``size``, at least 16 and at most ``most``."""
    return min(most, max(16, triton.next_power_of_2(size)))


def _splits(vertices: int, graphs: int) -> int:
    """Into how many shares a graph's rows are cut, so that one large graph does not hold up all."""
    return max(1, min(16, vertices // max(graphs, 1) // 64))


def _spans(ptr: Tensor) -> tuple[Tensor, Tensor]:
    """Where each graph m · B + b begins and ends."""
    return ptr[:, :-1].flatten().contiguous(), ptr[:, 1:].flatten().contiguous()


def pool(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """See :func:`softperm.ragged.pool`; ``ptr`` is (M, B + 1)."""
    m, b1 = ptr.shape
    graphs, p, f = m * (b1 - 1), left.shape[1], right.shape[1]
    splits = _splits(len(left), graphs)
    out = left.new_empty(splits, graphs, p, f)
    dot = left.dtype == torch.float32
    bp, bf = (block(p, 64), block(f, 64)) if dot else (16, 16)
    if out.numel():
        _pool_kernel[(graphs * splits, triton.cdiv(p, bp), triton.cdiv(f, bf))](
            left.contiguous(), right.contiguous(), *_spans(ptr), out, p, f, splits, graphs,
            ROWS=ROWS if dot else 8, BP=bp, BF=bf, DOT=dot,
        )  # fmt: skip
    return out.sum(0).unflatten(0, (m, b1 - 1)) if splits > 1 else out.view(m, b1 - 1, p, f)


def spread(small: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """See :func:`softperm.ragged.spread`; ``small`` is (M, B, P, F), ``ptr`` is (M, B + 1)."""
    m, b1 = ptr.shape
    graphs, (p, f) = m * (b1 - 1), small.shape[2:]
    splits = _splits(len(right), graphs)
    out = right.new_zeros(len(right), p)
    dot = right.dtype == torch.float32
    bp, bf = (block(p, 64), block(f, 64)) if dot else (16, 16)
    if out.numel() and graphs:
        _spread_kernel[(graphs * splits, triton.cdiv(p, bp))](
            small.contiguous(), right.contiguous(), *_spans(ptr), out, p, f, splits,
            ROWS=ROWS if dot else 8, BP=bp, BF=bf, DOT=dot,
        )  # fmt: skip
    return out


def propagate(x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
    """See :func:`softperm.ragged.propagate`; edges are sorted by row."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    vertices, features = x.shape
    row_ptr = torch.searchsorted(
        edge_index[0].contiguous(), torch.arange(vertices + 1, device=x.device)
    )
    columns = block(features, 128)
    if edge_index.shape[1] < 8 * vertices:  # ROWS or MANY × columns numbers are held at a time
        plan = {"ROWS": 512 // columns, "STEPS": 16, "MANY": 1024 // columns, "num_warps": 2}
    else:
        plan = {"ROWS": 1, "STEPS": 0, "MANY": max(16, 1024 // columns), "num_warps": 1}
    if out.numel():
        _propagate_kernel[(triton.cdiv(vertices, plan["ROWS"]), triton.cdiv(features, columns))](
            x.contiguous(), row_ptr, edge_index[1].contiguous(), edge_weight.contiguous(), out,
            vertices, features, BF=columns, **plan,
        )  # fmt: skip
    return out
