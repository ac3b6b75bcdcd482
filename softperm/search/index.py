"""An index of graphs that finds the nearest ones by exact distance, with proof."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from softperm.data.graphs import as_graph, as_graphs
from softperm.distance.branch_and_bound import round_down, round_up, search_briefly, value_above
from softperm.distance.costs import Codes, EditCosts, Model
from softperm.distance.exact import LARGEST, check_time_limit, solve
from softperm.distance.pairs import Packed, pack, pair_of
from softperm.errors import GraphError, counted
from softperm.files import exclusive
from softperm.jit import kernel
from softperm.pyg import Data
from softperm.search import storage
from softperm.search.fingerprint import Layout, choose_layout, fingerprints, lower_bounds, prices
from softperm.search.storage import Segment, Text
from softperm.search.where import evaluate, names

GLANCE = 300  # node bounds of a first search without probing
EFFORT = 200_000  # node bounds times squared vertices of a first search with probing
CHUNK_WORK = 1 << 15  # candidates times squared vertices between two looks at the clock
SEGMENTS = 8  # more segments are merged when the index is saved
FULL = 1 << 17  # graphs of a segment that is not merged with others
WARM_UP = 12  # vertices up to which a graph is searched to compile the kernels
SLACK = 1e-9  # of comparisons between bounds and costs


@dataclass(frozen=True, eq=False)
class Hit:
    """A graph of the index and its distance to the query.

    Args:
        id: identifier of the graph.
        distance: the least distance found; the distance itself if ``proven``. Infinite if no
            permutation was found in time.
        lower_bound: a proven lower bound of the distance.
        proven: whether the distance is exact.
        matching: (M, 2) pairs of a vertex of the query and the vertex it is matched with.
    """

    id: Any
    distance: float
    lower_bound: float
    proven: bool
    matching: Int[np.ndarray, "M 2"]


@dataclass(frozen=True)
class SearchResult:
    """The answer to a query; iterating over it gives the hits.

    Args:
        hits: graphs whose distance is proven, the nearest first.
        undecided: graphs that may belong to the answer but were not decided in time, with the
            interval of their distance; empty if there is no time limit.
        visited: number of graphs for which the fingerprint alone did not suffice.
    """

    hits: tuple[Hit, ...]
    undecided: tuple[Hit, ...]
    visited: int

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


class GraphIndex:
    """Finds the graphs of a collection that are nearest to a query, with proof.

    A query is answered in three steps: fingerprints give a lower bound of every distance, an
    assignment problem a sharper one for the graphs that remain, and branch and bound, stopped at
    the threshold, decides.

    The distance is an edit distance (:class:`softperm.distance.EditCosts`), by default the number
    of edges that differ: vertices are matched with vertices of equal label or with none, an edge
    without a match costs 1, and so does one that is matched with an edge of another label. Labels
    are compared if the graphs have them.

    Create an index with :meth:`build` or :meth:`open`.

    >>> import networkx as nx
    >>> index = GraphIndex.build([nx.path_graph(n) for n in range(2, 8)], ids=list("abcdef"))
    >>> [(hit.id, hit.distance) for hit in index.nearest(nx.cycle_graph(5), k=2)]
    [('d', 1.0), ('c', 2.0)]
    """

    def __init__(
        self,
        costs: EditCosts,
        codes: Codes,
        layout: Layout,
        known_edge_labels: int,
        segments: list[Segment],
        folder: Path | None,
    ) -> None:
        self.costs = costs
        self.codes, self._layout, self._known_edge_labels = codes, layout, known_edge_labels
        self._segments, self._folder = segments, folder
        self._saved: dict[str, Any] | None = None  # the manifest when the index was opened or saved
        self._compiled = False  # whether a query has loaded the compiled kernels
        self._known_rows: tuple[list[Segment], dict[Any, int]] | None = None
        self._known_sums: tuple[list[Segment], dict[Any, int]] | None = None

    @classmethod
    def build(
        cls,
        graphs: Iterable[Any],
        ids: Sequence[Any] | None = None,
        metadata: Mapping[str, Sequence[Any]] | None = None,
        *,
        costs: EditCosts | None = None,
        canonical: bool = False,
    ) -> GraphIndex:
        """Builds an index in memory; :meth:`save` writes it to disk.

        Args:
            graphs: the graphs, all of one kind (see :func:`softperm.data.graphs.as_graphs`).
            ids: an identifier of each graph, a string or a whole number; 0, 1, … by default.
            metadata: columns of numbers or strings, one value for each graph, for conditions.
            costs: the costs of the distance, with equal costs of insertion and deletion.
            canonical: whether the graphs come from ``as_graphs`` or a reader of this package, and
                need not be checked again.
        """
        costs = costs or EditCosts.edges()
        _check_symmetric(costs)
        listed = list(graphs) if canonical else as_graphs(graphs)
        codes = costs.codes(listed)
        packed = pack(listed, codes)
        index = cls.empty(packed, codes, costs)
        index.append(packed, ids, metadata or {})
        return index

    @classmethod
    def empty(cls, sample: Packed, codes: Codes, costs: EditCosts) -> GraphIndex:
        """An index without graphs, whose fingerprints are chosen for a sample of graphs.

        Args:
            sample: the graphs, from which labels and edges have the given codes.
            codes: codes of labels and of kinds of edges.
            costs: as for :meth:`build`.
        """
        _, edge_label = codes.kinds()
        layout = choose_layout(sample, edge_label, prices(costs.model(codes), edge_label))
        return cls(costs, codes, layout, int(edge_label.max(initial=0)) + 1, [], None)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike,
        *,
        verify: bool | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> GraphIndex:
        """Opens a saved index; its graphs are mapped into memory and read when needed.

        Args:
            folder: the folder of the index.
            verify: whether to read all files and compare their checksums; by default for indexes of
                up to 64 MiB.
            share: which of how many shares of the files to open, for reading only; all by default.

        Raises:
            ValueError: there is no index, or a file is damaged.
        """
        path = Path(folder)
        for attempt in range(3):
            about = storage.read_manifest(path)
            entries = about["segments"][share[0] :: share[1]]
            size = sum(entry["bytes"] for entry in entries)
            check = size <= storage.CHECKED_BYTES if verify is None else verify
            try:
                segments = [storage.read_segment(path, entry, check) for entry in entries]
                break
            except FileNotFoundError as error:  # another process has merged segments meanwhile
                if attempt == 2:
                    raise ValueError(
                        f"{error.filename} is missing: build the index again"
                    ) from None
        codes = Codes(labels=about["labels"] is not None, edge_labels=about["edge_labels"])
        codes.vertex = {_value(v): i for i, v in enumerate(about["labels"] or [])}
        codes.edge = {(_value(name), weight): i for i, (name, weight) in enumerate(about["kinds"])}
        layout = Layout(
            np.array(about["column"], np.int16).reshape(about["column_shape"]),
            np.array(about["vertex_column"], np.int16),
            np.array(about["start"], np.int64),
        )
        costs = EditCosts(**{k: math.inf if v is None else v for k, v in about["costs"].items()})
        whole = share[1] == 1
        known = about["known_edge_labels"]
        index = cls(costs, codes, layout, known, segments, path if whole else None)
        index._saved = about if whole else None
        return index

    def save(self, folder: str | os.PathLike | None = None) -> None:
        """Saves the index; other processes see the old index or the new one, never a mixture.

        Args:
            folder: where to save it; by default where it was opened or last saved. Only what is new
                since then is written.

        Raises:
            ValueError: the folder holds another index, another process has saved to it since this
                index was opened or saved, or there is no folder to save to.
        """
        if folder is None and self._folder is None:
            raise ValueError("the index has not been saved before; pass a folder")
        path = Path(folder) if folder is not None else self._folder
        assert path is not None
        path.mkdir(parents=True, exist_ok=True)
        with exclusive(path / storage.MANIFEST):
            elsewhere = self._folder is None or path.resolve() != self._folder.resolve()
            if elsewhere and (path / storage.MANIFEST).exists():
                raise ValueError(f"{path} already holds an index; choose another folder")
            saved = (path / storage.MANIFEST).exists() or self._saved is not None
            if not elsewhere and saved and storage.read_manifest(path) != self._saved:
                raise ValueError(
                    f"{path} was changed by another process: open the index again and repeat the "
                    "change"
                )
            self._segments = [
                storage.write_segment(path, s) if elsewhere or s.file is None else s
                for s in _merged(self._segments)
            ]
            storage.write_manifest(path, self._about(), self._segments)
            self._folder = path
            self._saved = storage.read_manifest(path)
            used = {segment.file for segment in self._segments}
            for file in path.glob("*.safetensors"):
                if storage.is_segment(file) and file.name not in used:
                    file.unlink()

    def map_to(self, folder: Path) -> None:
        """Moves graphs from memory to files of a folder; :meth:`save` commits them.

        Args:
            folder: the index's own, or a new one.
        """
        self._segments = [storage.mapped(folder, segment) for segment in self._segments]
        self._folder = folder

    def add(
        self,
        graphs: Iterable[Any],
        ids: Sequence[Any] | None = None,
        metadata: Mapping[str, Sequence[Any]] | None = None,
        *,
        canonical: bool = False,
    ) -> None:
        """Adds graphs in memory; :meth:`save` commits them.

        Args:
            graphs: the graphs.
            ids: an identifier of each graph that is not in the index; by default the numbers that
                follow the largest one.
            metadata: the columns that the index has.
            canonical: as for :meth:`build`.
        """
        listed = list(graphs) if canonical else as_graphs(graphs)
        missing = self.codes.labels and any("label" not in g and g.num_nodes for g in listed)
        if missing:
            raise ValueError("the graphs of the index have vertex labels; these have none")
        self.append(pack(listed, self.codes), ids, metadata or {})

    def remove(self, ids: Iterable[Any]) -> None:
        """Removes graphs in memory; :meth:`save` commits it.

        Raises:
            ValueError: the index has no graph with one of the identifiers.
        """
        if isinstance(ids, str):
            raise ValueError(f"ids is the string {ids!r}; expected a list, such as [{ids!r}]")
        wanted = set(ids)
        segments = []
        for segment in self._segments:
            stored = _ids(segment)
            rows = np.fromiter((i in wanted for i in stored), bool, len(stored)) & ~segment.removed
            wanted -= {stored[k] for k in np.flatnonzero(rows)}
            segments.append(segment.removing(rows))
        if wanted:
            raise ValueError(f"the index has no graph {sorted(map(repr, wanted))[0]}")
        self._segments = segments

    def __len__(self) -> int:
        return sum(int((~segment.removed).sum()) for segment in self._segments)

    def __contains__(self, identifier: Any) -> bool:
        return identifier in self._rows()

    def graph(self, identifier: Any) -> Data:
        """The graph of an identifier, with the labels and weights that the index compares.

        Raises:
            ValueError: the index has no such graph.
        """
        row = self._rows().get(identifier)
        if row is not None:
            first = np.append(0, np.cumsum([len(segment) for segment in self._segments]))
            number = int(np.searchsorted(first, row, side="right")) - 1
            return self._unpack(self._segments[number], row - int(first[number]))
        raise ValueError(f"the index has no graph {identifier!r}")

    def _unpack(self, segment: Segment, row: int) -> Data:
        packed = segment.packed
        vertices, edges = (
            slice(int(p[row]), int(p[row + 1])) for p in (packed.ptr, packed.edge_ptr)
        )
        u, v = packed.ends[edges].astype(np.int64).T
        order = np.lexsort((np.append(v, u), np.append(u, v)))
        kinds = list(self.codes.edge)
        listed = [kinds[k] for k in np.append(packed.kind[edges], packed.kind[edges])[order]]
        graph = Data(
            edge_index=torch.from_numpy(np.stack([np.append(u, v), np.append(v, u)])[:, order]),
            num_nodes=vertices.stop - vertices.start,
        )
        if self.codes.labels:
            names = list(self.codes.vertex)
            graph.label = [names[code] for code in packed.label[vertices]]
        if self.codes.edge_labels:
            graph.edge_label = [name for name, _ in listed]
        if any(weight != 1.0 for _, weight in listed):
            graph.edge_weight = torch.tensor([weight for _, weight in listed])
        return graph

    def _rows(self) -> dict[Any, int]:
        """The place of each graph in the segments, one behind the other, by identifier."""
        if self._known_rows is None or self._known_rows[0] is not self._segments:
            stored = [i for segment in self._segments for i in _ids(segment).tolist()]
            removed = [r for segment in self._segments for r in segment.removed.tolist()]
            places = enumerate(zip(stored, removed, strict=True))
            rows = {name: row for row, (name, gone) in places if not gone}
            self._known_rows = (self._segments, rows)
        return self._known_rows[1]

    @property
    def checksums(self) -> dict[Any, int]:
        """A checksum of each graph by identifier: of its labels, edges and weights."""
        if self._known_sums is None or self._known_sums[0] is not self._segments:
            names = list(self.codes.vertex) if self.codes.labels else []
            kinds = list(self.codes.edge)
            sums = [storage.checksums(s.packed, names, kinds).tolist() for s in self._segments]
            listed = [checksum for some in sums for checksum in some]
            sums_by_id = {name: listed[row] for name, row in self._rows().items()}
            self._known_sums = (self._segments, sums_by_id)
        return self._known_sums[1]

    @property
    def ids(self) -> list[Any]:
        """Identifiers of all graphs."""
        return list(self._rows())

    def ids_where(self, condition: str) -> list[Any]:
        """Identifiers of the graphs that fulfil a condition on metadata."""
        fulfilled = self._fulfil(condition)
        return [name for name, row in self._rows().items() if fulfilled[row]]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the metadata columns."""
        return tuple(self._segments[0].columns) if self._segments else ()

    def holds_text(self, name: str) -> bool:
        """Whether a metadata column holds strings."""
        return bool(self._segments) and isinstance(self._segments[0].columns.get(name), Text)

    def within(
        self,
        graph: Any,
        radius: float | int,
        *,
        where: str | None = None,
        time_limit: float | None = None,
    ) -> SearchResult:
        """All graphs up to a distance from the query.

        Args:
            graph: the query.
            radius: the largest distance.
            where: a condition on metadata, such as ``"mass < 300"``.
            time_limit: seconds for the whole query; no limit by default.
        """
        if not radius >= 0:
            raise ValueError(f"radius is {radius}; expected a distance, zero or more")
        radius = float(radius)
        query = self._query(graph, where, time_limit)
        query.search_briefly(query.open_rows(radius), radius)
        waiting = query.open_rows(radius)
        for position, row in enumerate(waiting.tolist()):
            query.search_long(row, radius, waiting.size - position)
        return query.result(np.flatnonzero(query.lower <= radius + SLACK))

    def nearest(
        self,
        graph: Any,
        k: int = 10,
        *,
        where: str | None = None,
        time_limit: float | None = None,
    ) -> SearchResult:
        """The graphs nearest to the query.

        If several graphs are at the distance of the last hit, the choice among them is arbitrary
        but deterministic.

        Args:
            graph: the query.
            k: number of hits; fewer if the index has fewer graphs.
            where: a condition on metadata, such as ``"mass < 300"``.
            time_limit: seconds for the whole query; no limit by default.
        """
        if k < 1:
            raise ValueError(f"k is {k}; expected at least 1")
        return self._nearest(self._query(graph, where, time_limit), k)

    def nearest_among(
        self, graph: Any, ids: Iterable[Any], k: int = 10, *, time_limit: float | None = None
    ) -> SearchResult:
        """The nearest of some graphs of the index; see :meth:`nearest`.

        Args:
            graph: the query.
            ids: identifiers of the graphs.
            k: number of hits.
            time_limit: seconds for the whole query; no limit by default.
        """
        query, known = self._query(graph, None, time_limit), self._rows()
        possible = np.full(query.lower.size, np.inf)
        rows = [known[identifier] for identifier in ids]
        possible[rows] = query.lower[rows]
        query.lower = possible
        return self._nearest(query, k)

    def _nearest(self, query: _Query, k: int) -> SearchResult:
        count = min(k, int(np.isfinite(query.lower).sum()))
        while count and not query.is_over():
            radius = query.bound_of(count)
            near = query.exact & (query.lower <= radius + SLACK)
            enough = int(near.sum()) >= count
            rows = query.open_rows(radius - 2 * SLACK if enough else radius)
            fresh = rows[~query.hard[rows]]
            limit = radius if query.model.step else 1.1 * radius + 1e-6
            if fresh.size:
                query.search_briefly(fresh, limit, count)
            elif rows.size:
                first = rows[np.lexsort((query.lower[rows], query.attempts[rows]))[0]]
                query.search_long(int(first), limit, rows.size)
            else:
                break
        return query.nearest(count)

    def _query(self, graph: Any, where: str | None, time_limit: float | None) -> _Query:
        check_time_limit(time_limit)
        if time_limit is not None:
            self._compile()
        started = perf_counter()
        codes = Codes(labels=self.codes.labels, edge_labels=self.codes.edge_labels)
        codes.vertex, codes.edge = dict(self.codes.vertex), dict(self.codes.edge)
        try:
            packed = pack([as_graph(graph)], codes)
        except GraphError as error:
            raise ValueError(f"the query: {error.problem}") from None
        _, edge_label = codes.kinds()
        model = self.costs.model(codes)
        price = prices(model, edge_label)
        own = fingerprints(packed, self._class_of(codes), self._layout, model.strict)[0]
        lower = [
            np.where(
                segment.removed,
                np.inf,
                lower_bounds(
                    own, int(packed.ptr[1]), segment.vectors, segment.sizes, self._layout, price
                ),
            )
            for segment in self._segments
        ]
        bounds = np.concatenate([np.zeros(0), *lower])
        if where is not None:
            bounds[~self._fulfil(where)] = np.inf
        deadline = math.inf if time_limit is None else started + time_limit
        return _Query(model, packed, self._segments, bounds, deadline)

    def _compile(self) -> None:
        """Compiles or loads the kernels of a search, which no time limit of a query shall count."""
        if self._compiled:
            return
        self._compiled = True
        for number, segment in enumerate(self._segments):
            if len(segment):
                smallest = int(segment.sizes.argmin())
                query = self._query(self._unpack(segment, smallest), None, None)
                row = int(query.first[number]) + smallest
                query.search_briefly(np.array([row]), 0.0)
                if segment.sizes[smallest] <= WARM_UP:
                    query.search_long(row, 0.0, 1)

    def _fulfil(self, condition: str) -> Bool[np.ndarray, " B"]:
        """The graphs that fulfil a condition."""
        used = names(condition)
        fulfilled = [np.zeros(0, bool)]
        for segment in self._segments:
            rows = np.arange(len(segment))
            columns = {n: v[rows if n in used else rows[:0]] for n, v in segment.columns.items()}
            fulfilled.append(np.broadcast_to(evaluate(condition, columns), len(segment)))
        return np.concatenate(fulfilled)

    def _class_of(self, codes: Codes) -> Int[np.ndarray, " K"]:
        """Class of each kind of edge in fingerprints; 0 if its label is not in the layout."""
        _, edge_label = codes.kinds()
        return np.where(edge_label < self._known_edge_labels, edge_label, 0)

    def append(
        self,
        packed: Packed,
        ids: Sequence[Any] | None,
        metadata: Mapping[str, Sequence[Any]],
        *,
        unique: bool = False,
        without: Bool[np.ndarray, " B"] | None = None,
    ) -> None:
        """Adds packed graphs in memory as a segment of their own; see :meth:`add`.

        Args:
            packed: the graphs, with the codes of :attr:`codes`.
            ids: as for :meth:`add`.
            metadata: as for :meth:`add`.
            unique: whether the identifiers are known to be new.
            without: graphs to leave out.
        """
        count = packed.ptr.size - 1
        if self._segments and set(metadata) != set(self.columns):
            given, expected = (", ".join(names) or "none" for names in (metadata, self.columns))
            raise ValueError(f"metadata has the columns {given}; the index has {expected}")
        for name, values in {"ids": ids, **metadata}.items():
            if values is not None and len(values) != count:
                raise ValueError(
                    f"{name} has {counted(len(values), 'value')} for {counted(count, 'graph')}"
                )
        if ids is None:
            numbers = [s.ids for s in self._segments if isinstance(s.ids, np.ndarray)]
            if len(numbers) < len(self._segments):
                raise ValueError("the graphs of the index have strings as ids; pass ids")
            first = max((int(column.max(initial=-1)) + 1 for column in numbers), default=0)
            ids = range(first, first + count)
        columns = {name: _column(values, name) for name, values in metadata.items()}
        for name, values in columns.items():
            if self._segments and self.holds_text(name) != isinstance(values, Text):
                kind = "strings" if self.holds_text(name) else "numbers"
                raise ValueError(
                    f"column {name} of the index holds {kind}; expected {kind} here too"
                )
        column = _column(ids, "ids")
        if isinstance(column, np.ndarray) and column.dtype != np.int64:
            raise ValueError("ids are fractions; expected strings or whole numbers")
        for segment in self._segments:
            if isinstance(segment.ids, Text) != isinstance(column, Text):
                raise ValueError("ids are strings in part and numbers in part; use one kind")
        if not unique:
            _check_unique([*self._segments], list(ids))
        strict = self.costs.model(self.codes).strict
        vectors = fingerprints(packed, self._class_of(self.codes), self._layout, strict)
        segment = Segment(
            packed=storage.compact(packed),
            vectors=storage.frozen(vectors, np.uint8),
            ids=column,
            columns=columns,
            removed=np.zeros(count, bool),
        )
        if without is not None:
            segment = storage.without_removed(segment.removing(without))
        self._segments = [*self._segments, segment]

    def _about(self) -> dict[str, Any]:
        """The part of the manifest that does not depend on segments."""
        costs = {k: None if math.isinf(v) else v for k, v in asdict(self.costs).items()}
        return {
            "costs": costs,
            "labels": list(self.codes.vertex) if self.codes.labels else None,
            "edge_labels": self.codes.edge_labels,
            "kinds": list(self.codes.edge),
            "known_edge_labels": self._known_edge_labels,
            "column": self._layout.column.ravel().tolist(),
            "column_shape": self._layout.column.shape,
            "vertex_column": self._layout.vertex_column.tolist(),
            "start": self._layout.start.tolist(),
        }


