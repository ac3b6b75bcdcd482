"""Transport problems too large for one chip's registers: groups of programs, tile by tile.

The same iteration as on chip (see ``gpu_chip``), with the kernel matrix K in memory, where it stays
in the caches, and one pass over it per iteration: a tile of K gives the rows' scalings, and these
at once the tile's part of the next column sums. Potentials and sums of the columns are exchanged
within the group, so every program takes the same decisions.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from softperm.ops.transport.gpu_groups import exchange, exchange_sums, locate, rows_per_part
from softperm.ops.transport.gpu_rules import (
    EMPTY,
    LOWEST,
    START,
    close_columns,
    column_sums,
    first_potential,
    judge,
    reciprocal,
    row_potential,
    row_softmax,
)
from softperm.ops.transport.gpu_tiles import (
    flat_columns,
    flat_rows,
    load_column_mass,
    load_row_mass,
    load_scores,
    over_columns,
    over_rows,
    positive,
    quotient,
    row_ids,
    store_columns,
    store_rows,
)


@triton.jit
@no_type_check
def _place(row, n, beyond, R: tl.constexpr):
    """Where a row is kept: vertices by place, extra rows ``beyond`` all vertices."""
    if R > 0:
        row = tl.where(row < n, row, beyond + row - n)
    return row


@triton.jit
@no_type_check
def load_kernel(
    kernel, beyond, first, hi, n, C,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """K of the rows from ``first``; 0 in rows from ``hi`` on."""
    row = flat_rows(J, N)
    col = flat_columns(J, N, L)
    at = _place(row, n - first, beyond - first, R) * C + col
    k = tl.load(kernel + first * C + at, mask=(row < hi - first) & (col < C), other=0.0)
    return tl.reshape(k, (J, N, L))


@triton.jit
@no_type_check
def store_kernel(
    kernel, k, beyond, first, hi, n, C,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Writes K of the rows from ``first`` up to ``hi``. Others may read it after a barrier."""
    row = flat_rows(J, N)
    col = flat_columns(J, N, L)
    at = _place(row, n - first, beyond - first, R) * C + col
    tl.store(
        kernel + first * C + at, tl.reshape(k, (J * N, L)), mask=(row < hi - first) & (col < C)
    )


@triton.jit
@no_type_check
def _load_potential(rows, beyond, first, hi, n, N: tl.constexpr, R: tl.constexpr):
    """What _store_potential kept of the rows from ``first``: (1, N, 1)."""
    row = row_ids(N)
    at = _place(row, n - first, beyond - first, R)
    return tl.load(rows + first + at, mask=row < hi - first, other=LOWEST)


@triton.jit
@no_type_check
def _store_potential(rows, u, beyond, first, hi, n, N: tl.constexpr, R: tl.constexpr):
    """Keeps potentials of the rows from ``first`` up to ``hi``."""
    row = row_ids(N)
    at = _place(row, n - first, beyond - first, R)
    tl.store(rows + first + at, u, mask=row < hi - first)


