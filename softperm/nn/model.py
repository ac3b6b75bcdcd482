"""π-GNN: a soft permutation per graph, aligned matrices, a head.

Because every graph is aligned to the same latent vertices, position has a meaning: heads flatten
aligned matrices into vectors, or read them like images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.errors import counted, one_line
from softperm.nn import permutation as perm
from softperm.nn.encoders import (
    MESSAGE_PASSING,
    AlignedDistances,
    DropAttributes,
    EmbeddedEdges,
    EmbedVertices,
    EncodeVertices,
    LabelEmbedding,
    LinearEncoder,
    LogScale,
    Moments,
    Standardise,
    StandardiseAttributes,
    VertexNetwork,
    VertexStatistics,
    count_step,
    dropout,
)
from softperm.nn.model_folder import FolderError, read_folder, write_folder
from softperm.nn.permutation import (
    Sharpness,
    align_adjacency,
    align_attributes,
    align_edge_attributes,
)
from softperm.ops.inference import forward_only, normalised_linear
from softperm.ops.layers import Linear
from softperm.ops.transport import sinkhorn, softmax
from softperm.settings import ModelConfig

Features = Callable[[GraphBatch], Float[Tensor, "V F"]]
View = Callable[[Float[Tensor, "V P"], GraphBatch], Float[Tensor, "B P ..."]]

MANY_GRAPHS = 128  # of a batch, for which the weights of the head's first layers are rearranged


def adjacency_view(
    d: Float[Tensor, "V P"], batch: GraphBatch, power: int = 1, weighted: bool = False
) -> Float[Tensor, "B P P"]:
    """DᵀAD, or a power of A, with edges of weight 1 unless ``weighted``."""
    edges = batch.edge_index, batch.ptr, batch.edge_weight if weighted else None
    return align_adjacency(d, *edges, power=power, canonical=True)


def attribute_view(d: Float[Tensor, "V P"], batch: GraphBatch) -> Float[Tensor, "B P F"]:
    """DᵀX; where equal vertices are known, those of a graph with the same attributes as one row."""
    rows = (batch.get("equal_vertices") or {}).get("attributes")
    if rows is None:
        return align_attributes(d, batch.x, batch.ptr)
    return align_attributes(rows.collect(d), rows.select(batch.x), rows.ptr)


def encoded_view(d: Float[Tensor, "V P"], batch: GraphBatch) -> Float[Tensor, "B P H"]:
    """Dᵀφ(X)."""
    return align_attributes(d, batch.encoded, batch.ptr)


def edge_attribute_view(d: Float[Tensor, "V P"], batch: GraphBatch) -> Float[Tensor, "B P P Fe"]:
    """DᵀA_cD for each channel c of the edge attributes."""
    return align_edge_attributes(d, batch.edge_index, batch.edge_attr, batch.ptr, canonical=True)


class MLPHead(nn.Module):
    """Normalised vectors, one two-layer MLP each, joined by a final two-layer MLP (Section 5.2).

    Args:
        sizes: length of each aligned vector.
        outputs: number C of outputs.
        hidden: layers of each vector's MLP; the paper's are 256 and 128.
        final: hidden size of the final MLP.
        normalise: whether LayerNorm comes first, as in the paper. It removes the size of a graph,
            which is the sum of a vector's entries.
        drop: share of aligned entries and hidden units dropped in training.
        entries: functions that give of each vector the order of its entries and their equal ones,
            with which :func:`softperm.ops.inference.normalised_linear` is quick; see
            :func:`view_entries`. By default no two entries are known to be equal.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        outputs: int,
        hidden: Sequence[int] = (256, 128),
        final: int = 64,
        normalise: bool = True,
        drop: float = 0.0,
        entries: Sequence[Callable[[], Int[np.ndarray, "2 _"]]] | None = None,
    ) -> None:
        super().__init__()
        if entries is None:
            entries = [partial(view_entries, 1, size, symmetric=False) for size in sizes]
        self.entries = tuple(entries)
        self.branches = nn.ModuleList(_mlp([size, *hidden], drop, normalise) for size in sizes)
        joined = len(sizes) * hidden[-1]
        self.final = nn.Sequential(_mlp([joined, final], drop), Linear(final, outputs))

    def forward(self, views: Sequence[Float[Tensor, "B ..."]]) -> Float[Tensor, "B C"]:
        """Outputs from the aligned matrices of each graph."""
        of_view = zip(self.branches, views, self.entries, strict=True)
        vectors = [_branch(b, view.flatten(1), entries) for b, view, entries in of_view]
        return self.final(torch.cat(vectors, dim=1))  # of vectors (B, 128)


