"""A trained model on collections of any size: shards in, parts of a table out.

A :class:`ShardWorker` turns one shard of the input into one part of the result. It runs in
this process, in others on this machine (:func:`run_shards`), or on the machines of a Ray cluster
(:mod:`softperm.estimators.cluster`). Results do not depend on where it runs: a shard is
computed by one thread, with batches that never reach beyond it.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float

from softperm import __version__
from softperm.data.canonical import Removed, warn_removed_edges
from softperm.data.collection import Collection
from softperm.data.datasets.store import file_digest
from softperm.data.formats.shards import ROWS, Shard, canonical_graph
from softperm.data.formats.tables import Record, Unreadable, as_column, parse_cells, shortened
from softperm.data.result_files import Results, join_parts, write_part
from softperm.data.vocabulary import UnseenLabels
from softperm.errors import GraphError, GraphWarning, by_count, counted
from softperm.estimators.pignn import NOT_FINITE, PiGNNEstimator, load_estimator
from softperm.files import exclusive, remove_abandoned, write_atomically
from softperm.parallel import cores, map_in_processes, one_torch_thread
from softperm.progress import Report, silent
from softperm.settings import ModelConfig
from softperm.training.sources import encode_smiles, missing_values, reads_smiles
from softperm.training.tasks import Classification, Regression

PART_BYTES = 1 << 26  # values of one part, which a process holds at once
SCORED_VALUES = 1 << 22  # targets of which a score is computed, in memory
FEW_TARGETS = 3  # that are named in messages
TU_CLASS = "graph_label"  # the class in files of TUDataset's format, which have it as target too
USUAL_NAMES = {"class", "target", "target 0", TU_CLASS, "graph_attribute"}
"""Names of targets in datasets and in TUDataset's format, whatever they mean."""
FEW = 3  # shards that are computed before other processes would have started


@dataclass(frozen=True)
class CollectionShard:
    """Consecutive graphs of a collection that is encoded by the model's vocabulary already.

    Args:
        number: position among all shards.
        graphs: the graphs.
        ids: their names.
        targets: their targets by name.
        share: of the whole collection, up to the end of this shard.
    """

    number: int
    graphs: Collection
    ids: Sequence[str]
    targets: dict[str, np.ndarray]
    share: float


def collection_shards(
    graphs: Collection, ids: Sequence[str], targets: dict[str, np.ndarray], rows: int = ROWS
) -> Generator[CollectionShard]:
    """The graphs of an encoded collection, some at a time."""
    for number, first in enumerate(range(0, len(graphs), rows)):
        last = min(first + rows, len(graphs))
        some = {name: column[first:last] for name, column in targets.items()}
        part, share = graphs.select(torch.arange(first, last)), last / len(graphs)
        yield CollectionShard(number, part, ids[first:last], some, share)


@dataclass(frozen=True)
class Summary:
    """Counts of the rows of some shards, and of problems and warnings in them.

    Attributes:
        rows: number of rows.
        problems: number of rows without a result.
        first_problem: the first of them, with its place in the input.
        unseen_graphs: number of graphs with labels that training did not see.
        unseen_vertices: number of their vertices.
        unseen_edges: number of their edges.
        unseen_labels: the first few of the labels.
        unseen_first: name of the first graph.
        loops: number of self-loops that were removed.
        duplicates: number of repeated edges that were removed.
        changed: number of graphs from which any were removed.
        empty: number of graphs without vertices.
        empty_first: name of the first of them.
        targets: names of the first few targets in the input; for vectors none.
        warnings: other warnings.
    """

    rows: int = 0
    problems: int = 0
    first_problem: str = ""
    unseen_graphs: int = 0
    unseen_vertices: int = 0
    unseen_edges: int = 0
    unseen_labels: tuple[Any, ...] = ()
    unseen_first: str = ""
    loops: int = 0
    duplicates: int = 0
    changed: int = 0
    empty: int = 0
    empty_first: str = ""
    targets: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, text: str) -> Summary:
        """The summary from the JSON of its fields."""
        values = json.loads(text)
        lists = {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        return cls(**{**values, **lists})

    def plus(self, other: Summary) -> Summary:
        """The summary of both, this one first."""
        together = {}
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, int):
                together[each.name] = mine + theirs
            elif isinstance(mine, str):
                together[each.name] = mine or theirs
            else:
                together[each.name] = tuple(dict.fromkeys([*mine, *theirs]))[:3]
        return Summary(**together)

    def warn(self) -> None:
        """Issues one warning for each kind of remark about all rows."""
        if self.unseen_graphs:
            counts = (self.unseen_vertices, self.unseen_edges, self.unseen_labels)
            unseen = UnseenLabels(range(self.unseen_graphs), *counts, self.unseen_first)
            warnings.warn(unseen, stacklevel=2)
        count = self.rows - self.problems
        warn_removed_edges(self.loops, self.duplicates, self.changed, count, stacklevel=2)
        if self.empty:
            words = f"{self.empty:,} of {counted(self.rows, 'graph')} "
            words += f"{by_count(self.empty, 'has', 'have')} no vertices"
            warnings.warn(GraphWarning(range(self.empty), words, self.empty_first), stacklevel=2)
        for words in self.warnings:
            warnings.warn(words, stacklevel=2)


