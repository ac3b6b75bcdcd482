"""Parquet with coordinates and neighbours, as Apple's Embedding Atlas reads it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from softperm.explore.contents import Contents


def embedding_atlas_parquet(contents: Contents) -> bytes:
    """A table with one row for each graph.

    ``graph`` is its name, ``x`` and ``y`` its place on the map, ``neighbors`` an object of ``ids``
    (row numbers) and ``distances``; then every column of the page, and an output each.
    ``embedding-atlas FILE --x x --y y --neighbors neighbors`` shows it.

    Raises:
        ImportError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ImportError("the export needs pyarrow: pip install 'softperm[parquet]'") from None
    near = contents.neighbours
    spans = list(zip(near.ptr[:-1].tolist(), near.ptr[1:].tolist(), strict=True))
    neighbours = [
        {"ids": near.index[a:b].tolist(), "distances": near.distance[a:b].tolist()}
        for a, b in spans
    ]
    kind = pa.struct([("ids", pa.list_(pa.int64())), ("distances", pa.list_(pa.float64()))])
    columns: dict[str, Any] = {
        "graph": pa.array(list(map(str, contents.ids))),
        "x": pa.array(contents.places[:, 0].astype(float)),
        "y": pa.array(contents.places[:, 1].astype(float)),
        "neighbors": pa.array(neighbours, kind),
    }
    for column in contents.columns:
        columns[_free_name(column.name, columns)] = pa.array(
            _values(column.values, column.categories)
        )
    for c, name in enumerate(contents.outputs.names):
        columns[_free_name(f"output {name}", columns)] = pa.array(contents.outputs.values[:, c])
    content = io.BytesIO()
    pq.write_table(pa.table(columns), content)
    return content.getvalue()


def _free_name(name: str, taken: dict[str, Any]) -> str:
    """The name, with a number if another column has it."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name} {number}", number + 1
    return free


def _values(values: np.ndarray, categories: tuple[str, ...] | None) -> list[Any]:
    """Numbers, or the names of categories; None where unknown."""
    if categories is None:
        return [None if np.isnan(value) else float(value) for value in values]
    return [categories[code] if code < len(categories) else None for code in values.tolist()]
