"""Edge lists of whole datasets brought into canonical order by two counting sorts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import no_type_check

import numba
import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class SortedEdges:
    """Every directed edge once, sorted by (row, column), without self-loops.

    Args:
        row_ptr: where each vertex's edges begin, with the total at the end.
        column: the other end of every edge.
        listing: the line of the list on which each edge stands first.
        edge_of: which edge each line of the list names; −1 for a self-loop.
        self_loops: lines left out because they join a vertex to itself.
        duplicates: lines left out because the same direction stood before.
    """

    row_ptr: Int[np.ndarray, " V1"]
    column: Int[np.ndarray, " E"]
    listing: Int[np.ndarray, " E"] | None
    edge_of: Int[np.ndarray, " lines"] | None
    self_loops: int
    duplicates: int


def sort_edges(ends: Int[np.ndarray, "lines 2"], vertices: int, trace: bool) -> SortedEdges:
    """Sort a list of directed edges by (row, column) and drop self-loops and repeats.

    Least significant key first: a counting sort by column, then a stable one by row. Linear in
    the number of lines, with two integers a line of working memory (four with ``trace``).

    Args:
        ends: the two ends of every listed edge, below ``vertices``.
        vertices: number of vertices V.
        trace: whether to keep which line each edge came from.

    Returns:
        The sorted edges.
    """
    column_ptr, row_ptr = _counts(ends, vertices, 1), _counts(ends, vertices, 0)
    row, line = _by_column(ends, column_ptr, trace)
    column, line = _by_row(row, line, column_ptr, row_ptr)
    edge_of = np.full(len(ends) if trace else 0, -1, dtype=np.int64)
    edges = _drop_repeats(row_ptr, column, line, edge_of)
    return SortedEdges(
        row_ptr=row_ptr,
        column=column[:edges],
        listing=line[:edges] if trace else None,
        edge_of=edge_of if trace else None,
        self_loops=len(ends) - len(column),
        duplicates=len(column) - edges,
    )


def find_reverses(
    edges: SortedEdges,
) -> tuple[Int[np.ndarray, " E"] | None, tuple[int, int] | None]:
    """Where each edge's reverse stands, and the first edge that has none.

    Rows are visited in ascending order, so the reverses of a vertex's edges are met in exactly
    the order in which that vertex lists them: one cursor a vertex finds all of them.

    Args:
        edges: the sorted edges.

    Returns:
        For every edge (u, v) the place of (v, u), where the edges know their lines (None
        otherwise); and the ends of the first edge without a reverse (None if all have one).
    """
    place = np.empty(0 if edges.listing is None else edges.column.size, dtype=np.int64)
    u, v = _match(edges.row_ptr, edges.column, place)
    return (place if edges.listing is not None else None), (None if u < 0 else (int(u), int(v)))


def undirected_edges(
    ends: Int[np.ndarray, "lines 2"],
    ptr: Int[np.ndarray, " B1"],
    data: tuple[np.ndarray | None, ...],
    symmetrise: bool,
    name: str,
) -> tuple[SortedEdges, Int[np.ndarray, " E"] | None]:
    """Both directions of every edge of a dataset, in canonical order.

    Args:
        ends: the two ends of every line, vertices numbered through the dataset.
        ptr: where each graph's vertices begin, with the total at the end.
        data: labels and attributes of the lines, each (lines, columns), where there are any.
        symmetrise: whether one line is enough for an undirected edge, the first one deciding.
        name: the dataset's name, for error messages.

    Returns:
        The edges, and for each the line whose label and attributes it takes (None without data).

    Raises:
        ValueError: without ``symmetrise``, if a reverse is missing or two lines disagree.
    """
    trace, vertices = any(d is not None for d in data), int(ptr[-1])
    edges = sort_edges(ends, vertices, trace)
    reverse, lone = find_reverses(edges)
    if lone is not None and not symmetrise:
        u, v = lone[0] + 1, lone[1] + 1
        raise ValueError(
            f"graph {_owner(ptr, lone[0])}: {name}_A.txt lists edge ({u}, {v}) but not ({v}, {u}); "
            "the file is cut short, or lists edges once: then read it with symmetrise=True"
        )
    if lone is not None:
        removed = {"self_loops": edges.self_loops, "duplicates": edges.duplicates}
        both = np.concatenate([ends, ends[:, ::-1]])
        edges = replace(sort_edges(both, vertices, trace), **removed)
        reverse, _ = find_reverses(edges)
    if edges.listing is None or edges.edge_of is None:
        return edges, None
    first = edges.listing % max(len(ends), 1)
    first = np.minimum(first, first[reverse])  # (E,) the first line in either direction
    if not symmetrise:
        _check_agreement(ends, edges.edge_of, first, data, ptr, name)
    return edges, first


def number_within(edges: SortedEdges, ptr: Int[np.ndarray, " B1"]) -> Int[np.ndarray, "2 E"]:
    """Both ends of every edge, numbered within their graph.

    Args:
        edges: the edges of a dataset, vertices numbered through it.
        ptr: where each graph's vertices begin, with the total at the end.

    Returns:
        The edge index, (2, E) int32.
    """
    index = np.empty((2, edges.column.size), dtype=np.int32)
    vertices = np.arange(edges.row_ptr.size - 1, dtype=np.int32)
    index[0], index[1] = np.repeat(vertices, np.diff(edges.row_ptr)), edges.column
    edge_ptr = edges.row_ptr[ptr]  # (B + 1,)
    for i in range(ptr.size - 1):
        index[:, edge_ptr[i] : edge_ptr[i + 1]] -= np.int32(ptr[i])
    return index


def _owner(ptr: np.ndarray, vertex: int) -> int:
    """The graph a vertex belongs to."""
    return int(np.searchsorted(ptr, vertex, side="right")) - 1


def _check_agreement(
    ends: np.ndarray,
    edge_of: np.ndarray,
    first: np.ndarray,
    data: tuple,
    ptr: np.ndarray,
    name: str,
) -> None:
    """Every line of one undirected edge must carry the same label and attributes."""
    lines = np.flatnonzero(edge_of >= 0)
    decides = first[edge_of[lines]]
    for table in (d for d in data if d is not None):
        same = (table[lines] == table[decides]) | (
            np.isnan(table[lines]) & np.isnan(table[decides])
        )
        if same.all():
            continue
        at = int(np.argmin(same.all(axis=1)))
        u, v = (ends[lines[at]] + 1).tolist()
        one, two = table[decides[at]].tolist(), table[lines[at]].tolist()
        raise ValueError(
            f"graph {_owner(ptr, u - 1)}: lines {decides[at] + 1} and {lines[at] + 1} of "
            f"{name}_A.txt name the same edge ({u}, {v}) with {one} and {two}; an undirected edge "
            "carries one value, and symmetrise=True keeps the first"
        )


# Compiled code: shape checks must not wrap it, hence no_type_check.


@numba.njit(nogil=True, cache=True)
@no_type_check
def _counts(ends, vertices, side):
    """Where each vertex's lines begin when sorted by that side, self-loops left out."""
    begin = np.zeros(vertices + 1, dtype=np.int64)
    for k in range(len(ends)):
        if ends[k, 0] != ends[k, 1]:
            begin[ends[k, side] + 1] += 1
    return np.cumsum(begin)


