"""Baselines of the table of QM9: networks on distances, edges, pairs and sets of atoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch_geometric.nn.aggr import Set2Set
from torch_geometric.utils import to_dense_adj

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import (
    MemoryLimited,
    edge_conditioned_sum,
    edge_features,
    mean_readout,
    mlp,
    sum_readout,
    vertex_features,
)
from softperm.ops.layers import VertexBatchNorm
from softperm.ops.ragged import owners

# Ordered pairs of vertices of each graph, and their distances.


REMEDY_PAIRS = "it compares all pairs of vertices, so use smaller batches or smaller graphs"
"""What to do when all pairs of a batch need too much memory."""


@dataclass(frozen=True)
class Pairs:
    """All ordered pairs of different vertices of each graph, sorted.

    Attributes:
        index: first and second vertex, numbered over the batch.
        edge: which pair each directed edge of the batch is.
    """

    index: Int[Tensor, "2 K"]
    edge: Int[Tensor, " E"]


def count_pairs(batch: GraphBatch) -> int:
    """Number of pairs of :func:`all_pairs`."""
    sizes = batch.ptr.diff()
    return int((sizes * (sizes - 1)).sum())


def all_pairs(batch: GraphBatch) -> Pairs:
    """The pairs of a batch."""
    ptr, sizes = batch.ptr, batch.ptr.diff()
    owner = owners(ptr, int(ptr[-1]))
    others = sizes[owner] - 1  # (V,): each vertex meets all others of its graph
    begin = torch.cat([others.new_zeros(1), others.cumsum(0)])
    first = torch.repeat_interleave(torch.arange(len(owner), device=ptr.device), others)  # (K,)
    rank = torch.arange(len(first), device=ptr.device) - begin[first]
    second = ptr[owner[first]] + rank
    second = second + (second >= first)  # leaves out the vertex itself
    row, col = batch.edge_index
    edge = begin[row] + col - ptr[owner[row]] - (col > row).long()
    return Pairs(torch.stack([first, second]), edge)


def pair_features(batch: GraphBatch, pairs: Pairs) -> Float[Tensor, "K Fe1"]:
    """The attributes of the edge between two vertices, and whether there is one."""
    given = edge_features(batch)  # (E, Fe)
    features = given.new_zeros(pairs.index.shape[1], given.shape[1] + 1)
    features[pairs.edge] = torch.cat([given, torch.ones_like(given[:, :1])], dim=1)
    return features


def euclidean_distance(batch: GraphBatch, pairs: Pairs) -> Float[Tensor, " K"]:
    """The distance of each pair in space, in Å."""
    first, second = pairs.index
    return (batch.pos[first] - batch.pos[second]).norm(dim=1)


def bond_distance(batch: GraphBatch, pairs: Pairs) -> Float[Tensor, " K"]:
    """The number of edges on a shortest path between each pair; infinite where there is none.

    Example:
        >>> import networkx as nx
        >>> from softperm.data.graphs import as_graphs
        >>> from softperm.data.vocabulary import Vocabulary
        >>> path = as_graphs([nx.path_graph(3)])
        >>> batch = Vocabulary.learn(path).encode(path).batch(torch.tensor([0]))
        >>> bond_distance(batch, all_pairs(batch))
        tensor([1., 2., 1., 1., 2., 1.])
    """
    sizes = batch.ptr.diff()
    owner = owners(batch.ptr, int(batch.ptr[-1]))
    n = int(sizes.max()) if len(sizes) else 0
    local = torch.arange(len(owner), device=owner.device) - batch.ptr[owner]
    adjacency = to_dense_adj(batch.edge_index, owner, max_num_nodes=n, batch_size=len(sizes))
    eye = torch.eye(n, device=owner.device).expand_as(adjacency)
    distance = torch.where(eye > 0, 0.0, torch.inf)
    reached, steps = eye, 0
    while True:
        steps += 1
        wider = ((reached @ adjacency + reached) > 0).float()
        if torch.equal(wider, reached):
            break
        distance = torch.where((wider > reached), float(steps), distance)
        reached = wider
    first, second = pairs.index
    return distance[owner[first], local[first], local[second]]


# DTNN (Schütt et al., "Quantum-Chemical Insights from Deep Tensor Neural Networks", 2017).


FURTHEST = 18.0
"""Centre of the last Gaussian."""


class DTNN(MemoryLimited):
    r"""Each atom is updated by all others, weighted by functions of their distances.

    .. math:: c_i \leftarrow c_i + \sum_{j \ne i} \tanh W \big((W_c c_j + b_c)
        \circ (W_d \hat d_{ij} + b_d)\big), \qquad y = \sum_i \text{MLP}(c_i)

    :math:`\hat d` spreads a distance over Gaussians 0.2 apart and 0.2 wide. The paper's are of
    distances in space, which batches with positions have. A graph alone has none: there the
    distance is the number of bonds between two atoms, and atoms of
    different parts send each other nothing. Atoms begin with a linear embedding of their
    attributes; sizes follow MoleculeNet (Wu et al., 2018), whose numbers the paper quotes.

    Args:
        factors: size of the product of vector and distance.
    """

    title = "DTNN"
    remedy = REMEDY_PAIRS
    centres: Tensor

    def __init__(
        self,
        features: int,
        outputs: int,
        *,
        positions: bool = False,
        hidden: int = 30,
        factors: int = 60,
        rounds: int = 2,
    ) -> None:
        super().__init__()
        self.distance = euclidean_distance if positions else bond_distance
        self.factors = factors
        self.register_buffer("centres", torch.arange(0.0, FURTHEST + 0.1, 0.2))
        self.embed = nn.Linear(features, hidden, bias=False)
        self.vector = nn.ModuleList(nn.Linear(hidden, factors) for _ in range(rounds))
        self.space = nn.ModuleList(nn.Linear(len(self.centres), factors) for _ in range(rounds))
        self.product = nn.ModuleList(nn.Linear(factors, hidden, bias=False) for _ in range(rounds))
        self.atom = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs))

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        dtype = self.embed.weight.dtype
        self.check_memory(batch)
        pairs = all_pairs(batch)
        d = self.distance(batch, pairs).to(dtype)  # (K,)
        near = d.isfinite()
        first, second = pairs.index[:, near]
        spread = torch.exp(-0.5 * ((d[near, None] - self.centres) / 0.2).square())  # (K, G)
        c = self.embed(vertex_features(batch).to(dtype))  # (V, H)
        for vector, space, product in zip(self.vector, self.space, self.product, strict=True):
            message = torch.tanh(product(vector(c)[second] * space(spread)))  # (K, H)
            c = c.index_add(0, first, message)
        return sum_readout(self.atom(c), batch.ptr)

    def needed(self, batch: GraphBatch) -> int:
        """Bytes of a training step, from a measured number of vectors per pair of vertices."""
        each = 3 * (len(self.centres) + 4 * self.factors)
        return count_pairs(batch) * each * self.embed.weight.element_size()


# MPNN (Gilmer et al., "Neural Message Passing for Quantum Chemistry", ICML 2017).


class EdgeNetwork(nn.Module):
    r"""Messages through matrices that a network with one hidden layer computes from the edges.

    .. math:: m_i = b + W x_i + \sum_{j \in N(i)} \Theta(e_{ij})^\top x_j

    Args:
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
        width: hidden units of the network that computes Θ.
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
        self.head = mlp(2 * hidden, hidden, outputs)

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


