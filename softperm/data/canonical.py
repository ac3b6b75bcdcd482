"""The canonical form of a graph: simple, undirected, edges sorted, all numbers finite.

:func:`choose_fields` reads the labels and numbers of users' attributes by name;
:func:`canonicalise` validates the graph and brings it into canonical form.

Functions here see one graph and do not know its position in the user's list: they raise
``ValueError`` with the problem, and the caller adds the graph (``softperm.errors``).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.errors import GraphError, GraphWarning, by_count, counted
from softperm.pyg import Data
from softperm.settings import STANDARD_FIELDS, FieldNames

Labels = Int[np.ndarray, "..."] | list[Any]
MOST_CODES = 50  # distinct whole numbers that may be codes
SYMMETRISE = "set symmetrise"
FIELDS = ("x", "label", "pos", "edge_attr", "edge_label")  # with equal columns in all graphs
MOST_POSITIONS = 4096  # vertices of a graph whose distances are compared: 16 million pairs

Attributes = Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""A mapping for each vertex or edge, or one mapping from names to columns."""

Rows = Sequence[Mapping[str, Any]]

_GENERATED = ("bipartite", "block")
"""Vertex attributes that NetworkX's generators set; they are not mentioned as unused."""


@dataclass(frozen=True)
class Removed:
    """What :func:`canonicalise` removed from one or more graphs or did not read.

    Attributes:
        loops: number of self-loops.
        duplicates: number of repeated edges.
        vertices: vertex attributes that are not read, with the first value of each.
        edges: edge attributes that are not read, with the first value of each.
        used: names of the attributes that are read, of vertices and of edges.
        codes: distinct values of ``x`` where it holds whole numbers, which may be codes; None
            otherwise.
        columns: the user's names of the columns of each field, where they were chosen by name.
        graphs: number of graphs.
        changed: number of graphs from which edges are removed.
    """

    loops: int = 0
    duplicates: int = 0
    vertices: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    edges: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    used: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    codes: frozenset[int] | None = None
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    graphs: int = 1
    changed: int = 0

    @classmethod
    def total(cls, parts: Iterable[Removed]) -> Removed:
        """The sums of several graphs; of attributes and names those of the first that has any."""
        parts = list(parts)
        vertices: dict[str, Any] = {}
        edges: dict[str, Any] = {}
        columns: dict[str, tuple[str, ...]] = {}
        for each in reversed(parts):
            vertices |= each.vertices
            edges |= each.edges
            columns |= each.columns
        used = [next((e.used[side] for e in parts if e.used[side]), ()) for side in (0, 1)]
        codes = [each.codes for each in parts if each.codes is not None]
        return cls(
            loops=sum(each.loops for each in parts),
            duplicates=sum(each.duplicates for each in parts),
            vertices=vertices,
            edges=edges,
            used=(used[0], used[1]),
            codes=frozenset(sorted(frozenset().union(*codes))[:1000]) if codes else None,
            columns=columns,
            graphs=sum(each.graphs for each in parts),
            changed=sum(each.changed for each in parts),
        )


@dataclass(frozen=True)
class RawGraph:
    """One graph as the user's object or file lists it, before validation.

    Args:
        num_nodes: number of vertices N.
        edges: the two ends of every edge, in the order listed.
        once: whether the source lists an undirected edge once. If not, an edge without its
            reverse is a directed edge.
        x: continuous vertex attributes.
        label: discrete vertex labels, one or several for each vertex.
        edge_attr: continuous edge attributes, one row for each listed edge.
        edge_label: discrete edge labels, one or several for each listed edge.
        edge_weight: one weight for each listed edge.
        pos: positions of the vertices in space.
        names: the user's names of the vertices, for error messages; None means 0 … N − 1.
        vertices: attributes of the vertices by the user's names, of which
            :func:`choose_fields` reads some; None if there are only the
            fields above.
        listed: the same for the listed edges.
        columns: the user's names of the columns of each field, where they were chosen by name.
        removed: attributes that are not read.
        edge_names: standard names of an edge's label, attributes and weight.
    """

    num_nodes: int
    edges: Int[np.ndarray, "2 E"]
    once: bool
    x: Float[np.ndarray, "N F"] | None = None
    label: Labels | None = None
    edge_attr: Float[np.ndarray, "_ Fe"] | None = None
    edge_label: Labels | None = None
    edge_weight: Float[np.ndarray, " _"] | None = None
    pos: Float[np.ndarray, "N S"] | None = None
    names: Sequence | None = None
    vertices: Attributes | None = None
    listed: Attributes | None = None
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    removed: Removed | None = None
    edge_names: tuple[str, str, str] = ("label", "x", "weight")

    def vertex(self, k: int) -> str:
        """Vertex ``k`` with the user's name, for messages."""
        return f"vertex {k if self.names is None else repr(self.names[k])}"

    def edge(self, k: int) -> str:
        """Listed edge ``k`` with the user's names of its ends, for messages."""
        u, v = (int(end) for end in self.edges[:, k])
        return f"edge {(u, v) if self.names is None else (self.names[u], self.names[v])!r}"


