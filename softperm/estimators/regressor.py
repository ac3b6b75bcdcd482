"""Graphs into numbers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import r2_score
from torch import Tensor

from softperm.errors import GraphError
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
        assert isinstance(self.task_, Regression)
        numbers = self.task_.decode(self._outputs(graphs)).numpy()  # (B, T)
        return numbers.reshape(len(numbers), *self._shape)

    def score(self, graphs: Sequence[Any], y: Any, sample_weight: Any = None) -> float:
        """R², averaged over the targets; graphs whose target is unknown (NaN) do not count."""
        self._check_fitted()
        graphs = list(graphs)
        known = self._encode_targets(y, len(graphs)).numpy()  # (B, T)
        predicted = self.predict(graphs).reshape(known.shape)
        weight = None if sample_weight is None else np.asarray(sample_weight)
        scores = []
        for truth, guess in zip(known.T, predicted.T, strict=True):
            there = ~np.isnan(truth)
            if there.sum() > 1:
                share = None if weight is None else weight[there]
                scores.append(r2_score(truth[there], guess[there], sample_weight=share))
        if not scores:
            words = "R² is not defined for fewer than two graphs with known targets"
            warnings.warn(words, UndefinedMetricWarning, stacklevel=2)
        return float(np.mean(scores)) if scores else float("nan")

    def _read_targets(self, y: Any, count: int) -> Tensor:
        self._shape = target_array(y, count).shape[1:]  # (), or (T,)
        return self._encode_targets(y, count)

    def _encode_targets(self, y: Any, count: int) -> Tensor:
        values = target_array(y, count)
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"y must be numbers to regress; got {values.dtype} values") from None
        if np.isinf(values).any():
            graph = int(np.argwhere(np.isinf(values))[0][0])
            raise GraphError(graph, "its target is infinite: leave such graphs out")
        if values.shape[1:] != self._shape:
            raise ValueError(
                f"y must have shape {(count, *self._shape)} as in training; got {values.shape}"
            )
        return torch.from_numpy(values.reshape(count, -1))

    def _task(self, y: Tensor) -> Task:
        return Regression.of(y)

    def _targets_config(self) -> dict[str, Any]:
        assert isinstance(self.task_, Regression)
        return {"mean": self.task_.mean, "std": self.task_.std, "flat": self._shape == ()}

    def _set_targets(self, config: dict[str, Any]) -> None:
        mean, std = (tuple(map(float, config[key])) for key in ("mean", "std"))
        if len(mean) != len(std):
            raise ValueError(f"there are {len(mean)} means but {len(std)} deviations of targets")
        self._shape = () if config["flat"] else (len(mean),)
        self.task_ = Regression(mean, std)
