"""How commands speak: results on standard output, everything else on standard error."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import typer

from softperm.errors import GraphError, GraphWarning

SAY_EVERY_SECONDS = 10.0  # between two lines of progress where there is no terminal


def say(message: str) -> None:
    """One line for the person who waits."""
    typer.secho(message, err=True)


def give(result: Mapping[str, Any], as_json: bool) -> None:
    """The command's result on standard output: JSON, or a line per entry."""
    if as_json:
        typer.echo(as_text(result), nl=False)
        return
    width = max(map(len, result), default=0)
    for name, value in result.items():
        shown = f"{value:.4f}" if isinstance(value, float) else value
        typer.echo(f"{name.replace('_', ' '):<{width}}  {shown}")


def as_text(content: Mapping[str, Any]) -> str:
    """JSON that every program reads: a number that is not defined is null, not NaN."""
    odd = {k: None for k, v in content.items() if isinstance(v, float) and not math.isfinite(v)}
    return json.dumps({**content, **odd}, indent=2, allow_nan=False) + "\n"


def ready_folder(folder: Path) -> bool:
    """Makes a folder for results, before the work that they come from.

    Returns:
        Whether it was not there before.

    Raises:
        ValueError: nothing can be written there.
    """
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(folder, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as problem:
        reason = problem.strerror
    if reason is not None:
        raise ValueError(f"{folder} cannot be written to ({reason}): choose another --out")
    return new


def refuse_foreign(folder: Path, names: Sequence[str], made_by: str, ours: bool) -> None:
    """Raises ValueError if a command would overwrite files of a folder that it has not made.

    Args:
        folder: where results are to be written.
        names: files that would be overwritten.
        made_by: what else the folder would hold.
        ours: whether it does.
    """
    found = [] if ours else [name for name in names if (folder / name).exists()]
    if found:
        raise ValueError(f"{folder} holds {found[0]}, but no {made_by}: choose another --out")


@contextmanager
def called(ids: Sequence[str]) -> Iterator[None]:
    """Names graphs by their IDs in the input file in the block's errors and warnings."""
    show = warnings.showwarning

    def show_renamed(message: Warning | str, *rest: Any) -> None:
        show(message.renamed(ids) if isinstance(message, GraphWarning) else message, *rest)

    with warnings.catch_warnings():
        warnings.showwarning = show_renamed
        try:
            yield
        except GraphError as error:
            raise error.renamed(ids) from None


def names_in(text: str) -> list[str]:
    """Names with commas between; a name that has a comma itself stands in double quotes.

    >>> names_in('size, "log P, measured"')
    ['size', 'log P, measured']
    """
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


def ready_file(path: Path) -> None:
    """Makes the folder of a file of results; see :func:`ready_folder`."""
    ready_folder(path.parent)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: --out must name a file")


@contextmanager
def logging_to(path: Path, new: bool = False) -> Iterator[Callable[[str], None]]:
    """Says lines on standard error and keeps them, and all warnings and messages, in a file.

    Where the block fails before it had anything to say, the file is not left behind, nor its folder
    if that is ``new`` and there is nothing else in it.
    """
    try:
        with _kept(path) as log:
            yield log
    except BaseException:
        with suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
                if new:
                    path.parent.rmdir()
        raise


@contextmanager
def _kept(path: Path) -> Iterator[Callable[[str], None]]:
    with path.open("ab", buffering=0) as file:

        def log(message: str) -> None:
            say(message)
            try:
                file.write(f"{message}\n".encode())
            except OSError as problem:  # a full disk names no file
                raise OSError(problem.errno, problem.strerror, str(path)) from None

        with warnings_as_lines(log), messages_as_lines(log):
            yield log


class _Lines(logging.Handler):
    """Hands each message on as one line."""

    def __init__(self, log: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        self.log(record.getMessage())


@contextmanager
def messages_as_lines(log: Callable[[str], None]) -> Iterator[None]:
    """Within the block a message of the library's logger is one line."""
    logger, handler = logging.getLogger("softperm"), _Lines(log)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def warnings_as_lines(log: Callable[[str], None] = say) -> Iterator[None]:
    """Within the block a warning is one line that starts with ``warning:``, said once."""
    said: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        words = str(message)
        if words not in said:
            said.add(words)
            log(f"warning: {words}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)  # Python's own memory forgets too easily
        warnings.showwarning = show
        yield


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar over things that are read one by one; silent without a terminal.

    Yields:
        A function to call with how many are done and of how many, if that is known.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def goes_on(out: Path, log: Callable[[str], None] = say) -> Iterator[None]:
    """Says after Ctrl-C that the same command goes on from what the folder keeps."""
    try:
        yield
    except KeyboardInterrupt:
        log(f"stopped; the same command with --out {out} goes on from here")
        raise


@contextmanager
def staged(what: str) -> Iterator[Callable[[str, float], None]]:
    """Progress through the stages of something long: a bar with the time left, or plain lines.

    Yields:
        A function to call with the stage that begins and the share of the whole that is behind.
    """
    if not sys.stderr.isatty():
        said_at = -math.inf

        def line(stage: str, share: float) -> None:
            nonlocal said_at
            if time.monotonic() - said_at > SAY_EVERY_SECONDS or share >= 1:
                said_at = time.monotonic()
                say(f"{what}: {stage} ({share:.0%} done)")

        yield line
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True)
    ) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda stage, share: bar.update(task, completed=share, description=stage)
