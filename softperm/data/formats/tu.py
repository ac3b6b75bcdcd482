"""TUDataset text, from a folder or a zip archive, into ragged arrays or canonical graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import DTypeLike
from torch_geometric.data import Data

from softperm.data.formats.archive import Archive
from softperm.data.formats.tu_edges import number_within, undirected_edges
from softperm.data.formats.tu_text import read_table


@dataclass(frozen=True)
class TUArrays:
    """A whole dataset laid end to end, graphs in the order of the files.

    Args:
        name: what the files are called before their first underscore.
        ptr: where each graph's vertices begin, with the total at the end.
        edge_ptr: where each graph's directed edges begin, with the total at the end.
        edge_index: both directions of every edge, vertices numbered within their graph, sorted.
        label: discrete vertex labels as the file has them.
        attributes: continuous vertex attributes.
        edge_label: discrete edge labels as the file has them.
        edge_attr: continuous edge attributes.
        graph_label: the class of each graph as the file has it.
        graph_attributes: regression targets of each graph; NaN where the file says so.
        self_loops: lines of the edge list left out because they join a vertex to itself.
        duplicates: lines of the edge list left out because they repeat another.
    """

    name: str
    ptr: Int[np.ndarray, " B1"]
    edge_ptr: Int[np.ndarray, " B1"]
    edge_index: Int[np.ndarray, "2 E"]
    label: Int[np.ndarray, "V L"] | None
    attributes: Float[np.ndarray, "V F"] | None
    edge_label: Int[np.ndarray, "E Le"] | None
    edge_attr: Float[np.ndarray, "E Fe"] | None
    graph_label: Int[np.ndarray, "B C"] | None
    graph_attributes: Float[np.ndarray, "B T"] | None
    self_loops: int
    duplicates: int

    def __len__(self) -> int:
        return self.ptr.size - 1


def read_tu(path: Path, name: str | None = None, symmetrise: bool = False) -> TUArrays:
    """Read a dataset in the TUDataset layout: ``NAME_A.txt``, ``NAME_graph_indicator.txt``, ….

    The layout lists an undirected edge in both directions, so a list that lacks a reverse is an
    error, as is an edge listed twice with two labels. With ``symmetrise`` every listed edge is
    taken as undirected and the first line that names it decides its label and attributes.
    Self-loops and repeated lines are left out and counted.

    Args:
        path: a folder or zip archive that holds the files, at its top or in a subfolder.
        name: NAME; by default that of the only ``*_A.txt``.
        symmetrise: whether one line is enough for an undirected edge.

    Returns:
        The arrays, graphs in the order of ``NAME_graph_labels.txt``.

    Raises:
        ValueError: if a file is missing, damaged, cut short, or contradicts another.
    """
    with Archive(Path(path)) as archive:
        files = _Files(archive, _only_name(archive) if name is None else name)
        tables = _read_tables(files)
    tables = _grouped(tables)
    sizes = np.bincount(tables.graph_of)  # (B,)
    ptr = np.concatenate([[0], np.cumsum(sizes)])  # (B + 1,)
    edge_data = (tables.edge_label, tables.edge_attr)
    edges, listing = undirected_edges(tables.ends, ptr, edge_data, symmetrise, files.name)
    edge_label, edge_attr = (None if d is None else d[listing] for d in edge_data)
    return TUArrays(
        name=files.name,
        ptr=ptr,
        edge_ptr=edges.row_ptr[ptr],
        edge_index=number_within(edges, ptr),
        label=tables.label,
        attributes=tables.attributes,
        edge_label=edge_label,
        edge_attr=edge_attr,
        graph_label=tables.graph_label,
        graph_attributes=tables.graph_attributes,
        self_loops=edges.self_loops,
        duplicates=edges.duplicates,
    )


def to_graphs(arrays: TUArrays) -> list[Data]:
    """Each graph as its own canonical PyG ``Data``.

    Args:
        arrays: the dataset laid end to end.

    Returns:
        The graphs in order, with ``edge_index`` (2, E) and, where the dataset has them, ``x``
        (N, F), ``label`` (N,), ``edge_attr`` (E, d_e) and ``edge_label`` (E,); labels of several
        columns keep them: (N, L) and (E, Le).
    """

    def column(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values[:, 0] if values.shape[1] == 1 else values).clone()

    graphs = []
    for i in range(len(arrays)):
        v, e = slice(*arrays.ptr[i : i + 2]), slice(*arrays.edge_ptr[i : i + 2])
        data = Data(edge_index=torch.from_numpy(arrays.edge_index[:, e].astype(np.int64)))
        data.num_nodes = int(arrays.ptr[i + 1] - arrays.ptr[i])
        if arrays.attributes is not None:
            data.x = torch.from_numpy(arrays.attributes[v].copy())
        if arrays.label is not None:
            data.label = column(arrays.label[v])
        if arrays.edge_attr is not None:
            data.edge_attr = torch.from_numpy(arrays.edge_attr[e].copy())
        if arrays.edge_label is not None:
            data.edge_label = column(arrays.edge_label[e])
        graphs.append(data)
    return graphs


@dataclass(frozen=True)
class _Files:
    """The text files of one dataset in its archive."""

    archive: Archive
    name: str

    def _read(self, kind: str, dtype: DTypeLike, columns: int | None = None) -> np.ndarray | None:
        member = self.archive.find(f"{self.name}_{kind}.txt")
        if member is None:
            return None
        return read_table(self.archive.blocks(member), Path(member).name, dtype, columns)

    def need(self, kind: str, dtype: DTypeLike, columns: int) -> np.ndarray:
        table = self._read(kind, dtype, columns)
        if table is None:
            raise ValueError(
                f"{self.archive.path}: {self.name}_{kind}.txt is missing; a TUDataset folder holds "
                f"{self.name}_A.txt and {self.name}_graph_indicator.txt at least"
            )
        return table

    def rows(self, kind: str, dtype: DTypeLike, rows: int, of: str) -> np.ndarray | None:
        table = self._read(kind, dtype)
        if table is not None and len(table) != rows:
            raise ValueError(
                f"{self.name}_{kind}.txt: expected {rows:,} lines, one for each of the {of}, found "
                f"{len(table):,}; the file is cut short or belongs to another dataset"
            )
        return table


@dataclass(frozen=True)
class _Tables:
    """The files' contents, agreeing with each other; vertices and graphs numbered from 0."""

    graph_of: np.ndarray  # (V,)
    ends: np.ndarray  # (lines, 2)
    label: np.ndarray | None
    attributes: np.ndarray | None
    edge_label: np.ndarray | None
    edge_attr: np.ndarray | None
    graph_label: np.ndarray | None
    graph_attributes: np.ndarray | None


