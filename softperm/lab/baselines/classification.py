"""Baselines of the classification table: networks that Errica et al. (ICLR 2020) compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import (
    Dropout,
    Layered,
    MemoryLimited,
    Neighbours,
    VertexMLP,
    degree,
    edge_conditioned_sum,
    edge_features,
    edge_offsets,
    mean_neighbours,
    mlp,
    sum_neighbours,
    sum_readout,
    vertex_features,
)
from softperm.lab.baselines.pyramid import POOLINGS, add_pyramid
from softperm.nn.permutation import align_adjacency
from softperm.ops.layers import Linear, VertexBatchNorm
from softperm.ops.ragged import graph_maximum, neighbour_maximum, owners, pool

# Networks that never look at an edge (Errica et al., ICLR 2020): what structure has to beat.


class StructureFree(nn.Module):
    """Sums vectors of a graph's vertices, then one hidden layer.

    Where vertices have discrete labels alone, the sum counts the atoms of each kind: the molecular
    fingerprint of Ralaivola et al. (2005). Elsewhere (ENZYMES with its continuous attributes,
    social datasets) a layer on each vertex precedes the sum: Deep Multisets (Zaheer et al., 2017).
    The ReLU of Errica et al. after the output layer of the fingerprint is left out, because it
    hides scores below 0 from the loss.
    """

    def __init__(
        self, features: int, outputs: int, labels_alone: bool, *, hidden: int = 32
    ) -> None:
        super().__init__()
        self.vertex = None if labels_alone else Linear(features, hidden)
        self.hidden = Linear(features if labels_alone else hidden, hidden)
        self.output = Linear(hidden, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        x = vertex_features(batch).to(self.output.weight.dtype)  # (V, F)
        if self.vertex is not None:
            x = torch.relu(self.vertex(x))  # (V, H)
        return self.output(torch.relu(self.hidden(sum_readout(x, batch.ptr))))


# GCN (Kipf & Welling, "Semi-Supervised Classification with Graph Convolutional Networks").


class GCNLayer(nn.Module):
    r"""One round of the paper (ICLR 2017).

    .. math:: x_i' = \text{ReLU}\big(b + \sum_j W x_j / \sqrt{\hat d_i \hat d_j}\big)

    Neighbours include the vertex itself, and :math:`\hat d` counts it.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.linear = Linear(features, hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]
    ) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        norm = torch.rsqrt(degree(x, edge_index) + 1)  # (V, 1)
        message = norm * self.linear(x)  # (V, H)
        return torch.relu(norm * (sum_neighbours(message, edge_index) + message) + self.bias)


class GCN(Layered):
    """Graph convolutions for whole graphs.

    The paper only classifies vertices; for graphs, the architecture is that of Errica et al. for
    GraphSAGE (concatenated vectors of all layers, max readout, two fully-connected layers).
    """

    def __init__(self, features: int, outputs: int, hidden: int = 32, layers: int = 3) -> None:
        super().__init__(GCNLayer, features, outputs, hidden, layers)


# GraphSAGE (Hamilton et al., "Inductive Representation Learning on Large Graphs", 2017).


class SAGELayer(nn.Module):
    r"""One round: :math:`x_i' = \text{ReLU}(W_1 x_i + W_2 \, \text{agg}_{j \in N(i)} x_j + b)`.

    Args:
        aggregate: mean or sum over neighbours.
    """

    def __init__(self, features: int, hidden: int, aggregate: Neighbours = mean_neighbours) -> None:
        super().__init__()
        self.aggregate = aggregate
        self.neighbours = Linear(features, hidden)
        self.own = Linear(features, hidden, bias=False)

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]
    ) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        return torch.relu(self.own(x) + self.neighbours(self.aggregate(x, edge_index)))


