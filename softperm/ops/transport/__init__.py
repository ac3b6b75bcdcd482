"""Entropic optimal transport between the vertices of many graphs and P latent vertices.

Batched, ragged, rectangular, with any masses, padding and dustbins, and differentiable: one
function, :func:`sinkhorn`, with a reference in plain torch and fused kernels for CPU and GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.ops.derivatives import is_transformed, only_backward
from softperm.ops.transport import reference
from softperm.ops.transport.problem import Problem, check_values, pose

__all__ = ["SinkhornInfo", "sinkhorn", "softmax"]

GRADIENTS = {"auto": 0, "truncated": 1, "implicit": 2}

TOLERANCE = {torch.float64: 1e-13}
"""Default of ``tolerance``; 1e-6 where a type is not listed: what its rounding can resolve."""


@dataclass(frozen=True)
class SinkhornInfo:
    """How a batch of transports went.

    Attributes:
        iterations: iterations used by each problem.
        error: largest relative error of a column's mass that is left in each problem; NaN where
            the plan has one, as it does for scores that are no numbers.
    """

    iterations: Int[Tensor, " B"]
    error: Float[Tensor, " B"]


def sinkhorn(
    scores: Float[Tensor, "V P"],
    ptr: Int[Tensor, " B1"],
    *,
    row_mass: Float[Tensor, " V"] | None = None,
    column_mass: Float[Tensor, "*B P"] | None = None,
    padding: Float[Tensor, " P"] | None = None,
    padding_mass: Float[Tensor, " B"] | None = None,
    dustbin: Float[Tensor, ""] | None = None,
    largest: int | None = None,
    iterations: int = 100,
    tolerance: float | None = None,
    gradient: Literal["auto", "truncated", "implicit"] = "auto",
    backend: Literal["fused", "reference"] | None = None,
    return_info: bool = False,
) -> Any:
    r"""Soft assignment of the vertices of each graph to P latent vertices.

    For each graph with scores :math:`S` it returns the plan :math:`D` that solves

    .. math::
        \max_{D \ge 0} \sum_{ik} S_{ik} D_{ik} - \sum_{ik} D_{ik} (\log D_{ik} - 1)
        \quad \text{s.t.} \quad D \mathbf{1} = a, \; D^\top \mathbf{1} = b

    by Sinkhorn's iteration in log space, column update first and row update last, so that rows
    are exact and columns as close as the iterations bring them (Section 4.1 of the paper).

    Gradients reach ``scores``, ``padding`` and ``dustbin``; masses carry none.

    Args:
        scores: scores of all vertices, the graphs' vertices laid end to end.
        ptr: graph ``i`` owns the rows ``ptr[i]:ptr[i + 1]``.
        row_mass: mass a of each vertex; 1 by default.
        column_mass: mass b of each column, for all graphs or for each. By default each column
            holds the same share of its graph's mass, n/P; with dustbins, 1.
        padding: scores of one padding vertex, for graphs that are thought of as padded.
        padding_mass: how many padding vertices each graph has. They are all alike, so one row with
            this mass is exactly equivalent to as many rows. They are not part of the plan.
        dustbin: score of the dustbins. Adds a row whose mass is that of all latent vertices
            and a column whose mass is that of all vertices, padding included, so that vertices
            and latent vertices may stay unmatched. Neither is part of the plan.
        largest: a promise that no graph has more vertices, where the caller knows: asking a GPU
            means waiting for it. Spares a GPU the launches that only larger graphs need.
        iterations: at most how many.
        tolerance: a graph stops early when what is left of its change, extrapolated as a geometric
            series of its column errors, is not above this. 0 runs all iterations unless nothing
            changes any more; by default 1e-6, and 1e-13 in float64.
        gradient: ``truncated`` is the exact gradient of the iterations that were run, recomputed
            backwards. ``implicit`` is that of the fixed point, cheaper, and meaningless where the
            iteration has not converged. ``auto`` takes for each graph ``implicit`` if the graph
            stopped early at a tolerance below 1e-3, and ``truncated`` otherwise.
        backend: ``fused`` is one kernel call, on CPU (numba) or CUDA (Triton); ``reference`` is
            plain torch on any device, with autograd's own truncated gradient. By default the
            first where it exists.
        return_info: also return iterations and errors, so that non-convergence is visible.

    Returns:
        The plan (V, P); with ``return_info`` a pair of it and a :class:`SinkhornInfo`.

    Example:
        >>> import torch
        >>> from softperm.ops.transport import sinkhorn
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 3.0]])
        >>> plan = sinkhorn(scores, ptr=torch.tensor([0, 2, 4]))  # two graphs of two vertices
        >>> plan.sum(1)
        tensor([1., 1., 1., 1.])
    """
    iterations, tolerance, largest = map(_plain, (iterations, tolerance, largest))
    if not isinstance(iterations, Integral) or iterations < 1:
        raise ValueError(f"iterations must be a whole number of at least 1; got {iterations!r}")
    if not (tolerance is None or (isinstance(tolerance, Real) and tolerance == tolerance)):
        raise ValueError(f"tolerance must be a number or None; got {tolerance!r}")
    if not (largest is None or isinstance(largest, Integral)):
        raise ValueError(f"largest must be a whole number or None; got {largest!r}")
    problem = pose(
        scores,
        ptr,
        row_mass=row_mass,
        column_mass=column_mass,
        padding=padding,
        padding_mass=padding_mass,
        dustbin=dustbin,
    )
    if tolerance is None:
        tolerance = TOLERANCE.get(scores.dtype, 1e-6)
    if backend is None:
        backend = "fused" if scores.device.type in {"cpu", "cuda"} else "reference"
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}; got {gradient!r}")
    if backend == "reference":
        plan, used, error = reference.solve(problem, iterations, tolerance)
    elif backend == "fused":
        only_backward(scores, problem.extra, remedy="; backend='reference' does")
        plan, used, error = _fused(problem, int(iterations), tolerance, gradient, largest)
    else:
        raise ValueError(f"backend must be 'fused' or 'reference'; got {backend!r}")
    plan = plan.to(scores.dtype)
    return (plan, SinkhornInfo(used[0], _visible(error[0], plan, ptr))) if return_info else plan


def softmax(
    scores: Float[Tensor, "V P"],
    ptr: Int[Tensor, " B1"],
    *,
    row_mass: Float[Tensor, " V"] | None = None,
    padding: Float[Tensor, " P"] | None = None,
    padding_mass: Float[Tensor, " B"] | None = None,
    dustbin: Float[Tensor, ""] | None = None,
    largest: int | None = None,
) -> Float[Tensor, "V P"]:
    """The plan without column constraints: a softmax over latent vertices in each row.

    The alternative that the paper considers to Sinkhorn: each vertex chooses for itself, so
    padding has no influence, and a dustbin is one more choice. It takes those arguments of
    :func:`sinkhorn` that say what is assigned; there is nothing to iterate, so no others.
    """
    masses = {"row_mass": row_mass, "padding_mass": padding_mass}
    problem = pose(scores, ptr, padding=padding, dustbin=dustbin, **masses)
    if scores.device.type == "cpu" and not is_transformed(scores, ptr):
        check_values(problem)
    if dustbin is not None:
        column = dustbin.to(scores.dtype).expand(len(scores), 1)
        scores = torch.cat([scores, column], dim=1)  # (V, P + 1)
    plan = scores.softmax(dim=1)
    if dustbin is not None:
        plan = plan[:, :-1]  # (V, P)
    vertex = torch.arange(len(plan), device=plan.device)
    inside = (vertex >= ptr[0]) & (vertex < ptr[-1])
    return torch.where(inside[:, None], plan * problem.row_mass.to(plan.dtype)[:, None], 0)


def _plain(number: Any) -> Any:
    """The number that a tensor without axes holds; anything else as it is."""
    return number.item() if isinstance(number, Tensor) and number.ndim == 0 else number


def _visible(
    error: Float[Tensor, " B"], plan: Float[Tensor, "V P"], ptr: Int[Tensor, " B1"]
) -> Float[Tensor, " B"]:
    """Errors with NaN for the graphs whose plan has one."""
    lost = plan.detach().isnan().any(1).long().cumsum(0)
    lost = torch.cat([lost.new_zeros(1), lost])[ptr].diff()  # (B,)
    return torch.where(lost > 0, torch.nan, error)


def _fused(problem: Problem, iterations: int, tolerance: float, gradient: str, largest: int | None):
    """The registered operator on a problem: plan, iterations used, error."""
    from softperm.ops.transport.operators import sinkhorn_op  # compiles: only when used

    plan, _, used, error = sinkhorn_op(
        problem.scores.contiguous(),
        problem.ptr,
        problem.row_mass,
        problem.column_mass,
        problem.extra,
        problem.extra_mass,
        problem.bin_score,
        iterations,
        float(tolerance),
        GRADIENTS[gradient],
        -1 if largest is None else int(largest),
    )
    return plan, used, error
