"""Entropic optimal transport between the vertices of many graphs and P latent vertices.

Batched, ragged, rectangular, with any masses, padding and dustbins, and differentiable: one
function, :func:`sinkhorn`, with a reference in plain torch (``reference``) and fused kernels for
the CPU (``cpu``, in numba) and the GPU (``gpu``, in Triton).
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch._ops import OpOverload

from softperm.ops.operators import (
    has_values,
    mapped_axis_first,
    refuse_function_transforms,
    register,
)
from softperm.ops.transport import cpu, reference
from softperm.ops.transport.problem import Problem, check_values, pose

__all__ = ["SinkhornInfo", "sinkhorn", "softmax"]

Gradient = Literal["auto", "truncated", "implicit"]
Backend = Literal["fused", "reference"]

GRADIENTS = {"auto": 0, "truncated": 1, "implicit": 2}

TOLERANCE = {torch.float64: 1e-13}
"""Default of ``tolerance``, 1e-6 for types that are not listed: what their rounding resolves."""


@dataclass(frozen=True)
class SinkhornInfo:
    """Convergence of a batch of transports.

    Attributes:
        iterations: number of iterations of each graph.
        error: largest remaining relative error of a column's mass in each graph; NaN where the plan
            contains NaN, as it does if scores do.
    """

    iterations: Int[Tensor, " B"]
    error: Float[Tensor, " B"]


@overload
def sinkhorn(
    scores: Tensor, ptr: Tensor, *, row_mass: Tensor | None = ..., column_mass: Tensor | None = ...,
    padding: Tensor | None = ..., padding_mass: Tensor | None = ..., dustbin: Tensor | None = ...,
    largest: int | None = ..., iterations: int = ..., tolerance: float | None = ...,
    gradient: Gradient = ..., backend: Backend | None = ..., return_info: Literal[False] = ...,
) -> Float[Tensor, "V P"]: ...  # fmt: skip


@overload
def sinkhorn(
    scores: Tensor, ptr: Tensor, *, row_mass: Tensor | None = ..., column_mass: Tensor | None = ...,
    padding: Tensor | None = ..., padding_mass: Tensor | None = ..., dustbin: Tensor | None = ...,
    largest: int | None = ..., iterations: int = ..., tolerance: float | None = ...,
    gradient: Gradient = ..., backend: Backend | None = ..., return_info: Literal[True],
) -> tuple[Float[Tensor, "V P"], SinkhornInfo]: ...  # fmt: skip


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
    gradient: Gradient = "auto",
    backend: Backend | None = None,
    return_info: bool = False,
) -> Float[Tensor, "V P"] | tuple[Float[Tensor, "V P"], SinkhornInfo]:
    r"""Soft assignment of the vertices of each graph to P latent vertices.

    For each graph with scores :math:`S` it returns the plan :math:`D` that solves

    .. math::
        \max_{D \ge 0} \sum_{ik} S_{ik} D_{ik} - \sum_{ik} D_{ik} (\log D_{ik} - 1)
        \quad \text{s.t.} \quad D \mathbf{1} = a, \; D^\top \mathbf{1} = b

    by Sinkhorn's iteration in log space, column update first and row update last, so that rows
    are exact and columns as close as the iterations bring them (Section 4.1 of the paper).

    ``scores``, ``padding`` and ``dustbin`` receive gradients; masses do not.

    Args:
        scores: scores of all vertices, those of one graph after those of another.
        ptr: graph ``i`` has the rows ``ptr[i]:ptr[i + 1]``.
        row_mass: mass a of each vertex; 1 by default.
        column_mass: mass b of each column, for all graphs or for each. By default each column
            holds the same share of its graph's mass, n/P; with dustbins, 1.
        padding: scores of a padding vertex.
        padding_mass: number of padding vertices of each graph. They are all identical, so one row
            with this mass is exactly equivalent to as many rows. They are not part of the plan.
        dustbin: score of the dustbins. Adds a row whose mass is that of all latent vertices
            and a column whose mass is that of all vertices, padding included, so that vertices
            and latent vertices may stay unmatched. Neither is part of the plan.
        largest: number of vertices of the largest graph, or an upper bound, if the caller knows it
            (reading it from a GPU would wait for the device). Saves a GPU the launches that only
            larger graphs need.
        iterations: largest number of iterations.
        tolerance: a graph stops early when its remaining change, extrapolated as a geometric series
            of its column errors, is not above this. 0 runs all iterations unless nothing changes
            any more; by default 1e-6, and 1e-13 in float64.
        gradient: ``truncated`` is the exact gradient of the iterations that were run, recomputed
            backwards. ``implicit`` is that of the fixed point: cheaper, and wrong where the
            iteration has not converged. ``auto`` uses ``implicit`` for graphs that stopped early at
            a tolerance below 1e-3, and ``truncated`` for the others.
        backend: ``fused`` is one kernel call, on CPU (numba) or CUDA (Triton); ``reference`` is
            plain torch on any device, with autograd's own truncated gradient. By default ``fused``
            on devices that have it.
        return_info: also return iterations and errors, which show whether each graph converged.

    Returns:
        The plan (V, P); with ``return_info`` the pair of the plan and a :class:`SinkhornInfo`.

    Example:
        >>> import torch
        >>> from softperm.ops.transport import sinkhorn
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 3.0]])
        >>> plan = sinkhorn(scores, ptr=torch.tensor([0, 2, 4]))  # two graphs of two vertices
        >>> plan.sum(1)
        tensor([1., 1., 1., 1.])
    """
    iterations, tolerance, largest = map(_number, (iterations, tolerance, largest))
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
        refuse_function_transforms(scores, problem.extra, remedy="; backend='reference' does")
        plan, used, error = _fused(problem, int(iterations), tolerance, gradient, largest)
    else:
        raise ValueError(f"backend must be 'fused' or 'reference'; got {backend!r}")
    plan = plan.to(scores.dtype)
    if return_info:
        return plan, SinkhornInfo(used[0], _with_nan(error[0], plan, ptr))
    return plan


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

    The paper's alternative to Sinkhorn: each vertex is assigned independently of the others, so
    padding has no influence, and a dustbin is one more column. It takes the arguments of
    :func:`sinkhorn` that define the problem, and none about iterations.
    """
    masses = {"row_mass": row_mass, "padding_mass": padding_mass}
    problem = pose(scores, ptr, padding=padding, dustbin=dustbin, **masses)
    if scores.device.type == "cpu" and has_values(scores, ptr):
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


