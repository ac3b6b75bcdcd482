"""Targets as users hold them, checked and turned into arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softperm.errors import GraphError


def target_array(y: Any, count: int) -> np.ndarray:
    """Targets as an array of as many rows as there are graphs."""
    if y is None:
        raise ValueError("y is missing: each graph needs a target to learn from")
    if isinstance(y, Tensor):
        y = y.detach().cpu()
        y = y.double() if y.is_floating_point() else y
    values = np.asarray(y)
    if values.dtype.kind == "U":  # of which NumPy makes numbers among strings too
        listed = np.asarray(y, dtype=object)
        if not all(isinstance(value, str) for value in listed.ravel()):
            values = listed
    if values.ndim not in (1, 2):
        raise ValueError(f"y must have one or two axes; got shape {values.shape}")
    if len(values) != count:
        raise ValueError(f"there are {count} graphs but {len(values)} targets in y")
    if values.ndim == 2 and values.shape[1] == 0:
        raise ValueError("y has no columns")
    return values


def class_array(y: Any, count: int) -> np.ndarray:
    """Classes or answers; a matrix of one column is one class per graph."""
    values = target_array(y, count)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def check_classes(values: np.ndarray) -> None:
    """Raises ValueError unless these are strings, whole numbers or booleans."""
    listed = values.tolist()
    kinds = {type(value) for value in listed}
    for where, value in enumerate(listed):
        if value is None or value != value:
            raise GraphError(where, f"it has no class (y is {value}): leave such graphs out")
        if not isinstance(value, str | int | float):
            raise GraphError(
                where,
                f"its class is of type {type(value).__name__}; expected a string, a whole number "
                "or a boolean",
            )
        if isinstance(value, float) and not value.is_integer():
            raise GraphError(
                where,
                f"its class is {value}, which is not a whole number: use PiGNNRegressor for "
                "measurements",
            )
    if str in kinds and len(kinds) > 1:
        raise ValueError("y mixes strings with numbers: use classes of one type")


def answers(values: np.ndarray) -> Tensor:
    """A matrix of 1, 0 and NaN."""
    try:
        values = values.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"a matrix y must hold 1, 0 or NaN; got {values.dtype} values") from None
    odd = ~(np.isnan(values) | (values == 0) | (values == 1))
    if odd.any():
        raise ValueError(f"a matrix y must hold 1, 0 or NaN; got {values[odd][0]:g}")
    return torch.from_numpy(values).float()
