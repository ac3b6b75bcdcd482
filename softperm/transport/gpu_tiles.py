"""What the Triton kernels of the transport share: tiles, updates in log space, the rules.

A tile holds N rows of one problem as (J, N, L): its entry ``(j, i, l)`` is row i, column j · L + l.
With L short of a warp, a warp spans several rows, and a thread holds the entries of all j: so sums
along rows and along columns both stay mostly inside threads. Vectors keep all three axes, (1, N, 1)
over rows and (J, 1, L) over columns, and nothing is laid out anew between the updates.

How a tile lies in the threads is the compiler's choice, which follows the loads. So tiles are
loaded flat, as (J · N, L), where it has only one; and vectors over columns in J pieces, too small
to count.

Rows without mass have weight 0 and columns without mass the potential LOWEST, which underflows to
0 in every exponential and never makes a NaN, as −∞ would.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

LOWEST = tl.constexpr(-1e300)
EMPTY = tl.constexpr(-1e38)  # no score is lower
NEVER = tl.constexpr(float("inf"))
START = tl.constexpr(1e30)  # the error before the first iteration


@triton.jit
def over_rows(x):
    """Sum over the rows of a tile: (J, 1, L)."""
    return tl.sum(x, 1, keep_dims=True)


@triton.jit
def over_columns(x):
    """Sum over the columns of a tile: (1, N, 1)."""
    return tl.sum(tl.sum(x, 0, keep_dims=True), 2, keep_dims=True)


@triton.jit
def top_of_columns(x):
    """Largest entry of each row of a tile: (1, N, 1)."""
    return tl.max(tl.max(x, 0, keep_dims=True), 2, keep_dims=True)


@triton.jit
def everything(x):
    """Sum of all entries."""
    return tl.sum(tl.sum(tl.sum(x, 0), 0), 0)


@triton.jit
def largest(x):
    """Largest of all entries."""
    return tl.max(tl.max(tl.max(x, 0), 0), 0)


@triton.jit
def positive(x):
    """1 in the place of 0: for sums over what is not there."""
    return tl.where(x > 0, x, 1.0)


@triton.jit
def quotient(x, y, FAST: tl.constexpr):
    """Quotient x / y; with FAST by the reciprocal unit: two instructions, to two last bits."""
    if FAST:
        return libdevice.fast_dividef(x, y)
    else:
        return x / y


@triton.jit
def logarithm(x, FAST: tl.constexpr):
    """Natural logarithm; with FAST by the logarithm unit, to an absolute error of about 2e-7."""
    if FAST:
        return libdevice.fast_logf(x)
    else:
        return tl.log(x)


@triton.jit
def column_ids(J: tl.constexpr, L: tl.constexpr):
    """Number of each column: (J, 1, L)."""
    return tl.arange(0, J)[:, None, None] * L + tl.arange(0, L)[None, None, :]


@triton.jit
def row_ids(N: tl.constexpr):
    """Number of each row of a tile: (1, N, 1)."""
    return tl.arange(0, N)[None, :, None]


@triton.jit
def flat_rows(J: tl.constexpr, N: tl.constexpr):
    """Number of the row of each entry of a tile laid flat: (J · N, 1)."""
    return (tl.arange(0, J * N) % N)[:, None]


@triton.jit
def flat_columns(J: tl.constexpr, N: tl.constexpr, L: tl.constexpr):
    """Number of the column of each entry of a tile laid flat: (J · N, L)."""
    return (tl.arange(0, J * N) // N)[:, None] * L + tl.arange(0, L)[None, :]


@triton.jit
def load_columns(columns, C, other: tl.constexpr, J: tl.constexpr, L: tl.constexpr):
    """A vector over the columns from memory: (J, 1, L)."""
    j = tl.arange(0, J)[:, None, None]
    lane = tl.arange(0, L)[None, None, :]
    x = tl.full([J, 1, L], other, columns.dtype.element_ty)
    for i in tl.static_range(J):
        piece = tl.load(columns + i * L + lane, mask=i * L + lane < C, other=other)
        x = tl.where(j == i, piece, x)
    return x


@triton.jit
def store_columns(columns, x, C, J: tl.constexpr, L: tl.constexpr):
    """Writes a vector over the columns."""
    j = tl.arange(0, J)[:, None, None]
    lane = tl.arange(0, L)[None, None, :]
    for i in tl.static_range(J):
        piece = tl.sum(tl.where(j == i, x, 0.0), 0, keep_dims=True)
        tl.store(columns + i * L + lane, piece, mask=i * L + lane < C)


@triton.jit
def load_rows(rows, n, P, J: tl.constexpr, N: tl.constexpr, L: tl.constexpr):
    """The first n rows and P columns from memory as a tile; 0 elsewhere."""
    row = flat_rows(J, N)
    col = flat_columns(J, N, L)
    x = tl.load(rows + row * P + col, mask=(row < n) & (col < P), other=0.0)
    return tl.reshape(x, (J, N, L))


@triton.jit
def store_rows(rows, x, n, P, J: tl.constexpr, N: tl.constexpr, L: tl.constexpr):
    """Writes the first n rows and P columns of a tile."""
    row = flat_rows(J, N)
    col = flat_columns(J, N, L)
    tl.store(rows + row * P + col, tl.reshape(x, (J * N, L)), mask=(row < n) & (col < P))


@triton.jit
def store_extra(
    rows, x, n, left, C, J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr
):
    """Writes the R rows of a tile that follow the first n, those before row ``left``."""
    at = flat_rows(J, N) - n
    col = flat_columns(J, N, L)
    inside = (at >= 0) & (at < R) & (at < left - n) & (col < C)
    tl.store(rows + at * C + col, tl.reshape(x, (J * N, L)), mask=inside)


@triton.jit
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


@triton.jit
def load_row_mass(row_mass, extra_mass, n, left, scale, N: tl.constexpr, R: tl.constexpr):
    """Mass of N rows as load_scores lays them, 0 from row ``left`` on, in units of ``scale``.

    Load it before the tile: where they meet, the compiler prefers the layout loaded last.
    """
    n = n.to(tl.int32)
    row = row_ids(N)
    a = tl.load(row_mass + row, mask=(row < n) & (row < left), other=0.0)
    if R > 0:
        at = row - n
        a += tl.load(extra_mass + at, mask=(at >= 0) & (at < R) & (row < left), other=0.0)
    return a / scale


@triton.jit
def load_column_mass(column_mass, C, J: tl.constexpr, L: tl.constexpr):
    """Mass of each column in units of their sum, and that sum."""
    b = load_columns(column_mass, C, 0.0, J, L)
    scale = positive(everything(b))
    return b / scale, scale


@triton.jit
def _top_of_rows(s, v):
    """About the largest S + v of each row: exponentials in its units are neither large nor lost."""
    return tl.maximum(top_of_columns(s + v.to(s.dtype)), EMPTY).to(tl.float64)


@triton.jit
def row_softmax(s, v):
    """Rows of exp(S + v) scaled to sum 1: K at the potentials v."""
    e = tl.exp((s.to(tl.float64) + v - _top_of_rows(s, v)).to(s.dtype))
    return e * (1.0 / positive(over_columns(e)))


@triton.jit
def row_potential(s, v, a):
    """Potential u = log a − LSE(S + v) of each row; LOWEST for rows without mass."""
    top = _top_of_rows(s, v)
    e = tl.exp((s.to(tl.float64) + v - top).to(s.dtype))
    return tl.where(a > 0, tl.log(positive(a) / positive(over_columns(e))) - top, LOWEST)


@triton.jit
def unit_potential(a):
    """Potential 0 of every row with mass, where the iteration starts; LOWEST for the others."""
    return tl.where(a > 0, 0.0, LOWEST).to(tl.float64)


@triton.jit
def column_sums(s, u):
    """About the largest S + u of each column, and the sum of exp(S + u) in units of its exp."""
    top = tl.maximum(tl.max(s + u.to(s.dtype), 1, keep_dims=True), EMPTY).to(tl.float64)
    return top, over_rows(tl.exp((s.to(tl.float64) + u - top).to(s.dtype)))


@triton.jit
def column_potential(top, total, b):
    """Potential v = log b − LSE of each column; LOWEST for columns without mass."""
    return tl.where(b > 0, tl.log(positive(b) / positive(total)) - top, LOWEST)


@triton.jit
def shares(s, u, v, per_b):
    """Share Q = exp(S + u + v) / b that each row has in its columns, by exponentials."""
    return tl.exp((s.to(tl.float64) + u + v).to(s.dtype)) * per_b


@triton.jit
def reciprocal(b):
    """One over the masses; 0 for 0."""
    return tl.where(b > 0, 1.0 / positive(b), 0.0)


@triton.jit
def since(v, base, per_b, dtype: tl.constexpr):
    """Scaling exp(v − base) of the columns, and whether it is safe in linear space (see judge)."""
    REACH: tl.constexpr = 90.0 if dtype == tl.float64 else 20.0
    moved = tl.where(per_b > 0, v - base, 0.0).to(dtype)
    safe = largest(tl.abs(moved)) <= REACH
    return tl.exp(tl.minimum(tl.maximum(moved, -REACH), REACH)), safe


@triton.jit
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
