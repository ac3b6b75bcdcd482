"""Graphs carried by their soft permutations into the common space of P latent vertices.

Everything is sparse and ragged: ``A D`` costs E · P and ``Dᵀ (A D)`` costs V · P², so no n × n
matrix is ever formed and no graph is padded to the size of another.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.ops.ragged import pool, propagate


def align_adjacency(
    d: Float[Tensor, "V P"],
    edge_index: Int[Tensor, "2 E"],
    ptr: Int[Tensor, " B1"],
    edge_weight: Float[Tensor, " E"] | None = None,
    *,
    power: int = 1,
    canonical: bool = False,
) -> Float[Tensor, "B P P"]:
    r"""The aligned adjacency matrix :math:`D^\top A D` of each graph (Section 4.1).

    Or the aligned power :math:`D^\top A^k D`, which counts walks of k steps: computed from the
    right, so that :math:`A^k` is never formed.

    Args:
        d: soft permutations of all graphs, vertices laid end to end.
        edge_index: directed edges (i, j), numbered over the whole batch.
        ptr: graph ``i`` owns the vertices ``ptr[i]:ptr[i + 1]``.
        edge_weight: entries of A; 1 by default. They carry no gradient.
        power: the power k.
        canonical: promises sorted, symmetric edges; see :func:`softperm.ops.ragged.propagate`.

    Example:
        A triangle under a hard permutation is a triangle:

        >>> import torch
        >>> edges = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
        >>> align_adjacency(torch.eye(3)[[2, 0, 1]], edges, torch.tensor([0, 3]))[0]
        tensor([[0., 1., 1.],
                [1., 0., 1.],
                [1., 1., 0.]])
    """
    reached = d
    for _ in range(power):
        reached = propagate(reached, edge_index, edge_weight, canonical=canonical)  # (V, P)
    return pool(d, reached, ptr)


def align_attributes(
    d: Float[Tensor, "V P"], x: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]
) -> Float[Tensor, "B P F"]:
    r"""The aligned vertex attributes :math:`D^\top X` of each graph (Section 4.2)."""
    return pool(d, x.to(d.dtype), ptr)


def align_edge_attributes(
    d: Float[Tensor, "V P"],
    edge_index: Int[Tensor, "2 E"],
    edge_attr: Float[Tensor, "E Fe"],
    ptr: Int[Tensor, " B1"],
    *,
    canonical: bool = False,
) -> Float[Tensor, "B P P Fe"]:
    r"""The aligned edge attributes: :math:`D^\top A_c D` for each channel c (Section 4.2).

    Gradients reach D, not the edges' attributes.
    """
    channels = [
        align_adjacency(d, edge_index, ptr, weight, canonical=canonical)
        for weight in edge_attr.to(d.dtype).unbind(1)
    ]
    if not channels:
        return d.new_zeros(ptr.numel() - 1, d.shape[1], d.shape[1], 0)
    return torch.stack(channels, dim=-1)
