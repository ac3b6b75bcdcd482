"""Networks for molecules: embedding, rounds of message passing, readout, head.

GCN and GIN with edge features are those of the examples of the Open Graph Benchmark (Hu et al.,
"Open Graph Benchmark: Datasets for Machine Learning on Graphs", 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import (
    Dropout,
    Readout,
    VertexMLP,
    degree,
    edge_features,
    mean_readout,
    vertex_features,
)
from softperm.ops.normalisation import VertexBatchNorm


class Molecular(nn.Module):
    """Message passing with batch normalisation, ReLU and dropout after each round.

    Attributes of vertices are one-hot labels, so a linear layer without bias is the sum of an
    embedding for each label, as in OGB's examples.

    Args:
        features: size F of a vertex's features.
        hidden: size H of the hidden vectors.
        rounds: each turns vectors (V, H) and the batch into vectors (V, H).
        head: outputs (B, C) from the graphs' vectors (B, H).
        dropout: rate after each round.
        residual: whether rounds have residual connections.
        relu_last: whether the last round too ends in a ReLU.
        readout: aggregates the vertices of each graph.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        rounds: Sequence[nn.Module],
        head: nn.Module,
        *,
        dropout: float,
        residual: bool,
        relu_last: bool = True,
        readout: Readout = mean_readout,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(features, hidden, bias=False)
        self.rounds = nn.ModuleList(rounds)
        self.norms = nn.ModuleList(VertexBatchNorm(hidden) for _ in rounds)
        self.dropouts = nn.ModuleList(Dropout(dropout) for _ in rounds)
        self.head, self.readout = head, readout
        self.residual, self.relu_last = residual, relu_last

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        count = batch.ptr[-1]
        x = self.embed(vertex_features(batch).to(self.embed.weight.dtype))  # (V, H)
        last = len(self.rounds) - 1
        parts = zip(self.rounds, self.norms, self.dropouts, strict=True)
        for k, (message, norm, dropout) in enumerate(parts):
            y = norm(message(x, batch), count)
            y = dropout(torch.relu(y) if k < last or self.relu_last else y, count)
            x = x + y if self.residual else y
        return self.head(self.readout(x, batch.ptr))


def narrowing_head(hidden: int, outputs: int) -> nn.Sequential:
    """Two hidden layers, each half as wide as the one before, as PNA and DGN have them."""
    half, quarter = max(1, hidden // 2), max(1, hidden // 4)
    return nn.Sequential(
        nn.Linear(hidden, half),
        nn.ReLU(),
        nn.Linear(half, quarter),
        nn.ReLU(),
        nn.Linear(quarter, outputs),
    )


class GCNRound(nn.Module):
    r"""One round of GCN whose messages meet the edges' features.

    .. math:: x_i' = \frac{\text{ReLU}(W x_i + r)}{\hat d_i}
        + \sum_{j \in N(i)} \frac{\text{ReLU}(W x_j + U e_{ij})}{\sqrt{\hat d_i \hat d_j}}

    Args:
        hidden: size H of the vectors.
        edge_size: size of an edge's features.
    """

    def __init__(self, hidden: int, edge_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        self.edge = nn.Linear(edge_size, hidden, bias=False)
        self.root = nn.Parameter(torch.randn(hidden))

    def forward(self, x: Float[Tensor, "V H"], batch: GraphBatch) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        row, col = batch.edge_index
        norm = torch.rsqrt(degree(x, batch.edge_index) + 1)  # (V, 1)
        x = self.linear(x)
        e = self.edge(edge_features(batch).to(x.dtype))  # (E, H)
        message = norm[row] * norm[col] * torch.relu(x[col] + e)
        own = norm.square() * torch.relu(x + self.root)
        return own.index_add(0, row, message)


class GINRound(nn.Module):
    r"""One round of GIN whose messages meet the edges' features (GINE, Hu et al., ICLR 2020).

    .. math:: x_i' = \text{MLP}\Big((1 + \epsilon) x_i
        + \sum_{j \in N(i)} \text{ReLU}(x_j + U e_{ij})\Big)

    Args:
        hidden: size H of the vectors.
        edge_size: size of an edge's features.
    """

    def __init__(self, hidden: int, edge_size: int) -> None:
        super().__init__()
        self.edge = nn.Linear(edge_size, hidden, bias=False)
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = VertexMLP([hidden, 2 * hidden, hidden], plain_last=True)

    def forward(self, x: Float[Tensor, "V H"], batch: GraphBatch) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        row, col = batch.edge_index
        e = self.edge(edge_features(batch).to(x.dtype))  # (E, H)
        total = ((1 + self.eps) * x).index_add(0, row, torch.relu(x[col] + e))
        return self.mlp(total, batch.ptr[-1])


def gcn_with_edges(
    features: int, edge_size: int, outputs: int, *, hidden: int = 300, layers: int = 5,
    dropout: float = 0.5,
) -> Molecular:  # fmt: skip
    """GCN of OGB's examples: :class:`GCNRound`, mean readout, a linear layer."""
    return _ogb_example(GCNRound, features, edge_size, outputs, hidden, layers, dropout)


def gin_with_edges(
    features: int, edge_size: int, outputs: int, *, hidden: int = 300, layers: int = 5,
    dropout: float = 0.5,
) -> Molecular:  # fmt: skip
    """GIN of OGB's examples: :class:`GINRound`, mean readout, a linear layer."""
    return _ogb_example(GINRound, features, edge_size, outputs, hidden, layers, dropout)


def _ogb_example(
    layer: Callable[[int, int], nn.Module],
    features: int,
    edge_size: int,
    outputs: int,
    hidden: int,
    layers: int,
    dropout: float,
) -> Molecular:
    rounds = [layer(hidden, edge_size) for _ in range(layers)]
    head = nn.Linear(hidden, outputs)
    frame = {"dropout": dropout, "residual": False, "relu_last": False}
    return Molecular(features, hidden, rounds, head, **frame)
