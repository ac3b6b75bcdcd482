"""TUDataset text files, from a folder or a zip archive, as ragged arrays or canonical graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from numpy.typing import DTypeLike

from softperm.data.archive import Archive
from softperm.data.canonical import SYMMETRISE, first_not_finite
from softperm.data.collection import slice_graph
from softperm.data.formats.tables import as_number
from softperm.errors import GraphError, by_count, counted
from softperm.pyg import Data

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TUArrays:
    """A whole dataset laid end to end, graphs in the order of the files.

    Args:
        name: the files' names before ``_A.txt``.
        ptr: where each graph's vertices begin, with the total at the end.
        edge_ptr: where each graph's directed edges begin, with the total at the end.
        edge_index: both directions of every edge, vertices numbered within their graph, sorted.
        label: discrete vertex labels as in the file.
        attributes: continuous vertex attributes.
        edge_label: discrete edge labels as in the file.
        edge_attr: continuous edge attributes.
        graph_label: the class of each graph as in the file.
        graph_attributes: regression targets of each graph; NaN where the file says so.
        self_loops: number of lines of the edge list removed as self-loops.
        duplicates: number of lines of the edge list removed as repetitions.
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

    The layout lists an undirected edge in both directions, so a missing reverse is an error, as is
    an edge listed twice with two labels. With ``symmetrise`` every listed edge is undirected, and
    the first line that names it decides its label and attributes. Self-loops and repeated lines
    are removed and counted.

    Args:
        path: a folder or zip archive with the files, at its top or in a subfolder.
        name: NAME; by default that of the only ``*_A.txt``.
        symmetrise: whether one line is enough for an undirected edge.

    Returns:
        The arrays, graphs in the order of ``NAME_graph_labels.txt``.

    Raises:
        ValueError: a file is missing, damaged, cut short, or contradicts another.
    """
    with Archive(Path(path)) as archive:
        files = _Files(archive, _only_name(archive) if name is None else name)
        ptr, ends, tables = _read_tables(files)
    data = (tables["edge_label"], tables["edge_attr"])
    edge_ptr, edge_index, line, self_loops, duplicates = _undirected_edges(
        ends, ptr, data, symmetrise, files.name
    )
    for field, table in zip(("edge_label", "edge_attr"), data, strict=True):
        tables[field] = None if table is None else table[line]
    return TUArrays(
        name=files.name,
        ptr=ptr,
        edge_ptr=edge_ptr,
        edge_index=edge_index,
        self_loops=self_loops,
        duplicates=duplicates,
        **tables,
    )


def read_tu_graphs(path: Path, symmetrise: bool) -> tuple[str, list[Data], dict[str, np.ndarray]]:
    """The name of a dataset in TUDataset's format, its graphs, and its targets.

    Returns:
        The name; canonical graphs in the order of the files; the targets of each graph by name:
        ``graph_label``, the same under the name ``target``, and ``graph_attribute``. Several
        columns are named ``graph_attribute_0``, ``graph_attribute_1``, ….

    Raises:
        ValueError: the files are unusable, or have an attribute that is not finite.
    """
    arrays = read_tu(path, symmetrise=symmetrise)
    _check_finite(arrays)
    if arrays.self_loops or arrays.duplicates:
        lines = ((arrays.self_loops, "self-loop"), (arrays.duplicates, "duplicate"))
        removed = " and ".join(counted(count, kind) for count, kind in lines if count)
        warnings.warn(
            f"{path}: removed {removed} among the lines of {arrays.name}_A.txt",
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


def to_graphs(arrays: TUArrays) -> list[Data]:
    """Each graph as its own canonical PyG ``Data``.

    Returns:
        The graphs in order, with ``edge_index`` (2, E) and, where the dataset has them, ``x``
        (N, F), ``label`` (N,), ``edge_attr`` (E, d_e) and ``edge_label`` (E,); labels of several
        columns are (N, L) and (E, Le).
    """
    fields = {
        "x": arrays.attributes,
        "label": arrays.label,
        "edge_attr": arrays.edge_attr,
        "edge_label": arrays.edge_label,
    }
    tensors = {name: torch.from_numpy(a) for name, a in fields.items() if a is not None}
    ptr, edge_ptr = torch.from_numpy(arrays.ptr), torch.from_numpy(arrays.edge_ptr)
    edge_index = torch.from_numpy(arrays.edge_index)
    return [slice_graph(i, ptr, edge_ptr, edge_index, tensors) for i in range(len(arrays))]


def _columns(name: str, table: np.ndarray | None) -> dict[str, np.ndarray]:
    if table is None:
        return {}
    if table.shape[1] == 1:
        return {name: table[:, 0]}
    return {f"{name}_{k}": table[:, k] for k in range(table.shape[1])}


def _check_finite(arrays: TUArrays) -> None:
    for kind, table, ptr in (
        ("node_attributes", arrays.attributes, arrays.ptr),
        ("edge_attributes", arrays.edge_attr, arrays.edge_ptr),
    ):
        found = None if table is None else first_not_finite(table, ptr)
        if found is None:
            continue
        graph, row = found
        place = f"vertex {row}"
        if kind == "edge_attributes":
            place = f"edge {tuple(arrays.edge_index[:, ptr[graph] + row].tolist())}"
        raise GraphError(
            graph,
            f"{arrays.name}_{kind}.txt gives {place} a value that is not a finite number; fill in "
            f"or rescale such values first",
        )


@dataclass(frozen=True)
class _Files:
    """The text files of one dataset in its archive."""

    archive: Archive
    name: str

    def _read(self, kind: str, dtype: DTypeLike, columns: int | None = None) -> np.ndarray | None:
        member = self.archive.find(f"{self.name}_{kind}.txt")
        return None if member is None else read_numbers(self.archive, member, dtype, columns)

    def count(self, kind: str) -> int | None:
        """Number of lines of an optional file."""
        table = self._read(kind, np.float64)
        return None if table is None else len(table)

    def required(self, kind: str, dtype: DTypeLike, columns: int) -> np.ndarray:
        table = self._read(kind, dtype, columns)
        if table is None:
            raise ValueError(
                f"{self.archive.path}: {self.name}_{kind}.txt is missing; a TUDataset folder holds "
                f"{self.name}_A.txt and {self.name}_graph_indicator.txt at least"
            )
        return table

    def optional(self, kind: str, dtype: DTypeLike, rows: int, of: str) -> np.ndarray | None:
        table = self._read(kind, dtype)
        if table is not None and len(table) != rows:
            raise ValueError(
                f"{self.name}_{kind}.txt: expected {counted(rows, 'line')}, one for each of the "
                f"{of}, found {len(table):,}; the file is cut short or belongs to another dataset"
            )
        return table


def read_numbers(
    archive: Archive, member: str, dtype: DTypeLike, columns: int | None = None
) -> np.ndarray:
    """Parse lines of numbers separated by commas or blanks; empty lines are skipped.

    Args:
        archive: the folder or zip archive.
        member: the file in it.
        dtype: type of the result; an integer type refuses numbers with a fraction.
        columns: how many numbers a line holds; by default as many as the first line.

    Raises:
        ValueError: a line does not hold ``columns`` numbers, or a number does not fit ``dtype``.
    """
    archive.check_size(member)
    try:
        with archive.reading(member) as stream:
            return _load_text(stream, dtype, columns)
    except _NotPlainText:
        with archive.reading(member) as stream:
            return _read_lines(stream, Path(member).name, np.dtype(dtype), columns)


class _NotPlainText(Exception):
    """A file that NumPy's reader does not accept: mixed separators, or an error to be located."""


