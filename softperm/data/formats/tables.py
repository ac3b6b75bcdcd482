"""Tables of text: molecules with targets, and the records that every reader of files yields."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import TextIOBase

import numpy as np

from softperm.data.canonical import RawGraph
from softperm.errors import GraphError, counted
from softperm.pyg import Data

Target = int | float | str | None

MAX_CELL_LINES = 1000  # a quoted cell with more lines is a quote that was never closed

MISSING = {"", "nan", "na", "n/a", "null", "none"}


@dataclass(frozen=True)
class Record:
    """One graph of a file.

    Args:
        where: its place in the file, with which error messages begin: ``mols.csv line 12``.
        id: a name for people: its SMILES, its file, its line number.
        graph: the SMILES, the graph as the file lists it, or a canonical graph.
        targets: its values in the file, by name; None is a missing value. In a table they are
            the text of its cells, because the type of a column depends on all of them.
    """

    where: str
    id: str
    graph: str | RawGraph | Data
    targets: dict[str, Target] = field(default_factory=dict)


@dataclass(frozen=True)
class Unreadable:
    """A row of a file that holds no graph.

    Args:
        where: its place in the file.
        id: a name for people, as far as it can be read.
        problem: what was expected, what came, and what to do.
    """

    where: str
    id: str
    problem: str

    def error(self, index: int) -> GraphError:
        """The problem as an error about the graph at a position."""
        return GraphError(index, self.problem, self.where)


@dataclass(frozen=True)
class Table:
    """The header of a table of molecules.

    Args:
        name: the file's name in error messages.
        header: the names of the columns.
        delimiter: separates cells.
        smiles: position of the column of SMILES.
        id: position of the column of names; by default that of the SMILES.
    """

    name: str
    header: tuple[str, ...]
    delimiter: str
    smiles: int
    id: int

    @classmethod
    def of(
        cls, line: str, name: str, smiles_column: str | None = None, id_column: str | None = None
    ) -> Table:
        """The table with this first line.

        Args:
            line: the names of the columns, separated by comma, semicolon or tab.
            name: the file's name in error messages.
            smiles_column: the column of SMILES; by default the one named ``smiles``, in any case.
            id_column: the column of names.

        Raises:
            ValueError: a column is missing, or appears twice.
        """
        header, delimiter = read_header(line, name)
        smiles = find_smiles(header, smiles_column, name)
        if id_column is not None and id_column not in header:
            raise ValueError(
                f"{name} has no column {id_column!r}; its columns are: {shortened(header)}"
            )
        return cls(
            name,
            tuple(header),
            delimiter,
            header.index(smiles),
            header.index(id_column or smiles),
        )

    def records(self, first: int, content: bytes) -> Iterator[Record | Unreadable]:
        """The molecules of some lines, in their order."""
        for line, row in read_rows(self.header, self.delimiter, first, content):
            where = f"{self.name} line {line}"
            if isinstance(row, str):
                yield Unreadable(where, f"line {line}", row)
                continue
            targets: dict[str, Target] = dict(zip(self.header, row, strict=True))
            del targets[self.header[self.smiles]]
            targets.pop(self.header[self.id], None)
            yield Record(where, row[self.id].strip(), row[self.smiles].strip(), targets)


def shortened(names: Sequence[str], most: int = 20) -> str:
    """The first names, and how many more there are."""
    more = f", … and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def read_header(line: str, name: str) -> tuple[list[str], str]:
    """The columns of a table, and which of comma, semicolon and tab separates them."""
    if not line.strip():
        raise ValueError(f"{name} has no header line; expected the names of its columns first")
    delimiter = max(",;\t", key=line.count)
    if "\r" in line.rstrip("\r\n"):
        raise ValueError(f"{name} has lines that end in \\r alone; convert line ends to \\n")
    header = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]
    column, count = Counter(header).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{name}: column {column!r} appears twice; rename one of them")
    return header, delimiter


def read_rows(
    header: Sequence[str], delimiter: str, first: int, content: bytes
) -> Iterator[tuple[int, list[str] | str]]:
    """The rows of a table with the number of their first line; blank lines are skipped.

    Args:
        header: the names of the columns.
        delimiter: separates cells.
        first: number of the first line.
        content: whole lines in UTF-8.

    Returns:
        For each row its cells, or the reason why it is none.
    """
    lines, k = content.split(b"\n"), 0
    while k < len(lines):
        line, used = lines[k], 1
        if line.strip():
            row: list[str] | str
            try:
                if b'"' in line:
                    row, used = _quoted_row(lines[k : k + MAX_CELL_LINES], delimiter)
                else:
                    row = line.decode().rstrip("\r").split(delimiter)
            except UnicodeDecodeError as error:
                row = not_utf8(error)
            except csv.Error as error:
                row = f"it is not a table row: {error}"
            if not isinstance(row, str) and len(row) != len(header):
                used = 1  # lines that a wrong quote joined are rows of their own
                row = (
                    f"it has {counted(len(row), 'cell')}, but the header names "
                    f"{counted(len(header), 'column')}; quote cells that contain {delimiter!r}"
                )
            yield first + k, row
        k += used


def _quoted_row(lines: list[bytes], delimiter: str) -> tuple[list[str], int]:
    """The cells of a row with quotes, which may have several lines, and their number."""
    text = (line.decode() + "\n" for line in lines)
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    return next(reader), reader.line_num


def not_utf8(error: UnicodeDecodeError) -> str:
    """The problem of a line that is not text in UTF-8."""
    return f"it is not text in UTF-8 ({error.reason}); convert the file first"


def read_table(stream: TextIOBase, name: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a table and its rows, each with its line number; blank lines are skipped.

    Args:
        stream: the text; the header decides which of comma, semicolon and tab separates cells.
        name: the file's name in error messages.
    """
    header, delimiter = read_header(stream.readline(), name)
    rows = []
    for line, row in read_rows(header, delimiter, 2, stream.read().encode()):
        if isinstance(row, str):
            raise ValueError(f"{name} line {line}: {row}")
        rows.append((line, row))
    return header, rows


