"""Sinkhorn's iteration on the CPU: one problem at a time, eight rows at a time.

A problem's (N, C) matrices are stored in blocks of eight rows, and column by column within a block:
entry (i, k) has index ``(i // 8 · C + k) · 8 + i % 8``. Sums along rows and along columns are then
both sums of whole vectors, whatever P is. The last block is filled up with rows of mass 0. Rows
that are switched off look the same: their scores are 0 and they have no weight.

The matrix K is the softmax of each row, K = softmax(S + w), at column potentials w, called the base
of K. Near its base an iteration needs no exponentials: potentials v = w + log y and row masses a
have the plan xᵢ Kᵢₖ yₖ with x = a / (K y).
"""

from __future__ import annotations

import math

import numpy as np

from softperm.ops.transport.cpu_vectors import (
    WIDTH,
    compiled,
    entry_point,
    exp,
    fill,
    fma,
    inlined,
    load,
    log,
    maximum,
    minimum,
    narrow,
    next_ticket,
    peak,
    splat,
    store,
    total,
    trough,
    where_less,
    widen,
)

FLUSH = 32
"""Blocks after which column sums are added to float64 sums: short sums lose fewer digits."""

SAFE = 20.0
"""Potentials up to this far from the base are scaled without exponentials: e^20 = 5e8."""

STARVED = 1e-22
"""Share of a problem's mass below which a column sum is not trusted. Terms that float32 loses to
underflow, scaled by e^20, amount to less than 1e-29 of the mass."""

NEAR, FAR, LOST = range(3)
"""Outcomes of a column update: it stays near the base, leaves it, or has too few digits."""


@compiled
def masses(m, g, ptr, row_mass, column_mass, extra_mass, a, b, log_b):
    """Copies a problem's masses; returns its number of blocks, or 0 if no row has any mass."""
    begin, n, extras = ptr[m, g], ptr[m, g + 1] - ptr[m, g], extra_mass.shape[2]
    blocks = (n + extras + WIDTH - 1) // WIDTH
    alive = False
    for i in range(blocks * WIDTH):
        mass = a[0] * 0
        if i < n:
            mass = row_mass[begin + i]
        elif i < n + extras:
            mass = extra_mass[m, g, i - n]
        a[i] = mass if mass > 0 else 0.0
        alive = alive or mass > 0
    for k in range(column_mass.shape[2]):
        b[k] = column_mass[m, g, k]
    for k in range(0, len(b), WIDTH):
        store(log_b, k, log(load(b, k)))
    return blocks if alive else 0


@compiled
def start_rows(blocks, a, padding, u):
    """Row potentials before the first iteration: 0; −∞ in rows without mass.

    Row ``padding``, if not negative, stands for k padding vertices and starts at log k, which is
    equivalent to k rows that start at 0.
    """
    for i in range(blocks * WIDTH):
        u[i] = 0.0 if a[i] > 0 else -np.inf
    if padding >= 0:
        u[padding] = np.log(float(a[padding]))


@compiled
def gather(m, g, blocks, c, scores, ptr, extra, bin_score, a, s):
    """Copies the scores of a problem's rows into blocks."""
    begin, n, p = ptr[m, g], ptr[m, g + 1] - ptr[m, g], scores.shape[1]
    for i in range(blocks * WIDTH):
        at = i // WIDTH * c * WIDTH + i % WIDTH
        if a[i] == 0:
            for k in range(c):
                s[at + k * WIDTH] = 0
        elif i < n:
            for k in range(p):
                s[at + k * WIDTH] = scores[begin + i, k]
            if c > p:
                s[at + p * WIDTH] = bin_score[m]
        else:
            for k in range(c):
                s[at + k * WIDTH] = extra[m, i - n, k]


@compiled
def rebase(blocks, c, s, base, a, kernel, log_sum, sums, wide):
    """K = softmax of each row of S + base, and its log-sum-exp; column sums Kᵀ a in float64."""
    sums[:] = 0.0
    for block in range(blocks):
        first = block * c * WIDTH
        mass = load(a, block * WIDTH)
        top = fill(mass, -np.inf)
        for k in range(c):
            top = maximum(top, load(s, first + k * WIDTH) + fill(mass, base[k]))
        shift = widen(top)
        held = fill(mass, 0.0)
        for k in range(c):
            at = first + k * WIDTH
            entry = exp(widen(load(s, at)) + (splat(base[k]) - shift), mass)
            store(kernel, at, entry)
            held = held + entry
        store(log_sum, block * WIDTH, shift + log(widen(held)))
        held, heavy = fill(mass, 1.0) / held, widen(mass)
        for k in range(c):
            at = first + k * WIDTH
            entry = load(kernel, at) * held
            store(kernel, at, entry)
            store(wide, k * WIDTH, fma(widen(entry), heavy, load(wide, k * WIDTH)))
    flush(c, sums, wide)


