"""Systems of the comparison as estimators: the same graphs, targets, model folders and commands.

``softperm train --model gin`` makes them with :func:`system_estimator`; ``predict`` and ``embed``
read their folders with :func:`load_model`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import Collection
from softperm.data.features import VertexFeatures
from softperm.errors import one_line
from softperm.estimators.pignn import (
    Graphs,
    PiGNNClassifier,
    PiGNNEstimator,
    PiGNNRegressor,
    load_estimator,
)
from softperm.lab.baselines.classical import GraphForest
from softperm.lab.systems import (
    PI_GNN,
    SYSTEMS,
    ClassicalSystem,
    DataShape,
    PiGNNSystem,
    System,
    check_known,
    find_system,
)
from softperm.nn.model import evaluating
from softperm.nn.model_folder import FolderError
from softperm.nn.permutation import Sharpness
from softperm.settings import (
    EstimatorConfig,
    FieldNames,
    Settings,
    StructuralFeatures,
    TrainingConfig,
    choose,
    defaults,
    parameters,
    rules,
    setting,
)
from softperm.training.data import Examples, TrainingData
from softperm.training.devices import Fabric, OneDevice
from softperm.training.tasks import Regression, Task

FORESTS = ("forest", "wl-forest")
TRAINABLE = (*PI_GNN, *SYSTEMS, *FORESTS)
"""Systems with model folders; the kernel has none, as it keeps all its training graphs."""

FIELDS = {
    "x": "vertex attributes", "edge_label": "edge labels", "edge_attr": "edge attributes",
    "edge_weight": "edge weights",
}  # fmt: skip


@dataclass(frozen=True)
class SystemConfig(Settings):
    """Which system an estimator is."""

    system: str = setting("gin", "Name of the system.", choices=(*SYSTEMS, *FORESTS))
    system_settings: object = setting(
        None,
        "The system's own settings, a dict by name; the defaults of its class for others.",
        kind=object,
    )


@dataclass(frozen=True)
class NetworkConfig(Settings):
    """The configuration of a system's network.

    Attributes:
        system: name of the system.
        shape: sizes and statistics of the training graphs.
        settings: the system's own settings.
    """

    system: str
    shape: DataShape
    settings: Mapping[str, Any]
    embeds_labels = False

    def build(self, seed: int) -> nn.Module:
        """A network that is not trained yet."""
        system = find_system(self.system)
        assert isinstance(system, System)
        return system.build(self.shape, self.settings, seed)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> NetworkConfig:
        """The configuration that a folder holds."""
        shape, settings = as_settings(values["shape"]), as_settings(values["settings"])
        return cls(values["system"], DataShape(**shape), settings)


class SystemEstimator(PiGNNEstimator):
    """Base class of the estimators of all systems; π-GNN's own methods raise an error."""

    sources = (SystemConfig, TrainingConfig, FieldNames, EstimatorConfig)
    changed = {}  # noqa: RUF012
    systems: ClassVar[tuple[str, ...]] = ()  # systems that the class supports
    _learn: ClassVar[Callable[..., Any]]

    def _settings(self) -> dict[str, Any]:
        values = super()._settings()
        dict(rules(SystemConfig))["system"].check("system", values["system"])
        if values["system"] not in self.systems:
            raise ValueError(f"{type(self).__name__} is one of {', '.join(self.systems)}")
        check_known(find_system(values["system"]), values["system_settings"] or {})
        return values

    @property
    def title(self) -> str:
        """The system's name in tables."""
        return find_system(self.system).title

    def permutations(self, graphs: Graphs) -> list[np.ndarray]:
        """Refuses: only π-GNN permutes."""
        raise ValueError(f"{self.title} has no soft permutations: train a model of π-GNN")

    def iterate_explanations(self, graphs: Graphs | Collection, **options: Any) -> Iterator[Any]:
        """Refuses: only π-GNN's predictions are explained."""
        raise ValueError(f"predictions of {self.title} are not explained: train a model of π-GNN")

    def _train(
        self, data: TrainingData, device: torch.device | Fabric | OneDevice, callbacks: Any = ()
    ) -> Any:
        ignored = find_system(self.system).ignores
        there = [FIELDS[name] for name in ignored if getattr(data.graphs, name) is not None]
        if there:
            warnings.warn(f"{self.title} does not use {' and '.join(there)}", stacklevel=3)
        return self._learn(data, device, callbacks)

    def _encode(self, graphs: Graphs | Collection) -> Collection:
        return self.collect(graphs)

    def _measure(self, train: Examples) -> Sharpness | None:
        return None


