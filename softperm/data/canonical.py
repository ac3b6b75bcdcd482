"""The one form every graph is brought into: simple, undirected, sorted, finite."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch_geometric.data import Data

Labels = Int[np.ndarray, "..."] | list[int | str]


@dataclass(frozen=True)
class RawGraph:
    """What a user's object says of one graph, before it is checked and put in order.

    Args:
        num_nodes: number of vertices N.
        edges: the two ends of every edge, as listed.
        once: whether the source lists an undirected edge once. Where it does not, an edge without
            its reverse is a directed edge.
        x: continuous vertex attributes.
        label: discrete vertex labels, one or several a vertex.
        edge_attr: continuous edge attributes, one row for each listed edge.
        edge_label: discrete edge labels, one or several for each listed edge.
        edge_weight: one weight for each listed edge.
        names: what the user calls the vertices, for error messages; None means 0 … N − 1.
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

    def edge(self, k: int) -> str:
        """Listed edge ``k`` in the user's own terms."""
        u, v = (int(end) for end in self.edges[:, k])
        return repr((u, v) if self.names is None else (self.names[u], self.names[v]))


@dataclass(frozen=True)
class Removed:
    """What :func:`canonicalise` left out of one graph: self-loops and repeated edges."""

    loops: int
    duplicates: int


def canonicalise(raw: RawGraph, where: str, symmetrise: bool = False) -> tuple[Data, Removed]:
    """Bring one graph into canonical form.

    Self-loops go, and of an edge listed more than once the first listing stays, with its label,
    attributes and weight. A graph whose weights are all 1 is an unweighted graph, and a graph
    without edges carries no edge quantities: both come out without these fields.

    Args:
        raw: the graph as its source lists it.
        where: what the user calls the graph, as in ``graph 17``; errors begin with it.
        symmetrise: whether a directed edge stands for the undirected one. Where the two directions
            of an edge disagree in what they carry, the first listed one counts.

    Returns:
        A graph with ``edge_index`` (2, E) int64 (both directions, sorted by row, then column),
        ``num_nodes`` and, where the source has them, ``x`` (N, F) float32, ``label`` (N,) or (N, L)
        int64 or a list, ``edge_attr`` (E, d_e) float32, ``edge_label`` (E,) or (E, L) int64 or a
        list, ``edge_weight`` (E,) float32; and what was left out.

    Raises:
        ValueError: no vertices, an edge to a missing vertex, a directed edge, a number that is not
            finite, or a field of another length than the vertices or edges.
    """
    _check(raw, where)
    edges, listing, removed = _simple_edges(raw, where, symmetrise)
    graph = Data(edge_index=torch.from_numpy(edges), num_nodes=raw.num_nodes)
    if raw.x is not None:
        graph.x = torch.from_numpy(raw.x)
    if raw.label is not None:
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


def check_alike(graphs: Sequence[Data], name: Callable[[int], str]) -> None:
    """Raise unless all graphs carry the same fields, of the same sizes.

    Weights are exempt, since no weights means weights of 1; so are the edges of a graph that has
    none.

    Args:
        graphs: canonical graphs.
        name: what the user calls the graph at a position.
    """
    for field in ("x", "label", "edge_attr", "edge_label"):
        edgewise = field.startswith("edge")
        among = [i for i, g in enumerate(graphs) if not edgewise or count_edges(g) > 0]
        sizes = [width(graphs[i], field) for i in among]
        usual, count = Counter(sizes).most_common(1)[0] if sizes else (0, 0)
        for i, size in zip(among, sizes, strict=True):
            if size != usual:
                raise ValueError(
                    f"{name(i)} has {carries(field, size)}, but {count} other "
                    f"{'graph has' if count == 1 else 'graphs have'} {carries(field, usual)}; "
                    f"give every graph the same fields"
                )


def warn_removed(removed: Iterable[Removed], stacklevel: int = 3) -> None:
    """Warn once, with counts, if any graph lost self-loops or duplicate edges."""
    removed = list(removed)
    loops, duplicates = sum(r.loops for r in removed), sum(r.duplicates for r in removed)
    if loops or duplicates:
        touched = sum(1 for r in removed if r.loops or r.duplicates)
        warnings.warn(
            f"removed {loops} self-loops and {duplicates} duplicate edges from {touched} of "
            f"{len(removed)} graphs; of an edge listed twice the first listing was kept",
            stacklevel=stacklevel,
        )


def count_edges(graph: Data) -> int:
    """Number of directed edges of a graph."""
    return graph["edge_index"].shape[1]


def width(graph: Data, field: str) -> int:
    """Number of columns of a graph's field; 0 where it has none."""
    value = getattr(graph, field, None)
    if value is None:
        return 0
    return 1 if isinstance(value, list) or value.ndim == 1 else value.shape[1]


