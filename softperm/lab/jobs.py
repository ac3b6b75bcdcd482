"""Jobs: runs whose networks have equal shapes and are trained in one stack."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn import metrics
from torch import Tensor, nn

from softperm.data.collection import Collection
from softperm.errors import counted
from softperm.estimators.pignn import measure_sharpness
from softperm.lab.baselines.layers import MemoryLimited
from softperm.lab.configurations import (
    FOREST,
    FORESTS,
    PREDICTORS,
    configuration_key,
    ensemble_size,
    epochs_of,
    model_settings,
    predicts_by,
    reads_curve,
    settings_of,
)
from softperm.lab.evaluation_data import EvaluationData, SelectionSplit
from softperm.lab.records import Circumstances, PeakMemory, Record, Run, device_name
from softperm.lab.systems import ClassicalSystem, DataShape, System, find_system
from softperm.nn.model import PiGNN
from softperm.nn.permutation import Sharpness
from softperm.parallel import thread_pool
from softperm.settings import ForestConfig, StructuralFeatures, TrainingConfig
from softperm.training.cuda_graphs import evaluating
from softperm.training.data import Examples
from softperm.training.forest import GraphForest, mean_with_network
from softperm.training.loop import CURVES, Epoch, EpochTracker, FitResult, fit, predict
from softperm.training.stack import Stack, predict_stack
from softperm.training.tasks import (
    Classification,
    LinearFit,
    MultiLabel,
    Regression,
    Task,
    class_factors,
    mean_loss,
    mean_prediction,
)

SEEDS = 1000  # seeds of one evaluation; those of the next begin after them
POLL_SECONDS = 0.02  # for which a job waits for another thread before others take their turn
Returned = TypeVar("Returned")


@dataclass(frozen=True)
class Job:
    """Runs whose networks are trained in one stack.

    Attributes:
        runs: at least one; see :func:`plan_networks` for the networks that they share.
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
        return f"{first.model}, {first.stage}, {counted(count, 'model')}"

    def split_by_target(self) -> list[Job]:
        """A job for each target."""
        targets = dict.fromkeys(run.dataset for run in self.runs)
        return [Job(tuple(run for run in self.runs if run.dataset == name)) for name in targets]


@dataclass(frozen=True)
class Network:
    """A network to train.

    Attributes:
        run: a run that uses it, whose settings it has.
        seed: of its parameters and mini-batches, before the fold is added; see :func:`seed_of`.
    """

    run: Run
    seed: int


def plan_networks(runs: Iterable[Run]) -> tuple[list[Network], list[tuple[int, ...]]]:
    """The networks that runs need, and the indices of each run's networks among them.

    Runs share a network if they differ only in how they predict: by the network, by a random
    forest, by both, or by the mean of several networks. In the selection stage, runs that differ
    in the criterion share one too, as long as they need no more than the training curve.
    """
    runs = list(runs)
    criteria: dict[tuple, set[Any]] = {}
    for run in runs:
        criteria.setdefault(_training_key(run), set()).add(run.configuration.get("criterion"))
    places: dict[tuple, int] = {}
    networks: list[Network] = []
    members: list[tuple[int, ...]] = []
    for run in runs:
        key = _training_key(run)
        any_criterion = len(criteria[key]) > 1 and reads_curve(run)
        criterion = None if any_criterion else run.configuration.get("criterion")
        own = []
        for seed in _network_seeds(run):
            place = places.setdefault((key, seed, criterion), len(networks))
            if place == len(networks):
                networks.append(Network(run, seed))
            own.append(place)
        members.append(tuple(own))
    return networks, members


