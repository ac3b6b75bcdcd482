"""Reading files of graphs, in all supported formats, as canonical graphs with targets.

Formats are registered in :data:`softperm.data.formats.shards.READERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from softperm.data.canonical import Removed, check_same_fields, warn_empty, warn_removed
from softperm.data.formats.shards import canonical_graph, read_shards, stem
from softperm.data.formats.tables import (
    Record,
    Unreadable,
    as_column,
    check_share,
    check_targets,
    parse_cells,
)
from softperm.errors import GraphError, errors_about_graph
from softperm.pyg import Data
from softperm.settings import STANDARD_FIELDS, FieldNames

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class GraphFile:
    """The graphs of a file, with their targets and names.

    Args:
        graphs: canonical graphs, in the order of the file.
        targets: one value for each graph by name: integers, floats with NaN where missing, or
            strings, empty where missing.
        name: the name of the collection: the file's name without its ending.
        ids: a name for each graph: its SMILES, its file, its line or number.
        class_targets: targets that are classes by the format's definition, whatever their values.
        places: where each graph is in the file, such as ``mols.csv line 12``.
        columns: the user's names of the columns of each field, where they were chosen by name.
        problems: rows that were left out, with place and reason.
    """

    graphs: list[Data]
    targets: dict[str, np.ndarray]
    name: str
    ids: tuple[str, ...]
    class_targets: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_graphs(
    path: str | Path,
    *,
    target: Sequence[str] | None = None,
    smiles_column: str | None = None,
    symmetrise: bool = False,
    skip_empty: bool = False,
    fields: FieldNames = STANDARD_FIELDS,
    progress: Progress | None = None,
    problems: list[str] | None = None,
    id_column: str | None = None,
) -> GraphFile:
    """Read graphs, and their targets if the file has any.

    Args:
        path: a folder or zip in TUDataset's format (targets ``graph_label``, also named
            ``target``, and ``graph_attribute``; several columns are ``graph_attribute_0``, …); a
            table with a SMILES column (targets are its other columns); JSON Lines of node-link
            graphs; Parquet with SMILES or edge lists; a folder of files of one of these formats; a
            folder of GraphML files, or one of them.
        target: the targets to read; None means all targets of the file, if any.
        smiles_column: the column of SMILES in a table; by default ``smiles``, in any case.
        symmetrise: whether to treat directed edges as undirected.
        skip_empty: whether to leave out graphs without vertices; otherwise a warning counts them.
        fields: names of the attributes of vertices and edges to read.
        progress: called after each graph with the number of graphs read and their
            total, as estimated from the size of the file.
        problems: receives place and reason of each row that cannot be read, which is left out; by
            default, and for more than a tenth of all rows, such a row is an error.
        id_column: the column of names in a table or Parquet file; by default that of the SMILES.

    Raises:
        ValueError: the file cannot be used; the message names the file, the line and the remedy. A
            problem of one graph is a :class:`softperm.errors.GraphError`.
    """
    path = Path(path)
    target = [target] if isinstance(target, str) else target
    records: list[Record] = []
    graphs, removed, cells, classes = [], [], False, ()
    source = read_shards(
        path, smiles_column=smiles_column, id_column=id_column, symmetrise=symmetrise
    )
    with closing(source) as shards:
        for shard in shards:
            cells, classes = shard.cells, shard.class_targets
            rows = list(shard.read())
            total = round((len(graphs) + len(rows)) / shard.share)
            for record in rows:
                try:
                    if isinstance(record, Unreadable):
                        raise record.error(len(graphs))
                    with errors_about_graph(len(graphs), record.where):
                        graph, removals = canonical_graph(record, symmetrise, fields)
                except GraphError as error:
                    if problems is None:
                        raise
                    problems.append(str(error))
                    continue
                if skip_empty and not graph.num_nodes:
                    continue
                graphs.append(graph)
                removed.append(removals)
                records.append(record)
                if progress is not None:
                    progress(len(graphs), total)
    check_share(problems or (), len(graphs) + len(problems or ()))
    if not graphs:
        kind = "graphs with vertices" if skip_empty else "graphs"
        raise ValueError(f"{path} holds no {kind}; expected at least one")
    try:
        check_same_fields(graphs)
    except GraphError as error:
        raise GraphError(error.index, error.problem, records[error.index].where) from None
    together = Removed.total(removed)
    warn_removed(together, stacklevel=3)
    ids, places = (tuple(getattr(r, name) for r in records) for name in ("id", "where"))
    warn_empty([int(graph.num_nodes or 0) for graph in graphs], ids)
    present = list(dict.fromkeys(name for record in records for name in record.targets))
    if target is not None:
        check_targets(target, present, str(path))
        present = list(target)
    elif classes:  # of a TUDataset file, where target is another name of graph_label
        present = [name for name in present if name != "target"]
    columns = {name: [record.targets.get(name) for record in records] for name in present}
    if cells:
        columns = {name: parse_cells([str(c) for c in column]) for name, column in columns.items()}
    try:
        targets = {name: as_column(column) for name, column in columns.items()}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return GraphFile(graphs, targets, stem(path), ids, classes, places, together.columns)
