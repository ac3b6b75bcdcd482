"""Local search: exchange two images while that makes the permutation cheaper."""

from __future__ import annotations

import numpy as np

from softperm.distance.pairs import contains
from softperm.jit import kernel


@kernel
def cost_of(pair, p):
    """Cost of a permutation, half its squared distance: ``Σ_{i<k} (a[i,k] − b[p[i],p[k]])²``."""
    total = 0.0
    for i in range(p.size):
        for k in range(i):
            difference = pair.a[i, k] - pair.b[p[i], p[k]]
            total += difference * difference
    return total


@kernel
def descend(pair, p):
    """Exchange images in place until no exchange of two helps; returns the cost."""
    a, b = pair.a, pair.b
    threshold = 1e-12 + 1e-6 * pair.gap
    improved = True
    while improved:
        improved = False
        for i in range(p.size):
            for k in range(i):
                x, y = p[i], p[k]
                gain = 0.0
                for t in range(p.size):
                    if t != i and t != k:
                        gain += 2.0 * (a[i, t] - a[k, t]) * (b[y, p[t]] - b[x, p[t]])
                allowed = contains(pair.allowed, i, y) and contains(pair.allowed, k, x)
                if allowed and gain > threshold:
                    p[i], p[k] = y, x
                    improved = True
    return cost_of(pair, p)


@kernel
def shake(pair, p, state):
    """Exchange images at random in place wherever that is allowed; returns the next state."""
    n = p.size
    for i in range(n - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        k = np.int64(state % np.uint64(i + 1))
        if contains(pair.allowed, i, p[k]) and contains(pair.allowed, k, p[i]):
            p[i], p[k] = p[k], p[i]
    return state


@kernel
def improve(pair, best, value, bound, restarts):
    """Restart the descent from shaken copies of ``best``; returns the cost of the best, in place.

    Args:
        pair: the two graphs.
        best: (N,) an allowed permutation; overwritten by a cheaper one.
        value: the cost of ``best``, or infinity to have it descended and counted.
        bound: a lower bound; the search ends where it is met.
        restarts: how many shaken copies to descend from.
    """
    state = np.uint64(88172645463325252)
    trial = best.copy()
    for _ in range(restarts + 1):
        cost = descend(pair, trial)
        if cost < value:
            value = cost
            for i in range(best.size):
                best[i] = trial[i]
        if bound > value - pair.gap:
            break
        state = shake(pair, trial, state)
    return value
