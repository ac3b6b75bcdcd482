"""Targets as users hold them, checked and turned into tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softperm.errors import GraphError


def target_array(y: Any, count: int) -> np.ndarray:
    """Targets as an array with one row per graph."""
    if y is None:
        raise ValueError("y is missing: each graph needs a target to learn from")
    if isinstance(y, Tensor):
        y = y.detach().cpu()
        y = y.double() if y.is_floating_point() else y
    values = np.asarray(y)
    if values.dtype.kind == "U":  # NumPy also turns numbers among strings into strings
        as_given = np.asarray(y, dtype=object)
        if not all(isinstance(value, str) for value in as_given.ravel()):
            values = as_given
    if values.ndim not in (1, 2):
        raise ValueError(f"y must have one or two axes; got shape {values.shape}")
    if len(values) != count:
        raise ValueError(f"there are {count} graphs but {len(values)} targets in y")
    if values.ndim == 2 and values.shape[1] == 0:
        raise ValueError("y has no columns")
    return values


def weight_array(sample_weight: Any, count: int) -> Tensor | None:
    """The weight of each graph (B,); None for equal weights.

    Raises:
        ValueError: the weights are no finite numbers of at least 0, or all are 0.
    """
    if sample_weight is None:
        return None
    try:
        values = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("sample_weight must hold a number for each graph") from None
    if values.shape != (count,):
        raise ValueError(
            f"sample_weight must hold a number for each of the {count} graphs; got shape "
            f"{values.shape}"
        )
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        index = int(wrong[0])
        raise GraphError(index, f"its sample_weight is {values[index]:g}; expected 0 or more")
    if not values.any():
        raise ValueError("every sample_weight is 0: nothing could be learnt")
    return torch.from_numpy(values)


def class_array(y: Any, count: int) -> np.ndarray:
    """Classes, or a matrix of yes-or-no answers; a matrix of one column is one class per graph."""
    values = target_array(y, count)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def find_classes(values: np.ndarray) -> np.ndarray:
    """The distinct classes in ascending order.

    Raises:
        ValueError: there is only one, or they are not strings, whole numbers or booleans.
    """
    check_classes(values)
    classes = np.unique(values)
    if len(classes) < 2:
        raise ValueError(
            f"y has only one class, {classes.tolist()[0]!r}: a classifier needs graphs of at least "
            "two"
        )
    return classes


def check_classes(values: np.ndarray) -> None:
    """Raises ValueError unless these are strings, whole numbers or booleans."""
    listed = values.tolist()
    kinds = {type(value) for value in listed}
    for index, value in enumerate(listed):
        if value is None or value != value:
            raise GraphError(index, f"it has no class (y is {value}): leave such graphs out")
        if not isinstance(value, str | int | float):
            raise GraphError(
                index,
                f"its class is of type {type(value).__name__}; expected a string, a whole number "
                "or a boolean",
            )
        if isinstance(value, float) and not value.is_integer():
            raise GraphError(
                index,
                f"its class is {value}, which is not a whole number: use PiGNNRegressor for "
                "measurements",
            )
    if str in kinds and len(kinds) > 1:
        raise ValueError("y mixes strings with numbers: use classes of one type")


def encode_classes(values: np.ndarray, classes: np.ndarray) -> Tensor:
    """The position of each value among the classes (B,).

    Raises:
        ValueError: a value is none of the classes.
    """
    code_of = {value: code for code, value in enumerate(classes.tolist())}
    codes = [code_of.get(value, -1) for value in values.tolist()]
    if -1 in codes:
        unknown = values.tolist()[codes.index(-1)]
        raise ValueError(f"class {unknown!r} is not among those of training")
    return torch.tensor(codes)


def encode_answers(values: np.ndarray) -> Tensor:
    """A matrix (B, T) of 1, 0 and NaN."""
    try:
        values = values.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"a matrix y must hold 1, 0 or NaN; got {values.dtype} values") from None
    odd = ~(np.isnan(values) | (values == 0) | (values == 1))
    if odd.any():
        raise ValueError(f"a matrix y must hold 1, 0 or NaN; got {values[odd][0]:g}")
    return torch.from_numpy(values).float()


def encode_numbers(values: np.ndarray) -> Tensor:
    """A matrix (B, T) of numbers, NaN where unknown; one column for targets of one axis."""
    try:
        values = values.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"y must be numbers to regress; got {values.dtype} values") from None
    if np.isinf(values).any():
        raise GraphError(
            int(np.argwhere(np.isinf(values))[0][0]),
            "its target is infinite: leave such graphs out",
        )
    return torch.from_numpy(values.reshape(len(values), -1))
