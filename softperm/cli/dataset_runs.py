"""The work of ``softperm train --dataset``: a named dataset, its own split, one or many devices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softperm.cli.console import as_text
from softperm.cli.dataset_models import write_reading
from softperm.cli.runs import (
    CHECKPOINT,
    curve_and_model,
    draw,
    say_if_resumed,
    training_seconds,
    worth_drawing,
    write_curve,
)
from softperm.data.datasets import Dataset, Split, load_dataset
from softperm.data.datasets.qm9 import QM9_UNITS
from softperm.estimators.preparation import feature_statistics, identity_of
from softperm.files import write_atomically
from softperm.lab.evaluation_data import METRICS
from softperm.nn.model import ModelConfig, PiGNN, build
from softperm.training.devices import Fabric
from softperm.training.fit import Examples, FitResult, TrainingConfig, fit, predict
from softperm.training.progress import EpochBar
from softperm.training.tasks import Classification, MultiLabel, Regression, Task


@dataclass(frozen=True)
class Problem:
    """What is to be learnt.

    Attributes:
        dataset: where from.
        targets: names of the targets.
        y: their values for all graphs.
        task: what they mean.
        split: graphs to learn from, to choose by and to report on.
    """

    dataset: Dataset
    targets: tuple[str, ...]
    y: Tensor
    task: Task
    split: Split

    def examples(self, part: Tensor, codes: bool) -> Examples:
        """Some of the graphs with their targets."""
        return Examples(replace(self.dataset.collection, codes=codes), self.y, part)


def pose(
    name: str, root: Path | None, wanted: list[str] | None, seed: int, progress: bool
) -> Problem:
    """The problem that a dataset's name and targets stand for.

    The split is the official one; a dataset without gets 80 / 10 / 10 % at random, by the seed.

    Raises:
        ValueError: there is no such dataset or target.
    """
    dataset = load_dataset(name, root, progress=progress)
    split = dataset.official_split or dataset.random_split(seed)
    names = dataset.target_names
    if dataset.task == "classification":
        _columns(names, wanted, dataset.name)
        return Problem(dataset, names, dataset.y, Classification(len(dataset.class_names)), split)
    columns = _columns(names, wanted, dataset.name)
    y = dataset.y if columns == list(range(len(names))) else dataset.y[:, columns]
    if dataset.task == "multilabel":
        task: Task = MultiLabel(len(columns), metric=METRICS.get(dataset.name, "roc_auc"))
    else:
        task = Regression.of(y[split.train])
    return Problem(dataset, tuple(names[c] for c in columns), y, task, split)


def _columns(names: tuple[str, ...], wanted: list[str] | None, dataset: str) -> list[int]:
    """Where the wanted targets are; all by default, except that QM9's must be named."""
    if wanted is None and dataset != "QM9":
        return list(range(len(names)))
    place = {name.lower(): c for c, name in enumerate(names)}
    for name in wanted or [""]:
        if name.lower() not in place:
            raise ValueError(
                f"{dataset} has the targets {', '.join(names)}; name what to learn with --target"
                + (f", not {name!r}" if name else "")
            )
    return list(dict.fromkeys(place[name.lower()] for name in wanted or []))


def configure(
    problem: Problem, choices: Mapping[str, Any], categories: str, capacity: int | str | None
) -> ModelConfig:
    """The network for a problem.

    Args:
        problem: what is to be learnt.
        choices: settings of the network that the data does not decide.
        categories: ``one-hot`` or ``embedding``: what becomes of discrete labels.
        capacity: a number, None, or ``auto`` for the largest training graph.
    """
    if categories not in ("one-hot", "embedding"):
        raise ValueError(f"--categories must be one-hot or embedding; got {categories!r}")
    codes = categories == "embedding"
    train = problem.examples(problem.split.train, codes)
    graphs = train.graphs
    if capacity == "auto":
        capacity = int(graphs.sizes[train.index].max())
    return ModelConfig(
        problem.task.outputs,
        capacity=capacity if isinstance(capacity, int) else None,
        attribute_size=graphs.attribute_size,
        edge_attribute_size=graphs.edge_attribute_size,
        label_sizes=graphs.label_sizes if codes else (),
        edge_label_sizes=graphs.edge_label_sizes if codes else (),
        weighted=graphs.edge_weight is not None,
        **choices,
    )


