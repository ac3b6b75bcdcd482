"""The gradient of Sinkhorn's iteration on CPU, problem by problem.

Only the column potentials of each iteration are kept by the forward pass. With the gradient W = G∘D
of the plan's logarithm, gu and gv start as its row and column sums, and the iterations are walked
backwards, row update first:

    P = exp(S + uᵗ + vᵗ) / a:      dS −= gu P,  gv −= guᵀ P
    Q = exp(S + uᵗ⁻¹ + vᵗ) / b:    dS −= Q gv,  gu  = −Q gv,  gv = 0

P has rows and Q has columns that sum to 1, so neither gu nor gv ever grows, and what is still to come
is known to be negligible as soon as they are. Around a base the steps need no exponentials:
P = x K y / a and Q = x K y / b, and dS gathers as K ∘ (matrix of rank 2 per iteration).

At the fixed point all P and all Q are alike. The same recursion, run until it has died away, then is
the Neumann series of the implicit gradient.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from softperm.transport.cpu_forward import SAFE
from softperm.transport.lanes import (
    WIDTH,
    exp,
    fill,
    fma,
    load,
    log,
    maximum,
    narrow,
    next_ticket,
    splat,
    store,
    total,
    widen,
)
from softperm.transport.passes import FLUSH, flush, gather, masses, rebase, scale

LONGEST = 1000
"""At most how many terms of the Neumann series, and ten for each iteration of the forward pass."""


@njit(cache=True, nogil=True)
def backward(
    ticket, order, grad_plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    history, used, implicit, epsilon, d_scores, d_extra, d_bin, kept,
):  # fmt: skip
    """Differentiates the problems in ``order``, as ``cpu_forward.forward`` solves them.

    Args:
        implicit: which problems to differentiate at their fixed point (M, B).
        epsilon: relative size at which a term is negligible.
        d_scores, d_extra, d_bin: written; see ``cpu.backward``.
        kept: written: norm of the scores' gradient as a share of that of W (M, B); when it is
            small, nearly all digits have cancelled.
    """
    problems, c = column_mass.shape[1:]
    m, g = order[0] // problems, order[0] % problems
    n = (ptr[m, g + 1] - ptr[m, g] + extra.shape[1] + WIDTH - 1) // WIDTH * WIDTH
    wide = (c + WIDTH - 1) // WIDTH * WIDTH
    kind = scores.dtype
    s, kernel = np.empty(n * c, kind), np.empty(n * c, kind)
    pending, out = np.empty(n * c, kind), np.empty(n * c, kind)
    a, x, shift, u = np.empty(n, kind), np.empty(n, kind), np.empty(n, kind), np.empty(n)
    b, log_b, base, sums, gv, column_shift = np.zeros((6, wide))
    weights, y, partial = np.zeros(wide, kind), np.ones(wide, kind), np.zeros(wide * WIDTH, kind)
    while True:
        turn = next_ticket(ticket)
        if turn >= len(order):
            return
        m, g = order[turn] // problems, order[turn] % problems
        blocks = masses(m, g, ptr, row_mass, column_mass, extra_mass, a, b, log_b)
        if blocks == 0:
            continue
        gather(m, g, blocks, c, scores, ptr, extra, bin_score, a, s)
        done = False
        if implicit[m, g]:
            

