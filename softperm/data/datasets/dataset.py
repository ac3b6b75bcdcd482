"""A loaded dataset: graphs laid end to end, targets, and ways to divide them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from softperm.data.collection import Collection
from softperm.data.datasets.catalogue import find_entry
from softperm.data.datasets.meta import Meta, Task
from softperm.data.datasets.pack import Pack
from softperm.data.datasets.pins import SPLITS
from softperm.data.datasets.prepare import content_of
from softperm.data.datasets.splits import (
    Folds,
    Split,
    make_folds,
    random_split,
    read_folds,
    write_folds,
)
from softperm.data.datasets.store import Store
from softperm.files import exclusive
from softperm.pyg import Data


@dataclass(frozen=True)
class Dataset:
    """Graphs with targets, in the order of their source.

    Args:
        name: the dataset's name.
        collection: the graphs. Its arrays are backed by the prepared file: they are read when
            touched, and processes share the memory.
        y: for ``classification`` the class of each graph, (B,) int64; for ``multilabel`` and
            ``regression`` the targets, (B, T) float, NaN where missing.
        task: what is predicted.
        target_names: the columns of ``y``; one name for a classification.
        class_names: what class number c is called in the source.
        fingerprint: SHA-256 of the graphs and targets, whatever code prepared them.
        meta: vocabularies, and counts of what was left out.
        store: where its files are.
        official_split: the split the dataset is published with, where there is one.
        position: coordinates of the vertices in Å, where the source has them.
    """

    name: str
    collection: Collection
    y: Shaped[Tensor, "B ..."]
    task: Task
    target_names: tuple[str, ...]
    class_names: tuple[str, ...]
    fingerprint: str
    meta: Meta
    store: Store
    official_split: Split | None = None
    position: Float[Tensor, "V 3"] | None = None

    def __len__(self) -> int:
        return len(self.collection)

    def folds(self, seed: int = 0) -> Folds:
        """The cross-validation of this dataset: 10 outer folds, each with a 90/10 selection split.

        Published splits are taken from ``splits/NAME.json`` in the data root or the cache, or
        fetched. A dataset without any gets stratified folds made from ``seed``, written to the
        cache once and read from there ever after.

        Args:
            seed: decides the folds of a dataset without published ones.

        Returns:
            The folds.

        Raises:
            ValueError: if published splits exist but cannot be had, or do not fit this dataset.
        """
        remote = find_entry(self.name).splits
        place = self.store.locate(f"splits/{self.name}.json")
        if remote is not None and place is None:
            place = self.store.get(remote)
        if place is not None:
            folds = read_folds(place, len(self))
            self._check_published(folds, fetched=self.store.is_fetched(place))
            return folds
        place = self.store.cache / "splits" / f"{self.name}-{self.fingerprint[:12]}-{seed}.json"
        with exclusive(place):
            if not place.exists():
                classes = self.y if self.task == "classification" else None
                write_folds(place, make_folds(classes, len(self), seed))
        return read_folds(place, len(self))

    def random_split(self, seed: int) -> Split:
        """80 / 10 / 10 % of the graphs at random, as the paper divides QM9.

        Args:
            seed: decides the shuffle.

        Returns:
            The split.
        """
        return random_split(len(self), seed)

    def graphs(self, index: Iterable[int] | None = None) -> list[Data]:
        """Some graphs as canonical PyG ``Data`` of their own, without targets.

        Args:
            index: which graphs; all by default.

        Returns:
            The graphs, with codes as labels.
        """
        return [self._graph(i) for i in (range(len(self)) if index is None else index)]

    def _graph(self, i: int) -> Data:
        c = self.collection
        v, e = slice(*c.ptr[i : i + 2].tolist()), slice(*c.edge_ptr[i : i + 2].tolist())
        data = Data(edge_index=c.edge_index[:, e].long())
        data.num_nodes = v.stop - v.start
        for name, values, rows in (
            ("label", c.label, v),
            ("x", c.x, v),
            ("edge_label", c.edge_label, e),
            ("edge_attr", c.edge_attr, e),
            ("pos", self.position, v),
        ):
            if values is not None:
                rows_of = values[rows].long() if "label" in name else values[rows].clone()
                one_column = "label" in name and rows_of.shape[1] == 1
                data[name] = rows_of[:, 0] if one_column else rows_of
        return data

    def _check_published(self, folds: Folds, fetched: bool) -> None:
        expected = SPLITS.get(self.name)
        if fetched and expected is not None and folds.digest != expected:
            raise ValueError(
                f"{folds.origin} holds other splits than the published ones of {self.name}; remove "
                "it, or put splits you trust in a data root"
            )


def dataset_of(pack: Pack, store: Store, task: Task | None, attributes: bool) -> Dataset:
    """The dataset in a prepared file.

    Args:
        pack: the mapped file.
        store: where its raw files are.
        task: which targets to take, where the source has both classes and values.
        attributes: whether continuous vertex attributes belong to the graphs.

    Returns:
        The dataset.

    Raises:
        ValueError: if the source has no such targets, or attributes that are not finite.
    """
    meta, arrays = Meta.from_json(pack.meta), pack.arrays
    task = meta.task if task is None else task
    wanted = "classes" if task == "classification" else "values"
    if wanted not in arrays or (task == "multilabel") != (meta.task == "multilabel"):
        raise ValueError(f"{meta.name}: expected targets for {meta.task}, asked for {task}")
    for name in ("x", "edge_attr"):
        if name in arrays and (attributes or name == "edge_attr"):
            _check_finite(meta.name, name, arrays)
    split = [arrays.get(f"split_{part}") for part in ("train", "validation", "test")]
    return Dataset(
        name=meta.name,
        collection=_collection(arrays, meta, attributes),
        y=torch.from_numpy(arrays[wanted]),
        task=task,
        target_names=("class",) if task == "classification" else meta.target_names,
        class_names=meta.class_names if task == "classification" else (),
        fingerprint=content_of(pack),
        meta=meta,
        store=store,
        official_split=None if split[0] is None else Split(*map(torch.from_numpy, split)),
        position=_tensor(arrays.get("position")),
    )


def _check_finite(dataset: str, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError if a vertex or an edge carries what is not a finite number."""
    sound = np.isfinite(arrays[name]).all(axis=1)
    if sound.all():
        return
    row = int(np.argmin(sound))
    ptr = arrays["ptr" if name == "x" else "edge_ptr"]
    graph = int(np.searchsorted(ptr, row, side="right")) - 1
    of, other = "directed edge", ""
    if name == "x":
        of, other = "vertex", ", or load it with attributes=False"
    raise ValueError(
        f"{dataset}: graph {graph} has a value in {name} of {of} {row - int(ptr[graph])} that is "
        f"not a finite number; fill such values in{other}"
    )


def _collection(arrays: Mapping[str, np.ndarray], meta: Meta, attributes: bool) -> Collection:
    return Collection(
        ptr=torch.from_numpy(arrays["ptr"]),
        edge_ptr=torch.from_numpy(arrays["edge_ptr"]),
        edge_index=torch.from_numpy(arrays["edge_index"]),
        structure=torch.from_numpy(arrays["structure"]),
        label=_tensor(arrays.get("label")),
        label_sizes=tuple(len(v) for v in meta.label_values),
        x=_tensor(arrays.get("x")) if attributes else None,
        edge_label=_tensor(arrays.get("edge_label")),
        edge_label_sizes=tuple(len(v) for v in meta.edge_label_values),
        edge_attr=_tensor(arrays.get("edge_attr")),
    )


def _tensor(array: np.ndarray | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array)
