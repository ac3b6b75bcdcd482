"""Layers that several networks share: inputs, aggregation, readout, dropout, MLPs.

Shapes never depend on values, so that all of them can be mapped over models by ``torch.vmap``.
Vertices after ``ptr[-1]`` are padding: they belong to no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.nn.permutation import structure
from softperm.ops.dropout import mix
from softperm.ops.layers import Linear, VertexBatchNorm
from softperm.ops.ragged import graph_maximum, pool, propagate, row_offsets_op

Neighbours = Callable[[Float[Tensor, "V F"], Int[Tensor, "2 E"]], Float[Tensor, "V F"]]
"""Aggregates the vectors of each vertex's neighbours; edges are canonical."""

Readout = Callable[[Float[Tensor, "V F"], Int[Tensor, " B1"]], Float[Tensor, "B F"]]
"""Aggregates the vectors of each graph's vertices."""

GIB = 2**30


class TooLarge(ValueError):
    """A batch that would exceed the memory limit of a system."""


def widest(batch: GraphBatch) -> int:
    """Number of vertices for which there is room in each graph; at least one."""
    known = getattr(batch, "largest", None)  # in a stack, whose shapes are constant
    return known or max([1, *batch.ptr.diff().tolist()])


def check_bytes(title: str, needed: int, largest: int, remedy: str, limit: int) -> None:
    """Raises TooLarge if a system needs more bytes for some graphs than it may take."""
    if needed > limit:
        raise TooLarge(
            f"{title} would need about {needed / GIB:.1f} GiB for a batch whose largest graph has "
            f"{largest:,} vertices, and may use {limit / GIB:.1f} GiB: {remedy}"
        )


class MemoryLimited(nn.Module):
    """A network that refuses a batch whose training step would take too many bytes.

    Attributes:
        memory_limit: bytes that a training step may take; 24 GiB by default.
        title: name of the network in the message.
        remedy: what to do instead.
    """

    memory_limit: int = 24 * GIB
    title: str
    remedy: str

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that a training step takes, estimated from measured numbers of arrays."""
        raise NotImplementedError

    def check_memory(self, batch: GraphBatch) -> None:
        """Raises TooLarge before anything is allocated for a batch that needs too much."""
        if (needed := self.needed(batch)) > self.memory_limit:
            check_bytes(self.title, needed, widest(batch), self.remedy, self.memory_limit)


def vertex_features(batch: GraphBatch) -> Float[Tensor, "V F"]:
    """Attributes of the vertices, including one-hot labels; the degree if graphs have none.

    Errica et al. use labels and attributes on chemical datasets, degrees on social ones.

    Raises:
        ValueError: labels are given as codes, which would be ignored.
    """
    if getattr(batch, "label", None) is not None:
        raise ValueError(
            "the systems use labels as one-hot vectors, but the batch carries codes in `label`: "
            "take batches of a Collection with codes=False"
        )
    x = getattr(batch, "x", None)
    return batch.structure[:, :1] if x is None or x.shape[1] == 0 else x


def edge_features(batch: GraphBatch) -> Float[Tensor, "E Fe"]:
    """Attributes of the edges; the constant 1 if graphs have none."""
    given = getattr(batch, "edge_attr", None)
    if given is None or given.shape[1] == 0:
        return batch.structure.new_ones(batch.edge_index.shape[1], 1)
    return given


def sum_neighbours(x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]) -> Float[Tensor, "V F"]:
    """The sum over each vertex's neighbours."""
    return propagate(x, edge_index, canonical=True)


def mean_neighbours(
    x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]
) -> Float[Tensor, "V F"]:
    """The mean over each vertex's neighbours; 0 for a vertex without any."""
    return propagate(x, edge_index, canonical=True) / degree(x, edge_index).clamp(min=1)


def degree(x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]) -> Float[Tensor, "V 1"]:
    """Number of neighbours of each vertex, in the dtype of ``x``."""
    return propagate(torch.ones_like(x[:, :1]), edge_index, canonical=True)


def edge_offsets(batch: GraphBatch) -> Int[Tensor, " V1"]:
    """Where the edges of each vertex begin: readouts with it aggregate edges to vertices."""
    return row_offsets_op(batch.edge_index[None], batch.structure.shape[0], True)[0]


