"""What a dataset offers a system, and the refusal of what would not fit into memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from softperm.data.collection import Collection

GIB = 2**30
MEMORY_LIMIT = 24 * GIB
"""Bytes that a system may need for one training step, unless it is told otherwise."""


class TooLarge(ValueError):
    """A batch that a system cannot process within its memory limit."""


def check_memory(system: str, needed: int, limit: int, sizes: Tensor, remedy: str) -> None:
    """Refuses a batch before it is built.

    Args:
        system: name of the system.
        needed: bytes that the training step would need.
        limit: bytes that it may need.
        sizes: vertices of each graph of the batch.
        remedy: what to do instead.

    Raises:
        TooLarge: more would be needed than is allowed.
    """
    if needed > limit:
        vertices = max([0, *sizes.tolist()])
        raise TooLarge(
            f"{system} would need about {needed / GIB:.1f} GiB for a batch whose largest graph has "
            f"{vertices:,} vertices, and may use {limit / GIB:.1f} GiB: {remedy}"
        )


@dataclass(frozen=True)
class DataShape:
    """Sizes and statistics from which a system is built.

    Attributes:
        outputs: number C of outputs.
        attribute_size: length F of a vertex's attributes in a batch; 0 for none.
        edge_attribute_size: length d_e of an edge's attributes in a batch; 0 for none.
        largest: vertices of the largest training graph.
        size_percentiles: number of vertices below which 0, 1, …, 100 % of the graphs lie.
        degree_counts: how many vertices have degree 0, 1, 2, …
        continuous: whether vertices have attributes that are not one-hot labels.
        structure_size: number of structural features.
        weighted: whether edges carry weights; no system here reads them.
        positions: whether batches carry positions of vertices.
        label_sizes: vocabularies of vertex labels that batches carry as codes; none by default.
        edge_label_sizes: the same of edge labels.
        structure_mean: mean of each structural feature over the vertices.
        structure_std: standard deviation of each structural feature over the vertices.
    """

    outputs: int
    attribute_size: int
    edge_attribute_size: int
    largest: int
    size_percentiles: tuple[float, ...]
    degree_counts: tuple[int, ...]
    continuous: bool = False
    structure_size: int = 2
    weighted: bool = False
    positions: bool = False
    label_sizes: tuple[int, ...] = ()
    edge_label_sizes: tuple[int, ...] = ()
    structure_mean: tuple[float, ...] = (0.0, 0.0)
    structure_std: tuple[float, ...] = (1.0, 1.0)

    @classmethod
    def of(
        cls, collection: Collection, outputs: int, index: Int[Tensor, " b"] | None = None
    ) -> DataShape:
        """The shape of a collection.

        Args:
            collection: the graphs.
            outputs: number C of outputs.
            index: the training graphs, whose sizes and degrees count; all by default.
        """
        chosen = torch.arange(len(collection)) if index is None else index.cpu()
        sizes = collection.sizes.cpu()
        member = torch.zeros(len(sizes), dtype=torch.bool)
        member[chosen] = True
        structure = collection.structure.cpu()[torch.repeat_interleave(member, sizes)]  # (V, S)
        degrees = structure[:, 0]
        percent = torch.quantile(sizes[chosen].double(), torch.linspace(0, 1, 101).double())
        return cls(
            outputs=outputs,
            attribute_size=collection.attribute_size,
            edge_attribute_size=collection.edge_attribute_size,
            largest=int(sizes[chosen].max()),
            size_percentiles=tuple(percent.tolist()),
            degree_counts=tuple(torch.bincount(degrees.long()).tolist()),
            continuous=collection.x is not None,
            structure_size=collection.structure.shape[1],
            weighted=collection.edge_weight is not None,
            positions=getattr(collection, "position", None) is not None,
            label_sizes=collection.label_sizes if collection.codes else (),
            edge_label_sizes=collection.edge_label_sizes if collection.codes else (),
            structure_mean=tuple(structure.double().mean(0).tolist()),
            structure_std=tuple(structure.double().std(0, correction=0).tolist()),
        )

    @property
    def vertex_size(self) -> int:
        """Length of what :func:`vertex_features` gives: attributes, or the degree."""
        return self.attribute_size or 1

    @property
    def edge_size(self) -> int:
        """Length of what :func:`edge_features` gives: attributes, or a constant."""
        return self.edge_attribute_size or 1
