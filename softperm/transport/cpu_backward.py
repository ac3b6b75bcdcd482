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

from softperm.transport.cpu_forward import SAFE
from softperm.transport.lanes import (
    WIDTH,
    compiled,
    entry,
    exp,
    fill,
    fma,
    load,
    log,
    maximum,
    next_ticket,
    splat,
    store,
    total,
    widen,
)
from softperm.transport.passes import FLUSH, flush, gather, masses, rebase, scale

LONGEST = 1000
"""At most how many terms of the Neumann series, and ten for each iteration of the forward pass."""


@entry
@no_type_check
def backward(
    ticket, order, grad_plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    history, used, implicit, epsilon, d_scores, d_extra, d_bin, kept,
):  # fmt: skip
    """Differentiates the problems in ``order``, shared as in ``cpu_forward.forward``.

    Args:
        implicit: which problems to differentiate at their fixed point (M, B).
        epsilon: rounding of the type; changes of this relative size are none.
        d_scores, d_extra, d_bin: written; see ``cpu.backward``.
        kept: written: the gradient's norm as a share of W's (M, B). Where it is small, most
            digits have cancelled.
    """
    problems, c = column_mass.shape[1:]
    m, g = order[0] // problems, order[0] % problems
    n = (ptr[m, g + 1] - ptr[m, g] + extra.shape[1] + WIDTH - 1) // WIDTH * WIDTH
    wide = (c + WIDTH - 1) // WIDTH * WIDTH
    kind = scores.dtype
    s, kernel = np.empty(n * c, kind), np.empty(n * c, kind)
    pending, out = np.empty(n * c, kind), np.empty(n * c, kind)
    a, x, alpha, u = np.empty(n, kind), np.empty(n, kind), np.empty(n, kind), np.empty(n)
    b, log_b, base = np.zeros(wide), np.zeros(wide), np.zeros(wide)
    sums, gv, beta = np.zeros(wide), np.zeros(wide), np.zeros(wide)
    y, before, partial = np.ones(wide, kind), np.ones(wide, kind), np.zeros(wide * WIDTH, kind)
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
            _gather_gradient(begin, end, blocks, c, grad_plan, a, pending)
            out[: blocks * c * WIDTH] = 0
            beta[:] = 0.0
            for k in range(c):
                base[k] = history[m, g, last, k]
            rebase(blocks, c, s, base, a, kernel, u, sums, partial)
            size, square = _start(blocks, c, kernel, pending, alpha, sums, partial)
            y[:] = 1
            _take(b, sums, y, gv)
            if not way:
                _unroll(
                    blocks, c, last, epsilon, size, history[m, g], s, a, b, log_b, kernel, x, u,
                    base, y, before, sums, partial, gv, pending, out, alpha, beta,
                )  # fmt: skip
                break
            terms = min(LONGEST, 10 * (last + 1))
            if _sum_series(
                blocks, c, terms, epsilon * size, a, b, kernel, x, y, sums, partial, gv, alpha, beta
            ):
                break
            way = False  # it does not converge: the iterations that were run are what there is
        _settle(blocks, c, kernel, a, pending, alpha, beta, out)
        kept[m, g] = _write(m, g, begin, end, blocks, c, out, d_scores, d_extra, d_bin) / square


@compiled
@no_type_check
def _gather_gradient(begin, end, blocks, c, grad_plan, a, pending):
    """Lays aᵢ Gᵢₖ out in blocks; zero for extra rows and the dustbin column."""
    p = grad_plan.shape[1]
    for i in range(blocks * WIDTH):
        at = i // WIDTH * c * WIDTH + i % WIDTH
        inside = i < end - begin and a[i] > 0
        for k in range(p if inside else 0):
            pending[at + k * WIDTH] = grad_plan[begin + i, k] * a[i]
        for k in range(p if inside else 0, c):
            pending[at + k * WIDTH] = 0


