"""Tiles of transport problems in Triton: sums over them, loading and storing.

A tile holds N rows of one problem as (J, N, L): its entry ``(j, i, l)`` is row i, column j · L + l.
With L short of a warp, a warp spans several rows, and a thread holds the entries of all j: so sums
along rows and along columns both stay mostly inside threads. Vectors keep all three axes, (1, N, 1)
over rows and (J, 1, L) over columns, so that no data moves between threads between updates.

The compiler chooses how a tile is distributed over threads, and it follows the loads. So tiles are
loaded flat, as (J · N, L), for which there is only one choice, and vectors over columns in J
pieces, which are too small to influence it.
"""

from __future__ import annotations

import triton.language as tl
from triton.language.extra import libdevice

from softperm.jit import gpu_kernel


@gpu_kernel
def over_rows(x):
    """Sum over the rows of a tile: (J, 1, L)."""
    return tl.sum(x, 1, keep_dims=True)


@gpu_kernel
def over_columns(x):
    """Sum over the columns of a tile: (1, N, 1)."""
    return tl.sum(tl.sum(x, 0, keep_dims=True), 2, keep_dims=True)


@gpu_kernel
def top_of_columns(x):
    """Largest entry of each row of a tile: (1, N, 1)."""
    return tl.max(tl.max(x, 0, keep_dims=True), 2, keep_dims=True)


@gpu_kernel
def everything(x):
    """Sum of all entries."""
    return tl.sum(tl.sum(tl.sum(x, 0), 0), 0)


@gpu_kernel
def largest(x):
    """Largest of all entries."""
    return tl.max(tl.max(tl.max(x, 0), 0), 0)


@gpu_kernel
def positive(x):
    """Replaces 0 by 1: for empty sums that are divisors."""
    return tl.where(x > 0, x, 1.0)


@gpu_kernel
def quotient(x, y, FAST: tl.constexpr):
    """Quotient x / y; with FAST by the reciprocal unit: two instructions, exact to two bits."""
    if FAST:
        return libdevice.fast_dividef(x, y)
    else:
        return x / y


@gpu_kernel
def column_ids(J: tl.constexpr, L: tl.constexpr):
    """Number of each column: (J, 1, L)."""
    return tl.arange(0, J)[:, None, None] * L + tl.arange(0, L)[None, None, :]


@gpu_kernel
def row_ids(N: tl.constexpr):
    """Number of each row of a tile: (1, N, 1)."""
    return tl.arange(0, N)[None, :, None]


@gpu_kernel
def flat_rows(J: tl.constexpr, N: tl.constexpr):
    """Number of the row of each entry of a flat tile: (J · N, 1)."""
    return (tl.arange(0, J * N) % N)[:, None]


@gpu_kernel
def flat_columns(J: tl.constexpr, N: tl.constexpr, L: tl.constexpr):
    """Number of the column of each entry of a flat tile: (J · N, L)."""
    return (tl.arange(0, J * N) // N)[:, None] * L + tl.arange(0, L)[None, :]


@gpu_kernel
def load_columns(columns, C, other: tl.constexpr, J: tl.constexpr, L: tl.constexpr):
    """A vector over the columns from memory: (J, 1, L)."""
    j = tl.arange(0, J)[:, None, None]
    lane = tl.arange(0, L)[None, None, :]
    x = tl.full([J, 1, L], other, columns.dtype.element_ty)
    for i in tl.static_range(J):
        piece = tl.load(columns + i * L + lane, mask=i * L + lane < C, other=other)
        x = tl.where(j == i, piece, x)
    return x


@gpu_kernel
def store_columns(columns, x, C, J: tl.constexpr, L: tl.constexpr):
    """Writes a vector over the columns."""
    j = tl.arange(0, J)[:, None, None]
    lane = tl.arange(0, L)[None, None, :]
    for i in tl.static_range(J):
        piece = tl.sum(tl.where(j == i, x, 0.0), 0, keep_dims=True)
        tl.store(columns + i * L + lane, piece, mask=i * L + lane < C)


@gpu_kernel
def load_rows(rows, n, P, J: tl.constexpr, N: tl.constexpr, L: tl.constexpr):
    """The first n rows and P columns from memory as a tile; 0 elsewhere."""
    row = flat_rows(J, N)
    col = flat_columns(J, N, L)
    x = tl.load(rows + row * P + col, mask=(row < n) & (col < P), other=0.0)
    return tl.reshape(x, (J, N, L))


@gpu_kernel
def store_rows(rows, x, n, P, J: tl.constexpr, N: tl.constexpr, L: tl.constexpr):
    """Writes the first n rows and P columns of a tile."""
    row = flat_rows(J, N)
    col = flat_columns(J, N, L)
    tl.store(rows + row * P + col, tl.reshape(x, (J * N, L)), mask=(row < n) & (col < P))


@gpu_kernel
def store_extra(
    rows, x, n, left, C, J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr
):
    """Writes the R rows of a tile after its first n, as far as they are before row ``left``."""
    at = flat_rows(J, N) - n
    col = flat_columns(J, N, L)
    inside = (at >= 0) & (at < R) & (at < left - n) & (col < C)
    tl.store(rows + at * C + col, tl.reshape(x, (J * N, L)), mask=inside)


@gpu_kernel
def load_scores(
    scores, extra, bin_score, n, P,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
):  # fmt: skip
    """Scores of N rows, of which the first n are vertices and the next R the extra rows.

    ``scores`` points at the first of these rows. A negative n begins within the extra rows.
    """
    n = n.to(tl.int32)
    row = flat_rows(J, N)
    col = flat_columns(J, N, L)
    s = tl.load(scores + row * P + col, mask=(row < n) & (col < P), other=0.0)
    if BIN:
        s = tl.where((row < n) & (col == P), tl.load(bin_score), s)
    if R > 0:
        C = P + BIN
        at = row - n
        e = tl.load(extra + at * C + col, mask=(at >= 0) & (at < R) & (col < C), other=0.0)
        s = tl.where(at >= 0, e, s)
    return tl.reshape(s, (J, N, L))


@gpu_kernel
def load_row_mass(row_mass, extra_mass, n, left, scale, N: tl.constexpr, R: tl.constexpr):
    """Mass of the N rows of load_scores, 0 from row ``left`` on, in units of ``scale``.

    Load it before the tile: where both meet, the compiler prefers the layout loaded last.
    """
    n = n.to(tl.int32)
    row = row_ids(N)
    a = tl.load(row_mass + row, mask=(row < n) & (row < left), other=0.0)
    if R > 0:
        at = row - n
        a += tl.load(extra_mass + at, mask=(at >= 0) & (at < R) & (row < left), other=0.0)
    return a / scale


@gpu_kernel
def load_column_mass(column_mass, C, J: tl.constexpr, L: tl.constexpr):
    """Mass of each column in units of their sum, and that sum."""
    b = load_columns(column_mass, C, 0.0, J, L)
    scale = positive(everything(b))
    return b / scale, scale
