"""Scaling, embedding and encoding of vertices: features of each vertex in, hidden vectors out.

The last row given to an encoder is the padding vertex: isolated, all features zero. It is encoded
like any other vertex, but it and any vertex after ``ptr[-1]`` stay out of normalisation statistics.

To add an encoder, write its class here, add it to :data:`MESSAGE_PASSING`, and add its name to the
choices of ``encoder`` in ``softperm/settings.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import Collection, GraphBatch
from softperm.nn.permutation import align_distances, align_edge_attributes
from softperm.ops.dropout import drop
from softperm.ops.layers import VertexBatchNorm, VertexLinear, vertex_linear
from softperm.ops.ragged import propagate

_CONSTANT = 1e-6  # a standard deviation relative to the mean that only rounding explains


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of each feature; 1 in place of that of a constant feature."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, rows: Float[Tensor, "V F"]) -> Moments:
        """The moments of the given vertices; neutral ones if there are none."""
        if not len(rows):
            return cls.neutral(rows.shape[1])
        std, mean = torch.std_mean(rows.double(), dim=0, correction=0)
        varies = std > _CONSTANT * mean.abs()
        return cls(tuple(mean.tolist()), tuple(torch.where(varies, std, 1.0).tolist()))

    @classmethod
    def of_parts(cls, parts: Callable[[], Iterator[Float[Tensor, "v F"]]]) -> Moments:
        """The moments of vertices that come in parts, which are read twice if there are several.

        Args:
            parts: gives the parts, in float64.
        """
        several = parts()
        one, another = next(several, None), next(several, None)
        if another is None:
            return cls.of(torch.empty(0, 0) if one is None else one)
        count, total = 0, torch.zeros(())
        for rows in parts():
            count, total = count + len(rows), total + rows.sum(0)
        mean = total / max(count, 1)  # (F,)
        spread = torch.stack([((rows - mean) ** 2).sum(0) for rows in parts()]).sum(0)
        std = (spread / max(count, 1)).sqrt()
        varies = std > _CONSTANT * mean.abs()
        return cls(tuple(mean.tolist()), tuple(torch.where(varies, std, 1.0).tolist()))

    @classmethod
    def neutral(cls, size: int) -> Moments:
        """Moments that leave features as they are."""
        return cls((0.0,) * size, (1.0,) * size)


@dataclass(frozen=True)
class VertexStatistics:
    """Statistics of the training vertices, with which a network standardises all vertices.

    Attributes:
        structure: moments of the structural features.
        log_structure: moments of log(1 + x) of them.
        attributes: moments of the vertex attributes of a batch; neutral for one-hot labels.
    """

    structure: Moments
    log_structure: Moments
    attributes: Moments

    @classmethod
    def of(cls, graphs: Collection, index: Int[Tensor, " b"]) -> VertexStatistics:
        """The statistics of the vertices of the chosen graphs."""
        chosen = torch.zeros(len(graphs), dtype=torch.bool, device=graphs.ptr.device)
        chosen[index.to(chosen.device)] = True

        def moments(rows: Callable[[Collection], Float[Tensor, "v F"]]) -> Moments:
            def parts() -> Iterator[Float[Tensor, "v F"]]:
                for first, last, part in graphs.spans():
                    there = torch.repeat_interleave(chosen[first:last], part.sizes)
                    yield rows(part)[there].double()

            return Moments.of_parts(parts)

        continuous = 0 if graphs.x is None else graphs.x.shape[1]
        attributes = Moments.neutral(graphs.attribute_size - continuous)
        if graphs.x is not None:
            values = moments(lambda part: cast(Tensor, part.x))
            attributes = Moments(attributes.mean + values.mean, attributes.std + values.std)
        structure = moments(lambda part: part.structure)
        return cls(
            structure, moments(lambda part: torch.log1p(part.structure.double())), attributes
        )


class LogScale(nn.Module):
    """log(1 + x) of the leading features: brings counts that span orders of magnitude together.

    Args:
        count: number of features that are scaled; those behind them, attributes, stay as they are.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Float[Tensor, "V F"]) -> Float[Tensor, "V F"]:
        """The leading features on a logarithmic scale; 0 stays 0."""
        return torch.cat([torch.log1p(x[:, : self.count]), x[:, self.count :]], dim=1)