class SAGEPoolLayer(SAGELayer):
    r"""One round with the paper's pooling: the maximum over :math:`\text{ReLU}(W_p x_j + b_p)`."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(features, hidden, neighbour_maximum)
        self.project = Linear(features, features)

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]
    ) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        pooled = self.aggregate(torch.relu(self.project(x)), edge_index)  # (V, F)
        return torch.relu(self.own(x) + self.neighbours(pooled))


class GraphSAGE(Layered):
    """Each vertex joins its own vector with an aggregate of its neighbours'.

    The paper samples neighbours of very large graphs; here all are taken, as Errica et al. do.
    Other details follow them too: no l2 normalisation; concatenated vectors of all layers, max
    readout, two fully-connected layers. The aggregations of their grid are the mean, the
    sum and the paper's pooling (:class:`SAGEPoolLayer`).
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        *,
        hidden: int = 32,
        layers: int = 3,
        aggregation: str = "mean",
    ) -> None:
        layer = {
            "mean": SAGELayer,
            "add": partial(SAGELayer, aggregate=sum_neighbours),
            "max": SAGEPoolLayer,
        }[aggregation]
        super().__init__(layer, features, outputs, hidden, layers)


# GIN (Xu et al., "How Powerful are Graph Neural Networks?", ICLR 2019).


