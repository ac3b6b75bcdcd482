"""Passes over the rows of one transport problem, eight rows at a time.

A problem's (N, C) matrices lie in blocks of eight rows, within a block column by column: entry
(i, k) is number ``(i // 8 · C + k) · 8 + i % 8``. So sums along rows and along columns both are
sums of whole vectors, whatever P is. The last block is filled up with rows of mass 0, which is
how rows that are switched off look too: their scores are 0 and they weigh nothing.

The matrix K is the softmax of each row, K = softmax(S + w), at potentials w of the columns that
we call its base. Around a base an iteration needs no exponentials: potentials v = w + log y and
row masses a have the plan xᵢ Kᵢₖ yₖ with x = a / (K y).
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
    inlined,
    load,
    log,
    maximum,
    narrow,
    peak,
    splat,
    store,
    total,
    widen,
)

FLUSH = 32
"""Blocks after which column sums move on to float64: short sums keep their digits."""


@compiled
@no_type_check
def masses(m, g, ptr, row_mass, column_mass, extra_mass, a, b, log_b):
    """Copies a problem's masses; returns its blocks, or 0 if no row has any mass."""
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
@no_type_check
def start_rows(blocks, a, padding, u):
    """Row potentials before the first iteration: 0; −∞ in rows without mass.

    Row number ``padding``, if not below 0, stands for k padding vertices: log k, as k rows had.
    """
    for i in range(blocks * WIDTH):
        u[i] = 0.0 if a[i] > 0 else -np.inf
    if padding >= 0:
        u[padding] = np.log(float(a[padding]))


@compiled
@no_type_check
def gather(m, g, blocks, c, scores, ptr, extra, bin_score, a, s):
    """Lays the scores of a problem's rows out in blocks."""
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
@no_type_check
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
@no_type_check
def flush(c, sums, partial):
    """Adds the column sums of the last blocks to the float64 sums, and starts them again."""
    zero = fill(load(partial, 0), 0.0)
    for k in range(c):
        sums[k] += total(load(partial, k * WIDTH))
        store(partial, k * WIDTH, zero)


@compiled
@no_type_check
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
@no_type_check
def scale_finely(blocks, c, kernel, y, a, x, rounded, sums, wide):
    """:func:`scale` in float64, K apart: no digit that is kept tells the order of the rows."""
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
@no_type_check
def _keep(i, scaling, x, rounded):
    """Stores the scalings of eight rows, in float64 and rounded."""
    store(x, i, scaling)
    store(rounded, i, narrow(scaling, load(rounded, i)))


@inlined
@no_type_check
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
@no_type_check
def _scale_one(block, c, divide, kernel, y, a, x, partial):
    """:func:`scale` on one block."""
    scaling = _scaling(_row_sums(block, c, kernel, y), block * WIDTH, divide, a, x)
    first = block * c * WIDTH
    for k in range(c):
        entry = load(kernel, first + k * WIDTH)
        store(partial, k * WIDTH, fma(entry, scaling, load(partial, k * WIDTH)))


@inlined
@no_type_check
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
@no_type_check
def _scaling(held, i, divide, a, x):
    """The scalings of eight rows from their sums."""
    scaling = load(a, i) / held if divide else load(a, i) * held
    store(x, i, scaling)
    return scaling


@compiled
@no_type_check
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