class Standardise(nn.Module):
    """(x − mean) / std of the leading features, with the moments of the training vertices.

    Args:
        moments: of the leading features; those behind them stay as they are.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, moments: Moments) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(moments.mean))
        self.register_buffer("std", torch.tensor(moments.std))

    def forward(self, x: Float[Tensor, "V F"]) -> Float[Tensor, "V F"]:
        """The leading features centred and scaled."""
        count = len(self.mean)
        return torch.cat([(x[:, :count] - self.mean) / self.std, x[:, count:]], dim=1)


class StandardiseAttributes(nn.Module):
    """A batch whose vertex attributes are standardised by those of the training vertices.

    Padding vertices keep attributes of 0, which are now those of an average vertex.
    """

    def __init__(self, moments: Moments) -> None:
        super().__init__()
        self.standardise = Standardise(moments)

    def forward(self, batch: GraphBatch) -> GraphBatch:
        """A shallow copy of the batch with other attributes."""
        copy = batch.__copy__()
        copy.x = self.standardise(batch.x.to(self.standardise.mean.dtype))
        return copy


# In place of one-hot vectors a batch has the codes of its labels, and each label column has a table
# of learnt vectors; those of a vertex or an edge are summed over the columns, as in OGB's encoders.


class LabelEmbedding(nn.Module):
    r"""Sum of one learnt vector per label column: :math:`x_i = \sum_c T_c[\text{label}_{ic}]`.

    Code −1, an unknown label, adds nothing.
    """

    first: Tensor

    def __init__(self, sizes: Sequence[int], size: int) -> None:
        super().__init__()
        tables = [nn.init.xavier_uniform_(torch.empty(s, size)) for s in sizes]  # as OGB does
        self.table = nn.Parameter(torch.cat(tables))  # (K, size): all columns, one below the other
        first = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.register_buffer("first", first, persistent=False)

    def forward(self, codes: Int[Tensor, "V L"]) -> Float[Tensor, "V F"]:
        """The vector of each row of codes."""
        return self.vectors(codes).sum(1)

    def vectors(self, codes: Int[Tensor, "V L"]) -> Float[Tensor, "V L F"]:
        """The vector of each code, one for each column; zero for an unknown label."""
        known = codes >= 0
        rows = torch.where(known, codes + self.first, 0)
        return nn.functional.embedding(rows, self.table) * known[..., None]

    def one_hot(self, codes: Int[Tensor, "V L"]) -> Float[Tensor, "V K"]:
        """The rows such that ``one_hot(codes) @ table`` is ``forward(codes)``."""
        known = codes >= 0
        rows = torch.where(known, codes + self.first, -1)  # (V, L)
        place = torch.arange(len(self.table), device=codes.device)
        return (rows[..., None] == place).sum(1).to(self.table.dtype)


class EmbedVertices(nn.Module):
    """A batch whose ``x`` begins with the vectors of its vertex labels."""

    def __init__(self, embedding: LabelEmbedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, batch: GraphBatch) -> GraphBatch:
        """A shallow copy of the batch, with vectors in place of codes.

        Raises:
            ValueError: the batch carries no codes.
        """
        x = self.embedding(_codes(batch, "label"))  # (V, F)
        if getattr(batch, "x", None) is not None:
            x = torch.cat([x, batch.x.to(x.dtype)], dim=1)
        copy = batch.__copy__()
        copy.x = x
        return copy


class EmbeddedEdges(nn.Module):
    r"""Aligned edge attributes of embedded labels: :math:`D^\top A_c D` for each channel c.

    Alignment is linear, so the aligned vectors are the aligned one-hot labels times the table:
    the number of channels that are aligned is that of the labels, whatever the vectors' length.
    """

    def __init__(self, embedding: LabelEmbedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, d: Float[Tensor, "V P"], batch: GraphBatch) -> Float[Tensor, "B P P Fe"]:
        """The channels of the labels, then those of continuous attributes if there are any.

        Raises:
            ValueError: the batch carries no codes.
        """
        weights = self.embedding.one_hot(_codes(batch, "edge_label"))  # (E, K)
        more = getattr(batch, "edge_attr", None)
        if more is not None:
            weights = torch.cat([weights, more.to(weights.dtype)], dim=1)
        aligned = align_edge_attributes(d, batch.edge_index, weights, batch.ptr, canonical=True)
        table = self.embedding.table.to(d.dtype)  # (K, Fe)
        count = len(table)
        return torch.cat([aligned[..., :count] @ table, aligned[..., count:]], dim=-1)


class AlignedDistances(nn.Module):
    r"""Aligned matrices :math:`D^\top G_c D` of distances, spread over Gaussian bins.

    .. math:: (G_c)_{uv} = \sum_k m_{kc} \exp\left(
        -\frac{(\|x_u - x_v\| - c_k)^2}{2 w^2}\right) \text{ for } u \ne v

    The centres :math:`c_k` go from 0 to ``furthest`` in steps of w; mixtures m are learnt. Mixing
    before aligning costs less time and parameters of the head than aligning every bin.

    Args:
        bins: number of bins.
        furthest: centre of the last one, in the unit of the positions.
        channels: number of mixtures.
    """

    def __init__(self, bins: int, furthest: float, channels: int) -> None:
        super().__init__()
        self.bins, self.furthest = bins, furthest
        self.mixtures = nn.Parameter(torch.empty(bins, channels))
        nn.init.uniform_(self.mixtures, -(bins**-0.5), bins**-0.5)

    def forward(self, d: Float[Tensor, "V P"], batch: GraphBatch) -> Float[Tensor, "B P P C"]:
        """The matrices of each graph; a batch without vertices needs no positions."""
        pos = d.new_zeros(0, 1) if len(d) == 0 else batch.pos
        return align_distances(d, pos, batch.ptr, self.weigh, batch.get("largest"))

    def weigh(self, distance: Float[Tensor, "v N"]) -> Float[Tensor, "v N C"]:
        """The mixtures of the bins of each distance."""
        step = self.furthest / max(self.bins - 1, 1)
        steps = torch.arange(self.bins, device=distance.device, dtype=distance.dtype)
        bins = torch.exp(-0.5 * (distance[..., None] / step - steps).square())  # (v, N, bins)
        return bins @ self.mixtures.to(distance.dtype)


def _codes(batch: GraphBatch, field: str) -> Int[Tensor, "rows L"]:
    codes = getattr(batch, field, None)
    if not isinstance(codes, Tensor):
        raise ValueError(
            f"this network embeds {'edge' if field == 'edge_label' else 'vertex'} labels, but the "
            f"batch has no codes in {field}: make it from a Collection with codes=True"
        )
    return codes


class LinearEncoder(nn.Module):
    r"""The paper's fully-connected layer :math:`\tilde Q = g(Q H + b)`, with g = ReLU.

    Args:
        features: size F of a vertex's features.
        hidden: size H of its hidden vector.
        scale: applied to the features first; none by default.
        activation: the function g.

    Attributes:
        by_itself: whether a vertex is encoded without the others, so that equal ones are equal.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        scale: nn.Module | None = None,
        activation: Callable[[Tensor], Tensor] = torch.relu,
    ) -> None:
        super().__init__()
        self.scale = scale or nn.Identity()
        self.activation = activation
        self.linear = VertexLinear(features, hidden)
        scales = (nn.Identity, LogScale, Standardise, nn.Sequential)
        known = all(isinstance(part, scales) for part in self.scale.modules())
        self.by_itself = known and type(self) is LinearEncoder

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
    ) -> Float[Tensor, "V H"]:
        """Encodes each vertex by itself; edges are not used."""
        return self.activation(self.linear(self.scale(x)))