def canonicalise(raw: RawGraph, symmetrise: bool = False) -> tuple[Data, Removed]:
    """Bring one graph into canonical form.

    Self-loops are removed. Of an edge listed more than once, the first listing is kept, with its
    label, attributes and weight. A graph whose weights are all 1 is an unweighted graph. A graph
    without edges has no edge fields, and one without vertices no vertex fields: the result omits
    them.

    Args:
        raw: the graph as its source lists it.
        symmetrise: whether to treat a directed edge as undirected. If the two directions of an
            edge differ in label, attributes or weight, the first listed direction counts.

    Returns:
        A graph with ``edge_index`` (2, E) int64 (both directions, sorted by row, then column),
        ``num_nodes`` and, where the source has them, ``x`` (N, F) float32, ``label`` (N,) or (N, L)
        int64 or a list, ``pos`` (N, S) float32, ``edge_attr`` (E, d_e) float32, ``edge_label``
        (E,) or (E, L) int64 or a list, ``edge_weight`` (E,) float32; and the counts of removed
        edges.

    Raises:
        ValueError: an edge to a missing vertex, a directed edge, a number that is not finite, or a
            field whose length is not the number of vertices or edges.
    """
    _check(raw)
    edges, listing, removed = _simple_edges(raw, symmetrise)
    graph = Data(edge_index=torch.from_numpy(edges), num_nodes=raw.num_nodes)
    if raw.x is not None and raw.num_nodes:
        graph.x = torch.from_numpy(raw.x)
    if raw.label is not None and raw.num_nodes:
        graph.label = _as_field(raw.label)
    if raw.pos is not None and raw.num_nodes:
        graph.pos = torch.from_numpy(raw.pos)
    if listing.size == 0:
        return graph, removed
    if raw.edge_attr is not None:
        graph.edge_attr = torch.from_numpy(raw.edge_attr[listing])
    if raw.edge_label is not None:
        graph.edge_label = _as_field(_take(raw.edge_label, listing))
    if raw.edge_weight is not None and (raw.edge_weight[listing] != 1).any():
        graph.edge_weight = torch.from_numpy(raw.edge_weight[listing])
    return graph, removed


def check_same_fields(graphs: Sequence[Data]) -> None:
    """Raise unless all graphs have the same fields with the same number of columns.

    Weights are exempt, since no weights means weights of 1, and so are the edge fields of a graph
    without edges and all fields of a graph without vertices.

    Raises:
        GraphError: a graph differs from the majority.
    """
    for field in FIELDS:
        among = [i for i, graph in enumerate(graphs) if has_rows(graph, field)]
        check_same_widths(field, [(width(graphs[i], field), 1, i, None) for i in among])


def check_same_widths(field: str, found: Sequence[tuple[int, int, int, str | None]]) -> None:
    """Raise GraphError about the first graph with another number of columns than most.

    Args:
        field: the field.
        found: numbers of columns, each with the number of graphs that have it, and the position and
            name of the first of them.
    """
    counts: Counter[int] = Counter()
    for size, graphs, _, _ in found:
        counts[size] += graphs
    if len(counts) < 2:
        return
    usual, count = counts.most_common(1)[0]
    first, size, name = min((first, size, name) for size, _, first, name in found if size != usual)
    raise GraphError(
        first,
        f"it has {describe_field(field, size)}, but {counted(count, 'other graph')} "
        f"{by_count(count, 'has', 'have')} {describe_field(field, usual)}; give every graph the "
        "same fields",
        name,
    )


