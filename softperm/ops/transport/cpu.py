"""The fused transport on the CPU, in numba: problems are divided among threads.

The kernels solve one problem at a time, eight rows at a time. A problem's (N, C) matrices are
stored in blocks of eight rows, and column by column within a block: entry (i, k) has index
``(i // 8 · C + k) · 8 + i % 8``. Sums along rows and along columns are then both sums of whole
vectors, whatever P is. The last block is filled up with rows of mass 0. Rows that are switched off
look the same: their scores are 0 and they have no weight.

The matrix K is the softmax of each row, K = softmax(S + w), at column potentials w, called the base
of K. Near its base an iteration needs no exponentials: potentials v = w + log y and row masses a
have the plan xᵢ Kᵢₖ yₖ with x = a / (K y).

The forward pass stores only the column potentials of each iteration. For the gradient let
W = G ∘ D be the gradient of the plan's logarithm. gu and gv start as its row and column sums, dS
starts as W, and the iterations are traversed backwards:

    P = exp(S + uᵗ + vᵗ) / a:      dS −= gu P,  gv −= guᵀ P
    Q = exp(S + uᵗ⁻¹ + vᵗ) / b:    dS −= Q gv,  gu = −Q gv,  gv = 0

The rows of P and the columns of Q sum to 1, so gu and gv never grow. Once they are negligible, so
are all remaining terms. Near a base the steps need no exponentials: P is x K y / a, Q is x K y / b,
and dS is K times, entry by entry, a sum of matrices of rank 2, one for each iteration. At one base
dS = K ∘ (pending − α 1ᵀ − a βᵀ) is held as the matrix ``pending``, the vector α over rows and the
vector β over columns.

At the fixed point all P are equal and all Q are equal. The same recursion, run until its terms are
negligible, is then the Neumann series of the implicit gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softperm.ops.transport import Gradients, Problem, Solution, check_values
from softperm.parallel import in_threads, threads
from softperm.vectors import (
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

NOISE = {torch.float32: 2e-7, torch.float64: 0.0}
"""Error at which a problem stops at any rate: float32 rounds column sums by about this much."""

FINE = {torch.float32: 1e-2, torch.float64: 0.0}
"""Error below which a problem that may stop early uses float64 weights and sums."""

EPSILON = {torch.float32: 3e-8, torch.float64: 1e-16}
"""Relative change below the rounding error."""

CANCELLED = 1e-2
"""A float32 gradient that is a smaller share of its terms than this is recomputed in float64."""

ENTRIES_PER_THREAD = 4096
"""Entries of score matrices that are worth the start of one more thread."""


def forward(
    problem: Problem, iterations: int, tolerance: float, largest: int, kept: int
) -> Solution:
    """Solves all problems; ``largest`` is of use to the GPU only.

    ``kept`` is ``iterations``, or 1 if no gradient is needed: then no potentials are kept.
    """
    check_values(problem)
    limit = torch.full(problem.column_mass.shape[:2], iterations, dtype=torch.int32)
    dtype = problem.scores.dtype
    noise = NOISE[dtype] if tolerance > 0 else min(tolerance, 0.0)
    fine = FINE[dtype] if tolerance > 0 else 0.0
    return _solve(_order(problem.ptr), problem, limit, kept, tolerance, noise, fine)


def backward(
    problem: Problem,
    grad_plan: Float[Tensor, "V P"],
    history: Float[Tensor, "M B T C"],
    used: Int[Tensor, "M B"],
    tolerance: float,
    gradient: int,
    largest: int = -1,
) -> Gradients:
    """Gradients of scores, and for each problem of its extra rows and of its dustbin's score.

    ``gradient`` is 1 for the gradient of the iterations that were run and 2 for that of the fixed
    point (1 if its series does not converge). 0 selects 2 for problems that stopped early at a
    tolerance below 1e-3, and 1 for the others.

    In float32 the terms of a gradient may cancel, most of all where plans are almost hard. Such
    problems, which the norms reveal, are solved and differentiated again in float64.
    """
    early = (used < history.shape[2]) & (tolerance < 1e-3)  # (M, B)
    implicit = early if gradient == 0 else torch.full_like(early, gradient == 2)
    order = _order(problem.ptr)
    gradients, remaining = _differentiate(order, grad_plan, problem, history, used, implicit)
    again = order[(remaining.flatten() < CANCELLED).numpy()[order]]
    if problem.scores.dtype == torch.float32 and len(again):
        wide = Problem(
            *(t.double() if t.is_floating_point() else t for t in vars(problem).values())
        )
        longest = int(used.flatten()[again].max())
        _, history, _, _ = _solve(again, wide, used, longest, -1.0, -1.0, 0.0)
        better, _ = _differentiate(again, grad_plan.double(), wide, history, used, implicit)
        _replace(again, problem.ptr, gradients, better)
    return gradients


def _replace(order: np.ndarray, ptr: Int[Tensor, "M B1"], old: Gradients, new: Gradients) -> None:
    """Overwrites the gradients of the problems in ``order`` by the new ones."""
    problems = torch.from_numpy(order)
    begin, end = ptr[:, :-1].flatten()[problems], ptr[:, 1:].flatten()[problems]
    step = torch.zeros(len(old[0]) + 1, dtype=torch.int64)
    step.index_add_(0, begin, torch.ones_like(begin)).index_add_(0, end, -torch.ones_like(end))
    inside = step.cumsum(0)[:-1] > 0  # (V,)
    old[0][inside] = new[0][inside].to(old[0].dtype)
    for target, source in zip(old[1:], new[1:], strict=True):
        target.flatten(0, 1)[problems] = source.flatten(0, 1)[problems].to(target.dtype)


def _solve(
    order: np.ndarray,
    problem: Problem,
    limit: Int[Tensor, "M B"],
    kept: int,
    tolerance: float,
    noise: float,
    fine: float,
) -> Solution:
    """Runs the forward kernel on the problems in ``order``."""
    m, b, c = problem.column_mass.shape
    dtype = problem.scores.dtype
    plan = torch.zeros(problem.scores.shape, dtype=dtype)
    history = torch.empty(m, b, kept, c, dtype=torch.float64)
    used = torch.zeros(m, b, dtype=torch.int32)
    error = torch.zeros(m, b, dtype=dtype)
    inputs = map(_array, (*vars(problem).values(), limit))
    outputs = map(_array, (plan, history, used, error))
    entries = problem.scores.numel()
    _run(forward_kernel, entries, order, *inputs, tolerance, noise, fine, *outputs)
    return plan, history, used, error


def _differentiate(
    order: np.ndarray,
    grad_plan: Float[Tensor, "V P"],
    problem: Problem,
    history: Float[Tensor, "M B T C"],
    used: Int[Tensor, "M B"],
    implicit: Bool[Tensor, "M B"],
) -> tuple[Gradients, Float[Tensor, "M B"]]:
    """Runs the backward kernel on the problems in ``order``; also returns what did not cancel."""
    m, b, c = problem.column_mass.shape
    dtype = problem.scores.dtype
    d_scores = torch.zeros(problem.scores.shape, dtype=dtype)
    d_extra = torch.zeros(m, b, problem.extra.shape[1], c, dtype=dtype)
    d_bin = torch.zeros(m, b, dtype=dtype)
    remaining = torch.ones(m, b, dtype=torch.float64)
    inputs = map(_array, (grad_plan, *vars(problem).values(), history, used, implicit))
    outputs = map(_array, (d_scores, d_extra, d_bin, remaining))
    entries = problem.scores.numel()
    _run(backward_kernel, entries, order, *inputs, EPSILON[dtype], *outputs)
    return (d_scores, d_extra, d_bin), remaining


def _order(ptr: Int[Tensor, "M B1"]) -> np.ndarray:
    """Problems by size, the largest first, so that no thread starts a large one at the end."""
    return np.argsort(-ptr.diff(dim=1).flatten().numpy(), kind="stable")


def _array(tensor: Tensor) -> np.ndarray:
    """The tensor as a contiguous array, without a copy if it is contiguous."""
    return tensor.detach().contiguous().numpy()


def _run(kernel: Callable[..., None], entries: int, order: np.ndarray, *arguments: Any) -> None:
    """Runs ``kernel`` on the problems in ``order``, with further threads for large problems.

    Each thread takes the next problem when it has finished one.
    """
    if len(order) == 0:
        return
    ticket = np.zeros(1, dtype=np.int64)
    workers = 1 + min(threads() - 1, len(order) - 1, entries // ENTRIES_PER_THREAD)
    in_threads(lambda: kernel(ticket, order, *arguments), workers)


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
def start_rows(blocks, a, dustbin, u):
    """Row potentials before the first iteration: log k in a row of mass k, −∞ for no mass.

    A row then stands for k equal vertices that start at 0 each. The row ``dustbin``, if not
    negative, starts at 0 whatever its mass.
    """
    for i in range(blocks * WIDTH):
        u[i] = 0.0
        if a[i] != 1:
            u[i] = np.log(float(a[i])) if a[i] > 0 else -np.inf
    if dustbin >= 0 and a[dustbin] > 0:
        u[dustbin] = 0.0


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
def forward_kernel(
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
    binned = c > scores.shape[1]  # the last extra row is the dustbin's
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
        dustbin = ptr[m, g + 1] - ptr[m, g] + extra.shape[1] - 1 if binned else -1
        start_rows(blocks, a, dustbin, u)
        used[m, g], error[m, g], finely = _solve_problem(
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
def _solve_problem(
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
            history[min(used, len(history) - 1), k] = v[k]
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


LONGEST = 1000
"""Largest number of terms of the Neumann series; also at most ten for each forward iteration."""


@compiled
def gather_gradient(begin, end, blocks, c, grad_plan, a, pending):
    """Copies aᵢ Gᵢₖ into blocks; zero for extra rows and the dustbin column."""
    p = grad_plan.shape[1]
    for i in range(blocks * WIDTH):
        at = i // WIDTH * c * WIDTH + i % WIDTH
        inside = i < end - begin and a[i] > 0
        for k in range(p if inside else 0):
            pending[at + k * WIDTH] = grad_plan[begin + i, k] * a[i]
        for k in range(p if inside else 0, c):
            pending[at + k * WIDTH] = 0


@compiled
def start(blocks, c, kernel, pending, alpha, sums, partial):
    """Row sums gu of W = K ∘ pending, and column sums of gu P − W. Returns ‖W‖₁ and ‖W‖."""
    sums[:] = 0.0
    zero = fill(load(kernel, 0), 0.0)
    size, square = 0.0, 0.0
    for block in range(blocks):
        first = block * c * WIDTH
        gu = far = norm = zero
        for k in range(c):
            at = first + k * WIDTH
            entry = load(kernel, at) * load(pending, at)
            gu = gu + entry
            far = far + maximum(entry, zero - entry)
            norm = fma(entry, entry, norm)
        size += total(far)
        square += total(norm)
        store(alpha, block * WIDTH, gu)
        for k in range(c):
            at = first + k * WIDTH
            entry = load(kernel, at) * (gu - load(pending, at))
            store(partial, k * WIDTH, load(partial, k * WIDTH) + entry)
        if block % FLUSH == FLUSH - 1:
            flush(c, sums, partial)
    flush(c, sums, partial)
    return size, np.sqrt(square)


@compiled
def step_near(blocks, c, kernel, a, beta, y, pending, sums, partial):
    """One iteration near the base: gu = −x (K β), α = gu / (K y), ``pending`` += −x β − α y."""
    sums[:] = 0.0
    zero = fill(load(a, 0), 0.0)
    for block in range(blocks):
        first = block * c * WIDTH
        gu = held = zero
        for k in range(c):
            entry = load(kernel, first + k * WIDTH)
            gu = fma(entry, splat(beta[k]), gu)
            held = fma(entry, splat(y[k]), held)
        x = zero - load(a, block * WIDTH) / held  # negated, for the next two lines
        alpha = x * gu / held
        less = zero - alpha
        for k in range(c):
            at = first + k * WIDTH
            change = fma(x, splat(beta[k]), load(pending, at))
            store(pending, at, fma(less, splat(y[k]), change))
            store(partial, k * WIDTH, fma(load(kernel, at), alpha, load(partial, k * WIDTH)))
        if block % FLUSH == FLUSH - 1:
            flush(c, sums, partial)
    flush(c, sums, partial)


@compiled
def step_exactly(blocks, c, s, u, v, log_b, kernel, gv, alpha, out, sums, partial):
    """One iteration far from the base: Q by exponentials, then gu P at the base of uᵗ⁻¹."""
    sums[:] = 0.0
    zero = fill(load(alpha, 0), 0.0)
    for block in range(blocks):
        first = block * c * WIDTH
        row = load(u, block * WIDTH)
        gu = zero
        for k in range(c):
            if log_b[k] > -np.inf:
                at = first + k * WIDTH
                share = exp(widen(load(s, at)) + (row + splat(v[k] - log_b[k])), zero)
                share = share * fill(zero, gv[k])
                store(out, at, load(out, at) - share)
                gu = gu - share
        store(alpha, block * WIDTH, gu)
        for k in range(c):
            entry = load(kernel, first + k * WIDTH)
            store(partial, k * WIDTH, fma(entry, gu, load(partial, k * WIDTH)))
        if block % FLUSH == FLUSH - 1:
            flush(c, sums, partial)
    flush(c, sums, partial)


@compiled
def settle(blocks, c, kernel, a, pending, alpha, beta, out):
    """Adds the terms collected at this base, K ∘ (pending − α 1ᵀ − a βᵀ), to ``out``."""
    zero = fill(load(a, 0), 0.0)
    for block in range(blocks):
        rows, mass = load(alpha, block * WIDTH), load(a, block * WIDTH)
        store(alpha, block * WIDTH, zero)
        for k in range(c):
            at = (block * c + k) * WIDTH
            change = load(pending, at) - rows - mass * fill(zero, beta[k])
            store(out, at, fma(load(kernel, at), change, load(out, at)))
            store(pending, at, zero)
    beta[:] = 0.0


@compiled
def norm_of(n, p, c, out):
    """Norm of the first n rows and p columns."""
    square = fill(load(out, 0), 0.0)
    for block in range(n // WIDTH):
        for k in range(p):
            entry = load(out, (block * c + k) * WIDTH)
            square = fma(entry, entry, square)
    rest = 0.0
    for i in range(n // WIDTH * WIDTH, n):
        for k in range(p):
            entry = out[(i // WIDTH * c + k) * WIDTH + i % WIDTH]
            rest += entry * entry
    return np.sqrt(rest + total(square))


@compiled
def write(m, g, begin, end, c, out, d_scores, d_extra, d_bin):
    """Copies a problem's gradients from blocks to the results."""
    n, p, extras = end - begin, d_scores.shape[1], d_extra.shape[2]
    whole = 0.0
    for i in range(n):
        at = i // WIDTH * c * WIDTH + i % WIDTH
        for k in range(p):
            d_scores[begin + i, k] = out[at + k * WIDTH]
        if c > p:
            whole += out[at + p * WIDTH]
    for i in range(n, n + extras):
        at = i // WIDTH * c * WIDTH + i % WIDTH
        for k in range(c):
            d_extra[m, g, i - n, k] = out[at + k * WIDTH]
    d_bin[m, g] = whole


