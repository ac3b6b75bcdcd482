"""Files of graphs that do not fit into memory, prepared once as arrays that are mapped into it.

Worker processes turn the shards of a file into parts: graphs laid end to end, with the vocabulary
of each part. The parts are then joined to a prepared folder, as datasets have it
(:mod:`softperm.data.datasets.prepared`), in the user's cache. Its name holds a digest of the input,
its name, the options of reading and the code; parts that a killed process left are used. Memory
holds the parts of the running processes, and one part while they are joined.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from softperm.data.canonical import (
    FIELDS,
    Removed,
    check_same_widths,
    has_rows,
    warn_empty,
    warn_removed,
    width,
)
from softperm.data.collection import Collection
from softperm.data.datasets.prepared import (
    ArrayWriter,
    Prepared,
    Schema,
    codes_type,
    open_if_complete,
    open_prepared,
)
from softperm.data.datasets.store import file_digest, open_store
from softperm.data.formats.shards import (
    ROWS,
    Shard,
    canonical_graph,
    check_unchanged,
    file_states,
    input_files,
    read_shards,
    stem,
)
from softperm.data.formats.tables import (
    MISSING,
    Record,
    Unreadable,
    as_column,
    as_number,
    check_share,
    check_targets,
    parse_cells,
)
from softperm.data.molecules import bond_names, element_symbols, read_symbols
from softperm.data.vocabulary import Label, Vocabulary, codes_of
from softperm.errors import GraphError, counted
from softperm.files import appearing, disk_errors, exclusive, workspace, write_atomically
from softperm.parallel import map_in_processes
from softperm.progress import Report, silent
from softperm.settings import STANDARD_FIELDS, FieldNames

_EXACT = 2**53  # whole numbers up to this are floats without rounding
_CODE = sorted(Path(__file__).parents[1].rglob("*.py"))  # any of them may change what is read


class Texts(Sequence[str]):
    """Strings in mapped arrays, decoded when read.

    Args:
        content: UTF-8 of all strings, end to end.
        ptr: where each of them begins, with the total at the end.
    """

    def __init__(self, content: np.ndarray, ptr: np.ndarray) -> None:
        self.content, self.ptr = content, ptr

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        first, last = self.ptr[index % len(self) :][:2]
        return self.content[first:last].tobytes().decode()


@dataclass(frozen=True)
class MappedFile:
    """The graphs of a file in memory-mapped arrays, with the same content as a :class:`GraphFile`.

    The graphs are encoded by ``vocabulary``. If there are several targets, whole numbers are
    stored as floats. ``content`` is the SHA-256 of the prepared arrays.
    """

    graphs: Collection
    vocabulary: Vocabulary
    targets: dict[str, np.ndarray]
    name: str
    ids: Sequence[str]
    places: Sequence[str]
    problems: Sequence[str]
    content: str
    class_targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartWorker:
    """Turns a shard of a file into a part of the prepared arrays.

    Args:
        folder: of the parts.
        target: the targets to read; None means all.
        symmetrise: whether to treat directed edges as undirected.
        skip_empty: whether to leave out graphs without vertices.
        fields: names of the attributes of vertices and edges to read.
    """

    folder: Path
    target: tuple[str, ...] | None
    symmetrise: bool
    skip_empty: bool
    fields: FieldNames

    def files(self, number: int) -> tuple[Path, Path]:
        """The arrays of a part, and the rest as JSON, which is written last."""
        return tuple(self.folder / f"part-{number:05}.{end}" for end in ("npz", "json"))  # type: ignore[return-value]

    def __call__(self, shard: Shard) -> int:
        """Writes a part; returns its number."""
        torch.set_num_threads(1)
        rows = list(shard.read())
        problems = {row.where: row.problem for row in rows if isinstance(row, Unreadable)}
        records = [row for row in rows if isinstance(row, Record)]
        graphs, vocabulary, kept, about = self._graphs(records, problems)
        records = [records[k] for k in kept]
        names, values, kinds = _numbers(records, self.target, shard.cells)
        arrays = {"values": values, **_texts("id", [r.id for r in records])}
        arrays |= _texts("place", [r.where for r in records])
        if graphs is not None:
            arrays |= {
                f.name: value.numpy()
                for f in fields(Collection)
                if isinstance(value := getattr(graphs, f.name), torch.Tensor)
            }
        listed = [f"{row.where}: {problems[row.where]}" for row in rows if row.where in problems]
        about |= {"rows": len(rows), "graphs": len(records), "problems": listed}
        about |= {"targets": names, "kinds": kinds, "cells": shard.cells}
        about |= {"vocabulary": vocabulary.to_config(), "classes": shard.class_targets}
        content, details = self.files(shard.number)
        with appearing(content) as stream:  # a worker of a killed process may still write the same
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        write_atomically(details, json.dumps(about, default=sorted))  # a set becomes a list
        return shard.number

    def _graphs(
        self, records: list[Record], problems: dict[str, str]
    ) -> tuple[Collection | None, Vocabulary, list[int], dict[str, Any]]:
        """The usable graphs, their vocabulary and positions, and what is known of their fields."""
        texts = [record.graph for record in records if isinstance(record.graph, str)]
        if texts and len(texts) == len(records) and self.fields == STANDARD_FIELDS:
            return self._molecules(records, texts, problems)
        graphs, kept, removed = [], [], []
        for k, record in enumerate(records):
            try:
                graph, removals = canonical_graph(record, self.symmetrise, self.fields)
            except ValueError as error:
                reason = error.problem if isinstance(error, GraphError) else str(error)
                problems[record.where] = reason
                continue
            if graph.num_nodes or not self.skip_empty:
                graphs.append(graph)
                kept.append(k)
                removed.append(removals)
        widths: dict[str, dict[int, list[Any]]] = {field: {} for field in FIELDS}
        for i, graph in enumerate(graphs):
            for field in filter(partial(has_rows, graph), FIELDS):
                place = records[kept[i]].where
                of = widths[field].setdefault(width(graph, field), [0, i, place])
                of[0] += 1
        together = Removed.total(removed)
        about = {"removed": _removed_config(together), "widths": widths}
        if not graphs or any(len(sizes) > 1 for sizes in widths.values()):
            return None, Vocabulary(), kept, about  # joining such parts is an error
        vocabulary = Vocabulary.learn(graphs, together.columns)
        return vocabulary.encode(graphs), vocabulary, kept, about

    def _molecules(
        self, records: list[Record], texts: list[str], problems: dict[str, str]
    ) -> tuple[Collection | None, Vocabulary, list[int], dict[str, Any]]:
        """The same for SMILES, without a graph object for each."""
        molecules, unreadable = read_symbols(texts)
        problems |= {records[k].where: problem for k, problem in unreadable.items()}
        kept = [k for k in range(len(texts)) if k not in unreadable]
        about: dict[str, Any] = {"removed": _removed_config(Removed()), "widths": {}}
        if molecules is None:
            return None, Vocabulary(), [], about
        atoms, bonds = (
            tuple(sorted({names[code] for code in np.unique(codes).tolist()}))
            for names, codes in (
                (element_symbols(), molecules.atom),
                (bond_names(), molecules.bond),
            )
        )
        vocabulary = Vocabulary(labels=(atoms,), edge_labels=(bonds,))
        graphs = vocabulary.encode_molecules(molecules)
        if self.skip_empty:
            filled = graphs.sizes.nonzero()[:, 0]
            graphs, kept = graphs.select(filled), [kept[k] for k in filled.tolist()]
        counts = {"label": graphs.sizes, "edge_label": graphs.edge_ptr.diff()}
        for field, n in counts.items():
            if bool((n > 0).any()):
                first = int((n > 0).int().argmax())
                place = records[kept[first]].where
                about["widths"][field] = {1: [int((n > 0).sum()), first, place]}
        sizes = (len(graphs.label) > 0, len(graphs.edge_label) > 0)  # type: ignore[arg-type]
        vocabulary = replace(
            vocabulary,
            labels=vocabulary.labels if sizes[0] else (),
            edge_labels=vocabulary.edge_labels if sizes[1] else (),
        )
        return graphs, vocabulary, kept, about


def _numbers(
    records: Sequence[Record], target: Sequence[str] | None, cells: bool
) -> tuple[list[str], np.ndarray, list[str]]:
    """The targets as floats (b, T), NaN where missing; and of each column what it holds.

    The kind of a column consists of the letters ``w`` (words, or numbers that floats would round:
    the values do not count), ``n`` (numbers), ``f`` (some of them not whole), ``g`` (gaps),
    ``m`` (a word such as NA that marks a gap).
    """
    present = dict.fromkeys(name for record in records for name in record.targets)
    names = list(present) if target is None else list(target)
    values = np.full((len(records), len(names)), np.nan)
    kinds = []
    for c, name in enumerate(names):
        column = [record.targets.get(name) for record in records]
        letters = set()
        known: dict[Any, float] = {}
        texts = all(isinstance(value, str) for value in column)
        for value in set(column) if texts else column:
            word = str(value).strip() if cells else ""
            gap = word.lower() in MISSING if cells else value is None
            number = as_number(word) if cells and not gap else value
            if gap:
                letters |= {"g", "m"} if word else {"g"}
            elif not isinstance(number, int | float) or (
                isinstance(number, int) and abs(number) > _EXACT
            ):
                letters.add("w")
            else:
                letters.add("n" if isinstance(number, int) else "f")
                known[value] = float(number)
        if "w" not in letters:
            values[:, c] = [known.get(value, np.nan) for value in column]
        kinds.append("".join(sorted(letters)))
    return names, values, kinds


def _texts(name: str, strings: Sequence[str]) -> dict[str, np.ndarray]:
    encoded = [text.encode("utf-8", "surrogatepass") for text in strings]
    counts = np.array([len(text) for text in encoded], dtype=np.int64)
    return {name: np.frombuffer(b"".join(encoded), np.uint8), f"{name}_counts": counts}


def _removed_config(removed: Removed) -> dict[str, Any]:
    """What was removed, in a fixed order, because the digest of the prepared arrays covers it."""
    sums = ("loops", "duplicates", "changed")
    names = ("vertices", "edges", "used", "columns", "codes", *sums)
    return {name: getattr(removed, name) for name in names}


def _removed(config: Mapping[str, Any]) -> Removed:
    columns = {key: tuple(names) for key, names in config["columns"].items()}
    codes = None if config["codes"] is None else frozenset(config["codes"])
    used = tuple(map(tuple, config["used"]))
    return Removed(**{**config, "used": used, "codes": codes, "columns": columns})


def input_size(path: Path) -> int:
    """Number of bytes of a file, or of all files of a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def is_piecewise(path: Path) -> bool:
    """Whether a file or folder is read piece by piece: not TUDataset's format."""
    names = [file.name for file in path.iterdir()] if path.is_dir() else [path.name]
    return path.suffix.lower() != ".zip" and not any(name.endswith("_A.txt") for name in names)


