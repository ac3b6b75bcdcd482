"""The training loop of one network: mini-batches, best epoch, early stop, exact resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from softperm.training.checkpoint import read_checkpoint, write_checkpoint
from softperm.training.devices import Fabric, connect, together
from softperm.training.interrupt import interruptible
from softperm.training.parallel import ask_first, shared_statistics
from softperm.training.records import Epoch, Examples, FitResult, epoch_order
from softperm.training.run import Run, predict
from softperm.training.settings import TrainingConfig
from softperm.training.tasks import Task
from softperm.training.watch import Watch

__all__ = [
    "SAVE_EVERY_SECONDS",
    "Epoch",
    "Examples",
    "FitResult",
    "TrainingConfig",
    "epoch_order",
    "fit",
    "predict",
]

SAVE_EVERY_SECONDS = 10.0
_NO_MEMORY = ("out of memory", "can't allocate memory")  # how torch says it


def fit(
    model: nn.Module,
    task: Task,
    train: Examples,
    config: TrainingConfig,
    *,
    validation: Examples | None = None,
    device: torch.device | str | Fabric = "cpu",
    checkpoint: Path | None = None,
    fingerprint: str = "",
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> FitResult:
    """Trains a network in place and leaves it with the parameters of its best epoch.

    The best epoch is that of the best validation figure, or the last without validation graphs.
    Ctrl-C ends training after the current mini-batch; what was trained is kept.

    With several processes each computes its share of every mini-batch, and all end with the same
    parameters: those that one process would have found, but for rounding.

    Args:
        model: the network; the same in all processes.
        task: loss and score.
        train: training graphs.
        config: how to train.
        validation: held-out graphs that choose the epoch.
        device: where to train, or what :func:`softperm.training.devices.connect` gave.
        checkpoint: file from which training resumes if it is there, and in which it is kept while
            it runs, the last parameters and the best; resumed training gives the same numbers as
            uninterrupted training. The first process reads and writes it.
        fingerprint: identifies model, data and settings; a checkpoint with another one is refused.
        on_epoch: called with each finished epoch, the resumed ones first; in the first process.
    """
    _check_held_out(validation, config)
    fabric = connect(device) if isinstance(device, torch.device | str) else device
    tell = on_epoch if fabric.is_global_zero else lambda epoch: None
    saves = interruptible(saves=checkpoint is not None)
    with together(fabric), shared_statistics(model, fabric), saves as interrupted:
        run = Run(fabric, model, task, train, validation, config)
        if checkpoint is not None:
            run.restore(ask_first(fabric, lambda: read_checkpoint(checkpoint, fingerprint)))
        for epoch in run.curve:
            tell(epoch)
        pause = math.inf if checkpoint is None else SAVE_EVERY_SECONDS
        watch = Watch(fabric, interrupted, pause, config.max_time)

        def save() -> None:
            if checkpoint is not None:
                state = run.state()
                if fabric.is_global_zero:
                    write_checkpoint(checkpoint, fingerprint, state)
                watch.saved()

        with _memory_named(run):
            while not run.finished and not watch.look().stop:
                epoch = run.train_epoch(watch, save)
                if epoch is not None:
                    tell(epoch)
                if watch.look().save:
                    save()
        save()
    if run.best_state is not None:
        model.load_state_dict(run.best_state)
    model.eval()
    return FitResult(tuple(run.curve), run.best_epoch, not run.finished)


def _check_held_out(validation: Examples | None, config: TrainingConfig) -> None:
    """Raises ValueError where held-out graphs are needed and cannot do their work."""
    if validation is None:
        wanting = {"patience": config.patience, "decay": config.decay}
        for name, value in wanting.items():
            if value is not None:
                raise ValueError(
                    f"{name} counts epochs by the figures of validation graphs, of which there "
                    f"are none: hold some out, or set {name} to None"
                )
        return
    y = validation.y[validation.index]
    if y.is_floating_point() and bool(y.isnan().all()):
        raise ValueError("no validation graph has a target: hold out more graphs, or others")


@contextmanager
def _memory_named(run: Run) -> Iterator[None]:
    """Within the block running out of memory is one sentence that says what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as problem:
        said = str(problem).lower()
        if isinstance(problem, RuntimeError) and not any(words in said for words in _NO_MEMORY):
            raise
        raise MemoryError(
            f"out of memory in {run.place}: lower batch_size (now {run.config.batch_size}) or "
            f"raise accumulate (now {run.config.accumulate})"
        ) from None