# PPGN (Maron et al., "Provably Powerful Graph Networks", NeurIPS 2019).


class PPGNBlock(nn.Module):
    r"""One block: matrices multiply, channel by channel.

    .. math:: X' = m_3\big([X, \; m_1(X) \cdot m_2(X)]\big)

    :math:`m_1, m_2` are MLPs of two layers at each entry of the n × n matrices, :math:`m_3` one
    linear layer; their widths are the paper's for QM9 scaled by ``hidden``.
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.left = _mlp([channels, hidden, hidden])
        self.right = _mlp([channels, hidden, hidden])
        self.skip = nn.Conv2d(channels + hidden, hidden, 1)

    def forward(
        self, x: Float[Tensor, "B F N N"], mask: Float[Tensor, "B 1 N N"]
    ) -> Float[Tensor, "B H N N"]:
        """The matrices after one block; entries outside a graph are 0 before and after."""
        scale = mask.sum(dim=(1, 2, 3), keepdim=True).clamp(min=1) ** -0.25  # n^(-1/2)
        product = (self.left(x) * mask * scale) @ (self.right(x) * mask)  # (B, H, N, N)
        return self.skip(torch.cat([x, product], dim=1)) * mask


class PPGN(MemoryLimited):
    r"""Matrices of pairs of vertices, multiplied: as strong as 3-WL (2-FWL).

    The input has a channel for the adjacency matrix and each edge attribute, the vertex attributes
    on the diagonal, and, in batches that carry positions, the distance of each pair. After each
    block the sums over the diagonal and over the rest go through an MLP of two layers, and the
    results are added up, as in the paper. Products are divided by √n, which the paper leaves out:
    without it values grow with the size of a graph to the power of the number of blocks. Weights
    begin as He et al.'s, or differences between graphs vanish in the products of small numbers.
    """

    title = "PPGN"
    remedy = "its tensors are n × n for the largest graph, so use smaller batches or graphs"

    def __init__(
        self,
        features: int,
        edge_size: int,
        outputs: int,
        *,
        positions: bool = False,
        hidden: int = 64,
        blocks: int = 3,
    ) -> None:
        super().__init__()
        self.positions = positions
        self.outputs, self.width = outputs, features + edge_size + (2 + 8 * blocks) * hidden
        sizes = [features + edge_size + 1 + positions, *[hidden] * blocks]
        self.blocks = nn.ModuleList(PPGNBlock(a, b) for a, b in pairwise(sizes))
        self.heads = nn.ModuleList(mlp(2 * hidden, hidden, outputs) for _ in self.blocks)
        for module in self.blocks.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        self.check_memory(batch)
        x, real = pair_tensor(batch, self.positions)  # (B, F, N, N), (B, N)
        x = x.to(next(self.parameters()).dtype)
        mask = (real[:, None, :, None] & real[:, None, None, :]).to(x.dtype)  # (B, 1, N, N)
        sizes = batch.ptr.diff().clamp(min=1).to(x.dtype)[:, None]  # (B, 1)
        y = x.new_zeros(len(x), self.outputs)
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = block(x, mask)
            diagonal = x.diagonal(dim1=2, dim2=3).sum(2)  # (B, H)
            rest = (x.sum(dim=(2, 3)) - diagonal) / sizes
            y = y + head(torch.cat([diagonal, rest], dim=1))
        return y

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that a training step takes, by the measured number of n × n matrices."""
        sizes = batch.ptr.diff()
        n = int(sizes.max()) if len(sizes) else 0
        return 2 * len(sizes) * n * n * self.width * next(self.parameters()).element_size()


