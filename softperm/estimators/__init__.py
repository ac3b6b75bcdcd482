"""π-GNN for users with graphs and labels: scikit-learn estimators over lists of graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softperm.settings import PAPER

if TYPE_CHECKING:
    from softperm.estimators.aligner import PiGNNAligner
    from softperm.estimators.pignn import PiGNNClassifier, PiGNNRegressor

__all__ = ["PAPER", "PiGNNAligner", "PiGNNClassifier", "PiGNNRegressor"]


def __getattr__(name: str) -> object:
    # On first use, so that the settings can be read without loading torch and scikit-learn.
    from importlib import import_module

    homes = {"PiGNNAligner": "aligner", "PiGNNClassifier": "pignn", "PiGNNRegressor": "pignn"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"softperm.estimators.{homes[name]}"), name)
