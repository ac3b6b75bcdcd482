"""The canonical form of a graph: simple, undirected, edges sorted, all numbers finite.

Functions here see one graph and do not know its position in the user's list: they raise
``ValueError`` with the problem, and the caller adds the graph (``softperm.errors``).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from softperm.errors import GraphError, GraphWarning
from softperm.pyg import Data

Labels = Int[np.ndarray, "..."] | list[Any]
MOST_CODES = 50  # distinct whole numbers that may be codes
SYMMETRISE = "set symmetrise"


Attributes = Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""A mapping for each vertex or edge, or one mapping from names to columns."""


@dataclass(frozen=True)
class Removed:
    """What of a graph its canonical form does not have.

    Attributes:
        loops: number of self-loops.
        duplicates: number of repeated edges.
        vertices: vertex attributes that are not read, with the first value of each.
        edges: edge attributes that are not read, with the first value of each.
        used: names of the attributes that are read, of vertices and of edges.
        codes: distinct values of ``x`` where it holds whole numbers, which may be codes; None
            otherwise.
        columns: the user's names of the columns of each field, where they were chosen by name.
    """

    loops: int = 0
    duplicates: int = 0
    vertices: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    edges: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    used: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    codes: frozenset[int] | None = None
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


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
        names: the user's names of the vertices, for error messages; None means 0 … N − 1.
        vertices: attributes of the vertices by the user's names, of which
            :func:`softperm.data.attributes.choose_fields` reads some; None if there are only the
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

    Self-loops are removed. Of an edge listed more than once the first listing stays, with its
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
        int64 or a list, ``edge_attr`` (E, d_e) float32, ``edge_label`` (E,) or (E, L) int64 or a
        list, ``edge_weight`` (E,) float32; and the counts of removed edges.

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
    for field in ("x", "label", "edge_attr", "edge_label"):
        among = [i for i, graph in enumerate(graphs) if has_rows(graph, field)]
        sizes = [width(graphs[i], field) for i in among]
        usual, count = Counter(sizes).most_common(1)[0] if sizes else (0, 0)
        for i, size in zip(among, sizes, strict=True):
            if size != usual:
                raise GraphError(
                    i,
                    f"it has {describe_field(field, size)}, but {count} other "
                    f"{'graph has' if count == 1 else 'graphs have'} "
                    f"{describe_field(field, usual)}; give every graph the same fields",
                )


def column_names(removed: Iterable[Removed]) -> dict[str, tuple[str, ...]]:
    """The user's names of the columns of each field, where they were chosen by name."""
    names: dict[str, tuple[str, ...]] = {}
    for each in removed:
        names = {**each.columns, **names}
    return names


def warn_removed(removed: Iterable[Removed], stacklevel: int = 3, again: bool = False) -> None:
    """Warn once about all graphs of what their canonical form does not have.

    Self-loops and duplicate edges are counted. Attributes that are not read are named, with the
    setting that reads them; so are whole numbers that are read as numbers and may be codes.

    Args:
        removed: of each graph.
        stacklevel: of the warnings.
        again: whether other graphs of the collection have had the warnings about attributes.
    """
    removed = list(removed)
    loops, duplicates = sum(r.loops for r in removed), sum(r.duplicates for r in removed)
    changed = sum(1 for r in removed if r.loops or r.duplicates)
    warn_removed_edges(loops, duplicates, changed, len(removed), stacklevel + 1)
    if again:
        return
    for kind, side in (("vertex", 0), ("edge", 1)):
        unused: dict[str, Any] = {}
        for each in reversed(removed):
            unused |= each.vertices if kind == "vertex" else each.edges
        if unused:
            used = next((r.used[side] for r in removed if r.used[side]), ())
            warnings.warn(_describe_unused(kind, unused, used), stacklevel=stacklevel)
    codes = [each.codes for each in removed if each.codes is not None]
    values = sorted(frozenset().union(*codes))
    if codes and values[-1] > 1 and len(values) <= MOST_CODES:
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
        warnings.warn(
            f"removed {loops} self-loops and {duplicates} duplicate edges from {changed} of "
            f"{count} graphs; of an edge listed twice the first listing stays",
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
    return (
        f"these {kind} attributes are not used: {examples}{others}; to use them, set "
        f"{' and '.join(remedies)}"
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
            f"{len(empty):,} of {len(sizes):,} graphs have no vertices; "
            "skip_empty leaves such graphs of a file out"
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
    return f"{field} of {size} value{'s' * (size > 1)} {each}" if size else f"no {field}"


def _simple_edges(
    raw: RawGraph, symmetrise: bool
) -> tuple[Int[np.ndarray, "2 E"], Int[np.ndarray, " E"], Removed]:
    """Both directions of each edge, sorted; the listed edge of each; numbers of removed edges."""
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
        raw.removed or Removed(), loops=loops, duplicates=duplicates, columns=raw.columns
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
            f"{raw.edge(k)} names vertex {vertex}, but the graph has {raw.num_nodes} vertices; "
            f"vertices are numbered from 0"
        )
    for field, of, expected in (
        ("x", "vertices", raw.num_nodes),
        ("label", "vertices", raw.num_nodes),
        ("edge_attr", "edges", raw.edges.shape[1]),
        ("edge_label", "edges", raw.edges.shape[1]),
        ("edge_weight", "edges", raw.edges.shape[1]),
    ):
        value = getattr(raw, field)
        if value is not None and len(value) != expected:
            raise ValueError(
                f"{field} has {len(value)} rows, but the graph lists {expected} {of}; give one row "
                f"for each"
            )
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            _check_finite(raw, field, value)


def _check_finite(raw: RawGraph, field: str, value: np.ndarray) -> None:
    if np.isfinite(value).all():
        return
    bad = ~np.isfinite(value.reshape(len(value), -1))
    k = int(np.argmax(bad.any(axis=1)))
    of = raw.vertex(k) if field == "x" else raw.edge(k)
    found = value.reshape(len(value), -1)[k][bad[k]][0]
    raise ValueError(
        f"{field} of {of} is {found} in float32; expected finite numbers, so fill in or rescale "
        f"such values first"
    )


def _take(value: Labels | np.ndarray, index: np.ndarray) -> Labels | np.ndarray:
    return [value[k] for k in index] if isinstance(value, list) else value[index]


def _as_field(label: Labels) -> torch.Tensor | list:
    return label if isinstance(label, list) else torch.from_numpy(label)