def _branch(
    branch: nn.Module, rows: Float[Tensor, "B Z"], entries: Callable[[], Int[np.ndarray, "2 T"]]
) -> Float[Tensor, "B H"]:
    """The MLP of one view, its first layer joined with LayerNorm where that is quicker."""
    norm, first, rest = _split(branch)
    quick = not branch.training and rows.shape == (len(rows), first.in_features)
    if not quick or len(rows) < MANY_GRAPHS or not forward_only(rows, first.weight):
        return branch(rows)  # also for its error about rows of another length
    return rest(normalised_linear(rows, norm, first, entries()))


def _split(branch: nn.Module) -> tuple[nn.LayerNorm | None, Linear, nn.Sequential]:
    """LayerNorm if there is one, the first linear layer, and the layers after it."""
    layers = list(branch.children())
    norm = layers[0] if isinstance(layers[0], nn.LayerNorm) else None
    place, first = next((k, each) for k, each in enumerate(layers) if isinstance(each, Linear))
    return norm, first, nn.Sequential(*layers[place + 1 :])


@cache
def view_entries(latent_vertices: int, width: int, symmetric: bool) -> Int[np.ndarray, "2 T"]:
    """The order in which the entries of an aligned matrix are read, and their mirror images.

    Entries of one attribute are beside each other, because they are zero together.

    Args:
        latent_vertices: number P of rows of the aligned matrix.
        width: entries of a row: F, or P · d_e if the matrix is symmetric.
        symmetric: whether entries (i, j) and (j, i) are equal.

    Returns:
        Two positions in the flattened matrix for each entry, the same ones for a single entry.

    >>> view_entries(2, 4, symmetric=True).tolist()  # of a (2, 2, 2) matrix
    [[0, 2, 6, 1, 3, 7], [0, 4, 6, 1, 5, 7]]
    """
    p = latent_vertices
    place = np.arange(p * width).reshape(p, width)
    if not symmetric:
        return np.stack([place.T.ravel()] * 2)
    i, j = np.triu_indices(p)
    place = place.reshape(p, p, -1)  # (P, P, d_e)
    return np.stack([place[i, j].T.ravel(), place[j, i].T.ravel()])