class GCNEncoder(nn.Module):
    r"""Graph convolutions (Kipf & Welling).

    .. math:: X' = g(\hat D^{-1/2} (A + I) \hat D^{-1/2} X W)

    Args:
        features: size F of a vertex's features.
        hidden: size H of its hidden vector.
        layers: number of rounds of message passing.
        scale: applied to the features first; none by default.
    """

    def __init__(
        self, features: int, hidden: int, layers: int = 3, scale: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.scale = scale or nn.Identity()
        sizes = [features, *[hidden] * layers]
        self.linears = nn.ModuleList(VertexLinear(a, b) for a, b in pairwise(sizes))

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
    ) -> Float[Tensor, "V H"]:
        """Encodes each vertex with its neighbourhood; edges must be canonical."""
        x = self.scale(x)
        degree = propagate(torch.ones_like(x[:, :1]), edge_index, canonical=True)  # (V, 1)
        norm = torch.rsqrt(degree + 1)
        for layer in self.linears:
            assert isinstance(layer, VertexLinear)
            message = norm * vertex_linear(x, layer.weight)  # (V, H)
            total = propagate(message, edge_index, canonical=True) + message
            x = torch.relu(norm * total + layer.bias)
        return x


class GINEncoder(nn.Module):
    r"""Graph isomorphism network (Xu et al.) with ε = 0, or 1 where vertices have loops.

    .. math:: x_i' = \text{MLP}((1 + \varepsilon) x_i + \sum_{j \in N(i)} x_j)

    Each MLP is linear, batch normalisation, ReLU, linear, ReLU, as in the GIN paper. The first has
    no bias: the normalisation would take it away, and Adam would follow the rounding of a gradient
    that is zero.

    Args:
        features: size F of a vertex's features.
        hidden: size H of its hidden vector.
        layers: number of rounds of message passing.
        scale: applied to the features first; none by default.
        loops: whether every vertex is also its own neighbour.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        layers: int = 3,
        scale: nn.Module | None = None,
        loops: bool = False,
    ) -> None:
        super().__init__()
        self.scale = scale or nn.Identity()
        self.own_weight = 2 if loops else 1
        sizes = [features, *[hidden] * layers]
        self.inner = nn.ModuleList(VertexLinear(a, b, bias=False) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(VertexBatchNorm(hidden, relu=True) for _ in range(layers))
        self.outer = nn.ModuleList(VertexLinear(hidden, hidden) for _ in range(layers))

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
    ) -> Float[Tensor, "V H"]:
        """Encodes each vertex with its neighbourhood; edges must be canonical."""
        x = self.scale(x)
        for inner, norm, outer in zip(self.inner, self.norms, self.outer, strict=True):
            total = self.own_weight * x + propagate(x, edge_index, canonical=True)
            hidden = norm(inner(total), ptr[-1])  # (V, H)
            x = torch.relu(outer(hidden))
        return x


MESSAGE_PASSING = {"gcn": GCNEncoder, "gin": GINEncoder}
"""Encoders that read neighbourhoods, by the value of the setting ``encoder``."""


class VertexNetwork(nn.Module):
    r"""The network φ of :math:`D^\top \phi(X)`: encodes vertices before they are aligned.

    Two layers of linear, batch normalisation and ReLU; then residual rounds of messages:

    .. math:: h_i \leftarrow h_i + \text{ReLU}\left(\text{norm}\left(
        W \left(h_i + \textstyle\sum_{j \in N(i)} h_j\right)\right)\right)

    Linear layers have no bias, which the following normalisation would remove.

    Args:
        features: size F of a vertex's features.
        hidden: number H of units.
        rounds: number of rounds of messages.
        drop: share of the messages dropped in training.
        scale: applied to the features first; none by default.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        rounds: int = 0,
        drop: float = 0.0,
        scale: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.scale = scale or nn.Identity()
        sizes = [features, *[hidden] * (2 + rounds)]
        self.linears = nn.ModuleList(VertexLinear(a, b, bias=False) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(VertexBatchNorm(hidden, relu=True) for _ in self.linears)
        self.drops = nn.ModuleList(dropout(drop) for _ in range(rounds))

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
    ) -> Float[Tensor, "V H"]:
        """Encodes each vertex, with its neighbourhood if there are rounds; edges are canonical."""
        x = self.scale(x)
        layers = list(zip(self.linears, self.norms, strict=True))
        for linear, norm in layers[:2]:
            x = norm(linear(x), ptr[-1])  # (V, H)
        for (linear, norm), drop_units in zip(layers[2:], self.drops, strict=True):
            total = x + propagate(x, edge_index, canonical=True)
            x = x + drop_units(norm(linear(total), ptr[-1]))
        return x


