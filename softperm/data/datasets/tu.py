"""Any dataset in the TUDataset layout, as a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from softperm.data.datasets.meta import Meta
from softperm.data.datasets.pins import CONTENT
from softperm.data.datasets.prepare import Built, Part, Recipe, codes_type
from softperm.data.formats.archive import Archive
from softperm.data.formats.tu import TUArrays, read_tu
from softperm.progress import Report

_MODULES = ("archive", "tu")
_EDGES = 1 << 22  # a part's worth, so that working memory does not grow with the dataset


def tu_recipe(name: str, path: Path, symmetrise: bool, fetched: bool) -> Recipe:
    """How a TUDataset folder or archive becomes a prepared dataset.

    Args:
        name: the dataset's name.
        path: the folder or zip archive that holds its text files.
        symmetrise: see :func:`softperm.data.formats.tu.read_tu`.
        fetched: whether the files were downloaded, and must be the known ones.

    Returns:
        The recipe.
    """

    def build(progress: Report) -> Built:
        arrays = read_tu(path, name, symmetrise)
        return Built(_meta(arrays), _parts(arrays, progress))

    with Archive(path) as archive:
        members = [n for n in archive.names if Path(n).name.startswith(f"{name}_")]
        source = archive.digest(members)
    return Recipe(
        name=name,
        source=source,
        options={"symmetrise": symmetrise},
        modules=("softperm.data.datasets.tu", *(f"softperm.data.formats.{m}" for m in _MODULES)),
        build=build,
        content=CONTENT.get(name) if fetched and not symmetrise else None,
    )


def _meta(arrays: TUArrays) -> Meta:
    if arrays.graph_label is None and arrays.graph_attributes is None:
        raise ValueError(
            f"{arrays.name}: expected {arrays.name}_graph_labels.txt or "
            f"{arrays.name}_graph_attributes.txt, found neither; without targets, read the graphs "
            "with softperm.data.formats.tu.read_tu"
        )
    if arrays.graph_label is not None and arrays.graph_label.shape[1] != 1:
        raise ValueError(
            f"{arrays.name}_graph_labels.txt: expected one class for each graph, found "
            f"{arrays.graph_label.shape[1]} columns"
        )
    targets = 0 if arrays.graph_attributes is None else arrays.graph_attributes.shape[1]
    classes = () if arrays.graph_label is None else np.unique(arrays.graph_label).tolist()
    return Meta(
        name=arrays.name,
        task="classification" if arrays.graph_label is not None else "regression",
        target_names=tuple(f"target {t}" for t in range(targets)),
        class_names=tuple(str(c) for c in classes),
        label_values=_vocabularies(arrays.label),
        edge_label_values=_vocabularies(arrays.edge_label),
        self_loops=arrays.self_loops,
        duplicates=arrays.duplicates,
    )


def _vocabularies(labels: np.ndarray | None) -> tuple[tuple[str, ...], ...]:
    """Of every column, the labels that occur, in ascending order: code c stands for the c-th."""
    columns = () if labels is None else labels.T
    return tuple(tuple(str(v) for v in np.unique(c).tolist()) for c in columns)


def _codes(labels: np.ndarray | None) -> np.ndarray | None:
    if labels is None:
        return None
    columns = [np.unique(c, return_inverse=True) for c in labels.T]
    kind = codes_type(tuple(len(values) for values, _ in columns))
    return np.stack([codes.astype(kind) for _, codes in columns], axis=1)  # (V, L)


def _parts(arrays: TUArrays, progress: Report) -> Iterator[Part]:
    label, edge_label = _codes(arrays.label), _codes(arrays.edge_label)
    classes = None
    if arrays.graph_label is not None:
        classes = np.unique(arrays.graph_label[:, 0], return_inverse=True)[1].astype(np.int64)
    steps = np.arange(_EDGES, arrays.edge_ptr[-1], _EDGES)
    cuts = np.unique([0, *np.searchsorted(arrays.edge_ptr[:-1], steps), len(arrays)])
    for first, last in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        v = slice(arrays.ptr[first], arrays.ptr[last])
        e = slice(arrays.edge_ptr[first], arrays.edge_ptr[last])
        yield Part(
            sizes=np.diff(arrays.ptr[first : last + 1]),
            edge_counts=np.diff(arrays.edge_ptr[first : last + 1]),
            edge_index=arrays.edge_index[:, e],
            label=None if label is None else label[v],
            x=None if arrays.attributes is None else arrays.attributes[v],
            edge_label=None if edge_label is None else edge_label[e],
            edge_attr=None if arrays.edge_attr is None else arrays.edge_attr[e],
            classes=None if classes is None else classes[first:last],
            values=None if arrays.graph_attributes is None else arrays.graph_attributes[first:last],
        )
        progress(f"preparing {arrays.name}", last, len(arrays))
