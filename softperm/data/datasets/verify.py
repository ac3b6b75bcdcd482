"""Checks of a dataset's files: raw, prepared, and splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from softperm.data.archive import Archive
from softperm.data.datasets.catalogue import REBUILT_FINGERPRINTS, Entry
from softperm.data.datasets.dataset import Dataset, dataset_of, recipe_of
from softperm.data.datasets.prepared import Prepared, prepare
from softperm.data.datasets.store import Store, is_unchanged
from softperm.progress import Report, silent


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    what: str
    good: bool
    note: str


def raw_path(entry: Entry, store: Store) -> Path | None:
    """The path of a dataset's raw files, if they are on this machine."""
    return store.locate(*entry.files[0].others, entry.files[0].place)


def verify(entry: Entry, store: Store, progress: Report = silent) -> tuple[Check, ...]:
    """Check all files of a dataset that are on this machine.

    Returns:
        Checks of the raw files, the data in them, the prepared files, and the splits.

    Raises:
        ValueError: the dataset is not on this machine.
    """
    path = raw_path(entry, store)
    if path is None:
        raise ValueError(f"{entry.name} is not on this machine; softperm data get {entry.name}")
    checks = [_check_raw(entry, store, path)]
    if not checks[0].good:
        return tuple(checks)
    try:
        prepared = prepare(recipe_of(entry, store, progress=progress), store, progress)
    except ValueError as error:
        return (*checks, Check(entry.name, "data", False, str(error)))
    checks += [_check_content(entry, prepared, path), _check_prepared(entry, prepared)]
    dataset = dataset_of(prepared, store, None, attributes=True)
    if store.locate(f"splits/{entry.name}.json") is not None:
        checks.append(_check_splits(entry, dataset))
    return tuple(checks)


def _check_raw(entry: Entry, store: Store, path: Path) -> Check:
    if store.is_downloaded(path) and not is_unchanged(path):
        return Check(entry.name, "raw files", False, f"{path} changed since download; remove it")
    if path.suffix == ".zip":
        try:
            with Archive(path) as archive:
                archive.check()
        except ValueError as error:
            return Check(entry.name, "raw files", False, str(error))
    return Check(entry.name, "raw files", True, str(path))


def _check_content(entry: Entry, prepared: Prepared, path: Path) -> Check:
    if entry.file_checksums:
        from softperm.data.datasets.molecules import unknown_files

        other = unknown_files(entry, path)
        note = f"not the official {', '.join(other)}" if other else "the official files"
        return Check(entry.name, "data", not other, note)
    found = prepared.fingerprint
    known = entry.fingerprint or REBUILT_FINGERPRINTS.get(entry.name)
    if known is None:
        return Check(entry.name, "data", True, f"fingerprint {found[:16]}, no known one to compare")
    if known != found:
        note = f"fingerprint {found[:16]} is not that of the known dataset, {known[:16]}"
        return Check(entry.name, "data", False, note)
    return Check(entry.name, "data", True, f"fingerprint {found[:16]}, the known dataset")


def _check_prepared(entry: Entry, prepared: Prepared) -> Check:
    damaged, note = prepared.damaged_arrays(), str(prepared.path)
    if damaged:
        note += f": {', '.join(damaged)} changed; remove the folder"
    return Check(entry.name, "prepared files", not damaged, note)


def _check_splits(entry: Entry, dataset: Dataset) -> Check:
    try:
        folds = dataset.folds()
    except ValueError as error:
        return Check(entry.name, "splits", False, str(error))
    known = entry.splits_checksum
    if known not in (None, folds.digest):
        return Check(entry.name, "splits", False, f"{folds.origin} is not the published file")
    which = "no published ones to compare" if known is None else "the published splits"
    return Check(entry.name, "splits", True, f"{len(folds)} folds, {which}")
