"""Prepared datasets: raw files converted once to a folder of arrays, then mapped into memory.

The folder holds one ``.npy`` file for each array and ``manifest.json``: the format version, the
dataset's :class:`Schema`, dtype, shape and SHA-256 of each array, and its own SHA-256. The manifest
is written last, so a folder without one is incomplete.

All digests are verified when a folder is first opened. The file ``verified`` then holds size, times
and inode of each file, so that later openings verify only what has changed since.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import mmap
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from jaxtyping import Float, Int

from softperm.data.datasets.store import Store, file_digest
from softperm.data.molecules import Encoding
from softperm.files import (
    disk_errors,
    exclusive,
    note_mapping,
    remove_abandoned,
    remove_abandoned_parts,
    workspace,
    write_atomically,
)
from softperm.parallel import thread_pool
from softperm.progress import Report, silent

FORMAT = 3
MANIFEST, STAMP = "manifest.json", "verified"
Task = Literal["classification", "multilabel", "regression"]

_PACKAGES = Path(__file__).parents[3]  # the folder of the package softperm
_SHARED_MODULES = ("softperm.data.features", "softperm.data.datasets.prepared")
_DERIVED = ("structure",)  # follows from the other arrays, so it is not part of the content
_CLOCK_TICK = 50_000_000  # ns; two changes within one may leave the same time of change
_verified: dict[Path, tuple[str, int]] = {}  # stamps of folders that cannot be written to


@dataclass(frozen=True)
class Schema:
    """Names and counts that go with a dataset's arrays.

    Args:
        name: the dataset's name.
        task: what is predicted.
        target_names: the columns of ``values``.
        class_names: the source's name of each class.
        label_values: for every label column, the source's name of each code.
        label_names: names of the label columns; empty if the source gives none.
        edge_label_values: for every edge label column, the source's name of each code.
        edge_label_names: names of the edge label columns.
        self_loops: number of lines of the source removed as self-loops.
        duplicates: number of lines of the source removed as repetitions.
    """

    name: str
    task: Task
    target_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    label_values: tuple[tuple[str, ...], ...] = ()
    label_names: tuple[str, ...] = ()
    edge_label_values: tuple[tuple[str, ...], ...] = ()
    edge_label_names: tuple[str, ...] = ()
    self_loops: int = 0
    duplicates: int = 0

    @classmethod
    def of_molecules(
        cls, name: str, task: Task, target_names: tuple[str, ...], encoding: Encoding
    ) -> Schema:
        """The schema of molecules with the features of an encoding."""
        return cls(
            name,
            task,
            target_names,
            label_values=tuple(encoding.atom_features.values()),
            label_names=tuple(encoding.atom_features),
            edge_label_values=tuple(encoding.bond_features.values()),
            edge_label_names=tuple(encoding.bond_features),
        )

    @classmethod
    def from_json(cls, values: dict) -> Schema:
        """The schema from parsed JSON; unknown or missing keys are an error."""
        known = {f.name for f in fields(cls)}
        if set(values) != known:
            raise ValueError(f"expected the keys {sorted(known)}, found {sorted(values)}")
        return cls(**{key: _as_tuples(value) for key, value in values.items()})


@dataclass(frozen=True)
class Prepared:
    """A prepared dataset on disk.

    Args:
        path: its folder.
        schema: names and counts.
        arrays: the arrays by name. They are backed by the files, read on access and shared
            between processes; writing into one changes this process's copy, never the file.
        digests: SHA-256 of each array's bytes.
    """

    path: Path
    schema: Schema
    arrays: Mapping[str, np.ndarray]
    digests: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the graphs, labels, attributes and targets, whatever code prepared them."""
        total = hashlib.sha256()
        for name in sorted(set(self.arrays) - set(_DERIVED)):
            total.update(f"{name}\0{self.digests[name]}\n".encode())
        return total.hexdigest()

    def damaged_arrays(self) -> list[str]:
        """The names of the arrays whose bytes differ from those that were written."""
        digests = thread_pool().map(_digest, self.arrays.values())
        pairs = zip(self.arrays, digests, strict=True)
        return [name for name, digest in pairs if digest != self.digests[name]]