def sum_readout(x: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B F"]:
    """The sum over each graph's vertices."""
    return pool(torch.ones_like(x[:, :1]), x, ptr)[:, 0]


def mean_readout(x: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B F"]:
    """The mean over each graph's vertices."""
    return sum_readout(x, ptr) / ptr.diff().clamp(min=1)[:, None]


def edge_conditioned_sum(
    x: Float[Tensor, "V F"],
    edge_index: Int[Tensor, "2 E"],
    h: Float[Tensor, "E U"],
    weight: Float[Tensor, "U F H"],
) -> Float[Tensor, "V H"]:
    r"""Sums messages through matrices of the edges.

    .. math:: y_i = \sum_j \Theta_{ij}^\top x_j, \qquad \Theta_{ij} = \sum_k h_{ijk} W_k

    The last layer of a network that makes :math:`\Theta` is linear in its hidden units h, so the
    sum over neighbours may come first: :math:`\sum_k W_k^\top \sum_j h_{ijk} x_j`. Memory is
    V · U · F and E · (U + F), where a matrix for every edge would take E · F · H.

    Args:
        x: a vector for each vertex.
        edge_index: directed edges (i, j), sorted by i; j sends, i receives.
        h: hidden units of each edge.
        weight: the matrix of each hidden unit.
    """
    ptr = row_offsets_op(edge_index[None], len(x), True)[0]
    received = pool(h, x[edge_index[1]], ptr)  # (V, U, F)
    return received.flatten(1) @ weight.flatten(0, 1)


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes, with a ReLU after all but the last."""
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Dropout(nn.Module):
    """Dropout whose randomness is part of the module: a function of its seed and its steps.

    Torch's dropout draws from a global generator, so that a model in a stack, or a resumed one,
    would drop other entries than alone. Here entry (i, j) of step t is dropped when a hash of
    (seed, t, i, j) falls below the rate. Rate, seed and step are buffers: they are saved with the
    weights and may differ between the models of a stack. An empty batch is no step.

    Args:
        rate: probability with which an entry is dropped; the others grow by 1 / (1 − rate).
    """

    rate: Tensor
    seed: Tensor
    step: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1; got {rate}")
        self.register_buffer("rate", torch.tensor(rate))
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x: Float[Tensor, "K F"], count: Int[Tensor, ""]) -> Float[Tensor, "K F"]:
        """Drops entries while training; ``count`` is the number of real vertices of the batch."""
        if not self.training:
            return x
        row = torch.arange(x.shape[0], device=x.device)[:, None]
        column = torch.arange(x.shape[1], device=x.device)
        drawn = mix(mix(mix(self.seed + self.step * 0x9E3779B9) + row) + column)  # (K, F)
        self.step.add_(count > 0)
        return torch.where(drawn < self.rate * 2**32, 0.0, x / (1 - self.rate))


class VertexMLP(nn.Module):
    """Linear, batch normalisation over real vertices, ReLU; as often as there are layers.

    Args:
        sizes: of input, hidden layers and output.
        plain_last: whether the last layer is linear alone.
    """

    def __init__(self, sizes: Sequence[int], plain_last: bool = False) -> None:
        super().__init__()
        self.linears = nn.ModuleList(Linear(a, b) for a, b in pairwise(sizes))
        normalised = sizes[1:-1] if plain_last else sizes[1:]
        self.norms = nn.ModuleList(VertexBatchNorm(size, relu=True) for size in normalised)

    def forward(self, x: Float[Tensor, "V F"], count: Int[Tensor, ""]) -> Float[Tensor, "V H"]:
        """The vectors of all rows, normalised with the statistics of the first ``count``."""
        for k, linear in enumerate(self.linears):
            x = linear(x)
            if k < len(self.norms):
                x = self.norms[k](x, count)
        return x


class Layered(nn.Module):
    """Rounds of message passing side by side, max readout, two fully-connected layers.

    Errica et al. use this architecture for GraphSAGE; here GCN has it too, so that only the
    aggregation differs.

    Args:
        layer: makes a layer (features, hidden), which turns vectors (V, F) and edges into ReLU'd
            vectors (V, H).
    """

    def __init__(
        self,
        layer: Callable[[int, int], nn.Module],
        features: int,
        outputs: int,
        hidden: int,
        layers: int,
    ) -> None:
        super().__init__()
        sizes = [features, *[hidden] * (layers - 1)]
        self.layers = nn.ModuleList(layer(size, hidden) for size in sizes)
        self.hidden = Linear(layers * hidden, hidden)
        self.output = Linear(hidden, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        x = vertex_features(batch).to(self.output.weight.dtype)
        vectors = []
        for layer in self.layers:
            x = layer(x, batch.edge_index)  # (V, H)
            vectors.append(x)
        graph = graph_maximum(torch.cat(vectors, dim=1), batch.ptr)  # (B, L · H)
        return self.output(torch.relu(self.hidden(graph)))


class ReadoutGNN(nn.Module):
    """Encodes vertices, sums each graph's vertices, predicts from the sum.

    The sum is the graph's vector, as in Xu et al., "How Powerful are Graph Neural Networks?" (GIN);
    with the encoder of Kipf and Welling it is the GCN of the paper's distance study.

    Args:
        encoder: turns structural features (V, S) into hidden vectors (V, H).
        hidden: size H of the hidden vectors.
        outputs: number C of outputs.
    """

    def __init__(self, encoder: nn.Module, hidden: int, outputs: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = mlp(hidden, hidden, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        return self.head(self.transform(batch))

    def transform(self, batch: GraphBatch) -> Float[Tensor, "B H"]:
        """The readout of each graph: the sum of its vertices' hidden vectors."""
        batch = prepare(batch)
        x = structure(batch).to(next(self.parameters()).dtype)
        hidden = self.encoder(x, batch.edge_index, batch.ptr)  # (V, H)
        return sum_readout(hidden, batch.ptr)
