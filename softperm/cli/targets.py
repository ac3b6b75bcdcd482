"""What a file of graphs is to be trained for: its targets, and the task that they pose."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from softperm.data.formats import GraphFile, read_graphs
from softperm.data.formats.tables import as_number

MOST_CLASSES = 20  # whole numbers of more values than this are taken for measurements


def read_with_targets(
    data: Path,
    wanted: Sequence[str] | None,
    smiles_column: str | None,
    symmetrise: bool,
    count: Callable[[int, int | None], None],
) -> GraphFile:
    """The graphs of a file with the targets to learn: those wanted, or the only one there is."""
    file = read_graphs(
        data, target=wanted, smiles_column=smiles_column, symmetrise=symmetrise, progress=count
    )
    if not file.targets:
        raise ValueError(f"{data} has no targets to learn from")
    if wanted is None and len(file.targets) > 1:
        raise ValueError(
            f"{data} has these targets: {', '.join(file.targets)}; name what to learn with --target"
        )
    return file


def choose_task(task: str, file: GraphFile) -> str:
    """The task that was asked for, or that the targets suggest; checked against the targets."""
    several = len(file.targets) > 1
    task = _guess(file) if task == "auto" else task
    if task not in {"classification", "multilabel", "regression"}:
        raise ValueError(
            f"--task must be auto, classification, multilabel or regression; got {task!r}"
        )
    if several != (task == "multilabel") and task != "regression":
        raise ValueError(
            f"--task {task} takes {'several targets' if task == 'multilabel' else 'one target'}; "
            f"got {', '.join(file.targets)}"
        )
    for name, column in file.targets.items():
        if task == "regression" and column.dtype.kind == "U":
            graph, word = _first_word(column, file)
            raise ValueError(
                f"--task regression takes numbers; {name} of graph {graph} is {word!r}"
            )
        needed = task == "classification" or column.dtype.kind == "U"
        _refuse(name, "missing", _missing(column) if needed else None, file)
        _refuse(name, "infinite", np.isinf(column) if column.dtype.kind == "f" else None, file)
    _warn_missing(file)
    for name, column in file.targets.items():
        _warn_words(name, column, file)
    return task


def _warn_missing(file: GraphFile) -> None:
    """Warns, once for all targets, of graphs without a value."""
    gaps = {name: _missing(column) for name, column in file.targets.items()}
    gaps = {name: missing for name, missing in gaps.items() if missing.any()}
    if gaps:
        target, missing = next(iter(gaps.items()))
        graph = file.ids[int(missing.argmax())]
        others = f" (and {len(gaps) - 1} other targets for some)" if len(gaps) > 1 else ""
        warnings.warn(
            f"target {target} is missing for {missing.sum()} of {len(missing)} graphs, graph "
            f"{graph} first{others}: they teach nothing about it",
            stacklevel=3,
        )


def _warn_words(target: str, column: np.ndarray, file: GraphFile) -> None:
    """Warns of words among numbers."""
    several = f"of {len(column)} graphs"
    if column.dtype.kind == "U":
        numbers = sum(as_number(value) is not None for value in column)
        commas = [value for value in column if as_number(value) is None and _decimal_comma(value)]
        if len(commas) >= len(column) / 2:
            warnings.warn(
                f"target {target} is {str(commas[0])!r} and the like for {len(commas)} {several}, "
                "which are taken for classes: if they are numbers, write them with a decimal point",
                stacklevel=3,
            )
        if len(column) / 2 <= numbers < len(column):
            graph, word = _first_word(column, file)
            warnings.warn(
                f"target {target} is a number for {numbers} {several}, but {word!r} for graph "
                f"{graph}: all are taken for classes",
                stacklevel=3,
            )


def _decimal_comma(word: str) -> bool:
    return word.count(",") == 1 and as_number(word.replace(",", ".")) is not None


def _first_word(column: np.ndarray, file: GraphFile) -> tuple[str, str]:
    """The first graph whose target is no number, and that target."""
    place = next((k for k, value in enumerate(column) if as_number(value) is None), 0)
    return file.ids[place], str(column[place])


def _refuse(target: str, fault: str, where: np.ndarray | None, file: GraphFile) -> None:
    if where is not None and where.any():
        graph = file.ids[int(where.argmax())]
        raise ValueError(f"target {target} is {fault} for graph {graph}: leave such graphs out")


def _guess(file: GraphFile) -> str:
    """Words, a few whole numbers, and yes-or-no are classes; other numbers are to be regressed."""
    columns = [column[~_missing(column)] for column in file.targets.values()]
    if len(columns) > 1:
        answers = all(c.dtype.kind in "if" and np.isin(c, (0, 1)).all() for c in columns)
        return "multilabel" if answers else "regression"
    (there,) = columns
    words = there.dtype.kind not in "if"
    few = words or ((there == there.round()).all() and len(np.unique(there)) <= MOST_CLASSES)
    return "classification" if few else "regression"


def _missing(column: np.ndarray) -> np.ndarray:
    """Where a target is missing: NaN, or an empty string."""
    return np.isnan(column) if column.dtype.kind == "f" else column == ""
