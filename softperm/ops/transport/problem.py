"""A batch of transport problems in the form that every backend solves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.ops.operators import check_offsets


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

    @property
    def has_padding(self) -> bool:
        """Whether the extra rows begin with the padding vertices."""
        return self.extra.shape[1] > self.has_bin


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