@numba.njit(nogil=True, cache=True)
@no_type_check
def _by_column(ends, column_ptr, trace):
    """The rows of all lines in order of their column, and the lines they came from."""
    cursor = column_ptr.copy()
    row = np.empty(column_ptr[-1], dtype=ends.dtype)
    line = np.empty(row.size if trace else 0, dtype=np.int64)
    for k in range(len(ends)):
        u, v = ends[k, 0], ends[k, 1]
        if u != v:
            row[cursor[v]] = u
            if trace:
                line[cursor[v]] = k
            cursor[v] += 1
    return row, line


@numba.njit(nogil=True, cache=True)
@no_type_check
def _by_row(row, line, column_ptr, row_ptr):
    """The columns of all lines in order of (row, column, line)."""
    cursor = row_ptr.copy()
    column = np.empty(row.size, dtype=row.dtype)
    new_line = np.empty(line.size, dtype=np.int64)
    for v in range(column_ptr.size - 1):
        for k in range(column_ptr[v], column_ptr[v + 1]):
            at = cursor[row[k]]
            column[at] = v
            if line.size:
                new_line[at] = line[k]
            cursor[row[k]] = at + 1
    return column, new_line


@numba.njit(nogil=True, cache=True)
@no_type_check
def _drop_repeats(row_ptr, column, line, edge_of):
    """Close the gaps that repeats leave, in place; the number of edges kept."""
    kept, begin = 0, 0
    for u in range(row_ptr.size - 1):
        end, first = row_ptr[u + 1], kept
        for k in range(begin, end):
            if kept == first or column[k] != column[kept - 1]:
                column[kept] = column[k]
                if line.size:
                    line[kept] = line[k]
                kept += 1
            if edge_of.size:
                edge_of[line[k]] = kept - 1
        begin = end
        row_ptr[u + 1] = kept
    return kept


@numba.njit(nogil=True, cache=True)
@no_type_check
def _match(row_ptr, column, place):
    """Fill in each edge's reverse; the first edge without one, or (−1, −1)."""
    cursor = row_ptr[:-1].copy()
    for u in range(row_ptr.size - 1):
        for k in range(row_ptr[u], row_ptr[u + 1]):
            v = column[k]
            back = cursor[v]
            if back == row_ptr[v + 1] or column[back] > u:
                return u, v
            if column[back] < u:  # v lists a neighbour that did not list v
                return v, column[back]
            if place.size:
                place[k] = back
            cursor[v] = back + 1
    for v in range(row_ptr.size - 1):
        if cursor[v] != row_ptr[v + 1]:
            return v, column[cursor[v]]
    return -1, -1
