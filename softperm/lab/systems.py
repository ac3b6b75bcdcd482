"""All systems by name: π-GNN, its variants, and the baselines of the paper's tables.

The grids of the classification table are those of Errica et al. (ICLR 2020), the settings of the
table of the Open Graph Benchmark those of the systems' authors there. Where batches have positions
(:func:`softperm.lab.evaluation_data.with_positions`), the systems of the table of QM9 use distances
in space, as their papers do; otherwise they use the graph alone, as π-GNN does unless its setting
``distance_bins`` is given.

A baseline is declared once: its module and class or function in :mod:`softperm.lab.baselines`,
which is imported when the system is used. Arguments that a :class:`DataShape` has come from the
data; all other arguments are the system's settings, with the defaults of the class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from softperm.data.collection import Collection
from softperm.nn.encoders import VertexStatistics
from softperm.nn.model import ModelConfig, build
from softperm.settings import TRAINING
from softperm.training.tasks import Task


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
            positions="pos" in collection.extra,
            label_sizes=collection.label_sizes if collection.codes else (),
            edge_label_sizes=collection.edge_label_sizes if collection.codes else (),
            statistics=VertexStatistics.of(collection, chosen),
        )

    @property
    def features(self) -> int:
        """Length of a vertex's features in a baseline: attributes, or the degree."""
        return self.attribute_size or 1

    @property
    def edge_size(self) -> int:
        """Length of an edge's features in a baseline: attributes, or a constant."""
        return self.edge_attribute_size or 1

    @property
    def labels_alone(self) -> bool:
        """Whether all attributes of vertices are one-hot labels."""
        return self.attribute_size > 0 and not self.continuous


@dataclass(frozen=True)
class Entry:
    """What all systems of the comparison have.

    Attributes:
        name: name in commands and records.
        title: name in tables.
        tables: tables of the paper that have it, or in which it belongs: classification, ogb, qm9.
        grid: values of each hyper-parameter, among which validation selects.
        network: ``module:name`` of the class or function below ``softperm.lab.baselines`` that
            builds the network or the estimator.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    grid: Mapping[str, tuple]
    network: str = ""


@dataclass(frozen=True)
class System(Entry):
    """A network of the comparison.

    Attributes:
        fixed: arguments of the network that are no settings.
        stackable: whether networks can be trained in a stack.
        shape_free: hyper-parameters that change no shape; networks of one stack may differ in them.
        reads: the layer, or list of layers, whose input is the vector of a graph; empty if there is
            none, because outputs are sums over vertices or blocks.
        extend: ``module:name`` of a function that adds to a collection what the network would else
            compute from every batch; empty if there is nothing.
    """

    reads: str = ""
    extend: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    stackable: bool = False
    shape_free: tuple[str, ...] = ()
    random = True

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the network's own hyper-parameters."""
        return tuple(a for a in _arguments(self.network) if a not in {*_FROM_SHAPE, *self.fixed})

    @property
    def ignores(self) -> tuple[str, ...]:
        """Fields of graphs that the network does not read."""
        edges = () if "edge_size" in _arguments(self.network) else ("edge_label", "edge_attr")
        return (*edges, "edge_weight")

    def extended(self, graphs: Collection) -> Collection:
        """The graphs with everything that the network computes from them once."""
        return _load(self.extend)(graphs) if self.extend else graphs

    def build(self, shape: DataShape, settings: Mapping[str, Any], seed: int) -> nn.Module:
        """A freshly initialised network; torch's global random state is left as it was.

        Args:
            shape: sizes and statistics of the dataset.
            settings: hyper-parameters by name; those of training are ignored.
            seed: seed of the initial parameters and of dropout.

        Raises:
            ValueError: a hyper-parameter is unknown.
        """
        own = {key: value for key, value in settings.items() if key not in TRAINING}
        check_known(self, own)
        names = [name for name in _arguments(self.network) if name in _FROM_SHAPE]
        from_shape = {name: getattr(shape, name) for name in names if name not in self.fixed}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _load(self.network)(**from_shape, **self.fixed, **own)


