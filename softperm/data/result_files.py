"""Tables of results, written part by part and joined: CSV, JSON Lines, Parquet, NumPy.

A table has a row for each graph of the input: its name, its values, and why it has none. Parts are
files of their own, which appear whole or not at all, so that a killed command loses only the part
that it was writing. Joining copies one part at a time.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from softperm.data.formats.parquet import check_parquet
from softperm.files import CSVWriter, appearing, write_atomically

GRAPH, PROBLEM = "graph", "problem"
PARQUET_GROUP = 1 << 27  # bytes of values of a row group in a joined Parquet file


@dataclass(frozen=True)
class Results:
    """The results for some graphs.

    Args:
        ids: the name of each graph.
        problems: by position, why a graph has no values.
        names: of the values.
        values: of the other graphs, in order: a column for each name, or a matrix with the names as
            columns.
    """

    ids: Sequence[str]
    problems: dict[int, str]
    names: Sequence[str]
    values: Sequence[np.ndarray] | np.ndarray

    @property
    def columns(self) -> list[np.ndarray]:
        """The values of each name."""
        if not isinstance(self.values, np.ndarray):
            return list(self.values)
        values = torch.from_numpy(np.require(self.values, requirements=["C", "W"]))
        return list(values.T.contiguous().numpy())  # NumPy takes longer

    @property
    def good(self) -> np.ndarray:
        """Positions of the graphs that have values."""
        return np.setdiff1d(np.arange(len(self.ids)), list(self.problems))

    @property
    def reasons(self) -> list[str]:
        """The problem of each graph; empty for none."""
        return [self.problems.get(i, "") for i in range(len(self.ids))]

    def rows(self) -> Iterator[list[Any]]:
        """The values of each graph; None where it has none."""
        nothing = [None] * len(self.names)
        values = map(list, zip(*(column.tolist() for column in self.columns), strict=True))
        for i in range(len(self.ids)):
            yield nothing if i in self.problems else next(values)


@dataclass(frozen=True)
class Format:
    """A format of tables.

    Args:
        part: the content of one part.
        join: writes the parts of a table, in order, as one file.
    """

    part: Callable[[Results], bytes]
    join: Callable[[Sequence[Path], Sequence[str], IO[bytes]], None]


def find_format(path: Path, endings: Sequence[str]) -> str:
    """The ending of files of results: that of the name, or ``.parquet`` for a folder.

    Raises:
        ValueError: it has another ending than those given.
        ImportError: Parquet is wanted, but pyarrow is not installed.
    """
    ending = path.suffix.lower() or ".parquet"
    if ending not in endings:
        raise ValueError(f"results end in {', '.join(endings)}, or are a folder; got {path}")
    if ending == ".parquet":
        others = [other for other in endings if other != ".parquet"]
        check_parquet("writing Parquet", f"or write {' or '.join(others)}")
    return ending


def write_part(path: Path, results: Results) -> None:
    """Writes one part of a table."""
    write_atomically(path, FORMATS[path.suffix].part(results))


def join_parts(parts: Sequence[Path], names: Sequence[str], out: Path) -> None:
    """Writes all parts as one file, which appears when it is whole."""
    with appearing(out) as stream:
        FORMATS[out.suffix.lower()].join(parts, names, stream)


def _csv_part(results: Results) -> bytes:
    text = io.StringIO()
    writer = CSVWriter(text)
    for id, row, reason in zip(results.ids, results.rows(), results.reasons, strict=True):
        writer.writerow([id, *row, reason])
    return text.getvalue().encode()


def _join_csv(parts: Sequence[Path], names: Sequence[str], stream: IO[bytes]) -> None:
    text = io.StringIO()
    CSVWriter(text).writerow([GRAPH, *names, PROBLEM])
    stream.write(text.getvalue().encode())
    _join_bytes(parts, names, stream)


def _json_part(results: Results) -> bytes:
    lines = []
    for id, row, reason in zip(results.ids, results.rows(), results.reasons, strict=True):
        entry = {GRAPH: id, **dict(zip(results.names, row, strict=True)), PROBLEM: reason or None}
        lines.append(json.dumps(entry) + "\n")
    return "".join(lines).encode()


def _join_bytes(parts: Sequence[Path], names: Sequence[str], stream: IO[bytes]) -> None:
    for part in parts:
        with part.open("rb") as source:
            shutil.copyfileobj(source, stream, 1 << 20)


def _parquet_part(results: Results) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {GRAPH: pa.array(results.ids, pa.string())}
    for name, column in zip(results.names, results.columns, strict=True):
        values = pa.array(np.ascontiguousarray(column))
        if results.problems:
            place = np.full(len(results.ids), -1)
            place[results.good] = np.arange(len(values))
            values = values.take(pa.array(place, mask=place < 0))
        columns[name] = values
    columns[PROBLEM] = pa.array([reason or None for reason in results.reasons], pa.string())
    content = io.BytesIO()
    table = pa.table(columns)
    pq.write_table(table, content, use_dictionary=_repetitive(table.schema))
    return content.getvalue()


def _repetitive(schema: Any) -> Any:  # a list, though the annotation of pyarrow allows bool only
    """The columns of text; dictionaries of numbers would take time and space."""
    import pyarrow as pa

    return [field.name for field in schema if pa.types.is_string(field.type)]


def _join_parquet(parts: Sequence[Path], names: Sequence[str], stream: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer, waiting, size = None, [], 0

    def flush() -> None:
        nonlocal writer, waiting, size
        table = pa.concat_tables(waiting)
        if writer is None:
            kinds = _repetitive(table.schema)
            writer = pq.ParquetWriter(stream, table.schema, use_dictionary=kinds)
        writer.write_table(table)
        waiting, size = [], 0

    for part in parts:
        waiting.append(pq.read_table(part))
        size += waiting[-1].nbytes
        if size >= PARQUET_GROUP:
            flush()
    if waiting:
        flush()
    if writer is not None:
        writer.close()


def _npz_part(results: Results) -> bytes:
    values = np.asarray(results.values)  # (b, F)
    vectors = np.full((len(results.ids), values.shape[1]), np.nan, values.dtype)
    vectors[results.good] = values
    content = io.BytesIO()
    np.savez(content, graph=_text(results.ids), vectors=vectors, problem=_text(results.reasons))
    return content.getvalue()


def _text(words: Sequence[str]) -> np.ndarray:
    return np.array(list(words), dtype=str)


def _join_npz(parts: Sequence[Path], names: Sequence[str], stream: IO[bytes]) -> None:
    """Copies each array of all parts into one, as ``np.savez_compressed`` would write it."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("graph", "vectors", "problem"):
            shapes, kinds = [], []
            for part in parts:
                with np.load(part) as arrays:
                    shapes.append(arrays[name].shape)
                    kinds.append(arrays[name].dtype)
            kind = np.result_type(*kinds)  # the longest text of all parts
            shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
            header = {"descr": kind.str, "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_2_0(member, header)
                for part in parts:
                    with np.load(part) as arrays:
                        member.write(arrays[name].astype(kind).tobytes())
        with archive.open("name.npy", "w") as member:
            np.lib.format.write_array(member, _text(names))


FORMATS = {
    ".csv": Format(_csv_part, _join_csv),
    ".jsonl": Format(_json_part, _join_bytes),
    ".parquet": Format(_parquet_part, _join_parquet),
    ".npz": Format(_npz_part, _join_npz),
}
