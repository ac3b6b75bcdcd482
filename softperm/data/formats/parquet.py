"""Parquet files of molecules or of edge lists (extra ``parquet``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedIOBase
from typing import TYPE_CHECKING, Any

import numpy as np

from softperm.data.canonical import RawGraph, as_labels, as_rows
from softperm.data.formats.tables import Record, Target, Unreadable, find_smiles, shortened

if TYPE_CHECKING:
    import pyarrow

_FIELDS = ("x", "label", "edge_attr", "edge_label", "edge_weight")
_GRAPH = ("edge_index", "num_nodes", *_FIELDS)


def check_parquet(purpose: str, otherwise: str) -> None:
    """Raises ImportError, with the remedy, unless pyarrow is installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise ImportError(
            f"{purpose} needs pyarrow: pip install 'softperm[parquet]', {otherwise}"
        ) from None


def parquet_batches(
    stream: BufferedIOBase,
    name: str,
    rows: int,
    smiles_column: str | None,
    id_column: str | None,
) -> Iterator[Callable[[], Iterator[Record | Unreadable]]]:
    """The rows of a Parquet file, some at a time.

    A row is a molecule, in a column of SMILES, or a graph as PyG holds it: ``edge_index``, two
    lists of vertices; ``num_nodes``; and where there are any ``x``, ``label``, ``edge_attr``,
    ``edge_label`` and ``edge_weight``. All other columns of numbers and text are targets.

    Args:
        stream: the file.
        name: its name in error messages.
        rows: number of rows at a time.
        smiles_column: the column of SMILES; by default ``smiles``, in any case.
        id_column: the column of names; by default the SMILES, or the number of the row.
    """
    check_parquet("reading Parquet", "or convert the file to CSV")
    import pyarrow
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(stream)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{name} is not a Parquet file ({error}); fetch it again") from None
    header = file.schema_arrow.names
    graphs = "edge_index" in header and smiles_column is None
    smiles = None if graphs else find_smiles(header, smiles_column, name)
    if id_column is not None and id_column not in header:
        raise ValueError(
            f"{name} has no column {id_column!r}; its columns are: {shortened(header)}"
        )
    first = 0
    for batch in file.iter_batches(batch_size=rows):
        yield partial(_records, batch, name, first, smiles, id_column)
        first += len(batch)


def _records(
    batch: pyarrow.RecordBatch, name: str, first: int, smiles: str | None, id_column: str | None
) -> Iterator[Record | Unreadable]:
    own = {smiles, id_column, *(_GRAPH if smiles is None else ())}
    for number, row in enumerate(batch.to_pylist(), start=first):
        where = f"{name} row {number}"
        label = row[id_column or smiles] if id_column or smiles else number
        id = str(number if label is None else label)
        try:
            graph = row[smiles] if smiles is not None else _graph(row)
            if not isinstance(graph, str | RawGraph):
                raise ValueError(f"{smiles} is {graph!r}; expected SMILES")
        except (ValueError, TypeError) as error:
            yield Unreadable(where, id, str(error))
            continue
        yield Record(where, id, graph, _targets(row, own))


def _graph(row: dict[str, Any]) -> RawGraph:
    ends = np.array(row["edge_index"])
    if ends.size == 0:
        ends = np.empty((2, 0), dtype=np.int64)
    if ends.shape[:1] != (2,) or ends.ndim != 2 or ends.dtype.kind not in "iu":
        raise ValueError("edge_index must be two lists of vertex numbers of equal length")
    values = {name: row.get(name) for name in _FIELDS}
    if ends.size == 0:  # an empty list has no type
        values |= {name: None for name in _FIELDS if name.startswith("edge")}
    count = row.get("num_nodes")
    if count is None:
        listed = values["label"] if values["x"] is None else values["x"]
        if listed is None:
            raise ValueError("it does not say how many vertices it has; add a column num_nodes")
        count = len(listed)
    numbers = {
        name: None if value is None else as_rows(value, name)
        for name, value in values.items()
        if not name.endswith("label")
    }
    weight = numbers["edge_weight"]
    return RawGraph(
        int(count),
        ends.astype(np.int64),
        once=False,
        x=numbers["x"],
        label=None if values["label"] is None else as_labels(values["label"], "label"),
        edge_attr=numbers["edge_attr"],
        edge_label=(
            None if values["edge_label"] is None else as_labels(values["edge_label"], "edge_label")
        ),
        edge_weight=None if weight is None else weight[:, 0],
    )


def _targets(row: dict[str, Any], own: set[str | None]) -> dict[str, Target]:
    """The other columns of a row; a list is named by the numbers of its entries."""
    targets: dict[str, Target] = {}
    for name, value in row.items():
        if name in own:
            continue
        if isinstance(value, list):
            targets |= {f"{name}_{k}": v for k, v in enumerate(value)}
        elif value is None or isinstance(value, bool | int | float | str):
            targets[name] = value
    return targets
