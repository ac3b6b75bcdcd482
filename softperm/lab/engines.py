"""Where jobs are done: in this process, or all over a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from softperm.lab.jobs import Job, work
from softperm.lab.problem import Problem
from softperm.lab.records import Record

Outcome = list[Record] | str


@dataclass(frozen=True)
class LocalEngine:
    """One job after the other in this process; a job that was cut short is gone on with.

    Attributes:
        device: where to train.
    """

    device: str = "cpu"

    def run(
        self,
        jobs: Sequence[Job],
        problem: Problem,
        folder: Path,
        on_epoch: Callable[[Job, int], None],
    ) -> Iterator[tuple[Job, Outcome]]:
        """Each job with its records, or with what went wrong."""
        for job in jobs:
            checkpoint = folder / "checkpoints" / f"{job.name}.bin"

            def tick(epoch: int, job: Job = job) -> None:
                on_epoch(job, epoch)

            yield job, _attempt(job, problem, self.device, checkpoint, tick)
            checkpoint.unlink(missing_ok=True)


@dataclass(frozen=True)
class RayEngine:
    """Jobs spread over the machines of a Ray cluster; one whose worker dies is tried again.

    Attributes:
        device: where a worker trains; on ``cuda`` each asks the cluster for a whole GPU, which is
            then the only one that it sees.
        address: of the cluster; None for the one of the environment, or else this machine.
        retries: how often a job is tried again.
    """

    device: str = "cpu"
    address: str | None = None
    retries: int = 3

    def run(
        self,
        jobs: Sequence[Job],
        problem: Problem,
        folder: Path,
        on_epoch: Callable[[Job, int], None],
    ) -> Iterator[tuple[Job, Outcome]]:
        """Each job with its records, in the order in which they are done."""
        ray = _import_ray()
        import torch
        from ray.exceptions import RayError

        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False)
        threads = torch.get_num_threads()  # the same everywhere, so that sums round alike
        kind = torch.device(self.device).type
        gpus = 1 if kind == "cuda" else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=self.retries)(_distant)
        shared = ray.put(problem)
        waiting = {remote.remote(job, shared, kind, threads): job for job in jobs}
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(ready)
            try:
                outcome = ray.get(ready)
            except RayError as problem_:
                outcome = " ".join(str(problem_).split())[:300]
            on_epoch(job, job.epochs // len(job.runs))
            yield job, outcome


def _distant(job: Job, problem: Problem, device: str, threads: int) -> Outcome:
    import torch

    torch.set_num_threads(threads)
    try:
        return _attempt(job, problem, device, None, lambda epoch: None)
    except KeyboardInterrupt:
        os._exit(1)  # a worker that is told to end dies, so that its job is tried elsewhere


def _attempt(
    job: Job,
    problem: Problem,
    device: str,
    checkpoint: Path | None,
    on_epoch: Callable[[int], None],
) -> Outcome:
    """The records, or a sentence if the system cannot be trained on these graphs."""
    try:
        return work(job, problem, device, checkpoint, on_epoch)
    except (ValueError, ArithmeticError, MemoryError) as problem_:
        return " ".join(str(problem_).split()) or "out of memory: lower --stack"
    except RuntimeError as problem_:
        if "out of memory" not in str(problem_):
            raise
        return "out of memory: lower --stack"


def _import_ray():
    try:
        import ray
    except ImportError:
        raise ImportError(
            "the engine ray needs the package ray: pip install 'softperm[cluster]'"
        ) from None
    return ray
