"""One function from a name to a dataset."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from softperm.data.datasets.catalogue import Entry, as_spelt_here, find_entry, known_names
from softperm.data.datasets.dataset import Dataset, dataset_of
from softperm.data.datasets.meta import Task
from softperm.data.datasets.prepare import Recipe, prepare
from softperm.data.datasets.store import Store, open_store
from softperm.progress import Report, progress_bars, silent

_PAPER_WITHOUT_ATTRIBUTES = ("PROTEINS",)  # its table gives PROTEINS 3 labels and no attribute


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

    The first call prepares one file in the cache; every later one only maps it into memory.

    Args:
        name: a TUDataset name (``MUTAG``, ``COLLAB``, …), ``ogbg-molhiv``, ``ogbg-molpcba`` or
            ``QM9``.
        root: folder of raw data, looked at first; by default ``SOFTPERM_DATA``.
        attributes: whether continuous vertex attributes belong to the graphs, beside the labels.
            By default they do where the dataset has them, except in PROTEINS, where the paper
            leaves its one attribute out.
        task: ``classification`` or ``regression``, for a dataset that has targets for both.
        symmetrise: take a TUDataset edge listed once as undirected, and let the first line that
            names an edge decide its label; by default such a list is an error.
        cache: folder for fetched and prepared files; by default ``SOFTPERM_CACHE``.
        progress: show bars on standard error.

    Returns:
        The dataset, graphs in the order of the raw files.

    Raises:
        ValueError: if the data cannot be had, or is not sound; the sentence says what to do.
        OSError: if the disk is full.
    """
    store, entry = open_store(root, cache), find_entry(name)
    with progress_bars(progress) as report:
        pack = prepare(recipe_of(entry, store, symmetrise, report), store, report)
    if attributes and "x" not in pack.arrays:
        raise ValueError(f"{name} has no continuous vertex attributes; leave attributes=True out")
    wanted = entry.name not in _PAPER_WITHOUT_ATTRIBUTES if attributes is None else attributes
    return dataset_of(pack, store, task, wanted)


def recipe_of(
    entry: Entry, store: Store, symmetrise: bool = False, progress: Report = silent
) -> Recipe:
    """How to make a dataset from its raw files, which are fetched if need be.

    Args:
        entry: which dataset.
        store: where to look for them.
        symmetrise: see :func:`load_dataset`.
        progress: told the bytes fetched.

    Returns:
        The recipe.

    Raises:
        ValueError: if the files are nowhere to be had.
    """
    try:
        path = store.get(entry.files[0], progress)
    except ValueError as problem:
        raise ValueError(f"{problem}{_other_names(entry.name)}") from problem
    fetched = store.is_fetched(path)
    if entry.kind == "tu":
        from softperm.data.datasets.tu import tu_recipe

        return tu_recipe(entry.name, path, symmetrise, fetched)
    if symmetrise:
        raise ValueError(f"{entry.name} is undirected as it is; symmetrise is for TUDataset text")
    if entry.kind == "ogb":
        from softperm.data.datasets.ogb import ogb_recipe

        return ogb_recipe(entry.name, path, fetched)
    from softperm.data.datasets.qm9 import qm9_recipe

    needs_list = path.suffix in (".zip", ".sdf")
    return qm9_recipe(path, store.get(entry.files[1], progress) if needs_list else None)


def _other_names(name: str) -> str:
    """What a name that is not known here may have meant, at the end of a sentence."""
    if name in known_names():
        return ""
    close = get_close_matches(name.lower(), map(str.lower, known_names()), n=1)
    meant = f"did you mean {as_spelt_here(close[0])}? " if close else ""
    return f"; {meant}softperm data list shows the names known here, TUDataset has more"
