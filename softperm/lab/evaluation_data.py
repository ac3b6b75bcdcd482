"""Graphs, targets and splits on which systems are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.data.collection import Collection
from softperm.data.datasets import Dataset, Split, make_folds, random_split
from softperm.data.datasets.dataset import FeatureStore
from softperm.data.features import VertexFeatures
from softperm.lab.recipes import Recipe
from softperm.lab.records import Run
from softperm.lab.systems import System
from softperm.settings import StructuralFeatures
from softperm.training.tasks import METRICS, Classification, MultiLabel, Regression, Task


@dataclass(frozen=True)
class SelectionSplit:
    """The graphs that a training may use; it has no test graphs.

    Attributes:
        train: training graphs.
        validation: graphs that select the configuration and the epoch; none if nothing is left to
            select.
    """

    train: Int[Tensor, " t"]
    validation: Int[Tensor, " v"]


@dataclass(frozen=True)
class Target:
    """What is predicted.

    Attributes:
        name: name of the dataset, followed by that of the target if there are several; the field
            ``dataset`` of records.
        y: targets of all graphs: classes (B,), or numbers (B, T) with NaN where missing.
        fingerprint: SHA-256 of graphs, targets and splits.
    """

    name: str
    y: Tensor
    fingerprint: str


@dataclass(frozen=True)
class EvaluationData:
    """A dataset as an evaluation uses it.

    Attributes:
        name: name of the dataset.
        graphs: all graphs.
        kind: ``classification``, ``multilabel`` or ``regression``.
        splits: one for each outer fold.
        targets: by name, at least one. Each target has its own networks; networks of all targets
            have equal shapes, so that they can be trained in one stack.
        refit: whether final runs learn from training and validation graphs.
        feature_store: where structural features of a dataset are kept; None for other graphs.
        cache: results that jobs computed from these data, each with the graphs it comes from.
    """

    name: str
    graphs: Collection
    kind: str
    splits: tuple[Split, ...]
    targets: Mapping[str, Target]
    refit: bool = False
    feature_store: FeatureStore | None = None
    cache: dict[Hashable, tuple[Collection, Any]] = field(default_factory=dict, repr=False)

    def with_features(self, settings: StructuralFeatures, train: Int[Tensor, " t"]) -> Collection:
        """The graphs with vertex features; colours that occur in training graphs have codes."""
        colours = VertexFeatures.learn(self.graphs, train, settings).colours
        graphs = self.cached(settings.names, self.graphs)
        if graphs is None:
            store = self.feature_store
            if store is None:
                graphs = VertexFeatures(settings).extend(self.graphs)
            else:
                graphs = store.extend(self.graphs, settings)
            self.cache[settings.names] = self.graphs, graphs
        return graphs if colours is None else colours.extend(graphs)

    def extended(self, graphs: Collection, system: System) -> Collection:
        """The graphs with what a system computes from each of them once."""
        if not system.extend:
            return graphs
        extended = self.cached(system.extend, graphs)
        if extended is None:
            extended = system.extended(graphs)
            self.cache[system.extend] = graphs, extended
        return extended

    def cached(self, key: Hashable, graphs: Collection) -> Any:
        """The cached result for this collection of graphs; None if there is none."""
        source, value = self.cache.get(key, (None, None))
        return value if source is graphs else None

    def split_of(self, run: Run) -> SelectionSplit:
        """The graphs from which a run learns, and those that select its best epoch."""
        train, validation = self.splits[run.fold].train, self.splits[run.fold].validation
        if self.refit and run.stage == "final":
            return SelectionSplit(torch.cat([train, validation]), validation[:0])
        return SelectionSplit(train, validation)

    @property
    def outputs(self) -> int:
        """Number of outputs of a network."""
        y = next(iter(self.targets.values())).y
        return int(y.max()) + 1 if self.kind == "classification" else y.shape[1]

    @property
    def places(self) -> list[tuple[str, int]]:
        """Every pair of a target and a fold."""
        return [(target, fold) for target in self.targets for fold in range(len(self.splits))]

    def task(self, target: str, train: Int[Tensor, " t"]) -> Task:
        """Loss and score; regressions are standardised with the training graphs alone."""
        if self.kind == "classification":
            return Classification(self.outputs)
        if self.kind == "multilabel":
            return MultiLabel(self.outputs, METRICS.get(target, "roc_auc"))
        return Regression.of(self.targets[target].y[train])


def from_dataset(recipe: Recipe, dataset: Dataset, seed: int) -> EvaluationData:
    """A dataset with the splits and targets of a recipe.

    Raises:
        ValueError: the dataset lacks a target or the split that the recipe uses.
    """
    splits = _splits(recipe, dataset, seed)
    graphs = _select_inputs(recipe, dataset.collection)
    if dataset.position is not None:  # read by baselines and distance_bins
        graphs = with_positions(graphs, dataset.position)
    inputs = (graphs.codes, graphs.label_sizes, graphs.edge_label_sizes, graphs.x is None)
    content = f"{dataset.fingerprint} {inputs} {graphs.edge_attr is None}"
    if dataset.position is not None:
        content += " positions"
    if recipe.refit:
        content += " refit"
    targets = [Target(dataset.name, dataset.y, _fingerprint(content, splits))]
    if recipe.targets:
        targets = [_one_target(dataset, name, content, splits) for name in recipe.targets]
    by_name = {target.name: target for target in targets}
    return EvaluationData(
        dataset.name, graphs, dataset.task, splits, by_name, recipe.refit, dataset.feature_store
    )


def from_graphs(
    recipe: Recipe, name: str, graphs: Collection, y: Tensor, kind: str, seed: int, folds: int
) -> EvaluationData:
    """A user's own graphs with the splits of a recipe; folds are stratified by class.

    Raises:
        ValueError: the recipe uses published splits.
    """
    graphs = _select_inputs(recipe, graphs)
    if recipe.splits == "official":
        raise ValueError(
            f"recipe {recipe.name} is for datasets that are published with a split: for graphs of "
            "your own use one with splits = 'folds' or 'random'"
        )
    if recipe.splits == "random":
        splits = (random_split(len(graphs), seed),)
    else:
        splits = make_folds(y if kind == "classification" else None, len(graphs), seed, folds)
    sizes = (graphs.codes, graphs.label_sizes, graphs.edge_label_sizes)
    refit = " refit" if recipe.refit else ""
    target = Target(name, y, _fingerprint(f"{graphs.digest(y=y)} {sizes}{refit}", splits))
    return EvaluationData(name, graphs, kind, splits, {name: target}, recipe.refit)


def with_positions(collection: Collection, position: Float[Tensor, "V 3"]) -> Collection:
    """A collection whose batches have ``pos``, which the baselines of QM9 and π-GNN can read.

    Args:
        collection: the graphs.
        position: coordinates of all vertices in Å, in the collection's order.
    """
    return replace(collection, extra={**collection.extra, "pos": position})


def _one_target(dataset: Dataset, name: str, content: str, splits: tuple[Split, ...]) -> Target:
    """One target of a dataset that has several."""
    if name not in dataset.target_names:
        raise ValueError(f"{dataset.name} has no target {name}: {', '.join(dataset.target_names)}")
    column = dataset.target_names.index(name)
    y = dataset.y[:, column : column + 1].clone()
    return Target(f"{dataset.name}-{name}", y, _fingerprint(f"{content} {name}", splits))


def _select_inputs(recipe: Recipe, graphs: Collection) -> Collection:
    """The graphs without the inputs that a recipe leaves out."""
    if not recipe.edges:
        graphs = replace(graphs, edge_label=None, edge_label_sizes=(), edge_attr=None)
    return replace(graphs, codes=recipe.categories == "embedding")


def _splits(recipe: Recipe, dataset: Dataset, seed: int) -> tuple[Split, ...]:
    if recipe.splits == "folds":
        return dataset.folds(seed).splits
    if recipe.splits == "random":
        return (dataset.random_split(seed),)
    if dataset.official_split is None:
        raise ValueError(f"{dataset.name} is published without a split: use splits = 'folds'")
    return (dataset.official_split,)


def _fingerprint(content: str, splits: tuple[Split, ...]) -> str:
    return hashlib.sha256(content.encode() + b"".join(s.tobytes() for s in splits)).hexdigest()