def prepare_file(
    path: Path,
    *,
    target: Sequence[str] | None = None,
    smiles_column: str | None = None,
    symmetrise: bool = False,
    skip_empty: bool = False,
    fields: FieldNames = STANDARD_FIELDS,
    strict: bool = False,
    progress: Report = silent,
    processes: int | None = None,
    rows: int = ROWS,
    cache: Path | None = None,
) -> MappedFile:
    """The graphs of a file in mapped arrays, prepared in constant memory if they are not yet.

    The graphs, targets and names are those of :func:`softperm.data.formats.read_graphs` with the
    same arguments. Unless ``strict``, a row that cannot be read is left out. Work is divided among
    ``processes``, one for each core by default, in parts of ``rows`` rows.

    Raises:
        ValueError: the file cannot be used, changed while it was read, or more than a tenth of its
            rows cannot be read.
    """
    columns = {"smiles_column": smiles_column}
    open_shards = partial(read_shards, path, **columns, symmetrise=symmetrise, rows=rows)
    _check_header(path, open_shards, target)
    progress("preparing graphs", 0, 1)
    files = input_files(path)
    before = file_states(files)
    digests = [(str(file.relative_to(path)), file_digest(file)) for file in files]
    options = [path.name, target, smiles_column, symmetrise, skip_empty, repr(fields), rows]
    code = [*map(file_digest, _CODE), version("rdkit") if find_spec("rdkit") else None]
    key = hashlib.sha256(json.dumps([digests, options, code]).encode()).hexdigest()[:16]
    folder = open_store(cache=cache).cache / "prepared" / f"file-{key}"
    worker = PartWorker(
        folder.with_suffix(".parts"),
        None if target is None else tuple(target),
        symmetrise,
        skip_empty,
        fields,
    )
    with disk_errors(folder), exclusive(folder):
        prepared = open_if_complete(folder)
        if prepared is None:
            worker.folder.mkdir(parents=True, exist_ok=True)
            try:
                count = _write_parts(worker, open_shards, strict, progress, processes)
                check_unchanged(before)
            except ValueError:  # the parts may be of other content than the digests
                shutil.rmtree(worker.folder, ignore_errors=True)
                raise
            with workspace(folder) as work:
                _join(worker, range(count), str(path), work)
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(work, folder)
            prepared = open_prepared(folder)
        shutil.rmtree(worker.folder, ignore_errors=True)  # a killed process may have left it
    file = _mapped_file(prepared, path, open_shards, target, strict)
    check_unchanged(before)  # words are read again
    return file


