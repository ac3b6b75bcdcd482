"""Preparing molecule datasets of the Open Graph Benchmark from SMILES and labels.

This module imports no torch, so that worker processes start quickly.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from softperm.data.archive import Archive
from softperm.data.datasets.catalogue import Entry
from softperm.data.datasets.prepared import Part, RawData, Recipe, Schema
from softperm.data.molecules import OGB, Molecules, encode, parse_smiles
from softperm.errors import errors_about_graph
from softperm.parallel import batches, map_in_processes
from softperm.progress import Report

_TABLE = "mapping/mol.csv.gz"
_SPLIT = {
    "train": "split/scaffold/train.csv.gz",
    "validation": "split/scaffold/valid.csv.gz",
    "test": "split/scaffold/test.csv.gz",
}
_BATCH = 1000  # molecules passed to a process at a time
_MODULES = ("softperm.data.datasets.ogb", "softperm.data.molecules")


def ogb_recipe(entry: Entry, path: Path, downloaded: bool, processes: int | None = None) -> Recipe:
    """How to prepare a molecule dataset in OGB's layout.

    Args:
        entry: the dataset.
        path: folder or zip archive with ``mapping/mol.csv.gz`` and ``split/scaffold/``.
        downloaded: whether the files were downloaded, and must be the known ones.
        processes: number of processes that parse molecules; by default one for each core.

    Raises:
        ValueError: a file is missing.
    """
    with Archive(path) as archive:
        source = archive.digest([_member(archive, place) for place in (_TABLE, *_SPLIT.values())])
    known = entry.file_checksums if downloaded else {}

    def read(progress: Report) -> RawData:
        table = _scan_table(entry.name, path, known.get("table"))
        split = {f"split_{part}": _split(path, part, known.get(part)) for part in _SPLIT}
        _check_split(entry.name, split, table.rows)
        schema = Schema.of_molecules(entry.name, "multilabel", table.columns.targets, OGB)
        return RawData(schema, _parts(entry.name, path, table, processes, progress), split)

    return Recipe(entry.name, source, options={}, modules=_MODULES, read=read, libraries=("rdkit",))


def unknown_files(entry: Entry, path: Path) -> list[str]:
    """The files whose text differs from the official one.

    Returns:
        Their places; empty also if the official checksums are not known.
    """
    places = {"table": _TABLE, **_SPLIT}
    known = entry.file_checksums
    return [places[f] for f, digest in known.items() if _text_digest(path, places[f]) != digest]


def _text_digest(path: Path, place: str) -> str:
    digest = hashlib.sha256()
    for line in _lines(path, place):
        digest.update(line.encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Columns:
    """The columns of OGB's table."""

    smiles: int
    values: tuple[int, ...]
    targets: tuple[str, ...]
    width: int


def find_columns(header: list[str], where: str) -> Columns:
    """Read the header of OGB's table: targets, then ``smiles`` and ``mol_id``.

    Raises:
        ValueError: there is no SMILES column, or no target.
    """
    values = tuple(i for i, name in enumerate(header) if name not in ("smiles", "mol_id"))
    if "smiles" not in header or not values:
        raise ValueError(f"{where}: expected a column smiles and targets, found {header[:8]}")
    targets = tuple(header[i] for i in values)
    return Columns(header.index("smiles"), values, targets, len(header))


@dataclass(frozen=True)
class _Table:
    columns: Columns
    rows: int


def _member(archive: Archive, place: str) -> str:
    member = archive.find(place)
    if member is None:
        raise ValueError(
            f"{archive.path}: {place} is missing; expected OGB's layout, {_TABLE} and the files "
            "train, valid and test in split/scaffold"
        )
    return member


def _lines(path: Path, place: str) -> Iterator[str]:
    """The lines of a gzipped member."""
    with Archive(path) as archive, archive.open(_member(archive, place)) as raw:
        stream = gzip.GzipFile(fileobj=raw)
        try:
            for line in stream:
                yield line.decode("utf-8")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"{path}: {place} is damaged ({reason}); fetch it again") from error


def _scan_table(name: str, path: Path, known: str | None) -> _Table:
    """Read the table once to learn its columns and length and to check that it is complete."""
    digest, rows, header = hashlib.sha256(), -1, ""
    for line in _lines(path, _TABLE):
        digest.update(line.encode())
        header = line if rows < 0 else header
        rows += bool(line.strip())
    if rows < 1:
        raise ValueError(f"{path}: {_TABLE} holds no molecules; fetch it again")
    _check_known(path, _TABLE, digest.hexdigest(), known)
    return _Table(find_columns(next(csv.reader([header])), f"{name}: {_TABLE}"), rows)


def _split(path: Path, part: str, known: str | None) -> np.ndarray:
    place = _SPLIT[part]
    text = "".join(_lines(path, place))
    _check_known(path, place, hashlib.sha256(text.encode()).hexdigest(), known)
    try:
        return np.array([int(n) for n in text.split()], dtype=np.int64)
    except ValueError as error:
        raise ValueError(f"{path}: {place}: expected one row number per line ({error})") from error


def _check_known(path: Path, place: str, found: str, known: str | None) -> None:
    if known not in (None, found):
        raise ValueError(
            f"{path}: {place} holds other data than the known file (SHA-256 {found[:16]}…, "
            f"expected {str(known)[:16]}…); put files you trust in a data root to use them"
        )


def _check_split(name: str, split: dict[str, np.ndarray], rows: int) -> None:
    together = np.sort(np.concatenate(list(split.values())))
    if not np.array_equal(together, np.arange(rows)):
        raise ValueError(
            f"{name}: split/scaffold divides {together.size:,} molecules, but {_TABLE} holds "
            f"{rows:,}; a file is cut short or belongs to another dataset"
        )


def _parts(
    name: str, path: Path, table: _Table, processes: int | None, progress: Report
) -> Iterator[Part]:
    lines = (line for line in _lines(path, _TABLE) if line.strip())
    next(lines)  # the header
    numbered = enumerate(batches(lines, _BATCH))
    work = ((first * _BATCH, batch) for first, batch in numbered)
    done = 0
    for graphs, values in map_in_processes(partial(encode_rows, table.columns), work, processes):
        done += len(values)
        progress(f"preparing {name}", done, table.rows)
        yield Part.of_molecules(graphs, values=values)


def encode_rows(columns: Columns, work: tuple[int, Sequence[str]]) -> tuple[Molecules, np.ndarray]:
    """Some rows as graphs with OGB's features, and their targets.

    Args:
        columns: the columns of the table.
        work: the number of the first row, and the lines.

    Returns:
        The graphs, and the targets, (b, T) float32 with NaN for an empty field.

    Raises:
        GraphError: a row is unusable.
    """
    first, lines = work
    mols, values = [], np.empty((len(lines), len(columns.values)), dtype=np.float32)
    for i, row in enumerate(csv.reader(lines)):
        with errors_about_graph(first + i):
            if len(row) != columns.width:
                raise ValueError(
                    f"expected {columns.width} columns, found {len(row)}; the table is cut short "
                    "or damaged"
                )
            try:
                values[i] = [float(row[c]) if row[c] else np.nan for c in columns.values]
            except ValueError as error:
                raise ValueError(f"expected numbers or nothing as targets ({error})") from error
            mols.append(parse_smiles(row[columns.smiles], any_aromaticity=True))
    return encode(mols, OGB), values