def warn_removed(removed: Removed, stacklevel: int = 3, again: bool = False) -> None:
    """Warn once about all graphs of what their canonical form does not have.

    Self-loops and duplicate edges are counted. Attributes that are not read are named, with the
    setting that reads them; so are whole numbers that are read as numbers and may be codes.

    Args:
        removed: of all graphs together.
        stacklevel: of the warnings.
        again: whether other graphs of the collection have had the warnings about attributes.
    """
    counts = (removed.loops, removed.duplicates, removed.changed, removed.graphs)
    warn_removed_edges(*counts, stacklevel + 1)
    if again:
        return
    for kind, unused, used in (
        ("vertex", removed.vertices, removed.used[0]),
        ("edge", removed.edges, removed.used[1]),
    ):
        if unused:
            warnings.warn(_describe_unused(kind, unused, used), stacklevel=stacklevel)
    values = sorted(removed.codes or ())
    if values and values[-1] > 1 and len(values) <= MOST_CODES:
        some = ", ".join(map(str, values[:3]))
        warnings.warn(
            f"x of the vertices holds {len(values)} distinct whole numbers ({some}, …), which are "
            "read as amounts; if they are codes, vertex_labels=x reads them as labels "
            "(vertex_attributes=x keeps this as it is)",
            stacklevel=stacklevel,
        )


def warn_removed_edges(
    loops: int, duplicates: int, changed: int, count: int, stacklevel: int = 2
) -> None:
    """Warn of self-loops and duplicate edges removed from some of the graphs, if there are any."""
    if changed:
        removed = [
            counted(number, kind)
            for number, kind in ((loops, "self-loop"), (duplicates, "duplicate edge"))
            if number
        ]
        first = "; of an edge listed twice the first listing stays" * (duplicates > 0)
        warnings.warn(
            f"removed {' and '.join(removed)} from {changed:,} of {counted(count, 'graph')}{first}",
            stacklevel=stacklevel,
        )


def _describe_unused(kind: str, unused: Mapping[str, Any], used: tuple[str, ...]) -> str:
    """Which attributes are not read, and the settings that read them."""
    examples = ", ".join(f"{name} (such as {value!r:.30})" for name, value in unused.items())
    labels = [name for name, value in unused.items() if isinstance(value, (str, int))]
    numbers = [name for name in unused if name not in labels]
    labels = [name for name in used if name.endswith("label")] + labels if labels else []
    numbers = [name for name in used if name in ("x", "edge_attr")] + numbers if numbers else []
    remedies = [f"{kind}_labels={','.join(labels)}"] if labels else []
    remedies += [f"{kind}_attributes={','.join(numbers)}"] if numbers else []
    others = f"; {' and '.join(used)} are" if used else ""
    positions = "; distance_bins reads pos as positions" if "pos" in unused else ""
    return (
        f"these {kind} attributes are not used: {examples}{others}; to use them, set "
        f"{' and '.join(remedies)}{positions}"
    )


def warn_empty(sizes: Sequence[int], ids: Sequence[object] | None = None) -> None:
    """Warn once, with their number, of graphs without vertices.

    Args:
        sizes: number of vertices of each graph.
        ids: names of the graphs in messages; their positions by default.
    """
    empty = [i for i, size in enumerate(sizes) if size == 0]
    if empty:
        problem = (
            f"{len(empty):,} of {counted(len(sizes), 'graph')} "
            f"{by_count(len(empty), 'has', 'have')} no vertices; skip_empty leaves such graphs of "
            "a file out"
        )
        warning = GraphWarning(empty, problem)
        warnings.warn(warning if ids is None else warning.renamed(ids), stacklevel=3)


def count_edges(graph: Data) -> int:
    """Number of directed edges of a graph."""
    return graph["edge_index"].shape[1]


def has_rows(graph: Data, field: str) -> bool:
    """Whether a graph has the vertices or edges that a field describes."""
    return count_edges(graph) > 0 if field.startswith("edge") else bool(graph.num_nodes)


