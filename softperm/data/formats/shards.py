"""Files of graphs as shards: consecutive rows, cut by one process and parsed by others.

Only :func:`read_shards` touches the file. It reads the text of one shard at a time, so memory does
not grow with the file; :attr:`Shard.read` parses that text, in any process.

To add a format, add its reader and the endings of its files to :data:`READERS`.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import warnings
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from io import BufferedIOBase, BufferedReader
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import Any, cast

from softperm.data.archive import Archive
from softperm.data.canonical import Removed, canonicalise, choose_fields
from softperm.data.formats.graphml import read_graphml, read_graphml_folder
from softperm.data.formats.json_lines import json_records
from softperm.data.formats.parquet import check_parquet, parquet_batches
from softperm.data.formats.tables import MAX_CELL_LINES, Record, Table, Unreadable
from softperm.data.formats.tu import read_tu_graphs
from softperm.data.graphs import read_data
from softperm.data.molecules import raw_graph_from_smiles
from softperm.errors import GraphError, by_count, counted
from softperm.files import size_limit
from softperm.parallel import batches
from softperm.pyg import Data
from softperm.settings import STANDARD_FIELDS, FieldNames

ROWS = 1 << 14  # rows of a shard
BYTES = 1 << 24  # text after which a shard ends, however few its rows
LONGEST_LINE = "SOFTPERM_MAX_LINE"  # bytes of a line, 64 MiB by default

_KNOWN = (
    "a folder or zip in TUDataset's format, a CSV or TSV table with a SMILES column, JSON Lines "
    "(.jsonl) of node-link graphs, Parquet with SMILES or edge lists, a folder of files of one of "
    "these formats, a folder of GraphML files (tables and JSON Lines may be compressed: .gz, .xz, "
    ".bz2, .zst; all of them may be inside a .zip)"
)


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of a file.

    Args:
        number: position among all shards.
        read: parses the rows, in order.
        share: of the whole file, up to the end of this shard.
        cells: whether targets are the text of cells; see :class:`Record`.
        class_targets: targets that are classes by the format's definition, whatever their values.
    """

    number: int
    read: Callable[[], Iterator[Record | Unreadable]]
    share: float
    cells: bool = False
    class_targets: tuple[str, ...] = ()


def read_shards(
    path: str | Path,
    *,
    smiles_column: str | None = None,
    id_column: str | None = None,
    symmetrise: bool = False,
    rows: int = ROWS,
) -> Generator[Shard]:
    """The rows of a file or folder, some at a time.

    Tables, JSON Lines and Parquet are read as they are needed. Files in TUDataset's format are read
    as a whole first, because the edges of a graph may be anywhere in them.

    Args:
        path: what :func:`softperm.data.formats.read_graphs` reads.
        smiles_column: the column of SMILES; by default ``smiles``, in any case.
        id_column: the column of names in a table or Parquet file; by default that of the SMILES.
        symmetrise: whether to treat directed edges of TUDataset files as undirected.
        rows: number of lines or rows in a shard.

    Yields:
        Shards. Where one ends depends on the file and on ``rows`` alone.

    Raises:
        ValueError: the file cannot be used, or changed while it was read; the message names the
            file and the remedy.
    """
    path = Path(path)
    columns = {"smiles_column": smiles_column, "id_column": id_column}
    with _file_errors(path), ExitStack() as stack:
        if path.is_dir() or path.suffix.lower() == ".zip":
            source = stack.enter_context(Archive(path))
        else:
            path.stat()  # a missing file has no format
            source = _OneFile(path)
        _check_kinds(path, source.names)
        if any(name.endswith("_A.txt") for name in source.names):
            parts = _tu_parts(path, symmetrise, rows)
        else:
            parts = _parts(source, path, columns, rows)
        for number, (content, share, options) in enumerate(parts):
            yield Shard(number, content, share, **options)


