"""1-2-GNN and 1-2-3-GNN (Morris et al., "Weisfeiler and Leman Go Neural", AAAI 2019)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.aggregate import mean_readout
from softperm.lab.baselines.inputs import edge_features, vertex_features
from softperm.lab.baselines.shape import MEMORY_LIMIT, check_memory
from softperm.lab.baselines.subsets import (
    count_subsets,
    edges_within,
    local_neighbours,
    parts,
    subsets,
)
from softperm.ops.normalisation import VertexBatchNorm


class SetRounds(nn.Module):
    r"""Message passing among the k-sets of a graph.

    .. math:: x_s' = \text{ReLU}\Big(\text{BN}(W_1 x_s + W_2 \sum_{t \in N(s)} x_t)\Big)

    Batch normalisation (BN) is not the paper's: without it, what a set holds of its own drowns in
    what comes from below, and no ReLU bends where it matters.

    Args:
        features: size of what a set begins with.
        hidden: size H of its vector.
        rounds: how often.
    """

    def __init__(self, features: int, hidden: int, rounds: int) -> None:
        super().__init__()
        sizes = [features, *[hidden] * (rounds - 1)]
        self.own = nn.ModuleList(nn.Linear(size, hidden, bias=False) for size in sizes)
        self.others = nn.ModuleList(nn.Linear(size, hidden, bias=False) for size in sizes)
        self.norms = nn.ModuleList(VertexBatchNorm(hidden, relu=True) for _ in sizes)

    def forward(
        self, x: Float[Tensor, "K F"], neighbours: Int[Tensor, "2 M"]
    ) -> Float[Tensor, "K H"]:
        """The vectors of all sets after all rounds."""
        (row, col), count = neighbours, torch.tensor(len(x), device=x.device)
        for own, others, norm in zip(self.own, self.others, self.norms, strict=True):
            sent = others(x)  # (K, H)
            x = norm(own(x).index_add(0, row, sent[col]), count)
        return x


class HierarchicalGNN(nn.Module):
    r"""GNNs on vertices, on pairs, on triples, each beginning with what those before found.

    .. math:: x_s = \big[\text{type}(s), \sum_{u \subset s, |u| = |s| - 1} x_u\big]

    A set begins with its isomorphism type and the sum over its sets of one vertex less; its
    neighbours are the sets that differ in one vertex, the two that differ being adjacent (the
    paper's local neighbourhood). The type of
    two or three vertices is their number of edges, one-hot, beside the sum of the edges'
    attributes; labels of vertices come from below. All sets take part, not connected ones alone.
    The means over vertices, pairs and triples stand side by side, beside the logarithms of their
    numbers, and go through three layers; the paper leaves readout and widths open.

    Args:
        features: size F of a vertex's features.
        edge_size: size of an edge's features.
        outputs: number C of outputs.
        largest: of the sets: 2 for 1-2-GNN, 3 for 1-2-3-GNN.
        hidden: size H of all hidden vectors.
        rounds: of message passing on each level.
        memory_limit: bytes that a training step may need.
    """

    def __init__(
        self,
        features: int,
        edge_size: int,
        outputs: int,
        *,
        largest: int,
        hidden: int = 64,
        rounds: int = 3,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        super().__init__()
        self.largest, self.hidden, self.memory_limit = largest, hidden, memory_limit
        self.vertices = SetRounds(features, hidden, rounds)
        types = {2: 2, 3: 4}
        self.sets = nn.ModuleDict(
            {
                str(k): SetRounds(types[k] + edge_size + hidden, hidden, rounds)
                for k in range(2, largest + 1)
            }
        )
        self.head = nn.Sequential(
            nn.Linear(largest * (hidden + 1), hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, outputs),
        )

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        self._check(batch)
        x = vertex_features(batch).to(next(self.parameters()).dtype)
        x = self.vertices(x, batch.edge_index)  # (V, H)
        levels = [_summary(x, batch.ptr)]
        e = edge_features(batch).to(x.dtype)
        e = torch.cat([torch.ones_like(e[:, :1]), e], dim=1)  # (E, 1 + Fe)
        smaller = subsets(batch, 1)
        for k in range(2, self.largest + 1):
            sets = subsets(batch, k)
            below = x[parts(batch, sets, smaller)].sum(1)  # (K, H)
            inside = edges_within(batch, sets, e)  # (K, 1 + Fe)
            most = k * (k - 1) // 2
            kind = inside[:, :1].round() == torch.arange(most + 1, device=x.device)  # (K, types)
            x = torch.cat([kind.to(x.dtype), inside[:, 1:], below], dim=1)
            x = self.sets[str(k)](x, local_neighbours(batch, sets))  # (K, H)
            levels.append(_summary(x, sets.ptr))
            smaller = sets
        return self.head(torch.cat(levels, dim=1))

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that a training step takes, by the measured number of vectors of each set."""
        sizes = batch.ptr.diff()
        count = int(count_subsets(sizes, self.largest).sum())
        degree = batch.edge_index.shape[1] / max(1, int(sizes.sum()))
        each = 8 * self.hidden * (1 + self.largest * degree)
        return int(count * each) * next(self.parameters()).element_size()

    def _check(self, batch: GraphBatch) -> None:
        name = "-".join(str(k + 1) for k in range(self.largest))
        remedy = (
            f"it looks at all sets of {self.largest} vertices, so use smaller batches or graphs"
        )
        check_memory(f"{name}-GNN", self.needed(batch), self.memory_limit, batch.ptr.diff(), remedy)


def _summary(x: Float[Tensor, "K H"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B H1"]:
    """The mean over each graph's sets, and the logarithm of their number."""
    count = torch.log1p(ptr.diff().to(x.dtype))[:, None]  # (B, 1)
    return torch.cat([mean_readout(x, ptr), count], dim=1)
