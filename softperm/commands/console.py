"""How commands speak: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer


def say(message: str) -> None:
    """One line for the person who waits."""
    typer.secho(message, err=True)


def give(result: Mapping[str, Any], as_json: bool) -> None:
    """The command's result on standard output: JSON, or a line per entry."""
    if as_json:
        typer.echo(json.dumps(result, indent=2, default=str))
        return
    width = max(map(len, result), default=0)
    for name, value in result.items():
        shown = f"{value:.4f}" if isinstance(value, float) else value
        typer.echo(f"{name.replace('_', ' '):<{width}}  {shown}")


@contextmanager
def logging_to(path: Path) -> Iterator[Callable[[str], None]]:
    """Says lines on standard error and keeps them, and all warnings, in a file."""
    with path.open("a", encoding="utf-8") as file:

        def log(message: str) -> None:
            say(message)
            print(message, file=file, flush=True)

        with warnings_as_lines(log):
            yield log


@contextmanager
def warnings_as_lines(log: Callable[[str], None] = say) -> Iterator[None]:
    """Within the block a warning is one line that starts with ``warning:``."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        log(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
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