def canonical_graph(
    record: Record, symmetrise: bool, fields: FieldNames = STANDARD_FIELDS
) -> tuple[Data, Removed]:
    """The canonical graph of a record, and what it does not have of it.

    Raises:
        ValueError: the graph cannot be used.
    """
    graph = record.graph
    if isinstance(graph, Data):
        if fields == STANDARD_FIELDS:
            return graph, Removed()
        raw = read_data(graph)
    else:
        raw = raw_graph_from_smiles(graph) if isinstance(graph, str) else graph
    return canonicalise(choose_fields(raw, fields), symmetrise)


Part = tuple[Callable[[], Iterator[Record | Unreadable]], float, dict[str, Any]]


@dataclass(frozen=True)
class _OneFile:
    """A single file, with the interface of an archive."""

    path: Path

    @property
    def names(self) -> list[str]:
        return [self.path.name]

    def open(self, name: str) -> BufferedIOBase:
        return self.path.open("rb")

    def size(self, name: str) -> int:
        return self.path.stat().st_size


def input_files(path: Path) -> list[Path]:
    """The file, or the files of a folder, that :func:`read_shards` reads; none if there is none."""
    if not path.is_dir():
        return [path] if path.exists() else []
    names = Archive(path).names
    tables = [name for name in names if PurePosixPath(name).name == "targets.csv"]
    return [path / name for name in dict.fromkeys([*_graph_files(names), *tables])]


def _tu_files(names: Sequence[str]) -> list[str]:
    """The files in TUDataset's format."""
    prefixes = tuple(name.removesuffix("A.txt") for name in names if name.endswith("_A.txt"))
    return [name for name in names if name.startswith(prefixes)] if prefixes else []


def _graph_files(names: Sequence[str]) -> list[str]:
    """The names of the files with graphs, in order; beside GraphML there may be other tables."""
    if files := _tu_files(names):
        return files
    known = [name for name in sorted(names) if _ending(name) in READERS]
    return [name for name in known if _ending(name) == ".graphml"] or known


def _check_kinds(path: Path, names: Sequence[str]) -> None:
    """Raises ValueError if there are graphs in files of several formats.

    Tables beside TUDataset's format or GraphML need not hold graphs: a warning says that they are
    not read.
    """
    found = _tu_files(names)
    kinds = {_TU: found} if found else {}
    for name in sorted(set(names) - set(found)):
        ending = _ending(name)
        if ending in READERS:
            kinds.setdefault(_KINDS[READERS[ending]], []).append(name)
    if _GRAPHML in kinds:  # targets.csv is theirs
        tables = [
            name for name in kinds.pop(_TABLE, []) if PurePosixPath(name).name != "targets.csv"
        ]
        kinds |= {_TABLE: tables} if tables else {}
    if len(kinds) < 2:
        return
    if len(kinds) == 2 and _TABLE in kinds and (_TU in kinds or _GRAPHML in kinds):
        read = _TU if _TU in kinds else _GRAPHML
        warnings.warn(
            f"{path}: the graphs are those in the {_several(read)}; "
            f"{_listed(_TABLE, kinds[_TABLE])} beside them "
            f"{by_count(len(kinds[_TABLE]), 'is', 'are')} not read",
            stacklevel=4,
        )
        return
    listed = ", ".join(_listed(kind, files) for kind, files in kinds.items())
    raise ValueError(
        f"{path} holds files of several formats: {listed}; expected one: name one of the files, or "
        "put those of each format in a folder of their own"
    )


def _listed(kind: str, files: Sequence[str]) -> str:
    """The number of files of a kind, with the name of the first."""
    more = ", …" if len(files) > 1 else ""
    return f"{counted(len(files), kind, _several(kind))} ({files[0]}{more})"


def _several(kind: str) -> str:
    return kind.replace("file", "files", 1)


def file_states(files: Iterable[Path]) -> dict[Path, tuple[int, ...] | None]:
    """Inode, size and time of change of each file; None for a pipe, which has no such state."""
    stats = {path: path.stat() for path in files}
    return {
        path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) if S_ISREG(stat.st_mode) else None
        for path, stat in stats.items()
    }


