"""Regression on graphs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import RegressorMixin
from sklearn.exceptions import UndefinedMetricWarning
from torch import Tensor

from softperm.estimators.base import Graphs, PiGNNEstimator
from softperm.training.data import TrainingData
from softperm.training.tasks import Regression, Task, encode_numbers, target_array


class PiGNNRegressor(RegressorMixin, PiGNNEstimator):
    """Predicts numbers of graphs by aligning them to learnt latent vertices.

    ``y`` is one number per graph, or several (B, T), NaN where unknown. Targets are standardised
    for training; predictions are in their own units.
    """

    def predict(self, graphs: Graphs) -> np.ndarray:
        """The predicted numbers, (B,) or (B, T) as ``y`` was."""
        return self.decode(self._outputs(graphs))

    def decode(self, outputs: Float[Tensor, "B T"]) -> np.ndarray:
        """The network's outputs in the units of the targets."""
        assert isinstance(self.task_, Regression)
        return self.task_.decode(outputs).numpy().reshape(len(outputs), *self._shape)

    def score(self, graphs: Graphs, y: Any, sample_weight: Any = None) -> float:
        """R², averaged over the targets; graphs whose target is unknown (NaN) do not count."""
        self._check_fitted()
        graphs = list(graphs)
        known = self._encode_targets(y, len(graphs)).numpy()  # (B, T)
        predicted = self.predict(graphs).reshape(known.shape)
        return r_squared(known, predicted, sample_weight)

    def _explained(self, outputs: Float[Tensor, "B T"], probabilities: bool) -> Tensor:
        assert isinstance(self.task_, Regression)
        if probabilities:
            raise ValueError("a regression has no probabilities: leave out probabilities")
        return self.task_.decode(outputs)

    def _explained_words(self, probabilities: bool) -> str:
        return "predicted numbers"

    def _read_targets(self, y: Any, count: int) -> Tensor:
        self._shape = target_array(y, count).shape[1:]  # (), or (T,)
        return self._encode_targets(y, count)

    def _encode_targets(self, y: Any, count: int) -> Tensor:
        values = target_array(y, count)
        numbers = encode_numbers(values)
        if values.shape[1:] != self._shape:
            raise ValueError(
                f"y must have shape {(count, *self._shape)} as in training; got {values.shape}"
            )
        return numbers

    def _make_task(self, y: Tensor, weight: Tensor | None = None) -> Task:
        return Regression.of(y, weight)

    def _take_targets(self, data: TrainingData) -> None:
        self._shape = data.target_shape

    def _targets_config(self) -> dict[str, Any]:
        assert isinstance(self.task_, Regression)
        return {"mean": self.task_.mean, "std": self.task_.std, "flat": self._shape == ()}

    def _set_targets(self, config: dict[str, Any]) -> None:
        mean, std = (tuple(map(float, config[key])) for key in ("mean", "std"))
        if len(mean) != len(std):
            raise ValueError(f"there are {len(mean)} means but {len(std)} deviations of targets")
        self._shape = () if config["flat"] else (len(mean),)
        self.task_ = Regression(mean, std)


def r_squared(
    known: Float[np.ndarray, "B T"], predicted: Float[np.ndarray, "B T"], weights: Any = None
) -> float:
    """R² averaged over the targets; NaN with a warning if fewer than two values are known.

    Args:
        known: true values, NaN where unknown.
        predicted: predictions.
        weights: of the graphs.
    """
    from sklearn.metrics import r2_score

    weights = None if weights is None else np.asarray(weights)
    scores = []
    for truth, guess in zip(known.T, predicted.T, strict=True):
        there = ~np.isnan(truth)
        if there.sum() > 1:
            share = None if weights is None else weights[there]
            scores.append(r2_score(truth[there], guess[there], sample_weight=share))
    if not scores:
        words = "R² is not defined for fewer than two graphs with known targets"
        warnings.warn(words, UndefinedMetricWarning, stacklevel=3)
    return float(np.mean(scores)) if scores else float("nan")
