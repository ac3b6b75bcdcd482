"""What systems are compared on: graphs, targets, and which graphs train, validate and test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Int
from torch import Tensor

from softperm.baselines.inputs import with_positions
from softperm.collection import Collection
from softperm.datasets import Dataset, Split, make_folds
from softperm.lab.recipes import Recipe
from softperm.training.tasks import Classification, MultiLabel, Regression, Task

METRICS = {"ogbg-molpcba": "average_precision"}  # of several yes-or-no questions, else roc_auc


@dataclass(frozen=True)
class Selection:
    """The graphs that choosing may see: no test graph is among them.

    Attributes:
        train: graphs to learn from.
        validation: graphs to choose by.
    """

    train: Int[Tensor, " t"]
    validation: Int[Tensor, " v"]


@dataclass(frozen=True)
class Problem:
    """Graphs to learn from, and how they are divided.

    Attributes:
        name: of the dataset.
        graphs: all graphs.
        y: their targets: classes (B,), or numbers (B, T) with NaN where missing.
        kind: ``classification``, ``multilabel`` or ``regression``.
        splits: one for each outer fold.
        fingerprint: SHA-256 of graphs, targets and splits.
    """

    name: str
    graphs: Collection
    y: Tensor
    kind: str
    splits: tuple[Split, ...]
    fingerprint: str

    def selection(self, fold: int) -> Selection:
        """What choosing may see of a fold."""
        return Selection(self.splits[fold].train, self.splits[fold].validation)

    @property
    def outputs(self) -> int:
        """How many outputs a network needs."""
        return int(self.y.max()) + 1 if self.kind == "classification" else self.y.shape[1]

    def task(self, train: Int[Tensor, " t"]) -> Task:
        """Loss and score, standardised where that is called for by the training graphs alone."""
        if self.kind == "classification":
            return Classification(self.outputs)
        if self.kind == "multilabel":
            return MultiLabel(self.outputs, METRICS.get(self.name, "roc_auc"))
        return Regression.of(self.y[train])


def problems_of(recipe: Recipe, dataset: Dataset, seed: int) -> list[Problem]:
    """The problems that a recipe poses on a dataset: one, or one for each of its targets."""
    splits = _splits(recipe, dataset, seed)
    graphs = dataset.collection
    if not recipe.edges:
        graphs = replace(graphs, edge_label=None, edge_label_sizes=(), edge_attr=None)
    graphs = replace(graphs, codes=recipe.categories == "embedding")
    if dataset.position is not None:  # which DTNN, MPNN and PPGN read, and nobody else
        graphs = with_positions(graphs, dataset.position)
    seen = (graphs.codes, graphs.label_sizes, graphs.edge_label_sizes, graphs.x is None)
    content = f"{dataset.fingerprint} {seen} {graphs.edge_attr is None}"
    if dataset.position is not None:
        content += " positions"
    if not recipe.targets:
        print_of = _fingerprint(content, splits)
        return [Problem(dataset.name, graphs, dataset.y, dataset.task, splits, print_of)]
    made = []
    for target in recipe.targets:
        if target not in dataset.target_names:
            raise ValueError(
                f"{dataset.name} has no target {target}: {', '.join(dataset.target_names)}"
            )
        column = dataset.target_names.index(target)
        y = dataset.y[:, column : column + 1].clone()
        print_of = _fingerprint(f"{content} {target}", splits)
        name = f"{dataset.name}-{target}"
        made.append(Problem(name, graphs, y, dataset.task, splits, print_of))
    return made


def own_problem(
    name: str, graphs: Collection, y: Tensor, kind: str, seed: int, folds: int
) -> Problem:
    """A problem on a user's own graphs, divided into stratified folds."""
    splits = make_folds(y if kind == "classification" else None, len(graphs), seed, folds)
    total = hashlib.sha256()
    content = {f.name: getattr(graphs, f.name) for f in fields(graphs)} | {"y": y}
    for field, value in content.items():
        total.update(f"{field} {getattr(value, 'shape', value)};".encode())
        if isinstance(value, Tensor):
            total.update(value.contiguous().numpy().tobytes())
    return Problem(name, graphs, y, kind, splits, _fingerprint(total.hexdigest(), splits))


def _splits(recipe: Recipe, dataset: Dataset, seed: int) -> tuple[Split, ...]:
    if recipe.splits == "folds":
        return dataset.folds(seed).splits
    if recipe.splits == "random":
        return (dataset.random_split(seed),)
    if dataset.official_split is None:
        raise ValueError(f"{dataset.name} is published without a split: use splits = 'folds'")
    return (dataset.official_split,)


def _fingerprint(content: str, splits: tuple[Split, ...]) -> str:
    total = hashlib.sha256(content.encode())
    for split in splits:
        for part in (split.train, split.validation, split.test):
            total.update(part.to(torch.int64).numpy().tobytes() + b";")
    return total.hexdigest()
