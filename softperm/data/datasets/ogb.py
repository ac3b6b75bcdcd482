"""Molecule collections of the Open Graph Benchmark, from SMILES and labels, as a recipe."""

from __future__ import annotations

import csv
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from softperm.data.datasets.meta import Meta
from softperm.data.datasets.pins import FILES
from softperm.data.datasets.prepare import Built, Part, Recipe
from softperm.data.datasets.workers import batches, in_parallel
from softperm.data.formats.archive import Archive
from softperm.progress import Report

if TYPE_CHECKING:
    from softperm.data.datasets.smiles_table import Columns

_TABLE = "mapping/mol.csv.gz"
_SPLIT = {
    "train": "split/scaffold/train.csv.gz",
    "validation": "split/scaffold/valid.csv.gz",
    "test": "split/scaffold/test.csv.gz",
}
_BATCH = 1000  # molecules handed to a process at a time
_MODULES = (
    "softperm.data.datasets.ogb",
    "softperm.data.datasets.molecules",
    "softperm.data.datasets.smiles_table",
)


def ogb_recipe(name: str, path: Path, fetched: bool, processes: int | None = None) -> Recipe:
    """How a molecule collection in OGB's layout becomes a prepared dataset.

    Args:
        name: the dataset's name.
        path: folder or zip archive with ``mapping/mol.csv.gz`` and ``split/scaffold/``.
        fetched: whether the files were downloaded, and must be the known ones.
        processes: how many processes read molecules; by default one for each core.

    Returns:
        The recipe.

    Raises:
        ValueError: if a file is missing.
    """
    with Archive(path) as archive:
        source = archive.digest([_member(archive, place) for place in (_TABLE, *_SPLIT.values())])
    known = FILES.get(name, {}) if fetched else {}

    def build(progress: Report) -> Built:
        from softperm.data.datasets.molecules import OGB

        table = _survey(name, path, known.get("table"))
        split = {f"split_{part}": _split(path, part, known.get(part)) for part in _SPLIT}
        _check_split(name, split, table.rows)
        meta = Meta(
            name=name,
            task="multilabel",
            target_names=table.columns.targets,
            label_values=tuple(OGB.atom_features.values()),
            label_names=tuple(OGB.atom_features),
            edge_label_values=tuple(OGB.bond_features.values()),
            edge_label_names=tuple(OGB.bond_features),
        )
        return Built(meta, _parts(name, path, table, processes, progress), split)

    return Recipe(name, source, options={}, modules=_MODULES, build=build, libraries=("rdkit",))


def unknown_files(name: str, path: Path) -> list[str]:
    """The files that hold another text than the official ones.

    Args:
        name: the dataset's name.
        path: folder or zip archive in OGB's layout.

    Returns:
        Their places; none also where the official files are not known.
    """
    places = {"table": _TABLE, **_SPLIT}
    known = FILES.get(name, {})
    return [places[f] for f, digest in known.items() if _text_digest(path, places[f]) != digest]


def _text_digest(path: Path, place: str) -> str:
    digest = hashlib.sha256()
    for line in _lines(path, place):
        digest.update(line.encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Table:
    columns: Columns
    rows: int


def _member(archive: Archive, place: str) -> str:
    found = archive.find(place)
    if found is None:
        raise ValueError(
            f"{archive.path}: {place} is missing; expected OGB's layout, {_TABLE} and the files "
            "train, valid and test in split/scaffold"
        )
    return found


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


def _survey(name: str, path: Path, known: str | None) -> _Table:
    """Read the table once through, to know its columns and length and that it is whole."""
    from softperm.data.datasets.smiles_table import find_columns

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
        raise ValueError(f"{path}: {place}: expected one row number a line ({error})") from error


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
    from softperm.data.datasets.smiles_table import encode_rows

    encode = partial(encode_rows, table.columns)
    for graphs, values in in_parallel(encode, work, processes):
        done += len(values)
        progress(f"preparing {name}", done, table.rows)
        yield Part(
            sizes=graphs.sizes,
            edge_counts=graphs.edge_counts,
            edge_index=graphs.edge_index,
            label=graphs.atom,
            edge_label=graphs.bond,
            values=values,
        )
