"""The kernels of the transport on the GPU, in Triton.

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


# Updates of the transport on one tile of the GPU: in log space, its stopping rule, its gradient.
#
# Rows without mass have weight 0. Columns without mass have the potential LOWEST: unlike −∞, it
# underflows to 0 in every exponential and never produces a NaN.


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
    """Row potentials before the first iteration: log k in a row of mass k, LOWEST for no mass.

    A row then stands for k equal vertices that start at 0 each. The dustbin's row, the last of the
    R rows after n vertices, starts at 0 whatever its mass.
    """
    u = tl.log(positive((a * scale).to(tl.float64)))
    if BIN:
        u = tl.where(row_ids(N) == n + R - 1, 0.0, u)
    return tl.where(a > 0, u, LOWEST)


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


# Transport problems that fit on chip: one program each, read once and written once.
#
# The kernel matrix K, the rows of exp(S + v) scaled to sum 1 at some potentials v, stays in
# registers. An iteration is then two sums of products, with scalings y of columns and x of rows:
# c = Kᵀx, y = b / c, x = a / (K y). Where that would not be safe (see ``judge``), the iteration is
# done in log space from the scores, which also absorbs the scalings so far into K.


@gpu_kernel(do_not_specialize=["B", "P", "iterations", "kept", "lower"])
def forward_chip(
    scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    plan, history, used, error,
    B, P, iterations, kept, tolerance, lower,
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
        _solve_on_chip(
            scores + start * P, row_mass + start, column_mass + problem * C,
            extra + model * R * C, extra_mass + problem * R, bin_score + model,
            plan + start * P, history + problem * kept * C, used + problem, error + problem,
            n, P, iterations, kept, tolerance, J, N, L, R, BIN, FAST,
        )  # fmt: skip


@gpu_kernel
def _solve_on_chip(
    scores, row_mass, column_mass, extra, extra_mass, bin_score, plan, history, used, error,
    n, P, iterations, kept, tolerance,
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
            store_columns(history + tl.minimum(t, kept - 1) * C, v + tl.log(y), C, J, L)
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
            store_columns(history + tl.minimum(t, kept - 1) * C, v, C, J, L)
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
        _gradient_on_chip(
            grad + start * P, scores + start * P, row_mass + start, column_mass + problem * C,
            extra + model * R * C, extra_mass + problem * R, bin_score + model,
            history + problem * iterations * C, used + problem,
            d_scores + start * P, d_extra + problem * R * C, d_bin + problem,
            n, P, iterations, implicit, J, N, L, R, BIN, FAST,
        )  # fmt: skip


@gpu_kernel
def _gradient_on_chip(
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


# Transport problems too large for the registers of one program: groups of programs share them.
#
# The iteration is that of problems on chip. The kernel matrix K is in memory, where it stays in the
# caches, and each iteration reads it once: a tile of K gives the scalings of its rows and, with
# these, the tile's part of the next column sums. The programs of a group exchange potentials and
# sums of the columns, so all of them take the same decisions.
#
# All programs run on the device at once (a cooperative launch). The rows of the large problems are
# cut into parts of about equal size, at most GROUP for a problem, numbered across all problems. A
# free program takes the next number: problems differ in their number of iterations, and a program
# with a long problem takes fewer parts. The parts of a problem exchange columns through memory and
# wait for each other there. There is no deadlock: the first unfinished problem has at most as many
# parts as there are programs, and each of its parts is taken once all parts before it are finished.
#
# In the gradient, an iteration couples the rows only through gv, a vector over the columns. One
# pass over K for each iteration computes gv of every iteration, which each program stores in its
# ``trail``. Then every tile replays all iterations by itself, in registers, and writes its gradient
# once.


SCAN = tl.constexpr(512)


@gpu_kernel
def _sizes(ptr, begin, problems, B, lower, R: tl.constexpr):
    """Rows of SCAN problems; 0 for those that fit on chip."""
    problem = begin + tl.arange(0, SCAN)
    inside = problem < problems
    at = problem + problem // B
    n = tl.load(ptr + at + 1, mask=inside, other=0) - tl.load(ptr + at, mask=inside, other=0)
    return tl.where(inside & (n + R > lower), n + R, 0)


@gpu_kernel
def rows_per_part(ptr, problems, B, lower, programs, R: tl.constexpr, N: tl.constexpr):
    """Rows of a part so that every program gets one: at least a tile."""
    rows = tl.zeros([], tl.int64)
    for begin in range(0, problems, SCAN):
        rows += tl.sum(_sizes(ptr, begin, problems, B, lower, R), 0)
    return tl.maximum(tl.cdiv(rows, programs), N)


@gpu_kernel
def locate(ptr, problems, B, lower, q, rows, R: tl.constexpr, GROUP: tl.constexpr):
    """Problem of part q, its place among the parts of the problem, and their number; 0 if none."""
    problem = tl.zeros([], tl.int64)
    place = tl.zeros([], tl.int64)
    parts = tl.zeros([], tl.int64)
    before = tl.zeros([], tl.int64)
    for begin in range(0, problems, SCAN):
        size = _sizes(ptr, begin, problems, B, lower, R)
        count = tl.minimum(tl.cdiv(size, rows), GROUP)
        end = before + tl.cumsum(count, 0)
        mine = (q < end) & (q >= end - count)
        problem += tl.sum(tl.where(mine, begin + tl.arange(0, SCAN), 0), 0)
        place += tl.sum(tl.where(mine, q - (end - count), 0), 0)
        parts += tl.sum(tl.where(mine, count, 0), 0)
        before += tl.sum(count, 0)
    return problem, place, parts


@gpu_kernel
def exchange(
    x, board, counter, place, parts, turn, C,
    GROUP: tl.constexpr, J: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Sum of x (J, 1, L) over the parts of a problem: the same bits in all of them.

    ``board`` has two pages with two vectors for each part, used alternately: a part that writes a
    page for the second time has seen all parts arrive at the other page, so all have read it.

    Returns:
        The sum, in the type of the board, and the next turn.
    """
    x = x.to(board.dtype.element_ty)
    turn += parts * 0
    if parts > 1:
        page = board + (turn % 2) * parts * 2 * C
        store_columns(page + place * 2 * C, x, C, J, L)
        turn = _meet(counter, parts, turn)
        x = over_rows(_read(page, parts, C, 0.0, GROUP, J, L))
    return x, turn


