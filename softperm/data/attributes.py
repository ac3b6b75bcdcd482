"""Users' attributes of vertices and edges, as arrays of numbers and labels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from softperm.data.canonical import Labels, RawGraph

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