@compiled
@no_type_check
def _start(blocks, c, kernel, pending, alpha, sums, partial):
    """gu = row sums of W = K ∘ pending, and the sums of W − gu P. Returns Σ |W| and ‖W‖."""
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
            entry = load(kernel, at) * (load(pending, at) - gu)
            store(partial, k * WIDTH, load(partial, k * WIDTH) + entry)
        if block % FLUSH == FLUSH - 1:
            flush(c, sums, partial)
    flush(c, sums, partial)
    return size, np.sqrt(square)


@compiled
@no_type_check
def _take(b, sums, y, gv):
    """gv = y · sums; what rounding adds along b, of which gv has nothing, is taken away again."""
    whole, mass = 0.0, 0.0
    for k in range(len(b)):
        gv[k] = sums[k] * y[k]
        whole += gv[k]
        mass += b[k]
    for k in range(len(b)):
        gv[k] -= b[k] * whole / mass


@compiled
@no_type_check
def _weigh(gv):
    """Σ |gv|."""
    size = 0.0
    for k in range(len(gv)):
        size += abs(gv[k])
    return size


@compiled
@no_type_check
def _step_still(blocks, c, kernel, a, b, x, y, sums, partial, gv, alpha, beta):
    """One iteration at the base itself: dS gathers as one vector of rows and one of columns."""
    for k in range(c):
        share = gv[k] / b[k] if b[k] > 0 else 0.0
        beta[k] += share
        y[k] = -share
    scale(blocks, c, False, kernel, y, a, x, sums, partial)
    for i in range(0, blocks * WIDTH, WIDTH):
        store(alpha, i, load(alpha, i) + load(x, i))
    y[:] = -1
    _take(b, sums, y, gv)


@compiled
@no_type_check
def _sum_series(blocks, c, terms, negligible, a, b, kernel, x, y, sums, partial, gv, alpha, beta):
    """The implicit gradient; returns whether its series converged."""
    size = _weigh(gv)
    for _ in range(terms):
        if size == 0:
            return True
        before = size
        _step_still(blocks, c, kernel, a, b, x, y, sums, partial, gv, alpha, beta)
        size = _weigh(gv)
        if size < before and 2 * size / (1 - size / before) <= negligible:
            return True
    return False


@compiled
@no_type_check
def _unroll(
    blocks, c, t, epsilon, size, history, s, a, b, log_b, kernel, x, u,
    base, y, before, sums, partial, gv, pending, out, alpha, beta,
):  # fmt: skip
    """The gradient of the iterations that were run, from the last to the first."""
    now = 0.0
    while (2 * t + 1) * _weigh(gv) > epsilon * size:
        if t == 0:
            _settle(blocks, c, kernel, a, pending, alpha, beta, out)
            for i in range(blocks * WIDTH):
                u[i] = 0.0 if a[i] > 0 else -np.inf
            _step_exactly(
                blocks, c, s, u, history[0], b, log_b, kernel, gv, alpha, out, sums, partial
            )
            alpha[:] = 0  # the row potentials that came before were constants
            return
        then = _distance(c, b, history[t - 1], base)
        if max(now, then) <= epsilon:
            _step_still(blocks, c, kernel, a, b, x, y, sums, partial, gv, alpha, beta)
        else:
            if not max(now, then) <= SAFE:
                _settle(blocks, c, kernel, a, pending, alpha, beta, out)
                for k in range(c):
                    base[k] = history[t - 1, k]
                rebase(blocks, c, s, base, a, kernel, u, sums, partial)
                now, then = _distance(c, b, history[t], base), 0.0
            if now <= SAFE:
                _relative(c, b, history[t], base, y)
                _relative(c, b, history[t - 1], base, before)
                for k in range(c):
                    y[k] = gv[k] * y[k] / b[k] if b[k] > 0 else 0.0
                _step_near(blocks, c, kernel, a, y, before, pending, sums, partial)
                for k in range(c):
                    before[k] = -before[k]
            else:
                for i in range(0, blocks * WIDTH, WIDTH):
                    store(u, i, log(widen(load(a, i))) - load(u, i))
                _step_exactly(
                    blocks, c, s, u, history[t], b, log_b, kernel, gv, alpha, out, sums, partial
                )
                before[:] = -1
            _take(b, sums, before, gv)
        now = then
        t -= 1


