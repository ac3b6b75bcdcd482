"""ECC (Simonovsky & Komodakis, "Dynamic Edge-Conditioned Filters in CNNs on Graphs", CVPR 2017)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import (
    Dropout,
    degree,
    edge_conditioned_sum,
    edge_features,
    mean_readout,
    vertex_features,
)
from softperm.ops.normalisation import VertexBatchNorm


class ECCLayer(nn.Module):
    r"""One edge-conditioned convolution.

    .. math:: x_i' = b + \frac{1}{|N(i)|} \sum_{j \in N(i)} \Theta(e_{ij})^\top x_j

    N(i) holds i itself, by an edge whose features are all 0. :math:`\Theta` is a network with one
    hidden layer of ReLUs, whose width the paper varies from dataset to dataset.

    Args:
        features: size F of the input.
        edge_size: size of an edge's features.
        hidden: size H of the output.
        width: hidden units of the network that makes the filters.
    """

    def __init__(self, features: int, edge_size: int, hidden: int, width: int = 16) -> None:
        super().__init__()
        self.edge = nn.Linear(edge_size, width)
        self.weight = nn.Parameter(torch.empty(width + 1, features, hidden))  # the last is alone
        self.bias = nn.Parameter(torch.zeros(hidden))
        nn.init.normal_(self.weight, std=(2 / (features * (width + 1))) ** 0.5)

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"], e: Float[Tensor, "E Fe"]
    ) -> Float[Tensor, "V H"]:
        """The vectors after one convolution."""
        h = nn.functional.pad(torch.relu(self.edge(e)), (0, 1), value=1.0)  # (E, K + 1)
        loop = nn.functional.pad(torch.relu(self.edge.bias), (0, 1), value=1.0)  # (K + 1,)
        own = x @ torch.tensordot(loop, self.weight, dims=1)  # (V, H)
        total = edge_conditioned_sum(x, edge_index, h, self.weight) + own
        return total / (degree(x, edge_index) + 1) + self.bias


class ECC(nn.Module):
    """Edge-conditioned convolutions, the mean over vertices, two fully-connected layers.

    Edges without attributes have the constant 1. Convolutions are followed by batch normalisation,
    ReLU and dropout, as in the paper and in Errica et al.; dropout before the last layer is their
    0.1. All convolutions use the whole graph. The pyramid of coarsened graphs of the paper and of
    Errica et al. is left out, because it is not a function of the graph: it selects vertices by the
    sign of the Laplacian's last eigenvector, which depends on the order of vertices where the
    eigenvalue is multiple (all complete graphs, many of which are in IMDB and COLLAB), and whose
    sign is arbitrary. It also inverts a dense matrix for each graph; Errica et al. ran out of
    resources on the large datasets. The optimiser is Adam, as for all systems here; they use
    gradient descent with its own decay. Results of this network cannot be compared with theirs.

    Args:
        features: size F of a vertex's features.
        edge_size: size of an edge's features.
        outputs: number C of outputs.
        hidden: size H of the hidden vectors.
        layers: number of convolutions.
        dropout: rate after each convolution.
    """

    def __init__(
        self,
        features: int,
        edge_size: int,
        outputs: int,
        *,
        hidden: int = 32,
        layers: int = 2,
        dropout: float = 0.05,
    ) -> None:
        super().__init__()
        sizes = [features, *[hidden] * (layers - 1)]
        self.layers = nn.ModuleList(ECCLayer(size, edge_size, hidden) for size in sizes)
        self.norms = nn.ModuleList(VertexBatchNorm(hidden, relu=True) for _ in sizes)
        self.dropouts = nn.ModuleList(Dropout(dropout) for _ in sizes)
        self.hidden = nn.Linear(hidden, hidden)
        self.dropout = Dropout(0.1)
        self.output = nn.Linear(hidden, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        dtype, count = self.output.weight.dtype, batch.ptr[-1]
        x, e = vertex_features(batch).to(dtype), edge_features(batch).to(dtype)
        for layer, norm, dropout in zip(self.layers, self.norms, self.dropouts, strict=True):
            x = dropout(norm(layer(x, batch.edge_index, e), count), count)  # (V, H)
        graph = torch.relu(self.hidden(mean_readout(x, batch.ptr)))  # (B, H)
        return self.output(self.dropout(graph, count))