def group_into_jobs(runs: Iterable[Run], max_models: int) -> list[Job]:
    """Groups runs into as few jobs as possible; runs that share networks stay together.

    Jobs of one shape have nearly equal sizes, the larger ones first: when some of the jobs are
    finished, the remaining runs are grouped into the same jobs again.
    """
    runs = list(runs)
    with_ensemble = {_training_key(run) for run in runs if ensemble_size(run) > 1}
    shapes: dict[tuple, dict[tuple, list[Run]]] = {}
    for run in runs:
        key = _training_key(run)
        seed = None if key in with_ensemble else run.seed
        groups = shapes.setdefault(_shape_key(run), {})
        groups.setdefault((*key, seed), []).append(run)
    jobs = []
    for trainings in shapes.values():
        groups = list(trainings.values())
        system = find_system(groups[0][0].model)
        count = len(groups)
        if isinstance(system, System) and system.stackable:
            largest = max(len(plan_networks(group)[0]) for group in groups)
            count = math.ceil(len(groups) / max(1, max_models // largest))
        size, larger = divmod(len(groups), count)
        for k in range(count):
            begin = k * size + min(k, larger)
            part = groups[begin : begin + size + (k < larger)]
            jobs.append(Job(tuple(chain.from_iterable(part))))
    return jobs


def _shape_key(run: Run) -> tuple:
    """Equal for runs whose networks can be trained in one stack.

    They may differ in learning rate, criterion, the way they predict, and the settings that the
    system lists as ``shape_free``. Colours of vertices are learnt on the training graphs of a fold,
    so each fold has its own number of colours.
    """
    system = find_system(run.model)
    if not isinstance(system, System):
        return run.model, configuration_key(run.configuration)
    free = ("learning_rate", "criterion", *_predicting(run), *system.shape_free)
    coloured = run.configuration.get("colours") or run.configuration.get("joint_labels")
    fold = run.fold if coloured else None
    base = run.model.partition("+")[0]
    return base, run.stage, configuration_key(run.configuration, free), fold


def _training_key(run: Run) -> tuple[str, int, str]:
    """Equal for runs that can share networks of the same seed; see :func:`plan_networks`.

    A final run needs the weights of its own best epoch, and so does any run if the criterion
    controls the decay of the learning rate.
    """
    afterwards = run.stage == "selection" and run.configuration.get("decay") is None
    without = (*_predicting(run), *(("criterion",) if afterwards else ()))
    return run.dataset, run.fold, configuration_key(run.configuration, without)


def _predicting(run: Run) -> tuple[str, ...]:
    """Names of a run's settings that change how it predicts, not how its networks are trained."""
    return ("ensemble", *FOREST, *(("head",) if predicts_by(run) in PREDICTORS else ()))


def _network_seeds(run: Run) -> list[int]:
    """Seeds of a run's networks; those of the final runs 1, 2, … follow one another.

    A mean of k networks has the networks of k runs without a mean. The selection stage, run 0, has
    the last seeds of the evaluation besides its own.
    """
    block, place = divmod(run.seed, SEEDS)
    count = ensemble_size(run)
    first = (place - 1) * count + 1 if place else 0
    return [SEEDS * block + (first + k if place else -k % SEEDS) for k in range(count)]


def seed_of(run: Run | Network) -> int:
    """Seed of the parameters and mini-batches of a network; different in every fold."""
    return 1000 * run.seed + (run if isinstance(run, Run) else run.run).fold


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

    The generator yields after each epoch of a stack, and while a forest is fitted by other threads,
    so that several jobs can take turns; a network that is trained alone takes all its epochs at
    once.

    Raises:
        KeyboardInterrupt: the training was interrupted; the checkpoint holds its state.
    """
    with memory.measure() as peak:
        if isinstance(find_system(job.runs[0].model), ClassicalSystem):
            steps = _fit_classical(job, data, interrupted)
        else:
            steps = _train(job, data, memory.device, checkpoint, on_epoch, interrupted)
        results, seconds = yield from _timed(steps)
    spent = sum(epoch.seconds for result in results for epoch in result.curve)
    circumstances = Circumstances(
        seconds=max(seconds, spent) / len(job.runs),
        stacked=len(plan_networks(job.runs)[0]),
        memory=peak.bytes,
        device=device_name(memory.device),
        memory_shared_by=peak.shared_by,
    )
    pairs = zip(job.runs, results, strict=True)
    return [_record(run, data, result, circumstances) for run, result in pairs]


def _timed(
    steps: Generator[None, None, Returned],
) -> Generator[None, None, tuple[Returned, float]]:
    """The result of steps, and their seconds without the pauses between them."""
    seconds = 0.0
    while True:
        started = time.perf_counter()
        try:
            next(steps)
        except StopIteration as end:
            return end.value, seconds + time.perf_counter() - started
        seconds += time.perf_counter() - started
        yield


@dataclass(frozen=True)
class _Result:
    """The result of a run.

    Attributes:
        task: what the outputs mean.
        validation_loss: on the validation graphs; NaN for a system without epochs.
        validation_score: likewise.
        test: outputs for the test graphs and their targets; None in the selection stage.
        curve: the epochs of the run's first network; none for a system without epochs.
        best_epoch: number of the selected epoch.
        sharpness: of the soft permutations of the first network, if it has any.
    """

    task: Task
    validation_loss: float
    validation_score: float
    test: tuple[Tensor, Tensor] | None = None
    curve: Sequence[Epoch] = ()
    best_epoch: int = 0
    sharpness: Sharpness | None = None


def _fit_classical(
    job: Job, data: EvaluationData, interrupted: Callable[[], bool]
) -> Generator[None, None, list[_Result]]:
    """Fits a kernel or a forest for each run."""
    results = []
    for run in job.runs:
        results.append((yield from _in_background(partial(_fit_one, run, data), interrupted)))
    return results


def _fit_one(run: Run, data: EvaluationData) -> _Result:
    system, part = find_system(run.model), data.split_of(run)
    assert isinstance(system, ClassicalSystem)
    y, task = data.targets[run.dataset].y, data.task(run.dataset, part.train)
    own = {k: v for k, v in run.configuration.items() if k in system.settings}
    machine = system.build(own, seed_of(run))
    machine.fit(data.graphs, part.train, y[part.train], task)
    score = math.nan
    if len(part.validation):
        score = task.score(machine.outputs(data.graphs, part.validation), y[part.validation])
    tested = None
    if run.stage == "final":
        test = data.splits[run.fold].test
        tested = machine.outputs(data.graphs, test), y[test]
    return _Result(task, math.nan, score, tested)


def _in_background(
    work: Callable[[], Returned], interrupted: Callable[[], bool]
) -> Generator[None, None, Returned]:
    """The result of work that another thread does; yields while it is not finished."""
    future = thread_pool().submit(work)
    while not wait([future], timeout=POLL_SECONDS).done:
        if interrupted():
            future.cancel()
            raise KeyboardInterrupt
        yield
    return future.result()


def _train(
    job: Job,
    data: EvaluationData,
    device: torch.device,
    checkpoint: Path | None,
    on_epoch: Callable[[int], None],
    interrupted: Callable[[], bool],
) -> Generator[None, None, list[_Result]]:
    """Trains the networks of a job, and predicts with them as each run does."""
    stacked = _Networks(job, data, device)
    parts = stacked.parts
    targets = dict.fromkeys(data.targets[run.dataset].fingerprint for run in job.runs)
    fingerprint = f"{' '.join(targets)} {job.name}"
    fits = yield from stacked.train(checkpoint, fingerprint, on_epoch, interrupted)
    by_network = _Predictions([], [])
    if len(parts[0].validation) and not all(map(reads_curve, job.runs)):
        by_network.validation.extend(stacked.outputs([part.validation for part in parts]))
    if job.runs[0].stage == "final":
        tests = [data.splits[network.run.fold].test for network in stacked.networks]
        by_network.test.extend(stacked.outputs(tests))
    sharpness = [stacked.sharpness(k) for k in range(len(parts))]
    results = []
    for run, own in zip(job.runs, stacked.members, strict=True):
        first = own[0]
        task, y, part = stacked.tasks[first], stacked.targets[first], parts[first]
        predictions = by_network.of(task, own)
        if predicts_by(run) in FORESTS:
            forest = yield from _grow_forest(run, stacked, first, data, interrupted)
            predictions = (
                forest if predicts_by(run) == "forest" else predictions.with_forest(task, forest)
            )
        curve, best = fits[first].curve, fits[first].best_epoch
        if reads_curve(run):
            if run.stage == "selection":
                config = settings_of(run, TrainingConfig)
                best = EpochTracker.best_epoch_of(curve, config, task.higher_is_better)
            loss, score = curve[best - 1].validation_loss, curve[best - 1].validation_score
        elif not predictions.validation:
            loss = score = math.nan
        else:
            (outputs,), answers = predictions.validation, y[part.validation]
            loss = float(mean_loss(task, outputs, task.encode(answers)))
            score = task.score(outputs, answers)
        test = data.splits[run.fold].test
        tested = [(outputs, y[test]) for outputs in predictions.test]
        results.append(
            _Result(task, loss, score, *tested[:1], curve=curve, best_epoch=best,
                    sharpness=sharpness[first])
        )  # fmt: skip
    return results


def _task_of(run: Run, part: SelectionSplit, data: EvaluationData) -> tuple[Task, Tensor]:
    """The task of a run, and what it learns of the targets; a linear fit changes no error."""
    task, y = data.task(run.dataset, part.train), data.targets[run.dataset].y
    if not settings_of(run, TrainingConfig).linear_fit:
        return task, y
    if not isinstance(task, Regression):
        raise ValueError(f"linear_fit is for regressions, and {run.dataset} is not one")
    y = y.double() - LinearFit.of(data.graphs, part.train, y)(data.graphs)
    return Regression.of(y[part.train]), y


@dataclass(frozen=True)
class _Predictions:
    """Outputs for validation and test graphs, of several networks or of one predictor.

    Attributes:
        validation: outputs for validation graphs; none if curves suffice.
        test: outputs for test graphs; none in the selection stage.
        network_share: of forests, the share of a network in the mean with them.
    """

    validation: list[Tensor]
    test: list[Tensor]
    network_share: float = 0.0

    def of(self, task: Task, places: Sequence[int]) -> _Predictions:
        """The mean prediction of the networks at some places."""

        def mean(outputs: list[Tensor]) -> list[Tensor]:
            chosen = [outputs[k] for k in places] if outputs else []
            return [mean_prediction(task, torch.stack(chosen))] if chosen else []

        return _Predictions(mean(self.validation), mean(self.test))

    def with_forest(self, task: Task, other: _Predictions) -> _Predictions:
        """The mean prediction of a network and its forests."""

        def mean(own: list[Tensor], forest: list[Tensor]) -> list[Tensor]:
            pairs = zip(own, forest, strict=True)
            return [mean_with_network(task, *pair, other.network_share) for pair in pairs]

        return _Predictions(mean(self.validation, other.validation), mean(self.test, other.test))


def _grow_forest(
    run: Run,
    networks: _Networks,
    place: int,
    data: EvaluationData,
    interrupted: Callable[[], bool],
) -> Generator[None, None, _Predictions]:
    """The predictions of a run's random forest, which is grown on training graphs alone.

    A forest without aligned vectors does not depend on a network: runs with other networks use the
    same one.
    """
    settings, features = settings_of(run, ForestConfig), settings_of(run, StructuralFeatures)
    training, seed = settings_of(run, TrainingConfig), seed_of(networks.networks[place])
    weights = training.class_weight
    key = (run.dataset, run.fold, run.stage, seed, settings, features, str(weights),
           training.linear_fit)  # fmt: skip
    graphs = networks.graphs
    known = None if settings.forest_vectors else data.cached(key, graphs)
    if known is not None:
        return known
    part, task, y = networks.parts[place], networks.tasks[place], networks.targets[place]
    vectors = networks.vectors(place) if settings.forest_vectors else None

    def rows(_: Collection, index: Tensor) -> np.ndarray:
        assert vectors is not None
        return vectors[index.numpy()]

    align = None if vectors is None else rows

    def grow() -> _Predictions:
        factors = class_factors(weights, task, y[part.train])
        forest = GraphForest.fit(
            graphs, part.train, y, task, align,
            trees=settings.trees, rounds=settings.forest_colours, seed=seed,
            factors=factors, weigh=settings.weigh_forests,
        )  # fmt: skip
        predictions = _Predictions([], [], forest.network_share)
        if len(part.validation):
            predictions.validation.append(forest.outputs(graphs, part.validation, task, align))
        if run.stage == "final":
            test = data.splits[run.fold].test
            predictions.test.append(forest.outputs(graphs, test, task, align))
        return predictions

    predictions = yield from _in_background(grow, interrupted)
    if not settings.forest_vectors:
        data.cache[key] = graphs, predictions
    return predictions


def _common_config(job: Job, members: Sequence[tuple[int, ...]]) -> TrainingConfig:
    """The settings of training that the networks of a job share."""
    config = settings_of(job.runs[0], TrainingConfig)
    criteria: dict[int, set[str]] = {}
    for run, own in zip(job.runs, members, strict=True):
        for place in own:
            criteria.setdefault(place, set()).add(settings_of(run, TrainingConfig).criterion)
    if any(len(each) > 1 for each in criteria.values()):
        config = replace(config, patience=None)  # every criterion needs the whole curve
    return config


class _Networks:
    """The networks of a job."""

    def __init__(self, job: Job, data: EvaluationData, device: torch.device) -> None:
        first, system = job.runs[0], find_system(job.runs[0].model)
        assert isinstance(system, System)
        self.system, self.device = system, device
        self.networks, self.members = plan_networks(job.runs)
        self.config = _common_config(job, self.members)
        self.parts = [data.split_of(network.run) for network in self.networks]
        features = settings_of(first, StructuralFeatures)
        self.graphs = data.with_features(features, self.parts[0].train)
        self.graphs = data.extended(self.graphs, system)
        self.tasks: list[Task] = []
        self.targets: list[Tensor] = []
        self.models: list[nn.Module] = []
        for network, part in zip(self.networks, self.parts, strict=True):
            task, y = _task_of(network.run, part, data)
            self.tasks.append(task)
            self.targets.append(y)
            shape = DataShape.of(self.graphs, task.outputs, part.train)
            settings = model_settings(network.run)
            self.models.append(system.build(shape, settings, seed_of(network)))
        shapes: dict[tuple, list[int]] = {}  # where training graphs decide a size, folds differ
        for k, model in enumerate(self.models):
            form = tuple((name, tensor.shape) for name, tensor in model.state_dict().items())
            shapes.setdefault(form, []).append(k)
        self.stacks = [part for members in shapes.values() for part in self._divided(members)]

    def _divided(self, members: list[int]) -> list[list[int]]:
        """Networks of one shape in stacks that may hold their largest mini-batches at once."""
        model, most = self.models[members[0]], len(members)
        if isinstance(model, MemoryLimited):
            order = self.graphs.sizes.argsort(descending=True)
            needed = model.needed(self.graphs.batch(order[: self.config.batch_size]))
            most = min(max(model.memory_limit // max(needed, 1), 1), most)
        return [members[k : k + most] for k in range(0, len(members), most)]

    def train(
        self,
        checkpoint: Path | None,
        fingerprint: str,
        on_epoch: Callable[[int], None],
        interrupted: Callable[[], bool],
    ) -> Generator[None, None, list[FitResult]]:
        """Trains all networks, in a stack if the system allows it."""
        seeds = [seed_of(network) for network in self.networks]
        if not self.system.stackable:
            rows = zip(self.models, self.tasks, self.targets, self.parts, seeds, strict=True)
            return [
                fit(
                    model,
                    task,
                    Examples(self.graphs, y, part.train),
                    replace(self.config, seed=seed),
                    validation=Examples(self.graphs, y, part.validation)
                    if len(part.validation)
                    else None,
                    device=self.device,
                    checkpoint=checkpoint,
                    fingerprint=fingerprint,
                    on_epoch=lambda epoch: on_epoch(epoch.number),
                    interrupted=interrupted,
                )
                for model, task, y, part, seed in rows
            ]
        files = [
            checkpoint.with_suffix(f".{k}.bin") if checkpoint and k else checkpoint
            for k in range(len(self.stacks))
        ]
        results: dict[int, FitResult] = {}
        for k, (members, file) in enumerate(zip(self.stacks, files, strict=True)):
            stack, own = self._stack(members, seeds), f"{fingerprint} {k}" if k else fingerprint
            for epoch in stack.epochs(file, own, interrupted):
                on_epoch((k * self.config.epochs + epoch) // len(self.stacks))
                yield
            results |= zip(members, stack.results(), strict=True)
            del stack  # before the next one takes memory
        for file in files[1:]:
            if file is not None:
                file.unlink(missing_ok=True)
        return [results[k] for k in range(len(self.models))]

    def _stack(self, members: Sequence[int], seeds: Sequence[int]) -> Stack:
        """The stack of some networks, whose shapes are equal."""
        configs = [settings_of(self.networks[k].run, TrainingConfig) for k in members]
        return Stack(
            [self.models[k] for k in members],
            [self.tasks[k] for k in members],
            self.graphs,
            [self.targets[k] for k in members],
            [self.parts[k].train for k in members],
            [self.parts[k].validation for k in members],
            [seeds[k] for k in members],
            self.config,
            learning_rates=[config.learning_rate for config in configs],
            criteria=[config.criterion for config in configs],
            device=self.device,
        )

    def outputs(self, index: Sequence[Tensor]) -> list[Tensor]:
        """Each network's outputs for its own graphs, on the CPU."""
        batch_size = self.config.batch_size
        if self.system.stackable:
            graphs, outputs = self.graphs.to(self.device), dict[int, Tensor]()
            for members in self.stacks:
                models, own = [self.models[k] for k in members], [index[k] for k in members]
                outputs |= zip(members, predict_stack(models, graphs, own, batch_size), strict=True)
            return [outputs[k] for k in range(len(self.models))]
        pairs = zip(self.models, index, strict=True)
        return [predict(model, self.graphs, i, batch_size, self.device) for model, i in pairs]

    @torch.no_grad()
    def vectors(self, place: int) -> Float[np.ndarray, "B Z"]:
        """The aligned vectors of a network for all graphs."""
        model = self.models[place]
        assert isinstance(model, PiGNN)
        parts = torch.arange(len(self.graphs)).split(self.config.batch_size)
        with evaluating(model):
            rows = [model.transform(self.graphs.batch(i).to(self.device)).cpu() for i in parts]
        return torch.cat(rows).numpy()

    def sharpness(self, place: int) -> Sharpness | None:
        """The sharpness of a network's permutations of some training graphs."""
        model = self.models[place]
        if not isinstance(model, PiGNN):
            return None
        return measure_sharpness(model, self.graphs, self.parts[place].train)


def _record(
    run: Run, data: EvaluationData, result: _Result, circumstances: Circumstances
) -> Record:
    task, system = result.task, find_system(run.model)
    measured = result.sharpness and asdict(result.sharpness)
    score = confusion = roc_auc = None
    if result.test is not None:
        outputs, y = result.test
        score = task.score(outputs, y)
        if isinstance(task, Classification):
            confusion = confusion_matrix(outputs, y)
            if not isinstance(system, ClassicalSystem) or system.probabilities:
                roc_auc = class_roc_auc(outputs, y)
                roc_auc = None if roc_auc is None else _rounded(roc_auc)
    return Record(
        run=run,
        fingerprint=data.targets[run.dataset].fingerprint,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        validation_loss=result.validation_loss,
        validation_score=result.validation_score,
        test_score=score,
        best_epoch=result.best_epoch,
        curve={n: [_rounded(getattr(e, n)) for e in result.curve] for n in CURVES}
        if result.curve
        else {},
        circumstances=circumstances,
        confusion=confusion,
        roc_auc=roc_auc,
        sharpness=measured and {name: float(f"{v:.4g}") for name, v in measured.items()},
    )


def confusion_matrix(outputs: Float[Tensor, "b C"], y: Int[Tensor, " b"]) -> list[list[int]]:
    """How many graphs of each class are taken for each class: a row for each true class.

    >>> outputs = torch.tensor([[2.0, 1.0], [0.0, 1.0], [5.0, 1.0]])
    >>> confusion_matrix(outputs, torch.tensor([0, 1, 1]))
    [[1, 0], [1, 1]]
    """
    return metrics.confusion_matrix(y, outputs.argmax(1), labels=range(outputs.shape[1])).tolist()


def class_roc_auc(outputs: Float[Tensor, "b C"], y: Int[Tensor, " b"]) -> float | None:
    """ROC-AUC of each class against the others, averaged over the classes that graphs have.

    None if all graphs have one class, or if an output is not a number.
    """
    if bool(outputs.isnan().any()):
        return None
    answers = torch.nn.functional.one_hot(y, outputs.shape[1]).double()
    score = MultiLabel(outputs.shape[1]).score(outputs.softmax(1), answers)
    return None if math.isnan(score) else score


def _rounded(value: float) -> float | None:
    """A value of a curve to five digits, which keeps files small; None if not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
