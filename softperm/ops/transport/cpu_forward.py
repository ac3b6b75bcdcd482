"""Sinkhorn's iteration on CPU, problem by problem."""

from __future__ import annotations

import math
from typing import no_type_check

import numpy as np

from softperm.ops.transport.lanes import (
    WIDTH,
    compiled,
    entry,
    fill,
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
    trough,
    where_less,
    widen,
)
from softperm.ops.transport.passes import (
    gather,
    log_columns,
    masses,
    rebase,
    scale,
    scale_finely,
    start_rows,
)

SAFE = 20.0
"""Potentials this far from the base are still scaled without exponentials: e^20 = 5e8."""

STARVED = 1e-22
"""Share of a problem's mass below which a column sum is not trusted: what float32 has lost below
its smallest number, e^20 times scaled, is less than 1e-29 of the mass."""

NEAR, FAR, LOST = range(3)
"""What a column update does: stay near the base, leave it, or fail for want of digits."""


@entry
@no_type_check
def forward(
    ticket, order, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    limit, tolerance, noise, fine, plan, history, used, error,
):  # fmt: skip
    """Solves the problems in ``order``, numbered m · B + b, the largest first.

    Threads that are given one ``ticket`` (1,), at first 0, share the problems out. ``limit`` (M, B)
    is how many iterations each may take; at ``tolerance`` it stops as in the reference, below 0
    never, and in any case at an error of ``noise``, where rounding hides how fast it converges.
    From an error of ``fine`` on, weights and sums are float64, and only then may it stop: neither
    the stop nor the plan may depend on the order of the rows, which float32 sums do. 0 is for
    problems that are float64 anyhow, or that are not to stop. Writes what ``cpu.forward`` returns.
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
        if blocks == 0:  # as in the reference: nothing to move, so nothing is wrong
            used[m, g], error[m, g] = 1, 0.0
            history[m, g] = 0.0
            continue
        gather(m, g, blocks, c, scores, ptr, extra, bin_score, a, s)
        start_rows(blocks, a, ptr[m, g + 1] - ptr[m, g] if padded else -1, u)
        used[m, g], error[m, g], finely = _solve(
            blocks, c, s, a, b, log_b, kernel, x, u, base, v, y, sums, proposal, partial,
            fine_x, fine_y, fine_partial, limit[m, g], tolerance, noise, fine, history[m, g],
        )  # fmt: skip
        history[m, g, used[m, g] :] = 0.0  # what is not used is not left to chance
        if finely:
            _write_plan(ptr[m, g], ptr[m, g + 1], c, kernel, fine_x, fine_y, plan)
        else:
            _write_plan(ptr[m, g], ptr[m, g + 1], c, kernel, x, y, plan)


@compiled
@no_type_check
def _write_plan(begin, end, c, kernel, x, y, plan):
    """The vertices' rows of xᵢ Kᵢₖ yₖ."""
    for i in range(end - begin):
        first = i // WIDTH * c * WIDTH + i % WIDTH
        for k in range(plan.shape[1]):
            plan[begin + i, k] = kernel[first + k * WIDTH] * y[k] * x[i]


@compiled
@no_type_check
def _solve(
    blocks, c, s, a, b, log_b, kernel, x, u, base, v, y, sums, proposal, partial,
    fine_x, fine_y, fine_partial, limit, tolerance, noise, fine, history,
):  # fmt: skip
    """Runs one problem from row potentials u; leaves the plan as x, K and y.

    Returns iterations used, error left, and whether x and y are the float64 ones.
    """
    mass = 0.0
    for i in range(blocks * WIDTH):
        mass += a[i]
    log_columns(blocks, c, s, u, log_b, sums, v)
    used, error, change, finely = 0, np.inf, FAR, False
    while True:
        settled = finely or change != NEAR  # the weights come from float64 sums
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
            return used, error, finely  # the weights stay as they are, and so would all the rest


@inlined
@no_type_check
def _propose(b, sums, y, floor, proposal):
    """Weights b / sums; returns the columns' relative error and what the update would mean."""
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
@no_type_check
def _accept(near, proposal, base, y, fine_y, v):
    """Potentials v = base + log of the weights; weights if ``near``. Returns if anything moves."""
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
@no_type_check
def _stops(error, before, tolerance, noise):
    """Whether the change that is left, as a geometric series of errors, is not above tolerance."""
    if error <= noise:
        return True
    rate = error / before if before > 0 else 0.0
    if rate >= 1:
        return error <= 0
    return error * max(1.0, rate / (1 - rate)) <= tolerance