def width(graph: Data, field: str) -> int:
    """Number of columns of a graph's field; 0 if it has no such field."""
    value = getattr(graph, field, None)
    if value is None:
        return 0
    if isinstance(value, list):  # several columns of labels are tuples
        return len(value[0]) if value and isinstance(value[0], tuple) else 1
    return 1 if value.ndim == 1 else value.shape[1]


def describe_field(field: str, size: int) -> str:
    """A field with its number of columns in words, for error messages."""
    each = "an edge" if field.startswith("edge") else "a vertex"
    return f"{field} of {counted(size, 'value')} {each}" if size else f"no {field}"


def _simple_edges(
    raw: RawGraph, symmetrise: bool
) -> tuple[Int[np.ndarray, "2 E"], Int[np.ndarray, " E"], Removed]:
    """Both directions of each edge in order, the listing of each, and numbers of removed edges."""
    n = raw.num_nodes
    no_loop = np.flatnonzero(raw.edges[0] != raw.edges[1])
    u, v = raw.edges[:, no_loop]
    low, high = np.minimum(u, v), np.maximum(u, v)
    key = low * n + high
    order = np.argsort(2 * key + (u > v), kind="stable")  # listings of an edge, upward ones first
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))  # (U,), one for each undirected edge
    ends = np.append(starts[1:], key.size)
    cumulated = np.append(0, np.cumsum((u < v)[order]))
    upward = cumulated[ends] - cumulated[starts]  # (U,), listings from the lower to the higher end
    downward = ends - starts - upward
    both = (upward > 0) & (downward > 0)
    first = order[starts]
    reverse = order[np.where(both, starts + upward, starts)]  # the same edge, other direction
    if not symmetrise:
        _check_undirected(raw, both, no_loop[first], no_loop[reverse])
    first = np.minimum(first, reverse)
    row = np.concatenate([low[first], high[first]])
    column = np.concatenate([high[first], low[first]])
    sort = np.argsort(row * n + column, kind="stable")
    duplicates = int((np.maximum(upward, downward) - 1).sum())
    listing = no_loop[np.concatenate([first, first])[sort]]
    loops = raw.edges.shape[1] - no_loop.size
    removed = replace(
        raw.removed or Removed(),
        loops=loops,
        duplicates=duplicates,
        columns=raw.columns,
        changed=int(loops + duplicates > 0),
    )
    return np.stack([row[sort], column[sort]]), listing, removed


def _check_undirected(
    raw: RawGraph, both: np.ndarray, first: np.ndarray, reverse: np.ndarray
) -> None:
    """Raise if an edge has one direction only, or its two directions have different values."""
    if not both.all() and (both.any() or not raw.once):
        edge = raw.edge(int(first[~both].min()))
        raise ValueError(
            f"{edge} is listed in one direction only, so the graph is directed; list every edge "
            f"in both directions, or {SYMMETRISE} to treat every edge as undirected"
        )
    if not both.any():
        return
    for field in ("edge_weight", "edge_attr", "edge_label"):
        value = getattr(raw, field)
        if value is None:
            continue
        one, other = _take(value, first), _take(value, reverse)
        if isinstance(value, list):
            differs = np.array([a != b for a, b in zip(one, other, strict=True)])
        elif value.dtype.kind == "f":
            noise = 1e-7 * np.abs(value).max(initial=0.0)  # zeros may have become rounding errors
            differs = ~np.isclose(one, other, rtol=1e-5, atol=noise)
        else:
            differs = np.not_equal(one, other)
        if differs.any():
            k = int(np.argmax(differs.reshape(len(first), -1).any(axis=1)))
            raise ValueError(
                f"{raw.edge(int(first[k]))} has {field} {one[k]} in this direction and {other[k]} "
                f"in the other; make them equal, or {SYMMETRISE} to use the first listed direction"
            )