@inlined
def flush(c, sums, partial):
    """Adds the column sums of the last blocks to the float64 sums, and resets them to 0."""
    zero = fill(load(partial, 0), 0.0)
    for k in range(c):
        sums[k] += total(load(partial, k * WIDTH))
        store(partial, k * WIDTH, zero)


@compiled
def scale(blocks, c, divide, kernel, y, a, x, sums, partial):
    """With column weights y: x = a / (K y), or a · (K y) if not ``divide``; column sums Kᵀ x."""
    sums[:] = 0.0
    for four in range(blocks // 4):
        _scale_four(4 * four, c, divide, kernel, y, a, x, partial)
        if (4 * four + 4) % FLUSH == 0:
            flush(c, sums, partial)
    for block in range(blocks // 4 * 4, blocks):
        _scale_one(block, c, divide, kernel, y, a, x, partial)
    flush(c, sums, partial)


@compiled
def scale_finely(blocks, c, kernel, y, a, x, rounded, sums, wide):
    """:func:`scale` in float64, except K: the results do not depend on the order of the rows."""
    sums[:] = 0.0
    step = c * WIDTH
    for block in range(0, blocks // 2 * 2, 2):
        i, first = block * WIDTH, block * step
        x0 = x1 = splat(0.0)
        for k in range(c):
            at, weight = first + k * WIDTH, splat(y[k])
            x0 = fma(widen(load(kernel, at)), weight, x0)
            x1 = fma(widen(load(kernel, at + step)), weight, x1)
        x0, x1 = widen(load(a, i)) / x0, widen(load(a, i + WIDTH)) / x1
        _keep(i, x0, x, rounded)
        _keep(i + WIDTH, x1, x, rounded)
        for k in range(0, step, WIDTH):
            held = fma(widen(load(kernel, first + k)), x0, load(wide, k))
            store(wide, k, fma(widen(load(kernel, first + k + step)), x1, held))
    if blocks % 2:
        i, first = (blocks - 1) * WIDTH, (blocks - 1) * step
        x0 = splat(0.0)
        for k in range(c):
            x0 = fma(widen(load(kernel, first + k * WIDTH)), splat(y[k]), x0)
        x0 = widen(load(a, i)) / x0
        _keep(i, x0, x, rounded)
        for k in range(0, step, WIDTH):
            store(wide, k, fma(widen(load(kernel, first + k)), x0, load(wide, k)))
    flush(c, sums, wide)


@inlined
def _keep(i, scaling, x, rounded):
    """Stores the scalings of eight rows, in float64 and rounded."""
    store(x, i, scaling)
    store(rounded, i, narrow(scaling, load(rounded, i)))


@inlined
def _scale_four(block, c, divide, kernel, y, a, x, partial):
    """:func:`scale` on four blocks, so that each weight is read once for four."""
    i, first, step = block * WIDTH, block * c * WIDTH, c * WIDTH
    x0 = x1 = x2 = x3 = fill(load(a, i), 0.0)
    for k in range(c):
        at, weight = first + k * WIDTH, splat(y[k])
        x0 = fma(load(kernel, at), weight, x0)
        x1 = fma(load(kernel, at + step), weight, x1)
        x2 = fma(load(kernel, at + 2 * step), weight, x2)
        x3 = fma(load(kernel, at + 3 * step), weight, x3)
    x0 = _scaling(x0, i, divide, a, x)
    x1 = _scaling(x1, i + WIDTH, divide, a, x)
    x2 = _scaling(x2, i + 2 * WIDTH, divide, a, x)
    x3 = _scaling(x3, i + 3 * WIDTH, divide, a, x)
    for k in range(c):
        at = first + k * WIDTH
        even = fma(load(kernel, at), x0, load(partial, k * WIDTH))
        odd = load(kernel, at + step) * x1
        even = fma(load(kernel, at + 2 * step), x2, even)
        odd = fma(load(kernel, at + 3 * step), x3, odd)
        store(partial, k * WIDTH, even + odd)


@inlined
def _scale_one(block, c, divide, kernel, y, a, x, partial):
    """:func:`scale` on one block."""
    scaling = _scaling(_row_sums(block, c, kernel, y), block * WIDTH, divide, a, x)
    first = block * c * WIDTH
    for k in range(c):
        entry = load(kernel, first + k * WIDTH)
        store(partial, k * WIDTH, fma(entry, scaling, load(partial, k * WIDTH)))


@inlined
def _row_sums(block, c, kernel, y):
    """Row sums K y of one block; two sums side by side hide the latency of each."""
    first = block * c * WIDTH
    even = odd = fill(load(kernel, first), 0.0)
    for k in range(c // 2):
        at = first + 2 * k * WIDTH
        even = fma(load(kernel, at), splat(y[2 * k]), even)
        odd = fma(load(kernel, at + WIDTH), splat(y[2 * k + 1]), odd)
    if c % 2:
        even = fma(load(kernel, first + (c - 1) * WIDTH), splat(y[c - 1]), even)
    return even + odd


@inlined
def _scaling(held, i, divide, a, x):
    """The scalings of eight rows from their sums."""
    scaling = load(a, i) / held if divide else load(a, i) * held
    store(x, i, scaling)
    return scaling


@compiled
def log_columns(blocks, c, s, u, log_b, sums, v):
    """Column update in log space: v = log b − log Σᵢ exp(S + u), safe at any scores."""
    like, step = load(s, 0), c * WIDTH
    for k in range(c):
        top = fill(load(u, 0), -np.inf)
        for block in range(blocks):
            at = block * step + k * WIDTH
            top = maximum(top, widen(load(s, at)) + load(u, block * WIDTH))
        v[k] = peak(top)
        shift = splat(v[k])
        held = fill(load(u, 0), 0.0)
        for block in range(blocks):
            at = block * step + k * WIDTH
            argument = widen(load(s, at)) + (load(u, block * WIDTH) - shift)
            held = held + widen(exp(argument, like))
        sums[k] = total(held)
    for k in range(0, len(v), WIDTH):
        store(v, k, load(log_b, k) - (load(v, k) + log(load(sums, k))))


@entry_point
def forward(
    ticket, order, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    limit, tolerance, noise, fine, plan, history, used, error,
):  # fmt: skip
    """Solves the problems in ``order``, numbered m · B + b, the largest first.

    Threads that share one ``ticket`` (1,), initially 0, divide the problems among themselves.

    ``limit`` (M, B) is the largest number of iterations of each problem. A problem stops at
    ``tolerance`` as in the reference (never if it is negative), and always at an error of
    ``noise``, where rounding hides the rate of convergence. Below an error of ``fine`` weights and
    sums are float64, and only there may a problem stop, because float32 sums depend on the order of
    the rows, and neither the plan nor the number of iterations may. ``fine`` is 0 for float64
    problems and for those that do not stop early. Writes the results of ``cpu.forward``.
    """
    problems, c = column_mass.shape[1:]
    padded = extra.shape[1] > c - scores.shape[1]  # an extra row besides the dustbin's
    m, g = order[0] // problems, order[0] % problems
    n = (ptr[m, g + 1] - ptr[m, g] + extra.shape[1] + WIDTH - 1) // WIDTH * WIDTH
    wide = (c + WIDTH - 1) // WIDTH * WIDTH
    s, kernel = np.empty(n * c, scores.dtype), np.empty(n * c, scores.dtype)
    a, x, u = np.empty(n, scores.dtype), np.empty(n, scores.dtype), np.empty(n)
    b, log_b, base, v = np.zeros(wide), np.zeros(wide), np.zeros(wide), np.zeros(wide)
    sums, proposal = np.zeros(wide), np.zeros(wide)
    y, partial = np.ones(wide, scores.dtype), np.zeros(wide * WIDTH, scores.dtype)
    fine_x, fine_y, fine_partial = np.empty(n), np.ones(wide), np.zeros(wide * WIDTH)
    while True:
        turn = next_ticket(ticket)
        if turn >= len(order):
            return
        m, g = order[turn] // problems, order[turn] % problems
        blocks = masses(m, g, ptr, row_mass, column_mass, extra_mass, a, b, log_b)
        if blocks == 0:  # as in the reference: no mass, so no error
            used[m, g], error[m, g] = 1, 0.0
            history[m, g] = 0.0
            continue
        gather(m, g, blocks, c, scores, ptr, extra, bin_score, a, s)
        start_rows(blocks, a, ptr[m, g + 1] - ptr[m, g] if padded else -1, u)
        used[m, g], error[m, g], finely = _solve(
            blocks, c, s, a, b, log_b, kernel, x, u, base, v, y, sums, proposal, partial,
            fine_x, fine_y, fine_partial, limit[m, g], tolerance, noise, fine, history[m, g],
        )  # fmt: skip
        history[m, g, used[m, g] :] = 0.0  # no uninitialised memory in the result
        if finely:
            _write_plan(ptr[m, g], ptr[m, g + 1], c, kernel, fine_x, fine_y, plan)
        else:
            _write_plan(ptr[m, g], ptr[m, g + 1], c, kernel, x, y, plan)


@compiled
def _write_plan(begin, end, c, kernel, x, y, plan):
    """The vertices' rows of xᵢ Kᵢₖ yₖ."""
    for i in range(end - begin):
        first = i // WIDTH * c * WIDTH + i % WIDTH
        for k in range(plan.shape[1]):
            plan[begin + i, k] = kernel[first + k * WIDTH] * y[k] * x[i]


@compiled
def _solve(
    blocks, c, s, a, b, log_b, kernel, x, u, base, v, y, sums, proposal, partial,
    fine_x, fine_y, fine_partial, limit, tolerance, noise, fine, history,
):  # fmt: skip
    """Solves one problem from row potentials u; the plan is left as x, K and y.

    Returns the iterations used, the remaining error, and whether the float64 x and y hold.
    """
    mass = 0.0
    for i in range(blocks * WIDTH):
        mass += a[i]
    log_columns(blocks, c, s, u, log_b, sums, v)
    used, error, change, finely = 0, np.inf, FAR, False
    while True:
        settled = finely or change != NEAR  # whether the weights come from float64 sums
        finely = change == NEAR and error <= fine
        if finely:
            scale_finely(blocks, c, kernel, fine_y, a, fine_x, x, sums, fine_partial)
        elif change == NEAR:
            scale(blocks, c, True, kernel, y, a, x, sums, partial)
        else:
            for k in range(0, len(v), WIDTH):
                store(base, k, load(v, k))
            for i in range(0, blocks * WIDTH, WIDTH):
                store(x, i, load(a, i))
            y[:], fine_y[:] = 1.0, 1.0
            rebase(blocks, c, s, base, a, kernel, u, sums, fine_partial)
        for k in range(c):
            history[used, k] = v[k]
        used += 1
        before = error
        if finely:
            error, change = _propose(b, sums, fine_y, STARVED * mass, proposal)
        else:
            error, change = _propose(b, sums, y, STARVED * mass, proposal)
        ripe = fine == 0 or (finely and settled)
        if used == limit or (ripe and _stops(error, before, tolerance, noise)):
            return used, error, finely
        if change == LOST:
            for i in range(0, blocks * WIDTH, WIDTH):
                store(u, i, log(widen(load(x, i))) - load(u, i))
            log_columns(blocks, c, s, u, log_b, sums, v)
        elif not _accept(change == NEAR, proposal, base, y, fine_y, v) and ripe and tolerance >= 0:
            return used, error, finely  # the weights no longer change, so nothing else would


@inlined
def _propose(b, sums, y, floor, proposal):
    """Weights b / sums; returns the columns' relative error and the outcome of the update."""
    zero, one, top = splat(0.0), splat(1.0), splat(np.inf)
    error, low, high, least = zero, one, one, top
    for k in range(0, len(b), WIDTH):
        mass, held = load(b, k), load(sums, k)
        weight = where_less(zero, mass, mass / held, one)
        store(proposal, k, where_less(zero, mass, weight, zero))
        gap = where_less(zero, mass, widen(load(y, k)) / weight - one, zero)
        error = maximum(error, maximum(gap, zero - gap))
        low, high = minimum(low, weight), maximum(high, weight)
        least = minimum(least, where_less(zero, mass, held, top))
    change = NEAR
    if not trough(least) > floor:
        change = LOST
    elif peak(high) > math.exp(SAFE) or trough(low) < math.exp(-SAFE):
        change = FAR
    return peak(error), change


@inlined
def _accept(near, proposal, base, y, fine_y, v):
    """Updates the potentials v and, if ``near``, the weights; returns whether anything changed."""
    like = load(y, 0)
    moved = fill(like, 0.0 if near else 1.0)
    for k in range(0, len(v), WIDTH):
        weight = load(proposal, k)
        store(v, k, load(base, k) + log(weight))
        if near:
            rounded = narrow(weight, like)
            step = rounded - load(y, k)
            moved = maximum(moved, maximum(step, fill(like, 0.0) - step))
            store(y, k, rounded)
            store(fine_y, k, weight)
    return peak(moved) > 0


@compiled
def _stops(error, before, tolerance, noise):
    """Whether the remaining change, a geometric series of errors, is not above the tolerance."""
    if error <= noise:
        return True
    rate = error / before if before > 0 else 0.0
    if rate >= 1:
        return error <= 0
    return error * max(1.0, rate / (1 - rate)) <= tolerance