@dataclass(frozen=True)
class Encoded:
    """A shard as the network reads it.

    Attributes:
        number: of the shard.
        ids: the name of each row.
        problems: by position, the place of a row in the input and why it holds no usable graph.
        graphs: the graphs of the other rows; None if there are none.
        targets: their targets by the name that the model has for them.
        cells: whether targets are the text of cells.
        summary: counts of the rows and of their problems.
        names: the name of each of these targets in the input.
    """

    number: int
    ids: Sequence[str]
    problems: dict[int, str]
    graphs: Collection | None
    targets: dict[str, Sequence[Any]]
    cells: bool
    summary: Summary
    names: Mapping[str, str] = field(default_factory=dict)

    def without_empty(self) -> Encoded:
        """The rows that have vertices or a problem."""
        if self.graphs is None or bool((sizes := self.graphs.sizes).all()):
            return self
        filled = sizes.nonzero()[:, 0]
        good = [i for i in range(len(self.ids)) if i not in self.problems]
        rows = sorted([good[k] for k in filled.tolist()] + list(self.problems))
        return replace(
            self,
            ids=[self.ids[i] for i in rows],
            problems={n: self.problems[i] for n, i in enumerate(rows) if i in self.problems},
            graphs=self.graphs.select(filled) if len(filled) else None,
            targets={name: [c[k] for k in filled.tolist()] for name, c in self.targets.items()},
        )


@runtime_checkable
class MoreColumns(Protocol):
    """Columns of a table of predictions that are computed from the graphs alone."""

    @property
    def identity(self) -> dict[str, Any]:
        """The values on which the columns depend, as JSON values."""
        ...

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        ...

    def __call__(self, graphs: Collection | None) -> list[np.ndarray]:
        """The columns, a value for each graph; empty ones for None."""
        ...