def _check(raw: RawGraph) -> None:
    """Raise if an edge's end is missing, or a field is short or not finite."""
    outside = (raw.edges < 0) | (raw.edges >= raw.num_nodes)
    if outside.any():
        k = int(np.argmax(outside.any(axis=0)))
        vertex = int(raw.edges[:, k][outside[:, k]][0])
        raise ValueError(
            f"{raw.edge(k)} names vertex {vertex}, but the graph has "
            f"{counted(raw.num_nodes, 'vertex')}; vertices are numbered from 0"
        )
    for field, of, expected in (
        ("x", "vertex", raw.num_nodes),
        ("label", "vertex", raw.num_nodes),
        ("pos", "vertex", raw.num_nodes),
        ("edge_attr", "edge", raw.edges.shape[1]),
        ("edge_label", "edge", raw.edges.shape[1]),
        ("edge_weight", "edge", raw.edges.shape[1]),
    ):
        value = getattr(raw, field)
        if value is not None and len(value) != expected:
            raise ValueError(
                f"{field} has {counted(len(value), 'row')}, but the graph lists "
                f"{counted(expected, of)}; give one row for each"
            )
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            _check_finite(raw, field, value)


def first_not_finite(
    values: Float[np.ndarray, "V F"], ptr: Int[np.ndarray, " B1"]
) -> tuple[int, int] | None:
    """The graph of the first row with a number that is not finite, and the row's place in it."""
    finite = np.isfinite(values).all(axis=1)
    if finite.all():
        return None
    row = int(np.argmin(finite))
    graph = int(np.searchsorted(ptr, row, side="right")) - 1
    return graph, row - int(ptr[graph])


def _check_finite(raw: RawGraph, field: str, value: np.ndarray) -> None:
    if np.isfinite(value).all():
        return
    bad = ~np.isfinite(value.reshape(len(value), -1))
    k = int(np.argmax(bad.any(axis=1)))
    of = raw.vertex(k) if field in ("x", "pos") else raw.edge(k)
    found = value.reshape(len(value), -1)[k][bad[k]][0]
    raise ValueError(
        f"{field} of {of} is {found} in float32; expected finite numbers, so fill in or rescale "
        f"such values first"
    )


def _take(value: Labels | np.ndarray, index: np.ndarray) -> Labels | np.ndarray:
    return [value[k] for k in index] if isinstance(value, list) else value[index]


def _as_field(label: Labels) -> torch.Tensor | list:
    return label if isinstance(label, list) else torch.from_numpy(label)


def graph_from_lists(
    names: Sequence[Hashable],
    vertices: Rows,
    pairs: Sequence[tuple[Hashable, Hashable]],
    edges: Rows,
    once: bool,
) -> RawGraph:
    """A graph from a list of named vertices and a list of edges between them.

    ``vertices`` and ``edges`` hold their attributes, ``pairs`` the names of the ends of each edge.

    Raises:
        ValueError: two vertices of one name, or an edge to an unknown vertex.
    """
    index = {name: k for k, name in enumerate(names)}
    if len(index) < len(names):
        twice = next(name for k, name in enumerate(names) if index[name] != k)
        raise ValueError(f"vertex {twice!r} is listed twice; give every vertex its own id")
    for pair in pairs:
        unknown = [end for end in pair if end not in index]
        if unknown:
            raise ValueError(
                f"edge {tuple(pair)!r} names vertex {unknown[0]!r}, which is not among the "
                f"{len(names)} nodes; list it there"
            )
    ends = [(index[u], index[v]) for u, v in pairs]
    plain = list(names) == list(range(len(names)))
    raw = RawGraph(
        num_nodes=len(names),
        edges=np.array(ends, dtype=np.int64).reshape(-1, 2).T,
        once=once,
        names=None if plain else names,
    )
    return replace(raw, vertices=vertices, listed=edges)


