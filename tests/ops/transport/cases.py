"""Random transport problems, and their solutions by the float64 reference (the oracle)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softperm.ops.transport import sinkhorn


@dataclass(frozen=True)
class Case:
    """The arguments of one call of :func:`sinkhorn`, and a gradient of its plan."""

    scores: Tensor
    ptr: Tensor
    grad: Tensor
    row_mass: Tensor | None = None
    column_mass: Tensor | None = None
    padding: Tensor | None = None
    padding_mass: Tensor | None = None
    dustbin: Tensor | None = None

    def to(self, dtype: torch.dtype) -> Case:
        """The same numbers in another floating point type."""
        tensors = {k: t for k, t in vars(self).items() if t is not None and k != "ptr"}
        return replace(self, **{k: t.detach().to(dtype) for k, t in tensors.items()})

    def arguments(self) -> dict[str, Tensor | None]:
        """Keyword arguments of :func:`sinkhorn` besides scores and ptr."""
        return {k: t for k, t in vars(self).items() if k not in {"scores", "ptr", "grad"}}


def laid_end_to_end(sizes) -> Tensor:
    """The ptr of graphs of these sizes."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(sizes).long().cumsum(0)])


def draw(
    sizes,
    p: int,
    reach: float = 3.0,
    *,
    padding: bool = False,
    dustbin: bool = False,
    masses: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """A random case: scores between 0 and ``reach``; arbitrary masses, some of them 0, or ones."""
    generator = torch.Generator().manual_seed(seed)
    ptr = laid_end_to_end(sizes)
    v, b = int(ptr[-1]), len(sizes)

    def uniform(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    case = Case(uniform(v, p) * reach, ptr, uniform(v, p) * 2 - 1)
    if padding:
        mass = max(sizes, default=0) + 2.0 - torch.tensor(sizes)
        case = replace(case, padding=uniform(p) * reach, padding_mass=mass)
    if dustbin:
        case = replace(case, dustbin=uniform(1)[0] * reach)
    if masses:
        row_mass = uniform(v) + 0.1
        row_mass[::7] = 0
        share = uniform(b, p) + 0.1
        held = [float(row_mass[i:j].sum()) for i, j in itertools.pairwise(ptr)]
        held = torch.tensor(held, dtype=torch.float64)
        held = held + (0 if case.padding_mass is None else case.padding_mass)
        share = share / share.sum(1, keepdim=True) * held[:, None]
        case = replace(case, row_mass=row_mass, column_mass=share)
    return case.to(dtype)


def differentiate(case: Case, **options) -> tuple[Tensor, dict[str, Tensor]]:
    """The plan, and the gradients of scores, padding and dustbin for the case's ``grad``."""
    names = ["scores", "padding", "dustbin"]
    leaves = {k: getattr(case, k) for k in names if getattr(case, k) is not None}
    leaves = {k: t.detach().clone().requires_grad_() for k, t in leaves.items()}
    case = replace(case, **leaves)
    plan = sinkhorn(case.scores, case.ptr, **case.arguments(), **options)
    gradients = torch.autograd.grad(plan, list(leaves.values()), case.grad)
    return plan.detach(), dict(zip(leaves, gradients, strict=True))


def oracle(case: Case, **options) -> tuple[Tensor, dict[str, Tensor]]:
    """Plan and gradients of the reference in float64."""
    return differentiate(case.to(torch.float64), backend="reference", **options)


def distance(ours: Tensor, truth: Tensor) -> float:
    """Relative distance in norm; 0 for empty tensors."""
    gap = torch.linalg.vector_norm(ours.double() - truth)
    return float(gap / torch.linalg.vector_norm(truth)) if gap > 0 else 0.0


def jointly(gradients: dict[str, Tensor]) -> Tensor:
    """All gradients as one vector."""
    return torch.cat([g.flatten() for g in gradients.values()])