def _number(value: Any) -> Any:
    """The number in a tensor without axes; anything else unchanged."""
    return value.item() if isinstance(value, Tensor) and value.ndim == 0 else value


def _with_nan(
    error: Float[Tensor, " B"], plan: Float[Tensor, "V P"], ptr: Int[Tensor, " B1"]
) -> Float[Tensor, " B"]:
    """Errors, with NaN for the graphs whose plan contains NaN."""
    invalid = plan.detach().isnan().any(1).long().cumsum(0)
    invalid = torch.cat([invalid.new_zeros(1), invalid])[ptr].diff()  # (B,)
    return torch.where(invalid > 0, torch.nan, error)


def _fused(
    problem: Problem, iterations: int, tolerance: float, gradient: str, largest: int | None
) -> tuple[Float[Tensor, "V P"], Int[Tensor, "M B"], Float[Tensor, "M B"]]:
    """Solves a problem with the registered operator: plan, iterations used, error."""
    scores, *tensors = vars(problem).values()
    bound = -1 if largest is None else int(largest)
    plan, _, used, error = sinkhorn_op(
        scores.contiguous(), *tensors, iterations, float(tolerance), GRADIENTS[gradient], bound
    )
    return plan, used, error


# The fused transport as registered operators. Both solve all problems of all models in one call.


def _forward_cpu(*inputs: Any) -> tuple:
    *arguments, _gradient, _largest = inputs
    return cpu.forward(*arguments)


def _forward_gpu(*inputs: Any) -> tuple:
    from softperm.ops.transport import gpu  # needs Triton

    *arguments, _gradient, largest = inputs
    return gpu.forward(*arguments, largest=largest)


