"""A progress bar for training: epochs, losses, time left. Silent where there is no terminal."""

from __future__ import annotations

import math
import sys

from softperm.training.fit import Epoch


class EpochBar:
    """Shows training epoch by epoch on standard error.

    Args:
        epochs: how many there will be.
        shown: False for no bar at all.
    """

    def __init__(self, epochs: int, shown: bool = True) -> None:
        self.epochs = epochs
        self.shown = shown and sys.stderr.isatty()

    def __enter__(self) -> EpochBar:
        if self.shown:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            self.bar = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=self.epochs)
        return self

    def update(self, epoch: Epoch) -> None:
        """Moves the bar to a finished epoch."""
        if self.shown:
            self.bar.update(self.task, completed=epoch.number, description=describe(epoch))

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.bar.stop()


def describe(epoch: Epoch) -> str:
    """An epoch's figures in a few words."""
    words = f"loss {epoch.train_loss:.4f}"
    if not math.isnan(epoch.validation_loss):
        words += f", validation loss {epoch.validation_loss:.4f} score {epoch.validation_score:.4f}"
    return words
