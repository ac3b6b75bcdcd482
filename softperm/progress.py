"""Progress of long work: a bar on a terminal, a log line every ten seconds elsewhere.

The library reports numbers to a :data:`Report`; :func:`progress_bars` decides how to show them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

LOG_EVERY_SECONDS = 10.0
KNOWN_SHARE = 0.01  # of the work must be done before the time left is shown; kernels compile first
Number = int | float
LOGGER = logging.getLogger("softperm")


@runtime_checkable
class Report(Protocol):
    """Receives the progress of an activity."""

    def __call__(self, activity: str, done: Number, total: Number = 0, note: str = "") -> None:
        """Takes a new state.

        Args:
            activity: what is being done; each activity has a bar of its own.
            done: how much is done.
            total: how much there is; 0 if unknown.
            note: a few words about the current state, such as the loss.
        """


def silent(activity: str, done: Number, total: Number = 0, note: str = "") -> None:
    """A :class:`Report` that shows nothing."""


@contextmanager
def progress_bars(shown: bool = True) -> Iterator[Report]:
    """Shows progress on standard error if it is a terminal, in the log ``softperm`` otherwise.

    Args:
        shown: False shows nothing at all.

    Yields:
        The function to report to.
    """
    if not shown:
        yield silent
    elif sys.stderr.isatty():
        with _terminal() as report:
            yield report
    else:
        yield _Log()


@contextmanager
def _terminal() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True)
    bar = BarColumn(bar_width=min(max(8, console.width - 72), 40))  # room for a note beside it
    name, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (name, bar, TaskProgressColumn(), note, Remaining(elapsed_when_finished=True))
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, object] = {}

        def report(activity: str, done: Number, total: Number = 0, note: str = "") -> None:
            if activity not in tasks:
                tasks[activity] = bars.add_task(activity, total=total or None, note=note)
            bars.update(tasks[activity], completed=done, total=total or None, note=note)  # type: ignore[arg-type]

        yield report


class _Log:
    """Logs each activity at most every ten seconds."""

    def __init__(self) -> None:
        self.started: dict[str, tuple[float, float]] = {}  # when, and how much was done by then
        self.logged: dict[str, float] = {}

    def __call__(self, activity: str, done: Number, total: Number = 0, note: str = "") -> None:
        now = time.monotonic()
        since, at_first = self.started.setdefault(activity, (now, done))
        if now - self.logged.setdefault(activity, now) < LOG_EVERY_SECONDS:
            return
        self.logged[activity] = now
        words = f"{activity}: {done:.0%}" if total == 1 else f"{activity}: {done:,.0f}"
        if total > 1:
            words += f" of {total:,.0f} ({done / total:.0%})"
        if total and done - at_first >= KNOWN_SHARE * total:
            left = (now - since) * (total - done) / (done - at_first)
            words += f", about {format_seconds(left)} left"
        LOGGER.info("%s", f"{words}, {note}" if note else words)


def format_seconds(seconds: Number) -> str:
    """A time span in two units at most.

    Example:
        >>> format_seconds(42), format_seconds(3.5 * 60), format_seconds(9000)
        ('42 s', '3 min 30 s', '2 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"