def _check_header(path: Path, open_shards: Callable[[], Any], target: Sequence[str] | None) -> None:
    """Raises before all rows are read if a table has no such target."""
    with closing(open_shards()) as shards:
        shard = next(shards, None)
        if shard is None or not shard.cells or target is None:
            return
        record = next((row for row in shard.read() if isinstance(row, Record)), None)
        if record is not None:
            check_targets(target, list(record.targets), str(path))


def _write_parts(
    worker: PartWorker,
    open_shards: Callable[[], Any],
    strict: bool,
    progress: Report,
    processes: int | None,
) -> int:
    """Writes the missing parts; returns the number of all parts."""
    shares: list[float] = []
    read = graphs = 0

    def unfinished(shards: Iterator[Shard]) -> Iterator[Shard]:
        for shard in shards:
            shares.append(shard.share)
            if not worker.files(shard.number)[1].exists():
                yield shard

    with closing(open_shards()) as shards:
        for number in map_in_processes(worker, unfinished(shards), processes, helping=True):
            about = _about(worker, number)
            if strict and about["problems"]:
                raise ValueError(about["problems"][0])
            read, graphs = read + 1, graphs + about["graphs"]
            progress("preparing graphs", shares[number], 1, counted(graphs, "graph"))
    return len(shares)