class NetworkEstimator(SystemEstimator):
    """A network of the comparison behind scikit-learn's interface."""

    systems = tuple(SYSTEMS)

    def _learn(
        self, data: TrainingData, device: torch.device | Fabric | OneDevice, callbacks: Any = ()
    ) -> Any:
        system = find_system(self.system)
        assert isinstance(system, System)
        data = replace(data, graphs=system.extended(data.graphs))  # once, not for every batch
        return PiGNNEstimator._train(self, data, device, callbacks)

    def model_config(self, data: TrainingData) -> NetworkConfig:  # type: ignore[override]
        """The configuration of the network for some training data."""
        shape = DataShape.of(data.graphs, data.task.outputs, data.split.train)
        own = as_settings(self.system_settings or {})
        return NetworkConfig(self.system, replace(shape, statistics=None), own)

    def _build(  # type: ignore[override]
        self, config: NetworkConfig, train: Examples, seeds: Sequence[int]
    ) -> list[nn.Module]:
        self.network_config_ = config
        return [config.build(seed) for seed in seeds]

    def _network_config(self) -> dict[str, Any]:
        return asdict(self.network_config_)

    def _load_networks(
        self, config: dict[str, Any], tensors: Mapping[str, Tensor], folder: str
    ) -> None:
        self.network_config_ = NetworkConfig.from_dict(config["model"])
        shape, forms = self.network_config_.shape, {n: t.shape for n, t in tensors.items()}
        words = self.vocabulary_
        labels, edge_labels = (sum(map(len, each)) for each in (words.labels, words.edge_labels))
        sizes = (labels + words.x_size, edge_labels + words.edge_attr_size, self.task_.outputs)
        trained = (shape.attribute_size, shape.edge_attribute_size, shape.outputs)
        if trained != sizes or self.network_config_.system != self.system:
            raise ValueError("its network does not fit its settings, targets and vocabulary")
        try:
            with torch.device("meta"):  # a damaged folder cannot ask for memory
                planned = self.network_config_.build(0)
            if {n: t.shape for n, t in planned.state_dict().items()} != forms:
                raise ValueError("its tensors are not those of its network")
            network = self.network_config_.build(0)
            network.load_state_dict(dict(tensors))
        except (TypeError, ValueError, RuntimeError) as problem:
            raise FolderError(f"{folder}: {one_line(problem)[:1000]}") from None
        self.models_, self.forest_ = (network.eval(),), None  # type: ignore[assignment]

    def vectors_of(self, graphs: Collection) -> Float[np.ndarray, "b F"]:
        """The vectors of an encoded collection: what the last layers read, side by side."""
        layers = self._last_layers()
        rows = []
        with torch.no_grad(), evaluating(self.model_), _inputs(layers) as inputs:
            for batch in self._batches(graphs):
                inputs.clear()
                self.model_(batch)
                rows.append(torch.cat(inputs, dim=1).float().cpu())
        return torch.cat(rows).numpy()

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of :meth:`transform`."""
        self._check_fitted()
        sizes = [_input_size(layer) for layer in self._last_layers()]
        names = [f"layer{k}_{unit}" for k, size in enumerate(sizes) for unit in range(size)]
        return np.asarray(names, dtype=object)

    def _last_layers(self) -> list[nn.Module]:
        """The layers whose inputs are the vector of a graph."""
        system = find_system(self.system)
        assert isinstance(system, System)
        if not system.reads:
            raise ValueError(
                f"{self.title} adds up outputs of parts of a graph and has no vector of it: train "
                "another model, such as pi-gnn or gin"
            )
        layers = self.model_.get_submodule(system.reads)
        return list(layers) if isinstance(layers, nn.ModuleList) else [layers]


class ForestEstimator(SystemEstimator):
    """A random forest of the comparison behind scikit-learn's interface."""

    systems = FORESTS
    changed = {"system": FORESTS[0]}  # noqa: RUF012
    model_: GraphForest  # type: ignore[assignment]

    def _settings(self) -> dict[str, Any]:
        values = super()._settings()
        usual = defaults(TrainingConfig) | defaults(EstimatorConfig)
        for name in choose(TrainingConfig, values):
            if name != "seed" and values[name] != usual[name]:
                raise ValueError(f"a random forest has no setting {name}")
        return values

    def _learn(
        self, data: TrainingData, device: torch.device | Fabric | OneDevice, callbacks: Any = ()
    ) -> ForestEstimator:
        if data.weight is not None:
            raise ValueError("a random forest of the comparison takes no sample_weight")
        self.task_, self.vocabulary_ = data.task, data.vocabulary
        self.target_names_, self.molecules_ = data.target_names, data.molecules
        self.features_ = VertexFeatures(StructuralFeatures())
        train = data.split.train
        self.model_ = self._machine().fit(data.graphs, train, data.y[train], data.task)
        self.models_, self.forest_, self.sharpness_ = (), None, None
        self.curve_, self.best_epoch_, self.interrupted_ = (), 0, False
        return self

    def _machine(self) -> GraphForest:
        system = find_system(self.system)
        assert isinstance(system, ClassicalSystem)
        machine = system.build(as_settings(self.system_settings or {}), self.seed)
        assert isinstance(machine, GraphForest)
        return machine

    def outputs_of(self, graphs: Collection, index: Int[Tensor, " b"]) -> Float[Tensor, "b C"]:
        """The outputs for some graphs of an encoded collection."""
        return self.model_.outputs(graphs, index).float()

    def vectors_of(self, graphs: Collection) -> Float[np.ndarray, "b F"]:
        """Refuses: trees have no vectors."""
        return self.get_feature_names_out()

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Refuses: trees have no vectors."""
        raise ValueError(f"{self.title} has no vectors: train another model, such as pi-gnn or gin")

    def _network_config(self) -> dict[str, Any]:
        return self.model_.state()[0]

    def _tensors(self) -> dict[str, Tensor]:
        return self.model_.state()[1]

    def _load_networks(
        self, config: dict[str, Any], tensors: Mapping[str, Tensor], folder: str
    ) -> None:
        self.model_ = self._machine().restore(config["model"], tensors, self.task_)
        self.models_, self.forest_ = (), None

    def _place(self, device: torch.device) -> None:
        """Trees are read on the CPU."""


class NetworkClassifier(NetworkEstimator, PiGNNClassifier):
    """Classifies graphs by a network of the comparison, such as GIN."""


class NetworkRegressor(NetworkEstimator, PiGNNRegressor):
    """Predicts numbers of graphs by a network of the comparison, such as GIN."""


class ForestClassifier(ForestEstimator, PiGNNClassifier):
    """Classifies graphs by a random forest on counts of labels, degrees or colours."""


class ForestRegressor(ForestEstimator, PiGNNRegressor):
    """Predicts numbers of graphs by a random forest on counts of labels, degrees or colours."""


KINDS = (NetworkClassifier, NetworkRegressor, ForestClassifier, ForestRegressor)


def load_model(folder: str | Path, device: str | torch.device | None = None) -> PiGNNEstimator:
    """The estimator of a model folder, of π-GNN or of another system."""
    return load_estimator(folder, device, KINDS)


def system_estimator(
    name: str, given: Mapping[str, Any]
) -> tuple[dict[str, Any], Callable[[Task], PiGNNEstimator]]:
    """The settings of a system, and a function that builds its estimator for a task.

    Settings that are not given have the defaults of the system's class and of training; where the
    grid of the comparison has a single value, that one.

    Args:
        name: of the system.
        given: settings that were chosen, of training and of the system itself.

    Raises:
        ValueError: no system with a model folder has this name, or it has no such setting.
    """
    system = find_system(name)
    if name not in TRAINABLE:
        raise ValueError(f"{name} has no model folder: train one of {', '.join(TRAINABLE)}")
    if isinstance(system, PiGNNSystem):
        for key, value in system.fixed.items():
            if given.get(key, value) != value:
                raise ValueError(f"{name} has {key} {value}; got {given[key]}")
        settings = {each.name: each.default for each in parameters()} | {**given, **system.fixed}
        return settings, partial(_for_task, (PiGNNRegressor, PiGNNClassifier), settings)
    usual = {each.name: each.default for each in parameters(SystemEstimator.sources, {})}
    if unknown := sorted(set(given) - set(usual) - set(system.settings)):
        known = sorted({*system.settings} & {each.name for each in parameters()})
        raise ValueError(
            f"{name} has no setting {unknown[0]}: it has those of training"
            + (f", and {', '.join(known)}" if known else "")
        )
    single = {key: values[0] for key, values in system.grid.items() if len(values) == 1}
    chosen = {**single, **given}
    own = {key: value for key, value in chosen.items() if key in system.settings}
    others = {key: value for key, value in chosen.items() if key not in own}
    settings = {**usual, **others, "system": name, "system_settings": own}
    networks, forests = (NetworkRegressor, NetworkClassifier), (ForestRegressor, ForestClassifier)
    kinds = forests if isinstance(system, ClassicalSystem) else networks
    return settings, partial(_for_task, kinds, settings)


def _for_task(
    kinds: tuple[type[PiGNNEstimator], ...], settings: dict[str, Any], task: Task
) -> PiGNNEstimator:
    regressor, classifier = kinds
    return (regressor if isinstance(task, Regression) else classifier)(**settings)


def as_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with tuples in place of the lists of JSON."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


@contextmanager
def _inputs(layers: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Collects what some layers read while the block runs."""
    inputs: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        for layer in layers
    ]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


def _input_size(layer: nn.Module) -> int:
    """Length of what a layer reads."""
    first = next(each for each in layer.modules() if hasattr(each, "in_features"))
    return int(first.in_features)  # type: ignore[arg-type]