class ArrayWriter:
    """Writes arrays part by part, so that memory holds one part only.

    Args:
        folder: an empty folder, which becomes the prepared dataset.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _ArrayFile] = {}

    def append(self, name: str, rows: np.ndarray) -> None:
        """Add rows to an array; all parts must have the same dtype and row shape."""
        if name not in self._files:
            self._files[name] = _ArrayFile(self._folder / f"{name}.npy", rows.dtype, rows.shape[1:])
        self._files[name].append(rows)

    def offsets(self, name: str, counts: str) -> None:
        """Replace an array of counts by ``name``, their cumulative sums from 0."""
        file = self._files.pop(counts)
        file.finish()
        sums = np.cumsum(np.load(file.path), dtype=np.int64)
        file.path.unlink()
        self.append(name, np.concatenate([[0], sums]))

    def stack(self, name: str, first: str, second: str) -> None:
        """Replace two arrays by ``name``, which stacks them along a new first axis."""
        parts = [self._files.pop(part) for part in (first, second)]
        for part in parts:
            part.finish()
        shape = (parts[0].rows, *parts[0].row_shape)
        stacked = _ArrayFile(self._folder / f"{name}.npy", parts[0].dtype, shape)
        for part in parts:
            stacked.copy(part)
            part.path.unlink()
        self._files[name] = stacked

    def close(self) -> None:
        """Close the files, complete or not."""
        for file in self._files.values():
            file.out.close()

    def finish(self, schema: Schema) -> None:
        """Complete the files and write the manifest."""
        arrays = {}
        for name, file in sorted(self._files.items()):
            file.finish()
            shape = [file.rows, *file.row_shape]
            arrays[name] = {
                "dtype": file.dtype.str,
                "shape": shape,
                "sha256": file.digest.hexdigest(),
            }
        manifest = {"format": FORMAT, "schema": asdict(schema), "arrays": arrays}
        manifest["sha256"] = _manifest_digest(manifest)
        with (self._folder / MANIFEST).open("w", encoding="utf-8") as out:
            json.dump(manifest, out, indent=1)
            _flush_to_disk(out)


class _ArrayFile:
    """A ``.npy`` file that grows along its first axis.

    NumPy pads the header of a ``.npy`` file so that it keeps its length when that axis grows.
    """

    def __init__(self, path: Path, dtype: np.dtype, row_shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.row_shape = path, dtype.newbyteorder("<"), row_shape
        self.rows, self.digest = 0, hashlib.sha256()
        self.out = path.open("wb")
        self._header_size = self.out.write(_header((0, *row_shape), self.dtype))

    def append(self, rows: np.ndarray) -> None:
        rows = np.ascontiguousarray(rows, dtype=self.dtype)
        assert rows.shape[1:] == self.row_shape, (self.path, rows.shape, self.row_shape)
        self._write(rows.reshape(-1).view(np.uint8).data)
        self.rows += len(rows)

    def copy(self, other: _ArrayFile) -> None:
        """Append the whole of another file as one row."""
        with other.path.open("rb") as stream:
            stream.seek(other._header_size)
            while block := stream.read(1 << 22):
                self._write(block)
        self.rows += 1

    def finish(self) -> None:
        self.out.seek(0)
        written = self.out.write(_header((self.rows, *self.row_shape), self.dtype))
        assert written == self._header_size
        _flush_to_disk(self.out)
        self.out.close()

    def _write(self, data: bytes | memoryview) -> None:
        self.digest.update(data)
        self.out.write(data)


def open_prepared(folder: Path, verify: bool = True) -> Prepared:
    """Map a prepared dataset into memory.

    Only the manifest and the headers are read, unless the files have changed since they were last
    verified.

    Raises:
        ValueError: the folder is incomplete, damaged, or of another format version.
    """
    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"it has format {manifest['format']}, this version reads {FORMAT}")
        status = [str(manifest.pop("sha256", ""))]
        if status[0] != _manifest_digest(manifest):
            raise ValueError(f"{MANIFEST} has changed since it was written")
        arrays = {
            name: _map_array(folder / f"{name}.npy", entry, status)
            for name, entry in manifest["arrays"].items()
        }
        schema = Schema.from_json(manifest["schema"])
        digests = {name: entry["sha256"] for name, entry in manifest["arrays"].items()}
        prepared = Prepared(folder, schema, arrays, digests)
        _check_offsets(arrays)
        if verify:
            _verify(prepared, "\n".join(status))
    except (OSError, KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise ValueError(f"{folder} is incomplete or damaged ({error}); remove it") from error
    return prepared


def _verify(prepared: Prepared, status: str) -> None:
    """Raise ValueError if an array changed after it was written; skipped if verified before.

    ``status`` is a line with the digest of the manifest, then one for each file: digest, size, time
    of modification, time of change, inode.
    """
    stamp, before = prepared.path / STAMP, _verified.get(prepared.path, ("", 0))
    with suppress(OSError, UnicodeDecodeError):
        before = stamp.read_text(), stamp.stat().st_mtime_ns
    # A file that changed in the clock tick of its verification may have changed after it.
    latest = max((int(line.split()[3]) for line in status.splitlines()[1:]), default=0)
    if before[0] == status and before[1] > latest + _CLOCK_TICK:
        return
    if damaged := prepared.damaged_arrays():
        raise ValueError(f"{', '.join(damaged)} changed after it was written")
    _check_ranges(prepared)
    try:
        remove_abandoned_parts(stamp)
        write_atomically(stamp, status)
    except OSError:
        _verified[prepared.path] = status, time.time_ns()


def _check_offsets(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError if an array does not have the rows that its offsets describe."""
    rows = {}
    for name, members in _ROWS.items():
        if name not in arrays:
            continue
        ptr = arrays[name]
        if ptr.ndim != 1 or not ptr.size or ptr[0] != 0 or (ptr[1:] < ptr[:-1]).any():
            raise ValueError(f"{name} does not ascend from 0")
        rows |= {member: (int(ptr[-1]), name) for member in members}
        rows |= dict.fromkeys(("classes", "values"), (ptr.size - 1, name))
    for name, (count, by) in rows.items():
        if name in arrays and arrays[name].shape[name == "edge_index"] != count:
            raise ValueError(f"{name} does not have the {count} rows that {by} describes")


