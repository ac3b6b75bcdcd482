"""Messages whose weights are a function of the edge, without a matrix for every edge."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.ops.ragged import pool


def edge_conditioned_sum(
    x: Float[Tensor, "V F"],
    edge_index: Int[Tensor, "2 E"],
    h: Float[Tensor, "E U"],
    weight: Float[Tensor, "U F H"],
) -> Float[Tensor, "V H"]:
    r"""Sums messages through matrices of the edges.

    .. math:: y_i = \sum_j \Theta_{ij}^\top x_j, \qquad \Theta_{ij} = \sum_k h_{ijk} W_k

    The last layer of a network that makes :math:`\Theta` is linear in its hidden units h, so the
    sum over neighbours may come first: :math:`\sum_k W_k^\top \sum_j h_{ijk} x_j`. Memory is
    V · U · F and E · (U + F), where a matrix for every edge would take E · F · H.

    Args:
        x: a vector for each vertex.
        edge_index: directed edges (i, j), sorted by i; j sends, i receives.
        h: hidden units of each edge.
        weight: the matrix of each hidden unit.
    """
    row, col = edge_index
    ptr = torch.searchsorted(row.contiguous(), torch.arange(len(x) + 1, device=row.device))
    received = pool(h, x[col], ptr)  # (V, U, F)
    return received.flatten(1) @ weight.flatten(0, 1)
