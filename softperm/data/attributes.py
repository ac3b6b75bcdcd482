"""Users' attributes of vertices and edges, as arrays of numbers and labels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from softperm.data.canonical import MOST_CODES, Attributes, Labels, RawGraph, Removed
from softperm.settings import STANDARD_FIELDS, FieldNames

Rows = Sequence[Mapping[str, Any]]


_GENERATED = ("bipartite", "block")
"""Vertex attributes that NetworkX's generators set; they are not mentioned as unused."""


def graph_from_lists(
    names: Sequence[Hashable],
    vertices: Rows,
    pairs: Sequence[tuple[Hashable, Hashable]],
    edges: Rows,
    once: bool,
) -> RawGraph:
    """A graph from a list of named vertices and a list of edges between them.

    Args:
        names: the name of each vertex.
        vertices: the attributes of each vertex; see :func:`choose_fields`.
        pairs: the names of the two ends of each edge.
        edges: the attributes of each edge.
        once: whether undirected edges are listed once.

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
            have, or has a value of the wrong type.
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
        vertices=None,
        listed=None,
        columns=columns,
    )
    unused = {} if fields.vertices_chosen else vertices.others(("label", "x", *_GENERATED))
    unused_edges = {} if fields.edges_chosen else edges.others(raw.edge_names)
    codes = None if fields.vertices_chosen else vertices.whole_numbers("x")
    if not unused and not unused_edges and codes is None:
        return raw
    used = vertices.present(("label", "x")), edges.present(raw.edge_names)
    return replace(raw, removed=Removed(0, 0, unused, unused_edges, used, codes))


_IDENTITY = {"id", "source", "target", "key"}  # of vertices and edges in node-link graphs


@dataclass(frozen=True)
class _Table:
    """The attributes of all vertices, or of all listed edges, by name.

    Args:
        kind: ``vertex`` or ``edge``.
        rows: a mapping for each vertex or edge; None if there are columns.
        columns: a column for each name; None for a name that is missing.
        name: names a vertex or an edge in messages.
    """

    kind: str
    rows: Sequence[Mapping[str, Any]] | None
    columns: Mapping[str, Any]
    name: Callable[[int], str]

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
        """Those of the names that there are."""
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
        """An attribute that the user asked for."""
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


def _present(items: Rows, key: str, name: Callable[[int], str]) -> list[Any] | None:
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
                f"{key} of {name(k)} has {row.size} values, but that of {name(0)} has "
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
