"""A table of molecules: one column of SMILES, the others targets."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import TextIOBase

from softperm.data.formats.records import Record, parse_cells
from softperm.data.molecules import read_smiles


def read_smiles_csv(
    stream: TextIOBase, name: str, smiles_column: str | None, target: Sequence[str] | None
) -> Iterator[Record]:
    """The molecules of a CSV or TSV file, in the order of its rows.

    Args:
        stream: the text, with a header line; comma, semicolon or tab between cells.
        name: what errors call the file.
        smiles_column: the column of SMILES; by default the one called ``smiles``, in any case.
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
    lines, cells = [line for line, _ in rows], [row for _, row in rows]
    columns = {c: parse_cells([row[header.index(c)] for row in cells]) for c in wanted}
    place = header.index(smiles_column)
    for k, line in enumerate(lines):
        where, smiles = f"{name} line {line}", cells[k][place]
        targets = {column: values[k] for column, values in columns.items()}
        yield Record(where, smiles.strip(), read_smiles(smiles, where), targets)


def read_table(stream: TextIOBase, name: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a table and its rows, each with its line number; blank lines are skipped.

    Args:
        stream: the text; its header decides which of comma, semicolon and tab parts the cells.
        name: what errors call the file.
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
    """Raise, with the names there are, if a wanted target is not among them."""
    for wanted in target:
        if wanted not in present:
            there = ", ".join(present) if present else "none"
            raise ValueError(f"{name} has no target {wanted!r}; the targets there are: {there}")


def _find_smiles(header: list[str], wanted: str | None, name: str) -> str:
    if wanted is None:
        found = [column for column in header if column.lower() == "smiles"]
    else:
        found = [column for column in header if column == wanted]
    if len(found) != 1:
        raise ValueError(
            f"{name}: expected a column {wanted or 'smiles'!r} of SMILES, found the columns "
            f"{', '.join(header)}; say which it is with smiles_column, or --smiles-column"
        )
    return found[0]
