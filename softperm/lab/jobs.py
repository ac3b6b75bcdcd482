"""Jobs: runs whose networks have equal shapes and are trained in one stack."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softperm.lab.evaluation_data import EvaluationData, SelectionSplit
from softperm.lab.records import Circumstances, PeakMemory, Record, Run, device_name
from softperm.lab.systems import DataShape, Kernel, PiGNNSystem, System, find_system
from softperm.training.batching import Examples
from softperm.training.epoch_tracker import CURVES, EpochTracker
from softperm.training.loop import FitResult, fit, predict
from softperm.training.settings import TRAINING, TrainingConfig
from softperm.training.stack import Stack, predict_stack
from softperm.training.tasks import Task


@dataclass(frozen=True)
class Job:
    """Runs that are trained in one stack.

    Attributes:
        runs: at least one. Runs that differ in the criterion alone can share one training.
    """

    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """A file name that is unique among the jobs of a dataset."""
        first = self.runs[0]
        content: list[Any] = [dict(first.configuration), [[r.fold, r.seed] for r in self.runs]]
        if any(run.configuration != first.configuration for run in self.runs):
            content.append([dict(run.configuration) for run in self.runs])
        others = len({run.dataset for run in self.runs}) - 1
        if others:
            content.append([run.dataset for run in self.runs])
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
        target = f"{first.dataset}+{others}" if others else first.dataset
        return f"{target}.{first.model}.{first.stage}.{digest}"

    @property
    def epochs(self) -> int:
        """Maximum number of epochs, summed over runs."""
        return sum(epochs_of(run) for run in self.runs)

    @property
    def description(self) -> str:
        """System, stage and number of models."""
        count, first = len(self.runs), self.runs[0]
        models = f"{count} model{'s' if count > 1 else ''}"
        return f"{first.model}, {first.stage}, {models}"

    def split_by_target(self) -> list[Job]:
        """A job for each target."""
        targets = dict.fromkeys(run.dataset for run in self.runs)
        return [Job(tuple(run for run in self.runs if run.dataset == name)) for name in targets]


def group_into_jobs(runs: Iterable[Run], max_models: int) -> list[Job]:
    """Groups runs into as few jobs as possible; runs of one training stay together.

    Jobs of one shape have nearly equal sizes, the larger ones first: when some of the jobs are
    finished, the remaining runs are grouped into the same jobs again.

    Args:
        runs: what has to be trained.
        max_models: maximum number of models in a stack.
    """
    shapes: dict[tuple[str, str], dict[tuple, list[Run]]] = {}
    for run in runs:
        trainings = shapes.setdefault((run.model, _shape_key(run)), {})
        trainings.setdefault(_training_key(run), []).append(run)
    jobs = []
    for (model, _), trainings in shapes.items():
        system, groups = find_system(model), list(trainings.values())
        stackable = isinstance(system, System) and system.stackable
        count = math.ceil(len(groups) / max_models) if stackable else len(groups)
        size, larger = divmod(len(groups), count)
        for k in range(count):
            begin = k * size + min(k, larger)
            part = groups[begin : begin + size + (k < larger)]
            jobs.append(Job(tuple(chain.from_iterable(part))))
    return jobs


def configuration_key(configuration: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """A text that is equal for equal configurations, also after JSON made lists of tuples.

    Args:
        configuration: hyper-parameters by name.
        without: names to ignore.
    """
    counted = {k: v for k, v in configuration.items() if k not in without}
    return json.dumps(counted, sort_keys=True)


def _shape_key(run: Run) -> str:
    """Equal for runs that can be trained in one stack.

    They may differ in learning rate, criterion and the settings that the system lists as
    ``shape_free``.
    """
    system = find_system(run.model)
    free = ("learning_rate", "criterion", *system.shape_free) if isinstance(system, System) else ()
    return configuration_key(run.configuration, free)


def _training_key(run: Run) -> tuple[str, int, int, str]:
    """Equal for runs that can share one training.

    In the selection stage the criterion is applied to the curve afterwards, so runs that differ in
    it alone are one training, unless the criterion controls the decay of the learning rate. A final
    run needs the weights of its own best epoch.
    """
    afterwards = run.stage == "selection" and run.configuration.get("decay") is None
    without = ("criterion",) if afterwards else ()
    return run.dataset, run.fold, run.seed, configuration_key(run.configuration, without)


def epochs_of(run: Run) -> int:
    """Maximum number of epochs of a run; 1 for a kernel."""
    return run.configuration.get("epochs", 1)


def seed_of(run: Run) -> int:
    """Seed of the parameters and mini-batches of a run; different in every fold."""
    return 1000 * run.seed + run.fold


def model_settings(run: Run) -> dict[str, Any]:
    """The settings of the model in a run's configuration."""
    return {k: v for k, v in run.configuration.items() if k not in TRAINING}


