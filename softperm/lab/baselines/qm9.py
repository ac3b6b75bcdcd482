"""Baselines of the table of QM9: networks on distances, edges, pairs and sets of atoms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import (
    MemoryLimited,
    edge_conditioned_sum,
    edge_features,
    mean_readout,
    mlp,
    sum_readout,
    vertex_features,
    widest,
)
from softperm.ops.layers import Linear, VertexBatchNorm
from softperm.ops.operators import has_values
from softperm.ops.ragged import graph_maximum, owners

# Ordered pairs of vertices of each graph, and their distances.


REMEDY_PAIRS = "it compares all pairs of vertices, so use smaller batches or smaller graphs"
"""What to do when all pairs of a batch need too much memory."""


def count_pairs(batch: GraphBatch) -> int:
    """Number of pairs of places of :class:`Places`."""
    return (batch.ptr.numel() - 1) * widest(batch) ** 2


@dataclass(frozen=True)
class Places:
    """Graphs side by side, each with room for the vertices of the largest.

    Shapes depend on numbers of graphs, vertices and edges alone, and nothing is read on the host if
    the batch knows its ``largest`` graph.

    Attributes:
        vertex: the vertex at each place; V where there is none.
        place: the place of each vertex, numbered through all graphs.
        pair: the pair of places of each directed edge, numbered likewise; B · N · N for padding.
    """

    vertex: Int[Tensor, "B N"]
    place: Int[Tensor, " V"]
    pair: Int[Tensor, " E"]

    @classmethod
    def of(cls, batch: GraphBatch) -> Places:
        """The places of a batch."""
        ptr, vertices, n = batch.ptr, batch.structure.shape[0], widest(batch)
        graphs, each = ptr.numel() - 1, torch.arange(vertices, device=ptr.device)
        vertex = ptr[:-1, None] + torch.arange(n, device=ptr.device)  # (B, N)
        vertex = torch.where(vertex < ptr[1:, None], vertex, vertices)
        owner = owners(ptr, vertices)
        local = each - ptr[owner]  # values of padding are never read
        row, col = batch.edge_index
        pair = (owner[row] * n + local[row]) * n + local[col]
        pair = torch.where(owner[row] < graphs, pair, graphs * n * n)
        return cls(vertex, (owner * n + local).clamp(max=max(graphs * n - 1, 0)), pair)

    @property
    def real(self) -> Bool[Tensor, "B N"]:
        """Which places hold a vertex."""
        return self.vertex < len(self.place)

    @property
    def different(self) -> Bool[Tensor, "B N N"]:
        """Which pairs of places hold two different vertices."""
        eye = torch.eye(self.vertex.shape[1], dtype=torch.bool, device=self.vertex.device)
        return self.real[:, :, None] & self.real[:, None, :] & ~eye

    def spread(self, x: Float[Tensor, "V F"]) -> Float[Tensor, "B N F"]:
        """The vectors of the vertices at their places; zeros elsewhere."""
        return nn.functional.pad(x, (0, 0, 0, 1))[self.vertex]

    def gather(self, x: Float[Tensor, "B N F"]) -> Float[Tensor, "V F"]:
        """The vectors at the places of the vertices."""
        return x.flatten(0, 1)[self.place] if len(x) else x.new_zeros(len(self.place), x.shape[2])

    def pairs(self, e: Float[Tensor, "E Fe"]) -> Float[Tensor, "B N N Fe"]:
        """The features of the edges at their pairs; zeros elsewhere."""
        (b, n), size = self.vertex.shape, e.shape[1]
        table = e.new_zeros(b * n * n + 1, size)
        table = table.scatter(0, self.pair[:, None].expand(-1, size), e)
        return table[:-1].view(b, n, n, size)


def pair_features(batch: GraphBatch, places: Places) -> Float[Tensor, "B N N Fe1"]:
    """The attributes of the edge between two vertices, and whether there is one."""
    given = edge_features(batch)  # (E, Fe)
    return places.pairs(torch.cat([given, torch.ones_like(given[:, :1])], dim=1))


def euclidean_distance(batch: GraphBatch, places: Places) -> Float[Tensor, "B N N"]:
    """The distance of each pair of vertices in space, in Å."""
    place = places.spread(batch.pos)  # (B, N, 3)
    squares = (place[:, :, None] - place[:, None]).square().sum(dim=3)
    return squares.sqrt()


def bond_distance(batch: GraphBatch, places: Places) -> Float[Tensor, "B N N"]:
    """The number of edges on a shortest path between each pair; infinite where there is none.

    Example:
        >>> import networkx as nx
        >>> from softperm.data.graphs import as_graphs
        >>> from softperm.data.vocabulary import Vocabulary
        >>> path = as_graphs([nx.path_graph(3)])
        >>> batch = Vocabulary.learn(path).encode(path).batch(torch.tensor([0]))
        >>> bond_distance(batch, Places.of(batch))
        tensor([[[0., 1., 2.],
                 [1., 0., 1.],
                 [2., 1., 0.]]])
    """
    adjacency = pair_features(batch, places)[..., -1]  # (B, N, N)
    reached = torch.eye(adjacency.shape[1], device=adjacency.device).expand_as(adjacency)
    reached = reached.to(adjacency.dtype)
    distance = torch.where(reached > 0, 0.0, torch.inf).to(adjacency.dtype)
    for steps in range(1, adjacency.shape[1]):
        wider = ((reached @ adjacency + reached) > 0).to(adjacency.dtype)
        if has_values(wider) and torch.equal(wider, reached):
            break
        distance = torch.where(wider > reached, float(steps), distance)
        reached = wider
    return distance


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
        self.embed = Linear(features, hidden, bias=False)
        self.vector = nn.ModuleList(Linear(hidden, factors) for _ in range(rounds))
        self.space = nn.ModuleList(Linear(len(self.centres), factors) for _ in range(rounds))
        self.product = nn.ModuleList(Linear(factors, hidden, bias=False) for _ in range(rounds))
        self.atom = nn.Sequential(Linear(hidden, hidden), nn.Tanh(), Linear(hidden, outputs))

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        dtype = self.embed.weight.dtype
        self.check_memory(batch)
        places = Places.of(batch)
        d = self.distance(batch, places).to(dtype)  # (B, N, N)
        near = places.different & d.isfinite()
        spread = torch.exp(-0.5 * ((d[..., None] - self.centres) / 0.2).square())  # (B, N, N, G)
        spread = torch.where(near[..., None], spread, 0.0).flatten(0, 2)
        c = places.spread(self.embed(vertex_features(batch).to(dtype)))  # (B, N, H)
        for vector, space, product in zip(self.vector, self.space, self.product, strict=True):
            sent = vector(c.flatten(0, 1)).unflatten(0, c.shape[:2])[:, None]  # (B, 1, N, factors)
            factors = sent * space(spread).unflatten(0, d.shape)  # (B, N, N, factors)
            message = torch.tanh(product(factors.flatten(0, 2))).unflatten(0, d.shape)
            c = c + torch.where(near[..., None], message, 0.0).sum(2)
        return sum_readout(self.atom(places.gather(c)), batch.ptr)

    def needed(self, batch: GraphBatch) -> int:
        """Bytes of a training step, from a measured number of vectors per pair of vertices."""
        each = 2 * (len(self.centres) + 4 * self.factors)
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
        self.edge = Linear(edge_size, width)
        self.theta = nn.Linear(width, hidden**2)
        self.own = Linear(hidden, hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(hidden))

    def units(self, e: Float[Tensor, "K Fe"]) -> Float[Tensor, "K U1"]:
        """The hidden units of each edge, and a 1: the same in every round."""
        return nn.functional.pad(torch.relu(self.edge(e)), (0, 1), value=1.0)

    def weight(self, hidden: int) -> Float[Tensor, "U1 H H"]:
        """The matrix of each hidden unit."""
        weight = torch.cat([self.theta.weight.T, self.theta.bias[None]])  # (U + 1, H²)
        return weight.unflatten(1, (hidden, hidden))

    def forward(
        self, x: Float[Tensor, "V H"], edge_index: Int[Tensor, "2 K"], units: Float[Tensor, "K U1"]
    ) -> Float[Tensor, "V H"]:
        """The sum of messages to each vertex."""
        received = edge_conditioned_sum(x, edge_index, units, self.weight(x.shape[1]))
        return received + self.own(x) + self.bias

    def among_all(
        self, x: Float[Tensor, "V H"], places: Places, units: Float[Tensor, "B N N U1"]
    ) -> Float[Tensor, "V H"]:
        """The sum of messages to each vertex from all places whose units are not 0."""
        b, n, _, u = units.shape
        sent = places.spread(x)  # (B, N, H)
        received = units.movedim(3, 2).flatten(1, 2) @ sent  # (B, N · U, H)
        received = received.view(b * n, u * x.shape[1]) @ self.weight(x.shape[1]).flatten(0, 1)
        return places.gather(received.unflatten(0, (b, n))) + self.own(x) + self.bias


class GRU(nn.Module):
    r"""A gated recurrent unit; torch's has no rule for many models at once.

    .. math:: r, z = \sigma(W_{r,z} m + U_{r,z} x), \quad h = \tanh(W_h m + r \circ U_h x), \quad
        x' = (1 - z) \circ h + z \circ x
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.given, self.own = Linear(hidden, 3 * hidden), Linear(hidden, 3 * hidden)

    def forward(self, m: Float[Tensor, "V H"], x: Float[Tensor, "V H"]) -> Float[Tensor, "V H"]:
        """The new vectors, given messages and the vectors so far."""
        given, own = (gates.chunk(3, dim=1) for gates in (self.given(m), self.own(x)))
        reset, keep = (torch.sigmoid(a + b) for a, b in zip(given[:2], own[:2], strict=True))
        new = torch.tanh(given[2] + reset * own[2])
        return (1 - keep) * new + keep * x


