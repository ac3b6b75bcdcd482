"""Updates of the transport in log space, and the rules by which its kernels decide.

Rows without mass have weight 0 and columns without mass the potential LOWEST, which underflows to
0 in every exponential and never makes a NaN, as −∞ would.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from softperm.ops.transport.gpu_tiles import (
    largest,
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


@triton.jit
@no_type_check
def _narrow(v, dtype: tl.constexpr):
    """Potentials in the type of the scores, LOWEST as far as a float32 goes."""
    return tl.maximum(v, FAR).to(dtype)


@triton.jit
@no_type_check
def _exponential(s, v, top):
    """Exponential of S + v − top, for potentials v in float64.

    In float32 the sum is formed with twice its digits, from two parts of v and what rounding left
    of the first sum: a GPU converts to float64 and back at an eighth of the rate at which it adds.
    """
    if s.dtype == tl.float64:
        return tl.exp(s + v - top)
    else:
        high = _narrow(v, tl.float32)
        low = (tl.maximum(v, FAR) - high).to(tl.float32)
        x = s + high
        back = x - s
        lost = tl.where(x > FAR, (s - (x - back)) + (high - back), 0.0)  # of −∞ nothing is
        return tl.exp((x - top) + (lost + low))


@triton.jit
@no_type_check
def _top_of_rows(s, v):
    """About the largest S + v of each row: exponentials in its units are neither large nor lost."""
    return tl.maximum(top_of_columns(s + _narrow(v, s.dtype)), EMPTY)


@triton.jit
@no_type_check
def row_softmax(s, v):
    """Rows of exp(S + v) scaled to sum 1: K at the potentials v."""
    e = _exponential(s, v, _top_of_rows(s, v))
    return e * (1.0 / positive(over_columns(e)))


@triton.jit
@no_type_check
def row_potential(s, v, a):
    """Potential u = log a − LSE(S + v) of each row; LOWEST for rows without mass."""
    top = _top_of_rows(s, v)
    total = positive(over_columns(_exponential(s, v, top)))
    return tl.where(a > 0, tl.log(positive(a) / total) - top.to(tl.float64), LOWEST)


@triton.jit
@no_type_check
def first_potential(a, scale, n, N: tl.constexpr, R: tl.constexpr, BIN: tl.constexpr):
    """Where the iteration starts: 0; LOWEST in rows without mass.

    The first row after n vertices may stand for k padding vertices: log k, as if it were k rows.
    """
    u = tl.where(a > 0, 0.0, LOWEST).to(tl.float64)
    if R > BIN:
        k = (a * scale).to(tl.float64)
        u = tl.where((row_ids(N) == n) & (a > 0), tl.log(positive(k)), u)
    return u


@triton.jit
@no_type_check
def column_sums(s, u):
    """About the largest S + u of each column, and the sum of exp(S + u) in units of its exp."""
    top = tl.maximum(tl.max(s + _narrow(u, s.dtype), 1, keep_dims=True), EMPTY)
    return top.to(tl.float64), over_rows(_exponential(s, u, top))


@triton.jit
@no_type_check
def close_columns(top, total, b):
    """Potential v = log b − LSE of each column from its column_sums; LOWEST without mass."""
    return tl.where(b > 0, tl.log(positive(b) / positive(total)) - top, LOWEST)


@triton.jit
@no_type_check
def column_potential(s, u, b):
    """Potential v = log b − LSE(S + u) of each column of a tile with all rows of the problem."""
    top, total = column_sums(s, u)
    return close_columns(top, total, b)


@triton.jit
@no_type_check
def shares(s, u, v, per_b):
    """Share Q = exp(S + u + v) / b that each row has in its columns, by exponentials."""
    return tl.exp((s.to(tl.float64) + u + v).to(s.dtype)) * per_b


@triton.jit
@no_type_check
def reciprocal(b):
    """One over the masses; 0 for 0."""
    return tl.where(b > 0, 1.0 / positive(b), 0.0)


@triton.jit
@no_type_check
def since(v, base, per_b, dtype: tl.constexpr):
    """Scaling exp(v − base) of the columns, and whether it is safe in linear space (see judge)."""
    REACH: tl.constexpr = 90.0 if dtype == tl.float64 else 20.0
    moved = tl.where(per_b > 0, v - base, 0.0).to(dtype)
    safe = largest(tl.abs(moved)) <= REACH
    return tl.exp(tl.minimum(tl.maximum(moved, -REACH), REACH)), safe


@triton.jit
@no_type_check
def judge(c, y, b, per_b, before, slope_error, slope_fall, tolerance, FAST: tl.constexpr):
    """Where an iteration stands, from the column sums c = Kᵀx and the columns' scaling y.

    The stopping rule is the reference's: stop when error · max(1, ρ / (1 − ρ)) is not above the
    tolerance. Here ρ / (1 − ρ) is kept as error / fall, the fall being that of the error in one
    iteration. Float32 errors carry noise of about 1e-7. So there a fall within NOISE says nothing
    and the last pair that was readable stands; and an error below FLAT, which may never shrink
    further, is enough if that pair promises PROMISE.

    The next scaling b / c is safe in linear space when no column's sum is so small that entries
    lost to underflow could matter to it, and no scaling so large that they could to the rows.

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
    c = tl.where(b > 0, c, mass)  # a column without mass holds what it should
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
