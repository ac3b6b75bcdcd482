"""GCN and GIN with edge features, as the examples of the Open Graph Benchmark have them.

Hu et al., "Open Graph Benchmark: Datasets for Machine Learning on Graphs", 2020.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softperm.data.collection import GraphBatch
from softperm.lab.baselines.aggregate import degree
from softperm.lab.baselines.inputs import edge_features
from softperm.lab.baselines.layers import VertexMLP


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
