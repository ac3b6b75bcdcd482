"""The reference: Sinkhorn in log space in plain torch, differentiated by autograd."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.ops.transport import Problem, check_values


def solve(
    problem: Problem, iterations: int, tolerance: float
) -> tuple[Float[Tensor, "V P"], Int[Tensor, "M B"], Float[Tensor, "M B"]]:
    r"""Scales exp(scores) to the masses, column update first and row update last.

    With potentials :math:`u` of rows and :math:`v` of columns, each iteration is

    .. math::
        v_k = \log b_k - \log \sum_i e^{S_{ik} + u_i}, \qquad
        u_i = \log a_i - \log \sum_k e^{S_{ik} + v_k}

    from :math:`u_i = \log a_i`, so that a row of mass k is k equal rows which start at 0; from 0 in
    the dustbin's row. The plan is :math:`e^{S_{ik} + u_i + v_k}`: its rows are exact.

    Args:
        problem: the problems.
        iterations: largest number of iterations.
        tolerance: a problem stops when its remaining change, extrapolated from its last two
            column errors as a geometric series, is not above this; never if it is negative.

    Returns:
        The plan, the iterations used, and the largest remaining relative error of a column.
    """
    if problem.ptr.device.type == "cpu":
        check_values(problem)
    scores, owner, log_a, u = _rows(problem)  # (X, C), then (X,) each
    log_b = problem.column_mass.flatten(0, 1).log()  # (MB, C)
    v = torch.zeros_like(log_b)
    used = torch.zeros(len(log_b), dtype=torch.int32, device=v.device)
    error = v.new_full((len(v),), torch.inf)  # (MB,)
    running = torch.ones_like(used, dtype=torch.bool)
    for step in range(iterations + 1):
        proposal = log_b - _segment_logsumexp(scores + u[:, None], owner, len(log_b))  # (MB, C)
        if step > 0:
            before, error = error, torch.where(running, _column_error(v, proposal), error)
            running = running & (_remaining(error, before) > tolerance)
        if step == iterations or not bool(running.any()):
            break
        v = torch.where(running[:, None], proposal, v)
        u = log_a - torch.logsumexp(scores + v[owner], dim=1)
        used = used + running.int()
    plan = (scores + u[:, None] + v[owner]).exp()  # (X, C)
    shape = problem.column_mass.shape[:2]
    return _vertex_plan(problem, plan), used.view(shape), error.detach().view(shape)


def _remaining(error: Tensor, before: Tensor) -> Tensor:
    """Extrapolated distance to the fixed point: error · max(1, ρ / (1 − ρ)), ρ = error / before."""
    rate = torch.nan_to_num(error / before, nan=0.0)
    ahead = torch.where(rate < 1, rate / (1 - rate), torch.inf)
    return torch.where(error > 0, error * ahead.clamp(min=1), error)


def _column_error(v: Tensor, proposal: Tensor) -> Tensor:
    """Largest relative error of a column: its mass is exp(v − proposal) times the required one."""
    log_ratio = torch.nan_to_num((v - proposal).detach(), nan=0.0, posinf=torch.inf, neginf=0.0)
    return torch.expm1(log_ratio).abs().amax(1)


def _rows(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All rows with mass: scores (X, C), problem, log mass and first potential (X,)."""
    m, b1 = problem.ptr.shape
    b = b1 - 1
    index, owner = _members(problem.ptr)
    scores = problem.scores[index]  # (X, P)
    if problem.has_bin:
        column = problem.bin_score[owner // max(b, 1)]
        scores = torch.cat([scores, column[:, None]], dim=1)  # (X, C)
    extra = problem.extra[:, None].expand(m, b, -1, -1).flatten(0, 2)  # (M·B·R, C)
    per_problem = problem.extra_mass.shape[-1]
    extra_owner = torch.arange(m * b, device=owner.device).repeat_interleave(per_problem)
    scores = torch.cat([scores, extra])
    owner = torch.cat([owner, extra_owner])
    mass = torch.cat([problem.row_mass[index], problem.extra_mass.flatten()])
    alive = mass > 0
    first = problem.extra_mass.log()  # (M, B, R)
    if problem.has_bin:
        first[..., -1] = 0
    first = torch.cat([problem.row_mass[index].log(), first.flatten()])
    return scores[alive], owner[alive], mass[alive].log(), first[alive]


def _members(ptr: Int[Tensor, "M B1"]) -> tuple[Int[Tensor, " X"], Int[Tensor, " X"]]:
    """Vertices that belong to a problem, and which one (numbered m · B + b)."""
    begin, size = ptr[:, :-1].flatten(), ptr.diff(dim=1).flatten()  # (MB,)
    owner = torch.arange(len(size), device=ptr.device).repeat_interleave(size)  # (X,)
    first = torch.cat([size.new_zeros(1), size.cumsum(0)])[:-1]
    return torch.arange(len(owner), device=ptr.device) + (begin - first)[owner], owner


def _vertex_plan(problem: Problem, plan: Tensor) -> Float[Tensor, "V P"]:
    """The vertices' rows without the dustbin column; zeros for vertices without mass or problem."""
    index, _ = _members(problem.ptr)
    index = index[problem.row_mass[index] > 0]
    rows = plan[: len(index), : problem.scores.shape[1]]  # (X, P)
    return torch.zeros_like(problem.scores).index_copy(0, index, rows)


def _segment_logsumexp(x: Float[Tensor, "X C"], owner: Int[Tensor, " X"], count: int) -> Tensor:
    """Log-sum-exp over the rows of each segment, (count, C); −inf for a segment without rows."""
    top = x.new_full((count, x.shape[1]), -torch.inf)
    top = top.scatter_reduce(0, owner[:, None].expand_as(x), x.detach(), "amax")
    top = torch.where(top.isfinite(), top, 0.0)
    total = torch.zeros_like(top).index_add(0, owner, (x - top[owner]).exp())
    return top + total.log()