@entry_point
def backward_kernel(
    ticket, order, grad_plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    history, used, implicit, epsilon, d_scores, d_extra, d_bin, remaining,
):  # fmt: skip
    """Differentiates the problems in ``order``, divided as in ``forward_kernel``.

    ``implicit`` (M, B) selects the problems to differentiate at their fixed point; ``epsilon`` is
    the relative change below the rounding error. Writes the gradients that ``cpu.backward``
    returns, and in ``remaining`` (M, B) the norm of the scores' gradient relative to that of W:
    where it is small, most digits have cancelled.
    """
    problems, c = column_mass.shape[1:]
    binned = c > scores.shape[1]
    m, g = order[0] // problems, order[0] % problems
    n = (ptr[m, g + 1] - ptr[m, g] + extra.shape[1] + WIDTH - 1) // WIDTH * WIDTH
    wide = (c + WIDTH - 1) // WIDTH * WIDTH
    kind = scores.dtype
    s, kernel = np.empty(n * c, kind), np.empty(n * c, kind)
    pending, out = np.empty(n * c, kind), np.empty(n * c, kind)
    a, x, alpha, u = np.empty(n, kind), np.empty(n, kind), np.empty(n, kind), np.empty(n)
    b, log_b, base, sums = np.zeros(wide), np.zeros(wide), np.zeros(wide), np.zeros(wide)
    gv, beta, v = np.zeros(wide), np.zeros(wide), np.zeros(wide)
    ones, y, before = np.ones(wide, kind), np.ones(wide, kind), np.ones(wide, kind)
    shares, partial = np.zeros(wide, kind), np.zeros(wide * WIDTH, kind)
    fine_partial = np.zeros(wide * WIDTH)
    while True:
        turn = next_ticket(ticket)
        if turn >= len(order):
            return
        m, g = order[turn] // problems, order[turn] % problems
        blocks = masses(m, g, ptr, row_mass, column_mass, extra_mass, a, b, log_b)
        if blocks == 0:
            continue
        begin, end, last = ptr[m, g], ptr[m, g + 1], used[m, g] - 1
        gather(m, g, blocks, c, scores, ptr, extra, bin_score, a, s)
        at_fixed_point = implicit[m, g]
        while True:
            gather_gradient(begin, end, blocks, c, grad_plan, a, pending)
            out[: blocks * c * WIDTH] = 0
            beta[:] = 0.0
            for k in range(c):
                base[k] = history[m, g, last, k]
            rebase(blocks, c, s, base, a, kernel, u, sums, fine_partial)
            whole, norm = start(blocks, c, kernel, pending, alpha, sums, partial)
            size = _renew(b, sums, ones, gv)
            if not at_fixed_point:
                dustbin = end - begin + extra.shape[1] - 1 if binned else -1
                _unroll(
                    blocks, c, dustbin, last, epsilon, epsilon * whole, size, history[m, g], s, a,
                    b, log_b, kernel, x, u, base, v, ones, y, before, shares, sums, partial,
                    fine_partial, gv, pending, out, alpha, beta,
                )  # fmt: skip
                break
            terms = min(LONGEST, 10 * (last + 1))
            if _sum_series(
                blocks, c, terms, epsilon * whole, size, a, b, kernel, x, ones, shares, sums,
                partial, gv, alpha, beta,
            ):  # fmt: skip
                break
            at_fixed_point = (
                False  # the series diverges: differentiate the iterations that were run
            )
        settle(blocks, c, kernel, a, pending, alpha, beta, out)
        remaining[m, g] = norm_of(end - begin, d_scores.shape[1], c, out) / norm
        write(m, g, begin, end, c, out, d_scores, d_extra, d_bin)


