"""Entropic optimal transport between the vertices of many graphs and P latent vertices.

Batched, ragged, rectangular, with any masses, padding and dustbins, and differentiable: one
function, :func:`sinkhorn`, with a reference in plain torch (``reference``) and fused kernels for
the CPU (``cpu``, in numba) and the GPU (``gpu``, in Triton). Each solves a :class:`Problem`, and is
imported when it is first used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from numbers import Integral, Real
from typing import Any, Literal, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch._ops import OpOverload

from softperm.ops.operators import (
    check_offsets,
    has_values,
    mapped_axis_first,
    refuse_function_transforms,
    register,
)

Gradient = Literal["auto", "truncated", "implicit"]
Backend = Literal["fused", "reference"]

GRADIENTS = {"auto": 0, "truncated": 1, "implicit": 2}
NO_GRADIENT = -1  # within torch.no_grad: the potentials of each iteration are not kept

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
        row_mass: mass a of each vertex; 1 by default. A vertex of mass k is equivalent to k
            vertices of mass 1 with the same scores.
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
        backend = "fused" if scores.device.type in {"cpu", "cuda", "meta"} else "reference"
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}; got {gradient!r}")
    if backend == "reference":
        from softperm.ops.transport import reference

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
    way = GRADIENTS[gradient] if torch.is_grad_enabled() else NO_GRADIENT
    plan, _, used, error = sinkhorn_op(
        scores.contiguous(), *tensors, iterations, float(tolerance), way, bound
    )
    return plan, used, error


@dataclass(frozen=True)
class Problem:
    """Ragged transport problems, ``B`` for each of ``M`` models, in one set of arrays.

    Problem ``(m, b)`` has a row for each vertex ``ptr[m, b]:ptr[m, b + 1]`` of ``scores`` and then
    ``R`` extra rows, whose scores all problems of a model share and whose masses differ. Its ``C``
    columns are the ``P`` columns of ``scores`` and, with dustbins, one more, whose score is
    ``bin_score[m]`` in every vertex's row. The extra rows are, in this order where present: the
    padding vertices, which are identical and so need only one row with their total mass; and the
    dustbin row. The plan of vertices outside every problem is zero.

    Attributes:
        scores: score of each vertex for each latent vertex.
        ptr: first vertex of each problem, with the end of the last one, for each model.
        row_mass: mass of each vertex's row, 0 or more.
        column_mass: mass of each column.
        extra: scores of the extra rows.
        extra_mass: mass of the extra rows; 0 switches a row off.
        bin_score: score of the dustbin column; unused when C = P.
    """

    scores: Float[Tensor, "V P"]
    ptr: Int[Tensor, "M B1"]
    row_mass: Float[Tensor, " V"]
    column_mass: Float[Tensor, "M B C"]
    extra: Float[Tensor, "M R C"]
    extra_mass: Float[Tensor, "M B R"]
    bin_score: Float[Tensor, " M"]

    @property
    def has_bin(self) -> bool:
        """Whether the columns end with a dustbin."""
        return self.column_mass.shape[-1] == self.scores.shape[-1] + 1


Gradients = tuple[Float[Tensor, "V P"], Float[Tensor, "M B R C"], Float[Tensor, "M B"]]
"""Of the scores, and for each problem of its extra rows and of its dustbin's score."""

Solution = tuple[
    Float[Tensor, "V P"], Float[Tensor, "M B T C"], Int[Tensor, "M B"], Float[Tensor, "M B"]
]
"""The plan, the column potentials of each iteration, the iterations used, the remaining error."""


