"""The gradient of Sinkhorn's iteration on the CPU, one problem at a time.

The forward pass stores only the column potentials of each iteration. Let W = G ∘ D be the gradient
of the plan's logarithm. gu and gv start as its row and column sums, dS starts as W, and the
iterations are traversed backwards:

    P = exp(S + uᵗ + vᵗ) / a:      dS −= gu P,  gv −= guᵀ P
    Q = exp(S + uᵗ⁻¹ + vᵗ) / b:    dS −= Q gv,  gu = −Q gv,  gv = 0

The rows of P and the columns of Q sum to 1, so gu and gv never grow. Once they are negligible, so
are all remaining terms. Near a base (see ``cpu_forward``) the steps need no exponentials: P is
x K y / a, Q is x K y / b, and dS is K times, entry by entry, a sum of matrices of rank 2, one for
each iteration. At one base dS = K ∘ (pending − α 1ᵀ − a βᵀ) is held as the matrix ``pending``, the
vector α over rows and the vector β over columns.

At the fixed point all P are equal and all Q are equal. The same recursion, run until its terms are
negligible, is then the Neumann series of the implicit gradient.
"""

from __future__ import annotations

import numpy as np

from softperm.ops.transport.cpu_forward import (
    FLUSH,
    SAFE,
    flush,
    gather,
    masses,
    rebase,
    scale,
    start_rows,
)
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
    narrow,
    next_ticket,
    peak,
    splat,
    store,
    total,
    where_less,
    widen,
)

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
def backward(
    ticket, order, grad_plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    history, used, implicit, epsilon, d_scores, d_extra, d_bin, remaining,
):  # fmt: skip
    """Differentiates the problems in ``order``, divided as in ``cpu_forward.forward``.

    ``implicit`` (M, B) selects the problems to differentiate at their fixed point; ``epsilon`` is
    the relative change below the rounding error. Writes the gradients that ``cpu.backward``
    returns, and in ``remaining`` (M, B) the norm of the scores' gradient relative to that of W:
    where it is small, most digits have cancelled.
    """
    problems, c = column_mass.shape[1:]
    padded = extra.shape[1] > c - scores.shape[1]
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
                _unroll(
                    blocks, c, end - begin if padded else -1, last, epsilon, epsilon * whole, size,
                    history[m, g], s, a, b, log_b, kernel, x, u, base, v, ones, y, before, shares,
                    sums, partial, fine_partial, gv, pending, out, alpha, beta,
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
    blocks, c, padding, t, epsilon, negligible, size, history, s, a, b, log_b, kernel, x, u, base,
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
        start_rows(blocks, a, padding, u)
        _distance(c, b, history[0], base, v)
        step_exactly(blocks, c, s, u, v, log_b, kernel, gv, alpha, out, sums, partial)
        alpha[:] = 0
