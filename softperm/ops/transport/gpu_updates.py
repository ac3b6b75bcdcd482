"""Updates of the transport on one tile of the GPU: in log space, its stopping rule, its gradient.

Rows without mass have weight 0. Columns without mass have the potential LOWEST: unlike −∞, it
underflows to 0 in every exponential and never produces a NaN.
"""

from __future__ import annotations

import triton.language as tl

from softperm.jit import gpu_kernel
from softperm.ops.transport.gpu_tiles import (
    largest,
    load_columns,
    load_rows,
    load_scores,
    over_columns,
    over_rows,
    positive,
    quotient,
    row_ids,
    top_of_columns,
)

LOWEST = tl.constexpr(-1e300)
EMPTY = tl.constexpr(-1e38)  # no score is lower
FAR = tl.constexpr(-3e38)  # LOWEST as a float32
NEVER = tl.constexpr(float("inf"))
START = tl.constexpr(1e30)  # the error before the first iteration


@gpu_kernel
def _narrow(v, dtype: tl.constexpr):
    """Potentials in the type of the scores, with LOWEST clipped to the range of float32."""
    return tl.maximum(v, FAR).to(dtype)


@gpu_kernel
def _exponential(s, v, top):
    """Exponential of S + v − top, for potentials v in float64.

    In float32 the sum is formed with twice its digits, from two parts of v and the rounding error
    of the first sum: a GPU converts to float64 and back at an eighth of the rate at which it adds.
    """
    if s.dtype == tl.float64:
        return tl.exp(s + v - top)
    else:
        high = _narrow(v, tl.float32)
        low = (tl.maximum(v, FAR) - high).to(tl.float32)
        x = s + high
        back = x - s
        lost = tl.where(x > FAR, (s - (x - back)) + (high - back), 0.0)  # −∞ has no rounding error
        return tl.exp((x - top) + (lost + low))


@gpu_kernel
def _top_of_rows(s, v):
    """About the largest S + v of each row: exponentials relative to it do not overflow."""
    return tl.maximum(top_of_columns(s + _narrow(v, s.dtype)), EMPTY)


@gpu_kernel
def row_softmax(s, v):
    """Rows of exp(S + v) scaled to sum 1: K at the potentials v."""
    e = _exponential(s, v, _top_of_rows(s, v))
    return e * (1.0 / positive(over_columns(e)))


@gpu_kernel
def row_potential(s, v, a):
    """Potential u = log a − LSE(S + v) of each row; LOWEST for rows without mass."""
    top = _top_of_rows(s, v)
    total = positive(over_columns(_exponential(s, v, top)))
    return tl.where(a > 0, tl.log(positive(a) / total) - top.to(tl.float64), LOWEST)


@gpu_kernel
def first_potential(a, scale, n, N: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr):
    """Row potentials before the first iteration: 0; LOWEST in rows without mass.

    The first row after n vertices may stand for k padding vertices and starts at log k, which is
    equivalent to k rows that start at 0.
    """
    u = tl.where(a > 0, 0.0, LOWEST).to(tl.float64)
    if R > BIN:
        k = (a * scale).to(tl.float64)
        u = tl.where((row_ids(N) == n) & (a > 0), tl.log(positive(k)), u)
    return u


@gpu_kernel
def column_sums(s, u):
    """About the largest S + u of each column, and the sum of exp(S + u) relative to its exp."""
    top = tl.maximum(tl.max(s + _narrow(u, s.dtype), 1, keep_dims=True), EMPTY)
    return top.to(tl.float64), over_rows(_exponential(s, u, top))


@gpu_kernel
def close_columns(top, total, b):
    """Potential v = log b − LSE of each column from its column_sums; LOWEST without mass."""
    return tl.where(b > 0, tl.log(positive(b) / positive(total)) - top, LOWEST)


@gpu_kernel
def column_potential(s, u, b):
    """Potential v = log b − LSE(S + u) of each column of a tile with all rows of the problem."""
    top, total = column_sums(s, u)
    return close_columns(top, total, b)


@gpu_kernel
def shares(s, u, v, per_b):
    """Share Q = exp(S + u + v) / b that each row has in its columns, by exponentials."""
    return tl.exp((s.to(tl.float64) + u + v).to(s.dtype)) * per_b


@gpu_kernel
def reciprocal(b):
    """Reciprocals of the masses; 0 for 0."""
    return tl.where(b > 0, 1.0 / positive(b), 0.0)


@gpu_kernel
def since(v, base, per_b, dtype: tl.constexpr):
    """Scaling exp(v − base) of the columns, and whether it is safe in linear space (see judge)."""
    REACH: tl.constexpr = 90.0 if dtype == tl.float64 else 20.0
    moved = tl.where(per_b > 0, v - base, 0.0).to(dtype)
    safe = largest(tl.abs(moved)) <= REACH
    return tl.exp(tl.minimum(tl.maximum(moved, -REACH), REACH)), safe