def pose(
    scores: Float[Tensor, "V P"],
    ptr: Int[Tensor, " B1"],
    *,
    row_mass: Float[Tensor, " V"] | None = None,
    column_mass: Float[Tensor, "*B P"] | None = None,
    padding: Float[Tensor, " P"] | None = None,
    padding_mass: Float[Tensor, " B"] | None = None,
    dustbin: Float[Tensor, ""] | None = None,
) -> Problem:
    """Builds a problem: default masses, padding as an extra row, dustbins as a row and a column.

    See :func:`softperm.ops.transport.sinkhorn` for the arguments. Only ``scores``, ``padding`` and
    ``dustbin`` receive gradients. All arrays have the type of ``scores``, and at least float32.
    """
    _check_shapes(scores, ptr, row_mass, column_mass, padding, padding_mass, dustbin)
    if ptr.dtype not in (torch.int32, torch.int64):
        ptr = ptr.long()
    dustbin = None if dustbin is None else dustbin.reshape(())
    dtype = torch.promote_types(scores.dtype, torch.float32)
    scores = scores.to(dtype)
    padding, dustbin = (None if t is None else t.to(dtype) for t in (padding, dustbin))
    v, p = scores.shape
    b = ptr.numel() - 1
    total = _totals(scores, ptr, row_mass)  # (B,)
    if row_mass is None:
        row_mass = scores.new_ones(v)
    rows, masses = [], []
    if padding is not None and padding_mass is not None:
        padding_mass = padding_mass.detach().to(scores.dtype)
        rows.append(padding)
        masses.append(padding_mass)
        total = total + padding_mass
    if column_mass is None:
        share = torch.ones_like(total) if dustbin is not None else total / p  # (B,)
        column_mass = share[:, None].expand(b, p)
    column_mass = column_mass.detach().to(scores.dtype).expand(b, p)  # (B, P)
    if dustbin is not None:
        rows = [torch.cat([row, dustbin.reshape(1)]) for row in rows]
        rows.append(dustbin.expand(p + 1))
        masses.append(column_mass.sum(1))
        column_mass = torch.cat([column_mass, total[:, None]], dim=1)  # (B, P + 1)
    c = column_mass.shape[1]
    return Problem(
        scores=scores,
        ptr=ptr[None],
        row_mass=row_mass.detach().to(scores.dtype),
        column_mass=column_mass[None].contiguous(),
        extra=torch.stack(rows)[None] if rows else scores.new_zeros(1, 0, c),
        extra_mass=torch.stack(masses, dim=1)[None] if rows else scores.new_zeros(1, b, 0),
        bin_score=scores.new_zeros(1) if dustbin is None else dustbin.reshape(1),
    )


def check_values(problem: Problem) -> None:
    """Raises ValueError for offsets and masses out of range.

    For the CPU only: on a GPU the check would have to wait for the device.
    """
    check_offsets(problem.ptr, problem.scores.shape[0])
    for name in ("row_mass", "column_mass", "extra_mass"):
        mass = getattr(problem, name)
        invalid = mass[~((mass >= 0) & (mass < torch.inf))]
        if len(invalid):
            argument = name.replace("extra", "padding")
            raise ValueError(
                f"{argument} must be finite and 0 or more everywhere; got {float(invalid[0])}"
            )


def _totals(scores: Tensor, ptr: Tensor, row_mass: Tensor | None) -> Float[Tensor, " B"]:
    """Total mass of the vertices of each problem."""
    if row_mass is None:
        return ptr.diff().to(scores.dtype)
    running = torch.cat([row_mass.new_zeros(1), row_mass.detach().double().cumsum(0)])
    try:
        return (running[ptr[1:]] - running[ptr[:-1]]).to(scores.dtype)
    except IndexError:
        check_offsets(ptr[None], scores.shape[0])
        raise


