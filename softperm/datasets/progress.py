"""Progress of long work: the library reports numbers, whoever calls decides what to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Told ``(what is being done, how much is done, how much there is)``; a total of 0 is unknown."""


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


@contextmanager
def progress_bars(show: bool = True) -> Iterator[Progress]:
    """Bars with the time left on standard error, one for each kind of work reported.

    Args:
        show: False gives a :data:`Progress` that shows nothing.

    Yields:
        The function to report to.
    """
    if not show:
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Remaining())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, int] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)  # type: ignore[arg-type]

        yield report