@gpu_kernel
def judge(c, y, b, per_b, before, slope_error, slope_fall, tolerance, FAST: tl.constexpr):
    """Error, stopping rule and next scaling, from the column sums c = Kᵀx and the scaling y.

    The stopping rule is the reference's: stop when error · max(1, ρ / (1 − ρ)) is not above the
    tolerance. Here ρ / (1 − ρ) is stored as error / fall, where fall is the decrease of the error
    in one iteration. Float32 errors have noise of about 1e-7. There, a fall within NOISE is ignored
    and the previous pair is kept; and an error below FLAT, which may never shrink further, is
    accepted if that pair predicts PROMISE.

    The next scaling b / c is safe in linear space if no column sum is so small that entries lost to
    underflow could matter to it, and no scaling so large that they could matter to the rows.

    Returns:
        The error, the pair, whether the iteration is over, the next scaling, whether it is safe.
    """
    WIDE: tl.constexpr = c.dtype == tl.float64
    NOISE: tl.constexpr = 0.0 if WIDE else 2e-7
    FLAT: tl.constexpr = 4e-7
    PROMISE: tl.constexpr = 4e-6
    REACH: tl.constexpr = 1e40 if WIDE else 5e8
    FLOOR: tl.constexpr = 1e-100 if WIDE else 1e-16
    UNSAFE: tl.constexpr = 1e30
    mass = positive(b)
    c = tl.where(b > 0, c, mass)  # a column without mass has no error
    wrong = tl.where(b > 0, tl.abs(c * y * per_b - 1.0), 0.0)
    good = (c >= tl.maximum(mass * (1.0 / REACH), FLOOR)) & (c <= mass * REACH)
    error = largest(tl.where(good, wrong, UNSAFE))
    safe = error < UNSAFE
    if safe == 0:
        error = largest(wrong)
    fall = before - error
    slope_error = tl.where(fall > NOISE, error, slope_error)
    slope_fall = tl.where(fall > NOISE, fall, slope_fall)
    growing = (fall <= 0.0) if WIDE else (fall < -NOISE)
    slope_fall = tl.where(growing, 0.0, slope_fall)
    rest = error * slope_error
    over = (error <= tolerance) & (rest <= tolerance * slope_fall)
    if not WIDE:
        over = over | ((tolerance > 0) & (error <= FLAT) & (rest <= PROMISE * slope_fall))
    return error, slope_error, slope_fall, over, quotient(mass, c, FAST), safe


@gpu_kernel
def first_term(grad, k, a, n, P, J: tl.constexpr, N: tl.constexpr, L: tl.constexpr):
    """Gradient through the last row update: K ∘ a (G − Σ_k K G).

    Only differences of G within a row matter. Its value where the row's plan is largest is
    subtracted first, which avoids cancellation for nearly hard plans.
    """
    g = load_rows(grad, n, P, J, N, L)
    g -= top_of_columns(tl.where(k == top_of_columns(k), g, -NEVER))
    return k * (a * (g - over_columns(k * g)))


@gpu_kernel
def spread(beta, per_b):
    """Range of β over the columns with mass, which a constant added to all of β does not change."""
    alive = per_b > 0
    up, down = largest(tl.where(alive, beta, -NEVER)), largest(tl.where(alive, -beta, -NEVER))
    return tl.maximum(up + down, 0.0)


@gpu_kernel
def rest_of_series(now, before):
    """The rest of a geometric series with these last two terms; at least the last term."""
    fall = before - now
    rest = tl.where(fall > 0, now * tl.maximum(now / positive(fall), 1.0), NEVER)
    return tl.where(now > 0, rest, 0.0)


@gpu_kernel
def neumann(k, a, gv, per_b, t):
    """Multipliers of the columns at the fixed point: the sum of β, β′ = Kᵀ a K β / b, and so on.

    The series is summed until its rest is small relative to its first term. A constant added to β
    cancels against the rows' multipliers, so only the range of β counts.

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


@gpu_kernel
def replay(
    ds, k, a, scale, gv, v, per_b, scores, extra, bin_score, history, trail, t, n, P,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr, TRAIL: tl.constexpr,
):  # fmt: skip
    """Gradient of the truncated iteration, recomputed backwards from the column potentials.

    Column update t and row update t − 1 are, in the adjoint, with β = y · gv / b, y of t; and then
    with x = a / (K y), m = K β / (K y), y of t − 1,

        dS −= K ∘ x (β − y m),   gv = y · Kᵀ(x m).

    Where y is not safe in linear space, K is recomputed at t − 1, where y = 1, and x β by
    exponentials. The same is done for t = 1, which no row update precedes. With TRAIL, gv of each
    iteration is read from ``trail``, so that the tile may hold a part of the rows.

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