class ConvHead(nn.Module):
    """Filters over runs of consecutive latent vertices, as over an image (Section 4.1).

    A filter covers ``height`` latent vertices with all their entries, giving a feature map of
    length P − height + 1 for each; the largest value of each map goes on to fully-connected layers.

    Args:
        channels: entries of one latent vertex in each aligned matrix: P, F, or P · d_e.
        latent_vertices: number P of latent vertices.
        outputs: number C of outputs.
        filters: number of filters for each matrix.
        height: latent vertices that a filter covers; at most P.
        final: hidden size of the fully-connected layers.
        normalise: whether LayerNorm comes first; see :class:`MLPHead`.
        drop: share of aligned entries and hidden units dropped in training.
    """

    def __init__(
        self,
        channels: Sequence[int],
        latent_vertices: int,
        outputs: int,
        filters: int = 128,
        height: int = 3,
        final: int = 64,
        normalise: bool = True,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        height = min(height, latent_vertices)
        self.norms = nn.ModuleList(
            nn.LayerNorm([latent_vertices, c]) if normalise else nn.Identity() for c in channels
        )
        self.convolutions = nn.ModuleList(nn.Conv1d(c, filters, height) for c in channels)
        joined = len(channels) * filters
        self.final = nn.Sequential(_mlp([joined, final], drop), Linear(final, outputs))

    def forward(self, views: Sequence[Float[Tensor, "B P ..."]]) -> Float[Tensor, "B C"]:
        """Outputs from the aligned matrices of each graph."""
        pooled = []
        for norm, convolution, view in zip(self.norms, self.convolutions, views, strict=True):
            image = norm(view.flatten(2)).mT  # (B, channels, P)
            pooled.append(torch.relu(convolution(image)).amax(dim=2))  # (B, filters)
        return self.final(torch.cat(pooled, dim=1))


def _as_vectors(views: Sequence[Float[Tensor, "B P ..."]]) -> Float[Tensor, "B Z"]:
    """The aligned matrices of each graph as one vector."""
    return torch.cat([view.flatten(1) for view in views], dim=1)


def _mlp(sizes: Sequence[int], drop: float, normalise: bool = False) -> nn.Sequential:
    """Linear layers, each after dropout and followed by ReLU; optionally LayerNorm first."""
    layers: list[nn.Module] = [nn.LayerNorm(sizes[0])] if normalise else []
    for a, b in pairwise(sizes):
        layers += [dropout(drop)] if drop else []
        layers += [Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)


class PiGNN(nn.Module):
    """The network of the paper: learns D for each graph and predicts from the aligned graph.

    Args:
        permutation: gives the soft permutation D of each graph, or K of them.
        views: functions that compute aligned matrices from D; they may have parameters.
        head: outputs from these matrices.
        config: the configuration from which the network was built; :meth:`save` needs it.
        standardise: scales the attributes of a batch; leaves them as they are by default.
        embedding: adds the vectors of labels to a batch; none by default.
        drop: drops attributes of a batch in training; none by default.
        encode: adds encoded vertices to a batch; none by default.
    """

    def __init__(
        self,
        permutation: nn.Module,
        views: Sequence[View],
        head: nn.Module,
        config: ModelConfig | None = None,
        *,
        standardise: nn.Module | None = None,
        embedding: nn.Module | None = None,
        drop: nn.Module | None = None,
        encode: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.standardise = standardise or nn.Identity()
        self.embedding = embedding or nn.Identity()
        self.drop = drop or nn.Identity()
        self.encode = encode or nn.Identity()
        self.permutation = permutation
        self.views = tuple(views)
        self.learnt_views = nn.ModuleList(view for view in views if isinstance(view, nn.Module))
        self.head = head
        self.config = config

    @property
    def changes_attributes(self) -> bool:
        """Whether permutations read other attributes than those of a batch, up to fixed scaling."""
        fixed = isinstance(self.standardise, nn.Identity | StandardiseAttributes)
        return not fixed or any(not isinstance(p, nn.Identity) for p in (self.embedding, self.drop))

    @property
    def capturable(self) -> bool:
        """Whether CUDA graphs can replay it, because nothing in it reads tensors on the host."""
        return self.config is not None  # parts put together by hand may

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        outputs = self.head(self._align(batch)[1])  # (B, C)
        if self.training:
            count_step(self.modules(), batch.ptr[-1])
        return outputs

    def transform(self, batch: GraphBatch) -> Float[Tensor, "B Z"]:
        """The aligned vector of each graph: vec(DᵀAD), then vec(DᵀX) and edge attributes if any.

        Distances come last. With several permutations, all of these for the first one, then
        for the second, and so on.
        """
        return _as_vectors(self._align(batch)[1])

    def transform_and_predict(
        self, batch: GraphBatch
    ) -> tuple[Float[Tensor, "B Z"], Float[Tensor, "B C"]]:
        """Aligned vectors and outputs from one alignment; see :meth:`transform`."""
        views = self._align(batch)[1]
        return _as_vectors(views), self.head(views)

    def permutations(self, batch: GraphBatch) -> list[Float[Tensor, "*K N P"]]:
        """The soft permutation of each graph, rows in the graph's own vertex order.

        With several permutations side by side, K of them for each graph.
        """
        batch = self._read(batch)
        return list(self.permutation(batch).split(batch.ptr.diff().tolist(), dim=-2))

    def sharpness(self, batch: GraphBatch) -> Sharpness:
        """How far the soft permutations of a batch are from uniform ones."""
        plans, views = self._align(batch)
        return Sharpness.of(plans, batch.ptr, views[0])

    def _align(
        self, batch: GraphBatch
    ) -> tuple[Float[Tensor, "*K V P"], list[Float[Tensor, "B P ..."]]]:
        """Permutations and aligned matrices of each graph, in float32 also with mixed precision.

        The matrices of several permutations follow one another.
        """
        batch = prepare(batch)
        kind = batch.ptr.device.type
        precise = nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
        with precise:
            batch = self._read(batch)
            d = self.permutation(batch)  # (V, P), or (K, V, P)
            plans = d.unbind() if d.ndim == 3 else [d]
            return d, [view(plan, batch) for plan in plans for view in self.views]

    def _read(self, batch: GraphBatch) -> GraphBatch:
        """A batch with attributes standardised, labels embedded and vertices encoded."""
        batch = prepare(batch)
        self._check(batch)
        return self.encode(self.drop(self.embedding(self.standardise(batch))))

    def _check(self, batch: GraphBatch) -> None:
        """Raises ValueError for a batch without the attributes that the network reads."""
        if self.config is None:
            return
        edges = 0 if self.config.edge_label_sizes else self.config.edge_attribute_size
        structure = batch.structure.shape[-1]
        if structure != self.config.structure_size:
            raise ValueError(
                f"the network reads {counted(self.config.structure_size, 'structural feature')} of "
                f"each vertex; the batch has {structure}: make it from a Collection with the "
                "features that the network was trained with"
            )
        for name, size in (("x", self.config.attribute_size), ("edge_attr", edges)):
            value = batch.get(name)
            found = 0 if value is None else value.shape[-1]
            if size and found != size:
                raise ValueError(
                    f"the network reads {counted(size, 'number')} in {name} of each "
                    f"{'vertex' if name == 'x' else 'edge'}; the batch has {found or 'none'}"
                )
        if self.config.distance_bins and len(batch.structure) and batch.get("pos") is None:
            raise ValueError(
                "the network reads distances between vertices (distance_bins), but the batch has "
                "no positions of vertices in pos"
            )

    def save(self, folder: str | Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``."""
        if self.config is None:
            raise ValueError(
                "this PiGNN was put together by hand, so no configuration can rebuild it; "
                "keep its state_dict, or build it from a ModelConfig"
            )
        write_folder(folder, {"kind": "PiGNN", "model": asdict(self.config)}, self.state_dict())

    @classmethod
    def load(cls, folder: str | Path) -> PiGNN:
        """Reads what :meth:`save` wrote; never runs code from the folder."""
        config, tensors = read_folder(folder, kind="PiGNN")
        return rebuild(config.get("model"), tensors, str(folder))


def build(config: ModelConfig, seed: int, statistics: VertexStatistics | None = None) -> PiGNN:
    """A freshly initialised network.

    Args:
        config: its choices.
        seed: of the initial parameters; torch's global random state is left as it was.
        statistics: of the training vertices; where features are standardised.
    """
    if statistics is None:  # they are loaded afterwards
        structure = Moments.neutral(config.structure_size)
        attributes = Moments.neutral(config.attribute_size)
        statistics = VertexStatistics(structure, structure, attributes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        permutations = [_permutation(config, statistics) for _ in range(config.permutation_heads)]
        views, widths, symmetric = zip(*_views(config), strict=True)
        heads = config.permutation_heads
        head = _head(config, widths * heads, symmetric * heads)
        embedding = standardise = drop = None
        if config.label_sizes:
            embedding = EmbedVertices(LabelEmbedding(config.label_sizes, config.embedding_size))
        if config.attribute_scaling == "standard" and config.attribute_size:
            standardise = StandardiseAttributes(statistics.attributes)
        if config.attribute_dropout and config.vertex_width:
            drop = DropAttributes(config.attribute_dropout)
        return PiGNN(
            permutations[0] if len(permutations) == 1 else perm.SideBySide(permutations),
            views,
            head,
            config,
            standardise=standardise,
            embedding=embedding,
            drop=drop,
            encode=_encode(config, statistics),
        )


def rebuild(values: Any, tensors: Mapping[str, Tensor], place: str) -> PiGNN:
    """The network of a configuration and tensors read from a folder.

    Raises:
        FolderError: they do not belong together.
    """
    try:
        config = ModelConfig.from_dict(values)
        _check_shapes(config, tensors)
        model = build(config, seed=0)
        model.load_state_dict(dict(tensors))
    except (TypeError, ValueError, RuntimeError) as problem:
        detail = one_line(problem)[:1000]
        raise FolderError(f"{place}: its configuration and weights do not fit: {detail}") from None
    return model.eval()


def _check_shapes(config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raises unless a network of this configuration has these tensors, before memory is allocated.

    A small file could otherwise ask for a network that no machine can hold.
    """
    repeated = ["permutation_heads", "powers"]
    repeated += ["layers"] if config.encoder != "linear" else []
    repeated += ["encoded_rounds"] if config.encodes != "none" else []
    sizes = ("structure_size", "attribute_size", "edge_attribute_size")
    limits = dict.fromkeys(repeated, len(tensors))
    limits |= dict.fromkeys(sizes, sum(tensor.numel() for tensor in tensors.values()))
    for name, limit in limits.items():
        if getattr(config, name) > limit:
            raise ValueError(f"{name} is {getattr(config, name)}, too large for the weights")
    with torch.device("meta"):  # shapes only
        build(config, seed=0).load_state_dict(dict(tensors), assign=True)


def _permutation(config: ModelConfig, statistics: VertexStatistics) -> nn.Module:
    mixed = config.permute_by == "mixed" and config.vertex_width > 0
    shared_dustbin = config.dustbin and config.shared_dustbin and mixed

    def assign(encoder: nn.Module, features: Features) -> perm.SoftPermutation:
        return perm.SoftPermutation(
            encoder,
            config.latent_vertices,
            config.hidden,
            features=features,
            capacity=config.capacity,
            dustbin=config.dustbin and not shared_dustbin,
            compare=_compare(config),
            normaliser=_normaliser(config),
            bound=config.latent_scale
            * (1 if config.latent_init == "uniform" else config.hidden**-0.5),
        )

    if config.permute_by == "encoded" and config.encodes != "none":
        projection = LinearEncoder(config.encoded_size, config.hidden, activation=nn.Identity())
        return assign(projection, perm.encoded)
    with_attributes = config.permute_by == "joint"
    if config.encoder != "linear":  # message passing also reads attributes
        with_attributes = config.permute_by != "structure"
    with_attributes = with_attributes and config.vertex_width > 0
    size = config.structure_size + (config.vertex_width if with_attributes else 0)
    features = perm.structure_and_attributes if with_attributes else perm.structure
    scale = _scale(config, statistics)
    if config.encoder == "linear":
        encoder: nn.Module = LinearEncoder(size, config.hidden, scale)
    else:
        loops = {"loops": config.encoder_loops} if config.encoder == "gin" else {}
        kind = MESSAGE_PASSING[config.encoder]
        encoder = kind(size, config.hidden, config.layers, scale, **loops)
    from_structure = assign(encoder, features)
    if not mixed:
        return from_structure
    from_attributes = assign(LinearEncoder(config.vertex_width, config.hidden), perm.attributes)
    share = config.structure_share
    return perm.MixedPermutation(from_structure, from_attributes, share, shared_dustbin)


def _compare(config: ModelConfig) -> perm.Compare:
    if config.compare == "cosine":
        return perm.CosineComparison(config.temperature, config.learn_temperature)
    return perm.relu_inner_product


def _normaliser(config: ModelConfig) -> Callable[..., Tensor]:
    if config.normaliser == "softmax":
        return softmax
    return partial(sinkhorn, iterations=config.iterations, tolerance=config.tolerance)


def _scale(config: ModelConfig, statistics: VertexStatistics) -> nn.Module:
    """Scaling of the leading structural features; attributes behind them stay as they are."""
    log = LogScale(config.structure_size)
    return {
        "raw": nn.Identity,
        "log": lambda: log,
        "standard": lambda: Standardise(statistics.structure),
        "log-standard": lambda: nn.Sequential(log, Standardise(statistics.log_structure)),
    }[config.scaling]()


def _encode(config: ModelConfig, statistics: VertexStatistics) -> nn.Module | None:
    """Encodes vertices before they are aligned; None if they are aligned as they are."""
    if config.encodes == "none":
        return None
    features, size = {
        "attributes": (perm.attributes, config.vertex_width),
        "structure": (perm.structure, config.structure_size),
        "both": (perm.structure_and_attributes, config.structure_size + config.vertex_width),
    }[config.encodes]
    scale = None if config.encodes == "attributes" else _scale(config, statistics)
    network = VertexNetwork(size, config.encoded_size, config.encoded_rounds, config.dropout, scale)
    return EncodeVertices(network, features)


def _views(config: ModelConfig) -> list[tuple[View, int, bool]]:
    """The aligned matrices; the entries of one latent vertex in each; whether it is symmetric."""
    p = config.latent_vertices
    views: list[tuple[View, int, bool]] = [
        (partial(adjacency_view, power=k, weighted=config.weighted), p, True)
        for k in range(1, config.powers + 1)
    ]
    if config.encodes != "none":
        views.append((encoded_view, config.encoded_size, False))
    elif config.vertex_width:
        views.append((attribute_view, config.vertex_width, False))
    if config.edge_label_sizes:
        embedding = LabelEmbedding(config.edge_label_sizes, config.edge_embedding_size)
        views.append((EmbeddedEdges(embedding), p * config.edge_width, True))
    elif config.edge_attribute_size:
        views.append((edge_attribute_view, p * config.edge_width, True))
    if config.distance_bins:
        distances = config.distance_bins, config.distance_range, config.distance_channels
        views.append((AlignedDistances(*distances), p * config.distance_width, True))
    return views


def _head(config: ModelConfig, widths: Sequence[int], symmetric: Sequence[bool]) -> nn.Module:
    """The head for aligned matrices with ``widths`` entries for each latent vertex."""
    p = config.latent_vertices
    last = {
        "final": config.head_final,
        "normalise": config.head_norm,
        "drop": config.dropout,
    }
    if config.head == "conv":
        return ConvHead(widths, p, config.outputs, **last)
    pairs = zip(widths, symmetric, strict=True)
    entries = [partial(view_entries, p, width, symmetric=mirrored) for width, mirrored in pairs]
    sizes = [p * width for width in widths]
    return MLPHead(sizes, config.outputs, config.head_hidden, entries=entries, **last)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a network into evaluation mode within the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
