"""GIN (Xu et al., "How Powerful are Graph Neural Networks?", ICLR 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import (
    Dropout,
    VertexMLP,
    sum_neighbours,
    sum_readout,
    vertex_features,
)
from softperm.ops.linear import Linear


class GIN(nn.Module):
    r"""Sums neighbours into MLPs; every layer's readout has its own linear classifier.

    .. math::
        x_i^{(k)} = \text{MLP}^{(k)}\Big((1 + \epsilon^{(k)}) x_i^{(k-1)}
            + \sum_{j \in N(i)} x_j^{(k-1)}\Big), \qquad
        y = \sum_k W^{(k)} \, \text{readout}_i \, x_i^{(k)}

    Left open by the paper, settled as in Errica et al. ("A Fair Comparison of Graph Neural Networks
    for Graph Classification", ICLR 2020): layer 0 is an MLP on the features without message
    passing; an MLP is linear, batch normalisation, ReLU, twice; dropout falls on each layer's
    outputs; the readout is a sum or a mean, and ε is learnt or 0, whichever validation prefers.
    These choices are buffers, not branches: networks that differ in them have the same shapes and
    can be trained side by side.

    Args:
        features: size F of a vertex's features.
        outputs: number C of outputs.
        widths: hidden size of each round of message passing.
        train_eps: whether ε is learnt; else it is 0.
        readout: ``sum`` or ``mean`` over a graph's vertices.
        dropout: rate on each layer's outputs.
    """

    learns_eps: Tensor
    takes_mean: Tensor

    def __init__(
        self,
        features: int,
        outputs: int,
        *,
        widths: Sequence[int] = (32, 32, 32, 32),
        train_eps: bool = False,
        readout: str = "sum",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = [features, widths[0], *widths]
        self.mlps = nn.ModuleList(VertexMLP([a, b, b]) for a, b in pairwise(sizes))
        self.linears = nn.ModuleList(Linear(size, outputs) for size in sizes[1:])
        self.dropout = Dropout(dropout)
        self.eps = nn.Parameter(torch.zeros(len(widths)))
        self.register_buffer("learns_eps", torch.tensor(float(train_eps)))
        self.register_buffer("takes_mean", torch.tensor({"sum": False, "mean": True}[readout]))

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        sizes = batch.ptr.diff().clamp(min=1)[:, None]  # (B, 1)
        share = torch.where(self.takes_mean, sizes, 1)
        outputs = [
            linear(sum_readout(x, batch.ptr) / share)  # (B, C)
            for x, linear in zip(self.layers(batch), self.linears, strict=True)
        ]
        dropped = self.dropout(torch.cat(outputs, dim=1), batch.ptr[-1])  # (B, L · C)
        return dropped.unflatten(1, (len(outputs), -1)).sum(1)

    def layers(self, batch: GraphBatch) -> list[Float[Tensor, "V _"]]:
        """The hidden vectors of all vertices after each layer."""
        count: Int[Tensor, ""] = batch.ptr[-1]
        eps = self.learns_eps * self.eps  # (L,)
        x = self.mlps[0](vertex_features(batch).to(eps.dtype), count)  # (V, H)
        layers = [x]
        for k, mlp in enumerate(self.mlps[1:]):
            x = mlp((1 + eps[k]) * x + sum_neighbours(x, batch.edge_index), count)
            layers.append(x)
        return layers