def train_dataset(
    problem: Problem,
    config: ModelConfig,
    settings: TrainingConfig,
    fabric: Fabric,
    out: Path,
    asked: Mapping[str, Any],
    log: Callable[[str], None],
    progress: bool,
) -> dict[str, Any]:
    """Trains a network and leaves everything in the run folder; the first process writes.

    The test graphs are looked at once, by a training that came to its end.

    Args:
        problem: what is to be learnt.
        config: the network.
        settings: how to train.
        fabric: the processes and devices.
        out: the run folder.
        asked: what the run was asked for, to be written down.
        log: says a line and keeps it.
        progress: whether to show a bar.

    Returns:
        What to print.
    """
    codes = bool(config.label_sizes or config.edge_label_sizes)
    train = problem.examples(problem.split.train, codes)
    held = replace(train, index=problem.split.validation)
    statistics = feature_statistics(train) if config.scaling == "standard" else None
    model = build(config, settings.seed, statistics)
    if fabric.is_global_zero:
        say_if_resumed(out, log)
        if not (out / CHECKPOINT).exists():  # else it may turn out to be of another training
            write_atomically(out / "config.json", as_text(asked).encode())
    with EpochBar(settings.epochs, shown=progress and fabric.is_global_zero) as bar:
        result = fit(
            model,
            problem.task,
            train,
            settings,
            validation=held,
            device=fabric,
            checkpoint=out / CHECKPOINT,
            fingerprint=_fingerprint(problem, config, settings),
            on_epoch=bar.update,
        )
    told: dict[str, Any] = {
        "run": str(out),
        "model": str(out / "model"),
        "dataset": problem.dataset.name,
        "target": ", ".join(problem.targets) if len(problem.targets) < 13 else "all",
        "epochs": len(result.curve),
        "best_epoch": result.best_epoch,
        "interrupted": result.interrupted,
        "metric": problem.task.metric,
    }
    if fabric.is_global_zero:
        write_atomically(out / "config.json", as_text(asked).encode())
        told |= _finish(problem, model, train, result, settings.batch_size, fabric, out)
        told["seconds"] = training_seconds(result.curve)
        written = f"wrote {out}/{curve_and_model(result.curve)}"
        if not result.interrupted:
            written += f" and {_draw_some(problem, model, train, out / 'pictures')} pictures"
            write_atomically(out / "result.json", as_text(told).encode())
            (out / CHECKPOINT).unlink(missing_ok=True)
        log(written)
    return told


def _draw_some(problem: Problem, model: PiGNN, train: Examples, folder: Path) -> int:
    """Pictures of a handful of graphs; how many."""
    chosen = worth_drawing(train.graphs.sizes.numpy())
    model = model.cpu().eval()
    with torch.no_grad():
        made = model.permutations(train.graphs.batch(torch.from_numpy(chosen)))
    graphs = problem.dataset.graphs(chosen.tolist())
    names = [str(i) for i in chosen]
    draw(graphs, [d.numpy() for d in made], [f"graph {i}" for i in names], names, folder)
    return len(chosen)


def _finish(
    problem: Problem,
    model: PiGNN,
    train: Examples,
    result: FitResult,
    batch_size: int,
    fabric: Fabric,
    out: Path,
) -> dict[str, Any]:
    """Model and curve into the run folder; the scores to tell."""
    model.save(out / "model")
    assert model.config is not None
    write_reading(out / "model", problem, model.config)
    write_curve(out, result.curve, result.best_epoch)
    scores: dict[str, Any] = {}
    unit = QM9_UNITS.get(problem.targets[0]) if problem.dataset.name == "QM9" else None
    if unit is not None and len(problem.targets) == 1:
        scores["unit"] = unit
    if result.best_epoch:
        scores["validation_score"] = result.curve[result.best_epoch - 1].validation_score
    if not result.interrupted:
        test = problem.split.test
        outputs = predict(model, train.graphs, test, batch_size, fabric.device)
        scores["test_score"] = problem.task.score(outputs, problem.y[test])
        scores["test_graphs"] = len(test)
    return scores


def _fingerprint(problem: Problem, config: ModelConfig, settings: TrainingConfig) -> str:
    """Identifies a training; more epochs and more time do not change it."""
    asked = [
        identity_of(config),
        {**identity_of(settings), "epochs": None, "max_time": None},
    ]
    asked += [repr(problem.task), problem.targets, problem.dataset.fingerprint]
    digest = hashlib.sha256(json.dumps(asked).encode())
    for field in fields(problem.split):
        part = getattr(problem.split, field.name)
        digest.update(part.to(torch.int64).numpy().tobytes())
    return digest.hexdigest()
