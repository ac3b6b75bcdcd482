"""Gradients of transport problems too large for one chip's registers.

The adjoint of an iteration couples the rows only through gv, a vector over the columns. So one pass
over K per iteration finds gv of every iteration, which each program keeps in its ``trail``; then
every tile replays the whole iteration by itself, in registers, and writes its gradient once.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from softperm.ops.transport.gpu_adjoint import first_term, replay, rest_of_series, spread
from softperm.ops.transport.gpu_groups import exchange, locate, rows_per_part
from softperm.ops.transport.gpu_rules import (
    EMPTY,
    LOWEST,
    NEVER,
    reciprocal,
    row_potential,
    row_softmax,
    shares,
    since,
)
from softperm.ops.transport.gpu_stream import load_kernel, store_kernel
from softperm.ops.transport.gpu_tiles import (
    column_ids,
    load_column_mass,
    load_columns,
    load_row_mass,
    load_scores,
    over_columns,
    over_rows,
    positive,
    quotient,
    row_ids,
    store_columns,
    store_extra,
    store_rows,
)


@triton.jit(do_not_specialize=["problems", "B", "V", "P", "iterations", "implicit", "lower"])
@no_type_check
def backward_stream(
    grad, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score, history, used,
    d_scores, d_extra, d_bin, kernel, board, counter, trail,
    problems, B, V, P, iterations, implicit, lower,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Gradient of every problem of more than ``lower`` rows."""
    programs = tl.num_programs(0)
    rows = rows_per_part(ptr, problems, B, lower, programs, R, N)
    C = P + BIN
    trail += tl.program_id(0).to(tl.int64) * iterations * C
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
            _gradient(
                grad + start * P, scores + start * P, row_mass + start, column_mass + problem * C,
                extra + model * R * C, extra_mass + problem * R, bin_score + model,
                history + problem * iterations * C, used + problem,
                d_scores + start * P, d_extra + problem * R * C, d_bin + problem,
                kernel + start * C, V + problem * R - start,
                board + (q - place) * 4 * C, counter + problem, place, parts, trail,
                lo, tl.minimum(lo + size, n + R), n, P, iterations, implicit,
                J, N, L, R, BIN, FAST, GROUP,
            )  # fmt: skip


