"""The gradient of the transport on one tile: the truncated iteration backwards, and its limit."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from softperm.ops.transport.gpu_rules import (
    LOWEST,
    NEVER,
    first_potential,
    row_potential,
    row_softmax,
    shares,
    since,
)
from softperm.ops.transport.gpu_tiles import (
    largest,
    load_columns,
    load_rows,
    load_scores,
    over_columns,
    over_rows,
    positive,
    quotient,
    top_of_columns,
)


@triton.jit
@no_type_check
def first_term(grad, k, a, n, P, J: tl.constexpr, N: tl.constexpr, L: tl.constexpr):
    """Gradient through the last row update: K ∘ a (G − Σ_k K G).

    G counts only up to a constant in each row. Less its value where the row's plan is largest, what
    a nearly hard plan leaves of the difference does not drown in rounding.
    """
    g = load_rows(grad, n, P, J, N, L)
    g -= top_of_columns(tl.where(k == top_of_columns(k), g, -NEVER))
    return k * (a * (g - over_columns(k * g)))


@triton.jit
@no_type_check
def spread(beta, per_b):
    """Range of β over the columns with mass. It does not see a constant added to all of them."""
    alive = per_b > 0
    up, down = largest(tl.where(alive, beta, -NEVER)), largest(tl.where(alive, -beta, -NEVER))
    return tl.maximum(up + down, 0.0)


@triton.jit
@no_type_check
def rest_of_series(now, before):
    """What is left of a geometric series whose last two terms these are; at least the last."""
    fall = before - now
    rest = tl.where(fall > 0, now * tl.maximum(now / positive(fall), 1.0), NEVER)
    return tl.where(now > 0, rest, 0.0)


@triton.jit
@no_type_check
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
@no_type_check
def replay(
    ds, k, a, scale, gv, v, per_b, scores, extra, bin_score, history, trail, t, n, P,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr, TRAIL: tl.constexpr,
):  # fmt: skip
    """Gradient of the truncated iteration, recomputed backwards from the column potentials.

    Column update t and row update t − 1 are, in the adjoint, with β = y · gv / b, y of t; and then
    with x = a / (K y), m = K β / (K y), y of t − 1,

        dS −= K ∘ x (β − y m),   gv = y · Kᵀ(x m).

    Where y is not safe in linear space, K is formed anew at t − 1, where y = 1, and x β by
    exponentials; so it is for t = 1, before which there is no row update. With TRAIL, gv
    of each iteration is read from ``trail``: then the tile need not hold all rows.

    Returns:
        The gradient of the tile's scores, given its first term ``ds``: (J, N, L).
    """
    C = P + BIN
    dtype: tl.constexpr = ds.dtype
    beta = gv * per_b
    v_next = load_columns(history + tl.maximum(t - 2, 0) * C, C, LOWEST, J, L)
    y, safe = since(v_next, v, per_b, dtype)
    while t > 0:
        while (t > 1) & safe:
            v_next = load_columns(history + tl.maximum(t - 3, 0) * C, C, LOWEST, J, L)
            if TRAIL:
                gv_next = load_columns(trail + (t - 2) * C, C, 0.0, J, L)
            per_r = quotient(1.0, positive(over_columns(k * y)), FAST)
            m = per_r * over_columns(k * beta)
            x = a * per_r
            ds -= k * (x * (beta - y * m))
            if TRAIL:
                gv = gv_next
            else:
                gv = y * over_rows(k * (x * m))
            beta = gv * y * per_b
            y, safe = since(v_next, v, per_b, dtype)
            t -= 1
        v_this = load_columns(history + (t - 1) * C, C, LOWEST, J, L)
        v = load_columns(history + tl.maximum(t - 2, 0) * C, C, LOWEST, J, L)
        s = load_scores(scores, extra, bin_score, n, P, J, N, L, R, BIN)
        u = first_potential(a, scale, n, N, R, BIN)
        if t > 1:
            u = row_potential(s, v, a)
            k = row_softmax(s, v)
        share = gv * shares(s, u, v_this, per_b)
        m = over_columns(share) * tl.where(t > 1, 1.0, 0.0)
        ds -= share - k * m
        if TRAIL:
            gv = load_columns(trail + tl.maximum(t - 2, 0) * C, C, 0.0, J, L)
        else:
            gv = over_rows(k * m)
        beta = gv * per_b
        v_next = load_columns(history + tl.maximum(t - 3, 0) * C, C, LOWEST, J, L)
        y, safe = since(v_next, v, per_b, dtype)
        t -= 1
    return ds