class Set2Set(nn.Module):
    r"""Reads a set with a query that attends to it (Vinyals et al., ICLR 2016).

    .. math:: q = \text{LSTM}([q, r]), \quad r = \sum_i \text{softmax}_i(x_i^\top q) \, x_i

    Args:
        hidden: size H of the vectors.
        steps: number of reads.
    """

    def __init__(self, hidden: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.given = Linear(2 * hidden, 4 * hidden)
        self.own = Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Float[Tensor, "V H"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B H2"]:
        """The query and what it reads, of each graph."""
        owner = owners(ptr, len(x))
        query = memory = read = x.new_zeros(ptr.numel() - 1, x.shape[1])  # (B, H)
        for _ in range(self.steps):
            gates = self.given(torch.cat([query, read], dim=1)) + self.own(query)
            enter, forget, new, leave = gates.chunk(4, dim=1)
            memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(new)
            query = torch.sigmoid(leave) * torch.tanh(memory)
            of_vertex = nn.functional.pad(query, (0, 0, 0, 1))[owner]  # (V, H)
            scores = (x * of_vertex).sum(1, keepdim=True)  # (V, 1)
            top = nn.functional.pad(graph_maximum(scores.detach(), ptr), (0, 0, 0, 1))[owner]
            share = torch.exp(scores - top)
            read = sum_readout(share * x, ptr) / sum_readout(share, ptr).clamp(min=1e-16)
        return torch.cat([query, read], dim=1)


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
        self.embed = Linear(features, hidden)
        edge_size = edge_size + 2 if positions else edge_size
        self.message = EdgeNetwork(edge_size, hidden, width)
        self.gru = GRU(hidden)
        self.set2set = Set2Set(hidden, rounds)
        self.head = mlp(2 * hidden, hidden, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        self.check_memory(batch)
        dtype = self.embed.weight.dtype
        x = torch.relu(self.embed(vertex_features(batch).to(dtype)))  # (V, H)
        message = self._messages(batch)
        for _ in range(self.rounds):
            x = self.gru(torch.relu(message(x)), x)
        return self.head(self.set2set(x, batch.ptr))

    def _messages(self, batch: GraphBatch) -> Callable[[Tensor], Tensor]:
        """The sum of messages to each vertex, as a function of the vertices' vectors."""
        dtype = self.embed.weight.dtype
        if not self.positions:
            units = self.message.units(edge_features(batch).to(dtype))  # (E, U)
            return lambda x: self.message(x, batch.edge_index, units)
        places = Places.of(batch)
        distance = euclidean_distance(batch, places)[..., None]
        e = torch.cat([pair_features(batch, places).to(dtype), distance.to(dtype)], dim=3)
        units = self.message.units(e.flatten(0, 2)).unflatten(0, e.shape[:3])  # (B, N, N, U)
        units = torch.where(places.different[..., None], units, 0.0)
        return lambda x: self.message.among_all(x, places, units)

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that a training step takes, by the measured number of arrays of each shape."""
        vertices, hidden = batch.structure.shape[0], self.embed.out_features
        edges, graphs = batch.edge_index.shape[1], batch.ptr.numel() - 1
        if self.positions:
            edges, vertices = count_pairs(batch), graphs * widest(batch)
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
        self.left = nn.Sequential(mlp(channels, hidden, hidden), nn.ReLU())
        self.right = nn.Sequential(mlp(channels, hidden, hidden), nn.ReLU())
        self.skip = Linear(channels + hidden, hidden)

    def forward(
        self, x: Float[Tensor, "B N N F"], mask: Float[Tensor, "B N N 1"]
    ) -> Float[Tensor, "B N N H"]:
        """The matrices after one block; entries outside a graph are 0 before and after."""
        scale = mask.sum(dim=(1, 2, 3), keepdim=True).clamp(min=1) ** -0.25  # n^(-1/2)
        rows = x.flatten(0, 2)
        left, right = (
            (part(rows).unflatten(0, x.shape[:3]) * mask).movedim(3, 1)
            for part in (self.left, self.right)
        )  # (B, H, N, N)
        product = ((left * scale) @ right).movedim(1, 3)
        return (
            self.skip(torch.cat([x, product], dim=3).flatten(0, 2)).unflatten(0, x.shape[:3]) * mask
        )


class PPGN(MemoryLimited):
    r"""Matrices of pairs of vertices, multiplied: as strong as 3-WL (2-FWL).

    The input has a channel for the adjacency matrix and each edge attribute, the vertex attributes
    on the diagonal, and, in batches that carry positions, the distance of each pair in nanometres
    (each block multiplies matrices, so that values grow with powers of the unit). After each block
    the sums over the diagonal and over the rest go through an MLP of two layers, and the results
    are added up, as in the paper. Products are divided by √n, which the paper leaves out:
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
            if isinstance(module, Linear):
                nn.init.kaiming_normal_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        self.check_memory(batch)
        places = Places.of(batch)
        real = places.real
        x = pair_tensor(batch, places, self.positions).to(next(self.parameters()).dtype)
        mask = (real[:, :, None, None] & real[:, None, :, None]).to(x.dtype)  # (B, N, N, 1)
        sizes = batch.ptr.diff().clamp(min=1).to(x.dtype)[:, None]  # (B, 1)
        y = x.new_zeros(len(x), self.outputs)
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = block(x, mask)
            diagonal = x.diagonal(dim1=1, dim2=2).sum(2)  # (B, H)
            rest = (x.sum(dim=(1, 2)) - diagonal) / sizes
            y = y + head(torch.cat([diagonal, rest], dim=1))
        return y

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that a training step takes, by the measured number of n × n matrices."""
        return 2 * count_pairs(batch) * self.width * next(self.parameters()).element_size()


def pair_tensor(batch: GraphBatch, places: Places, positions: bool) -> Float[Tensor, "B N N F"]:
    """The input matrices of each graph, 0 outside it."""
    x = places.spread(vertex_features(batch))  # (B, N, F)
    eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)[None, :, :, None]
    channels = [x[:, :, None] * eye, pair_features(batch, places).to(x.dtype)]
    if positions:
        far = torch.where(places.different, euclidean_distance(batch, places) / 10, 0.0)
        channels.append(far.to(x.dtype)[..., None])
    return torch.cat(channels, dim=3)


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
        (row, col), count = neighbours, torch.full((), len(x), device=x.device)
        for own, others, norm in zip(self.own, self.others, self.norms, strict=True):
            sent = others(x)  # (K, H)
            x = norm(own(x).index_add(0, row, sent[col]), count)
        return x


class HierarchicalGNN(MemoryLimited):
    r"""GNNs on vertices, pairs and triples, each initialised with the vectors of the one before.

    .. math:: x_s = \big[\text{type}(s), \sum_{u \subset s, |u| = |s| - 1} x_u\big]

    A set begins with its isomorphism type and the sum over its sets of one vertex less; its
    neighbours are the sets that differ in one vertex, the two that differ being adjacent (the
    paper's local neighbourhood). Among vertices, messages pass through matrices of the bonds
    (:class:`EdgeNetwork`), whose lengths are features where batches carry positions, as in the
    authors' network for QM9. The type of two or three vertices is their number of edges, one-hot,
    beside the sum of the edges' attributes; labels of vertices come from below. All sets take part,
    not connected ones alone. The means over vertices, pairs and triples stand side by side, beside
    the logarithms of their numbers, and go through three layers; the paper leaves readout and
    widths open.

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
        positions: bool = False,
        hidden: int = 64,
        rounds: int = 3,
        width: int = 128,
    ) -> None:
        super().__init__()
        self.set_size, self.positions = set_size, positions
        self.hidden, self.width = hidden, width
        self.title = "-".join(str(k + 1) for k in range(set_size)) + "-GNN"
        self.remedy = (
            f"it looks at all sets of {set_size} vertices, so use smaller batches or graphs"
        )
        self.embed = Linear(features, hidden)
        self.vertices = nn.ModuleList(
            EdgeNetwork(edge_size + positions, hidden, width) for _ in range(rounds)
        )
        self.norms = nn.ModuleList(VertexBatchNorm(hidden, relu=True) for _ in range(rounds))
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
        x = self._among_vertices(x, batch)  # (V, H)
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

    def _among_vertices(self, x: Float[Tensor, "V F"], batch: GraphBatch) -> Float[Tensor, "V H"]:
        """The vectors of the vertices after all rounds along bonds."""
        e = edge_features(batch).to(x.dtype)
        if self.positions:
            row, col = batch.edge_index
            length = (batch.pos[row] - batch.pos[col]).norm(dim=1, keepdim=True)
            e = torch.cat([e, length.to(x.dtype)], dim=1)
        x = self.embed(x)
        for message, norm in zip(self.vertices, self.norms, strict=True):
            assert isinstance(message, EdgeNetwork)
            x = norm(message(x, batch.edge_index, message.units(e)), batch.ptr[-1])
        return x

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that a training step takes, by the measured number of vectors of each set."""
        sizes = batch.ptr.diff()
        count = int(count_subsets(sizes, self.set_size).sum())
        degree = batch.edge_index.shape[1] / max(1, int(sizes.sum()))
        each = 8 * self.hidden * (1 + self.set_size * degree)
        vertices, units = batch.structure.shape[0], self.width + 1
        bonds = 2 * len(self.vertices) * vertices * units * self.hidden
        return int(count * each + bonds) * next(self.parameters()).element_size()


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