def pair_tensor(
    batch: GraphBatch, positions: bool
) -> tuple[Float[Tensor, "B F N N"], Bool[Tensor, "B N"]]:
    """The input matrices of each graph, 0 outside it, and which rows hold a vertex."""
    ptr, sizes = batch.ptr, batch.ptr.diff()
    owner, n = owners(ptr, int(ptr[-1])), max([1, *sizes.tolist()])  # room for one if for none
    local = torch.arange(len(owner), device=ptr.device) - ptr[owner]
    x, e = vertex_features(batch), edge_features(batch)
    (row, col), f = batch.edge_index, x.shape[1]
    tensor = x.new_zeros(len(sizes), n, n, f + e.shape[1] + 1 + positions)
    tensor[owner, local, local, :f] = x
    tensor[owner[row], local[row], local[col], f : f + e.shape[1]] = e.to(x.dtype)
    tensor[owner[row], local[row], local[col], f + e.shape[1]] = 1.0
    real = torch.arange(n, device=ptr.device) < sizes[:, None]  # (B, N)
    if positions:
        place = x.new_zeros(len(sizes), n, 3)
        place[owner, local] = batch.pos.to(x.dtype)
        far = (place[:, :, None] - place[:, None]).norm(dim=3)  # (B, N, N)
        tensor[..., -1] = far * (real[:, :, None] & real[:, None])
    return tensor.movedim(3, 1).contiguous(), real


def _mlp(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Conv2d(a, b, 1), nn.ReLU()]
    return nn.Sequential(*layers)


# 1-2-GNN and 1-2-3-GNN (Morris et al., "Weisfeiler and Leman Go Neural", AAAI 2019). Sets of k
# vertices of each graph are numbered in closed form: no table is needed to find their neighbours.


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
        owner: the graph of each set.
    """

    members: Int[Tensor, "K k"]
    ptr: Int[Tensor, " B1"]
    owner: Int[Tensor, " K"]


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
    return Subsets(members[order], ptr, owner[order])


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
    others = [[j for j in range(k) if j != i] for i in range(k)]
    parts = [number_of(sets.members[:, j], sets.owner, batch.ptr, smaller.ptr) for j in others]
    return torch.stack(parts, dim=1)


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
    for pair in combinations(sets.members.T, 2):
        ends = torch.stack(pair, dim=1)
        total = total + table[number_of(ends, sets.owner, batch.ptr, pairs.ptr)]
    return total


def count_subsets(n: Int[Tensor, " K"], k: int) -> Int[Tensor, " K"]:
    """The number of k-sets of n vertices, for k = 1, 2 or 3."""
    product = torch.ones_like(n)
    for i in range(k):
        product = product * (n - i)
    return torch.where(n >= k, product, 0) // {1: 1, 2: 2, 3: 6}[k]