def _read_tables(files: _Files) -> _Tables:
    graph_of = files.need("graph_indicator", np.int64, 1)[:, 0]
    graphs = _count_graphs(graph_of, f"{files.name}_graph_indicator.txt")
    ends = files.need("A", np.int32, 2)
    graph_of -= 1
    _check_ends(ends, graph_of, files.name)
    ends -= 1
    by_graph = (graphs, f"graphs of {files.name}_graph_indicator.txt")
    by_vertex = (graph_of.size, f"vertices of {files.name}_graph_indicator.txt")
    by_line = (len(ends), f"edges of {files.name}_A.txt")
    return _Tables(
        graph_of=graph_of,
        ends=ends,
        label=files.rows("node_labels", np.int64, *by_vertex),
        attributes=files.rows("node_attributes", np.float32, *by_vertex),
        edge_label=files.rows("edge_labels", np.int64, *by_line),
        edge_attr=files.rows("edge_attributes", np.float32, *by_line),
        graph_label=files.rows("graph_labels", np.int64, *by_graph),
        graph_attributes=files.rows("graph_attributes", np.float64, *by_graph),
    )


def _grouped(tables: _Tables) -> _Tables:
    """The same dataset with each graph's vertices side by side, in the order listed."""
    if not (np.diff(tables.graph_of) < 0).any():
        return tables
    order = np.argsort(tables.graph_of, kind="stable")  # (V,)
    rank = np.empty(order.size, dtype=np.int32)
    rank[order] = np.arange(order.size, dtype=np.int32)
    return replace(
        tables,
        graph_of=tables.graph_of[order],
        ends=rank[tables.ends],
        label=None if tables.label is None else tables.label[order],
        attributes=None if tables.attributes is None else tables.attributes[order],
    )


def _only_name(archive: Archive) -> str:
    names = {Path(n).name.removesuffix("_A.txt") for n in archive.names if n.endswith("_A.txt")}
    if len(names) != 1:
        found = f"found {', '.join(sorted(names))}: say which" if names else "found none"
        raise ValueError(f"{archive.path}: expected one file NAME_A.txt, {found}")
    return names.pop()


def _count_graphs(graph_of: np.ndarray, where: str) -> int:
    """The number of graphs, once every one of them is known to have a vertex."""
    if graph_of.size == 0:
        raise ValueError(f"{where}: expected a graph number for every vertex, found an empty file")
    graphs, low = int(graph_of.max()), int(graph_of.argmin())
    if graph_of[low] < 1:
        raise ValueError(
            f"{where} line {low + 1}: expected a graph number from 1 on, found {graph_of[low]}"
        )
    present = np.unique(graph_of)
    if present.size < graphs:
        empty = int(np.argmax(np.append(present, 0) != np.arange(1, present.size + 2)))
        raise ValueError(
            f"graph {empty}: {where} numbers graphs up to {graphs:,} but gives this one no vertex"
        )
    return graphs


def _check_ends(ends: np.ndarray, graph_of: np.ndarray, name: str) -> None:
    line = _first_wrong(ends, graph_of)
    if line < 0:
        return
    u, v = ends[line].tolist()
    outside = [w for w in (u, v) if not 1 <= w <= graph_of.size]
    if outside:
        raise ValueError(
            f"{name}_A.txt line {line + 1}: edge ({u}, {v}) names vertex {outside[0]}, but the "
            f"dataset has {graph_of.size:,} vertices, numbered from 1"
        )
    raise ValueError(
        f"graph {graph_of[u - 1]}: {name}_A.txt line {line + 1} joins its vertex {u} to vertex {v} "
        f"of graph {graph_of[v - 1]}; an edge stays within its graph"
    )


@numba.njit(nogil=True, cache=True)
@no_type_check
def _first_wrong(ends, graph_of):
    """The first line that names no vertex, or vertices of two graphs; −1 if none does."""
    for k in range(len(ends)):
        u, v = ends[k, 0] - 1, ends[k, 1] - 1
        if u < 0 or v < 0 or u >= graph_of.size or v >= graph_of.size:
            return k
        if graph_of[u] != graph_of[v]:
            return k
    return -1
