"""Files of graphs, in any of the formats users have, read into canonical graphs with targets."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import BufferedIOBase, TextIOBase
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np
from torch_geometric.data import Data

from softperm.data.canonical import canonicalise, check_alike, warn_removed
from softperm.data.formats.archive import Archive
from softperm.data.formats.graphml import read_graphml, read_graphml_folder
from softperm.data.formats.json_lines import read_json_lines
from softperm.data.formats.records import Record, as_column
from softperm.data.formats.smiles_csv import check_targets, read_smiles_csv

Progress = Callable[[int, int | None], None]

_DECOMPRESS = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_TABLES, _LINES = (".csv", ".tsv"), (".jsonl", ".ndjson")
_KNOWN = (
    "a folder or zip in TUDataset's format, a CSV or TSV table with a SMILES column, JSON Lines "
    "(.jsonl) of node-link graphs, a folder of GraphML files (tables and JSON Lines may be "
    "compressed: .gz, .xz, .bz2; all of them may be inside a .zip)"
)


@dataclass(frozen=True)
class GraphFile:
    """The graphs of a file with what it says about each.

    Args:
        graphs: canonical graphs, in the order of the file.
        targets: by name, one value for each graph: integers, floats with NaN where missing, or
            strings, empty where missing.
        name: what to call the collection: the file's name without its ending.
        ids: what a person would call each graph: its SMILES, its file, its line or number.
    """

    graphs: list[Data]
    targets: dict[str, np.ndarray]
    name: str
    ids: tuple[str, ...]


def read_graphs(
    path: str | Path,
    *,
    target: Sequence[str] | None = None,
    smiles_column: str | None = None,
    symmetrise: bool = False,
    progress: Progress | None = None,
) -> GraphFile:
    """Read graphs, and their targets where the file has them.

    Args:
        path: a folder or zip in TUDataset's format (targets ``graph_label``, also called
            ``target``, and ``graph_attribute``; several columns are ``graph_attribute_0``, …); a
            table with a SMILES column (targets are its other columns); JSON Lines of node-link
            graphs; a folder of GraphML files, or one of them.
        target: the targets wanted; None means all there are, which may be none.
        smiles_column: the column of SMILES in a table; by default ``smiles``, in any case.
        symmetrise: whether to take directed edges as undirected.
        progress: called after each graph with how many are done and, if known, of how many.

    Returns:
        The graphs and targets.

    Raises:
        ValueError: one sentence that says what is wrong, with the file and line, and what to do.
    """
    path = Path(path)
    target = [target] if isinstance(target, str) else target
    try:
        with ExitStack() as stack:
            found = _open(path, stack)
            if isinstance(found, Archive) and any(n.endswith("_A.txt") for n in found.names):
                return _read_tu(path, target, symmetrise, progress)
            records, total = _records(found, path, smiles_column, target, stack)
            return _gather(records, total, path, target, symmetrise, progress)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error}; convert it first") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); fetch it again") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"{path} cannot be read: {reason}; check its name and rights") from error


def _open(path: Path, stack: ExitStack) -> Archive | BufferedIOBase:
    if path.is_dir() or path.suffix.lower() == ".zip":
        return stack.enter_context(Archive(path))
    return stack.enter_context(path.open("rb"))


def _read_tu(
    path: Path, target: Sequence[str] | None, symmetrise: bool, progress: Progress | None
) -> GraphFile:
    from softperm.data.formats.tu_graphs import (
        read_tu_graphs,  # compiles its parser, so only if needed
    )

    name, graphs, targets = read_tu_graphs(path, symmetrise)
    if target is not None:
        check_targets(target, list(targets), str(path))
        targets = {wanted: targets[wanted] for wanted in target}
    else:
        targets.pop("target", None)  # another name of graph_label
    if progress is not None:
        progress(len(graphs), len(graphs))
    return GraphFile(graphs, targets, name, tuple(str(i) for i in range(len(graphs))))


def _records(
    source: Archive | BufferedIOBase,
    path: Path,
    smiles_column: str | None,
    target: Sequence[str] | None,
    stack: ExitStack,
) -> tuple[Iterator[Record], int | None]:
    """The records of whatever format this is, and their number if it is known beforehand."""
    if not isinstance(source, Archive):
        name, stream = path.name, source
    elif graphml := [name for name in source.names if name.lower().endswith(".graphml")]:
        beside = source.find("targets.csv")
        table = None if beside is None else _text(source.open(beside), beside, stack)
        return read_graphml_folder(graphml, source.open, table), len(graphml)
    else:
        tables = [name for name in source.names if _format(name) in (*_TABLES, *_LINES)]
        if len(tables) != 1:
            held = f"{len(tables)} tables" if tables else "nothing of the kind"
            raise ValueError(f"{path} holds {held}; expected one dataset: {_KNOWN}")
        name, stream = tables[0], stack.enter_context(source.open(tables[0]))
    if _format(name) in _TABLES:
        return read_smiles_csv(_text(stream, name, stack), name, smiles_column, target), None
    if _format(name) in _LINES:
        return read_json_lines(_text(stream, name, stack), name), None
    if _format(name) == ".graphml":
        return iter([read_graphml(stream, name)]), 1
    raise ValueError(f"{path} is of no known format; expected {_KNOWN}")


def _gather(
    records: Iterator[Record],
    total: int | None,
    path: Path,
    target: Sequence[str] | None,
    symmetrise: bool,
    progress: Progress | None,
) -> GraphFile:
    """Canonical graphs and columns of targets out of records."""
    read, made = [], []
    for record in records:
        made.append(canonicalise(record.raw, record.where, symmetrise))
        read.append((record.where, record.id, record.targets))
        if progress is not None:
            progress(len(made), total)
    if not made:
        raise ValueError(f"{path} holds no graphs; expected at least one")
    graphs = [graph for graph, _ in made]
    check_alike(graphs, lambda i: read[i][0])
    warn_removed((removed for _, removed in made), stacklevel=4)
    present = list(dict.fromkeys(name for _, _, targets in read for name in targets))
    if target is not None:
        check_targets(target, present, str(path))
        present = list(target)
    columns = {name: as_column([targets.get(name) for _, _, targets in read]) for name in present}
    return GraphFile(graphs, columns, _stem(path), tuple(id for _, id, _ in read))


def _text(stream: BufferedIOBase, name: str, stack: ExitStack) -> TextIOBase:
    """Decoded, and decompressed where the name says so."""
    decompress = _DECOMPRESS.get(PurePosixPath(name).suffix.lower())
    plain = stream if decompress is None else stack.enter_context(decompress(stream))
    text = io.TextIOWrapper(cast(IO[bytes], plain), encoding="utf-8-sig", newline="")
    return stack.enter_context(text)


def _format(name: str) -> str:
    """The ending that tells the format, without that of a compression."""
    path = PurePosixPath(name.lower())
    return path.with_suffix("").suffix if path.suffix in _DECOMPRESS else path.suffix


def _stem(path: Path) -> str:
    whole = path.resolve()
    if whole.is_dir():
        return whole.name
    return Path(whole.stem).stem if whole.suffix.lower() in _DECOMPRESS else whole.stem
