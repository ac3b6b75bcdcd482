"""Rows of a table with SMILES and targets, as a worker process reads them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from softperm.data.datasets.molecules import OGB, Molecules, encode, parse_smiles


@dataclass(frozen=True)
class Columns:
    """Where a table keeps what.

    Args:
        smiles: the column of the molecule.
        values: the columns of the targets.
        targets: their names.
        width: number of columns.
    """

    smiles: int
    values: tuple[int, ...]
    targets: tuple[str, ...]
    width: int


def find_columns(header: list[str], where: str) -> Columns:
    """Read the header of OGB's table: targets, then ``smiles`` and ``mol_id``.

    Args:
        header: the names of the columns.
        where: the file, for error messages.

    Returns:
        Where everything is.

    Raises:
        ValueError: if there is no SMILES column, or no target.
    """
    values = tuple(i for i, name in enumerate(header) if name not in ("smiles", "mol_id"))
    if "smiles" not in header or not values:
        raise ValueError(f"{where}: expected a column smiles and targets, found {header[:8]}")
    targets = tuple(header[i] for i in values)
    return Columns(header.index("smiles"), values, targets, len(header))


def encode_rows(columns: Columns, work: tuple[int, Sequence[str]]) -> tuple[Molecules, np.ndarray]:
    """Some rows as graphs with OGB's features, and their targets.

    Args:
        columns: where the table keeps what.
        work: the number of the first row, and the lines.

    Returns:
        The graphs, and the targets, (b, T) float32 with NaN for an empty field.

    Raises:
        ValueError: if a row is not sound; the sentence names the graph.
    """
    first, lines = work
    mols, values = [], np.empty((len(lines), len(columns.values)), dtype=np.float32)
    for i, row in enumerate(csv.reader(lines)):
        where = f"graph {first + i}"
        if len(row) != columns.width:
            raise ValueError(
                f"{where}: expected {columns.width} columns, found {len(row)}; the table is cut "
                "short or damaged"
            )
        try:
            values[i] = [float(row[c]) if row[c] else np.nan for c in columns.values]
        except ValueError as error:
            raise ValueError(
                f"{where}: expected numbers or nothing as targets ({error})"
            ) from error
        mols.append(parse_smiles(row[columns.smiles], where))
    return encode(mols, OGB), values
