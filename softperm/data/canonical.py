"""The canonical form of a graph: simple, undirected, edges sorted, all numbers finite.

Functions here see one graph and do not know its position in the user's list: they raise
``ValueError`` with the problem, and the caller adds the graph (``softperm.errors``).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.errors import GraphError, GraphWarning
from softperm.pyg import Data

Labels = Int[np.ndarray, "..."] | list[int | str]
SYMMETRISE = "pass symmetrise=True (--symmetrise on the command line)"


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

    def vertex(self, k: int) -> str:
        """Vertex ``k`` with the user's name, for messages."""
        return f"vertex {k if self.names is None else repr(self.names[k])}"

    def edge(self, k: int) -> str:
        """Listed edge ``k`` with the user's names of its ends, for messages."""
        u, v = (int(end) for end in self.edges[:, k])
        return f"edge {(u, v) if self.names is None else (self.names[u], self.names[v])!r}"


@dataclass(frozen=True)
class Removed:
    """Number of self-loops and repeated edges that :func:`canonicalise` removed from a graph."""

    loops: int
    duplicates: int


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

    Args:
        graphs: canonical graphs.

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


def warn_removed(removed: Iterable[Removed], stacklevel: int = 3) -> None:
    """Warn once, with counts, if self-loops or duplicate edges were removed from any graph."""
    removed = list(removed)
    loops, duplicates = sum(r.loops for r in removed), sum(r.duplicates for r in removed)
    if loops or duplicates:
        touched = sum(1 for r in removed if r.loops or r.duplicates)
        warnings.warn(
            f"removed {loops} self-loops and {duplicates} duplicate edges from {touched} of "
            f"{len(removed)} graphs; of an edge listed twice the first listing stays",
            stacklevel=stacklevel,
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
    return 1 if isinstance(value, list) or value.ndim == 1 else value.shape[1]


def describe_field(field: str, size: int) -> str:
    """A field with its number of columns in words, for error messages."""
    each = "an edge" if field.startswith("edge") else "a vertex"
    return f"{field} of {size} value{'s' * (size > 1)} {each}" if size else f"no {field}"


def _simple_edges(
    raw: RawGraph, symmetrise: bool
) -> tuple[Int[np.ndarray, "2 E"], Int[np.ndarray, " E"], Removed]:
    """Both directions of every edge, sorted; the listing each comes from; counts of removals."""
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
    removed = Removed(loops=raw.edges.shape[1] - no_loop.size, duplicates=duplicates)
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


# Users' attributes of vertices and edges, as arrays of numbers and labels.


Attributes = Sequence[Mapping[str, Any]]


def graph_from_lists(
    names: Sequence[Hashable],
    vertices: Attributes,
    pairs: Sequence[tuple[Hashable, Hashable]],
    edges: Attributes,
    once: bool,
) -> RawGraph:
    """A graph from a list of named vertices and a list of edges between them.

    Args:
        names: the name of each vertex.
        vertices: the attributes of each vertex; see :func:`attach`.
        pairs: the names of the two ends of each edge.
        edges: the attributes of each edge.
        once: whether undirected edges are listed once.

    Returns:
        The graph.

    Raises:
        ValueError: two vertices of one name, an edge to an unknown vertex, or wrong attributes.
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
    return attach(raw, vertices, edges)


def attach(raw: RawGraph, vertices: Attributes, edges: Attributes) -> RawGraph:
    """Add the attributes of vertices and edges, by the names that NetworkX users give them.

    Args:
        raw: the graph without attributes.
        vertices: one mapping for each vertex, with ``label`` and ``x`` where it has them.
        edges: one mapping for each listed edge, with ``label``, ``x`` and ``weight``.

    Returns:
        The graph with these fields. Other names are ignored.

    Raises:
        ValueError: a vertex or edge lacks what others have, or has a value of the wrong type.
    """
    weight = _numbers(edges, "weight", raw.edge)
    if weight is not None and weight.shape[1] != 1:
        raise ValueError("weights are vectors; expected one number an edge, or use x")
    return replace(
        raw,
        x=_numbers(vertices, "x", raw.vertex),
        label=_labels(vertices, "label", raw.vertex),
        edge_attr=_numbers(edges, "x", raw.edge),
        edge_label=_labels(edges, "label", raw.edge),
        edge_weight=None if weight is None else weight[:, 0],
    )


def as_rows(value: Any, field: str) -> Float[np.ndarray, "K F"] | None:
    """An array of numbers, one row for each vertex or edge; None if its rows are empty."""
    array = _rectangular(value, field)
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2):
        raise ValueError(
            f"{field} is an array of {array.dtype} with {array.ndim} dimensions; expected real "
            f"numbers, one row for each {_owner(field)}"
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
    if array.dtype.kind not in "biu" or array.ndim not in (1, 2):
        raise ValueError(
            f"{field} is an array of {array.dtype} with {array.ndim} dimensions; expected integers "
            f"or strings for each {_owner(field)} (real numbers go in "
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


def _present(items: Attributes, key: str, name: Callable[[int], str]) -> list[Any] | None:
    """The values of ``key``; None if no item has one, an error if only some have."""
    if not any(items):
        return None
    values = [item.get(key) for item in items]
    missing = [k for k, value in enumerate(values) if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        raise ValueError(
            f"{name(missing[0])} has no {key}, but {len(values) - len(missing)} others have; give "
            f"it to all or to none"
        )
    return values


def _numbers(
    items: Attributes, key: str, name: Callable[[int], str]
) -> Float[np.ndarray, "K F"] | None:
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
                f"{key} of {name(k)} has {row.size} values, but that of {name(0)} has "
                f"{first.size}; give all the same size"
            )
    rows = [np.atleast_1d(value) for value in values]  # some are numbers, some lists of length 1
    return _float32(np.stack(rows))


def _labels(items: Attributes, key: str, name: Callable[[int], str]) -> Labels | None:
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
