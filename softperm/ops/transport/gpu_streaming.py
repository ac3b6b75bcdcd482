"""Transport problems too large for the registers of one program: groups of programs share them.

The iteration is that of ``gpu_on_chip``. The kernel matrix K is in memory, where it stays in the
caches, and each iteration reads it once: a tile of K gives the scalings of its rows and, with
these, the tile's part of the next column sums. The programs of a group exchange potentials and sums
of the columns, so all of them take the same decisions.

All programs run on the device at once (a cooperative launch). The rows of the large problems are
cut into parts of about equal size, at most GROUP for a problem, numbered across all problems. A
free program takes the next number: problems differ in their number of iterations, and a program
with a long problem takes fewer parts. The parts of a problem exchange columns through memory and
wait for each other there. There is no deadlock: the first unfinished problem has at most as many
parts as there are programs, and each of its parts is taken once all parts before it are finished.

In the gradient, an iteration couples the rows only through gv, a vector over the columns. One pass
over K for each iteration computes gv of every iteration, which each program stores in its
``trail``. Then every tile replays all iterations by itself, in registers, and writes its gradient
once.
"""

from __future__ import annotations

import triton.language as tl

from softperm.jit import gpu_kernel
from softperm.ops.transport.gpu_tiles import (
    column_ids,
    flat_columns,
    flat_rows,
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
    NEVER,
    START,
    close_columns,
    column_sums,
    first_potential,
    first_term,
    judge,
    reciprocal,
    replay,
    rest_of_series,
    row_potential,
    row_softmax,
    shares,
    since,
    spread,
)

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


@gpu_kernel(do_not_specialize=["problems", "B", "V", "P", "iterations", "lower"])
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


@gpu_kernel
def _solve(
    scores, row_mass, column_mass, extra, extra_mass, bin_score, plan, history, used, error,
    kernel, potential, beyond, board, counter, place, parts, lo, hi, n, P, iterations, tolerance,
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


@gpu_kernel
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
