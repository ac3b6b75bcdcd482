"""Where jobs are done: in this process, or all over a Ray cluster."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from softperm.lab.jobs import Job, ended, working
from softperm.lab.problem import Problem
from softperm.lab.records import Record
from softperm.training.interrupt import interruptible

Outcome = list[Record] | str
_NO_MEMORY = "out of memory: lower --stack, or --abreast (4 by default on a GPU)"


@dataclass(frozen=True)
class LocalEngine:
    """Jobs in this process; one that was cut short is gone on with.

    Attributes:
        device: where to train.
        abreast: how many jobs take turns, an epoch of each. On a GPU each has a stream of its own,
            so that small stacks, which leave most of it idle, run side by side.
    """

    device: str = "cpu"
    abreast: int = 1

    def run(
        self,
        jobs: Sequence[Job],
        problem: Problem,
        folder: Path,
        on_epoch: Callable[[Job, int], None],
    ) -> Iterator[tuple[Job, Outcome]]:
        """Each job with its records, or with what went wrong, in the order in which they end."""
        waiting, live = deque(jobs), deque[_Turn]()
        cut = False  # in a network that is trained alone, and looks for Ctrl-C by itself
        with interruptible() as pressed:

            def interrupted() -> bool:
                return cut or pressed()

            while (waiting or live) and not interrupted():
                while waiting and len(live) < self.abreast:
                    job = waiting.popleft()
                    live.append(self._begin(job, problem, folder, on_epoch, interrupted))
                turn = live.popleft()
                try:
                    over = turn.take()
                except KeyboardInterrupt:
                    cut = True
                    continue
                if over:
                    yield turn.job, turn.outcome
                    turn.checkpoint.unlink(missing_ok=True)
                else:
                    live.append(turn)
            for turn in live:  # each saves what it has
                with suppress(KeyboardInterrupt):
                    if turn.take():
                        yield turn.job, turn.outcome
            if interrupted():
                raise KeyboardInterrupt

    def _begin(
        self,
        job: Job,
        problem: Problem,
        folder: Path,
        on_epoch: Callable[[Job, int], None],
        interrupted: Callable[[], bool],
    ) -> _Turn:
        checkpoint = folder / "checkpoints" / f"{job.name}.bin"

        def tick(epoch: int) -> None:
            on_epoch(job, epoch)

        steps = _attempt(job, problem, self.device, checkpoint, tick, interrupted)
        own = self.abreast > 1 and torch.device(self.device).type == "cuda"
        stream = torch.cuda.Stream(self.device) if own else None
        return _Turn(job, checkpoint, steps, stream)


@dataclass
class _Turn:
    """A job that takes turns with others.

    Attributes:
        job: what is done.
        checkpoint: where it is kept meanwhile.
        steps: doing it, a pause after each epoch.
        stream: of the GPU, where it has one of its own.
        outcome: what came of it, at the end.
    """

    job: Job
    checkpoint: Path
    steps: Generator[None, None, Outcome]
    stream: torch.cuda.Stream | None
    outcome: Outcome = ""

    def take(self) -> bool:
        """Goes on until the next pause; whether that was the end."""
        with torch.cuda.stream(self.stream):  # type: ignore[arg-type]  # None is no stream
            try:
                next(self.steps)
            except StopIteration as end:
                self.outcome = end.value
                return True
        return False


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
    torch.set_num_threads(threads)
    with interruptible() as interrupted:
        steps = _attempt(job, problem, device, None, lambda epoch: None, interrupted)
        try:
            return ended(steps)
        except KeyboardInterrupt:
            os._exit(1)  # a worker that is told to end dies, so that its job is tried elsewhere


def _attempt(
    job: Job,
    problem: Problem,
    device: str,
    checkpoint: Path | None,
    on_epoch: Callable[[int], None],
    interrupted: Callable[[], bool],
) -> Generator[None, None, Outcome]:
    """The records, or a sentence if the system cannot be trained on these graphs."""
    try:
        return (yield from working(job, problem, device, checkpoint, on_epoch, interrupted))
    except (ValueError, ArithmeticError, MemoryError) as problem_:
        return " ".join(str(problem_).split()) or _NO_MEMORY
    except RuntimeError as problem_:
        if "out of memory" not in str(problem_):
            raise
        return _NO_MEMORY


def _import_ray():
    try:
        import ray
    except ImportError:
        raise ImportError(
            "the engine ray needs the package ray: pip install 'softperm[cluster]'"
        ) from None
    return ray
