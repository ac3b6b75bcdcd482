"""DGCNN (Zhang et al., "An End-to-End Deep Learning Architecture for Graph Classification")."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch_geometric.nn.aggr import SortAggregation

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import Dropout, degree, sum_neighbours, vertex_features
from softperm.ops.ragged import owners


class DGCNN(nn.Module):
    r"""Sorts the vertices by their last feature and reads the first k like a sentence.

    AAAI 2018.

    .. math:: X^{(l+1)} = \tanh(\hat D^{-1} (A + I) X^{(l)} W^{(l)} + b^{(l)})

    The last convolution has one channel, by which SortPool orders the vertices; all layers'
    vectors of the first k go through two convolutions, a dense layer and dropout of 0.5. Widths of
    these (16 and 32 filters, the second of height 5, 128 dense units) are the paper's; k is a
    percentile of the training graphs' sizes, at least 10, as in Errica et al. Vertices that tie
    are isomorphic up to colour refinement almost always, so their order does not matter.

    Args:
        features: size F of a vertex's features.
        outputs: number C of outputs.
        size_percentiles: number of vertices below which 0, 1, …, 100 % of training graphs lie.
        hidden: size H of the hidden vectors.
        layers: convolutions before the one with a single channel.
        keep: share of the training graphs that have at most k vertices.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        size_percentiles: Sequence[float],
        *,
        hidden: int = 32,
        layers: int = 3,
        keep: float = 0.6,
    ) -> None:
        super().__init__()
        vertices = max(10, round(size_percentiles[round(100 * keep)]))
        sizes = [features, *[hidden] * layers, 1]
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.sort = SortAggregation(k=vertices)
        self.width = layers * hidden + 1
        self.reading = nn.Sequential(
            nn.Conv1d(1, 16, self.width, stride=self.width),  # one step for each vertex
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 32, 5),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (vertices // 2 - 4), 128),
            nn.ReLU(),
        )
        self.dropout = Dropout(0.5)
        self.output = nn.Linear(128, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        x = vertex_features(batch).to(self.output.weight.dtype)
        share = 1 / (degree(x, batch.edge_index) + 1)  # (V, 1)
        vectors = []
        for linear in self.linears:
            y = linear(x)
            x = torch.tanh(share * (sum_neighbours(y, batch.edge_index) + y))
            vectors.append(x)
        owner, graphs = owners(batch.ptr, len(x)), batch.ptr.numel() - 1
        rows = torch.cat(vectors, dim=1)  # (V, width)
        sorted_rows = rows.new_zeros(graphs, self.sort.k * rows.shape[1])  # (B, k · width)
        if len(rows):  # PyG's sorting needs a vertex
            sorted_rows = self.sort(rows, owner, dim_size=graphs)
        return self.output(self.dropout(self.reading(sorted_rows[:, None]), batch.ptr[-1]))
