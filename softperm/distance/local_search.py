"""Local search: exchange two images as long as that makes the permutation cheaper."""

from __future__ import annotations

import numpy as np

from softperm.distance.pairs import contains, edge_cost
from softperm.jit import kernel


@kernel
def cost_of(pair, p):
    """Cost of a permutation; see :class:`softperm.distance.pairs.Pair`."""
    total = 0.0
    for i in range(p.size):
        if pair.vertex.shape[0] > 0:
            total += pair.vertex[i, p[i]]
        for k in range(i):
            total += edge_cost(pair.model, pair.kind_a[i, k], pair.kind_b[p[i], p[k]])
    return total


@kernel
def descend(pair, p):
    """Exchanges images in place until no exchange of two helps; returns the cost."""
    model, kind_a, kind_b = pair.model, pair.kind_a, pair.kind_b
    threshold = 1e-12 + 1e-6 * pair.gap
    improved = True
    while improved:
        improved = False
        for i in range(p.size):
            for k in range(i):
                x, y = p[i], p[k]
                if not (contains(pair.allowed, i, y) and contains(pair.allowed, k, x)):
                    continue
                gain = 0.0
                if pair.vertex.shape[0] > 0:
                    gain = pair.vertex[i, x] + pair.vertex[k, y]
                    gain -= pair.vertex[i, y] + pair.vertex[k, x]
                for t in range(p.size):
                    e, f = kind_a[i, t], kind_a[k, t]
                    if e != f and t != i and t != k:
                        g, h = kind_b[x, p[t]], kind_b[y, p[t]]
                        if g != h:
                            gain += edge_cost(model, e, g) + edge_cost(model, f, h)
                            gain -= edge_cost(model, e, h) + edge_cost(model, f, g)
                if gain > threshold:
                    p[i], p[k] = y, x
                    improved = True
    return cost_of(pair, p)


@kernel
def shake(pair, p, state):
    """Exchanges images at random in place where that is allowed; returns the next state."""
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
    """Restarts the descent from shaken copies of ``best``; returns the least cost.

    Args:
        pair: the two graphs.
        best: (N,) an allowed permutation; overwritten by a cheaper one.
        value: the cost of ``best``, or infinity if it is not known.
        bound: a lower bound of the cost, at which the search ends.
        restarts: number of shaken copies.
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