@dataclass(frozen=True)
class ShardWorker:
    """Computes one part of a table from one shard, and writes it.

    Args:
        model: the model folder.
        device: where the network computes.
        vectors: whether the values are aligned vectors; else predictions.
        folder: of the parts; shared by all machines that compute.
        ending: of the parts' names, which is their format.
        symmetrise: whether to treat directed edges as undirected.
        strict: whether a row without a result is an error.
        compact: whether to store the symmetric half of aligned matrices; see
            :func:`compact_weights`.
        half: whether to store vectors with 16 bits.
        skip_empty: whether to leave out graphs without vertices.
        load: reads the model folder.
        columns: computes further columns of predictions.
    """

    model: str
    device: str
    vectors: bool
    folder: Path
    ending: str
    symmetrise: bool = False
    strict: bool = False
    compact: bool = False
    half: bool = False
    skip_empty: bool = False
    load: Callable[[str, str], PiGNNEstimator] = load_estimator
    columns: MoreColumns | None = None

    def __call__(self, shard: Shard | CollectionShard) -> Summary:
        """Computes and writes a part."""
        return self.finish(self.encode(shard))

    @property
    def estimator(self) -> PiGNNEstimator:
        """The model, loaded once in each process."""
        return load_cached(self.load, self.model, self.device)

    @property
    def identity(self) -> dict[str, Any]:
        """The inputs of the results: the model's content and the options."""
        files = sorted(path for path in Path(self.model).iterdir() if path.is_file())
        own = {"model", "folder", "strict", "load", "columns"}
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in own}
        model = {path.name: file_digest(path) for path in files}
        more = {} if self.columns is None else {"columns": self.columns.identity}
        return {**options, **more, "model": model, "softperm": __version__}

    def part(self, number: int) -> Path:
        """The file of a part."""
        return self.folder / f"part-{number:05}{self.ending}"

    def finished(self, number: int) -> Summary | None:
        """The summary of a part that an earlier run has written."""
        beside = self.part(number).with_suffix(".json")
        if not self.part(number).exists() or not beside.exists():
            return None
        return Summary.from_json(beside.read_text(encoding="utf-8"))

    def encode(self, shard: Shard | CollectionShard) -> Encoded:
        """Parses the rows of a shard, and computes the features of their vertices."""
        with one_torch_thread(kernels=True), warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("always", UserWarning)
            if isinstance(shard, CollectionShard):
                names, present = self._match_targets([shard.targets])
                targets = {name: shard.targets[own].tolist() for name, own in names.items()}
                summary = Summary(targets=present)
                content = (shard.number, shard.ids, {}, shard.graphs, targets, False, summary)
                encoded = Encoded(*content, names=names)
            else:
                encoded = self._read(shard)
            if self.skip_empty:
                encoded = encoded.without_empty()
            if encoded.graphs is not None:
                encoded = replace(encoded, graphs=self.estimator._encode(encoded.graphs))
        return self._summarised(encoded, [remark.message for remark in remarks])

    def _read(self, shard: Shard) -> Encoded:
        rows = list(shard.read())
        problems = {i: row.problem for i, row in enumerate(rows) if isinstance(row, Unreadable)}
        records = {i: row for i, row in enumerate(rows) if isinstance(row, Record)}
        graphs, unusable, summary = self._graphs(list(records.values()))
        places = list(records)
        problems |= {places[k]: problem for k, problem in unusable.items()}
        problems = {i: f"{rows[i].where}: {problem}" for i, problem in sorted(problems.items())}
        if problems:
            first = next(iter(problems.values()))
            if self.strict:
                raise ValueError(first)
            summary = replace(summary, problems=len(problems), first_problem=first)
        good = [record for i, record in records.items() if i not in problems]
        names, present = self._match_targets([record.targets for record in good])
        targets: dict[str, Sequence[Any]] = {
            name: [record.targets.get(own) for record in good] for name, own in names.items()
        }
        ids, summary = [row.id for row in rows], replace(summary, targets=present)
        return Encoded(shard.number, ids, problems, graphs, targets, shard.cells, summary, names)

    def _match_targets(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """The name in the input of each target of the model; and the targets of the input.

        The names are equal, unless the model has one target and the input has one. Then they may
        differ for classes; for numbers, one of the names must be that of a format or a dataset,
        because any number could be compared with any other.

        Returns:
            The names, none for vectors; and the first few targets of the input.
        """
        if self.vectors or not rows:
            return {}, ()
        present = list(dict.fromkeys(name for row in rows for name in row))
        wanted = self.estimator.target_names_
        if wanted and all(name in present for name in wanted):
            return {name: name for name in wanted}, tuple(present[:FEW_TARGETS])
        if TU_CLASS in present:  # which has another name
            present = [name for name in present if name != "target"]
        names: dict[str, str] = {}
        if _has_one_target(self.estimator) and len(present) == 1:
            model, (own,) = wanted[0] if wanted else "", present
            numbers = isinstance(self.estimator.task_, Regression)
            if not numbers or {model, own} & USUAL_NAMES:
                names = {model: own}
        return names, tuple(present[:FEW_TARGETS])

    def _graphs(self, records: list[Record]) -> tuple[Collection | None, dict[int, str], Summary]:
        """The usable graphs of some records, the problems of the others, and removed edges."""
        estimator = self.estimator
        texts = [record.graph for record in records if isinstance(record.graph, str)]
        if texts and len(texts) == len(records) and reads_smiles(estimator):
            return *encode_smiles(estimator.molecules_, texts, estimator.vocabulary_), Summary()
        graphs, removals, problems, names = [], [], {}, estimator.field_names
        for i, record in enumerate(records):
            try:
                graph, removed = canonical_graph(record, self.symmetrise, names)
                estimator.vocabulary_.check([graph])
            except ValueError as error:
                problems[i] = error.problem if isinstance(error, GraphError) else str(error)
                continue
            graphs.append(graph)
            removals.append(removed)
        total = Removed.total(removals)
        summary = Summary(loops=total.loops, duplicates=total.duplicates, changed=total.changed)
        return (estimator.vocabulary_.encode(graphs) if graphs else None), problems, summary

    def _summarised(self, encoded: Encoded, remarks: Sequence[Warning | str]) -> Encoded:
        """With the number of rows and the remarks in the summary."""
        good = [i for i in range(len(encoded.ids)) if i not in encoded.problems]
        summary = replace(encoded.summary, rows=len(encoded.ids))
        sizes = [] if encoded.graphs is None else encoded.graphs.sizes.tolist()
        empty = [good[k] for k, size in enumerate(sizes) if size == 0]
        if empty:
            first = f"graph {encoded.ids[empty[0]]}"
            summary = replace(summary, empty=len(empty), empty_first=first)
        for remark in remarks:
            if isinstance(remark, UnseenLabels):
                summary = replace(
                    summary,
                    unseen_graphs=len(remark.indices),
                    unseen_vertices=remark.vertices,
                    unseen_edges=remark.edges,
                    unseen_labels=remark.labels,
                    unseen_first=f"graph {encoded.ids[good[remark.indices[0]]]}",
                )
            else:
                summary = summary.plus(Summary(warnings=(str(remark),)))
        return replace(encoded, summary=summary)

    def finish(self, encoded: Encoded) -> Summary:
        """Computes the values of an encoded shard and writes the part."""
        part = self.part(encoded.number)
        compute = self._vectors if self.vectors else self._predictions
        with one_torch_thread(kernels=True):
            names, values = compute(encoded)
            kept = self._finite(values)
            if not kept.all():
                encoded = self._with_problems(encoded, kept)
                names, values = compute(encoded)
        write_atomically(part.with_suffix(".json"), json.dumps(asdict(encoded.summary)))
        write_part(part, Results(encoded.ids, encoded.problems, names, values))
        return encoded.summary

    def _finite(self, values: Sequence[np.ndarray] | np.ndarray) -> Bool[np.ndarray, " b"]:
        """Whether all values of a graph that the model computed are finite."""
        if isinstance(values, np.ndarray):
            return np.logical_and.reduce(np.isfinite(values), axis=1)
        own = values[: len(values) - (0 if self.columns is None else len(self.columns.names))]
        floats = [np.isfinite(column) for column in own if column.dtype.kind == "f"]
        return np.logical_and.reduce([np.ones(len(own[0]), dtype=bool), *floats])

    def _with_problems(self, encoded: Encoded, kept: Bool[np.ndarray, " b"]) -> Encoded:
        """The graphs that are kept; the rows of the others have a problem."""
        good = [i for i in range(len(encoded.ids)) if i not in encoded.problems]
        lost = [good[k] for k in np.flatnonzero(~kept)]
        not_finite = {i: f"graph {encoded.ids[i]}: its result {NOT_FINITE}" for i in lost}
        problems = dict(sorted({**encoded.problems, **not_finite}.items()))
        first = next(iter(problems.values()))
        if self.strict:
            raise ValueError(first)
        rows = np.flatnonzero(kept)
        assert encoded.graphs is not None
        return replace(
            encoded,
            problems=problems,
            graphs=encoded.graphs.select(torch.from_numpy(rows)) if len(rows) else None,
            targets={n: [c[k] for k in rows.tolist()] for n, c in encoded.targets.items()},
            summary=replace(encoded.summary, problems=len(problems), first_problem=first),
        )

    def _predictions(self, encoded: Encoded) -> tuple[list[str], list[np.ndarray]]:
        """The columns of predictions; also writes the score file of the part."""
        outputs = torch.empty(0, self.estimator.task_.outputs)
        if encoded.graphs is not None:
            index = torch.arange(len(encoded.graphs))
            outputs = self.estimator.outputs_of(encoded.graphs, index)
        if encoded.targets:
            content = {"cells": encoded.cells, "targets": encoded.targets}
            content["names"] = dict(encoded.names)
            with self.score_file(encoded.number).open("wb") as stream:
                np.savez(stream, outputs=outputs.numpy(), targets=json.dumps(content))
        columns = prediction_columns(self.estimator, outputs)
        if self.columns is not None:
            more = self.columns(encoded.graphs)
            columns |= dict(zip(self.columns.names, more, strict=True))
        return list(columns), list(columns.values())

    def score_file(self, number: int) -> Path:
        """The file with outputs and targets of a part."""
        return self.folder / f"part-{number:05}.score.npz"

    def _vectors(self, encoded: Encoded) -> tuple[list[str], Float[np.ndarray, "b F"]]:
        names = self.estimator.get_feature_names_out()
        values = np.empty((0, len(names)), np.float32)
        if encoded.graphs is not None:
            values = self.estimator.vectors_of(encoded.graphs)
        if self.compact:
            weights = compact_weights(self.estimator)
            names, values = (
                names[weights > 0],
                (values * weights.astype(np.float32))[:, weights > 0],
            )
        with np.errstate(over="ignore"):  # what is too large is infinite, and a problem of its row
            return names.tolist(), values.astype(np.float16) if self.half else values

    @property
    def names(self) -> list[str]:
        """The names of the values."""
        nothing = Encoded(0, [], {}, None, {}, False, Summary())
        return self._vectors(nothing)[0] if self.vectors else self._predictions(nothing)[0]


def compact_weights(estimator: PiGNNEstimator) -> Float[np.ndarray, " F"]:
    """Factors of the entries of a vector that keep distances without the lower halves of matrices.

    DᵀAD is symmetric: √2 times its entry (i, j) counts for (j, i) too. The factor is √2 above the
    diagonal, 0 below, and 1 for everything that is not part of a symmetric matrix.
    """
    config = getattr(estimator.model_, "config", None)
    if not isinstance(config, ModelConfig):
        raise ValueError("compact vectors are for π-GNN, whose aligned matrices are symmetric")
    p, length = config.latent_vertices, len(estimator.get_feature_names_out())
    i, j = np.indices((p, p))
    square = np.select([i < j, i == j], [np.sqrt(2), 1.0]).ravel()  # (P · P,)
    powers = np.tile(square, config.powers)
    edges = np.concatenate(
        [np.repeat(square, count) for count in (config.edge_width, config.distance_width)]
    )  # and distances
    vertices = length // config.permutation_heads - len(powers) - len(edges)
    return np.tile(np.concatenate([powers, np.ones(vertices), edges]), config.permutation_heads)


def prediction_columns(
    estimator: PiGNNEstimator, outputs: Float[torch.Tensor, "b C"]
) -> dict[str, np.ndarray]:
    """Predictions, and probabilities of classes, by the name of their column."""
    targets, predictions = estimator.target_names_, estimator.decode(outputs)
    columns = _named("prediction", predictions, targets)
    if not hasattr(estimator, "classes_"):
        return columns
    chances = estimator.probabilities(outputs)  # (b, classes), or (b, T)
    endings = estimator.classes_.tolist() if predictions.ndim == 1 else targets
    return columns | _named("probability", chances, endings)


def _named(name: str, values: np.ndarray, endings: Sequence[object]) -> dict[str, np.ndarray]:
    """One column of that name, or several, which end in names or else in numbers."""
    if values.ndim == 1 or values.shape[1] == 1:
        return {name: values.reshape(len(values))}
    known = endings if len(endings) == values.shape[1] else range(values.shape[1])
    return {f"{name}_{end}": column for end, column in zip(known, values.T, strict=True)}


def rows_of_part(worker: ShardWorker) -> int:
    """The number of rows of a shard: fewer where vectors are long, so that memory is bounded."""
    if not worker.vectors:
        return ROWS
    length = len(worker.estimator.get_feature_names_out())
    return max(64, min(ROWS, PART_BYTES // (4 * length)))


def run_shards(
    worker: ShardWorker,
    open_shards: Callable[[], Generator[Shard | CollectionShard]],
    report: Report = silent,
    processes: int | None = None,
) -> Generator[tuple[int, Summary]]:
    """Computes all parts that are not there yet, on this machine.

    On a CPU each process, this one included, computes whole parts. For a GPU, other processes read
    graphs and compute features while this one computes.

    Args:
        worker: what to do with a shard.
        open_shards: opens the input.
        report: receives the progress.
        processes: number of processes; by default one for each core.

    Yields:
        The number and the summary of each part, in order.
    """
    shares: dict[int, float] = {}
    with closing(open_shards()) as shards:
        first = list(islice(shards, FEW))
        processes = cores() if processes is None else processes
        processes = 1 if len(first) < FEW else processes

        def unfinished() -> Iterator[Shard | CollectionShard]:
            for shard in chain(first, shards):
                shares[shard.number] = shard.share
                if worker.finished(shard.number) is None:
                    yield shard

        if worker.device == "cpu":
            compute = lambda shard: (shard.number, worker(shard))  # noqa: E731
            results = map_in_processes(compute, unfinished(), processes, helping=True)
        else:
            reader = replace(worker, device="cpu")  # reading needs no copy of the model on the GPU
            encoded = map_in_processes(reader.encode, unfinished(), processes)
            results = ((each.number, worker.finish(each)) for each in encoded)
        yield from _in_order(worker, results, shares, report)


def _in_order(
    worker: ShardWorker,
    results: Iterator[tuple[int, Summary]],
    shares: dict[int, float],
    report: Report,
) -> Generator[tuple[int, Summary]]:
    """The parts that were there and those computed now; reports the rate of the latter."""
    activity = "embedding" if worker.vectors else "predicting"
    began, rows, expected = time.monotonic(), 0, 0
    report(activity, 0, 1)
    for number, summary in results:
        for before in range(expected, number):
            yield before, _there(worker, before)
        rows += summary.rows
        rate = rows / max(time.monotonic() - began, 1e-9)
        report(activity, shares[number], 1, f"{counted(rows, 'graph')}, {rate:,.0f} a second")
        yield number, summary
        expected = number + 1
    for before in range(expected, len(shares)):
        yield before, _there(worker, before)


def _there(worker: ShardWorker, number: int) -> Summary:
    summary = worker.finished(number)
    assert summary is not None, f"part {number} was skipped because it is there"
    return summary


def write_table(
    worker: ShardWorker,
    open_shards: Callable[[], Generator[Shard | CollectionShard]],
    out: Path,
    identity: dict[str, Any],
    engine: Callable[..., Generator[tuple[int, Summary]]] = run_shards,
    report: Report = silent,
) -> tuple[Summary, dict[str, Any] | str]:
    """Computes a table in parts and, unless ``out`` is their folder, joins them to one file.

    A command that was killed continues after the last whole parts; the result is the same.

    Args:
        worker: what to do with a shard; its folder holds the parts until they are joined.
        open_shards: opens the input.
        out: the file to write, or the folder of the parts.
        identity: what determines the result; parts of another identity are not used.
        engine: where to compute; see :func:`run_shards`.
        report: receives the progress.

    Returns:
        The summary of all rows; and the score where the input has the model's targets, or in words
        why there is none.

    Raises:
        ValueError: no row has a result, or the folder holds another table.
    """
    folder, summary, count = worker.folder, Summary(), 0
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with exclusive(folder / "run", wait=None):
            remove_abandoned(folder)
            _check_identity(folder, identity, keep=folder == out)
            for _, part in engine(worker, open_shards, report):
                summary, count = summary.plus(part), count + 1
            summary.warn()
            if summary.problems == summary.rows:
                _remove_parts(folder)
                raise ValueError(summary.first_problem or f"{identity['data']} holds no graphs")
            score = {} if worker.vectors else score_parts(worker, count, summary)
            parts = [worker.part(number) for number in range(count)]
            if folder != out:
                join_parts(parts, worker.names, out)
                _remove_parts(folder)
                return summary, score
            content = {**identity, "parts": [part.name for part in parts], **asdict(summary)}
            write_atomically(folder / "manifest.json", json.dumps(content, indent=1))
    except BlockingIOError:
        raise ValueError(f"another command is writing {out}: wait for it to end") from None
    return summary, score


def _remove_parts(folder: Path) -> None:
    """Removes what a run has written, and the folder if nothing else is in it."""
    for path in folder.iterdir():
        if path.name.startswith(("part-", "run.")):
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _check_identity(folder: Path, identity: dict[str, Any], keep: bool) -> None:
    """Removes the parts of another command, or refuses to if they are a result of their own."""
    marker, text = folder / "run.json", json.dumps(identity, sort_keys=True)
    parts = [path for path in folder.iterdir() if path.name.startswith("part-")]
    if parts and (not marker.exists() or marker.read_text(encoding="utf-8") != text):
        if keep:
            raise ValueError(
                f"{folder} holds the results of another command: choose another folder"
            )
        for path in parts:
            path.unlink()
    others = [path.name for path in folder.iterdir() if not path.name.startswith(("part-", "run."))]
    if keep and others and not marker.exists():
        raise ValueError(
            f"{folder} holds other files, such as {min(others)}: choose a new or empty folder"
        )
    write_atomically(marker, text)


def _has_one_target(estimator: PiGNNEstimator) -> bool:
    return isinstance(estimator.task_, Classification) or estimator.task_.outputs == 1


def score_parts(worker: ShardWorker, count: int, summary: Summary) -> dict[str, Any] | str:
    """The model's score where the input has its targets, or why there is none.

    Of an input without targets there is nothing to say: the result is empty.
    """
    estimator, present = worker.estimator, summary.targets
    files = [worker.score_file(number) for number in range(count)]
    files = [file for file in files if file.exists()]
    if not files:
        return _no_score(estimator, present) if present else {}
    outputs, names, cells = [], {}, False
    values: dict[str, list[Any]] = {}
    for file in files:
        with np.load(file) as content:
            outputs.append(content["outputs"])
            read = json.loads(str(content["targets"]))
        if names and read["names"] != names:
            return _no_score(estimator, present)
        names, cells = read["names"], read["cells"]
        for name, more in read["targets"].items():
            values.setdefault(name, []).extend(more)
        column = next(iter(values.values()))
        if len(column) * len(values) > SCORED_VALUES:
            return f"more than {SCORED_VALUES:,} targets; compare the predictions with them"
    if sum(map(len, outputs)) < summary.rows - summary.problems:
        return f"{_predicted(estimator)}, which some graphs do not have"
    columns = [as_column(parse_cells(c) if cells else c) for c in values.values()]
    y = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    known = ~np.logical_and.reduce([missing_values(column) for column in columns])
    if not known.any():
        return f"the target {', '.join(names.values())} is missing for all graphs"
    try:
        targets = estimator._encode_targets(y[known], int(known.sum()))
    except ValueError as problem:
        same = all(name == own for name, own in names.items())
        return str(problem) if same else _no_score(estimator, present)
    value = estimator.task_.score(torch.from_numpy(np.concatenate(outputs)[known]), targets)
    better = "higher" if estimator.task_.higher_is_better else "lower"
    score_row = {"metric": estimator.task_.metric, "better": better, "score": value}
    other = [own for name, own in names.items() if name != own]
    compared = {"scored_target": other[0]} if other else {}
    return {**score_row, "scored_graphs": len(targets), **compared}


def _no_score(estimator: PiGNNEstimator, present: Sequence[str]) -> str:
    """Why predictions cannot be compared with the targets of the input."""
    one = "; a target of the same name is scored" if estimator.target_names_ else ""
    return f"{_predicted(estimator)}, and the graphs have {', '.join(present)}{one}"


def _predicted(estimator: PiGNNEstimator) -> str:
    names = shortened(estimator.target_names_, FEW_TARGETS) or "targets without names"
    return f"the model predicts {names}"


@lru_cache(maxsize=2)  # one on the CPU to read graphs, one on a GPU
def load_cached(
    load: Callable[[str, str], PiGNNEstimator], model: str, device: str
) -> PiGNNEstimator:
    """The estimator of a model folder, cached in this process."""
    return load(model, device)
