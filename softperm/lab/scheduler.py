"""Resumes an evaluation: loads finished records, trains the remaining runs here or on Ray."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from softperm.errors import counted, one_line
from softperm.lab.configurations import configuration_key, epochs_of
from softperm.lab.evaluation_data import EvaluationData
from softperm.lab.jobs import Job, group_into_jobs, train_job
from softperm.lab.records import PeakMemory, Record, Run, read_records, write_records
from softperm.parallel import POLL_SECONDS, check_reachable, ray_cluster
from softperm.progress import Report
from softperm.training.loop import interruptible

OnEpoch = Callable[[Job, int], None]
_OUT_OF_MEMORY = "out of memory: train fewer networks in a stack, or fewer stacks at once"


@dataclass(frozen=True)
class Outcome:
    """The end of a job.

    Attributes:
        job: the job.
        records: a record of each run; none if the job failed.
        error: why it failed; empty if it did not.
    """

    job: Job
    records: tuple[Record, ...] = ()
    error: str = ""


@runtime_checkable
class Executor(Protocol):
    """Executes jobs."""

    def run(
        self, jobs: Sequence[Job], data: EvaluationData, folder: Path, on_epoch: OnEpoch
    ) -> Iterator[Outcome]:
        """Yields the outcome of each job, in the order in which they end."""
        ...


class Scheduler:
    """Trains the runs of an evaluation that have no record yet.

    Args:
        data: graphs, targets and splits.
        executor: where jobs are trained.
        folder: folder of the evaluation, which holds its records and checkpoints.
        progress: receives the number of finished epochs.
        max_models: maximum number of models in a stack.
        total: number of epochs of the whole evaluation, at most.
    """

    def __init__(
        self,
        data: EvaluationData,
        executor: Executor,
        folder: Path,
        progress: Report,
        max_models: int,
        total: int,
    ) -> None:
        self.data, self.executor, self.folder, self.progress = data, executor, folder, progress
        self.max_models, self.total = max_models, total
        self.finished_epochs = 0
        self.running_epochs: dict[str, int] = {}  # of jobs that are being trained
        self.errors: dict[tuple[str, str], list[str]] = {}  # by target and system
        self.finished: dict[tuple, tuple[Record, Path]] = {}
        for path in self._record_files():
            self.finished.update((_run_key(r.run), (r, path)) for r in read_records(path))

    def run(self, runs: Sequence[Run]) -> list[Record]:
        """Returns the records of all runs, training those that have none.

        Runs of jobs that failed have no record; ``errors`` says why. If a job with several targets
        fails, each target is tried alone.
        """
        remaining = [run for run in runs if not self._is_finished(run)]
        self.finished_epochs += sum(map(epochs_of, runs)) - sum(map(epochs_of, remaining))
        jobs = group_into_jobs(remaining, self.max_models)
        while jobs:
            retries: list[Job] = []
            for outcome in self.executor.run(jobs, self.data, self.folder, self._report_epoch):
                self.running_epochs.pop(outcome.job.name, None)
                parts = outcome.job.split_by_target()
                if not outcome.error:
                    self._save(outcome)
                elif len(parts) > 1:
                    retries += parts
                else:
                    self._add_error(outcome)
            jobs = retries
        return [self.finished[_run_key(r)][0] for r in runs if _run_key(r) in self.finished]

    def remove_checkpoints(self, models: Iterable[str]) -> None:
        """Removes the checkpoints of these systems, such as those of stacks of other sizes.

        The name of a checkpoint begins with the first target of its stack.
        """
        begins = tuple(f"{name}{end}" for name in self.data.targets for end in (".", "+"))
        for path in (self.folder / "checkpoints").glob("*.bin"):
            if path.name.startswith(begins) and any(f".{m}." in path.name for m in models):
                path.unlink(missing_ok=True)

    def _save(self, outcome: Outcome) -> None:
        path = self.folder / "records" / f"{outcome.job.name}.jsonl"
        write_records(path, outcome.records)
        self.finished.update((_run_key(r.run), (r, path)) for r in outcome.records)
        self.finished_epochs += outcome.job.epochs

    def _add_error(self, outcome: Outcome) -> None:
        runs = outcome.job.runs
        target = f"{runs[0].dataset}, " if len(self.data.targets) > 1 else ""
        for model in dict.fromkeys(run.model for run in runs):
            folds = sorted({run.fold for run in runs if run.model == model})
            sentence = f"{target}{model}, folds {folds}: {outcome.error}"
            self.errors.setdefault((runs[0].dataset, model), []).append(sentence)

    def _report_epoch(self, job: Job, epoch: int) -> None:
        self.running_epochs[job.name] = epoch * len(job.runs)
        done = self.finished_epochs + sum(self.running_epochs.values())
        note = f"{job.description}, epoch {epoch}"
        self.progress(self.data.name, min(done, self.total), self.total, note)

    def _record_files(self) -> list[Path]:
        """Files that may hold records of these data, possibly of other targets."""
        begins = tuple(f"{self.data.name}{end}" for end in (".", "+", "-"))
        paths = sorted((self.folder / "records").glob("*.jsonl"))
        return [path for path in paths if path.name.startswith(begins)]

    def _is_finished(self, run: Run) -> bool:
        """Whether a run has a record; refuses a record of other graphs or splits."""
        if _run_key(run) not in self.finished:
            return False
        record, path = self.finished[_run_key(run)]
        if record.fingerprint != self.data.targets[run.dataset].fingerprint:
            raise ValueError(
                f"{path} was made with other graphs or splits of {run.dataset}: "
                "choose another folder"
            )
        return True


def _run_key(run: Run) -> tuple:
    """Equal for a run and for the same run read from a file."""
    place = (run.dataset, run.model, run.stage, run.fold, run.folds, run.seed)
    return (*place, configuration_key(run.configuration))


@dataclass(frozen=True)
class LocalExecutor:
    """Trains jobs in this process; an interrupted job resumes from its checkpoint.

    Attributes:
        device: where to train.
        concurrent: number of jobs that take turns, one epoch each. On a GPU each job has its own
            stream, so that several small stacks, which use a part of the GPU each, run in parallel.
    """

    device: str = "cpu"
    concurrent: int = 1

    def run(
        self, jobs: Sequence[Job], data: EvaluationData, folder: Path, on_epoch: OnEpoch
    ) -> Iterator[Outcome]:
        """Yields the outcome of each job, in the order in which they end."""
        waiting, active = deque(jobs), deque[_ActiveJob]()
        memory = PeakMemory(torch.device(self.device))
        stopped = False  # by a network that is trained alone, which handles Ctrl-C itself
        with interruptible() as pressed:

            def interrupted() -> bool:
                return stopped or pressed()

            def start(job: Job) -> _ActiveJob:
                checkpoint = folder / "checkpoints" / f"{job.name}.bin"
                report = partial(on_epoch, job)
                steps = train_job(
                    job, data, memory, checkpoint=checkpoint, on_epoch=report,
                    interrupted=interrupted,
                )  # fmt: skip
                own_stream = self.concurrent > 1 and memory.device.type == "cuda"
                stream = torch.cuda.Stream(memory.device) if own_stream else None
                return _ActiveJob(job, checkpoint, steps, stream)

            while (waiting or active) and not interrupted():
                while waiting and len(active) < self.concurrent:
                    active.append(start(waiting.popleft()))
                turn = active.popleft()
                try:
                    outcome = turn.advance()
                except KeyboardInterrupt:
                    stopped = True
                    continue
                if outcome is None:
                    active.append(turn)
                else:
                    yield outcome
                    turn.checkpoint.unlink(missing_ok=True)
            for turn in active:  # each one saves its checkpoint
                with suppress(KeyboardInterrupt):
                    if (outcome := turn.advance()) is not None:
                        yield outcome
            if interrupted():
                raise KeyboardInterrupt


@dataclass
class _ActiveJob:
    """A job that takes turns with others: its training yields after each epoch."""

    job: Job
    checkpoint: Path
    steps: Generator[None, None, list[Record]]
    stream: torch.cuda.Stream | None

    def advance(self) -> Outcome | None:
        """Trains until the next yield; returns the outcome if that was the end."""
        try:
            with torch.cuda.stream(self.stream):  # type: ignore[arg-type]  # None is no stream
                next(self.steps)
        except StopIteration as end:
            return Outcome(self.job, tuple(end.value))
        except (ValueError, ArithmeticError, MemoryError) as error:
            return Outcome(self.job, error=one_line(error) or _OUT_OF_MEMORY)
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            return Outcome(self.job, error=_OUT_OF_MEMORY)
        return None


@dataclass(frozen=True)
class RayExecutor:
    """Trains jobs on the machines of a Ray cluster; a job whose worker dies is tried again.

    Attributes:
        device: where a worker trains; with ``cuda`` each job reserves a whole GPU, the only one
            that its worker sees.
        address: address of the cluster; None for ``RAY_ADDRESS``, or else a cluster of its own on
            this machine, whatever other cluster runs here.
        retries: number of further attempts.
    """

    device: str = "cpu"
    address: str | None = None
    retries: int = 3

    def run(
        self, jobs: Sequence[Job], data: EvaluationData, folder: Path, on_epoch: OnEpoch
    ) -> Iterator[Outcome]:
        """Yields the outcome of each job, in the order in which they end."""
        with ray_cluster(self.address) as (ray, cluster):
            threads = torch.get_num_threads()  # equal everywhere, so that sums are rounded equally
            _check_cpus(ray, threads)
            kind = torch.device(self.device).type
            gpus = 1 if kind == "cuda" else 0
            remote = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=self.retries)(_work)
            shared = ray.put(data)
            waiting = {remote.remote(job, shared, kind, threads): job for job in jobs}
            while waiting:
                ready, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS)
                if not ready:
                    check_reachable(cluster)
                    continue
                job = waiting.pop(ready[0])
                try:
                    outcome = ray.get(ready[0])
                except ray.exceptions.RayError as error:
                    check_reachable(cluster)
                    outcome = Outcome(job, error=one_line(error)[:300])
                if not outcome.error:
                    on_epoch(job, job.epochs // len(job.runs))
                yield outcome


def _check_cpus(ray, threads: int) -> None:
    """Raises ValueError if no machine of the cluster has a CPU for each thread of a job."""
    cpus = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    if cpus and threads > max(cpus):
        raise ValueError(
            f"a job uses {counted(threads, 'thread')}, but the largest machine of the cluster "
            f"offers {max(cpus):g} CPUs: set OMP_NUM_THREADS={max(cpus):g} or less"
        )


def _work(job: Job, data: EvaluationData, device: str, threads: int) -> Outcome:
    """Trains a job in a worker of a Ray cluster."""
    torch.set_num_threads(threads)
    with interruptible() as interrupted:
        memory = PeakMemory(torch.device(device))
        steps = train_job(job, data, memory, interrupted=interrupted)
        active = _ActiveJob(job, Path(), steps, None)
        try:
            while (outcome := active.advance()) is None:
                pass
        except KeyboardInterrupt:
            os._exit(1)  # the worker must end: Ray retries its job elsewhere
        return outcome
