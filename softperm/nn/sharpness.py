"""How far soft permutations are from uniform ones, and aligned matrices from one number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


def row_entropy(d: Float[Tensor, "... V P"]) -> Float[Tensor, ""]:
    r"""Mean entropy of the rows of soft permutations, relative to that of a uniform row.

    .. math:: \frac{1}{V} \sum_i \frac{-\sum_k \hat D_{ik} \log \hat D_{ik}}{\log P},
        \quad \hat D_{ik} = D_{ik} / \textstyle\sum_l D_{il}

    1 if every vertex is assigned to all latent vertices alike, 0 if each is assigned to one. Rows
    without mass, as a dustbin may leave them, do not count.

    >>> row_entropy(torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]))
    tensor(0.5000)
    """
    if d.shape[-1] == 1:
        return d.new_zeros(())
    shares, there = _shares(d)
    entropy = torch.special.entr(shares).sum(-1)  # (V,)
    count = there.sum().clamp(min=1)
    return (entropy * there).sum() / count / torch.tensor(d.shape[-1]).log().to(d)


def used_latent_vertices(d: Float[Tensor, "... V P"]) -> Float[Tensor, ""]:
    r"""Effective number of latent vertices that assignments tell apart.

    .. math:: \exp\left(H(\bar D) - \frac{1}{V} \sum_i H(\hat D_i)\right),
        \quad \bar D = \frac{1}{V} \sum_i \hat D_i

    the exponential of the mutual information of a vertex and its latent vertex: 1 if all rows are
    the same, uniform or not; k if vertices are assigned to k latent vertices, each to one, equally
    often.

    >>> round(float(used_latent_vertices(torch.eye(4)[[0, 1, 2, 2, 1, 0]])), 3)
    3.0
    """
    shares, there = _shares(d)
    shares, there = shares.flatten(0, -2), there.flatten()  # (V, P), (V,)
    count = there.sum().clamp(min=1)
    mean = (shares * there[:, None]).sum(0) / count  # (P,)
    rows = (torch.special.entr(shares).sum(1) * there).sum() / count
    return (torch.special.entr(mean).sum() - rows).exp()


def first_component(vectors: Float[Tensor, "B Z"]) -> Float[Tensor, ""]:
    """Share of the first principal component in the variance of vectors; 1 if nothing varies.

    >>> first_component(torch.tensor([[1.0, 1.0], [2.0, 2.0], [5.0, 5.0]]))
    tensor(1.)
    """
    centred = (vectors - vectors.mean(0)).double()
    small = centred @ centred.mT if len(centred) < centred.shape[1] else centred.mT @ centred
    values = torch.linalg.eigvalsh(small).clamp(min=0)
    total = values.sum()
    return torch.where(total > 0, values[-1] / total, 1.0).to(vectors.dtype)


def _shares(d: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with sum 1, and which rows have mass."""
    mass = d.sum(-1, keepdim=True)
    return d / torch.where(mass > 0, mass, 1.0), mass.squeeze(-1) > 0


@dataclass(frozen=True)
class Sharpness:
    """How far the soft permutations of a batch of graphs are from uniform ones.

    Attributes:
        row_entropy: see :func:`row_entropy`; 1 for uniform permutations.
        first_component: see :func:`first_component`, of vec(DᵀAD); 1 if aligned matrices tell no
            more than one number, such as the number of edges.
        used_latent_vertices: see :func:`used_latent_vertices`; 1 for uniform permutations, P at
            most. Of several permutations side by side, the largest.
    """

    row_entropy: float
    first_component: float
    used_latent_vertices: float

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        d: Float[Tensor, "*K V P"],
        ptr: Int[Tensor, " B1"],
        adjacency: Float[Tensor, "B P P"],
    ) -> Sharpness:
        """The sharpness of permutations and of what they make of adjacency matrices.

        Args:
            d: soft permutations, vertices laid end to end.
            ptr: where each graph's vertices begin, with the total at the end.
            adjacency: aligned adjacency matrices.
        """
        d = d[..., : int(ptr[-1]), :]
        plans = d.unbind() if d.ndim == 3 else [d]
        used = max(float(used_latent_vertices(plan)) for plan in plans)
        share = float(first_component(adjacency.flatten(1)))
        return cls(float(row_entropy(d)), share, used)
