"""MPNN (Gilmer et al., "Neural Message Passing for Quantum Chemistry", ICML 2017)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch_geometric.nn import NNConv
from torch_geometric.nn.aggr import Set2Set

from softperm.baselines.inputs import edge_features, vertex_features
from softperm.baselines.pairs import all_pairs, euclidean_distance, pair_features
from softperm.baselines.shape import MEMORY_LIMIT, check_memory
from softperm.collection import GraphBatch, prepare
from softperm.ragged import owners


class MPNN(nn.Module):
    r"""Messages through matrices made of the edge, a GRU for each vertex, and Set2Set.

    .. math:: m_i = W x_i + \sum_{j \in N(i)} \Theta(e_{ij})^\top x_j, \quad
        x_i \leftarrow \text{GRU}(x_i, \text{ReLU}(m_i)), \quad y = \text{MLP}(\text{Set2Set}(x))

    This is the paper's ``enn-s2s``: a two-layer network makes Θ, the same in all three rounds, and
    Set2Set takes three steps. N(i) are the neighbours by bonds. In batches that carry positions
    messages run between all atoms, as the paper's do, and the distance is a feature of the pair.
    Widths are open: 64 for vertices, 128 for the edge network.

    Args:
        features: size F of a vertex's features.
        edge_size: size of an edge's features.
        outputs: number C of outputs.
        positions: whether batches carry positions.
        hidden: size H of a vertex's vector.
        width: hidden units of the network that makes Θ.
        rounds: of message passing, and steps of Set2Set.
        memory_limit: bytes that a training step may need.
    """

    def __init__(
        self,
        features: int,
        edge_size: int,
        outputs: int,
        *,
        positions: bool = False,
        hidden: int = 64,
        width: int = 128,
        rounds: int = 3,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        super().__init__()
        self.positions, self.rounds, self.memory_limit = positions, rounds, memory_limit
        self.embed = nn.Linear(features, hidden)
        edge_size = edge_size + 2 if positions else edge_size
        theta = nn.Sequential(nn.Linear(edge_size, width), nn.ReLU(), nn.Linear(width, hidden**2))
        self.message = NNConv(hidden, hidden, theta, aggr="add")
        self.gru = nn.GRUCell(hidden, hidden)
        self.set2set = Set2Set(hidden, rounds)
        self.head = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        )

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        dtype = self.embed.weight.dtype
        edge_index, e = self._edges(batch)
        x = torch.relu(self.embed(vertex_features(batch).to(dtype)))  # (V, H)
        for _ in range(self.rounds):
            m = self.message(x, edge_index.flip(0), e.to(dtype))  # PyG: first row sends
            x = self.gru(torch.relu(m), x)
        graphs = batch.ptr.numel() - 1
        graph = self.set2set(x, owners(batch.ptr, len(x)), dim_size=graphs)  # (B, 2 H)
        return self.head(graph)

    def _edges(self, batch: GraphBatch) -> tuple[Int[Tensor, "2 K"], Float[Tensor, "K Fe"]]:
        """Who sends to whom, and the features of that."""
        each = 2 * self.rounds * self.embed.out_features**2 * self.embed.weight.element_size()
        if not self.positions:
            edges = batch.edge_index.shape[1]
            largest = int(batch.ptr.diff().max()) if batch.ptr.numel() > 1 else 0
            remedy = "it makes a matrix for each edge, so use smaller batches"
            check_memory("MPNN", edges * each, self.memory_limit, largest, remedy)
            return batch.edge_index, edge_features(batch)
        pairs = all_pairs(batch, "MPNN", each, self.memory_limit)
        distance = euclidean_distance(batch, pairs)[:, None]
        features = pair_features(batch, pairs)
        return pairs.index, torch.cat([features, distance.to(features.dtype)], dim=1)