_FROM_DATA = (
    "outputs", "structure_size", "attribute_size", "edge_attribute_size", "weighted",
    "label_sizes", "edge_label_sizes",
)  # fmt: skip


@dataclass(frozen=True)
class PiGNNSystem(System):
    """π-GNN as a system; its settings are those of ``ModelConfig``, some of them ``fixed``."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings of a recipe; the data and the variant determine all others."""
        determined = (*_FROM_DATA, *self.fixed)
        return tuple(f.name for f in fields(ModelConfig) if f.name not in determined)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raises ValueError if a setting is out of range."""
        self._config(settings, {"outputs": 1}, largest=1)

    def build(self, shape: DataShape, settings: Mapping[str, Any], seed: int) -> nn.Module:
        """A freshly initialised network.

        Args:
            shape: sizes and statistics of the training graphs.
            settings: settings of the model. The default of ``capacity`` is ``auto``, the size of
                the largest training graph; ``none`` means no padding.
            seed: seed of the initial parameters.
        """
        if unknown := sorted(set(settings) - set(self.settings)):
            raise ValueError(f"{self.title} has no setting {', '.join(unknown)}")
        from_data = {name: getattr(shape, name) for name in _FROM_DATA}
        config = self._config(settings, from_data, largest=int(shape.size_percentiles[-1]))
        return build(config, seed, shape.statistics)

    def _config(
        self, settings: Mapping[str, Any], from_data: Mapping[str, Any], largest: int
    ) -> ModelConfig:
        words = {"auto": largest, "none": None}
        capacity = settings.get("capacity", "auto")
        capacity = words[capacity] if isinstance(capacity, str) and capacity in words else capacity
        return ModelConfig.from_dict({**settings, "capacity": capacity, **self.fixed, **from_data})


@runtime_checkable
class ClassicalEstimator(Protocol):
    """An estimator that is fitted at once, without epochs."""

    def fit(
        self,
        collection: Collection,
        index: Int[Tensor, " b"],
        y: Shaped[Tensor, "b ..."],
        task: Task,
    ) -> ClassicalEstimator:
        """Fits the estimator to the selected graphs and their targets ``y``, and to no others."""
        ...

    def outputs(self, collection: Collection, index: Int[Tensor, " b"]) -> Float[Tensor, "b C"]:
        """Outputs for the selected graphs, which the task reads as it reads a network's."""
        ...


@dataclass(frozen=True)
class ClassicalSystem(Entry):
    """A kernel method or a random forest of the comparison.

    Attributes:
        kinds: kinds of tasks that it supports.
        random: whether fits with different seeds differ; the class then has the argument ``seed``.
        probabilities: whether its outputs give probabilities.
        ignores: fields of graphs that it does not read.
    """

    kinds: tuple[str, ...] = ("classification",)
    random: bool = False
    probabilities: bool = False
    ignores: tuple[str, ...] = ("edge_weight",)

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of its hyper-parameters."""
        return tuple(name for name in _arguments(self.network) if name != "seed")

    def build(self, settings: Mapping[str, Any], seed: int = 0) -> ClassicalEstimator:
        """An estimator that is not fitted."""
        seeds = {"seed": seed} if self.random else {}
        return _load(self.network)(**settings, **seeds)


def check_known(system: System | ClassicalSystem, settings: Mapping[str, Any]) -> None:
    """Raises ValueError if a system has no setting of such a name."""
    if unknown := sorted(set(settings) - set(system.settings)):
        raise ValueError(
            f"{system.name} has the settings {', '.join(system.settings) or 'none'}; got "
            f"{', '.join(unknown)}"
        )


def _load(path: str) -> Callable[..., Any]:
    module, name = path.split(":")
    return getattr(import_module(f"softperm.lab.baselines.{module}"), name)


def _arguments(path: str) -> tuple[str, ...]:
    return tuple(inspect.signature(_load(path)).parameters)


_FROM_SHAPE = {f.name for f in fields(DataShape)} | {"features", "edge_size", "labels_alone"}


_TABLES = ("classification", "ogb", "qm9")


def _variant(name: str, title: str, **fixed: Any) -> PiGNNSystem:
    grid: dict[str, tuple] = {"latent_vertices": (20, 30), "hidden": (32, 64)}
    if "encoder" in fixed:
        grid["layers"] = (2, 3, 4)
    free = ("latent_scale",)  # changes the initial parameters alone
    return PiGNNSystem(name, title, _TABLES, grid, fixed=fixed, stackable=True, shape_free=free)


PI_GNN = {
    system.name: system
    for system in (
        _variant("pi-gnn", "π-GNN"),
        _variant("pi-gnn-d", "π-GNN-d", dustbin=True),
        _variant("pi-gnn-gcn", "π-GNN (GCN)", encoder="gcn"),
        _variant("pi-gnn-d-gcn", "π-GNN-d (GCN)", encoder="gcn", dustbin=True),
        _variant("pi-gnn-gin", "π-GNN (GIN)", encoder="gin"),
        _variant("pi-gnn-d-gin", "π-GNN-d (GIN)", encoder="gin", dustbin=True),
    )
}
"""The paper's own systems."""

