"""Indexes built from the shards of a file, and searched by shares, on one machine or on many.

Workers parse shards and pack their graphs. One process gives the labels common codes, computes
fingerprints and writes a file for each :data:`softperm.search.index.FULL` graphs, so its memory
does not grow with the number of graphs, except for their names. A query is answered for shares of
these files, and the hits are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from softperm.data.canonical import Removed, warn_empty, warn_removed
from softperm.data.formats.shards import Shard, canonical_graph
from softperm.data.formats.tables import (
    Record,
    Target,
    Unreadable,
    as_column,
    check_share,
    parse_cells,
)
from softperm.distance.costs import Codes, EditCosts
from softperm.distance.pairs import Packed, pack
from softperm.errors import GraphError, errors_about_graph
from softperm.parallel import batches, map_on_ray
from softperm.progress import Report, silent
from softperm.search import index as index_module
from softperm.search import storage
from softperm.search.index import SLACK, GraphIndex, SearchResult, unique_ids

QUERIES = 16  # of a task


@dataclass(frozen=True, eq=False)
class Part:
    """The graphs of a shard as an index stores them, with codes of their own.

    Args:
        packed: the graphs.
        codes: their codes.
        ids: their names.
        targets: the other columns of each graph's row.
        cells: whether these are the text of cells.
        problems: place and reason of each row that cannot be read.
        where: the place of the first graph.
        removed: what the graphs have and the index does not, all together.
        share: of the whole file, up to the end of this shard.
    """

    packed: Packed
    codes: Codes
    ids: list[str]
    targets: list[dict[str, Target]]
    cells: bool
    problems: list[str]
    where: str
    removed: Removed
    share: float


@dataclass(frozen=True)
class PartReader:
    """Parses shards; a function that can be pickled for other processes and machines.

    Args:
        costs: of the index, which decide whether labels are compared.
        symmetrise: whether to treat directed edges as undirected.
        skip_empty: whether to leave out graphs without vertices.
        strict: whether a row that cannot be read is an error; otherwise it is left out.
    """

    costs: EditCosts
    symmetrise: bool = False
    skip_empty: bool = False
    strict: bool = False

    def __call__(self, shard: Shard) -> Part:
        """The part of a shard."""
        records: list[Record] = []
        graphs, removed, problems = [], [], []
        for record in shard.read():
            try:
                if isinstance(record, Unreadable):
                    raise record.error(len(graphs))
                with errors_about_graph(len(graphs), record.where):
                    graph, removals = canonical_graph(record, self.symmetrise)
            except GraphError as error:
                if self.strict:
                    raise
                problems.append(str(error))
                continue
            if graph.num_nodes or not self.skip_empty:
                graphs.append(graph)
                records.append(record)
                removed.append(removals)
        codes = self.costs.codes(graphs)
        try:
            packed = storage.compact(pack(graphs, codes))
        except GraphError as error:
            raise GraphError(error.index, error.problem, records[error.index].where) from None
        hidden = {"target"} if shard.class_targets else set()  # another name of graph_label
        return Part(
            packed,
            codes,
            [record.id for record in records],
            [{n: v for n, v in r.targets.items() if n not in hidden} for r in records],
            shard.cells,
            problems,
            records[0].where if records else "",
            replace(Removed.total(removed), codes=None),  # numbers are not compared
            shard.share,
        )


def build_from_parts(
    parts: Iterable[Part],
    folder: Path,
    costs: EditCosts,
    add_to: GraphIndex | None = None,
    report: Report = silent,
) -> tuple[GraphIndex, int, list[str]]:
    """Writes the files of an index as the parts come; :meth:`GraphIndex.save` completes it.

    Args:
        parts: of a file, in order.
        folder: of the index.
        costs: as for :meth:`GraphIndex.build`.
        add_to: the index of this folder to add to. Graphs whose name it has are left out.
        report: receives the progress.

    Returns:
        The index, the number of graphs that it had, and the problems of rows that were left out.

    Raises:
        ValueError: graphs do not fit together, or too many rows cannot be read.
    """
    builder = _Builder(folder, costs, add_to, {}, frozenset(add_to.ids if add_to else ()))
    waiting: list[Part] = []
    removed, sizes, names, problems = [], [], [], []
    for part in parts:
        waiting.append(part)
        problems += part.problems
        removed.append(part.removed)
        sizes += np.diff(part.packed.ptr).tolist()
        names += part.ids
        if sum(len(each.ids) for each in waiting) >= index_module.FULL:
            builder.write(waiting)
            waiting = []
        report("reading graphs", part.share, 1)
    if waiting:
        builder.write(waiting)
    check_share(problems, len(names) + len(problems))
    warn_removed(Removed.total(removed))
    warn_empty(sizes, names)
    if builder.index is None:
        raise ValueError("the file holds no graphs to index; expected at least one")
    return builder.index, builder.left_out, problems


@dataclass
class _Builder:
    """Adds parts to an index, one file at a time."""

    folder: Path
    costs: EditCosts
    index: GraphIndex | None
    seen: dict[str, int]
    known: frozenset[str]
    left_out: int = 0

    def write(self, parts: Sequence[Part]) -> None:
        """Writes the graphs of some parts to a file."""
        fresh = self.index is None
        codes = self.index.codes if self.index else Codes(
            labels=any(part.codes.labels for part in parts),
            edge_labels=any(part.codes.edge_labels for part in parts),
        )  # fmt: skip
        packed = storage.join_packed([_with_codes(part, codes) for part in parts])
        if not packed.ptr.size > 1:
            return
        ids = unique_ids((name for part in parts for name in part.ids), self.seen)
        columns = self._columns(parts)
        if self.index is None:
            self.index = GraphIndex.empty(packed, codes, self.costs)
        present = np.fromiter((name in self.known for name in ids), bool, len(ids))
        self.left_out += int(present.sum())
        if fresh or not present.all():
            self.index.append(packed, ids, columns, unique=True, without=present)
            self.index.map_to(self.folder)

    def _columns(self, parts: Sequence[Part]) -> dict[str, list]:
        """The metadata of some parts, of the types that the index has for them."""
        rows = [row for part in parts for row in part.targets]
        columns = {}
        for name in dict.fromkeys(name for row in rows for name in row):
            values = [row.get(name) for row in rows]
            words = self.index is not None and self.index.holds_text(name)
            if words:
                columns[name] = ["" if value is None else str(value).strip() for value in values]
                continue
            if parts[0].cells:
                values = parse_cells([str(value) for value in values])
            columns[name] = as_column(values).tolist()
            text = next((value for value in columns[name] if isinstance(value, str)), None)
            if self.index is not None and name in self.index.columns and text is not None:
                raise ValueError(
                    f"column {name!r} holds numbers in the first graphs of the index and text such "
                    f"as {text!r} in others: expected values of one kind"
                )
        return columns


def _with_codes(part: Part, codes: Codes) -> Packed:
    """The graphs of a part, recoded; new labels are added to ``codes``."""
    packed = part.packed
    for kind, own, other, rows in (
        ("vertex", part.codes.labels, codes.labels, packed.label),
        ("edge", part.codes.edge_labels, codes.edge_labels, packed.kind),
    ):
        if own != other and rows.size:
            raise ValueError(
                f"{part.where}: it or a graph after it has {'' if own else 'no '}{kind} labels, "
                "unlike the graphs before; expected labels in all graphs or in none"
            )
    label = packed.label
    if codes.labels and label.size:
        names = [codes.vertex.setdefault(name, len(codes.vertex)) for name in part.codes.vertex]
        label = np.array(names)[label]
    kinds = [codes.edge.setdefault(kind, len(codes.edge)) for kind in part.codes.edge]
    return packed._replace(label=label, kind=np.array(kinds)[packed.kind])


@dataclass(frozen=True)
class Question:
    """The search to run for each query: the k nearest graphs, or all within a radius."""

    k: int = 10
    radius: float | None = None
    where: str | None = None
    time_limit: float | None = None

    def __call__(self, index: GraphIndex, graph: Any) -> SearchResult:
        """Searches an index for one query."""
        options: dict[str, Any] = {"where": self.where, "time_limit": self.time_limit}
        if self.radius is None:
            return index.nearest(graph, self.k, **options)
        return index.within(graph, self.radius, **options)

    def merge(self, results: Sequence[SearchResult]) -> SearchResult:
        """The hits in the whole index, from the hits in each of its shares."""
        hits = sorted((hit for result in results for hit in result), key=lambda hit: hit.distance)
        undecided = [hit for result in results for hit in result.undecided]
        if self.radius is None:
            hits = hits[: self.k]
            last = hits[-1].distance if len(hits) == self.k else np.inf
            undecided = [hit for hit in undecided if hit.lower_bound < last - SLACK]
        undecided.sort(key=lambda hit: hit.lower_bound)
        return SearchResult(tuple(hits), tuple(undecided), sum(r.visited for r in results))


@dataclass(frozen=True)
class Searcher:
    """Answers queries for a share of an index; a function that can be pickled.

    Args:
        folder: of the index, which has the same path on all machines.
        ask: the search to run.
    """

    folder: Path
    ask: Question

    def __call__(self, task: tuple[tuple[int, int], Sequence[Any]]) -> list[SearchResult]:
        """The answers of a share of the index to some queries."""
        share, graphs = task
        index = _open(self.folder, share, (self.folder / storage.MANIFEST).stat().st_mtime_ns)
        return [self.ask(index, graph) for graph in graphs]


@lru_cache(maxsize=4)
def _open(folder: Path, share: tuple[int, int], _: int) -> GraphIndex:
    return GraphIndex.open(folder, share=share)


def search_shares(
    folder: Path,
    graphs: Iterable[Any],
    ask: Question,
    shares: int | None = None,
    over: Callable[..., Iterator[Any]] = map_on_ray,
) -> Iterator[SearchResult]:
    """The answers to queries, each from all shares of an index.

    Args:
        folder: of the index; it must have the same path on all machines.
        graphs: the queries.
        ask: the search to run.
        shares: into how many shares to divide the files of the index, and number of tasks at the
            same time; by default a share for each file, and a task for each core.
        over: a function like :func:`softperm.parallel.map_on_ray`.

    Yields:
        The answer to each query, in order.
    """
    files = len(storage.read_manifest(folder)["segments"])
    count = max(1, min(shares or files, files))
    tasks = (
        ((number, count), some) for some in batches(graphs, QUERIES) for number in range(count)
    )
    answers = over(Searcher(folder.resolve(), ask), tasks, shares)
    while of_shares := list(islice(answers, count)):
        for results in zip(*of_shares, strict=True):
            yield ask.merge(results)
