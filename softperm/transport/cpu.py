"""The fused transport on CPU: ragged problems shared out among threads that run numba kernels."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numba
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.transport import cpu_backward, cpu_forward

NOISE = {torch.float32: 2e-7, torch.float64: 0.0}
"""Error at which a problem stops whatever its rate: float32 rounds column sums by about this."""

EPSILON = {torch.float32: 3e-8, torch.float64: 1e-16}
"""Relative change that rounding hides."""

CANCELLED = 1e-2
"""If a float32 gradient is a smaller share of its terms than this, it is formed in float64."""


def forward(
    scores: Float[Tensor, "V P"],
    ptr: Int[Tensor, "M B1"],
    row_mass: Float[Tensor, " V"],
    column_mass: Float[Tensor, "M B C"],
    extra: Float[Tensor, "M R C"],
    extra_mass: Float[Tensor, "M B R"],
    bin_score: Float[Tensor, " M"],
    iterations: int,
    tolerance: float,
) -> tuple[
    Float[Tensor, "V P"], Float[Tensor, "M B T C"], Int[Tensor, "M B"], Float[Tensor, "M B"]
]:
    """Solves the problems described by :class:`softperm.transport.problem.Problem`.

    Returns:
        The plan, the column potentials of each iteration, the iterations used, the error left.
    """
    limit = torch.full(column_mass.shape[:2], iterations, dtype=torch.int64)
    noise = NOISE[scores.dtype] if tolerance > 0 else 0.0
    tensors = (scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score)
    return _solve(_order(ptr), tensors, limit, iterations, tolerance, noise)


def backward(
    grad_plan: Float[Tensor, "V P"],
    plan: Float[Tensor, "V P"],
    scores: Float[Tensor, "V P"],
    ptr: Int[Tensor, "M B1"],
    row_mass: Float[Tensor, " V"],
    column_mass: Float[Tensor, "M B C"],
    extra: Float[Tensor, "M R C"],
    extra_mass: Float[Tensor, "M B R"],
    bin_score: Float[Tensor, " M"],
    history: Float[Tensor, "M B T C"],
    used: Int[Tensor, "M B"],
    error: Float[Tensor, "M B"],
    tolerance: float,
    gradient: int,
) -> tuple[Float[Tensor, "V P"], Float[Tensor, "M B R C"], Float[Tensor, "M B"]]:
    """Gradients of scores, and for each problem of its extra rows and its dustbin's score.

    In float32 the terms of a gradient may cancel, most of all where plans are almost hard. Those
    problems, told by the norms, are done again in float64 from the start.

    Args:
        grad_plan: gradient of the plan.
        gradient: 1 of the iterations that were run; 2 of the fixed point, if its series converges;
            0 the second for problems that stopped early at a tolerance below 1e-3.
    """
    early = (used < history.shape[2]) & (tolerance < 1e-3)  # (M, B)
    implicit = early if gradient == 0 else torch.full_like(early, gradient == 2)
    tensors = (grad_plan, scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score)
    order = _order(ptr)
    *gradients, kept = _differentiate(order, tensors, history, used, implicit)
    again = order[(kept.flatten() < CANCELLED).numpy()[order]]
    if scores.dtype == torch.float32 and len(again):
        _differentiate_in_float64(again, tensors, used, implicit, gradients)
    return tuple(gradients)


def _differentiate_in_float64(order, tensors, used, implicit, gradients) -> None:
    """Puts the gradients of some problems, formed in float64, in the place of others."""
    wide = tuple(t.double() if t.is_floating_point() else t for t in tensors)
    longest = int(used.flatten()[order].max())
    _, history, _, _ = _solve(order, wide[1:], used.long(), longest, -1.0, -1.0)
    new = _differentiate(order, wide, history, used, implicit)
    ptr = tensors[2]
    begin, end = ptr[:, :-1].flatten().tolist(), ptr[:, 1:].flatten().tolist()
    for i in order.tolist():
        gradients[0][begin[i] : end[i]] = new[0][begin[i] : end[i]]
        for old, fresh in zip(gradients[1:], new[1:3], strict=True):
            old.flatten(0, 1)[i] = fresh.flatten(0, 1)[i]


def _solve(order, tensors, limit, iterations, tolerance, noise):
    """Runs the forward kernel on the problems in ``order``."""
    scores, column_mass = tensors[0], tensors[3]
    m, b, c = column_mass.shape
    plan = torch.zeros(scores.shape, dtype=scores.dtype)
    history = torch.empty(m, b, iterations, c, dtype=torch.float64)
    used = torch.zeros(m, b, dtype=torch.int32)
    error = torch.zeros(m, b, dtype=scores.dtype)
    _share_out(
        cpu_forward.forward, order, *map(_array, (*tensors, limit)), tolerance, noise,
        *map(_array, (plan, history, used, error)),
    )  # fmt: skip
    return plan, history, used, error


def _differentiate(order, tensors, history, used, implicit):
    """Runs the backward kernel on the problems in ``order``."""
    scores, column_mass, extra = tensors[1], tensors[4], tensors[5]
    m, b, c = column_mass.shape
    d_scores = torch.zeros(scores.shape, dtype=scores.dtype)
    d_extra = torch.zeros(m, b, extra.shape[1], c, dtype=scores.dtype)
    d_bin = torch.zeros(m, b, dtype=scores.dtype)
    kept = torch.ones(m, b, dtype=torch.float64)
    _share_out(
        cpu_backward.backward, order, *map(_array, (*tensors, history, used, implicit)),
        EPSILON[scores.dtype], *map(_array, (d_scores, d_extra, d_bin, kept)),
    )  # fmt: skip
    return d_scores, d_extra, d_bin, kept


def _order(ptr: Int[Tensor, "M B1"]) -> np.ndarray:
    """Problems by size, the largest first, so that no thread ends with a large one."""
    return np.argsort(-ptr.diff(dim=1).flatten().numpy(), kind="stable")


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _share_out(kernel, order: np.ndarray, *arguments) -> None:
    """Runs ``kernel`` in as many threads as numba and torch both allow.

    Each thread takes the next problem when it is through with one. The caller's is one of them,
    and it does not wait for those that have not begun when nothing is left to do: at worst, on a
    busy machine, it does all the work. (Numba's own parallel loops may wait for a core on which a
    thread of torch's spins, may not be used after a fork, nor with some back ends by two callers.)
    """
    if len(order) == 0:
        return
    ticket = np.zeros(1, dtype=np.int64)
    threads = min(numba.get_num_threads(), torch.get_num_threads(), len(order))
    helpers = [
        _pool(os.getpid()).submit(kernel, ticket, order, *arguments) for _ in range(threads - 1)
    ]
    kernel(ticket, order, *arguments)
    for helper in helpers:
        if not helper.cancel():
            helper.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process: those of its parent do not survive a fork."""
    return ThreadPoolExecutor(numba.config.NUMBA_NUM_THREADS, thread_name_prefix="softperm")