_ROWS = {
    "ptr": ("label", "x", "position", "structure"),
    "edge_ptr": ("edge_index", "edge_label", "edge_attr"),
}


def _check_ranges(prepared: Prepared) -> None:
    """Raise ValueError if an edge, a class or a label names something that does not exist."""
    arrays, schema = prepared.arrays, prepared.schema
    for name, values in (("label", schema.label_values), ("edge_label", schema.edge_label_values)):
        sizes = [len(column) for column in values]
        if name in arrays and not _within(arrays[name], np.array(sizes, np.int64)):
            raise ValueError(f"{name} has codes outside its vocabulary")
    if "classes" in arrays and not _within(arrays["classes"], len(schema.class_names)):
        raise ValueError("classes has numbers that name no class")
    if "edge_index" not in arrays:
        return
    counts, sizes = np.diff(arrays["edge_ptr"]), np.diff(arrays["ptr"])
    if counts.shape != sizes.shape:
        raise ValueError("ptr and edge_ptr describe different numbers of graphs")
    starts, sizes = arrays["edge_ptr"][:-1][counts > 0], sizes[counts > 0]
    for ends in arrays["edge_index"]:
        if starts.size and (ends.min() < 0 or (np.maximum.reduceat(ends, starts) >= sizes).any()):
            raise ValueError("edge_index names vertices that do not exist")


def _within(codes: np.ndarray, sizes: np.ndarray | int) -> bool:
    return not codes.size or bool((codes.min() >= 0) and (codes.max(axis=0) < sizes).all())