def _backward_cpu(*inputs: Any) -> tuple:
    *arguments, _largest = inputs
    return cpu.backward(*arguments)


def _backward_gpu(*inputs: Any) -> tuple:
    from softperm.ops.transport import gpu  # needs Triton

    return gpu.backward(*inputs)


def _forward_shapes(*inputs: Any) -> tuple:
    scores, _, _, column_mass, _, _, _, iterations, *_ = inputs
    m, b, c = column_mass.shape
    return (
        torch.empty_like(scores),
        scores.new_empty(m, b, iterations, c, dtype=torch.float64),
        scores.new_empty(m, b, dtype=torch.int32),
        scores.new_empty(m, b),
    )


def _backward_shapes(*inputs: Any) -> tuple:
    _, _, scores, _, _, column_mass, extra, *_ = inputs
    m, b, c = column_mass.shape
    return (
        torch.empty_like(scores),
        scores.new_empty(m, b, extra.shape[1], c),
        scores.new_empty(m, b),
    )


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, _iterations, tolerance, gradient, largest = inputs
    plan, history, used, error = output
    ctx.mark_non_differentiable(history, used, error)
    ctx.set_materialize_grads(False)  # no zeros as large as the history
    ctx.save_for_backward(plan, *tensors, history, used, error)
    ctx.settings = tolerance, gradient, largest


def _backward(ctx: Any, grad_plan: Tensor | None, *_: Tensor | None) -> tuple:
    if grad_plan is None:
        return (None,) * 11
    d_scores, d_extra, d_bin = sinkhorn_backward_op(
        grad_plan.contiguous(), *ctx.saved_tensors, *ctx.settings
    )
    # Summed over the problems of a model in a fixed order: the same bits on every run.
    return d_scores, None, None, None, d_extra.sum(1), None, d_bin.sum(1), *(None,) * 4


def _no_second_derivative(ctx: Any, *gradients: Tensor | None) -> None:
    raise NotImplementedError(
        "the fused transport has first derivatives only: for second ones use backend='reference'"
    )


def _over_models(operator: OpOverload, info: Any, in_dims: tuple, *inputs: Any) -> tuple:
    """The rule of ``torch.vmap``: the problems of all mapped models are solved in one call."""
    size, settings = info.batch_size, inputs[7:]
    scores, ptr, *others = mapped_axis_first(info, in_dims[:7], inputs[:7])
    vertices, models = scores.shape[1], ptr.shape[1]
    begin = torch.arange(size, device=ptr.device).view(size, 1, 1) * vertices
    tensors = (t.flatten(0, 1) for t in (scores, ptr + begin, *others))
    plan, *rest = operator(*tensors, *settings)
    rest = [t.unflatten(0, (size, models)) for t in rest]
    return (plan.unflatten(0, (size, vertices)), *rest), (0, 0, 0, 0)


_INPUTS = (
    "Tensor scores, Tensor ptr, Tensor row_mass, Tensor column_mass, Tensor extra, "
    "Tensor extra_mass, Tensor bin_score"
)

sinkhorn_op = register(
    f"sinkhorn({_INPUTS}, int iterations, float tolerance, int gradient, int largest)"
    " -> (Tensor plan, Tensor history, Tensor used, Tensor error)",
    fake=_forward_shapes,
    cpu=_forward_cpu,
    gpu=_forward_gpu,
    save=_save,
    backward=_backward,
    vmap=_over_models,
)
"""Plan (V, P), column potentials of each iteration (M, B, T, C), iterations used, error."""

sinkhorn_backward_op = register(
    f"sinkhorn_backward(Tensor grad_plan, Tensor plan, {_INPUTS}, Tensor history, Tensor used,"
    " Tensor error, float tolerance, int gradient, int largest)"
    " -> (Tensor d_scores, Tensor d_extra, Tensor d_bin)",
    fake=_backward_shapes,
    cpu=_backward_cpu,
    gpu=_backward_gpu,
    backward=_no_second_derivative,
)
"""Gradients of scores (V, P), and per problem of extra rows (M, B, R, C) and bin (M, B)."""