@triton.jit
@no_type_check
def _gradient(
    grad, scores, row_mass, column_mass, extra, extra_mass, bin_score, history, used,
    d_scores, d_extra, d_bin, kernel, beyond, board, counter, place, parts, trail, lo, hi, n, P,
    iterations, implicit,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One part of a problem, the rows lo to hi."""
    C = P + BIN
    col = column_ids(J, L)
    dtype: tl.constexpr = scores.dtype.element_ty
    last = tl.load(used)
    v = load_columns(history + (last - 1) * C, C, LOWEST, J, L)
    b, scale = load_column_mass(column_mass, C, J, L)
    per_b = reciprocal(tl.where(v > EMPTY, b, 0.0))
    gv = tl.zeros([J, 1, L], dtype)
    for first in range(lo, hi, N):
        a = load_row_mass(row_mass + first, extra_mass, n - first, hi - first, scale, N, R)
        s = load_scores(scores + first * P, extra, bin_score, n - first, P, J, N, L, R, BIN)
        k = row_softmax(s, v)
        store_kernel(kernel, k, beyond, first, hi, n, C, J, N, L, R)
        gv += over_rows(first_term(grad + first * P, k, a * scale, n - first, P, J, N, L))
    tl.debug_barrier()
    gv_all, turn = exchange(gv, board, counter, place, parts, 0, C, GROUP, J, L)
    gv = gv_all.to(dtype)
    solved = last < 0
    total = tl.zeros([J, 1, L], dtype)
    if (implicit == 2) | ((implicit == 1) & (last < iterations)):
        total, solved, turn = _neumann(
            gv, row_mass, extra_mass, kernel, beyond, board, counter, place, parts, turn,
            lo, hi, n, C, scale, per_b, last, J, N, L, R, GROUP,
        )  # fmt: skip
    if solved == 0:
        turn = _walk_back(
            gv, v, per_b, scores, row_mass, extra, extra_mass, bin_score, history,
            kernel, beyond, board, counter, place, parts, turn, trail, lo, hi, n, P, scale, last,
            J, N, L, R, BIN, FAST, GROUP,
        )  # fmt: skip
    bins = tl.zeros([J, 1, L], dtype)
    for first in range(lo, hi, N):
        a = load_row_mass(row_mass + first, extra_mass, n - first, hi - first, scale, N, R)
        s = load_scores(scores + first * P, extra, bin_score, n - first, P, J, N, L, R, BIN)
        k = row_softmax(s, v)
        ds = first_term(grad + first * P, k, a * scale, n - first, P, J, N, L)
        if solved:
            ds -= k * (a * (total - over_columns(k * total)))
        else:
            ds = replay(
                ds, k, a, scale, gv, v, per_b, scores + first * P, extra, bin_score,
                history, trail, last, n - first, P, J, N, L, R, BIN, FAST, True,
            )  # fmt: skip
        vertices = tl.minimum(n, hi) - first
        store_rows(d_scores + first * P, ds, vertices, P, J, N, L)
        if R > 0:
            store_extra(d_extra, ds, n - first, hi - first, C, J, N, L, R)
        if BIN:
            bins += over_rows(tl.where((row_ids(N) < vertices) & (col == P), ds, 0.0))
    if BIN:
        all_bins, turn = exchange(bins, board, counter, place, parts, turn, C, GROUP, J, L)
        if place == 0:
            tl.store(d_bin + col * 0, all_bins, mask=col == P)


@triton.jit
@no_type_check
def _neumann(
    gv, row_mass, extra_mass, kernel, beyond, board, counter, place, parts, turn,
    lo, hi, n, C, scale, per_b, last,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """See ``neumann``; with the next turn."""
    dtype: tl.constexpr = gv.dtype
    SOLVED: tl.constexpr = 1e-13 if dtype == tl.float64 else 1e-6
    beta = gv * per_b
    total = tl.zeros_like(beta)
    first_spread = spread(beta, per_b)
    now = first_spread
    rest = tl.where(first_spread > 0, NEVER, 0.0).to(dtype)
    terms = tl.minimum(10 * last, 1000)
    while (rest > SOLVED * first_spread) & (terms > 0):
        total += beta
        c = tl.zeros([J, 1, L], dtype)
        for first in range(lo, hi, N):
            a = load_row_mass(row_mass + first, extra_mass, n - first, hi - first, scale, N, R)
            k = load_kernel(kernel, beyond, first, hi, n, C, J, N, L, R)
            c += over_rows(k * (a * over_columns(k * beta)))
        c_all, turn = exchange(c, board, counter, place, parts, turn, C, GROUP, J, L)
        beta = c_all.to(dtype) * per_b
        before = now
        now = spread(beta, per_b)
        rest = rest_of_series(now, before)
        terms -= 1
    return total, rest <= SOLVED * first_spread, turn


@triton.jit
@no_type_check
def _walk_back(
    gv, v, per_b, scores, row_mass, extra, extra_mass, bin_score, history,
    kernel, beyond, board, counter, place, parts, turn, trail, lo, hi, n, P, scale, last,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Writes gv of every iteration into ``trail``, from the last but one. See ``replay``."""
    C = P + BIN
    dtype: tl.constexpr = gv.dtype
    y = tl.full([J, 1, L], 1.0, dtype)
    t = last
    while t > 1:
        v_next = load_columns(history + (t - 2) * C, C, LOWEST, J, L)
        y_next, safe = since(v_next, v, per_b, dtype)
        c = tl.zeros([J, 1, L], dtype)
        if safe:
            beta = gv * y * per_b
            y = y_next
            for first in range(lo, hi, N):
                a = load_row_mass(row_mass + first, extra_mass, n - first, hi - first, scale, N, R)
                k = load_kernel(kernel, beyond, first, hi, n, C, J, N, L, R)
                per_r = quotient(1.0, positive(over_columns(k * y)), FAST)
                c += over_rows(k * (a * per_r * per_r * over_columns(k * beta)))
        else:
            v_this = load_columns(history + (t - 1) * C, C, LOWEST, J, L)
            v = v_next
            y = tl.full([J, 1, L], 1.0, dtype)
            for first in range(lo, hi, N):
                a = load_row_mass(row_mass + first, extra_mass, n - first, hi - first, scale, N, R)
                s = load_scores(scores + first * P, extra, bin_score, n - first, P, J, N, L, R, BIN)
                k = row_softmax(s, v)
                store_kernel(kernel, k, beyond, first, hi, n, C, J, N, L, R)
                share = gv * shares(s, row_potential(s, v, a), v_this, per_b)
                c += over_rows(k * over_columns(share))
            tl.debug_barrier()
        c_all, turn = exchange(c, board, counter, place, parts, turn, C, GROUP, J, L)
        gv = y * c_all.to(dtype)
        store_columns(trail + (t - 2) * C, gv, C, J, L)
        t -= 1
    tl.debug_barrier()
    return turn