def _load_text(stream: BufferedReader, dtype: DTypeLike, columns: int | None) -> np.ndarray:
    """The numbers of a file in which every line has the same separators, by ``np.loadtxt``."""
    if stream.peek(3).startswith(_BYTE_ORDER_MARK):
        stream.read(3)
    first = stream.peek().lstrip().split(b"\n", 1)[0]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")
            warnings.filterwarnings("error", category=DeprecationWarning)
            table = np.loadtxt(
                stream, dtype, comments=None, delimiter="," if b"," in first else None, ndmin=2
            )
    except (ValueError, DeprecationWarning) as error:
        raise _NotPlainText from error
    if table.size == 0:
        return np.empty((0, columns or 1), dtype)
    if columns not in (None, table.shape[1]):
        raise _NotPlainText
    return table


def _read_lines(
    lines: Iterable[bytes], where: str, dtype: np.dtype, columns: int | None
) -> np.ndarray:
    """The numbers of a file with mixed separators, line by line; an error names the line."""
    rows = []
    limit = np.iinfo(dtype).max + 1 if dtype.kind == "i" else None
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(_BYTE_ORDER_MARK if number == 1 else b"")
        text = text.decode("utf-8", "replace").strip()
        cells = [cell for part in text.split(",") for cell in part.split() or [""]]
        if not text:
            continue
        columns = columns or len(cells)
        values = [value for cell in cells if (value := as_number(cell)) is not None]
        if len(cells) != columns or len(values) != columns:
            expected = counted(columns, "number") + " separated by commas" * (columns > 1)
            raise ValueError(
                f"{where} line {number}: expected {expected}, found {text[:60]!r}; the file is cut "
                f"short or is not in TUDataset's format"
            )
        wrong = [v for v in values if limit and not (abs(v) < limit and v % 1 == 0)]
        if wrong:
            raise ValueError(
                f"{where} line {number}: expected a whole number below {limit}, found {wrong[0]}"
            )
        rows.append(values)
    return np.array(rows, dtype=dtype).reshape(-1, columns or 1)


