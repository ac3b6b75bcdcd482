"""MPNN (Gilmer et al., "Neural Message Passing for Quantum Chemistry", ICML 2017)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch_geometric.nn.aggr import Set2Set

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import (
    MemoryLimited,
    edge_conditioned_sum,
    edge_features,
    vertex_features,
)
from softperm.lab.baselines.pairs import (
    REMEDY_PAIRS,
    all_pairs,
    count_pairs,
    euclidean_distance,
    pair_features,
)
from softperm.ops.ragged import owners


class EdgeNetwork(nn.Module):
    r"""Messages through matrices that a network with one hidden layer makes of the edges.

    .. math:: m_i = b + W x_i + \sum_{j \in N(i)} \Theta(e_{ij})^\top x_j

    Args:
        edge_size: size of an edge's features.
        hidden: size H of a vertex's vector, and of its message.
        width: hidden units of the network.
    """

    def __init__(self, edge_size: int, hidden: int, width: int) -> None:
        super().__init__()
        self.edge = nn.Linear(edge_size, width)
        self.theta = nn.Linear(width, hidden**2)
        self.own = nn.Linear(hidden, hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(hidden))

    def units(self, e: Float[Tensor, "K Fe"]) -> Float[Tensor, "K U1"]:
        """The hidden units of each edge, and a 1: the same in every round."""
        return nn.functional.pad(torch.relu(self.edge(e)), (0, 1), value=1.0)

    def forward(
        self, x: Float[Tensor, "V H"], edge_index: Int[Tensor, "2 K"], units: Float[Tensor, "K U1"]
    ) -> Float[Tensor, "V H"]:
        """The sum of messages to each vertex."""
        weight = torch.cat([self.theta.weight.T, self.theta.bias[None]])  # (U + 1, H²)
        weight = weight.unflatten(1, (x.shape[1], x.shape[1]))
        return edge_conditioned_sum(x, edge_index, units, weight) + self.own(x) + self.bias


class MPNN(MemoryLimited):
    r"""Messages through matrices that depend on the edge, a GRU update, and Set2Set.

    .. math:: m_i = b + W x_i + \sum_{j \in N(i)} \Theta(e_{ij})^\top x_j, \quad
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
    """

    title = "MPNN"
    remedy = "it makes a matrix for each vertex, so use smaller batches"

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
    ) -> None:
        super().__init__()
        self.positions, self.rounds = positions, rounds
        if positions:
            self.remedy = REMEDY_PAIRS
        self.embed = nn.Linear(features, hidden)
        edge_size = edge_size + 2 if positions else edge_size
        self.message = EdgeNetwork(edge_size, hidden, width)
        self.gru = nn.GRUCell(hidden, hidden)
        self.set2set = Set2Set(hidden, rounds)
        self.head = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        )

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        self.check_memory(batch)
        dtype = self.embed.weight.dtype
        edge_index, e = self._edges(batch)
        x = torch.relu(self.embed(vertex_features(batch).to(dtype)))  # (V, H)
        units = self.message.units(e.to(dtype))
        for _ in range(self.rounds):
            m = self.message(x, edge_index, units)
            x = self.gru(torch.relu(m), x)
        graphs = batch.ptr.numel() - 1
        graph = self.set2set(x, owners(batch.ptr, len(x)), dim_size=graphs)  # (B, 2 H)
        return self.head(graph)

    def _edges(self, batch: GraphBatch) -> tuple[Int[Tensor, "2 K"], Float[Tensor, "K Fe"]]:
        """Who receives from whom, and the features of that."""
        if not self.positions:
            return batch.edge_index, edge_features(batch)
        pairs = all_pairs(batch)
        distance = euclidean_distance(batch, pairs)[:, None]
        features = pair_features(batch, pairs)
        return pairs.index, torch.cat([features, distance.to(features.dtype)], dim=1)

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that a training step takes, by the measured number of arrays of each shape."""
        vertices, hidden = batch.structure.shape[0], self.embed.out_features
        edges = count_pairs(batch) if self.positions else batch.edge_index.shape[1]
        size, units = self.message.edge.in_features, self.message.edge.out_features + 1
        received = 2 * self.rounds * vertices * units * hidden
        sent = 2 * edges * (units + self.rounds * hidden + size + 64)
        return (received + sent) * self.embed.weight.element_size()
