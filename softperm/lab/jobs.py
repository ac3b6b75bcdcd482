"""One unit of work of the protocol: models of one configuration, trained side by side."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softperm.baselines import DataShape, Kernel, System
from softperm.lab.problem import Problem, Selection
from softperm.lab.records import Circumstances, Record, Run, device_name, peak_memory
from softperm.lab.systems import find_system
from softperm.training.fit import Examples, FitConfig, FitResult, fit, predict
from softperm.training.stack import fit_stack, predict_stack

TRAINING = tuple(f.name for f in fields(FitConfig) if f.name != "seed")
"""The names in a configuration that say how to train; all others are the model's."""


@dataclass(frozen=True)
class Job:
    """Runs that differ in fold and seed alone.

    Attributes:
        runs: at least one.
    """

    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """A file's name that no other job of the same problem has."""
        first = self.runs[0]
        members = [[run.fold, run.seed] for run in self.runs]
        content = json.dumps([dict(first.configuration), members], sort_keys=True)
        short = hashlib.sha256(content.encode()).hexdigest()[:16]
        return f"{first.dataset}.{first.model}.{first.stage}.{short}"

    @property
    def epochs(self) -> int:
        """How many passes over training graphs it takes, at most."""
        return len(self.runs) * self.runs[0].configuration.get("epochs", 1)


def work(
    job: Job,
    problem: Problem,
    device: str,
    checkpoint: Path | None = None,
    on_epoch: Callable[[int], None] = lambda epoch: None,
) -> list[Record]:
    """Trains the models of a job; those of the final stage are tested, no others.

    Args:
        job: what to train.
        problem: on what.
        device: where.
        checkpoint: file that keeps the training while it runs.
        on_epoch: called with the number of each finished epoch.

    Raises:
        KeyboardInterrupt: Ctrl-C; the checkpoint holds what was done.
    """
    started = time.perf_counter()
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    parts = [problem.selection(run.fold) for run in job.runs]
    trained = _train(job, problem, parts, torch.device(device), checkpoint, on_epoch)
    scores: list[float | None] = [None] * len(job.runs)
    if job.runs[0].stage == "final":
        scores = list(trained.test([problem.splits[run.fold].test for run in job.runs]))
    seconds = (time.perf_counter() - started) / len(job.runs)
    circumstances = Circumstances(
        seconds,
        len(job.runs),
        peak_memory(torch.device(device)),
        device_name(torch.device(device)),
    )
    return [
        _record(run, problem, task, result, score, circumstances)
        for run, task, result, score in zip(
            job.runs, trained.tasks, trained.results, scores, strict=True
        )
    ]


@dataclass(frozen=True)
class _Trained:
    """Trained models, what training gave, and how to test them."""

    tasks: Sequence[Any]
    results: Sequence[FitResult | _Choice]
    test: Callable[[Sequence[Tensor]], Sequence[float]]


@dataclass(frozen=True)
class _Choice:
    """What a system without epochs gave on validation graphs."""

    validation_score: float


