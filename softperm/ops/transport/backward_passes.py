"""Passes over the rows of one problem that its gradient needs; see ``passes`` for the layout.

What the gradient of the scores gathers at a base, dS = K ∘ (pending − α 1ᵀ − a βᵀ), is kept as
the matrix ``pending``, the vector α over rows and the vector β over columns.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from softperm.ops.transport.lanes import (
    WIDTH,
    compiled,
    exp,
    fill,
    fma,
    load,
    maximum,
    splat,
    store,
    total,
    widen,
)
from softperm.ops.transport.passes import FLUSH, flush


@compiled
@no_type_check
def gather_gradient(begin, end, blocks, c, grad_plan, a, pending):
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
@no_type_check
def step_near(blocks, c, kernel, a, beta, y, pending, sums, partial):
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
@no_type_check
def step_exactly(blocks, c, s, u, v, log_b, kernel, gv, alpha, out, sums, partial):
    """One iteration at any distance: Q entry by entry, then gu P at the base, which is uᵗ⁻¹'s."""
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
@no_type_check
def settle(blocks, c, kernel, a, pending, alpha, beta, out):
    """Adds to ``out`` what has gathered at this base, K ∘ (pending − α 1ᵀ − a βᵀ)."""
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
@no_type_check
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
@no_type_check
def write(m, g, begin, end, c, out, d_scores, d_extra, d_bin):
    """Hands the gradients over to where they belong."""
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