def choose_fields(raw: RawGraph, fields: FieldNames = STANDARD_FIELDS) -> RawGraph:
    """Read the labels, attributes and weights of vertices and edges, by the user's names.

    Args:
        raw: a graph with its attributes in ``vertices`` and ``listed``.
        fields: the names to read.

    Returns:
        The graph with these fields, and in ``removed`` what is not read.

    Raises:
        ValueError: the graph has no attribute of a chosen name; a vertex or edge lacks what others
            have, or has a value of the wrong type; positions are missing or too many.
    """
    if raw.vertices is None and raw.listed is None and fields == STANDARD_FIELDS:
        return raw
    label, numbers, weight = raw.edge_names
    read = {label: raw.edge_label, numbers: raw.edge_attr, weight: raw.edge_weight}
    edges = _Table.of("edge", raw.listed, read, raw.edge)
    vertices = _Table.of("vertex", raw.vertices, {"label": raw.label, "x": raw.x}, raw.vertex)
    weights = edges.numbers(weight)
    if weights is not None and weights.shape[1] != 1:
        raise ValueError(
            f"{weight} has {weights.shape[1]} values an edge; expected one, or read them with "
            f"edge_attributes={weight}"
        )
    columns: dict[str, tuple[str, ...]] = {}
    raw = replace(
        raw,
        x=vertices.read_numbers(fields.vertex_attributes, "x", "x", columns),
        label=vertices.read_labels(fields.vertex_labels, "label", "label", columns),
        edge_attr=edges.read_numbers(fields.edge_attributes, numbers, "edge_attr", columns),
        edge_label=edges.read_labels(fields.edge_labels, label, "edge_label", columns),
        edge_weight=None if weights is None else weights[:, 0],
        pos=_positions(vertices, raw.num_nodes) if fields.positions else None,
        vertices=None,
        listed=None,
        columns=columns,
    )
    known = ("label", "x", *_GENERATED, *(["pos"] if fields.positions else []))
    unused = {} if fields.vertices_chosen else vertices.others(known)
    unused_edges = {} if fields.edges_chosen else edges.others(raw.edge_names)
    codes = None if fields.vertices_chosen else vertices.whole_numbers("x")
    if not unused and not unused_edges and codes is None:
        return raw
    used = vertices.present(("label", "x")), edges.present(raw.edge_names)
    return replace(raw, removed=Removed(0, 0, unused, unused_edges, used, codes))


def _positions(vertices: _Table, count: int) -> Float[np.ndarray, "N S"] | None:
    """The positions of the vertices of a graph; None if it has no vertices."""
    positions = vertices.numbers("pos")
    if positions is None and count:
        raise ValueError(
            "it has no positions, which distance_bins needs: give every vertex pos, such as "
            "(x, y, z), or set distance_bins to 0"
        )
    if count > MOST_POSITIONS:
        raise ValueError(
            f"it has {count:,} vertices; distance_bins compares all pairs of at most "
            f"{MOST_POSITIONS:,}: leave the graph out, or set distance_bins to 0"
        )
    return positions


_IDENTITY = {"id", "source", "target", "key"}  # of vertices and edges in node-link graphs