def check_unchanged(before: Mapping[Path, tuple[int, ...] | None]) -> None:
    """Raises ValueError if a file was changed or replaced since :func:`file_states`."""
    for path, state in file_states(before).items():
        if state != before[path]:
            raise ValueError(
                f"{path} changed while it was read: run the command again when no other program "
                "writes to it"
            )


def _tu_parts(path: Path, symmetrise: bool, rows: int) -> Iterator[Part]:
    before = file_states(input_files(path))
    _, graphs, targets = read_tu_graphs(path, symmetrise)
    check_unchanged(before)
    columns = {name: values.tolist() for name, values in targets.items()}
    for ids in batches(range(len(graphs)), rows):
        records = [
            Record(f"graph {i}", str(i), graphs[i], {name: c[i] for name, c in columns.items()})
            for i in ids
        ]
        share = (ids[-1] + 1) / len(graphs)
        yield partial(iter, records), share, {"class_targets": ("graph_label", "target")}


def _parts(
    source: Archive | _OneFile, path: Path, columns: dict[str, Any], rows: int
) -> Iterator[Part]:
    """The parts of all files of a source, one file after the other in the order of their names."""
    names = _graph_files(source.names)
    readers = {READERS[_ending(name)] for name in names}
    if isinstance(source, _OneFile) and not names:
        raise ValueError(f"{path} is not in a known format; expected {_KNOWN}")
    if not readers:
        archives = [name for name in source.names if name.lower().endswith(".zip")]
        if archives:
            raise ValueError(
                f"{path} holds {counted(len(archives), 'zip file')}; name one of them, such as "
                f"{archives[0]}"
            )
        raise ValueError(
            f"{path} holds no graphs in a known format; expected one dataset: {_KNOWN}"
        )
    (read,) = readers
    files = _Files(source, path, names)
    for part in read(files, columns, rows):
        yield part, files.share, {"cells": read is _read_tables}


class _Files:
    """Opens the files of a source one after the other, and measures the share that is read."""

    def __init__(self, source: Archive | _OneFile, path: Path, names: list[str]) -> None:
        self.source, self.path, self.names = source, path, names
        self.total = sum(map(source.size, names)) or 1
        self.before = 0  # bytes of the files that are done
        self.current: tuple[str, BufferedIOBase] | None = None

    def __iter__(self) -> Iterator[tuple[str, BufferedIOBase]]:
        for name in self.names:
            before = file_states([self.path / name if self.path.is_dir() else self.path])
            with self.source.open(name) as stream:
                self.current = name, stream
                yield self.current
            check_unchanged(before)
            self.before, self.current = self.before + self.source.size(name), None

    @property
    def share(self) -> float:
        """Share of all bytes that are read."""
        position = self.before
        if self.current is not None:
            name, stream = self.current
            position += self.source.size(name) if stream.closed else stream.tell()
        return min(1.0, position / self.total)


Parts = Iterator[Callable[[], Iterator[Record | Unreadable]]]


def _read_tables(files: _Files, columns: dict[str, Any], rows: int) -> Parts:
    header = None
    for name, raw in files:
        with _decompressed(raw, name) as stream:
            first = b"".join(_lines(stream, name, 1, once=True))
            table = Table.of(first.decode("utf-8-sig"), name, **columns)
            if header is not None and table.header != header:
                raise ValueError(
                    f"{files.path}: {name} has the columns {', '.join(table.header)}, but "
                    f"{files.names[0]} has {', '.join(header)}; give all files the same columns"
                )
            header = table.header
            yield from _cut(stream, name, table.records, 2, rows, quotes=True)


def _read_json_lines(files: _Files, columns: dict[str, Any], rows: int) -> Parts:
    for name, raw in files:
        read = partial(json_records, name, f"{name}:" if len(files.names) > 1 else "")
        with _decompressed(raw, name) as stream:
            yield from _cut(stream, name, read, 1, rows, quotes=False)


def _read_parquet(files: _Files, columns: dict[str, Any], rows: int) -> Parts:
    for name, raw in files:
        yield from parquet_batches(raw, name, rows, **columns)