class EncodeVertices(nn.Module):
    """Adds the field ``encoded`` to a batch: its vertices, encoded by φ.

    Args:
        network: the network φ.
        features: selects the features of a batch that φ reads.
    """

    def __init__(
        self, network: VertexNetwork, features: Callable[[GraphBatch], Float[Tensor, "V F"]]
    ) -> None:
        super().__init__()
        self.network, self.features = network, features

    def forward(self, batch: GraphBatch) -> GraphBatch:
        """A shallow copy of the batch with one more field."""
        x = self.features(batch).to(next(self.network.parameters()).dtype)
        x = nn.functional.pad(x, (0, 0, 0, 1))  # (V + 1, F): as many rows as permutations encode
        copy = batch.__copy__()
        copy.encoded = self.network(x, batch.edge_index, batch.ptr)[:-1]  # (V, H)
        return copy


class DropAttributes(nn.Module):
    """A batch whose vertex attributes are dropped at random in training."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.drop = dropout(p)

    def forward(self, batch: GraphBatch) -> GraphBatch:
        """A shallow copy of the batch with other attributes."""
        copy = batch.__copy__()
        copy.x = self.drop(batch.x)
        return copy


class Dropout(nn.Module):
    r"""Sets a share p of the units to 0 in training and scales the others by :math:`1 / (1 - p)`.

    The units that are dropped are a function of the seed, the number of training steps and the
    place of a unit. So a network drops the same units alone and in a stack of many, before and
    after an interruption, on every device, and in a CUDA graph, which replays the counting of
    steps. The network that it is part of counts its training steps: see :func:`count_step`.
    """

    seed: Tensor
    step: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        seed = torch.empty((), dtype=torch.long).random_(1 << 32)  # randint would load sympy
        self.register_buffer("seed", seed)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """The units that remain; all of them outside training."""
        if not self.training:
            return x
        return drop(x, self.p, self.seed, self.step)


def dropout(p: float) -> nn.Module:
    """A :class:`Dropout`, or nothing for p = 0."""
    return Dropout(p) if p else nn.Identity()


@torch.no_grad()
def count_step(modules: Iterable[nn.Module], vertices: Int[Tensor, ""]) -> None:
    """Counts a training step: the next one will drop other units.

    A stack of networks trains until the last of them has seen its graphs. An empty mini-batch is
    not a step, so that a network in a stack drops the units that it would drop alone.

    Args:
        modules: parts of a network; those that are no :class:`Dropout` do not count.
        vertices: number of vertices of the mini-batch.
    """
    for module in modules:
        if isinstance(module, Dropout):
            module.step.add_((vertices > 0).long())
