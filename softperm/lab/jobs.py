"""One unit of work of the protocol: models of one shape, trained side by side."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from softperm.lab.alike import best_epoch, distinct, training_of
from softperm.lab.baselines import DataShape, Kernel, System
from softperm.lab.problem import Problem, Selection
from softperm.lab.records import Circumstances, Record, Run, device_name, peak_memory
from softperm.lab.systems import PiGNNSystem, find_system
from softperm.training.fit import Examples, FitResult, TrainingConfig, fit, predict
from softperm.training.scoreboard import CURVES
from softperm.training.settings import TRAINING
from softperm.training.stack import Stack
from softperm.training.stacked_outputs import predict_stack

Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """Runs whose networks have one shape; see :mod:`softperm.lab.alike`.

    Attributes:
        runs: at least one; some may be the same training, looked at by another criterion.
    """

    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """A file's name that no other job of the same problem has."""
        first = self.runs[0]
        content: list[Any] = [dict(first.configuration), [[r.fold, r.seed] for r in self.runs]]
        if any(run.configuration != first.configuration for run in self.runs):
            content.append([dict(run.configuration) for run in self.runs])
        others = len({run.dataset for run in self.runs}) - 1
        if others:
            content.append([run.dataset for run in self.runs])
        text = json.dumps(content, sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:16]
        asked = f"{first.dataset}+{others}" if others else first.dataset
        return f"{asked}.{first.model}.{first.stage}.{short}"

    @property
    def epochs(self) -> int:
        """How many passes over training graphs it takes, at most."""
        return len(self.runs) * self.runs[0].configuration.get("epochs", 1)