def _read_graphml(files: _Files, columns: dict[str, Any], rows: int) -> Parts:
    source = files.source
    if isinstance(source, _OneFile):
        for name, stream in files:
            yield partial(iter, [read_graphml(stream, name)])
        return
    beside, table = source.find("targets.csv"), None
    for name in (*files.names, *filter(None, [beside])):
        source.check_size(name)
    if beside is not None:
        with source.open(beside) as stream:
            table = io.StringIO(stream.read().decode("utf-8-sig"), newline="")
    for some in batches(read_graphml_folder(files.names, files, table), rows):
        yield partial(iter, some)


READERS: dict[str, Callable[[_Files, dict[str, Any], int], Parts]] = {
    ".csv": _read_tables,
    ".tsv": _read_tables,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".parquet": _read_parquet,
    ".graphml": _read_graphml,
}
"""The reader of each format by the ending of its files, without that of a compression.

A folder or zip with a file ``NAME_A.txt`` is in TUDataset's format, which has no ending of its own.
"""

_TU, _TABLE, _GRAPHML = "file in TUDataset's format", "CSV or TSV file", "GraphML file"
_KINDS: dict[Callable[..., Parts], str] = {
    _read_tables: _TABLE,
    _read_json_lines: "JSON Lines file",
    _read_parquet: "Parquet file",
    _read_graphml: _GRAPHML,
}
"""The kind of files that each reader reads, in messages."""


def _cut(
    stream: BufferedIOBase,
    name: str,
    read: Callable[[int, bytes], Iterator[Record | Unreadable]],
    first: int,
    rows: int,
    quotes: bool,
) -> Iterator[Callable[[], Iterator[Record | Unreadable]]]:
    """Cuts a text after every ``rows`` lines, but not within a quoted cell of a table."""
    lines: list[bytes] = []
    size = opened = 0
    for line in _lines(stream, name, first):
        if not lines and first == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        lines.append(line)
        size += len(line)
        if quotes and b'"' in line and line.count(b'"') % 2:
            opened = 0 if opened else len(lines)
        if (len(lines) >= rows or size >= BYTES) and not (
            opened and len(lines) - opened < MAX_CELL_LINES
        ):
            yield partial(read, first, b"".join(lines))
            first += len(lines)
            lines, size, opened = [], 0, 0
    if lines:
        yield partial(read, first, b"".join(lines))


def _lines(stream: BufferedIOBase, name: str, first: int, once: bool = False) -> Iterator[bytes]:
    """The lines of a text, or the next one; a line without end is refused."""
    limit = size_limit(LONGEST_LINE, 1 << 26)
    for number, line in enumerate(iter(partial(stream.readline, limit + 1), b""), start=first):
        if len(line) > limit:
            raise ValueError(
                f"{name} line {number} is longer than {limit:,} bytes; expected one graph per "
                f"line, or set {LONGEST_LINE} to allow more"
            )
        yield line
        if once:
            return


def _decompressed(stream: BufferedIOBase, name: str) -> AbstractContextManager[BufferedIOBase]:
    """The stream, decompressed if the name has the ending of a compression."""
    opened = _DECOMPRESS.get(PurePosixPath(name).suffix.lower())
    return nullcontext(stream) if opened is None else opened(stream)


def _open_zstd(stream: BufferedIOBase) -> BufferedIOBase:
    check_parquet("reading .zst files", "or compress them with gzip")
    import pyarrow

    return cast(BufferedIOBase, BufferedReader(pyarrow.CompressedInputStream(stream, "zstd")))


_DECOMPRESS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": _open_zstd,
}


def _ending(name: str) -> str:
    """The extension that determines a file's format, without that of a compression."""
    path = PurePosixPath(name.lower())
    return path.with_suffix("").suffix if path.suffix in _DECOMPRESS else path.suffix


def stem(path: Path) -> str:
    """The name of a file without the endings of format and compression."""
    whole = path.resolve()
    if whole.is_dir():
        return whole.name
    return Path(whole.stem).stem if whole.suffix.lower() in _DECOMPRESS else whole.stem


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Turns errors of reading a file into a ``ValueError`` that names it and the remedy."""
    try:
        yield
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