@inlined
def _renew(b, sums, y, gv):
    """New gv = −y · sums; returns ‖gv‖₁. Its exact sum is 0: the rounding error is subtracted."""
    zero = splat(0.0)
    whole, mass = zero, zero
    for k in range(0, len(b), WIDTH):
        part = zero - widen(load(y, k)) * load(sums, k)
        store(gv, k, part)
        whole, mass = whole + part, mass + load(b, k)
    excess = splat(total(whole) / total(mass))
    size = zero
    for k in range(0, len(b), WIDTH):
        part = load(gv, k) - load(b, k) * excess
        store(gv, k, part)
        size = size + maximum(part, zero - part)
    return total(size)


@inlined
def _share(b, gv, y, sign, shares):
    """Shares gv y / b of the columns with mass, times ``sign``, for the next pass."""
    zero, like = splat(0.0), load(shares, 0)
    for k in range(0, len(b), WIDTH):
        mass = load(b, k)
        part = splat(sign) * load(gv, k) * widen(load(y, k)) / mass
        store(shares, k, narrow(where_less(zero, mass, part, zero), like))


@inlined
def _distance(c, b, row, base, v):
    """Copies potentials into v; returns their distance from the base."""
    for k in range(c):
        v[k] = row[k]
    zero = splat(0.0)
    distance = zero
    for k in range(0, len(b), WIDTH):
        gap = where_less(zero, load(b, k), load(v, k) - load(base, k), zero)
        distance = maximum(distance, maximum(gap, zero - gap))
    return peak(distance)