_classification = partial(System, tables=("classification",))
_ogb = partial(System, tables=("ogb",), reads="head", stackable=True)
_qm9 = partial(System, tables=("qm9",), grid={"learning_rate": (1e-3,), "batch_size": (64,)})


def _ogb_grid(dropout: float) -> dict[str, tuple]:
    return {"dropout": (dropout,), "learning_rate": (1e-3,), "batch_size": (128,)}


# What the authors of PNA and DGN trained with on ogbg-molhiv.
_PLATEAU = {
    "learning_rate": (1e-2,),
    "weight_decay": (3e-6,),
    "decay": (0.5,),
    "decay_patience": (20,),
    "decay_floor": (1e-4,),
}
_LAYERS = {"hidden": (32, 64), "layers": (3, 5)}
_RATES = {"learning_rate": (1e-4, 1e-2, 1e-3), "batch_size": (32,)}
_KGNN = "qm9:HierarchicalGNN"
_BASELINES = (
    _classification(
        "gin",
        "GIN",
        network="classification:GIN",
        reads="linears",
        grid={
            "widths": ((64,) * 4, (32,) * 4, (64,), (32, 32)),
            "train_eps": (True, False),
            "readout": ("mean", "sum"),
            "dropout": (0.5, 0.0),
            "learning_rate": (1e-2,),
            "halve_every": (50,),
            "batch_size": (32, 128),
        },
        stackable=True,
        shape_free=("train_eps", "readout", "dropout"),
    ),
    _classification(
        "graphsage",
        "GraphSAGE",
        network="classification:GraphSAGE",
        reads="output",
        grid={**_LAYERS, "aggregation": ("add", "max", "mean"), **_RATES},
        stackable=True,
    ),
    _classification(
        "gcn",
        "GCN",
        network="classification:GCN",
        reads="output",
        grid={**_LAYERS, **_RATES},
        stackable=True,
    ),
    _classification(
        "structure-free",
        "Structure-free",
        network="classification:StructureFree",
        reads="output",
        grid={
            "hidden": (32, 128, 256),
            "learning_rate": (1e-1, 1e-3, 1e-4),
            "weight_decay": (1e-4, 1e-3, 1e-2),
            "batch_size": (32,),
        },
        stackable=True,
    ),
    _classification(
        "dgcnn",
        "DGCNN",
        network="classification:DGCNN",
        reads="output",
        grid={
            "hidden": (32, 64),
            "layers": (2, 3, 4),
            "keep": (0.9, 0.6),
            "learning_rate": (1e-4, 1e-5),
            "batch_size": (50,),
        },
        stackable=True,
    ),
    _classification(
        "diffpool",
        "DiffPool",
        network="classification:DiffPool",
        reads="head",
        grid={
            "hidden": (64,),
            "embedding": (128,),
            "learning_rate": (1e-3, 1e-4, 1e-5),
            "batch_size": (8,),
        },
        stackable=True,
    ),
    _classification(
        "ecc",
        "ECC",
        network="classification:ECC",
        reads="output",
        grid={
            "hidden": (32, 64),
            "dropout": (0.05, 0.25),
            "learning_rate": (1e-2, 1e-3),  # theirs are of SGD, and ten times larger
            "batch_size": (32,),
        },
        stackable=True,
        shape_free=("dropout",),
        extend="pyramid:with_pyramid",
    ),
    _ogb("gcn-edges", "GCN with edges", network="ogb:gcn_with_edges", grid=_ogb_grid(0.5)),
    _ogb("gin-edges", "GIN with edges", network="ogb:gin_with_edges", grid=_ogb_grid(0.5)),
    _ogb("pna", "PNA", network="ogb:pna", grid=_ogb_grid(0.3) | _PLATEAU),
    _ogb(
        "dgn",
        "DGN",
        network="ogb:DGN",
        grid=_ogb_grid(0.3) | _PLATEAU,
        extend="ogb:with_eigenvectors",
    ),
    _ogb("phc-gnn", "PHC-GNN", network="ogb:phc_gnn", grid=_ogb_grid(0.1)),
    _qm9("dtnn", "DTNN", network="qm9:DTNN", stackable=True),
    _qm9("mpnn", "MPNN", network="qm9:MPNN", reads="head", stackable=True),
    _qm9("1-2-gnn", "1-2-GNN", network=_KGNN, reads="head", fixed={"set_size": 2}),
    _qm9("1-2-3-gnn", "1-2-3-GNN", network=_KGNN, reads="head", fixed={"set_size": 3}),
    _qm9("ppgn", "PPGN", network="qm9:PPGN", stackable=True),
)

