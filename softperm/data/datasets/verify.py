"""Whether the files of a dataset are what they should be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from softperm.data.datasets.catalogue import Entry
from softperm.data.datasets.dataset import Dataset, dataset_of
from softperm.data.datasets.load import recipe_of
from softperm.data.datasets.pack import Pack, damaged_arrays
from softperm.data.datasets.pins import CONTENT, FILES, REBUILT, SPLITS
from softperm.data.datasets.prepare import content_of, prepare
from softperm.data.datasets.store import Store, is_as_fetched
from softperm.data.formats.archive import Archive
from softperm.progress import Report, silent


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Args:
        name: the dataset.
        what: what was looked at.
        good: whether it is as it should be.
        note: what was found.
    """

    name: str
    what: str
    good: bool
    note: str


def raw_path(entry: Entry, store: Store) -> Path | None:
    """Where a dataset's raw files are, if they are on this machine."""
    return store.locate(*entry.files[0].others, entry.files[0].place)


def verify(entry: Entry, store: Store, progress: Report = silent) -> tuple[Check, ...]:
    """Look at everything of a dataset that is on this machine.

    Args:
        entry: the dataset.
        store: where its files are.
        progress: told how far the work is, where the dataset is prepared first.

    Returns:
        What was found: of the raw files, the data in them, the prepared file, and the splits.

    Raises:
        ValueError: if the dataset is not on this machine.
    """
    path = raw_path(entry, store)
    if path is None:
        raise ValueError(f"{entry.name} is not on this machine; softperm data get {entry.name}")
    checks = [_check_raw(entry, store, path)]
    if not checks[0].good:
        return tuple(checks)
    try:
        pack = prepare(recipe_of(entry, store, progress=progress), store, progress)
    except ValueError as error:
        return (*checks, Check(entry.name, "data", False, str(error)))
    checks += [_check_content(entry, pack, path), _check_prepared(entry, pack)]
    dataset = dataset_of(pack, store, None, attributes=True)
    if store.locate(f"splits/{entry.name}.json") is not None:
        checks.append(_check_splits(entry, dataset))
    return tuple(checks)


def _check_raw(entry: Entry, store: Store, path: Path) -> Check:
    if store.is_fetched(path) and not is_as_fetched(path):
        return Check(entry.name, "raw files", False, f"{path} is not as it was fetched; remove it")
    if path.suffix == ".zip":
        try:
            with Archive(path) as archive:
                for name in archive.names:
                    for _ in archive.blocks(name):
                        pass
        except ValueError as error:
            return Check(entry.name, "raw files", False, str(error))
    return Check(entry.name, "raw files", True, str(path))


def _check_content(entry: Entry, pack: Pack, path: Path) -> Check:
    if entry.name in FILES:
        from softperm.data.datasets.ogb import unknown_files

        other = unknown_files(entry.name, path)
        note = f"not the official {', '.join(other)}" if other else "the official files"
        return Check(entry.name, "data", not other, note)
    found, known = content_of(pack), (CONTENT | REBUILT).get(entry.name)
    if known is None:
        return Check(entry.name, "data", True, f"content {found[:16]}, nothing to compare with")
    if known != found:
        note = f"content {found[:16]} is not that of the known dataset, {known[:16]}"
        return Check(entry.name, "data", False, note)
    return Check(entry.name, "data", True, f"content {found[:16]}, the known dataset")


def _check_prepared(entry: Entry, pack: Pack) -> Check:
    damaged = list(damaged_arrays(pack))
    note = f"{pack.path}: {', '.join(damaged)} changed; remove the file" if damaged else pack.path
    return Check(entry.name, "prepared file", not damaged, str(note))


def _check_splits(entry: Entry, dataset: Dataset) -> Check:
    try:
        folds = dataset.folds()
    except ValueError as error:
        return Check(entry.name, "splits", False, str(error))
    known = SPLITS.get(entry.name)
    if known not in (None, folds.digest):
        return Check(entry.name, "splits", False, f"{folds.origin} is not the published file")
    said = "nothing to compare with" if known is None else "the published splits"
    return Check(entry.name, "splits", True, f"{len(folds)} folds, {said}")
