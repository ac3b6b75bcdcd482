"""The fused transport on the CPU: problems are divided among threads that run numba kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softperm.ops.transport import cpu_backward, cpu_forward
from softperm.ops.transport.problem import Problem, check_values
from softperm.parallel import in_threads, threads

NOISE = {torch.float32: 2e-7, torch.float64: 0.0}
"""Error at which a problem stops at any rate: float32 rounds column sums by about this much."""

FINE = {torch.float32: 1e-2, torch.float64: 0.0}
"""Error below which a problem that may stop early uses float64 weights and sums."""

EPSILON = {torch.float32: 3e-8, torch.float64: 1e-16}
"""Relative change below the rounding error."""

CANCELLED = 1e-2
"""A float32 gradient that is a smaller share of its terms than this is recomputed in float64."""

ENTRIES_PER_THREAD = 4096
"""Entries of score matrices that are worth the start of one more thread."""

Gradients = tuple[Float[Tensor, "V P"], Float[Tensor, "M B R C"], Float[Tensor, "M B"]]
"""Of the scores, and for each problem of its extra rows and of its dustbin's score."""

Solution = tuple[
    Float[Tensor, "V P"], Float[Tensor, "M B T C"], Int[Tensor, "M B"], Float[Tensor, "M B"]
]
"""The plan, the column potentials of each iteration, the iterations used, the remaining error."""


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
) -> Solution:
    """Solves all problems; see :class:`softperm.ops.transport.problem.Problem` for the arrays."""
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

    ``gradient`` is 1 for the gradient of the iterations that were run and 2 for that of the fixed
    point (1 if its series does not converge). 0 selects 2 for problems that stopped early at a
    tolerance below 1e-3, and 1 for the others.

    In float32 the terms of a gradient may cancel, most of all where plans are almost hard. Such
    problems, which the norms reveal, are solved and differentiated again in float64.
    """
    problem = Problem(scores, ptr, row_mass, column_mass, extra, extra_mass, bin_score)
    early = (used < history.shape[2]) & (tolerance < 1e-3)  # (M, B)
    implicit = early if gradient == 0 else torch.full_like(early, gradient == 2)
    order = _order(ptr)
    gradients, remaining = _differentiate(order, grad_plan, problem, history, used, implicit)
    again = order[(remaining.flatten() < CANCELLED).numpy()[order]]
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
    """Overwrites the gradients of the problems in ``order`` by the new ones."""
    problems = torch.from_numpy(order)
    begin, end = ptr[:, :-1].flatten()[problems], ptr[:, 1:].flatten()[problems]
    step = torch.zeros(len(old[0]) + 1, dtype=torch.int64)
    step.index_add_(0, begin, torch.ones_like(begin)).index_add_(0, end, -torch.ones_like(end))
    inside = step.cumsum(0)[:-1] > 0  # (V,)
    old[0][inside] = new[0][inside].to(old[0].dtype)
    for target, source in zip(old[1:], new[1:], strict=True):
        target.flatten(0, 1)[problems] = source.flatten(0, 1)[problems].to(target.dtype)


def _solve(
    order: np.ndarray,
    problem: Problem,
    limit: Int[Tensor, "M B"],
    iterations: int,
    tolerance: float,
    noise: float,
    fine: float,
) -> Solution:
    """Runs the forward kernel on the problems in ``order``."""
    m, b, c = problem.column_mass.shape
    dtype = problem.scores.dtype
    plan = torch.zeros(problem.scores.shape, dtype=dtype)
    history = torch.empty(m, b, iterations, c, dtype=torch.float64)
    used = torch.zeros(m, b, dtype=torch.int32)
    error = torch.zeros(m, b, dtype=dtype)
    inputs = map(_array, (*vars(problem).values(), limit))
    outputs = map(_array, (plan, history, used, error))
    entries = problem.scores.numel()
    _run(cpu_forward.forward, entries, order, *inputs, tolerance, noise, fine, *outputs)
    return plan, history, used, error


def _differentiate(
    order: np.ndarray,
    grad_plan: Float[Tensor, "V P"],
    problem: Problem,
    history: Float[Tensor, "M B T C"],
    used: Int[Tensor, "M B"],
    implicit: Bool[Tensor, "M B"],
) -> tuple[Gradients, Float[Tensor, "M B"]]:
    """Runs the backward kernel on the problems in ``order``; also returns what did not cancel."""
    m, b, c = problem.column_mass.shape
    dtype = problem.scores.dtype
    d_scores = torch.zeros(problem.scores.shape, dtype=dtype)
    d_extra = torch.zeros(m, b, problem.extra.shape[1], c, dtype=dtype)
    d_bin = torch.zeros(m, b, dtype=dtype)
    remaining = torch.ones(m, b, dtype=torch.float64)
    inputs = map(_array, (grad_plan, *vars(problem).values(), history, used, implicit))
    outputs = map(_array, (d_scores, d_extra, d_bin, remaining))
    entries = problem.scores.numel()
    _run(cpu_backward.backward, entries, order, *inputs, EPSILON[dtype], *outputs)
    return (d_scores, d_extra, d_bin), remaining


def _order(ptr: Int[Tensor, "M B1"]) -> np.ndarray:
    """Problems by size, the largest first, so that no thread starts a large one at the end."""
    return np.argsort(-ptr.diff(dim=1).flatten().numpy(), kind="stable")


def _array(tensor: Tensor) -> np.ndarray:
    """The tensor as a contiguous array, without a copy if it is contiguous."""
    return tensor.detach().contiguous().numpy()


def _run(kernel: Callable[..., None], entries: int, order: np.ndarray, *arguments: Any) -> None:
    """Runs ``kernel`` on the problems in ``order``, with further threads for large problems.

    Each thread takes the next problem when it has finished one.
    """
    if len(order) == 0:
        return
    ticket = np.zeros(1, dtype=np.int64)
    workers = 1 + min(threads() - 1, len(order) - 1, entries // ENTRIES_PER_THREAD)
    in_threads(lambda: kernel(ticket, order, *arguments), workers)
