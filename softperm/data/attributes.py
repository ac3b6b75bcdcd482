"""What vertices and edges carry, turned from users' values into arrays: numbers and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from softperm.data.canonical import Labels, RawGraph


def attach(
    raw: RawGraph,
    vertices: Sequence[Mapping[str, Any]],
    listed: Sequence[Mapping[str, Any]],
    where: str,
) -> RawGraph:
    """Add to a graph what its vertices and edges carry under the names of NetworkX's convention.

    Args:
        raw: the bare graph.
        vertices: one mapping for each vertex, with ``label`` and ``x`` where it has them.
        listed: one mapping for each listed edge, with ``label``, ``x`` and ``weight``.
        where: what the user calls the graph.

    Returns:
        The graph with these fields. Other names are left aside.

    Raises:
        ValueError: a vertex or edge lacks what others have, or has a value of the wrong kind.
    """

    def vertex(k: int) -> str:
        return f"vertex {k if raw.names is None else repr(raw.names[k])}"

    def edge(k: int) -> str:
        return f"edge {raw.edge(k)}"

    weight = _numbers(listed, "weight", where, edge)
    if weight is not None and weight.shape[1] != 1:
        raise ValueError(f"{where}: weights are vectors; expected one number an edge, or use x")
    return replace(
        raw,
        x=_numbers(vertices, "x", where, vertex),
        label=_labels(vertices, "label", where, vertex),
        edge_attr=_numbers(listed, "x", where, edge),
        edge_label=_labels(listed, "label", where, edge),
        edge_weight=None if weight is None else weight[:, 0],
    )


def as_rows(value: Any, field: str, where: str) -> Float[np.ndarray, "K F"] | None:
    """A whole array of numbers, one row for each vertex or edge; None if its rows are empty."""
    array = _whole(value, field, where)
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2):
        raise ValueError(
            f"{where}: {field} is an array of {array.dtype} with {array.ndim} dimensions; "
            f"expected real numbers, one row for each {_owner(field)}"
        )
    if array.ndim == 2 and array.shape[1] == 0:
        return None
    return _float32(array if array.ndim == 2 else array[:, None])


def as_labels(value: Any, field: str, where: str) -> Labels | None:
    """A whole array or list of discrete labels, one row for each vertex or edge."""
    if isinstance(value, (list, tuple)) and not all(isinstance(v, (list, tuple)) for v in value):
        return _codes(value, field, where, lambda k: f"{_owner(field)} {k}")
    array = _whole(value, field, where)
    if array.dtype.kind == "U" and array.ndim == 1:
        return array.tolist()
    if array.dtype.kind not in "biu" or array.ndim not in (1, 2):
        raise ValueError(
            f"{where}: {field} is an array of {array.dtype} with {array.ndim} dimensions; expected "
            f"integers or strings for each {_owner(field)} (real numbers go in "
            f"{'edge_attr' if field == 'edge_label' else 'x'})"
        )
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise ValueError(f"{where}: {field} holds {int(array.max())}; expected less than 2**63")
    if array.ndim == 2 and array.shape[1] < 2:
        return array[:, 0].astype(np.int64) if array.shape[1] else None
    return array.astype(np.int64)


def _owner(field: str) -> str:
    return "edge" if field.startswith("edge") else "vertex"


def _whole(value: Any, field: str, where: str) -> np.ndarray:
    """An array of rows that are all of one length."""
    try:
        return _array(value)
    except ValueError:
        raise ValueError(
            f"{where}: {field} has rows of several lengths; expected one row for each "
            f"{_owner(field)}, all of one length"
        ) from None


def _array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value if value.layout is torch.strided else value.to_dense()
        return (value.float() if value.is_floating_point() else value).numpy()
    return np.asarray(value)


def _float32(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is reported as such
        return array.astype(np.float32)


def _present(
    carriers: Sequence[Mapping[str, Any]], key: str, where: str, name: Callable[[int], str]
) -> list[Any] | None:
    """The values under ``key``; None where nobody has one, an error where only some do."""
    if not any(carriers):
        return None
    values = [carrier.get(key) for carrier in carriers]
    missing = [k for k, value in enumerate(values) if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        raise ValueError(
            f"{where}: {name(missing[0])} has no {key}, but {len(values) - len(missing)} others "
            f"have; give it to all or to none"
        )
    return values


def _numbers(
    carriers: Sequence[Mapping[str, Any]], key: str, where: str, name: Callable[[int], str]
) -> Float[np.ndarray, "K F"] | None:
    """Numbers or vectors of one size, one row for each carrier."""
    values = _present(carriers, key, where, name)
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
                f"{where}: {key} of {name(k)} is {value!r}; expected a number or a vector of "
                f"numbers (a discrete value goes in label)"
            )
        if row.shape != first.shape:
            raise ValueError(
                f"{where}: {key} of {name(k)} has {row.size} values, but that of {name(0)} has "
                f"{first.size}; give all the same size"
            )
    rows = [np.atleast_1d(value) for value in values]  # some are bare numbers, some lists of one
    return _float32(np.stack(rows))


def _labels(
    carriers: Sequence[Mapping[str, Any]], key: str, where: str, name: Callable[[int], str]
) -> Labels | None:
    values = _present(carriers, key, where, name)
    return None if values is None else _codes(values, key, where, name)


def _codes(values: Sequence[Any], key: str, where: str, name: Callable[[int], str]) -> Labels:
    """Integer labels as an array; strings, or both kinds together, as a list."""
    kinds = set(map(type, values))
    if kinds == {str}:
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
                f"{where}: {key} of {name(k)} is {value!r}; expected an integer or a string "
                f"(a continuous value goes in {'edge_attr' if key == 'edge_label' else 'x'})"
            )
    return plain if any(isinstance(v, str) for v in plain) else np.array(plain, dtype=np.int64)