class _Query:
    """The state of a query: what is proven about each graph of the index.

    Args:
        model: the costs.
        packed: the query, as a collection of one graph.
        segments: the segments of the index.
        lower: (B,) lower bounds of the costs; infinite for graphs that cannot be hits.
        deadline: when the time is over, on the clock of ``perf_counter``.
    """

    def __init__(
        self,
        model: Model,
        packed: Packed,
        segments: list[Segment],
        lower: Float[np.ndarray, " B"],
        deadline: float,
    ) -> None:
        self.model, self.segments, self.lower, self.deadline = model, segments, lower, deadline
        self.packed = packed
        self.upper = np.full(lower.size, np.inf)
        self.exact = np.zeros(lower.size, bool)
        self.visited = np.zeros(lower.size, bool)
        self.hard = np.zeros(lower.size, bool)  # the brief search could not decide it
        self.too_large = np.zeros(lower.size, bool)
        self.attempts = np.zeros(lower.size, np.int64)
        self.matchings: dict[int, np.ndarray] = {}
        self._ceiling = 2.0 * float(lower.min(initial=0.0)) + 4.0
        self.first = np.append(0, np.cumsum([len(segment) for segment in segments]))

    def is_over(self) -> bool:
        """Whether the time is over."""
        return perf_counter() >= self.deadline

    def bound_of(self, count: int) -> float:
        """The lower bound of the ``count``-th graph in the order of bounds."""
        possible = self.lower[~self.too_large] if self.too_large.any() else self.lower
        below = possible[possible <= self._ceiling]
        if below.size < count:
            below = possible
        bound = float(np.partition(below, count - 1)[count - 1]) if below.size >= count else np.inf
        self._ceiling = bound + 4.0
        return bound

    def open_rows(self, radius: float) -> Int[np.ndarray, " R"]:
        """Graphs that are not decided and may be within a radius, by their lower bounds."""
        undecided = ~self.exact & ~self.too_large
        rows = np.flatnonzero((self.lower <= radius + SLACK) & undecided)
        return rows[np.argsort(self.lower[rows], kind="stable")]

    def search_briefly(
        self, rows: Int[np.ndarray, " R"], limit: float, count: int | None = None
    ) -> None:
        """Searches each graph briefly for permutations up to a limit.

        Stops if the time is over, or if ``count`` graphs are proven and no other can be nearer.
        """
        segment_of = np.searchsorted(self.first, rows, side="right") - 1
        n = int(self.packed.ptr[1])
        step = max(1, CHUNK_WORK // (n + 1) ** 2)
        known = int((self.exact & (self.lower <= limit + SLACK)).sum())
        for start in range(0, rows.size, step):
            enough = count is not None and known >= count
            if self.is_over() or (enough and self.lower[rows[start]] >= limit - SLACK):
                return
            for number in np.unique(segment_of[start : start + step]):
                chosen = rows[start : start + step][segment_of[start : start + step] == number]
                known += self._search_segment(int(number), chosen, limit)

    def _search_segment(self, number: int, rows: Int[np.ndarray, " R"], limit: float) -> int:
        segment = self.segments[number]
        query = storage.compact_like(self.packed, segment.packed)
        cost = np.empty(rows.size)
        lower = np.empty(rows.size)
        match = np.full((rows.size, int(self.packed.ptr[1])), -1, np.int32)
        search_candidates(
            self.model, query, segment.packed, rows - self.first[number], limit, LARGEST, GLANCE,
            EFFORT, cost, lower, match,
        )  # fmt: skip
        matched = np.isfinite(cost)
        self.visited[rows] = True
        self.hard[rows] = ~matched & (lower <= limit + SLACK)
        self.lower[rows] = np.where(matched, cost, np.maximum(self.lower[rows], lower))
        self.upper[rows] = np.minimum(self.upper[rows], cost)
        self.exact[rows] = matched
        for k in np.flatnonzero(matched).tolist():
            self.matchings[int(rows[k])] = match[k]
        return int(matched.sum())

    def search_long(self, row: int, limit: float, waiting: int) -> None:
        """Searches one graph for permutations up to a limit.

        Args:
            row: the graph.
            limit: the limit.
            waiting: number of graphs, with this one, that share the time left.
        """
        left = self.deadline - perf_counter()
        if left <= 0:
            return
        number = int(np.searchsorted(self.first, row, side="right")) - 1
        segment = self.segments[number]
        query = storage.compact_like(self.packed, segment.packed)
        pair = pair_of(self.model, query, 0, segment.packed, row - int(self.first[number]))
        seconds = None if math.isinf(left) else left / waiting
        solution = solve(pair, seconds, limit=limit + SLACK)
        self.attempts[row] += 1
        self.visited[row] = True
        self.lower[row] = solution.cost if solution.exact else max(self.lower[row], solution.lower)
        self.exact[row] = solution.exact
        if solution.cost < self.upper[row]:
            own, other = int(self.packed.ptr[1]), int(segment.sizes[row - self.first[number]])
            images = solution.permutation[:own]
            self.matchings[row] = np.where(images < other, images, -1)
            self.upper[row] = solution.cost
        self.too_large[row] = pair.label_a.size > LARGEST and not solution.exact

    def result(self, rows: Int[np.ndarray, " R"]) -> SearchResult:
        """The result that consists of some graphs."""
        order = rows[np.lexsort((rows, self.lower[rows]))]
        hits = [self._hit(row) for row in order[self.exact[order]].tolist()]
        undecided = [self._hit(row) for row in order[~self.exact[order]].tolist()]
        return SearchResult(tuple(hits), tuple(undecided), int(self.visited.sum()))

    def nearest(self, count: int) -> SearchResult:
        """The result for the nearest graphs: the best proven ones, and those that may be nearer."""
        rows = np.flatnonzero(self.exact)
        rows = rows[np.lexsort((rows, self.lower[rows]))][:count]
        last = self.lower[rows[-1]] if rows.size == count and count else np.inf
        nearer = np.flatnonzero(~self.exact & (self.lower < last - SLACK))
        return self.result(np.concatenate([rows, nearer]))

    def _hit(self, row: int) -> Hit:
        number = int(np.searchsorted(self.first, row, side="right")) - 1
        local = np.array([row - self.first[number]])
        matching = self.matchings.get(row, np.zeros(0, np.int64))
        matched = np.flatnonzero(matching >= 0)
        return Hit(
            id=self.segments[number].ids[local].tolist()[0],
            distance=float(self.upper[row]),
            lower_bound=float(self.lower[row]),
            proven=bool(self.exact[row]),
            matching=np.stack([matched, matching[matched].astype(np.int64)], axis=1),
        )


@kernel
def search_candidates(
    model, query, packed, candidates, limit, largest, glance, effort, cost, lower, match
):
    """Searches some graphs for permutations of least cost up to a limit.

    Args:
        model: the costs.
        query: the query, as a collection of one graph.
        packed: the collection.
        candidates: (R,) the graphs to search.
        limit: permutations that cost more are not searched for.
        largest: larger pairs are skipped.
        glance: node bounds of a search without probing.
        effort: node bounds times squared vertices of a search with probing.
        cost: (R,) least cost; infinite if it exceeds the limit or is not proven. Written.
        lower: (R,) lower bound of the cost. Written.
        match: (R, N) the vertex that each vertex of the query is matched with, or −1. Written.
    """
    first = np.int64(0)
    for k in range(candidates.size):
        cost[k] = np.inf
        lower[k] = 0.0
        graph = candidates[k]
        size = np.int64(packed.ptr[graph + 1]) - np.int64(packed.ptr[graph])
        if match.shape[1] + size > largest and max(match.shape[1], size) > largest:
            continue
        pair = pair_of(model, query, first, packed, graph)
        if pair.label_a.size > largest:
            continue
        tree, bound, complete = search_briefly(pair, limit + 1e-9, glance, effort)
        allowed = round_down(pair, limit + 1e-9)
        if not complete:
            lower[k] = min(bound, allowed)
        elif tree.value[0] < value_above(pair, allowed):
            cost[k] = tree.value[0]
            for i in range(match.shape[1]):
                match[k, i] = tree.best[i] if tree.best[i] < size else -1
        else:
            lower[k] = allowed + model.step if model.step > 0.0 else allowed + 4e-9
            lower[k] = max(lower[k], round_up(pair, bound))


def _merged(segments: list[Segment]) -> list[Segment]:
    """The segments, with small ones merged if there are many, and without most removed graphs."""
    sparse = [s for s in segments if 2 * s.removed.sum() > len(s)]
    small = [s for s in segments if len(s) < FULL]
    chosen = [s for s in segments if s in sparse or (len(small) > SEGMENTS and s in small)]
    kept = [s for s in segments if s not in chosen]
    return [*kept, storage.merge(chosen)] if chosen else kept


def _check_symmetric(costs: EditCosts) -> None:
    for of in ("vertex", "edge"):
        insertion, deletion = getattr(costs, f"{of}_insertion"), getattr(costs, f"{of}_deletion")
        if insertion != deletion:
            raise ValueError(
                f"{of}_insertion is {insertion} and {of}_deletion is {deletion}; an index needs "
                f"equal costs of both"
            )


def unique_ids(ids: Iterable[Any], seen: dict[str, int] | None = None) -> list[str]:
    """The names of graphs; a repeated name gets a number.

    Args:
        ids: the names.
        seen: how often names occurred before; updated.

    >>> unique_ids(["CCO", "CC", "CCO"])
    ['CCO', 'CC', 'CCO #2']
    """
    seen = {} if seen is None else seen
    unique = []
    for name in map(str, ids):
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return unique


def _check_unique(segments: list[Segment], ids: list[Any]) -> None:
    known = {i for segment in segments for i in _ids(segment)[~segment.removed].tolist()}
    for identifier in ids:
        if identifier in known:
            raise ValueError(f"id {identifier!r} appears twice; each graph needs its own")
        known.add(identifier)


def _ids(segment: Segment) -> np.ndarray:
    return segment.ids[np.arange(len(segment))]


def _column(values: Sequence[Any], name: str) -> np.ndarray | Text:
    """A column of numbers or of strings."""
    values = list(values)
    if all(isinstance(value, str) for value in values):
        return Text.of(values)
    array = np.asarray(values)
    if array.dtype.kind in "biu" and array.ndim == 1:
        return array.astype(np.int64)
    if array.dtype.kind == "f" and array.ndim == 1:
        return array.astype(np.float64)
    raise ValueError(f"{name} holds values that are neither all strings nor all numbers")


def _value(stored: Any) -> Any:
    """A label as it was before it became JSON."""
    return tuple(stored) if isinstance(stored, list) else stored