def carries(field: str, size: int) -> str:
    """What a graph with a field of so many columns carries, in words."""
    each = "an edge" if field.startswith("edge") else "a vertex"
    return f"{field} of {size} value{'s' * (size > 1)} {each}" if size else f"no {field}"


def _simple_edges(
    raw: RawGraph, where: str, symmetrise: bool
) -> tuple[Int[np.ndarray, "2 E"], Int[np.ndarray, " E"], Removed]:
    """Both directions of every edge, sorted; which listing each comes from; what was removed."""
    n = raw.num_nodes
    kept = np.flatnonzero(raw.edges[0] != raw.edges[1])
    u, v = raw.edges[:, kept]
    low, high = np.minimum(u, v), np.maximum(u, v)
    key = low * n + high
    order = np.argsort(
        2 * key + (u > v), kind="stable"
    )  # an edge's listings together, upward first
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))  # (U,), one for each undirected edge
    ends = np.append(starts[1:], key.size)
    cumulated = np.append(0, np.cumsum((u < v)[order]))
    upward = cumulated[ends] - cumulated[starts]  # (U,), listings from the lower to the higher end
    downward = ends - starts - upward
    both = (upward > 0) & (downward > 0)
    first = order[starts]
    reverse = order[np.where(both, starts + upward, starts)]  # the same edge, listed the other way
    if not symmetrise:
        _check_undirected(raw, where, both, kept[first], kept[reverse])
    first = np.minimum(first, reverse)
    row = np.concatenate([low[first], high[first]])
    column = np.concatenate([high[first], low[first]])
    sort = np.argsort(row * n + column, kind="stable")
    duplicates = int((np.maximum(upward, downward) - 1).sum())
    listing = kept[np.concatenate([first, first])[sort]]
    removed = Removed(loops=raw.edges.shape[1] - kept.size, duplicates=duplicates)
    return np.stack([row[sort], column[sort]]), listing, removed


def _check_undirected(
    raw: RawGraph, where: str, both: np.ndarray, first: np.ndarray, reverse: np.ndarray
) -> None:
    """Raise if an edge has one direction only, or its directions carry different things."""
    remedy = "read it with symmetrise=True (as_graphs has it) to take every edge as undirected"
    if not both.all() and (both.any() or not raw.once):
        edge = raw.edge(int(first[~both].min()))
        raise ValueError(
            f"{where}: edge {edge} is listed in one direction only, so the graph is directed; "
            f"list every edge both ways, or {remedy}"
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
            noise = 1e-7 * np.abs(value).max(initial=0.0)  # of what rounding left of zeros
            differs = ~np.isclose(one, other, rtol=1e-5, atol=noise)
        else:
            differs = np.not_equal(one, other)
        if differs.any():
            k = int(np.argmax(differs.reshape(len(first), -1).any(axis=1)))
            raise ValueError(
                f"{where}: edge {raw.edge(int(first[k]))} has {field} {one[k]} in this direction "
                f"and {other[k]} in the other; make them equal, or {remedy}, of which the first "
                f"listed direction counts"
            )


def _check(raw: RawGraph, where: str) -> None:
    """Raise if the graph is empty, an edge's end is missing, or a field is short or infinite."""
    if raw.num_nodes == 0:
        raise ValueError(f"{where} has no vertices; leave it out")
    outside = (raw.edges < 0) | (raw.edges >= raw.num_nodes)
    if outside.any():
        k = int(np.argmax(outside.any(axis=0)))
        vertex = int(raw.edges[:, k][outside[:, k]][0])
        raise ValueError(
            f"{where}: edge {raw.edge(k)} names vertex {vertex}, but the graph has "
            f"{raw.num_nodes} vertices; vertices are numbered from 0"
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
                f"{where}: {field} has {len(value)} rows, but the graph lists {expected} {of}; "
                f"give one row for each"
            )
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            _check_finite(raw, where, field, value)


def _check_finite(raw: RawGraph, where: str, field: str, value: np.ndarray) -> None:
    if np.isfinite(value).all():
        return
    bad = ~np.isfinite(value.reshape(len(value), -1))
    k = int(np.argmax(bad.any(axis=1)))
    if field == "x":
        of = f"vertex {k if raw.names is None else repr(raw.names[k])}"
    else:
        of = f"edge {raw.edge(k)}"
    found = value.reshape(len(value), -1)[k][bad[k]][0]
    raise ValueError(
        f"{where}: {field} of {of} is {found} in float32; expected finite numbers, so fill in "
        f"or rescale such values first"
    )


def _take(value: Labels | np.ndarray, index: np.ndarray) -> Labels | np.ndarray:
    return [value[k] for k in index] if isinstance(value, list) else value[index]


def _as_field(label: Labels) -> torch.Tensor | list:
    return label if isinstance(label, list) else torch.from_numpy(label)
