"""1-2-GNN and 1-2-3-GNN (Morris et al., "Weisfeiler and Leman Go Neural", AAAI 2019).

Sets of k vertices of each graph are numbered in closed form, so that no table is needed to find a
set or its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import (
    MemoryLimited,
    edge_features,
    mean_readout,
    mlp,
    vertex_features,
)
from softperm.ops.layers import VertexBatchNorm
from softperm.ops.ragged import owners


class SetRounds(nn.Module):
    r"""Message passing among the k-sets of a graph.

    .. math:: x_s' = \text{ReLU}\Big(\text{BN}(W_1 x_s + W_2 \sum_{t \in N(s)} x_t)\Big)

    Batch normalisation (BN) is not in the paper: without it the initial vectors of sets dominate,
    and the ReLUs hardly act.
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


class HierarchicalGNN(MemoryLimited):
    r"""GNNs on vertices, pairs and triples, each initialised with the vectors of the one before.

    .. math:: x_s = \big[\text{type}(s), \sum_{u \subset s, |u| = |s| - 1} x_u\big]

    A set begins with its isomorphism type and the sum over its sets of one vertex less; its
    neighbours are the sets that differ in one vertex, the two that differ being adjacent (the
    paper's local neighbourhood). The type of
    two or three vertices is their number of edges, one-hot, beside the sum of the edges'
    attributes; labels of vertices come from below. All sets take part, not connected ones alone.
    The means over vertices, pairs and triples stand side by side, beside the logarithms of their
    numbers, and go through three layers; the paper leaves readout and widths open.

    Args:
        set_size: of the largest sets: 2 for 1-2-GNN, 3 for 1-2-3-GNN.
        rounds: of message passing on each level.
    """

    def __init__(
        self,
        features: int,
        edge_size: int,
        outputs: int,
        *,
        set_size: int,
        hidden: int = 64,
        rounds: int = 3,
    ) -> None:
        super().__init__()
        self.set_size, self.hidden = set_size, hidden
        self.title = "-".join(str(k + 1) for k in range(set_size)) + "-GNN"
        self.remedy = (
            f"it looks at all sets of {set_size} vertices, so use smaller batches or graphs"
        )
        self.vertices = SetRounds(features, hidden, rounds)
        types = {2: 2, 3: 4}
        self.sets = nn.ModuleDict()
        for k in range(2, set_size + 1):
            self.sets[str(k)] = SetRounds(types[k] + edge_size + hidden, hidden, rounds)
        self.head = mlp(set_size * (hidden + 1), hidden, hidden, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        self.check_memory(batch)
        x = vertex_features(batch).to(next(self.parameters()).dtype)
        x = self.vertices(x, batch.edge_index)  # (V, H)
        levels = [_summary(x, batch.ptr)]
        e = edge_features(batch).to(x.dtype)
        e = torch.cat([torch.ones_like(e[:, :1]), e], dim=1)  # (E, 1 + Fe)
        smaller = subsets(batch, 1)
        for k in range(2, self.set_size + 1):
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
        count = int(count_subsets(sizes, self.set_size).sum())
        degree = batch.edge_index.shape[1] / max(1, int(sizes.sum()))
        each = 8 * self.hidden * (1 + self.set_size * degree)
        return int(count * each) * next(self.parameters()).element_size()


def _summary(x: Float[Tensor, "K H"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B H1"]:
    """The mean over each graph's sets, and the logarithm of their number."""
    count = torch.log1p(ptr.diff().to(x.dtype))[:, None]  # (B, 1)
    return torch.cat([mean_readout(x, ptr), count], dim=1)


@dataclass(frozen=True)
class Subsets:
    """All k-sets of each graph, graph after graph.

    Set {a < b < c} of vertices numbered within their graph has the number C(a, 1) + C(b, 2) +
    C(c, 3) among the sets of the graph, so that no table is needed to find it.

    Attributes:
        members: the vertices of each set, ascending, numbered over the batch.
        ptr: where each graph's sets begin, with the total at the end.
    """

    members: Int[Tensor, "K k"]
    ptr: Int[Tensor, " B1"]


def subsets(batch: GraphBatch, k: int) -> Subsets:
    """The sets of k = 1, 2 or 3 vertices of each graph of a batch."""
    device = batch.ptr.device
    members = torch.arange(int(batch.ptr[-1]), device=device)[:, None]  # (V, 1)
    owner = owners(batch.ptr, len(members))
    for _ in range(k - 1):  # each set once more for every vertex below its lowest
        lowest = members[:, 0] - batch.ptr[owner]  # (K,)
        parent = torch.repeat_interleave(torch.arange(len(members), device=device), lowest)
        begin = torch.cat([lowest.new_zeros(1), lowest.cumsum(0)])
        vertex = torch.arange(len(parent), device=device) - begin[parent]
        owner = owner[parent]
        members = torch.cat([(vertex + batch.ptr[owner])[:, None], members[parent]], dim=1)
    ptr = torch.cat([batch.ptr.new_zeros(1), count_subsets(batch.ptr.diff(), k).cumsum(0)])
    order = number_of(members, owner, batch.ptr, ptr).argsort()
    return Subsets(members[order], ptr)


def number_of(
    members: Int[Tensor, "K k"],
    owner: Int[Tensor, " K"],
    ptr: Int[Tensor, " B1"],
    set_ptr: Int[Tensor, " B1"],
) -> Int[Tensor, " K"]:
    """The number of each set, given its vertices in ascending order."""
    local = members - ptr[owner, None]
    return set_ptr[owner] + sum(count_subsets(local[:, i], i + 1) for i in range(members.shape[1]))


def local_neighbours(batch: GraphBatch, sets: Subsets) -> Int[Tensor, "2 M"]:
    """Pairs of sets that differ in one vertex, where the two that differ are adjacent.

    Returns:
        Receiving and sending set of each pair.
    """
    members, device = sets.members, batch.ptr.device
    k = members.shape[1]
    owner = owners(batch.ptr, int(batch.ptr[-1]))
    row, col = batch.edge_index
    degree = torch.bincount(row, minlength=len(owner))
    begin = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    pairs = []
    for i in range(k):
        leaving = members[:, i]  # (K,)
        home = torch.repeat_interleave(torch.arange(len(members), device=device), degree[leaving])
        before = torch.cat([degree.new_zeros(1), degree[leaving].cumsum(0)])
        rank = torch.arange(len(home), device=device) - before[home]
        coming = col[begin[leaving[home]] + rank]
        new = (members[home] != coming[:, None]).all(1)  # it is not in the set yet
        home, coming = home[new], coming[new]
        other = members[home].clone()
        other[:, i] = coming
        other = other.sort(dim=1).values
        pairs.append(torch.stack([home, number_of(other, owner[coming], batch.ptr, sets.ptr)]))
    return torch.cat(pairs, dim=1)


def parts(batch: GraphBatch, sets: Subsets, smaller: Subsets) -> Int[Tensor, "K k"]:
    """The sets of one vertex less that each set holds."""
    k = sets.members.shape[1]
    owner = owners(batch.ptr, int(batch.ptr[-1]))[sets.members[:, 0]]
    others = [[j for j in range(k) if j != i] for i in range(k)]
    numbers = [number_of(sets.members[:, j], owner, batch.ptr, smaller.ptr) for j in others]
    return torch.stack(numbers, dim=1)


def edges_within(
    batch: GraphBatch, sets: Subsets, values: Float[Tensor, "E Fe"]
) -> Float[Tensor, "K Fe"]:
    """The sum of values over the directed edges between members of each set, halved."""
    pairs = subsets(batch, 2)
    owner = owners(batch.ptr, int(batch.ptr[-1]))
    row, col = batch.edge_index
    once = row < col
    ends = torch.stack([row[once], col[once]], dim=1)
    table = values.new_zeros(len(pairs.members), values.shape[1])
    table[number_of(ends, owner[row[once]], batch.ptr, pairs.ptr)] = values[once]
    total = values.new_zeros(len(sets.members), values.shape[1])
    home = owner[sets.members[:, 0]]
    for pair in combinations(sets.members.T, 2):
        ends = torch.stack(pair, dim=1)
        total = total + table[number_of(ends, home, batch.ptr, pairs.ptr)]
    return total


def count_subsets(n: Int[Tensor, " K"], k: int) -> Int[Tensor, " K"]:
    """The number of k-sets of n vertices, for k = 1, 2 or 3."""
    product = torch.ones_like(n)
    for i in range(k):
        product = product * (n - i)
    return torch.where(n >= k, product, 0) // {1: 1, 2: 2, 3: 6}[k]
