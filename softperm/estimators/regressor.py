"""Graphs into numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from torch import Tensor

from softperm.estimators.base import PiGNNEstimator
from softperm.estimators.targets import target_array
from softperm.training.tasks import Regression, Task


class PiGNNRegressor(RegressorMixin, PiGNNEstimator):
    """Predicts numbers of graphs by aligning them to learnt latent vertices.

    ``y`` is one number per graph, or several (B, T), NaN where unknown. Targets are standardised
    inside; predictions are in their own units.
    """

    def predict(self, graphs: Sequence[Any]) -> np.ndarray:
        """The predicted numbers, (B,) or (B, T) as ``y`` was."""
        self._check_fitted()
        numbers = self.task_.decode(self._outputs(graphs)).numpy()
        return numbers[:, 0] if self._flat else numbers

    def _read_targets(self, y: Any, count: int) -> Tensor:
        self._flat = target_array(y, count).ndim == 1
        return self._encode_targets(y, count)

    def _encode_targets(self, y: Any, count: int) -> Tensor:
        values = target_array(y, count)
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"y must be numbers to regress; got {values.dtype} values") from None
        if np.isinf(values).any():
            raise ValueError(
                f"graph {int(np.argwhere(np.isinf(values))[0][0])} has an infinite target"
            )
        if (values.ndim == 1) != self._flat:
            raise ValueError("y must have as many columns as in training")
        values = values.reshape(count, -1)
        if len(values) and np.isnan(values).all(axis=0).any():
            raise ValueError("a target is missing (NaN) for every graph")
        return torch.from_numpy(values)

    def _task(self, y: Tensor) -> Task:
        return Regression.of(y)

    def _targets_config(self) -> dict[str, Any]:
        assert isinstance(self.task_, Regression)
        return {"mean": self.task_.mean, "std": self.task_.std, "flat": self._flat}

    def _set_targets(self, config: dict[str, Any]) -> None:
        self._flat = bool(config["flat"])
        self.task_ = Regression(tuple(config["mean"]), tuple(config["std"]))