def _about(worker: PartWorker, number: int) -> dict[str, Any]:
    return json.loads(worker.files(number)[1].read_text(encoding="utf-8"))


def _join(worker: PartWorker, numbers: range, path: str, folder: Path) -> None:
    """Joins the parts to a prepared folder, one after the other."""
    abouts = [_about(worker, number) for number in numbers]
    for about in abouts:  # of each part only what is needed is kept
        about["vocabulary"] = Vocabulary.from_config(about["vocabulary"])
    total = sum(about["graphs"] for about in abouts)
    problems = [problem for about in abouts for problem in about["problems"]]
    check_share(problems, sum(about["rows"] for about in abouts))
    if not total:
        raise ValueError(f"{path} holds no graphs; expected at least one")
    _check_widths(abouts)
    vocabulary = _whole([about["vocabulary"] for about in abouts])
    names = list(dict.fromkeys(name for about in abouts for name in about["targets"]))
    with closing(ArrayWriter(folder)) as writer:
        for number, about in zip(numbers, abouts, strict=True):
            with np.load(worker.files(number)[0]) as part:
                _append(writer, dict(part), about, vocabulary, names)
        for name in ("id", "place"):
            writer.offsets(f"{name}_ptr", counts=f"{name}_counts")
        writer.offsets("ptr", counts="sizes")
        writer.offsets("edge_ptr", counts="edge_counts")
        writer.stack("edge_index", "row", "column")
        kinds = ["".join(sorted(set("".join(of)))) for of in _kinds(abouts, names)]
        content = {
            "vocabulary": vocabulary.to_config(),
            "targets": names,
            "kinds": kinds,
            "cells": any(about["cells"] for about in abouts),
            "classes": abouts[0]["classes"],
            "removed": [about["removed"] for about in abouts],
            "problems": problems,
        }
        writer.append("about", np.frombuffer(json.dumps(content).encode(), np.uint8))
        values = (vocabulary.labels, vocabulary.edge_labels)
        label, edge_label = (tuple(tuple(map(str, c)) for c in columns) for columns in values)
        writer.finish(
            Schema(Path(path).name, "regression", tuple(names), (), label, (), edge_label)
        )