class GIN(nn.Module):
    r"""Sums neighbours into MLPs; every layer's readout has its own linear classifier.

    .. math::
        x_i^{(k)} = \text{MLP}^{(k)}\Big((1 + \epsilon^{(k)}) x_i^{(k-1)}
            + \sum_{j \in N(i)} x_j^{(k-1)}\Big), \qquad
        y = \sum_k W^{(k)} \, \text{readout}_i \, x_i^{(k)}

    Left open by the paper, settled as in Errica et al. ("A Fair Comparison of Graph Neural Networks
    for Graph Classification", ICLR 2020): layer 0 is an MLP on the features without message
    passing; an MLP is linear, batch normalisation, ReLU, twice; dropout falls on each layer's
    outputs; the readout is a sum or a mean, and ε is learnt or 0, whichever validation prefers.
    These choices are buffers, not branches: networks that differ in them have the same shapes and
    can be trained side by side.
    """

    learns_eps: Tensor
    takes_mean: Tensor

    def __init__(
        self,
        features: int,
        outputs: int,
        *,
        widths: Sequence[int] = (32, 32, 32, 32),
        train_eps: bool = False,
        readout: str = "sum",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = [features, widths[0], *widths]
        self.mlps = nn.ModuleList(VertexMLP([a, b, b]) for a, b in pairwise(sizes))
        self.linears = nn.ModuleList(Linear(size, outputs) for size in sizes[1:])
        self.dropout = Dropout(dropout)
        self.eps = nn.Parameter(torch.zeros(len(widths)))
        self.register_buffer("learns_eps", torch.tensor(float(train_eps)))
        self.register_buffer("takes_mean", torch.tensor({"sum": False, "mean": True}[readout]))

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        sizes = batch.ptr.diff().clamp(min=1)[:, None]  # (B, 1)
        share = torch.where(self.takes_mean, sizes, 1)
        outputs = [
            linear(sum_readout(x, batch.ptr) / share)  # (B, C)
            for x, linear in zip(self.layers(batch), self.linears, strict=True)
        ]
        dropped = self.dropout(torch.cat(outputs, dim=1), batch.ptr[-1])  # (B, L · C)
        return dropped.unflatten(1, (len(outputs), -1)).sum(1)

    def layers(self, batch: GraphBatch) -> list[Float[Tensor, "V _"]]:
        """The hidden vectors of all vertices after each layer."""
        count: Int[Tensor, ""] = batch.ptr[-1]
        eps = self.learns_eps * self.eps  # (L,)
        x = self.mlps[0](vertex_features(batch).to(eps.dtype), count)  # (V, H)
        layers = [x]
        for k, layer in enumerate(self.mlps[1:]):
            x = layer((1 + eps[k]) * x + sum_neighbours(x, batch.edge_index), count)
            layers.append(x)
        return layers


# ECC (Simonovsky & Komodakis, "Dynamic Edge-Conditioned Filters in CNNs on Graphs", CVPR 2017).


class ECCLayer(nn.Module):
    r"""One edge-conditioned convolution.

    .. math:: x_i' = b + \frac{1}{|N(i)|} \sum_{j \in N(i)} \Theta(e_{ij})^\top x_j

    N(i) holds i itself, by an edge whose features are all 0. :math:`\Theta` is a network with one
    hidden layer of 16 ReLUs; the paper varies their number from dataset to dataset.
    """

    def __init__(self, features: int, edge_size: int, hidden: int) -> None:
        super().__init__()
        width = 16
        self.edge = Linear(edge_size, width)
        self.weight = nn.Parameter(torch.empty(width + 1, features, hidden))  # the last is alone
        self.bias = nn.Parameter(torch.zeros(hidden))
        nn.init.normal_(self.weight, std=(2 / (features * (width + 1))) ** 0.5)

    def forward(
        self,
        x: Float[Tensor, "V F"],
        edge_index: Int[Tensor, "2 E"],
        e: Float[Tensor, "E Fe"],
        present: Float[Tensor, "E 1"],
    ) -> Float[Tensor, "V H"]:
        """The vectors after one convolution along the edges where ``present`` is 1."""
        h = nn.functional.pad(torch.relu(self.edge(e)), (0, 1), value=1.0) * present  # (E, K + 1)
        loop = nn.functional.pad(torch.relu(self.edge.bias), (0, 1), value=1.0)  # (K + 1,)
        own = x @ torch.tensordot(loop, self.weight, dims=1)  # (V, H)
        total = edge_conditioned_sum(x, edge_index, h, self.weight) + own
        neighbours = edge_conditioned_sum(
            torch.ones_like(x[:, :1]), edge_index, present, present.new_ones(1, 1, 1)
        )
        return total / (neighbours + 1) + self.bias


class ECC(nn.Module):
    """Edge-conditioned convolutions on a pyramid of coarsened graphs, mean, two dense layers.

    As the paper's network for NCI1: three convolutions, pooling, two, pooling, one, then the mean
    over the vertices that are left. Edges of the graph have their attributes, or the constant 1;
    those of coarsened graphs have their weights (:class:`softperm.lab.baselines.pyramid.Pyramid`).
    Pooling takes the maximum over a kept vertex and its removed neighbours. Convolutions are
    followed by batch normalisation, ReLU and dropout, as in the paper and in Errica et al.; dropout
    before the last layer is their 0.1.

    Differences: weak edges of coarsened graphs are left out by a threshold, not at random, and the
    graph settles the sign of an eigenvector wherever it can, not its first vertex. The optimiser is
    Adam, as for all systems here, and the learning rates are Adam's; they use SGD with decay.
    """

    def __init__(
        self,
        features: int,
        edge_size: int,
        outputs: int,
        *,
        hidden: int = 32,
        dropout: float = 0.05,
    ) -> None:
        super().__init__()
        depths = range(POOLINGS + 1, 0, -1)  # convolutions of each level
        sizes = [features, *[hidden] * (sum(depths) - 1)]
        edge_sizes = [edge_size] * depths[0] + [1] * sum(depths[1:])
        self.level_of = [level for level, depth in enumerate(depths) for _ in range(depth)]
        self.layers = nn.ModuleList(
            ECCLayer(size, of_edge, hidden) for size, of_edge in zip(sizes, edge_sizes, strict=True)
        )
        self.norms = nn.ModuleList(VertexBatchNorm(hidden, relu=True) for _ in sizes)
        self.dropouts = nn.ModuleList(Dropout(dropout) for _ in sizes)
        self.hidden = Linear(hidden, hidden)
        self.dropout = Dropout(0.1)
        self.output = Linear(hidden, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph; without ``edge_levels`` the pyramids are computed."""
        batch = add_pyramid(prepare(batch))
        dtype, count = self.output.weight.dtype, batch.ptr[-1]
        x, e = vertex_features(batch).to(dtype), edge_features(batch).to(dtype)
        weights = batch.edge_levels.to(dtype)  # (E, levels)
        real = (torch.arange(len(x), device=x.device) < count)[:, None]  # (V, 1)
        present, level = real.to(dtype), 0
        edges = (weights[:, :1] > 0).to(dtype)  # (E, 1), those of the level
        parts = zip(self.level_of, self.layers, self.norms, self.dropouts, strict=True)
        for of_layer, layer, norm, dropout in parts:
            assert isinstance(norm, VertexBatchNorm)
            if of_layer > level:
                x = pool_removed(x, batch, edges, level)
                level = of_layer
                e = weights[:, level : level + 1]
                edges = (e > 0).to(dtype)
                present = (real & (batch.level >= level)).to(dtype)
            x = norm.over(layer(x, batch.edge_index, e, edges), present, present.sum())
            x = dropout(x, count)  # (V, H)
        vertices = sum_readout(present, batch.ptr).clamp(min=1)  # (B, 1)
        graph = torch.relu(self.hidden(sum_readout(x * present, batch.ptr) / vertices))  # (B, H)
        return self.output(self.dropout(graph, count))


def pool_removed(
    x: Float[Tensor, "V H"], batch: GraphBatch, edges: Float[Tensor, "E 1"], level: int
) -> Float[Tensor, "V H"]:
    """The maximum over each vertex and its neighbours that leave after a level.

    No entry of ``x`` may be negative.
    """
    col = batch.edge_index[1]
    leaves = edges * (batch.level[col] == level).to(x.dtype)
    return torch.maximum(x, graph_maximum(leaves * x[col], edge_offsets(batch)))


# DGCNN (Zhang et al., "An End-to-End Deep Learning Architecture for Graph Classification").


class DGCNN(nn.Module):
    r"""Sorts the vertices by their last feature and reads the first k like a sentence.

    AAAI 2018.

    .. math:: X^{(l+1)} = \tanh(\hat D^{-1} (A + I) X^{(l)} W^{(l)} + b^{(l)})

    The last convolution has one channel, by which SortPool orders the vertices; all layers'
    vectors of the first k go through two convolutions, a dense layer and dropout of 0.5. Widths of
    these (16 and 32 filters, the second of height 5, 128 dense units) are the paper's; k is a
    percentile of the training graphs' sizes, at least 10, as in Errica et al. Vertices that tie
    are isomorphic up to colour refinement almost always, so their order does not matter.

    Args:
        size_percentiles: number of vertices below which 0, 1, …, 100 % of training graphs lie.
        layers: convolutions before the one with a single channel.
        keep: share of the training graphs that have at most k vertices.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        size_percentiles: Sequence[float],
        *,
        hidden: int = 32,
        layers: int = 3,
        keep: float = 0.6,
    ) -> None:
        super().__init__()
        vertices = max(10, round(size_percentiles[round(100 * keep)]))
        sizes = [features, *[hidden] * layers, 1]
        self.linears = nn.ModuleList(Linear(a, b) for a, b in pairwise(sizes))
        self.vertices = vertices
        self.each = Linear(layers * hidden + 1, 16)  # a convolution with a step for each vertex
        self.window = Linear(5 * 16, 32)  # a convolution of height 5
        self.dense = Linear(32 * (vertices // 2 - 4), 128)
        self.dropout = Dropout(0.5)
        self.output = Linear(128, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        x = vertex_features(batch).to(self.output.weight.dtype)
        share = 1 / (degree(x, batch.edge_index) + 1)  # (V, 1)
        vectors = []
        for linear in self.linears:
            y = linear(x)
            x = torch.tanh(share * (sum_neighbours(y, batch.edge_index) + y))
            vectors.append(x)
        rows = first_by_last_channel(torch.cat(vectors, dim=1), batch.ptr, self.vertices)
        y = torch.relu(self.each(rows.flatten(0, 1))).unflatten(0, rows.shape[:2])  # (B, k, 16)
        y = y[:, : self.vertices // 2 * 2].unflatten(1, (-1, 2)).amax(2)  # (B, k // 2, 16)
        y = y.unfold(1, 5, 1).flatten(2)  # (B, k // 2 − 4, 80)
        y = torch.relu(self.window(y.flatten(0, 1))).unflatten(0, y.shape[:2]).flatten(1)
        return self.output(self.dropout(torch.relu(self.dense(y)), batch.ptr[-1]))


def first_by_last_channel(
    x: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"], k: int
) -> Float[Tensor, "B k F"]:
    """Each graph's k vertices with the largest last channel, descending; zeros where it has less.

    Example:
        >>> x = torch.tensor([[1.0], [3.0], [2.0], [4.0]])
        >>> first_by_last_channel(x, torch.tensor([0, 3, 4]), 2)
        tensor([[[3.],
                 [2.]],
        <BLANKLINE>
                [[4.],
                 [0.]]])
    """
    order = x[:, -1].detach().argsort(descending=True, stable=True)
    order = order[owners(ptr, len(x))[order].argsort(stable=True)]  # graph by graph
    place = ptr[:-1, None] + torch.arange(k, device=ptr.device)  # (B, k)
    place = torch.where(place < ptr[1:, None], place, len(x))  # the last row is of zeros
    order = nn.functional.pad(order, (0, 1), value=len(x))
    return nn.functional.pad(x, (0, 0, 0, 1))[order[place]]


# DiffPool (Ying et al., "Hierarchical Graph Representation Learning with Differentiable Pooling",
# NeurIPS 2018). The first pooling reads the sparse graph as it is: no n × n matrix is formed.


Mean = Callable[[Float[Tensor, "K F"]], Float[Tensor, "K F"]]
"""The mean over neighbours, of vertices or of clusters laid end to end."""


class SAGEBlock(nn.Module):
    """Three rounds of GraphSAGE with batch normalisation; their vectors side by side, one layer."""

    def __init__(self, features: int, hidden: int, size: int) -> None:
        super().__init__()
        sizes = [(features, hidden), (hidden, hidden), (hidden, hidden)]
        self.own = nn.ModuleList(Linear(a, b) for a, b in sizes)
        self.others = nn.ModuleList(Linear(a, b, bias=False) for a, b in sizes)
        self.norms = nn.ModuleList(VertexBatchNorm(hidden, relu=True) for _ in sizes)
        self.last = Linear(3 * hidden, size)

    def forward(
        self, x: Float[Tensor, "K F"], mean: Mean, count: Int[Tensor, ""]
    ) -> Float[Tensor, "K H"]:
        """New vectors of all vertices, given the mean over neighbours."""
        vectors = []
        for own, others, norm in zip(self.own, self.others, self.norms, strict=True):
            x = norm(own(x) + others(mean(x)), count)
            vectors.append(x)
        return self.last(torch.cat(vectors, dim=1))


class DiffPool(MemoryLimited):
    r"""Assigns vertices softly to clusters, and clusters to clusters of clusters.

    .. math:: S = \text{softmax}(\text{GNN}_a(A, X)), \quad Z = \text{GNN}_z(A, X), \quad
        X' = S^\top Z, \quad A' = S^\top A S

    As in Errica et al.: two poolings, each to a quarter of the places before it, beginning with
    the largest training graph; three rounds of GraphSAGE (mean) with batch normalisation in
    each network; the maximum over vertices after each level, side by side; 50 hidden units. The
    paper's two side objectives, link prediction :math:`\|A - S S^\top\|_F` over the number of
    entries, and the entropy of S, are added to the loss of the outputs: see :func:`carry`.

    Args:
        largest: vertices of the largest training graph; a larger one is assigned to as many
            clusters.
        hidden: size of the rounds.
        embedding: size of Z.
    """

    remedy = "use smaller batches, or a collection whose largest graph is smaller"

    def __init__(
        self, features: int, largest: int, outputs: int, *, hidden: int = 64, embedding: int = 128
    ) -> None:
        super().__init__()
        first = max(1, math.ceil(largest / 4))
        self.clusters = (first, max(1, math.ceil(first / 4)))
        self.title = f"DiffPool with {first:,} clusters"
        self.width = 46 * hidden + 3 * embedding
        sizes = [features, embedding, embedding]
        self.embed = nn.ModuleList(SAGEBlock(size, hidden, embedding) for size in sizes)
        pairs = zip(sizes, self.clusters, strict=False)
        self.assign = nn.ModuleList(SAGEBlock(size, hidden, count) for size, count in pairs)
        self.head = mlp(3 * embedding, 50, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        self.check_memory(batch)
        x = vertex_features(batch).to(next(self.parameters()).dtype)

        def mean(x: Tensor) -> Tensor:
            return mean_neighbours(x, batch.edge_index)

        z = self.embed[0](x, mean, batch.ptr[-1])  # (V, Z)
        s = torch.softmax(self.assign[0](x, mean, batch.ptr[-1]), dim=1)  # (V, K)
        levels = [graph_maximum(z, batch.ptr)]
        x = pool(s, z, batch.ptr)
        a = align_adjacency(s, batch.edge_index, batch.ptr, canonical=True)
        sizes, count = batch.ptr.diff(), batch.ptr[-1]
        edges = (batch.edge_index[0] < count).sum()  # without padding
        side = side_losses(s, a, pool(s, s, batch.ptr), edges, sizes.square().sum(), count)
        places = torch.arange(1, len(sizes) + 1, device=sizes.device)
        graphs = torch.where(sizes > 0, places, 0).amax() if len(sizes) else count  # not padding
        for level, embed in enumerate(list(self.embed)[1:]):
            z = dense(embed, x, a, graphs)  # (B, K, Z)
            levels.append(z.amax(dim=1))
            if level + 1 < len(self.assign):
                s = torch.softmax(dense(self.assign[level + 1], x, a, graphs), dim=2)  # (B, K, K')
                s = s * (places <= graphs)[:, None, None]
                squares, k = a.square().sum(), a.shape[1]
                x, a = s.mT @ z, s.mT @ a @ s
                flat = s.flatten(0, 1)
                side = side + side_losses(flat, a, s.mT @ s, squares, graphs * k * k, graphs * k)
        y = self.head(torch.cat(levels, dim=1))
        return carry(y, side) if self.training else y

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that a training step takes, by the measured number of arrays of each shape."""
        vertices, graphs, k = batch.structure.shape[0], batch.ptr.numel() - 1, self.clusters[0]
        assigned, rows = vertices * k + graphs * k * k, vertices + graphs * k
        return (8 * assigned + self.width * rows) * next(self.parameters()).element_size()


def dense(
    block: nn.Module,
    x: Float[Tensor, "B K F"],
    a: Float[Tensor, "B K K"],
    graphs: Int[Tensor, ""],
) -> Float[Tensor, "B K H"]:
    """A block on clusters, which weigh their neighbours by the pooled adjacency matrix.

    Statistics are those of the first ``graphs`` graphs; those after them are padding.
    """
    total = a.sum(dim=2, keepdim=True).clamp(min=1)  # (B, K, 1)

    def mean(flat: Tensor) -> Tensor:
        return (a @ flat.unflatten(0, x.shape[:2]) / total).flatten(0, 1)

    return block(x.flatten(0, 1), mean, graphs * x.shape[1]).unflatten(0, x.shape[:2])


def side_losses(
    s: Float[Tensor, "V K"],
    pooled: Float[Tensor, "B K K"],
    overlap: Float[Tensor, "B K K"],
    squares: Shaped[Tensor, ""],
    entries: Int[Tensor, ""],
    rows: Int[Tensor, ""],
) -> Float[Tensor, ""]:
    r"""Link prediction and entropy of an assignment.

    :math:`\|A - S S^\top\|^2 = \|A\|^2 - 2 \operatorname{tr} S^\top A S + \|S^\top S\|^2`.

    Args:
        s: assignments of all vertices.
        pooled: SᵀAS of each graph.
        overlap: SᵀS of each graph.
        squares: ‖A‖² over all graphs.
        entries: number of entries of all A.
        rows: number of rows of s that count; those after them are padding.
    """
    trace = pooled.diagonal(dim1=1, dim2=2).sum()
    link = (squares - 2 * trace + overlap.square().sum()).clamp(min=1e-12).sqrt()
    entropy = -(s * torch.log(s + 1e-15)).sum(dim=1)
    counted = torch.where(torch.arange(len(s), device=s.device) < rows, entropy, 0.0)
    return link / entries.clamp(min=1) + counted.sum() / rows.clamp(min=1)


class _Carry(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(outputs: Tensor, loss: Tensor) -> Tensor:
        return outputs.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0].new_ones(())


def carry(outputs: Float[Tensor, "B C"], loss: Float[Tensor, ""]) -> Float[Tensor, "B C"]:
    """The outputs, unchanged, through which a second loss is descended.

    Whatever loss L the outputs get, the parameters receive the gradient of L + ``loss``; so a
    training loop need not know that a network has objectives of its own.

    Example:
        >>> import torch
        >>> w = torch.tensor(3.0, requires_grad=True)
        >>> carry(torch.ones(1, 1) * w, w**2).sum().backward()
        >>> w.grad
        tensor(7.)
    """
    return _Carry.apply(outputs, loss)
