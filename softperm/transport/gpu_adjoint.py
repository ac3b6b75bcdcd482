"""The gradient of the transport on one tile: the truncated iteration backwards, and its limit."""

from __future__ import annotations

import triton
import triton.language as tl

from softperm.transport.gpu_tiles import (
    LOWEST,
    NEVER,
    largest,
    load_columns,
    load_rows,
    load_scores,
    over_columns,
    over_rows,
    positive,
    quotient,
    row_potential,
    row_softmax,
    shares,
    since,
    top_of_columns,
    unit_potential,
)


@triton.jit
def first_term(grad, k, a, n, P, J: tl.constexpr, N: tl.constexpr, L: tl.constexpr):
    """The plan times its gradient, and the sums of that over the columns.

    A row's sum is fixed, so the gradient is as good as less its value where the row's plan is
    largest. Without that, what a nearly hard plan leaves of it would drown in rounding.
    """
    g = load_rows(grad, n, P, J, N, L)
    there = tl.where(k == top_of_columns(k), g, -NEVER)
    ds = k * a * (g - top_of_columns(there))
    return ds, over_columns(ds)


@triton.jit
def spread(beta, per_b):
    """Range of β over the columns with mass. It does not see a constant added to all of them."""
    alive = per_b > 0
    up, down = largest(tl.where(alive, beta, -NEVER)), largest(tl.where(alive, -beta, -NEVER))
    return tl.maximum(up + down, 0.0)


@triton.jit
def rest_of_series(now, before):
    """What is left of a geometric series whose last two terms these are; at least the last."""
    fall = before - now
    rest = tl.where(fall > 0, now * tl.maximum(now / positive(fall), 1.0), NEVER)
    return tl.where(now > 0, rest, 0.0)


@triton.jit
def neumann(k, a, gv, per_b, t):
    """Multipliers of the columns at the fixed point: the sum of β, β′ = Kᵀ a K β / b, and so on.

    The series is summed until its rest is small beside its first term. What a constant in β adds
    to the gradient cancels against the rows' multipliers, so only the range of β counts.

    Returns:
        The sum (J, 1, L), and whether the series converged within 10 · t terms.
    """
    SOLVED: tl.constexpr = 1e-13 if gv.dtype == tl.float64 else 1e-6
    beta = gv * per_b
    total = tl.zeros_like(beta)
    first = spread(beta, per_b)
    now = first
    rest = tl.where(first > 0, NEVER, 0.0).to(first.dtype)
    terms = tl.minimum(10 * t, 1000)
    while (rest > SOLVED * first) & (terms > 0):
        total += beta
        beta = over_rows(k * (a * over_columns(k * beta))) * per_b
        before = now
        now = spread(beta, per_b)
        rest = rest_of_series(now, before)
        terms -= 1
    return total, rest <= SOLVED * first


@triton.jit
def replay(
    ds, k, a, alpha, gv, v, per_b, scores, extra, bin_score, history, trail, t, n, P,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr, TRAIL: tl.constexpr,
):  # fmt: skip
    """Gradient of the truncated iteration, recomputed backwards from the column potentials.

    Iteration t is, in the adjoint, dS −= K ∘ (α yᵀ + x βᵀ) with y of iteration t, x of t − 1 and
    β = y · gv / b; then α = −x · Kβ / (K y) and gv = −y · Kᵀα of t − 1. Where y is not safe in
    linear space, K is formed anew at t − 1, and x βᵀ by exponentials. So is all of iteration 1,
    before which u = 0. With TRAIL, gv of each iteration is read from ``trail``: then the tile need
    not hold all rows.

    Returns:
        The gradient of the tile's scores, given its first term ``ds``: (J, N, L).
    """
    C = P + BIN
    dtype: tl.constexpr = ds.dtype
    y = tl.full([J, 1, L], 1.0, dtype)
    v_next = load_columns(history + tl.maximum(t - 2, 0) * C, C, LOWEST, J, L)
    y_next, safe = since(v_next, v, per_b, dtype)
    while t > 1:
        while (t > 1) & safe:
            v_next = load_columns(history + tl.maximum(t - 3, 0) * C, C, LOWEST, J, L)
            if TRAIL:
                gv_next = load_columns(trail + (t - 2) * C, C, 0.0, J, L)
            beta = gv * y * per_b
            per_r = quotient(1.0, over_columns(k * y_next), FAST)
            x = a * per_r
            ds -= k * (alpha * y + x * beta)
            alpha = -x * per_r * over_columns(k * beta)
            y = y_next
            if TRAIL:
                gv = gv_next
            else:
                gv = -y * over_rows(k * alpha)
            y_next, safe = since(v_next, v, per_b, dtype)
            t -= 1
        if t > 1:
            v_this = load_columns(history + (t - 1) * C, C, LOWEST, J, L)
            v = load_columns(history + (t - 2) * C, C, LOWEST, J, L)
            s = load_scores(scores, extra, bin_score, n, P, J, N, L, R, BIN)
            ds -= k * (alpha * y)
            k = row_softmax(s, v)
            share = gv * shares(s, row_potential(s, v, a), v_this, per_b)
            ds -= share
            alpha = -over_columns(share)
            y = tl.full([J, 1, L], 1.0, dtype)
            if TRAIL:
                gv = load_columns(trail + (t - 2) * C, C, 0.0, J, L)
            else:
                gv = -over_rows(k * alpha)
            v_next = load_columns(history + tl.maximum(t - 3, 0) * C, C, LOWEST, J, L)
            y_next, safe = since(v_next, v, per_b, dtype)
            t -= 1
    v_this = load_columns(history, C, LOWEST, J, L)
    s = load_scores(scores, extra, bin_score, n, P, J, N, L, R, BIN)
    return ds - k * (alpha * y) - gv * shares(s, unit_potential(a), v_this, per_b)
