"""Tables of text: molecules with targets, and the records that every reader of files yields."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import TextIOBase

import numpy as np

from softperm.data.canonical import RawGraph
from softperm.data.molecules import raw_graph_from_smiles
from softperm.errors import errors_about_graph

Target = int | float | str | None

_MISSING = {"", "nan", "na", "n/a", "null", "none"}


@dataclass(frozen=True)
class Record:
    """One graph of a file.

    Args:
        where: its place in the file, with which error messages begin: ``mols.csv line 12``.
        id: a name for people: its SMILES, its file, its line number.
        raw: the graph as the file lists it.
        targets: its values in the file, by name; None is a missing value.
    """

    where: str
    id: str
    raw: RawGraph
    targets: dict[str, Target] = field(default_factory=dict)


def read_smiles_table(
    stream: TextIOBase, name: str, smiles_column: str | None, target: Sequence[str] | None
) -> Iterator[Record]:
    """The molecules of a CSV or TSV file, in the order of its rows.

    Args:
        stream: the text, with a header line; cells separated by comma, semicolon or tab.
        name: the file's name in error messages.
        smiles_column: the column of SMILES; by default the one named ``smiles``, in any case.
        target: the columns to read as targets; None reads every column but the SMILES.

    Returns:
        Records, with the SMILES as ``id``.

    Raises:
        ValueError: a column is missing, a row has too few or too many cells, or a cell is not
            SMILES; the message names the line.
    """
    header, rows = read_table(stream, name)
    smiles_column = _find_smiles(header, smiles_column, name)
    wanted = [column for column in header if column != smiles_column]
    if target is not None:
        check_targets(target, wanted, name)
        wanted = list(target)
    columns = {c: parse_cells([row[header.index(c)] for _, row in rows]) for c in wanted}
    place = header.index(smiles_column)
    for k, (line, row) in enumerate(rows):
        where, smiles = f"{name} line {line}", row[place]
        with errors_about_graph(k, where):
            raw = raw_graph_from_smiles(smiles)
        yield Record(where, smiles.strip(), raw, {c: values[k] for c, values in columns.items()})


def read_table(stream: TextIOBase, name: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a table and its rows, each with its line number; blank lines are skipped.

    Args:
        stream: the text; the header decides which of comma, semicolon and tab separates cells.
        name: the file's name in error messages.
    """
    first = stream.readline()
    if not first.strip():
        raise ValueError(f"{name} has no header line; expected the names of its columns first")
    delimiter = max(",;\t", key=first.count)
    header = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter))]
    twice = sorted({column for column in header if header.count(column) > 1})
    if twice:
        raise ValueError(f"{name}: column {twice[0]!r} appears twice; rename one of them")
    rows, reader = [], csv.reader(stream, delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if not row or (len(row) == 1 < len(header) and not row[0].strip()):
                continue
            if len(row) != len(header):
                raise ValueError(
                    f"{name} line {reader.line_num + 1} has {len(row)} cells, but the header names "
                    f"{len(header)} columns; quote cells that contain {delimiter!r}"
                )
            rows.append((reader.line_num + 1, row))
    except csv.Error as error:
        raise ValueError(f"{name} line {reader.line_num + 1} is not a table row: {error}") from None
    return header, rows


def check_targets(target: Sequence[str], present: Sequence[str], name: str) -> None:
    """Raise, with the names that the file has, if a requested target is not among them."""
    for wanted in target:
        if wanted not in present:
            names = ", ".join(present) if present else "none"
            raise ValueError(f"{name} has no target {wanted!r}; its targets are: {names}")


def parse_cells(cells: Sequence[str]) -> list[Target]:
    """The cells of one column as values: numbers if all of them are numbers, else text.

    In a column of numbers, ``nan``, ``NA``, ``N/A``, ``null`` and ``none`` are missing values; an
    empty cell is a missing value in any column.

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
    """The number in a cell of text; None if it holds another word."""
    for kind in (int, float):
        try:
            return kind(cell) if "_" not in cell else None  # Python reads 1_000 as a number
        except ValueError:
            continue
    return None


def as_column(values: Sequence[Target]) -> np.ndarray:
    """Values of one target as an array.

    Args:
        values: one for each graph; None is a missing value.

    Returns:
        Integers if all values are integers; floats, with NaN where missing, if all values are
        numbers or missing; else strings, empty where missing. Integers of which two would become
        the same float are strings too.

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
    """A number as a float; infinite if it is larger than every float, as ``1e999`` is."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _find_smiles(header: list[str], wanted: str | None, name: str) -> str:
    if wanted is None:
        matches = [column for column in header if column.lower() == "smiles"]
    else:
        matches = [column for column in header if column == wanted]
    if len(matches) != 1:
        raise ValueError(
            f"{name}: expected a column {wanted or 'smiles'!r} of SMILES, found the columns "
            f"{', '.join(header)}; name the column with smiles_column, or --smiles-column"
        )
    return matches[0]