@dataclass(frozen=True)
class _Table:
    """The attributes of all vertices, or of all listed edges, by name: as rows, or as columns."""

    kind: str  # vertex or edge
    rows: Sequence[Mapping[str, Any]] | None
    columns: Mapping[str, Any]
    name: Callable[[int], str]  # of a vertex or an edge, in messages

    @classmethod
    def of(
        cls,
        kind: str,
        given: Attributes | None,
        fields: Mapping[str, Any],
        name: Callable[[int], str],
    ) -> _Table:
        """A table of what the user gave, or else of fields that were read already."""
        columns = given if isinstance(given, Mapping) else fields
        rows = None if given is None or isinstance(given, Mapping) else given
        return cls(kind, rows, {k: v for k, v in columns.items() if v is not None}, name)

    @cached_property
    def known(self) -> list[str]:
        """The names of all attributes."""
        if self.rows is None:
            return list(self.columns)
        names = dict.fromkeys(chain.from_iterable(self.rows))
        return [name for name in names if name not in _IDENTITY]

    def present(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names that exist, in the given order."""
        return tuple(name for name in names if name in self.known)

    def others(self, names: Sequence[str]) -> dict[str, Any]:
        """The attributes of other names that could be read, with the first value of each."""
        keys = [key for key in self.known if key not in names]
        if self.rows is not None:
            first = {key: next(row[key] for row in self.rows if key in row) for key in keys}
        else:
            first = {key: self.columns[key][0] for key in keys if len(self.columns[key])}
        first = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in first.items()}
        return {k: v for k, v in first.items() if isinstance(v, (str, int, float, list, tuple))}

    def whole_numbers(self, name: str) -> frozenset[int] | None:
        """The distinct values of an attribute of whole numbers, but not of many more than codes."""
        if self.rows is not None:
            listed = [row.get(name) for row in self.rows]
            if not all(isinstance(value, (int, np.integer)) for value in listed):
                return None
            values = np.array(listed)
        elif name in self.columns:
            values = _array(self.columns[name])
        else:
            return None
        if values.dtype.kind not in "iu" or not values.size:
            return None
        return frozenset(np.unique(values)[: MOST_CODES + 1].tolist())

    def numbers(self, name: str) -> Float[np.ndarray, "K F"] | None:
        """An attribute as numbers; None if there is none."""
        if self.rows is not None:
            return _numbers(self.rows, name, self.name)
        return as_rows(self.columns[name], name) if name in self.columns else None

    def labels(self, name: str) -> Labels | None:
        """An attribute as discrete labels; None if there is none."""
        if self.rows is not None:
            return _labels(self.rows, name, self.name)
        return as_labels(self.columns[name], name) if name in self.columns else None

    def read_numbers(
        self,
        names: Sequence[str] | None,
        standard: str,
        field: str,
        columns: dict[str, tuple[str, ...]],
    ) -> Float[np.ndarray, "K F"] | None:
        """The numbers of several attributes side by side; ``columns`` receives their names."""
        if names is None:
            return self.numbers(standard)
        parts = {name: self._chosen(self.numbers, name) for name in names}
        parts = {name: part for name, part in parts.items() if part is not None}
        if not parts:
            return None
        columns[field] = tuple(
            name if part.shape[1] == 1 else f"{name}_{k}"
            for name, part in parts.items()
            for k in range(part.shape[1])
        )
        return np.concatenate(list(parts.values()), axis=1)

    def read_labels(
        self,
        names: Sequence[str] | None,
        standard: str,
        field: str,
        columns: dict[str, tuple[str, ...]],
    ) -> Labels | None:
        """The labels of several attributes side by side; ``columns`` receives their names."""
        if names is None:
            return self.labels(standard)
        parts: dict[str, Labels] = {}
        for name in names:
            labels = self._chosen(self.labels, name)
            if isinstance(labels, np.ndarray) and labels.ndim == 2:
                parts |= {f"{name}_{k}": column for k, column in enumerate(labels.T)}
            elif labels is not None:
                parts[name] = labels
        if not parts:
            return None
        columns[field] = tuple(parts)
        several = list(parts.values())
        if len(several) == 1:
            return several[0]
        arrays = [part for part in several if isinstance(part, np.ndarray)]
        if len(arrays) == len(several):
            return np.stack(arrays, axis=1)
        plain = [part if isinstance(part, list) else part.tolist() for part in several]
        return list(zip(*plain, strict=True))

    def _chosen(self, read: Callable[[str], Any], name: str) -> Any:
        """The values of an attribute that the user selected by name."""
        values = read(name)
        if values is None and (self.columns if self.rows is None else self.rows):
            known = ", ".join(self.known) or "none"
            raise ValueError(
                f"it has no {self.kind} attribute {name!r}; its {self.kind} attributes are: {known}"
            )
        return values


def as_rows(value: Any, field: str) -> Float[np.ndarray, "K F"] | None:
    """An array of numbers, one row for each vertex or edge; None if its rows are empty."""
    array = _rectangular(value, field)
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2):
        raise ValueError(
            f"{field} is an array of {array.dtype} with {counted(array.ndim, 'dimension')}; "
            f"expected real numbers, one row for each {_owner(field)}"
        )
    if array.ndim == 2 and array.shape[1] == 0:
        return None
    return _float32(array if array.ndim == 2 else array[:, None])


def as_labels(value: Any, field: str) -> Labels | None:
    """An array or list of discrete labels, one row for each vertex or edge."""
    if isinstance(value, (list, tuple)) and not all(isinstance(v, (list, tuple)) for v in value):
        return _codes(value, field, lambda k: f"{_owner(field)} {k}")
    array = _rectangular(value, field)
    if array.dtype.kind == "U" and array.ndim == 1:
        return array.tolist()
    integers = array.dtype.kind in "biu" or not array.size  # an empty list becomes real numbers
    if not integers or array.ndim not in (1, 2):
        raise ValueError(
            f"{field} is an array of {array.dtype} with {counted(array.ndim, 'dimension')}; "
            f"expected integers or strings for each {_owner(field)} (real numbers go in "
            f"{'edge_attr' if field == 'edge_label' else 'x'})"
        )
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise ValueError(f"{field} holds {int(array.max())}; expected less than 2**63")
    if array.ndim == 2 and array.shape[1] < 2:
        return array[:, 0].astype(np.int64) if array.shape[1] else None
    return array.astype(np.int64)


def _owner(field: str) -> str:
    return "edge" if field.startswith("edge") else "vertex"


def _rectangular(value: Any, field: str) -> np.ndarray:
    """An array, or an error if its rows have different lengths."""
    try:
        return _array(value)
    except ValueError:
        raise ValueError(
            f"{field} has rows of several lengths; expected one row for each {_owner(field)}, all "
            f"of one length"
        ) from None


def _array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value if value.layout is torch.strided else value.to_dense()
        return (value.float() if value.is_floating_point() else value).numpy()
    return np.asarray(value)


def _float32(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # an overflow becomes infinite, which is reported later
        return array.astype(np.float32)


def _present(items: Rows, key: str, name: Callable[[int], str]) -> list[Any] | None:
    """The values of ``key``; None if no item has one, an error if only some have."""
    if not any(items):
        return None
    values = [item.get(key) for item in items]
    missing = [k for k, value in enumerate(values) if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        present = len(values) - len(missing)
        raise ValueError(
            f"{name(missing[0])} has no {key}, but "
            f"{by_count(present, '1 other has', f'{present:,} others have')}; give it to all or to "
            "none"
        )
    return values


def _numbers(items: Rows, key: str, name: Callable[[int], str]) -> Float[np.ndarray, "K F"] | None:
    """Numbers or vectors of one size, one row for each item."""
    values = _present(items, key, name)
    if values is None:
        return None
    values = [_array(v) if isinstance(v, Tensor) else v for v in values]
    try:
        array = np.asarray(values)
    except ValueError:  # vectors of several sizes
        array = np.empty(0, dtype=object)
    if array.dtype.kind in "biuf" and array.ndim in (1, 2):
        return _float32(array).reshape(len(values), -1) if array.size else None
    for k, value in enumerate(values):
        row, first = np.atleast_1d(value), np.atleast_1d(values[0])
        if row.dtype.kind not in "biuf" or row.ndim > 1:
            raise ValueError(
                f"{key} of {name(k)} is {value!r}; expected a number or a vector of numbers (a "
                f"discrete value goes in label)"
            )
        if row.shape != first.shape:
            raise ValueError(
                f"{key} of {name(k)} has {counted(row.size, 'value')}, but that of {name(0)} has "
                f"{first.size}; give all the same size"
            )
    rows = [np.atleast_1d(value) for value in values]  # some are numbers, some lists of length 1
    return _float32(np.stack(rows))


def _labels(items: Rows, key: str, name: Callable[[int], str]) -> Labels | None:
    values = _present(items, key, name)
    return None if values is None else _codes(values, key, name)


def _codes(values: Sequence[Any], key: str, name: Callable[[int], str]) -> Labels:
    """Integer labels as an array; strings, or integers and strings together, as a list."""
    if set(map(type, values)) == {str}:
        return list(values)
    plain: list[int | str] = []
    for k, value in enumerate(values):
        value = value.item() if isinstance(value, (Tensor, np.generic)) else value
        if isinstance(value, str):
            plain.append(str(value))
        elif isinstance(value, Integral) and -(2**63) <= int(value) < 2**63:
            plain.append(int(value))
        else:
            raise ValueError(
                f"{key} of {name(k)} is {value!r}; expected an integer or a string (a continuous "
                f"value goes in {'edge_attr' if key == 'edge_label' else 'x'})"
            )
    return plain if any(isinstance(v, str) for v in plain) else np.array(plain, dtype=np.int64)