def ended(steps: Generator[None, None, Result]) -> Result:
    """Goes through all steps without a pause; what comes of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def working(
    job: Job,
    problem: Problem,
    device: str,
    checkpoint: Path | None = None,
    on_epoch: Callable[[int], None] = lambda epoch: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Generator[None, None, list[Record]]:
    """Trains the models of a job; those of the final stage are tested, no others.

    It pauses after each epoch of a stack, so that several jobs can take turns; a network that is
    trained alone takes all its epochs at once.

    Args:
        job: what to train.
        problem: on what.
        device: where.
        checkpoint: file that keeps the training while it runs.
        on_epoch: called with the number of each finished epoch.
        interrupted: tells whether to stop.

    Returns:
        A record of each run.

    Raises:
        KeyboardInterrupt: it was interrupted; the checkpoint holds what was done.
    """
    clock = _Clock()
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    runs = distinct(job.runs)
    training = _train(runs, job, problem, torch.device(device), checkpoint, on_epoch, interrupted)
    trained = yield from clock.counting(training)
    scores: list[float | None] = [None] * len(runs)
    if job.runs[0].stage == "final":
        scores = list(trained.test([problem.splits[run.fold].test for run in runs]))
    circumstances = Circumstances(
        max(clock.seconds, trained.seconds) / len(job.runs),
        len(runs),
        peak_memory(torch.device(device)),
        device_name(torch.device(device)),
    )
    place = {training_of(run): k for k, run in enumerate(runs)}
    made = []
    for run in job.runs:
        k = place[training_of(run)]
        given = trained.tasks[k], trained.results[k], scores[k]
        made.append(_record(run, problem, *given, circumstances))
    return made


class _Clock:
    """Counts the seconds since it was made, but for those in which others had their turn."""

    def __init__(self) -> None:
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Counted so far."""
        return time.perf_counter() - self.started

    def counting(self, steps: Generator[None, None, _Trained]) -> Generator[None, None, _Trained]:
        """The same steps; what happens between two of them is not counted."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            paused = time.perf_counter()
            yield
            self.started += time.perf_counter() - paused


@dataclass(frozen=True)
class _Trained:
    """Trained models, what training gave, and how to test them."""

    tasks: Sequence[Any]
    results: Sequence[FitResult | _Choice]
    test: Callable[[Sequence[Tensor]], Sequence[float]]

    @property
    def seconds(self) -> float:
        """Spent on all epochs, those before an interruption included."""
        fits = [result for result in self.results if isinstance(result, FitResult)]
        return sum(epoch.seconds for fit in fits for epoch in fit.curve)


@dataclass(frozen=True)
class _Choice:
    """What a system without epochs gave on validation graphs."""

    validation_score: float


def _train(
    runs: Sequence[Run],
    job: Job,
    problem: Problem,
    device: torch.device,
    checkpoint: Path | None,
    on_epoch: Callable[[int], None],
    interrupted: Callable[[], bool],
) -> Generator[None, None, _Trained]:
    system = find_system(runs[0].model)
    parts = [problem.selection(run.fold) for run in runs]
    if isinstance(system, Kernel):
        return _train_kernel(runs, problem, parts, system)
    config = training_config(runs[0])
    if len(runs) < len(job.runs):
        config = replace(config, patience=None)  # each criterion has its own: all epochs are wanted
    tasks = [problem.task(run.dataset, part.train) for run, part in zip(runs, parts, strict=True)]
    targets = [problem.questions[run.dataset].y for run in runs]
    models = [_network(system, problem, run, part) for run, part in zip(runs, parts, strict=True)]
    if system.stackable:
        stack = Stack(
            models, tasks, problem.graphs, targets,
            [part.train for part in parts], [part.validation for part in parts],
            [seed_of(run) for run in runs], config,
            learning_rates=[training_config(run).learning_rate for run in runs],
            criteria=[training_config(run).criterion for run in runs],
            device=device,
        )  # fmt: skip
        for epoch in stack.epochs(checkpoint, _fingerprint(job, problem), interrupted):
            on_epoch(epoch)
            yield
        results = stack.results()
    else:
        results = []
        for run, model, task, y, part in zip(runs, models, tasks, targets, parts, strict=True):
            result = fit(
                model,
                task,
                Examples(problem.graphs, y, part.train),
                replace(config, seed=seed_of(run)),
                validation=Examples(problem.graphs, y, part.validation),
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
        given = zip(tasks, outputs, targets, index, strict=True)
        return [task.score(o, y[i]) for task, o, y, i in given]

    return _Trained(tasks, results, test)


def _train_kernel(
    runs: Sequence[Run], problem: Problem, parts: Sequence[Selection], kernel: Kernel
) -> _Trained:
    """A kernel and its classifier: nothing is drawn at random, nothing goes by epochs."""
    made, scores, tasks = [], [], []
    targets = [problem.questions[run.dataset].y for run in runs]
    for run, y, part in zip(runs, targets, parts, strict=True):
        machine = kernel.build(model_settings(run))
        machine.fit(problem.graphs, part.train, y[part.train].numpy())
        made.append(machine)
        scores.append(_accuracy(machine, problem, y, part.validation))
        tasks.append(problem.task(run.dataset, part.train))

    def test(index: Sequence[Tensor]) -> list[float]:
        given = zip(made, targets, index, strict=True)
        return [_accuracy(machine, problem, y, i) for machine, y, i in given]

    return _Trained(tasks, [_Choice(score) for score in scores], test)


def _accuracy(machine: Any, problem: Problem, y: Tensor, index: Tensor) -> float:
    found = np.asarray(machine.predict(problem.graphs, index))
    return float((found == y[index].numpy()).mean())


def _network(system: System, problem: Problem, run: Run, part: Selection) -> nn.Module:
    shape = DataShape.of(problem.graphs, problem.outputs, part.train)
    return system.build(shape, model_settings(run), seed_of(run))


def model_settings(run: Run) -> dict[str, Any]:
    """The part of a run's configuration that is about the model."""
    return {k: v for k, v in run.configuration.items() if k not in TRAINING}


def training_config(run: Run) -> TrainingConfig:
    """The part of a run's configuration that is about training."""
    return TrainingConfig(**{k: v for k, v in run.configuration.items() if k in TRAINING})


def check_configuration(model: str, configuration: Mapping[str, Any]) -> None:
    """Raises ValueError if a system cannot be trained so, whatever the graphs."""
    known = (*TRAINING, *find_system(model).settings)
    if unknown := sorted(set(configuration) - set(known)):
        raise ValueError(f"{model} has no setting {', '.join(unknown)}: it has {', '.join(known)}")
    run = Run("", model, "final", 0, 1, configuration, 0)
    system = find_system(model)
    if isinstance(system, PiGNNSystem):
        system.check(model_settings(run))
    training_config(run)


def seed_of(run: Run) -> int:
    """The seed of a run's parameters and mini-batches: another one in every fold."""
    return 1000 * run.seed + run.fold


def _fingerprint(job: Job, problem: Problem) -> str:
    asked = dict.fromkeys(problem.questions[run.dataset].fingerprint for run in job.runs)
    return f"{' '.join(asked)} {job.name}"


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
        best = result.best_epoch
        if run.stage == "selection":
            config = training_config(run)
            better = task.higher_is_better
            best = best_epoch(result.curve, config.criterion, better, config.patience)
        kept = result.curve[best - 1]
        loss, score = kept.validation_loss, kept.validation_score
        curve = {name: [_short(getattr(e, name)) for e in result.curve] for name in CURVES}
    return Record(
        run=run,
        fingerprint=problem.questions[run.dataset].fingerprint,
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