@inlined
def _relative(b, v, base, y):
    """Weights y = exp(v − base); 0 for columns without mass."""
    zero, like = splat(0.0), load(y, 0)
    for k in range(0, len(b), WIDTH):
        gap = where_less(zero, load(b, k), load(v, k) - load(base, k), splat(-np.inf))
        store(y, k, exp(gap, like))


@compiled
def _step_still(blocks, c, kernel, a, b, x, ones, shares, sums, partial, gv, alpha, beta):
    """One iteration exactly at the base: its terms are collected in α and β alone."""
    _share(b, gv, ones, -1.0, shares)
    for k in range(0, len(b), WIDTH):
        store(beta, k, load(beta, k) - widen(load(shares, k)))
    scale(blocks, c, False, kernel, shares, a, x, sums, partial)
    for i in range(0, blocks * WIDTH, WIDTH):
        store(alpha, i, load(alpha, i) + load(x, i))
    return _renew(b, sums, ones, gv)


@compiled
def _sum_series(
    blocks, c, terms, negligible, size, a, b, kernel, x, ones, shares, sums, partial, gv,
    alpha, beta,
):  # fmt: skip
    """The implicit gradient; returns whether its series converged."""
    for _ in range(terms):
        if size == 0:
            return True
        before = size
        size = _step_still(blocks, c, kernel, a, b, x, ones, shares, sums, partial, gv, alpha, beta)
        if size < before and 2 * size / (1 - size / before) <= negligible:
            return True
    return False