@triton.jit(do_not_specialize=["problems", "B", "V", "P", "iterations", "lower"])
@no_type_check
def forward_stream(
    scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    plan, history, used, error, kernel, board, counter, potential,
    problems, B, V, P, iterations, tolerance, lower,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Solves every problem of more than ``lower`` rows."""
    programs = tl.num_programs(0)
    rows = rows_per_part(ptr, problems, B, lower, programs, R, N)
    C = P + BIN
    going = rows > 0
    while going:
        q = tl.atomic_add(counter + problems, 1)
        problem, place, parts = locate(ptr, problems, B, lower, q, rows, R, GROUP)
        going = parts > 0
        if going:
            model = problem // B
            start = tl.load(ptr + problem + model)
            n = tl.load(ptr + problem + model + 1) - start
            size = tl.cdiv(n + R, parts)
            lo = place * size
            _solve(
                scores + start * P, row_mass + start, column_mass + problem * C,
                extra + model * R * C, extra_mass + problem * R, bin_score + model,
                plan + start * P, history + problem * iterations * C,
                used + problem, error + problem,
                kernel + start * C, potential + start, V + problem * R - start,
                board + (q - place) * 4 * C, counter + problem, place, parts,
                lo, tl.minimum(lo + size, n + R), n, P, iterations, tolerance,
                J, N, L, R, BIN, FAST, GROUP,
            )  # fmt: skip


@triton.jit
@no_type_check
def _solve(
    scores, row_mass, column_mass, extra, extra_mass, bin_score, plan, history, used, error,
    kernel, potential, beyond, board, counter, place, parts, lo, hi, n, P, iterations, tolerance,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One part of a problem, the rows lo to hi. See the kernel on chip, step by step the same."""
    C = P + BIN
    dtype: tl.constexpr = scores.dtype.element_ty
    b, scale = load_column_mass(column_mass, C, J, L)
    v = tl.zeros([J, 1, L], tl.float64)
    y = tl.full([J, 1, L], 1.0, dtype)
    y_next = y
    t = 0
    turn = parts * 0
    left = tl.full([], START, dtype)
    slope_error = left
    slope_fall = left
    safe = left < 0
    going = left > 0
    while going:
        if safe:
            y = y_next
            sums = tl.zeros([J, N, L], dtype)
            for first in range(lo, hi, N):
                a = load_row_mass(row_mass + first, extra_mass, n - first, hi - first, scale, N, R)
                k = load_kernel(kernel, beyond, first, hi, n, C, J, N, L, R)
                sums += k * quotient(a, positive(over_columns(k * y)), FAST)
            c = over_rows(sums)
        else:
            top, total, turn = _sum_columns(
                scores, row_mass, extra, extra_mass, bin_score, kernel, potential, beyond, y, t,
                board, counter, place, parts, turn, lo, hi, n, P, scale, J, N, L, R, BIN, GROUP,
            )  # fmt: skip
            b = tl.where(top > 0.5 * EMPTY, b, 0.0)  # a problem without rows is over at once
            v = close_columns(top, total, b)
            y = tl.full([J, 1, L], 1.0, dtype)
            c = tl.zeros([J, 1, L], dtype)
            for first in range(lo, hi, N):
                a = load_row_mass(row_mass + first, extra_mass, n - first, hi - first, scale, N, R)
                s = load_scores(scores + first * P, extra, bin_score, n - first, P, J, N, L, R, BIN)
                k = row_softmax(s, v)
                store_kernel(kernel, k, beyond, first, hi, n, C, J, N, L, R)
                _store_potential(potential, row_potential(s, v, a), beyond, first, hi, n, N, R)
                c += over_rows(k * a)
            tl.debug_barrier()
        c_all, turn = exchange(c, board, counter, place, parts, turn, C, GROUP, J, L)
        if place == 0:
            store_columns(history + t * C, v + tl.log(y), C, J, L)
        t += 1
        left, slope_error, slope_fall, over, y_next, safe = judge(
            c_all.to(dtype), y, b, reciprocal(b), left, slope_error, slope_fall, tolerance, FAST
        )
        going = (over == 0) & (t < iterations)
    for first in range(lo, hi, N):
        a = load_row_mass(row_mass + first, extra_mass, n - first, hi - first, scale, N, R)
        k = load_kernel(kernel, beyond, first, hi, n, C, J, N, L, R)
        x = a * scale / positive(over_columns(k * y))
        store_rows(plan + first * P, k * y * x, tl.minimum(n, hi) - first, P, J, N, L)
    if place == 0:
        tl.store(used, t)
        tl.store(error, left)


@triton.jit
@no_type_check
def _sum_columns(
    scores, row_mass, extra, extra_mass, bin_score, kernel, potential, beyond, y, t,
    board, counter, place, parts, turn, lo, hi, n, P, scale,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Column sums of exp(S + u) over a whole problem, u that of the rows.

    The rows' potentials were kept when K was formed; since then the columns were scaled by y.

    Returns:
        About the largest exponent of each column, its sum in units of that, and the next turn.
    """
    C = P + BIN
    dtype: tl.constexpr = scores.dtype.element_ty
    top = tl.full([J, 1, L], LOWEST, tl.float64)
    total = tl.zeros([J, 1, L], dtype)
    for first in range(lo, hi, N):
        a = load_row_mass(row_mass + first, extra_mass, n - first, hi - first, scale, N, R)
        s = load_scores(scores + first * P, extra, bin_score, n - first, P, J, N, L, R, BIN)
        u = first_potential(a, scale, n - first, N, R, BIN)
        if t > 0:
            k = load_kernel(kernel, beyond, first, hi, n, C, J, N, L, R)
            u = _load_potential(potential, beyond, first, hi, n, N, R)
            u -= tl.log(positive(over_columns(k * y)))
        top_here, total_here = column_sums(s, u)
        higher = tl.maximum(top, top_here)
        total *= tl.exp((top - higher).to(dtype))
        total += total_here * tl.exp((top_here - higher).to(dtype))
        top = higher
    tl.debug_barrier()  # K and the potentials, which were read here, are written next
    top, total_all, turn = exchange_sums(
        top, total, board, counter, place, parts, turn, C, GROUP, J, L
    )
    return top, total_all.to(dtype), turn