def _map_array(path: Path, entry: Mapping[str, Any], status: list[str]) -> np.ndarray:
    """One array, mapped copy on write; adds a line to the status of the files.

    ``np.load`` maps an array read-only, of which torch warns, or in a way that Linux counts against
    the memory it may promise: then a file larger than memory and swap cannot be opened. Mapping the
    file with MAP_NORESERVE has neither problem.
    """
    shape, dtype = tuple(entry["shape"]), np.dtype(entry["dtype"])
    header = _header(shape, dtype)
    start = len(header)
    with path.open("rb") as stream:
        stat = os.fstat(stream.fileno())
        if stream.read(start) != header:
            raise ValueError(f"{path.name} is not the array that the manifest describes")
        if stat.st_size != start + dtype.itemsize * math.prod(shape):
            raise ValueError(f"{path.name} is cut short")
        times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"
        status.append(f"{entry['sha256']} {stat.st_size} {times} {stat.st_ino}")
        buffer = _map_file(stream.fileno(), stat.st_size)
        array = np.ndarray(shape, dtype, buffer=buffer, offset=start)
        note_mapping(array.ctypes.data, buffer)
        return array


def _header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """The beginning of a ``.npy`` file."""
    out = io.BytesIO()
    about = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, about)
    return out.getvalue()


def _map_file(descriptor: int, size: int) -> mmap.mmap:
    flags = getattr(mmap, "MAP_NORESERVE", 0)  # Python names it from 3.13 on
    if not flags and sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        flags = 0x4000
    if not flags:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    return mmap.mmap(
        descriptor, size, flags=mmap.MAP_PRIVATE | flags, prot=mmap.PROT_READ | mmap.PROT_WRITE
    )


@dataclass(frozen=True)
class Part:
    """Consecutive graphs laid end to end, as in :class:`softperm.data.collection.Collection`.

    Args:
        sizes: number of vertices of each graph.
        edge_counts: number of directed edges of each graph.
        edge_index: both directions of every edge, numbered within their graph, sorted.
        label: codes of discrete vertex labels.
        x: continuous vertex attributes.
        edge_label: codes of discrete edge labels.
        edge_attr: continuous edge attributes.
        position: coordinates of the vertices.
        classes: the class of each graph, as a number from 0.
        values: targets of each graph, NaN where missing.
    """

    sizes: Int[np.ndarray, " b"]
    edge_counts: Int[np.ndarray, " b"]
    edge_index: Int[np.ndarray, "2 e"]
    label: Int[np.ndarray, "v L"] | None = None
    x: Float[np.ndarray, "v F"] | None = None
    edge_label: Int[np.ndarray, "e Le"] | None = None
    edge_attr: Float[np.ndarray, "e Fe"] | None = None
    position: Float[np.ndarray, "v 3"] | None = None
    classes: Int[np.ndarray, " b"] | None = None
    values: Float[np.ndarray, "b T"] | None = None


@dataclass(frozen=True)
class RawData:
    """The content of raw files.

    Args:
        schema: names and counts.
        parts: the graphs, some at a time.
        extra: arrays of the dataset as a whole, such as an official split.
    """

    schema: Schema
    parts: Iterator[Part]
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """How to prepare a dataset from raw files.

    Args:
        name: the dataset.
        source: SHA-256 of the raw files.
        options: choices that change the result.
        modules: the code that determines the result, besides that of all datasets.
        libraries: what that code needs besides softperm's own requirements.
        read: reads the raw files.
        fingerprint: the expected :attr:`Prepared.fingerprint`, if the data is known and was
            downloaded.
    """

    name: str
    source: str
    options: Mapping[str, object]
    modules: tuple[str, ...]
    read: Callable[[Report], RawData]
    fingerprint: str | None = None
    libraries: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """SHA-256 of everything that determines the result: format, code, options, raw data."""
        modules = sorted({*self.modules, *_SHARED_MODULES})
        code = [file_digest(_PACKAGES / f"{m.replace('.', '/')}.py") for m in modules]
        content = json.dumps(
            [FORMAT, self.name, self.source, dict(self.options), code], sort_keys=True
        )
        return hashlib.sha256(content.encode()).hexdigest()

    def versions(self) -> str:
        """The libraries with their versions: the end of the prepared folder's name.

        Raises:
            PackageNotFoundError: one of them is not installed.
        """
        return "".join(f"-{library}-{version(library)}" for library in self.libraries)


