"""Systems: networks that are trained by gradient descent, and kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from softperm.data.collection import Collection
from softperm.nn.encoders import VertexStatistics
from softperm.training.settings import TRAINING

GIB = 2**30
MEMORY_LIMIT = 24 * GIB
"""Default limit on the bytes of one training step."""


class TooLarge(ValueError):
    """A batch that would exceed the memory limit of a system."""


def check_memory(system: str, needed: int, limit: int, sizes: Tensor, remedy: str) -> None:
    """Refuses a batch that is too large before allocating anything.

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
        degree_counts: number of vertices with degree 0, 1, 2, …
        continuous: whether vertices have attributes that are not one-hot labels.
        structure_size: number of structural features.
        weighted: whether edges have weights; only π-GNN uses them.
        positions: whether batches have positions of vertices.
        label_sizes: vocabulary sizes of vertex labels that batches have as codes; none by default.
        edge_label_sizes: the same of edge labels.
        statistics: statistics of the training vertices, for networks that standardise them.
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
    statistics: VertexStatistics | None = None

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
            statistics=VertexStatistics.of(collection, chosen),
        )

    @property
    def vertex_size(self) -> int:
        """Length of what :func:`vertex_features` gives: attributes, or the degree."""
        return self.attribute_size or 1

    @property
    def edge_size(self) -> int:
        """Length of what :func:`edge_features` gives: attributes, or a constant."""
        return self.edge_attribute_size or 1


@dataclass(frozen=True)
class System:
    """A network of the comparison.

    Attributes:
        name: name in commands and records.
        title: name in tables.
        tables: tables of the paper that have it: classification, ogb, qm9.
        network: builds the network from a ``DataShape``; keyword arguments are hyper-parameters.
        grid: values of each hyper-parameter, among which validation selects.
        stackable: whether networks can be trained in a stack.
        shape_free: hyper-parameters that change no shape; networks of one stack may differ in them.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    network: Callable[..., nn.Module]
    grid: Mapping[str, tuple]
    stackable: bool = False
    shape_free: tuple[str, ...] = ()

    def build(self, shape: DataShape, settings: Mapping[str, Any], seed: int) -> nn.Module:
        """A freshly initialised network; torch's global random state is left as it was.

        Args:
            shape: sizes and statistics of the dataset.
            settings: hyper-parameters by name; those of training are ignored.
            seed: seed of the initial parameters and of dropout.

        Raises:
            ValueError: a hyper-parameter is unknown.
        """
        known = self.settings
        unknown = set(settings) - set(known) - set(TRAINING)
        if unknown:
            raise ValueError(
                f"{self.name} has the settings {', '.join(known) or 'none'}; got "
                f"{', '.join(sorted(unknown))}"
            )
        own = {key: value for key, value in settings.items() if key in known}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.network(shape, **own)

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the network's own hyper-parameters."""
        return tuple(inspect.signature(self.network).parameters)[1:]


@runtime_checkable
class KernelEstimator(Protocol):
    """An estimator on a precomputed kernel."""

    def fit(
        self, collection: Collection, index: Int[Tensor, " b"], y: Shaped[np.ndarray, " b"]
    ) -> KernelEstimator:
        """Fits the estimator to the selected graphs and their classes ``y``."""
        ...

    def predict(self, collection: Collection, index: Int[Tensor, " b"]) -> Shaped[np.ndarray, " b"]:
        """The class of each of the selected graphs."""
        ...


@dataclass(frozen=True)
class Kernel:
    """A kernel method of the comparison.

    Attributes:
        name: name in commands and records.
        title: name in tables.
        tables: tables of the paper that have it.
        machine: builds the estimator; keyword arguments are hyper-parameters.
        grid: values of each hyper-parameter, among which validation selects.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    machine: Callable[..., KernelEstimator]
    grid: Mapping[str, tuple]

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of its hyper-parameters."""
        return tuple(inspect.signature(self.machine).parameters)

    def build(self, settings: Mapping[str, Any]) -> KernelEstimator:
        """An estimator that is not fitted."""
        return self.machine(**settings)
