"""Datasets laid end to end in one file, opened by mapping it into memory.

The file is::

    magic   8 bytes, ``softperm``
    arrays  raw little-endian numbers, each array beginning at a multiple of 64 bytes
    header  JSON: format version, meta, and of every array its type, shape, place and SHA-256
    end     8 bytes, length of the header; 8 bytes, the magic again

The header stands last, so the arrays can be written before their sizes are known, and a file that
was cut short shows it by its missing end.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FORMAT = 1
_MAGIC = b"softperm"
_ALIGN = 64
_COPY = 1 << 22


@dataclass(frozen=True)
class Pack:
    """A mapped file.

    Args:
        path: the file.
        meta: what the writer said of it.
        arrays: the arrays by name. They are backed by the file, read when touched and shared
            between processes; writing into one changes this process's copy and never the file.
        digests: SHA-256 of each array's bytes.
    """

    path: Path
    meta: dict
    arrays: Mapping[str, np.ndarray]
    digests: Mapping[str, str]


class Spool:
    """Arrays that grow part by part in files of their own, so that memory holds one part only.

    Args:
        folder: an empty folder to keep them in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._rows: dict[str, int] = {}

    def append(self, name: str, rows: np.ndarray) -> None:
        """Add rows to an array; all parts must agree in type and in the shape of a row."""
        rows = np.ascontiguousarray(rows)
        kind = (rows.dtype.newbyteorder("<").str, rows.shape[1:])
        if self._kinds.setdefault(name, kind) != kind:
            raise AssertionError(f"{name}: {kind} after {self._kinds[name]}")
        with (self._folder / name).open("ab") as out:
            out.write(rows.astype(kind[0], copy=False).data)
        self._rows[name] = self._rows.get(name, 0) + len(rows)

    def load(self, name: str) -> np.ndarray:
        """The whole of a small array."""
        dtype, row = self._kinds[name]
        return np.fromfile(self._folder / name, dtype=dtype).reshape(self._rows[name], *row)

    def forget(self, name: str) -> None:
        """Leave an array out of the file."""
        del self._kinds[name], self._rows[name]
        (self._folder / name).unlink()

    def write(self, target: Path, meta: dict, stacks: Mapping[str, tuple[str, ...]]) -> None:
        """Lay the arrays end to end in one file.

        Args:
            target: the file to write.
            meta: anything JSON can say.
            stacks: arrays to stack along a new first axis, ``{name: (first, second, …)}``.
        """
        members = {m for group in stacks.values() for m in group}
        groups = {**{n: (n,) for n in self._kinds if n not in members}, **stacks}
        table = {}
        with target.open("wb") as out:
            out.write(_MAGIC)
            for name in sorted(groups):
                table[name] = self._lay(out, groups[name], stacked=name in stacks)
            header = json.dumps({"format": FORMAT, "meta": meta, "arrays": table}).encode()
            out.write(header + struct.pack("<Q", len(header)) + _MAGIC)

    def _lay(self, out, group: tuple[str, ...], stacked: bool) -> dict:
        dtype, row = self._kinds[group[0]]
        shape = (self._rows[group[0]], *row)
        out.write(bytes(-out.tell() % _ALIGN))
        place, digest = out.tell(), hashlib.sha256()
        for member in group:
            with (self._folder / member).open("rb") as stream:
                while block := stream.read(_COPY):
                    digest.update(block)
                    out.write(block)
        shape = (len(group), *shape) if stacked else shape
        return {"dtype": dtype, "shape": shape, "place": place, "sha256": digest.hexdigest()}


def open_pack(path: Path) -> Pack:
    """Map a file written by :meth:`Spool.write`.

    Nothing is read but the header, so this takes as long for a terabyte as for a kilobyte.

    Args:
        path: the file.

    Returns:
        Its arrays and meta.

    Raises:
        ValueError: if the file is incomplete, or of another format version.
    """
    with Path(path).open("rb") as stream:
        header = _read_header(Path(path), stream)
        size = os.fstat(stream.fileno()).st_size
        mapped = np.frombuffer(_map(stream.fileno(), size), dtype=np.uint8)
    arrays = {}
    for name, entry in header["arrays"].items():
        dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
        end = entry["place"] + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if end > size:
            raise ValueError(f"{path} is incomplete: array {name} ends beyond the file; remove it")
        arrays[name] = mapped[entry["place"] : end].view(dtype).reshape(shape)
    digests = {name: entry["sha256"] for name, entry in header["arrays"].items()}
    return Pack(Path(path), header["meta"], arrays, digests)


def damaged_arrays(pack: Pack) -> Iterator[str]:
    """The names of the arrays whose bytes are no longer those that were written."""
    for name, array in pack.arrays.items():
        if hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest() != pack.digests[name]:
            yield name


def content_digest(digests: Mapping[str, str], names: Iterable[str]) -> str:
    """One SHA-256 for the named arrays: equal content, equal digest, whoever wrote it."""
    total = hashlib.sha256()
    for name in sorted(names):
        total.update(f"{name}\0{digests[name]}\n".encode())
    return total.hexdigest()


def _read_header(path: Path, stream) -> dict:
    size = os.fstat(stream.fileno()).st_size
    tail = len(_MAGIC) + 8
    stream.seek(max(0, size - tail))
    end = stream.read(tail)
    length = struct.unpack("<Q", end[:8])[0] if len(end) == tail else size + 1
    if end[8:] != _MAGIC or length + tail > size:
        raise ValueError(f"{path} is incomplete: its end is missing; remove it")
    stream.seek(size - tail - length)
    header = json.loads(stream.read(length))
    if header["format"] != FORMAT:
        raise ValueError(
            f"{path} is of format {header['format']}, this version reads {FORMAT}; remove it"
        )
    return header


def _map(descriptor: int, size: int) -> mmap.mmap:
    """Map a whole file, copy on write.

    Torch warns of tensors it must not write to, and a stray write into one would end the process;
    a private mapping gives neither trouble. But Linux counts a private mapping against the memory
    it may promise, and refuses one larger than that, so it is told not to reserve any.
    """
    flags = getattr(mmap, "MAP_NORESERVE", 0)  # Python names it from 3.13 on
    if not flags and sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        flags = 0x4000
    if not flags:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    return mmap.mmap(
        descriptor, size, flags=mmap.MAP_PRIVATE | flags, prot=mmap.PROT_READ | mmap.PROT_WRITE
    )
