"""The fair comparison of Errica et al.: choose on validation graphs, retrain, test once.

Choosing gets :class:`Selection` objects, which hold no test graph; only models of the final stage,
whose configuration has been chosen by then, are given one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from softperm.baselines import Kernel
from softperm.lab.alike import key_of, shape_of, training_of
from softperm.lab.jobs import Job, check_configuration
from softperm.lab.problem import Problem
from softperm.lab.recipes import Recipe, points
from softperm.lab.records import Record, Run, read_records, write_records
from softperm.lab.systems import PiGNNSystem, find_system

RUNS = 1000  # seeds of one evaluation: the next one's are others
Say = Callable[[str, float], None]
"""Told what is being done, and what share of the whole is behind."""


@runtime_checkable
class Engine(Protocol):
    """Somewhere to work."""

    def run(
        self,
        jobs: Sequence[Job],
        problem: Problem,
        folder: Path,
        on_epoch: Callable[[Job, int], None],
    ) -> Iterator[tuple[Job, list[Record] | str]]:
        """Each job with its records, or with the sentence that says why there are none."""
        ...


@dataclass(frozen=True)
class Contender:
    """A system with the configurations to choose from.

    Attributes:
        model: its name.
        configurations: hyper-parameters of model and training, at least one set.
    """

    model: str
    configurations: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Rules:
    """The numbers of the protocol.

    Attributes:
        final_runs: how often the chosen configuration is trained and tested.
        seed: of everything drawn at random.
        stack: how many models at most are trained side by side.
    """

    final_runs: int = 3
    seed: int = 0
    stack: int = 64


class Failed(ValueError):
    """Some systems could not be trained; all others went through the whole protocol.

    Attributes:
        records: the final ones of the others.
    """

    def __init__(self, message: str, records: list[Record]) -> None:
        super().__init__(message)
        self.records = records


def contender_of(recipe: Recipe, model: str) -> Contender:
    """A system with the configurations that a recipe, or the system itself, has for it.

    Raises:
        ValueError: there is no such system or variant, or a setting is unknown or out of range.
    """
    system, changes = find_system(model), recipe.changes(model)
    training = {k: v for k, v in recipe.training.items() if k not in changes}
    choices = {k: v for k, v in training.items() if isinstance(v, list)}
    fixed = {k: v for k, v in training.items() if k not in choices}
    if isinstance(system, PiGNNSystem):
        grid = dict(recipe.grid)
        if "encoder" not in system.fixed:
            grid.pop("layers", None)  # of message passing, which a linear encoder has none of
        elif "layers" not in {**grid, **recipe.settings}:
            grid["layers"] = system.grid["layers"]
        fixed |= recipe.settings
    else:
        grid = dict(system.grid)
    if not isinstance(system, Kernel):  # which is not trained
        grid |= {k: v for k, v in choices.items() if k not in grid}
    grid = {k: v for k, v in grid.items() if k not in changes}
    for point in points(grid):  # also those that are not tried
        check_configuration(model, {**fixed, **changes, **point})
    chosen = points(grid, recipe.configurations)
    return Contender(model, tuple({**fixed, **changes, **point} for point in chosen))


def evaluate(
    problem: Problem,
    contenders: Sequence[Contender],
    rules: Rules,
    engine: Engine,
    folder: Path,
    say: Say = lambda what, share: None,
) -> list[Record]:
    """The whole protocol on one problem; finished jobs are read, not repeated.

    Args:
        problem: graphs, targets and splits.
        contenders: what is compared.
        rules: numbers of the protocol.
        engine: where to work.
        folder: keeps the records; several calls may share it.
        say: told what is being done.

    Returns:
        The records of the final stage.

    Raises:
        ValueError: a system cannot do what the problem asks for; nothing was trained.
        Failed: some jobs failed; the sentence names their systems and folds. The other systems
            were trained and tested as if those had not been asked for.
    """
    for contender in contenders:
        _check_able(contender, problem)
    desk = _Desk(problem, engine, folder, say, _size(problem, contenders, rules))
    chosen: dict[str, dict[int, Mapping[str, Any]]] = {}
    single = [c for c in contenders if len(c.configurations) == 1]
    several = [c for c in contenders if len(c.configurations) > 1]
    records = desk.finish([job for c in several for job in selection_jobs(problem, c, rules)])
    for contender in several:
        if contender.model not in desk.failed:
            chosen[contender.model] = choose(problem, contender, records)
    for contender in single:
        only = contender.configurations[0]
        chosen[contender.model] = dict.fromkeys(range(len(problem.splits)), only)
    todo = [c.model for c in contenders if c.model in chosen]
    final = desk.finish([job for m in todo for job in final_jobs(problem, m, chosen[m], rules)])
    if desk.failed:
        sentences = [s for found in desk.failed.values() for s in found]
        whole = [r for r in final if r.run.model not in desk.failed]
        raise Failed(f"{problem.name}: {'; '.join(sentences)}", whole)
    return final


def _check_able(contender: Contender, problem: Problem) -> None:
    """Raises ValueError if a system is of no use for the kind of problem."""
    system = find_system(contender.model)
    if isinstance(system, Kernel) and problem.kind != "classification":
        raise ValueError(
            f"{contender.model} classifies, but {problem.name} is a {problem.kind}: leave it out"
        )


def selection_jobs(problem: Problem, contender: Contender, rules: Rules) -> list[Job]:
    """One model for each configuration in each fold."""
    folds, seed = len(problem.splits), RUNS * rules.seed
    runs = [
        Run(problem.name, contender.model, "selection", fold, folds, configuration, seed)
        for configuration in contender.configurations
        for fold in range(folds)
    ]
    return _stacks(runs, rules)


def choose(
    problem: Problem, contender: Contender, records: Iterable[Record]
) -> dict[int, Mapping[str, Any]]:
    """The configuration of each fold that did best on its validation graphs.

    What decides is what decided between epochs: score or loss; the score where configurations
    differ in that. Ties go to the other of the two, then to the configuration that is listed first.

    Raises:
        ValueError: a fold has not been tried with every configuration.
    """
    by_loss = all(c.get("criterion", "loss") == "loss" for c in contender.configurations)
    order = {key_of(c): k for k, c in enumerate(contender.configurations)}
    tried: dict[int, list[Record]] = {fold: [] for fold in range(len(problem.splits))}
    for record in records:
        if record.run.model == contender.model:
            tried[record.run.fold].append(record)
    chosen = {}
    for fold, found in tried.items():
        if len(found) != len(contender.configurations):
            raise ValueError(
                f"{problem.name}, {contender.model}: fold {fold} has records of {len(found)} of "
                f"{len(contender.configurations)} configurations"
            )
        best = min(found, key=lambda r: (*_merit(r, by_loss), order[key_of(r.run.configuration)]))
        chosen[fold] = contender.configurations[order[key_of(best.run.configuration)]]
    return chosen


def final_jobs(
    problem: Problem, model: str, chosen: Mapping[int, Mapping[str, Any]], rules: Rules
) -> list[Job]:
    """The chosen configuration of each fold, several times; equal ones in one stack."""
    kernel = isinstance(find_system(model), Kernel)
    repeats = 1 if kernel else rules.final_runs  # a kernel gives the same every time
    folds = len(problem.splits)
    runs = [
        Run(problem.name, model, "final", fold, folds, configuration, RUNS * rules.seed + repeat)
        for fold, configuration in chosen.items()
        for repeat in range(1, 1 + repeats)
    ]
    return _stacks(runs, rules)


def _stacks(runs: Sequence[Run], rules: Rules) -> list[Job]:
    """Runs of one shape in as few stacks as may be; those that are one training together."""
    system = find_system(runs[0].model)
    size = rules.stack if not isinstance(system, Kernel) and system.stackable else 1
    shapes: dict[str, dict[tuple, list[Run]]] = {}
    for run in runs:
        trainings = shapes.setdefault(shape_of(run, system), {})
        trainings.setdefault(training_of(run), []).append(run)
    jobs = []
    for trainings in shapes.values():
        each = list(trainings.values())
        share = math.ceil(len(each) / math.ceil(len(each) / size))  # stacks of much the same size
        for k in range(0, len(each), share):
            jobs.append(Job(tuple(chain.from_iterable(each[k : k + share]))))
    return jobs


def _merit(record: Record, by_loss: bool) -> tuple[float, float]:
    """What to minimise: loss or score first; a run that diverged comes last."""
    score = -record.validation_score if record.higher_is_better else record.validation_score
    loss, score = (math.inf if math.isnan(v) else v for v in (record.validation_loss, score))
    return (loss, score) if by_loss and record.curve else (score, loss)


def _size(problem: Problem, contenders: Sequence[Contender], rules: Rules) -> int:
    """How many epochs of single models the whole comparison takes, at most."""
    total = 0
    for contender in contenders:
        for k, configuration in enumerate(contender.configurations):
            tries = len(contender.configurations) > 1
            total += len(problem.splits) * configuration.get("epochs", 1) * tries
            if k == 0:
                total += len(problem.splits) * rules.final_runs * configuration.get("epochs", 1)
    return max(total, 1)


class _Desk:
    """Hands out jobs that are not finished, and keeps what comes back."""

    def __init__(self, problem: Problem, engine: Engine, folder: Path, say: Say, size: int) -> None:
        self.problem, self.engine, self.folder, self.say = problem, engine, folder, say
        self.size, self.behind = size, 0
        self.failed: dict[str, list[str]] = {}
        self.live: dict[str, int] = {}  # epochs of single models that jobs at work have behind them

    def finish(self, jobs: Sequence[Job]) -> list[Record]:
        """The records of all jobs, read or made; ``failed`` has a sentence for each that failed."""
        made: dict[str, list[Record]] = {}
        todo = []
        for job in jobs:
            path = self._path(job)
            if path.exists():
                made[job.name] = self._checked(job, read_records(path))
                self.behind += job.epochs
            else:
                todo.append(job)
        for job, outcome in self.engine.run(todo, self.problem, self.folder, self._tick):
            if isinstance(outcome, str):
                folds = sorted({run.fold for run in job.runs})
                model = job.runs[0].model
                self.failed.setdefault(model, []).append(f"{model}, folds {folds}: {outcome}")
                continue
            write_records(self._path(job), outcome)
            made[job.name] = outcome
            self.live.pop(job.name, None)
            self.behind += job.epochs
        return [record for job in jobs for record in made.get(job.name, ())]

    def _tick(self, job: Job, epoch: int) -> None:
        first = job.runs[0]
        self.live[job.name] = epoch * len(job.runs)
        share = (self.behind + sum(self.live.values())) / self.size
        models = f"{len(job.runs)} model{'s' if len(job.runs) > 1 else ''}"
        doing = f"{first.model}, {first.stage}, {models}, epoch {epoch}"
        self.say(doing, min(share, 1.0))

    def _path(self, job: Job) -> Path:
        return self.folder / "records" / f"{job.name}.jsonl"

    def _checked(self, job: Job, records: list[Record]) -> list[Record]:
        """Records read from a file, which must be those of this job on these graphs."""
        there = {(r.run.fold, r.run.seed, key_of(r.run.configuration)) for r in records}
        for run in job.runs:
            if (run.fold, run.seed, key_of(run.configuration)) not in there:
                raise ValueError(f"{self._path(job)} lacks the record of fold {run.fold}")
        if any(r.fingerprint != self.problem.fingerprint for r in records):
            raise ValueError(
                f"{self._path(job)} was made with other graphs or splits of {self.problem.name}: "
                "choose another --out"
            )
        return records