def _read_tables(
    files: _Files,
) -> tuple[Int[np.ndarray, " B1"], Int[np.ndarray, "lines 2"], dict[str, Any]]:
    """Where each graph begins, the ends of every line, and the optional tables by their field.

    Vertices are numbered from 0, each graph's next to each other in the order listed.
    """
    graph_of = files.required("graph_indicator", np.int64, 1)[:, 0]
    graphs = _count_graphs(graph_of, files)
    ends = files.required("A", np.int32, 2)
    graph_of -= 1
    _check_ends(ends, graph_of, files.name)
    ends -= 1
    by_graph = (graphs, f"graphs of {files.name}_graph_indicator.txt")
    by_vertex = (graph_of.size, f"vertices of {files.name}_graph_indicator.txt")
    by_line = (len(ends), f"edges of {files.name}_A.txt")
    tables = {
        "label": files.optional("node_labels", np.int64, *by_vertex),
        "attributes": files.optional("node_attributes", np.float32, *by_vertex),
        "edge_label": files.optional("edge_labels", np.int64, *by_line),
        "edge_attr": files.optional("edge_attributes", np.float32, *by_line),
        "graph_label": files.optional("graph_labels", np.int64, *by_graph),
        "graph_attributes": files.optional("graph_attributes", np.float64, *by_graph),
    }
    if (np.diff(graph_of) < 0).any():
        order = np.argsort(graph_of, kind="stable")  # (V,)
        rank = np.empty(order.size, dtype=np.int32)
        rank[order] = np.arange(order.size, dtype=np.int32)
        ends = rank[ends]
        for field in ("label", "attributes"):
            table = tables[field]
            tables[field] = None if table is None else table[order]
    sizes = np.bincount(graph_of, minlength=graphs)
    return np.concatenate([[0], np.cumsum(sizes)]), ends, tables


def _only_name(archive: Archive) -> str:
    names = {Path(n).name.removesuffix("_A.txt") for n in archive.names if n.endswith("_A.txt")}
    if len(names) != 1:
        found = f"found {', '.join(sorted(names))}: choose one" if names else "found none"
        raise ValueError(f"{archive.path}: expected one file NAME_A.txt, {found}")
    return names.pop()


def _count_graphs(graph_of: np.ndarray, files: _Files) -> int:
    """The number of graphs.

    A number that no vertex has is a graph without vertices. The last graphs of such a dataset may
    have none either: then the file of targets counts them.
    """
    where = f"{files.name}_graph_indicator.txt"
    if graph_of.size == 0:
        raise ValueError(f"{where}: expected a graph number for every vertex, found an empty file")
    graphs, low = int(graph_of.max()), int(graph_of.argmin())
    if graph_of[low] < 1:
        raise ValueError(
            f"{where} line {low + 1}: expected a graph number from 1 on, found {graph_of[low]}"
        )
    present = np.unique(graph_of).size
    targets = [files.count(kind) for kind in ("graph_labels", "graph_attributes")]
    listed = max((count for count in targets if count is not None), default=None)
    if listed is None and graphs > 2 * present + 1000:  # more likely a wrong number than a graph
        line = int(graph_of.argmax())
        raise ValueError(
            f"{where} line {line + 1}: graph number {graphs:,}, but only "
            f"{counted(present, 'graph')} {by_count(present, 'has', 'have')} vertices; correct it, "
            "or add a file of graph labels with a line for each graph"
        )
    return max(graphs, listed) if listed is not None and present < graphs else graphs


def _check_ends(ends: np.ndarray, graph_of: np.ndarray, name: str) -> None:
    """Raise if a line names a vertex that does not exist, or vertices of two graphs."""
    outside = (ends < 1) | (ends > graph_of.size)
    if outside.any():
        line, side = np.argwhere(outside)[0].tolist()
        u, v = ends[line].tolist()
        raise ValueError(
            f"{name}_A.txt line {line + 1}: edge ({u}, {v}) names vertex {ends[line, side]}, but "
            f"the dataset has {counted(graph_of.size, 'vertex')}, numbered from 1"
        )
    between = graph_of[ends[:, 0] - 1] != graph_of[ends[:, 1] - 1]
    if between.any():
        line = int(np.argmax(between))
        u, v = ends[line].tolist()
        raise GraphError(
            int(graph_of[u - 1]),
            f"{name}_A.txt line {line + 1} joins its vertex {u} to vertex {v} of graph "
            f"{graph_of[v - 1]}; an edge must stay within its graph",
        )


