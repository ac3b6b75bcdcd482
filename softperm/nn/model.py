"""π-GNN: a soft permutation per graph, aligned matrices, a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.nn import permutation as perm
from softperm.nn.alignment import align_adjacency, align_attributes, align_edge_attributes
from softperm.nn.embeddings import EmbeddedEdges, EmbedVertices, LabelEmbedding
from softperm.nn.encoders import GCNEncoder, GINEncoder, LinearEncoder, LogScale, Standardise
from softperm.nn.heads import ConvHead, MLPHead
from softperm.nn.model_folder import FolderError, read_folder, write_folder
from softperm.nn.settings import ModelConfig

View = Callable[[Float[Tensor, "V P"], GraphBatch], Float[Tensor, "B P ..."]]


def adjacency_view(d: Float[Tensor, "V P"], batch: GraphBatch) -> Float[Tensor, "B P P"]:
    """DᵀAD, every edge of weight 1."""
    return align_adjacency(d, batch.edge_index, batch.ptr, canonical=True)


def weighted_adjacency_view(d: Float[Tensor, "V P"], batch: GraphBatch) -> Float[Tensor, "B P P"]:
    """DᵀAD with the edges' weights."""
    return align_adjacency(d, batch.edge_index, batch.ptr, batch.edge_weight, canonical=True)


def attribute_view(d: Float[Tensor, "V P"], batch: GraphBatch) -> Float[Tensor, "B P F"]:
    """DᵀX."""
    return align_attributes(d, batch.x, batch.ptr)


def edge_attribute_view(d: Float[Tensor, "V P"], batch: GraphBatch) -> Float[Tensor, "B P P Fe"]:
    """DᵀA_cD for each channel c of the edge attributes."""
    return align_edge_attributes(d, batch.edge_index, batch.edge_attr, batch.ptr, canonical=True)


