"""What every reader of files yields: one record for each graph, with its targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from softperm.data.canonical import RawGraph

Target = int | float | str | None

_MISSING = {"", "nan", "na", "n/a", "null", "none"}


@dataclass(frozen=True)
class Record:
    """One graph of a file.

    Args:
        where: its place in the file, with which errors begin: ``mols.csv line 12``.
        id: what a person would call the graph: its SMILES, its file, its number.
        raw: the graph as the file lists it.
        targets: the values the file gives for it, by name; None is a missing value.
    """

    where: str
    id: str
    raw: RawGraph
    targets: dict[str, Target] = field(default_factory=dict)


def as_column(values: Sequence[Target]) -> np.ndarray:
    """Values of one target as an array.

    Args:
        values: one for each graph; None is a missing value.

    Returns:
        Integers if all values are; floats, with NaN where missing, if all values are numbers or
        missing; else strings, empty where missing. Whole numbers of which two would become the
        same float are strings too.

    >>> as_column([1, None, 2.5])
    array([1. , nan, 2.5])
    >>> as_column(["cat", None])
    array(['cat', ''], dtype='<U3')
    """
    given = [value for value in values if value is not None]
    if all(isinstance(value, int) and abs(value) < 2**63 for value in values):
        return np.array(values, dtype=np.int64)
    if all(isinstance(value, int | float) for value in given):
        floats = [
            _as_float(value) if isinstance(value, int | float) else np.nan for value in values
        ]
        pairs = zip(values, floats, strict=True)
        whole = {value: number for value, number in pairs if isinstance(value, int)}
        real = any(isinstance(value, float) for value in given)
        if real or len(set(whole.values())) == len(whole):
            return np.array(floats)
    return np.array(["" if value is None else str(value) for value in values])


def _as_float(value: int | float) -> float:
    """A number as a float; infinite if it is beyond all of them, as ``1e999`` is."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def parse_cells(cells: Sequence[str]) -> list[Target]:
    """The cells of one column of text as values: numbers if all of them are, else text.

    In a column of numbers, ``nan``, ``NA``, ``N/A``, ``null`` and ``none`` are missing values; an
    empty cell is one everywhere.

    >>> parse_cells(["1", "NA", "2.5"])
    [1, None, 2.5]
    >>> parse_cells(["Na", "Cl", ""])
    ['Na', 'Cl', None]
    """
    cells = [cell.strip() for cell in cells]
    numbers = [None if cell.lower() in _MISSING else as_number(cell) for cell in cells]
    missing = [cell.lower() in _MISSING for cell in cells]
    numeric = all(m or n is not None for m, n in zip(missing, numbers, strict=True))
    if numeric and (not all(missing) or not any(cells)):
        return list(numbers)
    return [cell or None for cell in cells]


def as_number(cell: str) -> int | float | None:
    """The number that a cell of text is; None if it is a word."""
    for kind in (int, float):
        try:
            return kind(cell) if "_" not in cell else None  # Python reads 1_000 as a number
        except ValueError:
            continue
    return None
