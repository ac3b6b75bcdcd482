"""A TUDataset folder as canonical graphs and named targets."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from torch_geometric.data import Data

from softperm.data.formats.tu import TUArrays, read_tu, to_graphs


def read_tu_graphs(path: Path, symmetrise: bool) -> tuple[str, list[Data], dict[str, np.ndarray]]:
    """The name of a dataset in TUDataset's format, its graphs, and its targets.

    Args:
        path: the folder or zip.
        symmetrise: whether one line is enough for an undirected edge.

    Returns:
        The name; canonical graphs in the order of the files; by name, the targets of each graph:
        ``graph_label``, the same again as ``target``, and ``graph_attribute``. Where a file has
        several columns, they are called ``graph_attribute_0``, ``graph_attribute_1``, ….

    Raises:
        ValueError: the files are unusable, or hold an attribute that is not finite.
    """
    arrays = read_tu(path, symmetrise=symmetrise)
    _check_finite(arrays)
    if arrays.self_loops or arrays.duplicates:
        warnings.warn(
            f"{path}: left out {arrays.self_loops} self-loops and {arrays.duplicates} duplicates "
            f"among the lines of {arrays.name}_A.txt",
            stacklevel=4,
        )
    targets = _columns("graph_label", arrays.graph_label)
    if "graph_label" in targets:
        targets["target"] = targets["graph_label"]
    return (
        arrays.name,
        to_graphs(arrays),
        targets | _columns("graph_attribute", arrays.graph_attributes),
    )


def _columns(name: str, table: np.ndarray | None) -> dict[str, np.ndarray]:
    if table is None:
        return {}
    if table.shape[1] == 1:
        return {name: table[:, 0]}
    return {f"{name}_{k}": table[:, k] for k in range(table.shape[1])}


def _check_finite(arrays: TUArrays) -> None:
    for kind, of, table, ptr in (
        ("node_attributes", "vertex", arrays.attributes, arrays.ptr),
        ("edge_attributes", "edge", arrays.edge_attr, arrays.edge_ptr),
    ):
        if table is None or np.isfinite(table).all():
            continue
        row = int(np.argmin(np.isfinite(table).all(axis=1)))
        graph = int(np.searchsorted(ptr, row, side="right")) - 1
        if of == "edge":
            u, v = arrays.edge_index[:, row].tolist()
            place = f"edge ({u}, {v})"
        else:
            place = f"vertex {row - int(ptr[graph])}"
        raise ValueError(
            f"graph {graph}: {arrays.name}_{kind}.txt gives {place} a value that is not a finite "
            f"number; fill in or rescale such values first"
        )
