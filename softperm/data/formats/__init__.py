"""Reading files of graphs, in all supported formats, as canonical graphs with targets."""

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

from softperm.data.archive import Archive
from softperm.data.canonical import canonicalise, check_same_fields, warn_removed
from softperm.data.formats.graphml import read_graphml, read_graphml_folder
from softperm.data.formats.json_lines import read_json_lines
from softperm.data.formats.tables import Record, as_column, check_targets, read_smiles_table
from softperm.data.formats.tu import read_tu_graphs
from softperm.errors import GraphError, errors_about_graph
from softperm.pyg import Data

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
    """The graphs of a file, with their targets and names.

    Args:
        graphs: canonical graphs, in the order of the file.
        targets: one value for each graph by name: integers, floats with NaN where missing, or
            strings, empty where missing.
        name: the name of the collection: the file's name without its ending.
        ids: a name for each graph: its SMILES, its file, its line or number.
        class_targets: targets that are classes by the format's definition, whatever their values.
    """

    graphs: list[Data]
    targets: dict[str, np.ndarray]
    name: str
    ids: tuple[str, ...]
    class_targets: tuple[str, ...] = ()


def read_graphs(
    path: str | Path,
    *,
    target: Sequence[str] | None = None,
    smiles_column: str | None = None,
    symmetrise: bool = False,
    progress: Progress | None = None,
) -> GraphFile:
    """Read graphs, and their targets if the file has any.

    Args:
        path: a folder or zip in TUDataset's format (targets ``graph_label``, also named
            ``target``, and ``graph_attribute``; several columns are ``graph_attribute_0``, …); a
            table with a SMILES column (targets are its other columns); JSON Lines of node-link
            graphs; a folder of GraphML files, or one of them.
        target: the targets to read; None means all of the file, which may be none.
        smiles_column: the column of SMILES in a table; by default ``smiles``, in any case.
        symmetrise: whether to treat directed edges as undirected.
        progress: called after each graph with the number of graphs read and their total if known.

    Returns:
        The graphs and targets.

    Raises:
        ValueError: the file cannot be used; the message names the file, the line and the remedy. A
            problem of one graph is a :class:`softperm.errors.GraphError`.
    """
    path = Path(path)
    target = [target] if isinstance(target, str) else target
    try:
        with ExitStack() as stack:
            source = _open(path, stack)
            if isinstance(source, Archive) and any(n.endswith("_A.txt") for n in source.names):
                return _read_tu(path, target, symmetrise, progress)
            records, total = _records(source, path, smiles_column, target, stack)
            return _gather(records, total, path, target, symmetrise, progress)
    except GraphError:
        raise
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error}; convert it first") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); fetch it again") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(
            f"{path} cannot be read: {reason}; check its name and permissions"
        ) from error


def _open(path: Path, stack: ExitStack) -> Archive | BufferedIOBase:
    if path.is_dir() or path.suffix.lower() == ".zip":
        return stack.enter_context(Archive(path))
    return stack.enter_context(path.open("rb"))


def _read_tu(
    path: Path, target: Sequence[str] | None, symmetrise: bool, progress: Progress | None
) -> GraphFile:
    name, graphs, targets = read_tu_graphs(path, symmetrise)
    if target is not None:
        check_targets(target, list(targets), str(path))
        targets = {wanted: targets[wanted] for wanted in target}
    else:
        targets.pop("target", None)  # another name of graph_label
    if progress is not None:
        progress(len(graphs), len(graphs))
    ids = tuple(str(i) for i in range(len(graphs)))
    return GraphFile(graphs, targets, name, ids, class_targets=("graph_label", "target"))


def _records(
    source: Archive | BufferedIOBase,
    path: Path,
    smiles_column: str | None,
    target: Sequence[str] | None,
    stack: ExitStack,
) -> tuple[Iterator[Record], int | None]:
    """The records of a file in any format but TUDataset's, and their number if it is known."""
    if not isinstance(source, Archive):
        name, stream = path.name, source
    elif graphml := [name for name in source.names if name.lower().endswith(".graphml")]:
        beside = source.find("targets.csv")
        table = None if beside is None else _text(source.open(beside), beside, stack)
        return read_graphml_folder(graphml, source.open, table), len(graphml)
    else:
        tables = [name for name in source.names if _format(name) in (*_TABLES, *_LINES)]
        if len(tables) != 1:
            content = f"{len(tables)} tables" if tables else "no graphs in a known format"
            raise ValueError(f"{path} holds {content}; expected one dataset: {_KNOWN}")
        name, stream = tables[0], stack.enter_context(source.open(tables[0]))
    if _format(name) in _TABLES:
        return read_smiles_table(_text(stream, name, stack), name, smiles_column, target), None
    if _format(name) in _LINES:
        return read_json_lines(_text(stream, name, stack), name), None
    if _format(name) == ".graphml":
        return iter([read_graphml(stream, name)]), 1
    raise ValueError(f"{path} is not in a known format; expected {_KNOWN}")


def _gather(
    records: Iterator[Record],
    total: int | None,
    path: Path,
    target: Sequence[str] | None,
    symmetrise: bool,
    progress: Progress | None,
) -> GraphFile:
    """Canonical graphs and columns of targets from records."""
    graphs, removed, places, ids, targets = [], [], [], [], []
    for record in records:
        with errors_about_graph(len(graphs), record.where):
            graph, removals = canonicalise(record.raw, symmetrise)
        graphs.append(graph)
        removed.append(removals)
        places.append(record.where)
        ids.append(record.id)
        targets.append(record.targets)
        if progress is not None:
            progress(len(graphs), total)
    if not graphs:
        raise ValueError(f"{path} holds no graphs; expected at least one")
    try:
        check_same_fields(graphs)
    except GraphError as error:
        raise GraphError(error.index, error.problem, places[error.index]) from None
    warn_removed(removed, stacklevel=4)
    present = list(dict.fromkeys(name for row in targets for name in row))
    if target is not None:
        check_targets(target, present, str(path))
        present = list(target)
    columns = {name: as_column([row.get(name) for row in targets]) for name in present}
    return GraphFile(graphs, columns, _stem(path), tuple(ids))


def _text(stream: BufferedIOBase, name: str, stack: ExitStack) -> TextIOBase:
    """The text of a stream, decompressed if the name has the ending of a compression."""
    decompress = _DECOMPRESS.get(PurePosixPath(name).suffix.lower())
    plain = stream if decompress is None else stack.enter_context(decompress(stream))
    text = io.TextIOWrapper(cast(IO[bytes], plain), encoding="utf-8-sig", newline="")
    return stack.enter_context(text)


def _format(name: str) -> str:
    """The ending of a file's name that tells its format, without that of a compression."""
    path = PurePosixPath(name.lower())
    return path.with_suffix("").suffix if path.suffix in _DECOMPRESS else path.suffix


def _stem(path: Path) -> str:
    whole = path.resolve()
    if whole.is_dir():
        return whole.name
    return Path(whole.stem).stem if whole.suffix.lower() in _DECOMPRESS else whole.stem
