"""What of the protocol is finished is read; the rest goes to an engine, and what comes is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol, runtime_checkable

from softperm.lab.alike import key_of, shape_of, training_of
from softperm.lab.baselines import Kernel
from softperm.lab.jobs import Job
from softperm.lab.problem import Problem
from softperm.lab.records import Record, Run, read_records, write_records
from softperm.lab.systems import find_system

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


class Desk:
    """Hands out jobs that are not finished, and keeps what comes back."""

    def __init__(
        self, problem: Problem, engine: Engine, folder: Path, say: Say, stack: int, size: int
    ) -> None:
        self.problem, self.engine, self.folder, self.say = problem, engine, folder, say
        self.stack, self.size, self.behind = stack, size, 0
        self.failed: dict[tuple[str, str], list[str]] = {}
        self.live: dict[str, int] = {}  # epochs of single models that jobs at work have behind them
        self.known = {key: found for path in self._files() for key, found in _kept(path)}

    def finish(self, runs: Sequence[Run]) -> list[Record]:
        """The records of all runs, read or made.

        Of jobs that failed ``failed`` has a sentence, by question and system. Where a job of
        several questions fails, each of them is tried by itself.
        """
        todo = [run for run in runs if not self._is_known(run)]
        self.behind += sum(_epochs(run) for run in runs) - sum(_epochs(run) for run in todo)
        jobs = stacks(todo, self.stack)
        while jobs:
            again: list[Job] = []
            for job, outcome in self.engine.run(jobs, self.problem, self.folder, self._tick):
                self.live.pop(job.name, None)
                parts = _by_question(job)
                if not isinstance(outcome, str):
                    self._keep(job, outcome)
                elif len(parts) > 1:
                    again += parts
                else:
                    self._note(job, outcome)
            jobs = again
        return [self.known[_key(run)][0] for run in runs if _key(run) in self.known]

    def sweep(self, models: Iterable[str]) -> None:
        """Removes what stacks that nobody will go on with have saved, once all is finished.

        A stack has the name of its first question; without that one it is another stack.
        """
        begins = tuple(f"{name}{end}" for name in self.problem.questions for end in (".", "+"))
        for path in (self.folder / "checkpoints").glob("*.bin"):
            if path.name.startswith(begins) and any(f".{m}." in path.name for m in models):
                path.unlink(missing_ok=True)

    def _keep(self, job: Job, records: list[Record]) -> None:
        path = self.folder / "records" / f"{job.name}.jsonl"
        write_records(path, records)
        self.known.update((_key(record.run), (record, path)) for record in records)
        self.behind += job.epochs

    def _note(self, job: Job, why: str) -> None:
        first, folds = job.runs[0], sorted({run.fold for run in job.runs})
        asked = f"{first.dataset}, " if len(self.problem.questions) > 1 else ""
        sentence = f"{asked}{first.model}, folds {folds}: {why}"
        self.failed.setdefault((first.dataset, first.model), []).append(sentence)

    def _tick(self, job: Job, epoch: int) -> None:
        first = job.runs[0]
        self.live[job.name] = epoch * len(job.runs)
        share = (self.behind + sum(self.live.values())) / self.size
        models = f"{len(job.runs)} model{'s' if len(job.runs) > 1 else ''}"
        doing = f"{first.model}, {first.stage}, {models}, epoch {epoch}"
        self.say(doing, min(share, 1.0))

    def _files(self) -> list[Path]:
        """Those of the folder that may hold records of the problem, whatever was asked then."""
        begins = tuple(f"{self.problem.name}{end}" for end in (".", "+", "-"))
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


def _by_question(job: Job) -> list[Job]:
    """A job for each question of a job."""
    asked = dict.fromkeys(run.dataset for run in job.runs)
    return [Job(tuple(run for run in job.runs if run.dataset == name)) for name in asked]


def _epochs(run: Run) -> int:
    """How many passes over training graphs a run takes, at most."""
    return run.configuration.get("epochs", 1)


def stacks(runs: Iterable[Run], most: int) -> list[Job]:
    """Runs of one system and shape in as few jobs as may be; those of one training together.

    The jobs of a shape have much the same size, the larger ones first: without those that are
    finished, what is left makes the same jobs again.

    Args:
        runs: what is to be trained.
        most: models that are trained side by side.
    """
    shapes: dict[tuple[str, str], dict[tuple, list[Run]]] = {}
    for run in runs:
        trainings = shapes.setdefault((run.model, shape_of(run, find_system(run.model))), {})
        trainings.setdefault(training_of(run), []).append(run)
    jobs = []
    for (model, _), trainings in shapes.items():
        system, each = find_system(model), list(trainings.values())
        stackable = not isinstance(system, Kernel) and system.stackable
        parts = math.ceil(len(each) / most) if stackable else len(each)
        for k in range(parts):
            share, larger = divmod(len(each), parts)
            begin = k * share + min(k, larger)
            part = each[begin : begin + share + (k < larger)]
            jobs.append(Job(tuple(chain.from_iterable(part))))
    return jobs
