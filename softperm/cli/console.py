"""The output of commands: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import typer

from softperm.errors import GraphError, GraphWarning
from softperm.files import (
    disk_errors,
    exclusive,
    remove_abandoned,
    remove_abandoned_parts,
    undeleted,
)

Log = Callable[[str], None]


def echo(message: str) -> None:
    """Prints a line on standard error."""
    typer.secho(message, err=True)


def print_result(result: Mapping[str, Any], as_json: bool) -> None:
    """Prints the command's result on standard output: as JSON, or one line per entry.

    In lines, ``score`` is replaced by the name of the metric: ``test mae`` for ``test_score``.
    """
    if as_json:
        typer.echo(as_text(result), nl=False)
        return
    metric = str(result.get("metric", "score"))
    result = {
        name.removesuffix("score") + metric if name.endswith("score") else name: value
        for name, value in result.items()
    }
    width = max(map(len, result), default=0)
    for name, value in result.items():
        shown = f"{value:.4f}" if isinstance(value, float) else value
        typer.echo(f"{name.replace('_', ' '):<{width}}  {shown}")


def as_text(content: Mapping[str, Any]) -> str:
    """Strict JSON: a number that is not finite becomes null."""
    odd = {k: None for k, v in content.items() if isinstance(v, float) and not math.isfinite(v)}
    return json.dumps({**content, **odd}, indent=2, allow_nan=False) + "\n"


def ready_folder(folder: Path) -> bool:
    """Creates the folder for results; removes what killed processes left in it.

    Returns:
        Whether the folder is new.

    Raises:
        ValueError: nothing can be written there.
    """
    new = _make_folder(folder)
    if not new:
        remove_abandoned(folder)
    return new


def _make_folder(folder: Path) -> bool:
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(folder, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as problem:
        reason = problem.strerror
    if reason is not None:
        raise ValueError(f"{folder} cannot be written to ({reason}): choose another --out")
    return new


@contextmanager
def only_writer(folder: Path, new: bool = False) -> Iterator[None]:
    """Holds a run folder for one process.

    Args:
        folder: the run folder.
        new: whether the folder was created for it; it is removed if it is empty in the end.

    Raises:
        ValueError: another process writes to the folder, or deleted it.
    """
    target = folder / "run"
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(target, wait=None))
        except BlockingIOError:
            raise ValueError(
                f"another softperm command writes to {folder}: wait for its end, or choose another "
                "--out"
            ) from None
        try:
            with undeleted(folder):
                yield
        finally:
            target.with_name(f"{target.name}.lock").unlink(missing_ok=True)
            if new:
                with suppress(OSError):
                    folder.rmdir()


def ready_file(path: Path, *inputs: str | Path | None) -> None:
    """Creates the folder of a file for results; removes parts of it that killed processes left.

    Args:
        path: the file to write.
        inputs: files and folders that the command reads; names of datasets are no files.

    Raises:
        ValueError: it is a folder, cannot be written, or is one of the files that are read.
    """
    _make_folder(path.parent)
    remove_abandoned_parts(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: --out must name a file")
    if not path.exists():
        return
    from softperm.data.formats.shards import input_files

    files = chain.from_iterable(input_files(Path(each)) for each in inputs if each is not None)
    if any(path.samefile(file) for file in files):
        raise ValueError(f"{path} is an input of this command: write to another file")


def refuse_foreign(folder: Path, names: Sequence[str], content: str, ours: bool) -> None:
    """Raises ValueError if a command would overwrite files that it did not write.

    Args:
        folder: where results are to be written.
        names: files that would be overwritten.
        content: the content that such a folder of ours has.
        ours: whether this folder has it.
    """
    present = [] if ours else [name for name in names if (folder / name).exists()]
    if present:
        raise ValueError(f"{folder} holds {present[0]}, but no {content}: choose another --out")


@contextmanager
def naming_graphs(ids: Sequence[str]) -> Iterator[None]:
    """Names graphs by their IDs in the input in the block's errors and warnings."""
    show = warnings.showwarning

    def show_renamed(message: Warning | str, *rest: Any) -> None:
        show(message.renamed(ids) if isinstance(message, GraphWarning) else message, *rest)

    with warnings.catch_warnings():
        warnings.showwarning = show_renamed
        try:
            yield
        except GraphError as error:
            raise error.renamed(ids) from None


@contextmanager
def logging_to(path: Path) -> Iterator[Log]:
    """Yields a function that prints a line and appends it to a file; see :func:`lines`.

    If the block fails before anything was logged, the file is removed.
    """
    try:
        with path.open("ab", buffering=0) as file:

            def log(message: str) -> None:
                echo(message)
                with disk_errors(path):
                    file.write(f"{message}\n".encode())

            with lines(log):
                yield log
    except BaseException:
        with suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
        raise


@contextmanager
def lines(log: Log = echo) -> Iterator[None]:
    """Within the block, warnings and messages of the logger ``softperm`` become lines.

    A warning starts with ``warning:`` and is printed once.
    """
    printed: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        words = str(message)
        if words not in printed:
            printed.add(words)
            log(f"warning: {words}")

    logger, handler = logging.getLogger("softperm"), logging.Handler(logging.INFO)
    handler.emit = lambda record: log(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)  # "default" forgets some repeats
            warnings.showwarning = show
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def hint_at_resuming(out: Path, log: Log = echo) -> Iterator[None]:
    """After Ctrl-C, says how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        log(f"stopped; the same command with --out {out} resumes it")
        raise
