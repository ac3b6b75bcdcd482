"""What the Triton kernels of the transport share: tiles, updates in log space, the rules.

A tile holds some rows of one problem as (J, N, L): column k of the problem is ``(k // L, ·, k % L)``.
With L short of a warp, a warp spans several rows, and sums along rows and along columns both stay
mostly inside a thread. Vectors keep all three axes, (1, N, 1) over rows and (J, 1, L) over columns,
so that nothing is laid out anew between the updates.

Rows without mass have weight 0 and columns without mass the potential LOWEST, which underflows to
0 in every exponential and never makes a NaN, as −∞ would.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e300)
NEVER = tl.constexpr(float("inf"))


@triton.jit
def largest(x):
    """Largest entry of a tile."""
    return tl.max(tl.max(tl.max(x, 2), 1), 0)


@triton.jit
def smallest(x):
    """Smallest entry of a tile."""
    return tl.min(tl.min(tl.min(x, 2), 1), 0)


@triton.jit
def over_rows(x):
    """Sum over the rows of a tile: (J, 1, L)."""
    return tl.sum(x, 1, keep_dims=True)


@triton.jit
def over_columns(x):
    """Sum over the columns of a tile: (1, N, 1)."""
    return tl.sum(tl.sum(x, 0, keep_dims=True), 2, keep_dims=True)


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
    """Number of the row of each entry of a tile laid flat as (J · N, L): (J · N, 1)."""
    return (tl.arange(0, J * N) % N)[:, None]


@triton.jit
def flat_columns(J: tl.constexpr, N: tl.constexpr, L: tl.constexpr):
    """Number of the column of each entry of a tile laid flat: (J · N, L)."""
    return (tl.arange(0, J * N) // N)[:, None] * L + tl.arange(0, L)[None, :]


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
    rows, x, n, left, C,
    J: tl.constexpr, N: tl.constexpr, L: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Writes the R rows of a tile that follow the first n, those before row ``left``."""
    at = flat_rows(J, N) - n
    col = flat_columns(J, N, L)
    inside = (at >= 0) & (at < R) & (at < left - n) & (col < C)
    tl.store(rows + at * C + col, tl.reshape(x, (J * N, L)), mask=inside)


@triton.jit
def load_row_mass(row_mass, extra_mass, n, left, scale, N: tl.constexpr, R: tl.constexpr):
    """Mass of N rows as load_scores lays them, 0 from row ``left`` on, in units of ``scale``.

    Load it before the tile: the compiler lays out what they meet in as the last one loaded is.
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
    col = column_ids(J, L)
    b = tl.load(column_mass + col, mask=col < C, other=0.0)
    scale = tl.sum(tl.sum(tl.sum(b, 2), 1), 0)
    scale = tl.where(scale > 0, scale, 1.0)
    return b / scale, scale


@triton.jit
def row_softmax(s, v):
    """Rows of exp(S + v) scaled to sum 1, and the logarithm of what they summed to."""
    z = s.to(tl.float64) + v
    top = tl.max(tl.max(z, 0, keep_dims=True), 2, keep_dims=True)  # (1, N, 1)
    e = tl.exp((z - top).to(s.dtype))
    total = over_columns(e)
    return e * (1.0 / total), top + tl.log(total)


@triton.jit
def row_potential(lse, a):
    """Potential u = log a − LSE of each row; LOWEST for rows without mass."""
    return tl.where(a > 0, tl.log(tl.where(a > 0, a, 1.0)) - lse, LOWEST)


@triton.jit
def unit_potential(a):
    """Potential 0 of every row with mass, where the iteration starts; LOWEST for the others."""
    return tl.where(a > 0, 0.0, LOWEST).to(tl.float64)


@triton.jit
def column_sums(s, u):
    """Largest S + u of each column, and the sum of exp(S + u) in units of its exponential."""
    z = s.to(tl.float64) + u
    top = tl.max(z, 1, keep_dims=True)  # (J, 1, L)
    return top, over_rows(tl.exp((z - top).to(s.dtype)))


@triton.jit
def column_potential(top, total, b):
    """Potential v = log b − LSE of each column; LOWEST for columns without mass."""
    alive = b > 0
    return tl.where(alive, tl.log(tl.where(alive, b, 1.0) / total) - top, LOWEST)


@triton.jit
def scale_rows(k, y, a):
    """Weights x = a / (K y) that make the rows of x K y exact: (1, N, 1)."""
    r = over_columns(k * y)
    return a / tl.where(r > 0, r, 1.0)


@triton.jit
def judge(c, y, b, before, ahead, tolerance, WIDE: tl.constexpr):
    """Where an iteration stands: its error, whether it is over, and the next column scaling.

    The stopping rule is the reference's: stop when error · max(1, ρ / (1 − ρ)) is not above the
    tolerance, ρ = error / before. Float32 errors carry noise of about 1e-7. So there a change of
    the error below NOISE says nothing about ρ and the last ρ that was readable stands; and an
    error below FLAT, which may never shrink further, is enough if that ρ promises PROMISE.

    The next scaling is safe in linear space when no column's sum is so small that entries lost to
    underflow could matter to it, and no scaling so large that they could matter to the rows.
    """
    NOISE: tl.constexpr = 2e-7
    FLAT: tl.constexpr = 4e-7
    PROMISE: tl.constexpr = 4e-6
    REACH: tl.constexpr = 1e40 if WIDE else 5e8
    FLOOR: tl.constexpr = 1e-100 if WIDE else 1e-16
    alive = b > 0
    per_b = 1.0 / tl.where(alive, b, 1.0)
    error = largest(tl.where(alive, tl.abs(c * y * per_b - 1.0), 0.0))
    fall = before - error
    if WIDE:
        ahead = tl.where(fall > 0, tl.maximum(error / fall, 1.0), NEVER)
    else:
        ahead = tl.where(fall < -NOISE, NEVER, ahead)
        ahead = tl.where(fall > NOISE, tl.maximum(error / fall, 1.0), ahead)
    ahead = ahead.to(error.dtype)
    remaining = tl.where(error > 0, error * ahead, error)
    over = remaining <= tolerance
    if not WIDE:
        over = over | ((tolerance > 0) & (error <= FLAT) & (remaining <= PROMISE))
    y_next = tl.where(alive, b / tl.where(alive, c, 1.0), 1.0)
    good = (c >= FLOOR) & (y_next <= REACH) & (y_next >= 1.0 / REACH)
    safe = largest(tl.where(alive & (good == 0), 1, 0)) == 0
    return error, ahead, over, y_next, safe


@triton.jit
def since(v, base, alive, WIDE: tl.constexpr, dtype: tl.constexpr):
    """Scaling exp(v − base) of the columns, and whether it is safe in linear space (see judge)."""
    REACH: tl.constexpr = 90.0 if WIDE else 20.0
    moved = tl.where(alive, v - base, 0.0)
    safe = largest(tl.abs(moved)) <= REACH
    return tl.exp(tl.minimum(tl.maximum(moved, -REACH), REACH).to(dtype)), safe


@triton.jit
def shares(s, u, v, per_b):
    """Share Q = exp(S + u + v) / b that each row has in its columns, by exponentials."""
    return tl.exp((s.to(tl.float64) + u + v).to(s.dtype)) * per_b