def training_config(run: Run) -> TrainingConfig:
    """The settings of training in a run's configuration."""
    return TrainingConfig(**{k: v for k, v in run.configuration.items() if k in TRAINING})


def check_configuration(model: str, configuration: Mapping[str, Any]) -> None:
    """Raises ValueError if a system does not have these settings or a value is out of range."""
    system = find_system(model)
    known = (*TRAINING, *system.settings)
    if unknown := sorted(set(configuration) - set(known)):
        raise ValueError(f"{model} has no setting {', '.join(unknown)}: it has {', '.join(known)}")
    run = Run("", model, "final", 0, 1, configuration, 0)
    if isinstance(system, PiGNNSystem):
        system.check(model_settings(run))
    training_config(run)


def train_job(
    job: Job,
    data: EvaluationData,
    memory: PeakMemory,
    *,
    checkpoint: Path | None = None,
    on_epoch: Callable[[int], None] = lambda epoch: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Generator[None, None, list[Record]]:
    """Trains the models of a job and tests those of the final stage.

    The generator yields after each epoch of a stack, so that several jobs can take turns; a network
    that is trained alone takes all its epochs at once.

    Args:
        job: what to train.
        data: graphs, targets and splits.
        memory: measures the peak memory of the jobs on a device, on which this one is trained.
        checkpoint: file from which an interrupted training resumes.
        on_epoch: called with the number of each finished epoch.
        interrupted: whether to stop.

    Returns:
        A record of each run.

    Raises:
        KeyboardInterrupt: the training was interrupted; the checkpoint holds its state.
    """
    with memory.measure() as peak:
        stopwatch = _Stopwatch()
        trainings = _one_run_per_training(job.runs)
        steps = _train(trainings, job, data, memory.device, checkpoint, on_epoch, interrupted)
        trained = yield from stopwatch.time(steps)
        scores: list[float | None] = [None] * len(trainings)
        if job.runs[0].stage == "final":
            scores = list(trained.test([data.splits[run.fold].test for run in trainings]))
    circumstances = Circumstances(
        seconds=max(stopwatch.seconds, trained.seconds) / len(job.runs),
        stacked=len(trainings),
        memory=peak.bytes,
        device=device_name(memory.device),
        memory_shared_by=peak.shared_by,
    )
    place = {_training_key(run): k for k, run in enumerate(trainings)}
    records = []
    for run in job.runs:
        k = place[_training_key(run)]
        result, task = trained.results[k], trained.tasks[k]
        records.append(_record(run, data, task, result, scores[k], circumstances))
    return records


def _one_run_per_training(runs: Iterable[Run]) -> list[Run]:
    first: dict[tuple, Run] = {}
    for run in runs:
        first.setdefault(_training_key(run), run)
    return list(first.values())


class _Stopwatch:
    """Measures the time of steps, without the pauses between them."""

    def __init__(self) -> None:
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def time(self, steps: Generator[None, None, _Trained]) -> Generator[None, None, _Trained]:
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
    """Trained models: their tasks, the results of training, and how to test them."""

    tasks: Sequence[Task]
    results: Sequence[FitResult | _KernelResult]
    test: Callable[[Sequence[Tensor]], Sequence[float]]

    @property
    def seconds(self) -> float:
        """Time of all epochs, including those before an interruption."""
        fits = [result for result in self.results if isinstance(result, FitResult)]
        return sum(epoch.seconds for fit in fits for epoch in fit.curve)


@dataclass(frozen=True)
class _KernelResult:
    """The validation score of a kernel, which has no epochs."""

    validation_score: float


def _train(
    runs: Sequence[Run],
    job: Job,
    data: EvaluationData,
    device: torch.device,
    checkpoint: Path | None,
    on_epoch: Callable[[int], None],
    interrupted: Callable[[], bool],
) -> Generator[None, None, _Trained]:
    system = find_system(runs[0].model)
    parts = [data.selection_split(run.fold) for run in runs]
    if isinstance(system, Kernel):
        return _train_kernel(runs, data, parts, system)
    config = training_config(runs[0])
    if len(runs) < len(job.runs):
        config = replace(config, patience=None)  # every criterion needs the whole curve
    tasks = [data.task(run.dataset, part.train) for run, part in zip(runs, parts, strict=True)]
    targets = [data.targets[run.dataset].y for run in runs]
    models = [_build(system, data, run, part) for run, part in zip(runs, parts, strict=True)]
    if system.stackable:
        stack = Stack(
            models, tasks, data.graphs, targets,
            [part.train for part in parts], [part.validation for part in parts],
            [seed_of(run) for run in runs], config,
            learning_rates=[training_config(run).learning_rate for run in runs],
            criteria=[training_config(run).criterion for run in runs],
            device=device,
        )  # fmt: skip
        for epoch in stack.epochs(checkpoint, _fingerprint(job, data), interrupted):
            on_epoch(epoch)
            yield
        results = stack.results()
    else:
        results = [
            fit(
                model,
                task,
                Examples(data.graphs, y, part.train),
                replace(config, seed=seed_of(run)),
                validation=Examples(data.graphs, y, part.validation),
                device=device,
                checkpoint=checkpoint,
                fingerprint=_fingerprint(job, data),
                on_epoch=lambda epoch: on_epoch(epoch.number),
                interrupted=interrupted,
            )
            for run, model, task, y, part in zip(runs, models, tasks, targets, parts, strict=True)
        ]

    def test(index: Sequence[Tensor]) -> list[float]:
        if system.stackable:
            outputs = predict_stack(models, data.graphs.to(device), index, config.batch_size)
        else:
            outputs = [
                predict(model, data.graphs, i, config.batch_size, device)
                for model, i in zip(models, index, strict=True)
            ]
        tested = zip(tasks, outputs, targets, index, strict=True)
        return [task.score(o, y[i]) for task, o, y, i in tested]

    return _Trained(tasks, results, test)


def _train_kernel(
    runs: Sequence[Run], data: EvaluationData, parts: Sequence[SelectionSplit], kernel: Kernel
) -> _Trained:
    """Fits a kernel classifier for each run."""
    targets = [data.targets[run.dataset].y for run in runs]
    machines = []
    for run, y, part in zip(runs, targets, parts, strict=True):
        machine = kernel.build(model_settings(run))
        machines.append(machine.fit(data.graphs, part.train, y[part.train].numpy()))

    def accuracy(index: Sequence[Tensor]) -> list[float]:
        return [
            float((np.asarray(machine.predict(data.graphs, i)) == y[i].numpy()).mean())
            for machine, y, i in zip(machines, targets, index, strict=True)
        ]

    tasks = [data.task(run.dataset, part.train) for run, part in zip(runs, parts, strict=True)]
    scores = accuracy([part.validation for part in parts])
    return _Trained(tasks, [_KernelResult(score) for score in scores], accuracy)


def _build(system: System, data: EvaluationData, run: Run, part: SelectionSplit) -> nn.Module:
    shape = DataShape.of(data.graphs, data.outputs, part.train)
    return system.build(shape, model_settings(run), seed_of(run))


def _fingerprint(job: Job, data: EvaluationData) -> str:
    targets = dict.fromkeys(data.targets[run.dataset].fingerprint for run in job.runs)
    return f"{' '.join(targets)} {job.name}"


def _record(
    run: Run,
    data: EvaluationData,
    task: Task,
    result: FitResult | _KernelResult,
    test_score: float | None,
    circumstances: Circumstances,
) -> Record:
    if isinstance(result, _KernelResult):
        loss, score, best, curve = math.nan, result.validation_score, 0, {}
    else:
        best = result.best_epoch
        if run.stage == "selection":
            config = training_config(run)
            best = EpochTracker.best_epoch_of(result.curve, config, task.higher_is_better)
        selected = result.curve[best - 1]
        loss, score = selected.validation_loss, selected.validation_score
        curve = {name: [_rounded(getattr(e, name)) for e in result.curve] for name in CURVES}
    return Record(
        run=run,
        fingerprint=data.targets[run.dataset].fingerprint,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        validation_loss=loss,
        validation_score=score,
        test_score=test_score,
        best_epoch=best,
        curve=curve,
        circumstances=circumstances,
    )


def _rounded(value: float) -> float | None:
    """A value of a curve to five digits, which keeps files small; None if not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
