"""The fused transport on CPU: ragged problems shared out among threads that run numba kernels."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softperm.ops.transport import cpu_backward, cpu_forward
from softperm.ops.transport.problem import Problem, check_values

NOISE = {torch.float32: 2e-7, torch.float64: 0.0}
"""Error at which a problem stops whatever its rate: float32 rounds column sums by about this."""

FINE = {torch.float32: 1e-2, torch.float64: 0.0}
"""Error from which on a problem that may stop is solved with float64 weights and sums."""

EPSILON = {torch.float32: 3e-8, torch.float64: 1e-16}
"""Relative change that rounding hides."""

CANCELLED = 1e-2
"""If a float32 gradient is a smaller share of its terms than this, it is formed in float64."""

WORTHWHILE = 4096
"""Entries of score matrices for which it pays to wake one more thread."""

Gradients = tuple[Float[Tensor, "V P"], Float[Tensor, "M B R C"], Float[Tensor, "M B"]]
"""Of scores, and for each problem of its extra rows and of its dustbin's score."""


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
    """Solves problems as :class:`softperm.ops.transport.problem.Problem` describes them.

    Returns:
        The plan, the column potentials of each iteration, the iterations used, the error left.
    """
    problem = Problem(scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score)
    check_values(problem)
    limit = torch.full(column_mass.shape[:2], iterations, dtype=torch.int32)
    noise = NOISE[scores.dtype] if tolerance > 0 else min(tolerance, 0.0)
    fine = FINE[scores.dtype] if tolerance > 0 else 0.0
    return _solve(_order(ptr), problem, limit, iterations, tolerance, noise, fine)


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
) -> Gradients:
    """Gradients of scores, and for each problem of its extra rows and of its dustbin's score.

    ``gradient`` is 1 for that of the iterations that were run, 2 for that of the fixed point (if
    its series converges, else 1), and 0 for the second where a problem stopped early at a
    tolerance below 1e-3 and the first elsewhere.

    In float32 the terms of a gradient may cancel, most of all where plans are almost hard. Such
    problems, told by the norms, are done again in float64 from the start.
    """
    problem = Problem(scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score)
    early = (used < history.shape[2]) & (tolerance < 1e-3)  # (M, B)
    implicit = early if gradient == 0 else torch.full_like(early, gradient == 2)
    order = _order(ptr)
    gradients, kept = _differentiate(order, grad_plan, problem, history, used, implicit)
    again = order[(kept.flatten() < CANCELLED).numpy()[order]]
    if scores.dtype == torch.float32 and len(again):
        wide = Problem(
            *(t.double() if t.is_floating_point() else t for t in vars(problem).values())
        )
        longest = int(used.flatten()[again].max())
        _, history, _, _ = _solve(again, wide, used, longest, -1.0, -1.0, 0.0)
        better, _ = _differentiate(again, grad_plan.double(), wide, history, used, implicit)
        _replace(again, ptr, gradients, better)
    return gradients


def _replace(order: np.ndarray, ptr: Int[Tensor, "M B1"], old: Gradients, new: Gradients) -> None:
    """Puts the new gradients of the problems in ``order`` in the place of the old ones."""
    problems = torch.from_numpy(order)
    begin, end = ptr[:, :-1].flatten()[problems], ptr[:, 1:].flatten()[problems]
    step = torch.zeros(len(old[0]) + 1, dtype=torch.int64)
    step.index_add_(0, begin, torch.ones_like(begin)).index_add_(0, end, -torch.ones_like(end))
    inside = step.cumsum(0)[:-1] > 0  # (V,)
    old[0][inside] = new[0][inside].to(old[0].dtype)
    for mine, fresh in zip(old[1:], new[1:], strict=True):
        mine.flatten(0, 1)[problems] = fresh.flatten(0, 1)[problems].to(mine.dtype)


def _solve(
    order: np.ndarray,
    problem: Problem,
    limit: Int[Tensor, "M B"],
    iterations: int,
    tolerance: float,
    noise: float,
    fine: float,
):
    """Runs the forward kernel on the problems in ``order``."""
    m, b, c = problem.column_mass.shape
    kind = problem.scores.dtype
    plan = torch.zeros(problem.scores.shape, dtype=kind)
    history = torch.empty(m, b, iterations, c, dtype=torch.float64)
    used = torch.zeros(m, b, dtype=torch.int32)
    error = torch.zeros(m, b, dtype=kind)
    inputs = map(_array, (*vars(problem).values(), limit))
    outputs = map(_array, (plan, history, used, error))
    entries = problem.scores.numel()
    _share_out(cpu_forward.forward, entries, order, *inputs, tolerance, noise, fine, *outputs)
    return plan, history, used, error


def _differentiate(
    order: np.ndarray,
    grad_plan: Float[Tensor, "V P"],
    problem: Problem,
    history: Float[Tensor, "M B T C"],
    used: Int[Tensor, "M B"],
    implicit: Bool[Tensor, "M B"],
) -> tuple[Gradients, Float[Tensor, "M B"]]:
    """Runs the backward kernel on the problems in ``order``; also says what has not cancelled."""
    m, b, c = problem.column_mass.shape
    kind = problem.scores.dtype
    d_scores = torch.zeros(problem.scores.shape, dtype=kind)
    d_extra = torch.zeros(m, b, problem.extra.shape[1], c, dtype=kind)
    d_bin = torch.zeros(m, b, dtype=kind)
    kept = torch.ones(m, b, dtype=torch.float64)
    inputs = map(_array, (grad_plan, *vars(problem).values(), history, used, implicit))
    outputs = map(_array, (d_scores, d_extra, d_bin, kept))
    entries = problem.scores.numel()
    _share_out(cpu_backward.backward, entries, order, *inputs, EPSILON[kind], *outputs)
    return (d_scores, d_extra, d_bin), kept


def _order(ptr: Int[Tensor, "M B1"]) -> np.ndarray:
    """Problems by size, the largest first, so that no thread ends with a large one."""
    return np.argsort(-ptr.diff(dim=1).flatten().numpy(), kind="stable")


def _array(tensor: Tensor) -> np.ndarray:
    """The tensor's numbers in the order of its axes, in its own memory where they lie so."""
    return tensor.detach().contiguous().numpy()


def _share_out(kernel, entries: int, order: np.ndarray, *arguments) -> None:
    """Runs ``kernel`` in as many threads as torch would use, if there is work for them.

    Each thread takes the next problem when it is through with one. The caller's is one of them,
    and it does not wait for those that have not begun when nothing is left to do: at worst, on a
    busy machine, it does all the work. (Numba's own parallel loops wait for every thread, even
    while one of torch's spins on its core; set torch's number of threads when they start; may not
    be used after a fork; and some of their back ends not by two callers at a time.)
    """
    if len(order) == 0:
        return
    ticket = np.zeros(1, dtype=np.int64)
    others = min(torch.get_num_threads() - 1, len(order) - 1, entries // WORTHWHILE)
    helpers = [_pool(os.getpid()).submit(kernel, ticket, order, *arguments) for _ in range(others)]
    kernel(ticket, order, *arguments)
    for helper in helpers:
        if not helper.cancel():
            helper.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process: those of its parent do not survive a fork."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="softperm")
