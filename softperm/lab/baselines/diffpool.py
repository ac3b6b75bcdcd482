"""DiffPool (Ying et al., "Hierarchical Graph Representation Learning with Differentiable Pooling").

NeurIPS 2018. The first pooling reads the sparse graph as it is: no n × n matrix is formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import MemoryLimited, mean_neighbours, mlp, vertex_features
from softperm.nn.permutation import align_adjacency
from softperm.ops.layers import VertexBatchNorm
from softperm.ops.ragged import graph_maximum, pool

Mean = Callable[[Float[Tensor, "K F"]], Float[Tensor, "K F"]]
"""The mean over neighbours, of vertices or of clusters laid end to end."""


class SAGEBlock(nn.Module):
    """Three rounds of GraphSAGE with batch normalisation; their vectors side by side, one layer."""

    def __init__(self, features: int, hidden: int, size: int, rounds: int = 3) -> None:
        super().__init__()
        sizes = list(pairwise([features, *[hidden] * rounds]))
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in sizes)
        self.others = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in sizes)
        self.norms = nn.ModuleList(VertexBatchNorm(hidden, relu=True) for _ in sizes)
        self.last = nn.Linear(rounds * hidden, size)

    def forward(
        self, x: Float[Tensor, "K F"], mean: Mean, count: Int[Tensor, ""]
    ) -> Float[Tensor, "K H"]:
        """New vectors of all vertices, given the mean over neighbours."""
        vectors = []
        for own, others, norm in zip(self.own, self.others, self.norms, strict=True):
            x = norm(own(x) + others(mean(x)), count)
            vectors.append(x)
        return self.last(torch.cat(vectors, dim=1))


class DiffPool(MemoryLimited):
    r"""Assigns vertices softly to clusters, and clusters to clusters of clusters.

    .. math:: S = \text{softmax}(\text{GNN}_a(A, X)), \quad Z = \text{GNN}_z(A, X), \quad
        X' = S^\top Z, \quad A' = S^\top A S

    As in Errica et al.: two poolings, each to a quarter of the places before it, beginning with
    the largest training graph; three rounds of GraphSAGE (mean) with batch normalisation in
    each network; the maximum over vertices after each level, side by side; 50 hidden units. The
    paper's two side objectives, link prediction :math:`\|A - S S^\top\|_F` over the number of
    entries, and the entropy of S, are added to the loss of the outputs: see :func:`carry`.

    Args:
        largest: vertices of the largest training graph; a larger one is assigned to as many
            clusters.
        hidden: size of the rounds.
        embedding: size of Z.
    """

    remedy = "use smaller batches, or a collection whose largest graph is smaller"

    def __init__(
        self, features: int, largest: int, outputs: int, *, hidden: int = 64, embedding: int = 128
    ) -> None:
        super().__init__()
        first = max(1, math.ceil(largest / 4))
        self.clusters = (first, max(1, math.ceil(first / 4)))
        self.title = f"DiffPool with {first:,} clusters"
        self.width = 46 * hidden + 3 * embedding
        sizes = [features, embedding, embedding]
        self.embed = nn.ModuleList(SAGEBlock(size, hidden, embedding) for size in sizes)
        pairs = zip(sizes, self.clusters, strict=False)
        self.assign = nn.ModuleList(SAGEBlock(size, hidden, count) for size, count in pairs)
        self.head = mlp(3 * embedding, 50, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        self.check_memory(batch)
        x = vertex_features(batch).to(next(self.parameters()).dtype)

        def mean(x: Tensor) -> Tensor:
            return mean_neighbours(x, batch.edge_index)

        z = self.embed[0](x, mean, batch.ptr[-1])  # (V, Z)
        s = torch.softmax(self.assign[0](x, mean, batch.ptr[-1]), dim=1)  # (V, K)
        levels = [graph_maximum(z, batch.ptr)]
        x = pool(s, z, batch.ptr)
        a = align_adjacency(s, batch.edge_index, batch.ptr, canonical=True)
        entries = batch.ptr.diff().square().sum()
        edges = s.new_tensor(batch.edge_index.shape[1])
        side = side_losses(s, a, pool(s, s, batch.ptr), edges, entries)
        for level, embed in enumerate(list(self.embed)[1:]):
            z = dense(embed, x, a)  # (B, K, Z)
            levels.append(z.amax(dim=1))
            if level + 1 < len(self.assign):
                s = torch.softmax(dense(self.assign[level + 1], x, a), dim=2)  # (B, K, K')
                squares, entries = a.square().sum(), a.new_tensor(a.numel())
                x, a = s.mT @ z, s.mT @ a @ s
                side = side + side_losses(s.flatten(0, 1), a, s.mT @ s, squares, entries)
        y = self.head(torch.cat(levels, dim=1))
        return carry(y, side) if self.training else y

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that a training step takes, by the measured number of arrays of each shape."""
        vertices, graphs, k = batch.structure.shape[0], batch.ptr.numel() - 1, self.clusters[0]
        assigned, rows = vertices * k + graphs * k * k, vertices + graphs * k
        return (8 * assigned + self.width * rows) * next(self.parameters()).element_size()


def dense(
    block: nn.Module, x: Float[Tensor, "B K F"], a: Float[Tensor, "B K K"]
) -> Float[Tensor, "B K H"]:
    """A block on clusters, which weigh their neighbours by the pooled adjacency matrix."""
    total = a.sum(dim=2, keepdim=True).clamp(min=1)  # (B, K, 1)

    def mean(flat: Tensor) -> Tensor:
        return (a @ flat.unflatten(0, x.shape[:2]) / total).flatten(0, 1)

    count = torch.tensor(x.shape[0] * x.shape[1], device=x.device)
    return block(x.flatten(0, 1), mean, count).unflatten(0, x.shape[:2])


def side_losses(
    s: Float[Tensor, "V K"],
    pooled: Float[Tensor, "B K K"],
    overlap: Float[Tensor, "B K K"],
    squares: Float[Tensor, ""],
    entries: Tensor,
) -> Float[Tensor, ""]:
    r"""Link prediction and entropy of an assignment.

    :math:`\|A - S S^\top\|^2 = \|A\|^2 - 2 \operatorname{tr} S^\top A S + \|S^\top S\|^2`.

    Args:
        s: assignments of all vertices.
        pooled: SᵀAS of each graph.
        overlap: SᵀS of each graph.
        squares: ‖A‖² over all graphs.
        entries: number of entries of all A.
    """
    trace = pooled.diagonal(dim1=1, dim2=2).sum()
    link = (squares - 2 * trace + overlap.square().sum()).clamp(min=1e-12).sqrt()
    entropy = -(s * torch.log(s + 1e-15)).sum(dim=1)
    return link / entries.clamp(min=1) + entropy.sum() / max(len(s), 1)


class _Carry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, loss: Tensor) -> Tensor:
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0].new_ones(())


def carry(outputs: Float[Tensor, "B C"], loss: Float[Tensor, ""]) -> Float[Tensor, "B C"]:
    """The outputs, unchanged, through which a second loss is descended.

    Whatever loss L the outputs get, the parameters receive the gradient of L + ``loss``; so a
    training loop need not know that a network has objectives of its own.

    Example:
        >>> import torch
        >>> w = torch.tensor(3.0, requires_grad=True)
        >>> carry(torch.ones(1, 1) * w, w**2).sum().backward()
        >>> w.grad
        tensor(7.)
    """
    return _Carry.apply(outputs, loss)