def _undirected_edges(
    ends: Int[np.ndarray, "lines 2"],
    ptr: Int[np.ndarray, " B1"],
    data: tuple[np.ndarray | None, ...],
    symmetrise: bool,
    name: str,
) -> tuple[Int[np.ndarray, " B1"], Int[np.ndarray, "2 E"], Int[np.ndarray, " E"] | None, int, int]:
    """Both directions of every edge of a dataset, in canonical order.

    Args:
        ends: the two ends of every line, vertices numbered through the dataset.
        ptr: where each graph's vertices begin, with the total at the end.
        data: labels and attributes of the lines, each (lines, columns), where there are any.
        symmetrise: whether one line suffices for an undirected edge; the first one counts.
        name: the dataset's name, for error messages.

    Returns:
        Where each graph's edges begin, with the total at the end; both ends of every edge, numbered
        within their graph; the line whose data each edge takes, None without data; and the numbers
        of lines removed as self-loops and as repetitions.

    Raises:
        GraphError: without ``symmetrise``, a reverse is missing or two lines disagree.
    """
    vertices = int(ptr[-1])
    lines = np.flatnonzero(ends[:, 0] != ends[:, 1])
    u, v = ends[lines].T
    listed = scipy.sparse.coo_array((np.ones(lines.size, bool), (u, v)), (vertices, vertices))
    by_column = listed.tocsc()
    edges = by_column.tocsr()  # sorted by row, then column, each edge once
    symmetric = np.array_equal(edges.indptr, by_column.indptr) and np.array_equal(
        edges.indices, by_column.indices
    )
    duplicates = lines.size - edges.nnz
    if not symmetric and not symmetrise:
        lone = (edges > edges.T).tocoo()
        u, v = int(lone.row[0]) + 1, int(lone.col[0]) + 1
        raise GraphError(
            _owner(ptr, u - 1),
            f"{name}_A.txt lists edge ({u}, {v}) but not ({v}, {u}); the file is cut short, or "
            f"lists every edge once: then {SYMMETRISE}",
        )
    if not symmetric:
        edges = (edges + edges.T).tocsr()
    line = None
    if any(table is not None for table in data):
        line, edge_of = _first_lines(edges, u, v)
        line = lines[line]
        if not symmetrise:
            _check_agreement(ends, lines, line[edge_of], data, ptr, name)
    index = np.empty((2, edges.nnz), dtype=np.int32)
    index[0] = np.repeat(np.arange(vertices, dtype=np.int32), np.diff(edges.indptr))
    index[1] = edges.indices
    edge_ptr = edges.indptr[ptr].astype(np.int64)  # (B + 1,)
    for i in range(ptr.size - 1):  # numbers of vertices within their graph
        index[:, edge_ptr[i] : edge_ptr[i + 1]] -= np.int32(ptr[i])
    return edge_ptr, index, line, len(ends) - lines.size, duplicates


def _first_lines(
    edges: scipy.sparse.csr_array, u: Int[np.ndarray, " lines"], v: Int[np.ndarray, " lines"]
) -> tuple[Int[np.ndarray, " E"], Int[np.ndarray, " lines"]]:
    """The first line that names each edge in either direction, and the edge of each line."""
    vertices = edges.shape[0]
    row = np.repeat(np.arange(vertices), np.diff(edges.indptr))
    key = row * vertices + edges.indices  # sorted, because the edges are
    edge_of = np.searchsorted(key, u.astype(np.int64) * vertices + v)
    first = np.full(key.size, u.size)
    np.minimum.at(first, edge_of, np.arange(u.size))
    reverse = np.searchsorted(key, edges.indices.astype(np.int64) * vertices + row)
    return np.minimum(first, first[reverse]), edge_of


def _owner(ptr: np.ndarray, item: int) -> int:
    """The graph that a vertex or edge belongs to."""
    return int(np.searchsorted(ptr, item, side="right")) - 1


def _check_agreement(
    ends: np.ndarray,
    lines: np.ndarray,
    first: np.ndarray,
    data: tuple[np.ndarray | None, ...],
    ptr: np.ndarray,
    name: str,
) -> None:
    """Raise if a line has another label or attribute than the first line of the same edge."""
    for table in (d for d in data if d is not None):
        one, other = table[first], table[lines]
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        if same.all():
            continue
        at = int(np.argmin(same.all(axis=1)))
        u, v = (ends[lines[at]] + 1).tolist()
        raise GraphError(
            _owner(ptr, u - 1),
            f"lines {first[at] + 1} and {lines[at] + 1} of {name}_A.txt name the same edge "
            f"({u}, {v}) with {one[at].tolist()} and {other[at].tolist()}; an undirected edge has "
            f"one value: correct the file, or {SYMMETRISE} to use the first",
        )
