"""What systems are compared on: graphs, targets, and which graphs train, validate and test."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Int
from torch import Tensor

from softperm.data.collection import Collection
from softperm.data.datasets import Dataset, Split, make_folds, random_split
from softperm.lab.baselines.inputs import with_positions
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
class Question:
    """What is asked about the graphs of a problem.

    Attributes:
        name: as records have it: that of the dataset, with a target behind it if there are several.
        y: the targets of all graphs: classes (B,), or numbers (B, T) with NaN where missing.
        fingerprint: SHA-256 of graphs, targets and splits.
    """

    name: str
    y: Tensor
    fingerprint: str


@dataclass(frozen=True)
class Problem:
    """Graphs to learn from, how they are divided, and what is asked about them.

    Attributes:
        name: of the dataset.
        graphs: all graphs.
        kind: ``classification``, ``multilabel`` or ``regression``.
        splits: one for each outer fold.
        questions: by name, at least one. Each has networks of its own, but those of all questions
            have the same shapes, so that they can be trained side by side.
    """

    name: str
    graphs: Collection
    kind: str
    splits: tuple[Split, ...]
    questions: Mapping[str, Question]

    def selection(self, fold: int) -> Selection:
        """What choosing may see of a fold."""
        return Selection(self.splits[fold].train, self.splits[fold].validation)

    @property
    def outputs(self) -> int:
        """How many outputs a network needs."""
        y = next(iter(self.questions.values())).y
        return int(y.max()) + 1 if self.kind == "classification" else y.shape[1]

    def task(self, question: str, train: Int[Tensor, " t"]) -> Task:
        """Loss and score, standardised where that is called for by the training graphs alone."""
        if self.kind == "classification":
            return Classification(self.outputs)
        if self.kind == "multilabel":
            return MultiLabel(self.outputs, METRICS.get(question, "roc_auc"))
        return Regression.of(self.questions[question].y[train])


def problem_of(recipe: Recipe, dataset: Dataset, seed: int) -> Problem:
    """What a recipe asks about a dataset: one question, or one for each of its targets."""
    splits = _splits(recipe, dataset, seed)
    graphs = _as_read(recipe, dataset.collection)
    if dataset.position is not None:  # which DTNN, MPNN and PPGN read, and nobody else
        graphs = with_positions(graphs, dataset.position)
    seen = (graphs.codes, graphs.label_sizes, graphs.edge_label_sizes, graphs.x is None)
    content = f"{dataset.fingerprint} {seen} {graphs.edge_attr is None}"
    if dataset.position is not None:
        content += " positions"
    questions = [Question(dataset.name, dataset.y, _fingerprint(content, splits))]
    if recipe.targets:
        questions = [_about(dataset, target, content, splits) for target in recipe.targets]
    return Problem(dataset.name, graphs, dataset.task, splits, {q.name: q for q in questions})


def _about(dataset: Dataset, target: str, content: str, splits: tuple[Split, ...]) -> Question:
    """The question of one target of several."""
    if target not in dataset.target_names:
        raise ValueError(
            f"{dataset.name} has no target {target}: {', '.join(dataset.target_names)}"
        )
    column = dataset.target_names.index(target)
    y = dataset.y[:, column : column + 1].clone()
    return Question(f"{dataset.name}-{target}", y, _fingerprint(f"{content} {target}", splits))


def own_problem(
    recipe: Recipe, name: str, graphs: Collection, y: Tensor, kind: str, seed: int, folds: int
) -> Problem:
    """What a recipe asks about a user's own graphs: folds are stratified by class."""
    graphs = _as_read(recipe, graphs)
    if recipe.splits == "official":
        raise ValueError(
            f"recipe {recipe.name} is for datasets that are published with a split: for graphs of "
            "your own use one with splits = 'folds' or 'random'"
        )
    if recipe.splits == "random":
        splits = (random_split(len(graphs), seed),)
    else:
        splits = make_folds(y if kind == "classification" else None, len(graphs), seed, folds)
    total = hashlib.sha256()
    content = {f.name: getattr(graphs, f.name) for f in fields(graphs)} | {"y": y}
    for field, value in content.items():
        total.update(f"{field} {getattr(value, 'shape', value)};".encode())
        if isinstance(value, Tensor):
            total.update(value.contiguous().numpy().tobytes())
    question = Question(name, y, _fingerprint(total.hexdigest(), splits))
    return Problem(name, graphs, kind, splits, {name: question})


def _as_read(recipe: Recipe, graphs: Collection) -> Collection:
    """Graphs with what a recipe reads of them."""
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
    total = hashlib.sha256(content.encode())
    for split in splits:
        for part in (split.train, split.validation, split.test):
            total.update(part.to(torch.int64).numpy().tobytes() + b";")
    return total.hexdigest()
