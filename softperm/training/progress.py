"""Progress of training: a bar on a terminal, elsewhere lines in the log."""

from __future__ import annotations

import logging
import math
import sys
import time

from softperm.training.fit import Epoch

LOG_EVERY_SECONDS = 10.0  # where there is no terminal
LOGGER = logging.getLogger("softperm")


class EpochBar:
    """Shows training epoch by epoch: epochs, losses, time left.

    On a terminal this is a bar on standard error, elsewhere now and then a message of the logger
    ``softperm``, which is seen by those who listen to it, as the commands do.

    Args:
        epochs: how many there will be.
        shown: False for neither.
    """

    def __init__(self, epochs: int, shown: bool = True) -> None:
        self.epochs = epochs
        self.shown = shown and sys.stderr.isatty()
        self.logged = shown and not self.shown
        self.logged_at = time.monotonic()

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
        """Shows a finished epoch."""
        if self.shown:
            self.bar.update(self.task, completed=epoch.number, description=describe(epoch))
        elif self.logged and time.monotonic() - self.logged_at >= LOG_EVERY_SECONDS:
            self.logged_at = time.monotonic()
            LOGGER.info("epoch %d of %d: %s", epoch.number, self.epochs, describe(epoch))

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.bar.stop()


def describe(epoch: Epoch) -> str:
    """An epoch's figures in a few words."""
    words = f"loss {epoch.train_loss:.4f}"
    if not math.isnan(epoch.validation_loss):
        words += f", validation loss {epoch.validation_loss:.4f} score {epoch.validation_score:.4f}"
    return words
