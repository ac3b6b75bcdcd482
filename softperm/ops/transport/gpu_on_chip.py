"""Transport problems that fit on chip: one program each, read once and written once.

The kernel matrix K, the rows of exp(S + v) scaled to sum 1 at some potentials v, stays in
registers. An iteration is then two sums of products, with scalings y of columns and x of rows:
c = Kᵀx, y = b / c, x = a / (K y). Where that would not be safe (see ``judge``), the iteration is
done in log space from the scores, which also absorbs the scalings so far into K.
"""

from __future__ import annotations

import triton.language as tl

from softperm.jit import gpu_kernel
from softperm.ops.transport.gpu_tiles import (
    column_ids,
    everything,
    largest,
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
from softperm.ops.transport.gpu_updates import (
    EMPTY,
    LOWEST,
    START,
    column_potential,
    first_potential,
    first_term,
    judge,
    neumann,
    reciprocal,
    replay,
    row_potential,
    row_softmax,
)


@gpu_kernel(do_not_specialize=["B", "P", "iterations", "lower"])
def forward_chip(
    scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    plan, history, used, error,
    B, P, iterations, tolerance, lower,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Solves every problem of more than ``lower`` and at most N rows."""
    problem = tl.program_id(0).to(tl.int64)
    model = problem // B
    start = tl.load(ptr + problem + model)
    n = (tl.load(ptr + problem + model + 1) - start).to(tl.int32)
    C = P + BIN
    if (n + R > lower) & (n + R <= N):
        _solve(
            scores + start * P, row_mass + start, column_mass + problem * C,
            extra + model * R * C, extra_mass + problem * R, bin_score + model,
            plan + start * P, history + problem * iterations * C, used + problem, error + problem,
            n, P, iterations, tolerance, J, N, L, R, BIN, FAST,
        )  # fmt: skip


@gpu_kernel
def _solve(
    scores, row_mass, column_mass, extra, extra_mass, bin_score, plan, history, used, error,
    n, P, iterations, tolerance,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """One problem: plan, column potentials of each iteration, iterations used, remaining error."""
    C = P + BIN
    dtype: tl.constexpr = scores.dtype.element_ty
    b, scale = load_column_mass(column_mass, C, J, L)
    a = load_row_mass(row_mass, extra_mass, n, N, scale, N, R)
    b = tl.where(largest(a) > 0, b, 0.0)  # a problem without rows stops at once
    per_b = reciprocal(b)
    v = tl.zeros([J, 1, L], tl.float64)
    y = tl.full([J, 1, L], 1.0, dtype)
    y_next = y
    k = tl.zeros([J, N, L], dtype)
    u = first_potential(a, scale, n, N, R, BIN)
    t = 0
    left = tl.full([], START, dtype)
    slope_error = left
    slope_fall = left
    safe = left < 0
    going = left > 0
    while going:
        while going & safe:
            y = y_next
            c = over_rows(k * quotient(a, positive(over_columns(k * y)), FAST))
            store_columns(history + t * C, v + tl.log(y), C, J, L)
            t += 1
            left, slope_error, slope_fall, over, y_next, safe = judge(
                c, y, b, per_b, left, slope_error, slope_fall, tolerance, FAST
            )
            going = (over == 0) & (t < iterations)
        if going:
            s = load_scores(scores, extra, bin_score, n, P, J, N, L, R, BIN)
            if t > 0:  # u precedes the scaling of the columns by y
                u -= tl.log(positive(over_columns(k * y)))
            v = column_potential(s, u, b)
            k = row_softmax(s, v)
            u = row_potential(s, v, a)
            y = tl.full([J, 1, L], 1.0, dtype)
            store_columns(history + t * C, v, C, J, L)
            t += 1
            left, slope_error, slope_fall, over, y_next, safe = judge(
                over_rows(k * a), y, b, per_b, left, slope_error, slope_fall, tolerance, FAST
            )
            going = (over == 0) & (t < iterations)
    x = a * scale / positive(over_columns(k * y))
    store_rows(plan, k * y * x, n, P, J, N, L)
    tl.store(used, t)
    tl.store(error, left)


@gpu_kernel(do_not_specialize=["B", "P", "iterations", "implicit", "lower"])
def backward_chip(
    grad, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score, history, used,
    d_scores, d_extra, d_bin,
    B, P, iterations, implicit, lower,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Gradient of every problem of more than ``lower`` and at most N rows.

    ``implicit`` is 0 for never, 1 for problems that stopped early, 2 for all.
    """
    problem = tl.program_id(0).to(tl.int64)
    model = problem // B
    start = tl.load(ptr + problem + model)
    n = (tl.load(ptr + problem + model + 1) - start).to(tl.int32)
    C = P + BIN
    if (n + R > lower) & (n + R <= N):
        _gradient(
            grad + start * P, scores + start * P, row_mass + start, column_mass + problem * C,
            extra + model * R * C, extra_mass + problem * R, bin_score + model,
            history + problem * iterations * C, used + problem,
            d_scores + start * P, d_extra + problem * R * C, d_bin + problem,
            n, P, iterations, implicit, J, N, L, R, BIN, FAST,
        )  # fmt: skip


@gpu_kernel
def _gradient(
    grad, scores, row_mass, column_mass, extra, extra_mass, bin_score, history, used,
    d_scores, d_extra, d_bin, n, P, iterations, implicit,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """One problem: gradient of its vertices' scores, its extra rows' scores and its bin score."""
    C = P + BIN
    col = column_ids(J, L)
    t = tl.load(used)
    v = load_columns(history + (t - 1) * C, C, LOWEST, J, L)
    b, scale = load_column_mass(column_mass, C, J, L)
    per_b = reciprocal(tl.where(v > EMPTY, b, 0.0))
    a = load_row_mass(row_mass, extra_mass, n, N, scale, N, R)
    k = row_softmax(load_scores(scores, extra, bin_score, n, P, J, N, L, R, BIN), v)
    ds = first_term(grad, k, a * scale, n, P, J, N, L)
    gv = over_rows(ds)
    solved = False
    if (implicit == 2) | ((implicit == 1) & (t < iterations)):
        total, solved = neumann(k, a, gv, per_b, t)
        if solved:
            ds -= k * (a * (total - over_columns(k * total)))
    if solved == 0:
        ds = replay(
            ds, k, a, scale, gv, v, per_b, scores, extra, bin_score, history, history,
            t, n, P, J, N, L, R, BIN, FAST, False,
        )  # fmt: skip
    store_rows(d_scores, ds, n, P, J, N, L)
    if R > 0:
        store_extra(d_extra, ds, n, N, C, J, N, L, R)
    if BIN:
        bins = tl.where((row_ids(N) < n) & (col == P), ds, 0.0)
        tl.store(d_bin, everything(bins))