@compiled
@no_type_check
def _distance(c, b, v, base):
    """How far potentials are from the base."""
    distance = 0.0
    for k in range(c):
        if b[k] > 0:
            distance = max(distance, abs(v[k] - base[k]))
    return distance


@compiled
@no_type_check
def _relative(c, b, v, base, y):
    """y = exp(v − base)."""
    for k in range(c):
        y[k] = np.exp(v[k] - base[k]) if b[k] > 0 else 0.0


@compiled
@no_type_check
def _step_near(blocks, c, kernel, a, beta, y, pending, sums, partial):
    """One iteration near the base: gu = −x (K β), α = gu / (K y), and dS gathers −x β − α y."""
    sums[:] = 0.0
    zero = fill(load(a, 0), 0.0)
    for block in range(blocks):
        first = block * c * WIDTH
        gu = held = zero
        for k in range(c):
            entry = load(kernel, first + k * WIDTH)
            gu = fma(entry, splat(beta[k]), gu)
            held = fma(entry, splat(y[k]), held)
        x = zero - load(a, block * WIDTH) / held  # negated, as what follows needs it
        gu = x * gu
        alpha = gu / held
        gu = zero - alpha
        for k in range(c):
            at = first + k * WIDTH
            change = fma(gu, splat(y[k]), fma(x, splat(beta[k]), load(pending, at)))
            store(pending, at, change)
            store(partial, k * WIDTH, fma(load(kernel, at), alpha, load(partial, k * WIDTH)))
        if block % FLUSH == FLUSH - 1:
            flush(c, sums, partial)
    flush(c, sums, partial)


@compiled
@no_type_check
def _step_exactly(blocks, c, s, u, v, b, log_b, kernel, gv, alpha, out, sums, partial):
    """One iteration at any distance: Q entry by entry, then gu P at the base, which is uᵗ⁻¹'s."""
    sums[:] = 0.0
    zero = fill(load(alpha, 0), 0.0)
    for block in range(blocks):
        first = block * c * WIDTH
        row = load(u, block * WIDTH)
        gu = zero
        for k in range(c):
            if b[k] > 0:
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
@no_type_check
def _settle(blocks, c, kernel, a, pending, alpha, beta, out):
    """Adds to ``out`` what has gathered at this base, K ∘ (pending − α 1ᵀ − a βᵀ); starts again."""
    zero = fill(load(a, 0), 0.0)
    for block in range(blocks):
        rows, mass = load(alpha, block * WIDTH), load(a, block * WIDTH)
        store(alpha, block * WIDTH, zero)
        for k in range(c):
            at = (block * c + k) * WIDTH
            sum_ = load(pending, at) - rows - mass * fill(zero, beta[k])
            store(out, at, fma(load(kernel, at), sum_, load(out, at)))
            store(pending, at, zero)
    beta[:] = 0.0


@compiled
@no_type_check
def _write(m, g, begin, end, blocks, c, out, d_scores, d_extra, d_bin):
    """Hands the gradients over to where they belong; returns the norm of the scores' one."""
    p = d_scores.shape[1]
    n = end - begin
    square, bin_ = 0.0, 0.0
    for i in range(n + d_extra.shape[2]):
        at = i // WIDTH * c * WIDTH + i % WIDTH
        if i < n:
            for k in range(p):
                entry = out[at + k * WIDTH]
                d_scores[begin + i, k] = entry
                square += entry * entry
            if c > p:
                bin_ += out[at + p * WIDTH]
        else:
            for k in range(c):
                d_extra[m, g, i - n, k] = out[at + k * WIDTH]
    d_bin[m, g] = bin_
    return np.sqrt(square)