@compiled
def _unroll(
    blocks, c, dustbin, t, epsilon, negligible, size, history, s, a, b, log_b, kernel, x, u, base,
    v, ones, y, before, shares, sums, partial, fine_partial, gv, pending, out, alpha, beta,
):  # fmt: skip
    """The gradient of the iterations that were run, from the last to the first."""
    now = 0.0
    y[:] = 1
    while t > 0 and not (2 * t + 1) * size <= negligible:
        then = _distance(c, b, history[t - 1], base, v)
        if max(now, then) <= epsilon:
            size = _step_still(
                blocks, c, kernel, a, b, x, ones, shares, sums, partial, gv, alpha, beta
            )
        else:
            if not max(now, then) <= SAFE:  # moves the base to the previous iteration
                settle(blocks, c, kernel, a, pending, alpha, beta, out)
                for k in range(0, len(b), WIDTH):
                    store(base, k, load(v, k))
                rebase(blocks, c, s, base, a, kernel, u, sums, fine_partial)
                then, now = 0.0, _distance(c, b, history[t], base, v)
                _relative(b, v, base, y)
                before[:] = 1
            else:
                _relative(b, v, base, before)
            if now <= SAFE:
                _share(b, gv, y, 1.0, shares)
                step_near(blocks, c, kernel, a, shares, before, pending, sums, partial)
            else:
                for i in range(0, blocks * WIDTH, WIDTH):
                    store(u, i, log(widen(load(a, i))) - load(u, i))
                step_exactly(blocks, c, s, u, v, log_b, kernel, gv, alpha, out, sums, partial)
            size = _renew(b, sums, before, gv)
            y, before = before, y
        now = then
        t -= 1
    if not size <= negligible:  # the first iteration
        settle(blocks, c, kernel, a, pending, alpha, beta, out)
        start_rows(blocks, a, dustbin, u)
        _distance(c, b, history[0], base, v)
        step_exactly(blocks, c, s, u, v, log_b, kernel, gv, alpha, out, sums, partial)
        alpha[:] = 0