SYSTEMS: dict[str, System] = {system.name: system for system in _BASELINES}
"""The baselines that are networks, by name."""

_forest = partial(
    ClassicalSystem,
    tables=_TABLES,
    kinds=("classification", "multilabel", "regression"),
    random=True,
    probabilities=True,
)
CLASSICAL: dict[str, ClassicalSystem] = {
    system.name: system
    for system in (
        ClassicalSystem(
            "wl-kernel",
            "WL subtree kernel",
            tables=("classification",),
            network="classical:WLKernelClassifier",
            grid={"iterations": (1, 2, 3, 4, 5, 6), "C": (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)},
            ignores=("x", "edge_label", "edge_attr", "edge_weight"),
        ),
        _forest(
            "wl-forest",
            "Random forest on WL colours",
            network="classical:ColourForest",
            grid={"rounds": (0, 1, 2, 3, 4), "min_graphs": (5, 2)},
            ignores=("x", "edge_attr", "edge_weight"),
        ),
        _forest("forest", "Random forest on counts", network="classical:CountForest", grid={}),
    )
}
"""Kernel methods and random forests, by name."""

_ALL: dict[str, System | ClassicalSystem] = {**PI_GNN, **SYSTEMS, **CLASSICAL}


def system_names() -> list[str]:
    """All names; those of π-GNN come first."""
    return list(_ALL)


def find_system(name: str) -> System | ClassicalSystem:
    """The system of a name; ``NAME+VARIANT`` is a variant, whose settings a recipe has.

    Several variants together are ``NAME+VARIANT+OTHER``.

    Raises:
        ValueError: no system has this name; the message lists all names.

    Example:
        >>> find_system("gin").title
        'GIN'
    """
    base, plus, variant = name.partition("+")
    if base not in _ALL:
        raise ValueError(f"no system is called {base}: there are {', '.join(_ALL)}")
    if not plus:
        return _ALL[base]
    return replace(_ALL[base], name=name, title=f"{_ALL[base].title}, {variant.replace('+', ', ')}")
