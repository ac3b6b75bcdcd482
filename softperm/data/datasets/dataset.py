"""Loading a dataset by name: graphs laid end to end, targets, and splits."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from softperm.data import features
from softperm.data.archive import Archive
from softperm.data.canonical import first_not_finite
from softperm.data.collection import Collection, slice_graph
from softperm.data.datasets.catalogue import Entry, catalogue_spelling, find_entry, known_names
from softperm.data.datasets.prepared import Prepared, Recipe, Schema, Task, prepare
from softperm.data.datasets.splits import (
    Folds,
    Split,
    make_folds,
    random_split,
    read_folds,
    write_folds,
)
from softperm.data.datasets.store import Store, file_digest, open_store
from softperm.errors import GraphError
from softperm.files import exclusive, seal, unseal, write_atomically
from softperm.progress import Report, progress_bars, silent
from softperm.pyg import Data
from softperm.settings import StructuralFeatures

_FEATURES = b"softperm features 1\n"
_PAPER_WITHOUT_ATTRIBUTES = ("PROTEINS",)  # the paper's table lists 3 labels and no attribute


@dataclass(frozen=True)
class FeatureStore:
    """Structural features of a dataset, which are computed once and kept on disk."""

    folder: Path
    name: str
    fingerprint: str

    def extend(self, graphs: Collection, settings: StructuralFeatures) -> Collection:
        """The graphs with the features that are switched on, without colours.

        A change of the code that computes features leads to another file; a damaged file is
        written again.
        """
        if settings.names == StructuralFeatures().names:
            return graphs
        content = (self.fingerprint, settings.names, file_digest(Path(features.__file__)))
        key = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
        path = self.folder / f"{self.name}-{key}.features"
        with exclusive(path):
            known = _read_features(path, (len(graphs.structure), len(settings.names)))
            if known is None:
                known = features.VertexFeatures(settings).extend(graphs).structure.numpy()
                write_atomically(path, seal(_FEATURES, known.tobytes()))
        return replace(graphs, structure=torch.from_numpy(known))


def _read_features(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """The array of a file; None if there is none, or if it is damaged."""
    try:
        content = unseal(_FEATURES, path.read_bytes())
    except OSError:
        return None
    if content is None or len(content) != 4 * shape[0] * shape[1]:
        return None
    return np.frombuffer(content, np.float32).reshape(shape).copy()


@dataclass(frozen=True)
class Dataset:
    """Graphs with targets, in the order of their source.

    Args:
        name: the dataset's name.
        collection: the graphs. Its arrays are backed by prepared files: they are read when
            touched, and processes share the memory.
        y: for ``classification`` the class of each graph, (B,) int64; for ``multilabel`` and
            ``regression`` the targets, (B, T) float, NaN where missing.
        task: what is predicted.
        target_names: the columns of ``y``; one name for a classification.
        class_names: the source's name of each class.
        fingerprint: SHA-256 of graphs and targets, whatever code prepared them.
        schema: names of labels and targets, and counts of removed edges.
        store: where its files are.
        official_split: the split that the dataset is published with, if any.
        position: coordinates of the vertices in Å, if the source has them.
    """

    name: str
    collection: Collection
    y: Shaped[Tensor, "B ..."]
    task: Task
    target_names: tuple[str, ...]
    class_names: tuple[str, ...]
    fingerprint: str
    schema: Schema
    store: Store
    official_split: Split | None = None
    position: Float[Tensor, "V 3"] | None = None

    def __len__(self) -> int:
        return len(self.collection)

    def __repr__(self) -> str:
        """Name, task and sizes."""
        return f"Dataset({self.name!r}, {self.task}, {self.collection!r})"

    def folds(self, seed: int = 0) -> Folds:
        """The cross-validation of this dataset: 10 outer folds, each with a 90/10 selection split.

        Published splits are read from ``splits/NAME.json`` in the data root or the cache, or
        downloaded. For other datasets, stratified folds are drawn once from ``seed`` and stored in
        the cache.

        Raises:
            ValueError: published splits exist but are not available, or do not fit this dataset.
        """
        entry = find_entry(self.name)
        place = self.store.locate(f"splits/{self.name}.json")
        if entry.splits is not None and place is None:
            place = self.store.get(entry.splits)
        if place is not None:
            folds = read_folds(place, len(self))
            expected = entry.splits_checksum or folds.digest
            if self.store.is_downloaded(place) and folds.digest != expected:
                raise ValueError(
                    f"{folds.origin} holds other splits than the published ones of {self.name}; "
                    "remove it, or put splits you trust in a data root"
                )
            return folds
        place = self.store.cache / "splits" / f"{self.name}-{self.fingerprint[:12]}-{seed}.json"
        with exclusive(place):
            if not place.exists():
                classes = self.y if self.task == "classification" else None
                write_folds(place, make_folds(classes, len(self), seed))
        return read_folds(place, len(self))

    @property
    def feature_store(self) -> FeatureStore:
        """Where structural features of these graphs are kept."""
        return FeatureStore(self.store.cache / "features", self.name, self.fingerprint)

    @property
    def collection_with_positions(self) -> Collection:
        """The graphs with the positions of their vertices, which batches have as ``pos``.

        Raises:
            ValueError: the source has no positions.
        """
        if self.position is None:
            raise ValueError(
                f"{self.name} has no positions, which distance_bins needs: set distance_bins to 0"
            )
        extra = {**self.collection.extra, "pos": self.position}
        return replace(self.collection, extra=extra)

    def random_split(self, seed: int) -> Split:
        """80 / 10 / 10 % of the graphs at random, as the paper divides QM9."""
        return random_split(len(self), seed)

    def graphs(self, index: Iterable[int] | None = None) -> list[Data]:
        """Some graphs as canonical PyG ``Data``, without targets.

        Returns:
            The graphs, with codes as labels.
        """
        c = self.collection
        fields = {
            "label": c.label,
            "x": c.x,
            "edge_label": c.edge_label,
            "edge_attr": c.edge_attr,
            "pos": self.position,
        }
        present = {name: values for name, values in fields.items() if values is not None}
        numbers = range(len(self)) if index is None else index
        return [slice_graph(i, c.ptr, c.edge_ptr, c.edge_index, present) for i in numbers]


def load_dataset(
    name: str,
    root: Path | str | None = None,
    *,
    attributes: bool | None = None,
    task: Task | None = None,
    symmetrise: bool = False,
    cache: Path | str | None = None,
    progress: bool = False,
) -> Dataset:
    """Load a dataset by name: from a data root, the cache, or its public source.

    The first call prepares the dataset in the cache; later calls only map it into memory.

    Args:
        name: a TUDataset name (``MUTAG``, ``COLLAB``, …), ``ogbg-molhiv``, ``ogbg-molpcba`` or
            ``QM9``.
        root: folder of raw data, searched first; by default ``SOFTPERM_DATA``.
        attributes: whether the graphs have continuous vertex attributes besides labels. By default
            they do if the dataset has any, except for PROTEINS, where the paper omits its one
            attribute.
        task: ``classification`` or ``regression``, for a dataset that has targets for both.
        symmetrise: treat a TUDataset edge listed once as undirected, with the label of the first
            line that names it; by default such a list is an error.
        cache: folder for downloaded and prepared files; by default ``SOFTPERM_CACHE``.
        progress: show progress bars on standard error.

    Raises:
        ValueError: the data is not available or unusable; the message says what to do.
        OSError: the disk is full.
    """
    store, entry = open_store(root, cache), find_entry(name)
    with progress_bars(progress) as report:
        prepared = prepare(recipe_of(entry, store, symmetrise, report), store, report)
    if attributes and "x" not in prepared.arrays:
        raise ValueError(f"{name} has no continuous vertex attributes; omit attributes=True")
    if attributes is None:
        attributes = entry.name not in _PAPER_WITHOUT_ATTRIBUTES
        if not attributes and "x" in prepared.arrays:
            warnings.warn(
                f"{entry.name} is loaded without its vertex attributes, as in the paper: "
                "attributes=True includes them, and so does reading its file",
                stacklevel=2,
            )
    return dataset_of(prepared, store, task, attributes)


def dataset_file(
    name: str, root: Path | str | None = None, *, cache: Path | str | None = None
) -> Path:
    """The file of a dataset that :func:`softperm.data.formats.read_graphs` reads.

    It is downloaded if needed. Of OGB's datasets and QM9 it is the table of SMILES, so their graphs
    have elements and types of bonds as labels and no hydrogens, like those of other SMILES.

    Args:
        name: see :func:`load_dataset`.
        root: folder of raw data, searched first; by default ``SOFTPERM_DATA``.
        cache: folder for downloaded and prepared files; by default ``SOFTPERM_CACHE``.

    Raises:
        ValueError: the data is not available, or has no such file.
    """
    store, entry = open_store(root, cache), find_entry(name)
    with progress_bars() as report:
        recipe = recipe_of(entry, store, progress=report)
        path = store.get(entry.files[0])
        if store.is_downloaded(path):
            prepare(recipe, store, report)  # compares it with the known checksums
    if entry.kind == "tu":
        return path
    if entry.kind == "ogb":
        return _smiles_table(path, store.cache / "tables" / f"{entry.name}.csv.gz")
    if path.name.endswith(".csv.xz"):
        return path
    raise ValueError(
        f"{name} is available as {path.name}, which has no SMILES: put {entry.files[0].others[0]} "
        "in the data root, or name a table of SMILES"
    )


def _smiles_table(path: Path, copy: Path) -> Path:
    """The table of SMILES in a folder or archive of OGB; out of an archive it is copied."""
    with Archive(path) as archive:
        place = archive.find("mapping/mol.csv.gz")
        assert place is not None, "the recipe has found it"
        if path.is_dir():
            return path / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(place) as stream:
            write_atomically(copy, stream.read())
    return copy


def recipe_of(
    entry: Entry, store: Store, symmetrise: bool = False, progress: Report = silent
) -> Recipe:
    """How to prepare a dataset from its raw files, which are downloaded if needed.

    Raises:
        ValueError: the files are not available.
    """
    try:
        path = store.get(entry.files[0], progress)
    except ValueError as problem:
        raise ValueError(f"{problem}{_other_names(entry.name)}") from problem
    downloaded = store.is_downloaded(path)
    if entry.kind == "tu":
        from softperm.data.datasets.tu import tu_recipe

        return tu_recipe(entry, path, symmetrise, downloaded)
    if symmetrise:
        raise ValueError(f"{entry.name} is undirected; symmetrise is for TUDataset files")
    if entry.kind == "ogb":
        from softperm.data.datasets.molecules import ogb_recipe

        return ogb_recipe(entry, path, downloaded)
    from softperm.data.datasets.molecules import qm9_recipe

    needs_list = path.suffix in (".zip", ".sdf")
    return qm9_recipe(path, store.get(entry.files[1], progress) if needs_list else None)


def _other_names(name: str) -> str:
    """Advice on a name that is not in the catalogue, for the end of an error message."""
    if name in known_names():
        return ""
    close = get_close_matches(name.lower(), map(str.lower, known_names()), n=1)
    meant = f"did you mean {catalogue_spelling(close[0])}? " if close else ""
    return f"; {meant}softperm data list shows the known names, TUDataset has more"


def dataset_of(prepared: Prepared, store: Store, task: Task | None, attributes: bool) -> Dataset:
    """The dataset in prepared files.

    Raises:
        GraphError: an attribute is not finite.
        ValueError: the source has no targets for the task.
    """
    schema, arrays = prepared.schema, prepared.arrays
    task = schema.task if task is None else task
    wanted = "classes" if task == "classification" else "values"
    if wanted not in arrays or (task == "multilabel") != (schema.task == "multilabel"):
        raise ValueError(f"{schema.name} has targets for {schema.task}, not for {task}")
    for name in ("x", "edge_attr"):
        if name in arrays and (attributes or name == "edge_attr"):
            _check_finite(schema.name, name, arrays)
    split = [arrays.get(f"split_{part}") for part in ("train", "validation", "test")]
    of_labels, of_edges = (
        tuple(map(len, values)) for values in (schema.label_values, schema.edge_label_values)
    )
    graphs = Collection.of_arrays(arrays, of_labels, of_edges)
    position = arrays.get("position")
    return Dataset(
        name=schema.name,
        collection=graphs if attributes else replace(graphs, x=None),
        y=torch.from_numpy(arrays[wanted]),
        task=task,
        target_names=("class",) if task == "classification" else schema.target_names,
        class_names=schema.class_names if task == "classification" else (),
        fingerprint=prepared.fingerprint,
        schema=schema,
        store=store,
        official_split=None if split[0] is None else Split(*map(torch.from_numpy, split)),
        position=None if position is None else torch.from_numpy(position),
    )


def _check_finite(dataset: str, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise GraphError if an attribute of a vertex or an edge is not a finite number."""
    found = first_not_finite(arrays[name], arrays["ptr" if name == "x" else "edge_ptr"])
    if found is None:
        return
    graph, row = found
    of, other = "directed edge", ""
    if name == "x":
        of, other = "vertex", ", or load it with attributes=False"
    raise GraphError(
        graph,
        f"{name} of {of} {row} is not finite; fill in such values{other}",
        f"{dataset}: graph {graph}",
    )