def _train(
    job: Job,
    problem: Problem,
    parts: Sequence[Selection],
    device: torch.device,
    checkpoint: Path | None,
    on_epoch: Callable[[int], None],
) -> _Trained:
    system = find_system(job.runs[0].model)
    if isinstance(system, Kernel):
        return _train_kernel(job, problem, parts, system)
    config = training_of(job.runs[0])
    tasks = [problem.task(part.train) for part in parts]
    models = [
        _network(system, problem, run, part) for run, part in zip(job.runs, parts, strict=True)
    ]
    if system.stackable:
        seeds = [seed_of(run) for run in job.runs]
        results = fit_stack(
            models, tasks, problem.graphs, problem.y,
            [part.train for part in parts], [part.validation for part in parts], seeds, config,
            device=device, checkpoint=checkpoint, fingerprint=_fingerprint(job, problem),
            on_epoch=on_epoch,
        )  # fmt: skip
    else:
        results = []
        for run, model, task, part in zip(job.runs, models, tasks, parts, strict=True):
            result = fit(
                model,
                task,
                Examples(problem.graphs, problem.y, part.train),
                replace(config, seed=seed_of(run)),
                validation=Examples(problem.graphs, problem.y, part.validation),
                device=device,
                checkpoint=checkpoint,
                fingerprint=_fingerprint(job, problem),
                on_epoch=lambda epoch: on_epoch(epoch.number),
            )
            results.append(result)
    if any(result.interrupted for result in results):
        raise KeyboardInterrupt

    def test(index: Sequence[Tensor]) -> list[float]:
        if system.stackable:
            on_device = problem.graphs.to(device)
            outputs = predict_stack(models, on_device, index, config.batch_size)
        else:
            outputs = [
                predict(model, problem.graphs, i, config.batch_size, device)
                for model, i in zip(models, index, strict=True)
            ]
        return [
            task.score(o, problem.y[i]) for task, o, i in zip(tasks, outputs, index, strict=True)
        ]

    return _Trained(tasks, results, test)


def _train_kernel(
    job: Job, problem: Problem, parts: Sequence[Selection], kernel: Kernel
) -> _Trained:
    """A kernel and its classifier: nothing is drawn at random, nothing goes by epochs."""
    if problem.kind != "classification":
        raise ValueError(f"{kernel.title} classifies; {problem.name} is a {problem.kind}")
    made, scores = [], []
    for run, part in zip(job.runs, parts, strict=True):
        machine = kernel.build(model_settings(run))
        machine.fit(problem.graphs, part.train, problem.y[part.train].numpy())
        made.append(machine)
        scores.append(_accuracy(machine, problem, part.validation))
    tasks = [problem.task(part.train) for part in parts]

    def test(index: Sequence[Tensor]) -> list[float]:
        return [_accuracy(m, problem, i) for m, i in zip(made, index, strict=True)]

    return _Trained(tasks, [_Choice(score) for score in scores], test)


def _accuracy(machine: Any, problem: Problem, index: Tensor) -> float:
    found = np.asarray(machine.predict(problem.graphs, index))
    return float((found == problem.y[index].numpy()).mean())


def _network(system: System, problem: Problem, run: Run, part: Selection) -> nn.Module:
    shape = DataShape.of(problem.graphs, problem.outputs, part.train)
    return system.build(shape, model_settings(run), seed_of(run))


def model_settings(run: Run) -> dict[str, Any]:
    """The part of a run's configuration that is about the model."""
    return {k: v for k, v in run.configuration.items() if k not in TRAINING}


def training_of(run: Run) -> FitConfig:
    """The part of a run's configuration that is about training."""
    return FitConfig(**{k: v for k, v in run.configuration.items() if k in TRAINING})


def seed_of(run: Run) -> int:
    """The seed of a run's parameters and mini-batches: another one in every fold."""
    return 1000 * run.seed + run.fold


def _fingerprint(job: Job, problem: Problem) -> str:
    return f"{problem.fingerprint} {job.name}"


def _record(
    run: Run,
    problem: Problem,
    task: Any,
    result: FitResult | _Choice,
    test_score: float | None,
    circumstances: Circumstances,
) -> Record:
    if isinstance(result, _Choice):
        loss, score, best, curve = math.nan, result.validation_score, 0, {}
    else:
        kept = result.curve[result.best_epoch - 1]
        loss, score, best = kept.validation_loss, kept.validation_score, result.best_epoch
        names = ("train_loss", "validation_loss", "validation_score")
        curve = {name: [_short(getattr(e, name)) for e in result.curve] for name in names}
    return Record(
        run=run,
        fingerprint=problem.fingerprint,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        validation_loss=loss,
        validation_score=score,
        test_score=test_score,
        best_epoch=best,
        curve=curve,
        circumstances=circumstances,
    )


def _short(value: float) -> float | None:
    """A figure of a curve to five digits: enough to draw, and files stay small."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
