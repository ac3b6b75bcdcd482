"""softperm: soft permutations of graphs.

Aligns any collection of graphs into one vector space, for classification, regression, distances
and search. Names are imported when first used, so that ``import softperm`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.3.0"

__all__ = [
    "EditCosts",
    "GraphIndex",
    "ModelConfig",
    "PiGNN",
    "PiGNNAligner",
    "PiGNNClassifier",
    "PiGNNRegressor",
    "edit_distance",
    "frobenius_distance",
    "frobenius_matrix",
    "joint_alignment",
    "sinkhorn",
]

_HOME = {
    "EditCosts": "softperm.distance",
    "GraphIndex": "softperm.search",
    "ModelConfig": "softperm.nn.model",
    "PiGNN": "softperm.nn.model",
    "PiGNNAligner": "softperm.estimators",
    "PiGNNClassifier": "softperm.estimators",
    "PiGNNRegressor": "softperm.estimators",
    "edit_distance": "softperm.distance",
    "frobenius_distance": "softperm.distance",
    "frobenius_matrix": "softperm.distance",
    "joint_alignment": "softperm.distance",
    "sinkhorn": "softperm.ops.transport",
}

if TYPE_CHECKING:
    from softperm.distance import (
        EditCosts,
        edit_distance,
        frobenius_distance,
        frobenius_matrix,
        joint_alignment,
    )
    from softperm.estimators import PiGNNAligner, PiGNNClassifier, PiGNNRegressor
    from softperm.nn.model import ModelConfig, PiGNN
    from softperm.ops.transport import sinkhorn
    from softperm.search import GraphIndex


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'softperm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
