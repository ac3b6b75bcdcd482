"""Real datasets by name, prepared once and then mapped into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softperm.data.datasets.dataset import Dataset, load_dataset
    from softperm.data.datasets.splits import Folds, Split, make_folds, random_split

__all__ = ["Dataset", "Folds", "Split", "load_dataset", "make_folds", "random_split"]

_HOMES = {
    "Dataset": "dataset",
    "Folds": "splits",
    "Split": "splits",
    "load_dataset": "dataset",
    "make_folds": "splits",
    "random_split": "splits",
}


def __getattr__(name: str) -> object:
    # On first use, so that worker processes that parse molecules start without torch.
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"softperm.data.datasets.{_HOMES[name]}"), name)
