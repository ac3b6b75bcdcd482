"""Index files: a folder of immutable segments in the safetensors format and one manifest.

A segment is written once and never changed. The manifest names the segments of the index and is
replaced atomically, so that a reader sees the index before a change or after it, and a process that
is killed loses only what it had not yet saved. Nothing in a file is executed or unpickled.
"""

from __future__ import annotations

import json
import mmap
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from jaxtyping import Bool, Int, UInt8, UInt64
from safetensors.numpy import save as to_safetensors

from softperm.distance.pairs import Packed
from softperm.files import write_atomically

MANIFEST = "index.json"
FORMAT = "softperm graph index 1"
CHECKED_BYTES = 1 << 26  # indexes up to this size have their checksums verified when opened
_DTYPES = {"U8": np.uint8, "I32": np.int32, "U32": np.uint32, "I64": np.int64, "F64": np.float64}


class Text:
    """Strings laid end to end, decoded when they are needed.

    Args:
        content: all strings in UTF-8.
        ends: (B,) where each string ends.
    """

    def __init__(self, content: UInt8[np.ndarray, " _"], ends: Int[np.ndarray, " B"]) -> None:
        self.content, self.ends = content, ends

    @classmethod
    def of(cls, strings: Iterable[str]) -> Text:
        """The given strings."""
        encoded = [string.encode() for string in strings]
        ends = np.cumsum([len(string) for string in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """The strings of some rows, as an array of objects."""
        ends = self.ends[rows].tolist()
        starts = np.where(rows > 0, self.ends[rows - 1], 0).tolist()
        strings = np.empty(len(ends), object)
        strings[:] = [
            self.content[a:b].tobytes().decode() for a, b in zip(starts, ends, strict=True)
        ]
        return strings


Column = np.ndarray | Text  # (B,) numbers, or strings


def join(columns: list[Column]) -> Column:
    """Columns end to end."""
    if not any(isinstance(column, Text) for column in columns):
        return np.concatenate(columns)  # type: ignore[arg-type]
    return Text.of(str(value) for column in columns for value in column[np.arange(len(column))])


@dataclass(frozen=True, eq=False)
class Segment:
    """Some graphs of an index with all that is stored of them.

    Args:
        packed: the graphs.
        vectors: (B, D) their fingerprints.
        ids: (B,) identifiers, numbers or strings.
        columns: (B,) metadata by name.
        removed: (B,) graphs that no longer belong to the index.
        file: name of the file that holds the segment; None if it is not saved.
        checksum: CRC-32 of that file.
    """

    packed: Packed
    vectors: UInt8[np.ndarray, "B D"]
    ids: Column
    columns: dict[str, Column]
    removed: Bool[np.ndarray, " B"]
    file: str | None = None
    checksum: int = 0
    sizes: Int[np.ndarray, " B"] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", np.diff(self.packed.ptr).astype(np.int64))

    def __len__(self) -> int:
        return len(self.vectors)

    def removing(self, rows: Bool[np.ndarray, " B"]) -> Segment:
        """The segment without some graphs."""
        return replace(self, removed=self.removed | rows)


def compact(packed: Packed) -> Packed:
    """Read-only arrays of the smallest of two sets of types: bytes, or 32-bit numbers."""
    largest = max((int(array.max(initial=0)) for array in packed[2:]), default=0)
    small = largest < 256 and packed.label.size < 2**32 and packed.kind.size < 2**32
    types = [np.uint32] * 2 + [np.uint8] * 3 if small else [np.int64] * 2 + [np.int32] * 3
    return Packed(*(frozen(a, dtype) for a, dtype in zip(packed, types, strict=True)))


def compact_like(packed: Packed, other: Packed) -> Packed:
    """Graphs in the types of other graphs, so that one compiled kernel serves all."""
    fits = all(
        int(array.max(initial=0)) <= np.iinfo(like.dtype).max
        for array, like in zip(packed, other, strict=True)
    )
    types = [like.dtype if fits else np.dtype(np.int64) for like in other]
    return Packed(*(frozen(array, dtype) for array, dtype in zip(packed, types, strict=True)))


def frozen(array: np.ndarray, dtype: Any) -> np.ndarray:
    """A contiguous, read-only array of the given type."""
    array = np.ascontiguousarray(array, dtype=dtype)
    array = array.view()
    array.flags.writeable = False
    return array


def merge(segments: Iterable[Segment]) -> Segment:
    """One unsaved segment with all graphs that are not removed."""
    parts = [without_removed(segment) for segment in segments]
    return Segment(
        packed=compact(join_packed([part.packed for part in parts])),
        vectors=frozen(np.concatenate([part.vectors for part in parts]), np.uint8),
        ids=join([part.ids for part in parts]),
        columns={name: join([p.columns[name] for p in parts]) for name in parts[0].columns},
        removed=np.zeros(sum(len(part) for part in parts), bool),
    )


def join_packed(parts: Sequence[Packed]) -> Packed:
    """Graphs with equal codes end to end."""
    ptr, edge_ptr = (
        np.append(0, np.cumsum(np.concatenate([np.diff(p[k]) for p in parts]), dtype=np.int64))
        for k in range(2)
    )
    rest = (np.concatenate([p[k] for p in parts]).astype(np.int64) for k in range(2, 5))
    return Packed(ptr, edge_ptr, *rest)


def without_removed(segment: Segment) -> Segment:
    """An unsaved segment of the graphs that are not removed."""
    if not segment.removed.any():
        return segment
    rows = np.flatnonzero(~segment.removed)
    packed = segment.packed
    vertices = _ranges(packed.ptr, rows)
    edges = _ranges(packed.edge_ptr, rows)
    remaining = Packed(
        np.append(0, np.cumsum(np.diff(packed.ptr)[rows])),
        np.append(0, np.cumsum(np.diff(packed.edge_ptr)[rows])),
        packed.label[vertices],
        packed.ends[edges],
        packed.kind[edges],
    )
    return Segment(
        packed=compact(remaining),
        vectors=segment.vectors[rows],
        ids=_take(segment.ids, rows),
        columns={name: _take(values, rows) for name, values in segment.columns.items()},
        removed=np.zeros(rows.size, bool),
    )


def _take(column: Column, rows: np.ndarray) -> Column:
    return Text.of(column[rows]) if isinstance(column, Text) else column[rows]


def _ranges(ptr: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Positions ``ptr[r] … ptr[r + 1] − 1`` of all rows, end to end."""
    starts = ptr[rows].astype(np.int64)
    counts = ptr[rows + 1].astype(np.int64) - starts
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if ends.size else 0) + np.repeat(starts - ends + counts, counts)


def checksums(
    packed: Packed, labels: Iterable[Any], kinds: Iterable[tuple[Any, float]]
) -> UInt64[np.ndarray, " B"]:
    """A checksum of each graph: of its labels, edges, edge labels and weights.

    It depends on the numbering of the vertices, but neither on codes nor on the types of arrays, so
    that equal graphs of different indexes have equal checksums.

    Args:
        packed: the graphs.
        labels: the vertex label of each code.
        kinds: the label and the weight of each kind of edge.
    """
    with np.errstate(over="ignore"):
        label = _hashes([*labels] or [None])[packed.label]  # (V,)
        u, v = packed.ends.astype(np.uint64).T
        kind = _hashes([(name, float(weight)) for name, weight in kinds])[packed.kind]
        edge = _mix(kind + _mix(u + _mix(v)))  # (E,)
        total = np.zeros(packed.ptr.size - 1, np.uint64)
        for ptr, values in ((packed.ptr, label), (packed.edge_ptr, edge)):
            first, counts = ptr[:-1].astype(np.int64), np.diff(ptr.astype(np.int64))
            position = np.arange(values.size) - np.repeat(first, counts)
            sums = np.append(np.uint64(0), np.cumsum(_mix(values + position.astype(np.uint64))))
            total += _mix(sums[ptr[1:]] - sums[ptr[:-1]] + counts.astype(np.uint64))
    return total


def _hashes(values: list[Any]) -> UInt64[np.ndarray, " K"]:
    """A hash of each label, as it is written to a file."""
    texts = [json.dumps(value, default=str).encode() for value in values]
    return _mix(np.array([zlib.crc32(text) for text in texts], np.uint64))


def _mix(x: UInt64[np.ndarray, " _"]) -> UInt64[np.ndarray, " _"]:
    """The finaliser of SplitMix64, a bijection that spreads all bits."""
    x = (x + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def write_segment(folder: Path, segment: Segment) -> Segment:
    """Writes a segment to a new file; the index does not contain it before the manifest does."""
    arrays = dict(zip(Packed._fields, segment.packed, strict=True))
    arrays["vectors"] = segment.vectors
    for name, values in {"": segment.ids, **segment.columns}.items():
        if isinstance(values, Text):
            arrays[f"text {name}"], arrays[f"text ends {name}"] = values.content, values.ends
        else:
            arrays[f"number {name}"] = values
    content = to_safetensors({key: np.ascontiguousarray(array) for key, array in arrays.items()})
    file = f"{uuid4().hex}.safetensors"
    write_atomically(folder / file, content)
    return replace(segment, file=file, checksum=zlib.crc32(content))


def is_segment(path: Path) -> bool:
    """Whether a file has a name that :func:`write_segment` gives."""
    return re.fullmatch(r"[0-9a-f]{32}\.safetensors", path.name) is not None


def mapped(folder: Path, segment: Segment) -> Segment:
    """A segment whose arrays are those of its file, which is written if there is none."""
    if segment.file is not None:
        return segment
    return read_segment(folder, _entry(folder, write_segment(folder, segment)), verify=False)


def read_segment(folder: Path, entry: dict[str, Any], verify: bool) -> Segment:
    """Maps a segment into memory.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / entry["file"]
    damaged = f"{path} is damaged: build the index again"
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size != entry["bytes"] or size < 8:
            raise ValueError(damaged)
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if verify and zlib.crc32(content) != entry["checksum"]:
        raise ValueError(damaged)
    arrays = {}
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        for name, about in header.items():
            first, last = about["data_offsets"]
            view = memoryview(content)[8 + length + first : 8 + length + last]
            arrays[name] = np.frombuffer(view, _DTYPES[about["dtype"]]).reshape(about["shape"])
        packed = Packed(*(arrays[name] for name in Packed._fields))
        segment = Segment(
            packed=packed,
            vectors=arrays["vectors"],
            ids=_read_column(arrays, ""),
            columns={name: _read_column(arrays, name) for name in entry["columns"]},
            removed=np.zeros(len(arrays["vectors"]), bool),
            file=entry["file"],
            checksum=entry["checksum"],
        )
    except (KeyError, ValueError, TypeError):
        raise ValueError(damaged) from None
    if not _is_sound(segment):
        raise ValueError(damaged)
    segment.removed[np.array(entry["removed"], dtype=np.int64)] = True
    return segment


def _read_column(arrays: dict[str, np.ndarray], name: str) -> Column:
    if f"number {name}" in arrays:
        return arrays[f"number {name}"]
    return Text(arrays[f"text {name}"], arrays[f"text ends {name}"])


def _is_sound(segment: Segment) -> bool:
    """Whether the arrays fit together, so that no kernel reads outside of them."""
    packed, graphs = segment.packed, len(segment.vectors)
    return (
        packed.ptr.shape == packed.edge_ptr.shape == (graphs + 1,)
        and int(packed.ptr[-1]) == packed.label.size
        and int(packed.edge_ptr[-1]) == packed.kind.size == len(packed.ends)
        and all(len(values) == graphs for values in (segment.ids, *segment.columns.values()))
    )


def write_manifest(folder: Path, about: dict[str, Any], segments: Iterable[Segment]) -> None:
    """Makes saved segments the content of the index, in one step."""
    entries = [_entry(folder, segment) for segment in segments]
    body = json.dumps({"format": FORMAT, **about, "segments": entries})
    write_atomically(
        folder / MANIFEST, json.dumps({"checksum": zlib.crc32(body.encode())}) + "\n" + body
    )


def _entry(folder: Path, segment: Segment) -> dict[str, Any]:
    return {
        "file": segment.file,
        "bytes": (folder / str(segment.file)).stat().st_size,
        "checksum": segment.checksum,
        "columns": list(segment.columns),
        "removed": np.flatnonzero(segment.removed).tolist(),
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of an index.

    Raises:
        ValueError: there is no index in the folder, or its manifest is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} is not a graph index: it has no {MANIFEST}")
    try:
        first, body = path.read_bytes().split(b"\n", 1)
        sound = json.loads(first)["checksum"] == zlib.crc32(body)
        content = json.loads(body)
    except (ValueError, KeyError, TypeError):
        sound, content = False, {}
    if not sound:
        raise ValueError(f"{path} is damaged: build the index again")
    if content.get("format") != FORMAT:
        raise ValueError(f"{folder} is an index of another version: build it again")
    return content