class PiGNN(nn.Module):
    """The network of the paper: learns D for each graph, and predicts from the aligned graph.

    Args:
        permutation: gives the soft permutation D of each graph.
        views: aligned matrices that D makes of a graph; they may have parameters.
        head: outputs from these matrices.
        config: what the network was built from, kept for :meth:`save`.
        embedding: what makes of a batch one with vectors for its labels; by default nothing does.
    """

    def __init__(
        self,
        permutation: nn.Module,
        views: Sequence[View],
        head: nn.Module,
        config: ModelConfig | None = None,
        embedding: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embedding = embedding or nn.Identity()
        self.permutation = permutation
        self.views = tuple(views)
        self.learnt_views = nn.ModuleList(view for view in views if isinstance(view, nn.Module))
        self.head = head
        self.config = config

    @property
    def capturable(self) -> bool:
        """Whether nothing in it reads tensors on the host, so that CUDA graphs can replay it."""
        return self.config is not None  # parts put together by hand may

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        return self.head(self._align(batch))  # (B, C)

    def transform(self, batch: GraphBatch) -> Float[Tensor, "B Z"]:
        """The aligned vector of each graph: vec(DᵀAD), then vec(DᵀX) and edge attributes if any."""
        return torch.cat([view.flatten(1) for view in self._align(batch)], dim=1)

    def permutations(self, batch: GraphBatch) -> list[Float[Tensor, "N P"]]:
        """The soft permutation of each graph, rows in the graph's own vertex order."""
        batch = self._read(batch)
        return list(self.permutation(batch).split(batch.ptr.diff().tolist()))

    def _read(self, batch: GraphBatch) -> GraphBatch:
        """The batch in the form that the parts take; refuses one without what they read."""
        batch = self.embedding(prepare(batch))
        if self.config is not None:
            edges = 0 if self.config.edge_label_sizes else self.config.edge_attribute_size
            for name, size in (("x", self.config.vertex_width), ("edge_attr", edges)):
                value = batch.get(name)
                found = 0 if value is None else value.shape[-1]
                if size and found != size:
                    raise ValueError(
                        f"the network reads {size} numbers in {name} of each "
                        f"{'vertex' if name == 'x' else 'edge'}; the batch has {found or 'none'}"
                    )
        return batch

    def _align(self, batch: GraphBatch) -> list[Float[Tensor, "B P ..."]]:
        """The aligned matrices of each graph; in mixed precision still with 32 bits."""
        batch = prepare(batch)
        with torch.autocast(batch.ptr.device.type, enabled=False):
            batch = self._read(batch)
            d = self.permutation(batch)  # (V, P)
            return [view(d, batch) for view in self.views]  # (B, P, P), (B, P, F), …

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


def build(config: ModelConfig, seed: int, statistics: tuple[Tensor, Tensor] | None = None) -> PiGNN:
    """A freshly initialised network.

    Args:
        config: its choices.
        seed: of the initial parameters; torch's global random state is left as it was.
        statistics: mean and standard deviation of the structural features (S,) over the training
            vertices, for ``scaling="standard"``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        permutation, views = _permutation(config, statistics), _views(config)
        head = _head(config)
        embedding = None
        if config.label_sizes:
            embedding = EmbedVertices(LabelEmbedding(config.label_sizes, config.embedding_size))
        return PiGNN(permutation, views, head, config, embedding)


def rebuild(values: Any, tensors: Mapping[str, Tensor], place: str) -> PiGNN:
    """The network of a configuration and tensors read from a folder.

    Raises:
        FolderError: they do not belong together.
    """
    try:
        model = build(ModelConfig.from_dict(values), seed=0)
        model.load_state_dict(dict(tensors))
    except (TypeError, ValueError, RuntimeError) as problem:
        detail = " ".join(str(problem).split())
        raise FolderError(f"{place}: its configuration and weights do not fit: {detail}") from None
    return model.eval()


def _permutation(config: ModelConfig, statistics: tuple[Tensor, Tensor] | None) -> nn.Module:
    def normaliser() -> nn.Module:
        if config.normaliser == "softmax":
            return perm.Softmax()
        return perm.Sinkhorn(config.iterations, config.tolerance)

    def assign(
        encoder: nn.Module, features: Callable[[GraphBatch], Tensor]
    ) -> perm.SoftPermutation:
        return perm.SoftPermutation(
            encoder,
            config.latent_vertices,
            config.hidden,
            features=features,
            capacity=config.capacity,
            dustbin=config.dustbin,
            normaliser=normaliser(),
            scale=config.latent_scale,
        )

    scale = _scale(config, statistics)
    if config.encoder == "linear":
        structural = LinearEncoder(config.structure_size, config.hidden, scale)
        features = perm.structure
    else:
        kind = {"gcn": GCNEncoder, "gin": GINEncoder}[config.encoder]
        size = config.structure_size + config.vertex_width
        structural = kind(size, config.hidden, config.layers, scale)
        features = perm.structure_and_attributes if config.vertex_width else perm.structure
    adjacency = assign(structural, features)
    if not config.vertex_width:
        return adjacency
    encoder = LinearEncoder(config.vertex_width, config.hidden)
    return perm.MixedPermutation(adjacency, assign(encoder, perm.attributes))


def _scale(config: ModelConfig, statistics: tuple[Tensor, Tensor] | None) -> nn.Module:
    """Scaling of the leading structural features; attributes behind them pass as they are."""
    size = config.structure_size
    if config.scaling == "raw":
        return nn.Identity()
    if config.scaling == "log":
        return LogScale(size)
    mean, std = statistics or (torch.zeros(size), torch.ones(size))
    return Standardise(mean, std)


def _views(config: ModelConfig) -> list[View]:
    views: list[View] = [weighted_adjacency_view if config.weighted else adjacency_view]
    if config.vertex_width:
        views.append(attribute_view)
    if config.edge_label_sizes:
        embedding = LabelEmbedding(config.edge_label_sizes, config.edge_embedding_size)
        views.append(EmbeddedEdges(embedding))
    elif config.edge_attribute_size:
        views.append(edge_attribute_view)
    return views


def _head(config: ModelConfig) -> nn.Module:
    p = config.latent_vertices
    # Entries of one latent vertex in each view.
    widths = [width for width in (p, config.vertex_width, p * config.edge_width) if width]
    last = {"final": config.head_final, "normalise": config.head_norm}
    if config.head == "conv":
        return ConvHead(widths, p, config.outputs, **last)
    return MLPHead([p * width for width in widths], config.outputs, config.head_hidden, **last)
