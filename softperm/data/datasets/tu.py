"""Preparing any dataset in the TUDataset layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from softperm.data.archive import Archive
from softperm.data.datasets.catalogue import Entry
from softperm.data.datasets.prepared import Part, RawData, Recipe, Schema, codes_type
from softperm.data.formats.tu import TUArrays, read_tu
from softperm.progress import Report

_MODULES = (
    "softperm.data.datasets.tu",
    "softperm.data.archive",
    "softperm.data.formats.tu",
)
_EDGES = 1 << 22  # of one part, so that the working memory for features is bounded


def tu_recipe(entry: Entry, path: Path, symmetrise: bool, downloaded: bool) -> Recipe:
    """How to prepare a dataset from a TUDataset folder or archive.

    Args:
        entry: the dataset.
        path: the folder or zip archive with its text files.
        symmetrise: see :func:`softperm.data.formats.tu.read_tu`.
        downloaded: whether the files were downloaded, and must have the known checksums.
    """

    def read(progress: Report) -> RawData:
        arrays = read_tu(path, entry.name, symmetrise)
        return RawData(_schema(arrays), _parts(arrays, progress))

    with Archive(path) as archive:
        members = [n for n in archive.names if Path(n).name.startswith(f"{entry.name}_")]
        source = archive.digest(members)
    return Recipe(
        name=entry.name,
        source=source,
        options={"symmetrise": symmetrise},
        modules=_MODULES,
        read=read,
        fingerprint=entry.fingerprint if downloaded and not symmetrise else None,
    )


def _schema(arrays: TUArrays) -> Schema:
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
    return Schema(
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
    """The labels of every column in ascending order, which is the order of their codes."""
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