@gpu_kernel
def exchange_sums(
    top, total, board, counter, place, parts, turn, C,
    GROUP: tl.constexpr, J: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """As ``exchange``, for sums ``total`` relative to exp(top), where parts differ in ``top``.

    Returns:
        The largest top, the sum relative to it in the type of the board, and the next turn.
    """
    dtype: tl.constexpr = total.dtype
    total = total.to(board.dtype.element_ty)
    turn += parts * 0
    if parts > 1:
        page = board + (turn % 2) * parts * 2 * C
        store_columns(page + place * 2 * C, top, C, J, L)
        store_columns(page + place * 2 * C + C, total, C, J, L)
        turn = _meet(counter, parts, turn)
        tops = _read(page, parts, C, LOWEST, GROUP, J, L)
        totals = _read(page + C, parts, C, 0.0, GROUP, J, L)
        top = tl.max(tops, 1, keep_dims=True)
        total = over_rows(totals * tl.exp((tops - top).to(dtype)))
    return top, total, turn


@gpu_kernel
def _meet(counter, parts, turn):
    """Waits for all parts of a problem; afterwards their earlier writes can be read."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")
    while tl.atomic_add(counter, 0, sem="acquire") < parts * (turn + 1):
        pass
    return turn + 1


@gpu_kernel
def _read(
    page, parts, C, other: tl.constexpr, GROUP: tl.constexpr, J: tl.constexpr, L: tl.constexpr
):
    """The first vectors of all parts on a page: (J, GROUP, L)."""
    at = flat_rows(J, GROUP)
    col = flat_columns(J, GROUP, L)
    inside = (at < parts) & (col < C)
    every = tl.load(page + at * 2 * C + col, mask=inside, other=other, cache_modifier=".cg")
    return tl.reshape(every, (J, GROUP, L))


@gpu_kernel
def _place(row, n, beyond, R: tl.constexpr):
    """Position of a row in memory: extra rows follow ``beyond`` all vertices."""
    if R > 0:
        row = tl.where(row < n, row, beyond + row - n)
    return row


@gpu_kernel
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


@gpu_kernel
def store_kernel(
    kernel, k, beyond, first, hi, n, C,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Writes K of the rows from ``first`` up to ``hi``. Threads may read it after a barrier."""
    row = flat_rows(J, N)
    col = flat_columns(J, N, L)
    at = _place(row, n - first, beyond - first, R) * C + col
    tl.store(
        kernel + first * C + at, tl.reshape(k, (J * N, L)), mask=(row < hi - first) & (col < C)
    )


@gpu_kernel
def _load_potential(rows, beyond, first, hi, n, N: tl.constexpr, R: tl.constexpr):
    """Potentials of the rows from ``first``, as _store_potential wrote them: (1, N, 1)."""
    row = row_ids(N)
    at = _place(row, n - first, beyond - first, R)
    return tl.load(rows + first + at, mask=row < hi - first, other=LOWEST)


@gpu_kernel
def _store_potential(rows, u, beyond, first, hi, n, N: tl.constexpr, R: tl.constexpr):
    """Writes potentials of the rows from ``first`` up to ``hi``."""
    row = row_ids(N)
    at = _place(row, n - first, beyond - first, R)
    tl.store(rows + first + at, u, mask=row < hi - first)


@gpu_kernel(do_not_specialize=["problems", "B", "V", "P", "iterations", "kept", "lower"])
def forward_stream(
    scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    plan, history, used, error, kernel, board, counter, potential,
    problems, B, V, P, iterations, kept, tolerance, lower,
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
            _solve_shared(
                scores + start * P, row_mass + start, column_mass + problem * C,
                extra + model * R * C, extra_mass + problem * R, bin_score + model,
                plan + start * P, history + problem * kept * C,
                used + problem, error + problem,
                kernel + start * C, potential + start, V + problem * R - start,
                board + (q - place) * 4 * C, counter + problem, place, parts,
                lo, tl.minimum(lo + size, n + R), n, P, iterations, kept, tolerance,
                J, N, L, R, BIN, FAST, GROUP,
            )  # fmt: skip


@gpu_kernel
def _solve_shared(
    scores, row_mass, column_mass, extra, extra_mass, bin_score, plan, history, used, error,
    kernel, potential, beyond, board, counter, place, parts, lo, hi, n, P, iterations, kept,
    tolerance,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    FAST: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One part of a problem, the rows lo to hi: the same steps as in ``gpu_on_chip``."""
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
            b = tl.where(top > 0.5 * EMPTY, b, 0.0)  # a problem without rows stops at once
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
            store_columns(history + tl.minimum(t, kept - 1) * C, v + tl.log(y), C, J, L)
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


@gpu_kernel
def _sum_columns(
    scores, row_mass, extra, extra_mass, bin_score, kernel, potential, beyond, y, t,
    board, counter, place, parts, turn, lo, hi, n, P, scale,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Column sums of exp(S + u) over a whole problem, u that of the rows.

    The rows' potentials were stored when K was formed; since then the columns were scaled by y.

    Returns:
        About the largest exponent of each column, the sum relative to it, and the next turn.
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
    tl.debug_barrier()  # K and the potentials were read above and are written next
    top, total_all, turn = exchange_sums(
        top, total, board, counter, place, parts, turn, C, GROUP, J, L
    )
    return top, total_all.to(dtype), turn


@gpu_kernel(do_not_specialize=["problems", "B", "V", "P", "iterations", "implicit", "lower"])
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
            _gradient_shared(
                grad + start * P, scores + start * P, row_mass + start, column_mass + problem * C,
                extra + model * R * C, extra_mass + problem * R, bin_score + model,
                history + problem * iterations * C, used + problem,
                d_scores + start * P, d_extra + problem * R * C, d_bin + problem,
                kernel + start * C, V + problem * R - start,
                board + (q - place) * 4 * C, counter + problem, place, parts, trail,
                lo, tl.minimum(lo + size, n + R), n, P, iterations, implicit,
                J, N, L, R, BIN, FAST, GROUP,
            )  # fmt: skip


@gpu_kernel
def _gradient_shared(
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


@gpu_kernel
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


@gpu_kernel
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
