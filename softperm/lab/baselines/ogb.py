"""Baselines of the Open Graph Benchmark's table: embedding, rounds of messages, readout, head.

GCN and GIN with edge features are those of the examples of the Open Graph Benchmark (Hu et al.,
"Open Graph Benchmark: Datasets for Machine Learning on Graphs", 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn
from torch_geometric.utils import subgraph, to_dense_adj

from softperm.data.collection import Collection, GraphBatch, prepare
from softperm.lab.baselines.layers import (
    Dropout,
    MemoryLimited,
    Readout,
    VertexMLP,
    check_bytes,
    degree,
    edge_features,
    edge_offsets,
    mean_readout,
    mlp,
    sum_readout,
    vertex_features,
    widest,
)
from softperm.ops.layers import Linear, VertexBatchNorm, linear
from softperm.ops.ragged import graph_maximum, owners


class Molecular(nn.Module):
    """Message passing with batch normalisation, ReLU and dropout after each round.

    Attributes of vertices are one-hot labels, so a linear layer without bias is the sum of an
    embedding for each label, as in OGB's examples.

    Args:
        rounds: each turns vectors (V, H) and the batch into vectors (V, H).
        head: outputs (B, C) from the graphs' vectors (B, H).
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
        self.embed = Linear(features, hidden, bias=False)
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
    return mlp(hidden, max(1, hidden // 2), max(1, hidden // 4), outputs)


class GCNRound(nn.Module):
    r"""One round of GCN whose messages meet the edges' features.

    .. math:: x_i' = \frac{\text{ReLU}(W x_i + r)}{\hat d_i}
        + \sum_{j \in N(i)} \frac{\text{ReLU}(W x_j + U e_{ij})}{\sqrt{\hat d_i \hat d_j}}
    """

    def __init__(self, hidden: int, edge_size: int) -> None:
        super().__init__()
        self.linear = Linear(hidden, hidden)
        self.edge = Linear(edge_size, hidden, bias=False)
        self.root = nn.Parameter(torch.randn(hidden))

    def forward(self, x: Float[Tensor, "V H"], batch: GraphBatch) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        row, col = batch.edge_index
        norm = torch.rsqrt(degree(x, batch.edge_index) + 1)  # (V, 1)
        x = self.linear(x)
        e = self.edge(edge_features(batch).to(x.dtype))  # (E, H)
        message = norm[row] * norm[col] * torch.relu(x[col] + e)
        own = norm.square() * torch.relu(x + self.root)
        return own + sum_readout(message, edge_offsets(batch))


class GINRound(nn.Module):
    r"""One round of GIN whose messages meet the edges' features (GINE, Hu et al., ICLR 2020).

    .. math:: x_i' = \text{MLP}\Big((1 + \epsilon) x_i
        + \sum_{j \in N(i)} \text{ReLU}(x_j + U e_{ij})\Big)
    """

    def __init__(self, hidden: int, edge_size: int) -> None:
        super().__init__()
        self.edge = Linear(edge_size, hidden, bias=False)
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = VertexMLP([hidden, 2 * hidden, hidden], plain_last=True)

    def forward(self, x: Float[Tensor, "V H"], batch: GraphBatch) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        e = self.edge(edge_features(batch).to(x.dtype))  # (E, H)
        sent = torch.relu(x[batch.edge_index[1]] + e)
        total = (1 + self.eps) * x + sum_readout(sent, edge_offsets(batch))
        return self.mlp(total, batch.ptr[-1])


def ogb_example(
    layer: Callable[[int, int], nn.Module],
    features: int,
    edge_size: int,
    outputs: int,
    *,
    hidden: int = 300,
    layers: int = 5,
    dropout: float = 0.5,
) -> Molecular:
    """A network of OGB's examples: rounds of one kind, mean readout, a linear layer."""
    rounds = [layer(hidden, edge_size) for _ in range(layers)]
    head = Linear(hidden, outputs)
    frame = {"dropout": dropout, "residual": False, "relu_last": False}
    return Molecular(features, hidden, rounds, head, **frame)


gcn_with_edges = partial(ogb_example, GCNRound)
gin_with_edges = partial(ogb_example, GINRound)


# PNA (Corso et al., "Principal Neighbourhood Aggregation for Graph Nets", NeurIPS 2020).


class PNARound(nn.Module):
    r"""One round: four aggregators of the neighbours, each scaled in three ways by the degree.

    .. math:: x_i' = W \Big(\big[1, \tfrac{\log(d + 1)}{\delta}, \tfrac{\delta}{\log(d + 1)}\big]
        \otimes [\mu, \min, \max, \sigma]\Big) + b

    δ is the mean of log(d + 1) over the training vertices. For ogbg-molhiv the authors use this
    layer, which has neither towers nor edge features: the network has their 326,081 parameters.

    Args:
        degree_counts: number of training vertices with degree 0, 1, 2, …
    """

    scale: Tensor

    def __init__(self, hidden: int, degree_counts: Sequence[int]) -> None:
        super().__init__()
        counts = torch.tensor(degree_counts, dtype=torch.float64, device="cpu")
        logs = torch.log1p(torch.arange(len(counts), dtype=torch.float64, device="cpu"))
        mean = float((counts * logs).sum() / counts.sum().clamp(min=1)) or 1.0
        self.register_buffer("scale", torch.tensor(mean))
        self.update = Linear(12 * hidden, hidden)

    def forward(self, x: Float[Tensor, "V H"], batch: GraphBatch) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        sent, offsets = x[batch.edge_index[1]], edge_offsets(batch)  # (E, H)
        mean = mean_readout(sent, offsets)
        spread = mean_readout(sent.square(), offsets) - mean.square()
        std = (torch.relu(spread) + 1e-5).sqrt()
        extremes = -graph_maximum(-sent, offsets), graph_maximum(sent, offsets)
        values = torch.cat([mean, *extremes, std], dim=1)  # (V, 4 H)
        amplified = torch.log1p(degree(x, batch.edge_index).clamp(min=1)) / self.scale  # (V, 1)
        return self.update(torch.cat([values, values * amplified, values / amplified], dim=1))


def pna(
    features: int,
    outputs: int,
    degree_counts: Sequence[int],
    *,
    hidden: int = 80,
    layers: int = 4,
    dropout: float = 0.3,
) -> Molecular:
    """The frame for molecules with rounds of :class:`PNARound`."""
    rounds = [PNARound(hidden, degree_counts) for _ in range(layers)]
    head = narrowing_head(hidden, outputs)
    return Molecular(features, hidden, rounds, head, dropout=dropout, residual=True)


# DGN (Beaini et al., "Directional Graph Networks", ICML 2021).


class DGNRound(nn.Module):
    r"""One round: mean, maximum and minimum, and average and derivative along a field on the graph.

    .. math:: F_{ij} = \phi_j - \phi_i, \quad \hat F_{ij} = F_{ij} / \textstyle\sum_j |F_{ij}|,
        \quad x_i' = W \big[\mu, \max, \min, \; \big|\sum_j \hat F_{ij} (x_j - x_i)\big|,
        \; \sum_j |\hat F_{ij}| x_j\big] + b

    φ is the first non-trivial eigenvector of the Laplacian; its sign does not matter. For
    ogbg-molhiv the authors use this layer, which has no edge features: the network has their
    114,065 parameters. Left open by the paper: the Laplacian is D − A; in a graph of several parts
    φ belongs to the smallest eigenvalue above 0 of all parts; without edges the field is 0. Where
    that eigenvalue is multiple (in very symmetric graphs) φ is not determined by the graph, and
    neither are the outputs: this is the method's own.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.update = Linear(5 * hidden, hidden)

    def forward(self, x: Float[Tensor, "V H"], batch: GraphBatch) -> Float[Tensor, "V H"]:
        """The vectors after one round; ``batch.directions`` holds the field (E, 1)."""
        row, col = batch.edge_index
        field, offsets = batch.directions.to(x.dtype), edge_offsets(batch)
        sent = x[col]  # (E, H)
        slope = sum_readout(field * (sent - x[row]), offsets).abs()
        smooth = sum_readout(field.abs() * sent, offsets)
        extremes = graph_maximum(sent, offsets), -graph_maximum(-sent, offsets)
        return self.update(torch.cat([mean_readout(sent, offsets), *extremes, slope, smooth], 1))


EIGENVECTOR_BYTES = 32  # for each entry of a graph's Laplacian
ENTRIES = 1 << 25  # of the Laplacians that are decomposed together


class DGN(Molecular, MemoryLimited):
    """The frame for molecules with rounds of :class:`DGNRound`, which share one field."""

    title = "DGN"
    remedy = "leave the large graphs out"

    def __init__(
        self,
        features: int,
        outputs: int,
        *,
        hidden: int = 70,
        layers: int = 4,
        dropout: float = 0.3,
    ) -> None:
        rounds = [DGNRound(hidden) for _ in range(layers)]
        head = narrowing_head(hidden, outputs)
        super().__init__(features, hidden, rounds, head, dropout=dropout, residual=True)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch; without ``phi`` the eigenvectors are computed."""
        batch = copy(prepare(batch))
        phi = getattr(batch, "phi", None)
        if phi is None:
            self.check_memory(batch)
            phi = first_eigenvector(batch.edge_index, batch.ptr)
        batch.directions = directions(phi, batch.edge_index, edge_offsets(batch))
        return super().forward(batch)

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that the eigenvectors of the largest graph take."""
        return EIGENVECTOR_BYTES * widest(batch) ** 2


def with_eigenvectors(collection: Collection) -> Collection:
    """A collection whose batches have ``phi``, the eigenvectors that DGN would else compute.

    Raises:
        TooLarge: a graph needs too much memory.
    """
    largest = max([0, *collection.sizes.tolist()])
    check_bytes(DGN.title, EIGENVECTOR_BYTES * largest**2, largest, DGN.remedy, DGN.memory_limit)
    phi = collection.map_vertices(lambda part: first_eigenvector(part.edges, part.ptr))
    return replace(collection, extra={**collection.extra, "phi": phi})


def directions(
    phi: Float64[Tensor, " V"], edge_index: Int[Tensor, "2 E"], offsets: Int[Tensor, " V1"]
) -> Float64[Tensor, "E 1"]:
    """The normalised field of each edge; 0 at a vertex whose neighbours all equal it."""
    row, col = edge_index
    field = (phi[col] - phi[row])[:, None]  # (E, 1)
    return field / (sum_readout(field.abs(), offsets)[row] + 1e-8)


def first_eigenvector(
    edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
) -> Float64[Tensor, " V"]:
    """The first non-trivial eigenvector of each graph's Laplacian, graphs of like size together.

    Returns:
        A number for each vertex, of norm 1 over each graph; 0 in a graph without edges.
    """
    vertices, sizes = int(ptr[-1]), ptr.diff()
    phi = torch.zeros(vertices, dtype=torch.float64, device=ptr.device)
    owner, width = owners(ptr, vertices), _widths(sizes)
    for n in width[sizes > 0].unique().tolist():
        for chosen in (width == n).nonzero()[:, 0].split(max(1, ENTRIES // n**2)):  # (b,)
            member = torch.isin(owner, chosen)  # (V,)
            place = torch.searchsorted(chosen, owner[member])  # the graph of each of these vertices
            edges, _ = subgraph(member, edge_index, relabel_nodes=True)
            adjacency = to_dense_adj(edges, place, max_num_nodes=n, batch_size=len(chosen))
            vector = _eigenvectors(adjacency.double(), sizes[chosen])  # (b, n)
            phi[member] = vector[torch.arange(n, device=ptr.device) < sizes[chosen, None]]
    return phi


def _widths(sizes: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """The size of each graph's padded matrix: few sizes, so that few calls suffice."""
    return (sizes + 7) // 8 * 8


def _eigenvectors(
    adjacency: Float64[Tensor, "b n n"], sizes: Int[Tensor, " b"]
) -> Float64[Tensor, "b n"]:
    """The eigenvector of the first eigenvalue above 0 of each Laplacian; 0 if there is none."""
    b, n, _ = adjacency.shape
    beyond = torch.arange(n, device=sizes.device) >= sizes[:, None]  # (b, n)
    diagonal = torch.where(beyond, 4.0 * n, adjacency.sum(2))  # places without vertex come last
    values, vectors = torch.linalg.eigh(torch.diag_embed(diagonal) - adjacency)
    index = (values < 1e-6).sum(1)  # (b,)
    vector = vectors[torch.arange(b, device=sizes.device), :, index.clamp(max=n - 1)]
    return torch.where((index < sizes)[:, None], vector, 0.0)


# PHC-GNN (Le et al., "Parameterized Hypercomplex Graph Neural Networks", ICANN 2021).


class PHMLinear(nn.Module):
    r"""A linear layer with hypercomplex weights (Zhang et al., ICLR 2021).

    .. math:: W = \sum_{i=1}^n A_i \otimes S_i

    A vector is n components laid end to end; :math:`A_i` (n × n) holds the rule by which they
    multiply, which is learnt, and :math:`S_i` the weights, n times fewer than of a real layer.

    Args:
        n: number of components.
        inputs: size of the input, a multiple of n.
        outputs: size of the output, a multiple of n.
    """

    def __init__(self, n: int, inputs: int, outputs: int) -> None:
        super().__init__()
        if inputs % n or outputs % n:
            raise ValueError(
                f"hypercomplex vectors of {n} components need sizes that are multiples of {n}; "
                f"got {inputs} and {outputs}"
            )
        self.rule = nn.Parameter(torch.empty(n, n, n))
        self.weight = nn.Parameter(torch.empty(n, outputs // n, inputs // n))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.rule, std=n**-0.5)
        nn.init.normal_(self.weight, std=(2 / (inputs + outputs)) ** 0.5)

    def forward(self, x: Float[Tensor, "V F"]) -> Float[Tensor, "V H"]:
        """The layer's outputs."""
        whole = torch.einsum("nij,nkl->ikjl", self.rule, self.weight)  # (n, H / n, n, F / n)
        return linear(x, whole.flatten(0, 1).flatten(1), self.bias)


class PHCRound(nn.Module):
    r"""One round: messages by softmax over neighbours, a hypercomplex MLP.

    .. math:: x_i' = \text{MLP}\Big(x_i + \sum_{j \in N(i)} \alpha_{ij} (x_j + U e_{ij})\Big),
        \quad \alpha_{ij} = \text{softmax}_j \, \beta (x_j + U e_{ij})

    The aggregator is the paper's softmax with a learnt β; the MLP is hypercomplex
    linear, batch normalisation, ReLU, hypercomplex linear.

    Args:
        n: number of components.
        hidden: size H of the vectors, a multiple of n.
    """

    def __init__(self, n: int, hidden: int, edge_size: int) -> None:
        super().__init__()
        self.edge = Linear(edge_size, hidden, bias=False)
        self.beta = nn.Parameter(torch.ones(()))
        self.inner = PHMLinear(n, hidden, hidden)
        self.norm = VertexBatchNorm(hidden, relu=True)
        self.outer = PHMLinear(n, hidden, hidden)

    def forward(self, x: Float[Tensor, "V H"], batch: GraphBatch) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        (row, col), offsets = batch.edge_index, edge_offsets(batch)
        sent = x[col] + self.edge(edge_features(batch).to(x.dtype))  # (E, H)
        scores = self.beta * sent
        share = torch.exp(scores - graph_maximum(scores.detach(), offsets)[row])
        received = sum_readout(share * sent, offsets) / (sum_readout(share, offsets) + 1e-16)
        return self.outer(self.norm(self.inner(x + received), batch.ptr[-1]))


class AttentionReadout(nn.Module):
    r"""The paper's readout: :math:`\sum_i \sigma(W x_i + b) \circ x_i` over each graph.

    Args:
        n: number of components.
        hidden: size H of the vectors, a multiple of n.
    """

    def __init__(self, n: int, hidden: int) -> None:
        super().__init__()
        self.gate = PHMLinear(n, hidden, hidden)

    def forward(self, x: Float[Tensor, "V H"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B H"]:
        """The vector of each graph."""
        return sum_readout(torch.sigmoid(self.gate(x)) * x, ptr)


def phc_gnn(
    features: int,
    edge_size: int,
    outputs: int,
    *,
    hidden: int = 200,
    layers: int = 2,
    components: int = 4,
    dropout: float = 0.1,
) -> Molecular:
    """The frame for molecules with rounds of :class:`PHCRound` and the paper's readout."""
    n = components
    rounds = [PHCRound(n, hidden, edge_size) for _ in range(layers)]
    head = nn.Sequential(PHMLinear(n, hidden, hidden), nn.ReLU(), Linear(hidden, outputs))
    readout = AttentionReadout(n, hidden)
    frame = {"dropout": dropout, "residual": True}
    return Molecular(features, hidden, rounds, head, readout=readout, **frame)