def _check_shapes(scores, ptr, row_mass, column_mass, padding, padding_mass, dustbin) -> None:
    """Raises ValueError for arrays whose shapes, types or devices do not agree."""
    arguments = {"scores": scores, "ptr": ptr, "row_mass": row_mass, "column_mass": column_mass}
    arguments |= {"padding": padding, "padding_mass": padding_mass, "dustbin": dustbin}
    for name, value in arguments.items():
        if not isinstance(value, Tensor) and (value is not None or name in {"scores", "ptr"}):
            raise ValueError(f"{name} must be a tensor; got {value!r:.60}")
        if value is not None and value.device != scores.device:
            raise ValueError(f"{name} is on {value.device}, but scores on {scores.device}")
    if scores.ndim != 2 or scores.shape[1] < 1:
        raise ValueError(
            "scores must be (vertices, latent vertices) with at least one latent vertex; "
            f"got shape {tuple(scores.shape)}"
        )
    if not scores.is_floating_point():
        raise ValueError(f"scores must be floating point; got {scores.dtype}")
    if ptr.ndim != 1 or ptr.numel() < 1:
        raise ValueError(f"ptr must be a vector that starts with 0; got shape {tuple(ptr.shape)}")
    if ptr.is_floating_point() or ptr.dtype == torch.bool:
        raise ValueError(f"ptr must hold whole numbers; got {ptr.dtype}")
    v, p = scores.shape
    b = ptr.numel() - 1
    if row_mass is not None and row_mass.shape != (v,):
        raise ValueError(f"row_mass must have shape ({v},); got {tuple(row_mass.shape)}")
    if column_mass is not None and tuple(column_mass.shape) not in {(p,), (b, p)}:
        raise ValueError(
            f"column_mass must have shape ({p},) or ({b}, {p}); got {tuple(column_mass.shape)}"
        )
    if (padding is None) != (padding_mass is None):
        raise ValueError("expected both of padding and padding_mass, or neither; got one of them")
    if padding is not None and padding.shape != (p,):
        raise ValueError(f"padding must have shape ({p},); got {tuple(padding.shape)}")
    if padding_mass is not None and padding_mass.shape != (b,):
        raise ValueError(f"padding_mass must have shape ({b},); got {tuple(padding_mass.shape)}")
    if dustbin is not None and dustbin.numel() != 1:
        raise ValueError(f"dustbin must be one number; got shape {tuple(dustbin.shape)}")


# The fused transport as registered operators. Both solve all problems of all models in one call.


_BACKENDS = {"cpu": "softperm.ops.transport.cpu", "gpu": "softperm.ops.transport.gpu"}


def _forward(device: str, *inputs: Any) -> tuple:
    backend = import_module(_BACKENDS[device])  # Triton needs a GPU to be there
    *tensors, iterations, tolerance, _gradient, largest = inputs
    return backend.forward(Problem(*tensors), iterations, tolerance, largest, _kept(*inputs))


def _kept(*inputs: Any) -> int:
    """Number of iterations whose column potentials are kept for the gradient."""
    *_, iterations, _tolerance, gradient, _largest = inputs
    return 1 if gradient == NO_GRADIENT else iterations


def _backward(device: str, grad_plan: Tensor, *inputs: Any) -> tuple:
    backend = import_module(_BACKENDS[device])
    *tensors, history, used, tolerance, gradient, largest = inputs
    problem = Problem(*tensors)
    return backend.backward(problem, grad_plan, history, used, tolerance, gradient, largest)


def _forward_shapes(*inputs: Any) -> tuple:
    scores, _, _, column_mass, *_ = inputs
    m, b, c = column_mass.shape
    return (
        torch.empty_like(scores),
        scores.new_empty(m, b, _kept(*inputs), c, dtype=torch.float64),
        scores.new_empty(m, b, dtype=torch.int32),
        scores.new_empty(m, b),
    )


def _backward_shapes(*inputs: Any) -> tuple:
    _, scores, _, _, column_mass, extra, *_ = inputs
    m, b, c = column_mass.shape
    return (
        torch.empty_like(scores),
        scores.new_empty(m, b, extra.shape[1], c),
        scores.new_empty(m, b),
    )


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, _iterations, tolerance, gradient, largest = inputs
    _plan, history, used, error = output
    ctx.mark_non_differentiable(history, used, error)
    ctx.set_materialize_grads(False)  # no zeros as large as the history
    ctx.save_for_backward(*tensors, history, used)  # the plan is recomputed
    ctx.settings = tolerance, gradient, largest


def _differentiate(ctx: Any, grad_plan: Tensor | None, *_: Tensor | None) -> tuple:
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
    cpu=partial(_forward, "cpu"),
    gpu=partial(_forward, "gpu"),
    save=_save,
    backward=_differentiate,
    vmap=_over_models,
)
"""Plan (V, P), column potentials of each iteration (M, B, T, C), iterations used, error."""

sinkhorn_backward_op = register(
    f"sinkhorn_backward(Tensor grad_plan, {_INPUTS}, Tensor history, Tensor used,"
    " float tolerance, int gradient, int largest)"
    " -> (Tensor d_scores, Tensor d_extra, Tensor d_bin)",
    fake=_backward_shapes,
    cpu=partial(_backward, "cpu"),
    gpu=partial(_backward, "gpu"),
    backward=_no_second_derivative,
)
"""Gradients of scores (V, P), and per problem of extra rows (M, B, R, C) and bin (M, B)."""