MOST_UNREADABLE = 0.1  # share of rows that may be left out


def check_share(problems: Sequence[str], rows: int) -> None:
    """Raises ValueError, with the first problem, if too many rows cannot be read."""
    if len(problems) > MOST_UNREADABLE * rows:
        raise ValueError(
            f"{problems[0]} ({len(problems):,} of {counted(rows, 'row')} cannot be read)"
            if len(problems) > 1
            else problems[0]
        )


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
    numbers = [None if cell.lower() in MISSING else as_number(cell) for cell in cells]
    missing = [cell.lower() in MISSING for cell in cells]
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
    strings = ["" if value is None else str(value) for value in values]
    for text in strings:
        if "\0" in text:  # NumPy would drop it and merge values
            raise ValueError(f"the value {text[:60]!r} has the character NUL; remove it")
    return np.array(strings)


def _as_float(value: int | float) -> float:
    """A number as a float; infinite if it is larger than every float, as ``1e999`` is."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def find_smiles(header: Sequence[str], wanted: str | None, name: str) -> str:
    """The name of the column of SMILES.

    Args:
        header: the names of all columns.
        wanted: the column to use; by default the one named ``smiles``, in any case.
        name: the file's name in error messages.

    Raises:
        ValueError: there is no such column, or there are several.
    """
    if wanted is None:
        matches = [column for column in header if column.lower() == "smiles"]
    else:
        matches = [column for column in header if column == wanted]
    if len(matches) != 1:
        raise ValueError(
            f"{name}: expected a column {wanted or 'smiles'!r} of SMILES, found the columns "
            f"{shortened(header)}; name it with smiles_column"
        )
    return matches[0]