def _kinds(abouts: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[list[str]]:
    """The kind of each target in each part; a part without the target has gaps."""
    known = [dict(zip(about["targets"], about["kinds"], strict=True)) for about in abouts]
    sizes = [about["graphs"] for about in abouts]
    parts = list(zip(known, sizes, strict=True))
    return [[kinds.get(name, "g") for kinds, size in parts if size] for name in names]


def _check_widths(abouts: Sequence[Mapping[str, Any]]) -> None:
    """Raises GraphError if a graph has other fields than most; see ``check_same_fields``."""
    found: dict[str, list[tuple[int, int, int, str]]] = {field: [] for field in FIELDS}
    before = 0
    for about in abouts:
        for field, sizes in about["widths"].items():
            found[field] += [(int(s), n, before + i, place) for s, (n, i, place) in sizes.items()]
        before += about["graphs"]
    for field, of in found.items():
        check_same_widths(field, of)


def _whole(parts: Sequence[Vocabulary]) -> Vocabulary:
    """The vocabulary of all parts."""

    def union(columns: Sequence[tuple[tuple[Label, ...], ...]]) -> tuple[tuple[Label, ...], ...]:
        count = max((len(each) for each in columns), default=0)
        seen = [{v for each in columns if each for v in each[c]} for c in range(count)]
        order = lambda value: (isinstance(value, str), value)  # noqa: E731
        return tuple(tuple(sorted(values, key=order)) for values in seen)

    columns: dict[str, tuple[str, ...]] = {}
    for each in parts:
        columns = {**each.columns, **columns}
    return Vocabulary(
        labels=union([each.labels for each in parts]),
        edge_labels=union([each.edge_labels for each in parts]),
        x_size=max(each.x_size for each in parts),
        edge_attr_size=max(each.edge_attr_size for each in parts),
        weighted=any(each.weighted for each in parts),
        columns=columns,
    )


def _append(
    writer: ArrayWriter,
    part: dict[str, np.ndarray],
    about: Mapping[str, Any],
    vocabulary: Vocabulary,
    names: Sequence[str],
) -> None:
    """Adds a part to the arrays."""
    for name in ("id", "id_counts", "place", "place_counts"):
        writer.append(name, part[name])
    values = np.full((about["graphs"], len(names)), np.nan)
    values[:, [names.index(name) for name in about["targets"]]] = part["values"]
    writer.append("values", values)
    if "ptr" not in part:  # no graphs
        return
    own: Vocabulary = about["vocabulary"]
    edges = part["edge_index"].astype(np.int32)
    writer.append("sizes", np.diff(part["ptr"]))
    writer.append("edge_counts", np.diff(part["edge_ptr"]))
    writer.append("row", edges[0])
    writer.append("column", edges[1])
    writer.append("structure", part["structure"])
    for name, ours, theirs in (
        ("label", vocabulary.labels, own.labels),
        ("edge_label", vocabulary.edge_labels, own.edge_labels),
    ):
        if ours:
            kind = codes_type(tuple(map(len, ours)))
            codes = part[name] if theirs else np.zeros((0, len(ours)), np.int64)
            columns = []
            for c, (column, known) in enumerate(zip(ours, theirs or ours, strict=True)):
                columns.append(codes_of(known, column).numpy()[codes[:, c]].astype(kind))
            writer.append(name, np.stack(columns, axis=1))
    for name, size in (("x", vocabulary.x_size), ("edge_attr", vocabulary.edge_attr_size)):
        if size:
            writer.append(name, part.get(name, np.zeros((0, size), np.float32)))
    if vocabulary.weighted:
        ones = np.ones(edges.shape[1], np.float32)
        writer.append("edge_weight", part.get("edge_weight", ones))


def _mapped_file(
    prepared: Prepared,
    path: Path,
    open_shards: Callable[[], Any],
    target: Sequence[str] | None,
    strict: bool,
) -> MappedFile:
    """The content of a prepared folder; gives the warnings of reading."""
    arrays = prepared.arrays
    about = json.loads(arrays["about"].tobytes())
    if strict and about["problems"]:
        raise ValueError(about["problems"][0])
    vocabulary = Vocabulary.from_config(about["vocabulary"])
    names: list[str] = about["targets"]
    if target is not None:
        kinds = dict(zip(names, about["kinds"], strict=True))
        check_targets(
            target, [n for n in names if set(kinds[n]) != {"g"} or about["cells"]], str(path)
        )
    ids, places = (Texts(arrays[name], arrays[f"{name}_ptr"]) for name in ("id", "place"))
    removed = Removed.total(map(_removed, about["removed"]))
    warn_removed(replace(removed, graphs=len(ids)), stacklevel=4)
    sizes = np.diff(arrays["ptr"])
    if not sizes.all():
        warn_empty(sizes.tolist(), ids)
    sizes_of = (tuple(map(len, labels)) for labels in (vocabulary.labels, vocabulary.edge_labels))
    graphs = Collection.of_arrays(arrays, *sizes_of)
    return MappedFile(
        graphs,
        vocabulary,
        _columns(prepared, about, open_shards, path),
        stem(path),
        ids,
        places,
        problems=about["problems"],
        content=prepared.fingerprint,
        class_targets=tuple(about["classes"]),
    )


def _columns(
    prepared: Prepared, about: Mapping[str, Any], open_shards: Callable[[], Any], path: Path
) -> dict[str, np.ndarray]:
    """The targets: mapped numbers, or text that is read from the file again."""
    values, columns = prepared.arrays["values"], {}
    words = []
    for c, (name, kind) in enumerate(zip(about["targets"], about["kinds"], strict=True)):
        numbers = "n" in kind or "f" in kind
        columns[name] = values[:, c]
        if "w" in kind or not numbers:
            words.append(name)
        elif not {"f", "g"} & set(kind) and len(about["targets"]) == 1:
            columns[name] = values[:, c].astype(np.int64)
    if words:
        places = Texts(prepared.arrays["place"], prepared.arrays["place_ptr"])
        columns |= _reread(open_shards, words, places, about["cells"], path)
    return columns


def _reread(
    open_shards: Callable[[], Any],
    names: Sequence[str],
    places: Sequence[str],
    cells: bool,
    path: Path,
) -> dict[str, np.ndarray]:
    """Targets that are not plain numbers, of the graphs at these places in the file."""
    read: dict[str, list[Any]] = {name: [] for name in names}
    k = 0
    with closing(open_shards()) as shards:
        for shard in shards:
            for row in shard.read():
                if k < len(places) and isinstance(row, Record) and row.where == places[k]:
                    k += 1
                    for name, column in read.items():
                        column.append(row.targets.get(name))
    if k < len(places):
        raise ValueError(f"{path} has changed while it was read: {places[k]} no longer exists")
    try:
        return {
            name: as_column(parse_cells([str(c) for c in column]) if cells else column)
            for name, column in read.items()
        }
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