def prepare(recipe: Recipe, store: Store, progress: Report = silent) -> Prepared:
    """Open a prepared dataset, after preparing it if needed.

    The folder's name contains :attr:`Recipe.key`, which changes with code, options and raw data,
    and the versions of the libraries that prepared it. If these libraries are not installed,
    a folder that was prepared elsewhere and copied here is used. A folder is written under another
    name and renamed when complete; a second process that needs it waits for the first.

    Raises:
        ValueError: the raw data is unusable, or not the data that its name promises.
        OSError: the disk is full.
    """
    folder, name = store.cache / "prepared", f"{recipe.name}-{recipe.key[:16]}"
    try:
        target = folder / f"{name}{recipe.versions()}"
    except PackageNotFoundError:
        return _prepared_elsewhere(store, name, recipe)
    prepared = open_if_complete(target)
    if prepared is not None:
        return prepared
    with disk_errors(target), exclusive(target):
        prepared = open_if_complete(target)
        if prepared is not None:
            return prepared
        remove_abandoned(target.parent)
        with workspace(target) as work:
            _write(recipe, work, progress)
            found = open_prepared(work).fingerprint
            if recipe.fingerprint not in (None, found):
                raise ValueError(
                    f"{recipe.name}: the downloaded files hold other data than the known dataset "
                    f"(fingerprint {found[:16]}, expected {str(recipe.fingerprint)[:16]}); put "
                    "files you trust in a data root to use them"
                )
            shutil.rmtree(target, ignore_errors=True)  # an incomplete or damaged one
            os.replace(work, target)
    return open_prepared(target)


def codes_type(sizes: tuple[int, ...]) -> type[np.signedinteger]:
    """The smallest integer type for the codes of vocabularies of these sizes."""
    kinds = (np.int8, np.int16, np.int32)
    return next(k for k in kinds if max(sizes, default=0) - 1 <= np.iinfo(k).max)


def open_if_complete(target: Path) -> Prepared | None:
    """Maps a prepared folder; None if there is none, or if it was damaged since it was written."""
    try:
        return open_prepared(target) if target.exists() else None
    except ValueError:
        return None


def _write(recipe: Recipe, folder: Path, progress: Report) -> None:
    data = recipe.read(progress)
    with closing(ArrayWriter(folder)) as writer:
        for part in data.parts:
            for name in (f.name for f in fields(Part) if f.name != "edge_index"):
                if getattr(part, name) is not None:
                    writer.append(name, getattr(part, name))
            writer.append("row", part.edge_index[0])
            writer.append("column", part.edge_index[1])
            writer.append("structure", _structure(part))
        writer.offsets("ptr", counts="sizes")
        writer.offsets("edge_ptr", counts="edge_counts")
        writer.stack("edge_index", "row", "column")
        for name, array in data.extra.items():
            writer.append(name, array)
        writer.finish(data.schema)


def _structure(part: Part) -> np.ndarray:
    import torch  # only for preparing, not for opening

    from softperm.data.features import structural_features

    ptr = np.concatenate([[0], np.cumsum(part.sizes)])
    edges = part.edge_index + np.repeat(ptr[:-1], part.edge_counts)  # (2, e), through the part
    return structural_features(torch.from_numpy(edges), torch.from_numpy(ptr)).numpy()  # (v, 2)


def prepared_folders(store: Store, name: str) -> list[Path]:
    """The complete folders in a store whose names begin with ``name-``, in order."""
    manifests = (store.cache / "prepared").glob(f"{name}-*/{MANIFEST}")
    return sorted(m.parent for m in manifests if m.parent.suffix != ".making")


def _prepared_elsewhere(store: Store, name: str, recipe: Recipe) -> Prepared:
    """A dataset that was prepared on a machine with the needed libraries."""
    for folder in reversed(prepared_folders(store, name)):
        prepared = open_if_complete(folder)
        if prepared is not None:
            return prepared
    raise ImportError(
        f"{recipe.name}: preparing it needs {' and '.join(recipe.libraries)}, which is not "
        "installed: pip install softperm[molecules], or prepare it elsewhere, with the same "
        f"softperm, and copy the folder {name}-… to {store.cache / 'prepared'}"
    )


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest's content, without its own digest."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _flush_to_disk(out: IO) -> None:
    out.flush()
    os.fsync(out.fileno())


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(v) for v in value) if isinstance(value, list) else value
