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
Chosen = Mapping[tuple[str, int], Mapping[str, Any]]
"""The configuration for each question in each fold."""


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
    """The whole protocol on one problem; finished trainings are read, not repeated.

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
    desk = _Desk(problem, engine, folder, say, rules, _size(problem, contenders, rules))
    chosen: dict[str, Chosen] = {}
    single = [c for c in contenders if len(c.configurations) == 1]
    several = [c for c in contenders if len(c.configurations) > 1]
    records = desk.finish([run for c in several for run in selection_runs(problem, c, rules)])
    for contender in several:
        if contender.model not in desk.failed:
            chosen[contender.model] = choose(problem, contender, records)
    for contender in single:
        only = contender.configurations[0]
        chosen[contender.model] = dict.fromkeys(_places(problem), only)
    todo = [c.model for c in contenders if c.model in chosen]
    final = desk.finish([run for m in todo for run in final_runs(problem, m, chosen[m], rules)])
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


def _places(problem: Problem) -> list[tuple[str, int]]:
    """Every question in every fold."""
    return [(question, k) for question in problem.questions for k in range(len(problem.splits))]


def selection_runs(problem: Problem, contender: Contender, rules: Rules) -> list[Run]:
    """One model for each configuration, for each question in each fold."""
    folds, seed = len(problem.splits), RUNS * rules.seed
    return [
        Run(question, contender.model, "selection", fold, folds, configuration, seed)
        for configuration in contender.configurations
        for question, fold in _places(problem)
    ]


def choose(problem: Problem, contender: Contender, records: Iterable[Record]) -> Chosen:
    """The configuration that did best on validation graphs, for each question in each fold.

    What decides is what decided between epochs: score or loss; the score where configurations
    differ in that. Ties go to the other of the two, then to the configuration that is listed first.

    Raises:
        ValueError: a fold has not been tried with every configuration.
    """
    by_loss = all(c.get("criterion", "loss") == "loss" for c in contender.configurations)
    order = {key_of(c): k for k, c in enumerate(contender.configurations)}
    tried: dict[tuple[str, int], list[Record]] = {place: [] for place in _places(problem)}
    for record in records:
        if record.run.model == contender.model:
            tried[record.run.dataset, record.run.fold].append(record)
    chosen = {}
    for (question, fold), found in tried.items():
        if len(found) != len(contender.configurations):
            raise ValueError(
                f"{question}, {contender.model}: fold {fold} has records of {len(found)} of "
                f"{len(contender.configurations)} configurations"
            )
        best = min(found, key=lambda r: (*_merit(r, by_loss), order[key_of(r.run.configuration)]))
        chosen[question, fold] = contender.configurations[order[key_of(best.run.configuration)]]
    return chosen


def final_runs(problem: Problem, model: str, chosen: Chosen, rules: Rules) -> list[Run]:
    """The chosen configuration of each question in each fold, several times."""
    kernel = isinstance(find_system(model), Kernel)
    repeats = 1 if kernel else rules.final_runs  # a kernel gives the same every time
    folds = len(problem.splits)
    return [
        Run(question, model, "final", fold, folds, configuration, RUNS * rules.seed + repeat)
        for (question, fold), configuration in chosen.items()
        for repeat in range(1, 1 + repeats)
    ]


def stacks(runs: Iterable[Run], rules: Rules) -> list[Job]:
    """Runs of one system and shape in as few jobs as may be; those of one training together.

    The jobs of a shape have much the same size, the larger ones first: without those that are
    finished, what is left makes the same jobs again.
    """
    shapes: dict[tuple[str, str], dict[tuple, list[Run]]] = {}
    for run in runs:
        trainings = shapes.setdefault((run.model, shape_of(run, find_system(run.model))), {})
        trainings.setdefault(training_of(run), []).append(run)
    jobs = []
    for (model, _), trainings in shapes.items():
        system, each = find_system(model), list(trainings.values())
        most = rules.stack if not isinstance(system, Kernel) and system.stackable else 1
        parts = math.ceil(len(each) / most)
        for k in range(parts):
            share, larger = divmod(len(each), parts)
            begin = k * share + min(k, larger)
            part = each[begin : begin + share + (k < larger)]
            jobs.append(Job(tuple(chain.from_iterable(part))))
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
            total += configuration.get("epochs", 1) * tries
            if k == 0:
                total += rules.final_runs * configuration.get("epochs", 1)
    return max(total * len(_places(problem)), 1)


class _Desk:
    """Hands out jobs that are not finished, and keeps what comes back."""

    def __init__(
        self, problem: Problem, engine: Engine, folder: Path, say: Say, rules: Rules, size: int
    ) -> None:
        self.problem, self.engine, self.folder, self.say = problem, engine, folder, say
        self.rules, self.size, self.behind = rules, size, 0
        self.failed: dict[str, list[str]] = {}
        self.live: dict[str, int] = {}  # epochs of single models that jobs at work have behind them
        self.known = {key: found for path in self._files() for key, found in _kept(path)}

    def finish(self, runs: Sequence[Run]) -> list[Record]:
        """The records of all runs, read or made; ``failed`` has a sentence for each that failed."""
        todo = [run for run in runs if not self._is_known(run)]
        self.behind += sum(_epochs(run) for run in runs) - sum(_epochs(run) for run in todo)
        jobs = stacks(todo, self.rules)
        for job, outcome in self.engine.run(jobs, self.problem, self.folder, self._tick):
            if isinstance(outcome, str):
                folds = sorted({run.fold for run in job.runs})
                model = job.runs[0].model
                self.failed.setdefault(model, []).append(f"{model}, folds {folds}: {outcome}")
                continue
            path = self.folder / "records" / f"{job.name}.jsonl"
            write_records(path, outcome)
            self.known.update((_key(record.run), (record, path)) for record in outcome)
            self.live.pop(job.name, None)
            self.behind += job.epochs
        return [self.known[_key(run)][0] for run in runs if _key(run) in self.known]

    def _tick(self, job: Job, epoch: int) -> None:
        first = job.runs[0]
        self.live[job.name] = epoch * len(job.runs)
        share = (self.behind + sum(self.live.values())) / self.size
        models = f"{len(job.runs)} model{'s' if len(job.runs) > 1 else ''}"
        doing = f"{first.model}, {first.stage}, {models}, epoch {epoch}"
        self.say(doing, min(share, 1.0))

    def _files(self) -> list[Path]:
        """Those of the folder that may hold records of the problem."""
        begins = tuple(f"{name}{end}" for name in self.problem.questions for end in (".", "+"))
        found = sorted((self.folder / "records").glob("*.jsonl"))
        return [path for path in found if path.name.startswith(begins)]

    def _is_known(self, run: Run) -> bool:
        """Whether a run is finished; its record must be of these graphs."""
        if _key(run) not in self.known:
            return False
        record, path = self.known[_key(run)]
        if record.fingerprint != self.problem.questions[run.dataset].fingerprint:
            raise ValueError(
                f"{path} was made with other graphs or splits of {run.dataset}: "
                "choose another --out"
            )
        return True


def _kept(path: Path) -> Iterator[tuple[tuple, tuple[Record, Path]]]:
    """The records of a file by their runs, and where they are from."""
    for record in read_records(path):
        yield _key(record.run), (record, path)


def _key(run: Run) -> tuple:
    """The same for a run and for what a file made of it."""
    place = (run.dataset, run.model, run.stage, run.fold, run.folds, run.seed)
    return (*place, key_of(run.configuration))


def _epochs(run: Run) -> int:
    """How many passes over training graphs a run takes, at most."""
    return run.configuration.get("epochs", 1)
