"""The fused transport on CPU, in numba: parallel over problems, forward and backward."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor


def forward(
    scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score, iterations, tolerance
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plan (V, P), column potentials (M, B, T, C), iterations used (M, B), error (M, B)."""
    m, b, c = column_mass.shape
    plan = torch.zeros_like(scores, memory_format=torch.contiguous_format)
    history = torch.zeros(m, b, iterations, c, dtype=torch.float64)
    used = torch.zeros(m, b, dtype=torch.int32)
    error = torch.zeros(m, b, dtype=scores.dtype)
    inputs = (scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score)
    noise = 2e-7 if scores.dtype == torch.float32 else 0.0
    _forward(
        *map(_array, inputs), tolerance, noise if tolerance > 0 else 0.0,
        *(t.numpy() for t in (plan, history, used, error)),
    )  # fmt: skip
    return plan, history, used, error


def backward(
    grad_plan, plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    history, used, error, tolerance, gradient,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of scores (V, P), and per problem of extra rows (M, B, R, C) and bin (M, B)."""
    m, b, c = column_mass.shape
    d_scores = torch.zeros_like(scores, memory_format=torch.contiguous_format)
    d_extra = torch.zeros(m, b, extra.shape[1], c, dtype=scores.dtype)
    d_bin = torch.zeros(m, b, dtype=scores.dtype)
    inputs = (grad_plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score)
    _backward(
        *map(_array, inputs), _array(history), _array(used), tolerance, gradient,
        *(t.numpy() for t in (d_scores, d_extra, d_bin)),
    )  # fmt: skip
    return d_scores, d_extra, d_bin


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


@njit(cache=True)
def _rows(m, b, scores, ptr, row_mass, extra, extra_mass, bin_score, c):
    """Scores (N, C) and log masses (N,) of all rows of a problem, extra rows last."""
    begin, end = ptr[m, b], ptr[m, b + 1]
    p, r = scores.shape[1], extra.shape[1]
    n = end - begin
    s = np.empty((n + r, c))
    log_a = np.empty(n + r)
    for i in range(n):
        for k in range(p):
            s[i, k] = scores[begin + i, k]
        if c > p:
            s[i, p] = bin_score[m]
        log_a[i] = np.log(row_mass[begin + i]) if row_mass[begin + i] > 0 else -np.inf
    for j in range(r):
        s[n + j] = extra[m, j]
        log_a[n + j] = np.log(extra_mass[m, b, j]) if extra_mass[m, b, j] > 0 else -np.inf
    return s, log_a


@njit(cache=True)
def _columns(s, u, log_a, log_b, v):
    """v = log b − LSE over living rows."""
    n, c = s.shape
    for k in range(c):
        top = -np.inf
        for i in range(n):
            if log_a[i] > -np.inf:
                top = max(top, s[i, k] + u[i])
        total = 0.0
        for i in range(n):
            if log_a[i] > -np.inf:
                total += np.exp(s[i, k] + u[i] - top)
        v[k] = log_b[k] - (top + np.log(total)) if total > 0 else 0.0


@njit(cache=True)
def _solve_rows(s, v, log_a, u):
    """u = log a − LSE over columns."""
    n, c = s.shape
    for i in range(n):
        top = -np.inf
        for k in range(c):
            top = max(top, s[i, k] + v[k])
        total = 0.0
        for k in range(c):
            total += np.exp(s[i, k] + v[k] - top)
        u[i] = log_a[i] - (top + np.log(total))


@njit(cache=True, parallel=True)
def _forward(
    scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score, tolerance, noise,
    plan, history, used, error,
):  # fmt: skip
    models, problems, c = column_mass.shape
    iterations = history.shape[2]
    for g in prange(models * problems):
        m, b = g // problems, g % problems
        s, log_a = _rows(m, b, scores, ptr, row_mass, extra, extra_mass, bin_score, c)
        n = len(s)
        log_b = np.log(column_mass[m, b].astype(np.float64))
        u = np.zeros(n)
        v = np.zeros(c)
        proposal = np.zeros(c)
        now = np.inf
        count = 0
        for step in range(iterations + 1):
            _columns(s, u, log_a, log_b, proposal)
            if step > 0:
                before = now
                now = 0.0
                for k in range(c):
                    held = v[k] - proposal[k]
                    if not np.isnan(held):
                        now = max(now, abs(np.expm1(held)))
                rate = now / before if before > 0 else 0.0
                left = now
                if now > 0:
                    left = now * max(1.0, rate / (1 - rate)) if rate < 1 else np.inf
                if left <= tolerance or now <= noise:
                    break
            if step == iterations:
                break
            v[:] = proposal
            history[m, b, step] = v
            _solve_rows(s, v, log_a, u)
            count += 1
        used[m, b] = count
        error[m, b] = now
        for i in range(ptr[m, b + 1] - ptr[m, b]):
            for k in range(scores.shape[1]):
                plan[ptr[m, b] + i, k] = np.exp(s[i, k] + u[i] + v[k])


@njit(cache=True, parallel=True)
def _backward(
    grad_plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score,
    history, used, tolerance, gradient, d_scores, d_extra, d_bin,
):  # fmt: skip
    models, problems, c = column_mass.shape
    p = scores.shape[1]
    for g in prange(models * problems):
        m, b = g // problems, g % problems
        s, log_a = _rows(m, b, scores, ptr, row_mass, extra, extra_mass, bin_score, c)
        n, first = len(s), ptr[m, b]
        vertices = ptr[m, b + 1] - first
        log_b = np.log(column_mass[m, b].astype(np.float64))
        u = np.zeros(n)
        w = np.zeros((n, c))
        t = used[m, b] - 1
        _solve_rows(s, history[m, b, t], log_a, u)
        gu = np.zeros(n)
        gv = np.zeros(c)
        for i in range(vertices):
            for k in range(p):
                w[i, k] = grad_plan[first + i, k] * np.exp(s[i, k] + u[i] + history[m, b, t, k])
                gu[i] += w[i, k]
                gv[k] += w[i, k]
        while t >= 0:
            v = history[m, b, t]
            for i in range(n):
                if log_a[i] > -np.inf:
                    for k in range(c):
                        q = gu[i] * np.exp(s[i, k] + u[i] + v[k] - log_a[i])
                        w[i, k] -= q
                        gv[k] -= q
            if t > 0:
                _solve_rows(s, history[m, b, t - 1], log_a, u)
            else:
                u[:] = 0.0
            gu[:] = 0.0
            for i in range(n):
                if log_a[i] > -np.inf:
                    for k in range(c):
                        if log_b[k] > -np.inf:
                            q = gv[k] * np.exp(s[i, k] + u[i] + v[k] - log_b[k])
                            w[i, k] -= q
                            gu[i] -= q
            gv[:] = 0.0
            t -= 1
        for i in range(vertices):
            for k in range(p):
                d_scores[first + i, k] = w[i, k]
            if c > p:
                d_bin[m, b] += w[i, p]
        for j in range(n - vertices):
            for k in range(c):
                d_extra[m, b, j, k] = w[vertices + j, k]
