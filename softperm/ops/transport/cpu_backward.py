"""The gradient of Sinkhorn's iteration on CPU, problem by problem.

The forward pass keeps only the column potentials of each iteration. With the gradient W = G ∘ D of
the plan's logarithm, gu and gv start as its row and column sums and dS as W itself, and the
iterations are walked backwards:

    P = exp(S + uᵗ + vᵗ) / a:      dS −= gu P,  gv −= guᵀ P
    Q = exp(S + uᵗ⁻¹ + vᵗ) / b:    dS −= Q gv,  gu = −Q gv,  gv = 0

The rows of P and the columns of Q sum to 1, so gu and gv never grow, and as soon as they are
negligible so is all that is still to come. Around a base the steps need no exponentials: P is
x K y / a, Q is x K y / b, and dS is K ∘ a sum of matrices of rank 2 per iteration.

At the fixed point all P and all Q are alike. The same recursion, run until it has died away, is
the Neumann series of the implicit gradient.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from softperm.ops.transport.backward_passes import (
    gather_gradient,
    norm_of,
    settle,
    start,
    step_exactly,
    step_near,
    write,
)
from softperm.ops.transport.cpu_forward import SAFE
from softperm.ops.transport.lanes import (
    WIDTH,
    compiled,
    entry,
    exp,
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
from softperm.ops.transport.passes import gather, masses, rebase, scale, start_rows

LONGEST = 1000
"""At most how many terms of the Neumann series, and ten for each iteration of the forward pass."""


@entry
@no_type_check
def backward(
    ticket, order, grad_plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    history, used, implicit, epsilon, d_scores, d_extra, d_bin, kept,
):  # fmt: skip
    """Differentiates the problems in ``order``, shared as in ``cpu_forward.forward``.

    ``implicit`` (M, B) says which problems to differentiate at their fixed point, ``epsilon`` which
    relative change rounding hides. Writes the gradients that ``cpu.backward`` returns, and into
    ``kept`` (M, B) the norm of the scores' gradient as a share of that of W: where it is small,
    most digits have cancelled.
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
        way = implicit[m, g]
        while True:
            gather_gradient(begin, end, blocks, c, grad_plan, a, pending)
            out[: blocks * c * WIDTH] = 0
            beta[:] = 0.0
            for k in range(c):
                base[k] = history[m, g, last, k]
            rebase(blocks, c, s, base, a, kernel, u, sums, fine_partial)
            whole, norm = start(blocks, c, kernel, pending, alpha, sums, partial)
            size = _renew(b, sums, ones, gv)
            if not way:
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
            way = False  # it does not converge: the iterations that were run are what there is
        settle(blocks, c, kernel, a, pending, alpha, beta, out)
        kept[m, g] = norm_of(end - begin, d_scores.shape[1], c, out) / norm
        write(m, g, begin, end, c, out, d_scores, d_extra, d_bin)


@inlined
@no_type_check
def _renew(b, sums, y, gv):
    """New gv = −y · sums; returns Σ |gv|. Its sum is 0: what rounding makes of it is taken away."""
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
@no_type_check
def _share(b, gv, y, sign, shares):
    """Shares gv y / b of the columns with mass, times ``sign``, for the next pass."""
    zero, like = splat(0.0), load(shares, 0)
    for k in range(0, len(b), WIDTH):
        mass = load(b, k)
        part = splat(sign) * load(gv, k) * widen(load(y, k)) / mass
        store(shares, k, narrow(where_less(zero, mass, part, zero), like))


@inlined
@no_type_check
def _distance(c, b, row, base, v):
    """Reads potentials into v; returns how far they are from the base."""
    for k in range(c):
        v[k] = row[k]
    zero = splat(0.0)
    distance = zero
    for k in range(0, len(b), WIDTH):
        gap = where_less(zero, load(b, k), load(v, k) - load(base, k), zero)
        distance = maximum(distance, maximum(gap, zero - gap))
    return peak(distance)


@inlined
@no_type_check
def _relative(b, v, base, y):
    """Weights y = exp(v − base); 0 for columns without mass."""
    zero, like = splat(0.0), load(y, 0)
    for k in range(0, len(b), WIDTH):
        gap = where_less(zero, load(b, k), load(v, k) - load(base, k), splat(-np.inf))
        store(y, k, exp(gap, like))


@compiled
@no_type_check
def _step_still(blocks, c, kernel, a, b, x, ones, shares, sums, partial, gv, alpha, beta):
    """One iteration at the base itself: dS gathers as one vector of rows and one of columns."""
    _share(b, gv, ones, -1.0, shares)
    for k in range(0, len(b), WIDTH):
        store(beta, k, load(beta, k) - widen(load(shares, k)))
    scale(blocks, c, False, kernel, shares, a, x, sums, partial)
    for i in range(0, blocks * WIDTH, WIDTH):
        store(alpha, i, load(alpha, i) + load(x, i))
    return _renew(b, sums, ones, gv)


@compiled
@no_type_check
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
@no_type_check
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
            if not max(now, then) <= SAFE:  # moves the base to the iteration before
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
