"""Graphs into classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from torch import Tensor

from softperm.estimators.base import PiGNNEstimator
from softperm.estimators.targets import answers, check_classes, class_array
from softperm.training.tasks import Classification, MultiLabel, Task


class PiGNNClassifier(ClassifierMixin, PiGNNEstimator):
    """Classifies graphs by aligning them to learnt latent vertices.

    ``y`` is one class per graph (strings, whole numbers or booleans), or a matrix (B, T) of
    yes-or-no answers (1, 0, and NaN where unknown).
    """

    classes_: np.ndarray

    def predict(self, graphs: Sequence[Any]) -> np.ndarray:
        """The most likely class of each graph; for a matrix of answers, the likelier answer."""
        return self.decide(self.predict_proba(graphs))

    def decide(self, chances: np.ndarray) -> np.ndarray:
        """What :meth:`predict` makes of the probabilities that :meth:`predict_proba` gives."""
        self._check_fitted()
        if isinstance(self.task_, MultiLabel):
            return (chances > 0.5).astype(np.int64)
        return self.classes_[chances.argmax(axis=1)]

    def predict_proba(self, graphs: Sequence[Any]) -> np.ndarray:
        """Probability of each class (B, classes), or of each yes (B, T)."""
        outputs = self._outputs(graphs).double()
        several = isinstance(self.task_, MultiLabel)
        return (outputs.sigmoid() if several else outputs.softmax(dim=1)).numpy()

    def score(self, graphs: Sequence[Any], y: Any, sample_weight: Any = None) -> float:
        """Accuracy; for a matrix of answers, the ROC-AUC averaged over its columns."""
        self._check_fitted()
        if isinstance(self.task_, MultiLabel):
            if sample_weight is not None:
                raise ValueError("sample_weight is for classes, not for a matrix of answers")
            outputs = self._outputs(graphs)
            return self.task_.score(outputs, self._encode_targets(y, len(outputs)))
        return super().score(graphs, y, sample_weight)

    def _read_targets(self, y: Any, count: int) -> Tensor:
        values = class_array(y, count)
        if values.ndim == 2:
            self.classes_ = np.array([0, 1])
            self._labels = values.shape[1]
        else:
            self._labels = None
            check_classes(values)
            self.classes_ = np.unique(values)
            if len(self.classes_) < 2:
                raise ValueError(
                    f"y has only one class, {self.classes_.tolist()[0]!r}: "
                    "a classifier needs graphs of at least two"
                )
        return self._encode_targets(values, count)

    def _encode_targets(self, y: Any, count: int) -> Tensor:
        values = class_array(y, count)
        if self._labels is not None:
            if values.ndim != 2 or values.shape[1] != self._labels:
                raise ValueError(f"y must have shape ({count}, {self._labels}); got {values.shape}")
            return answers(values)
        code_of = {value: code for code, value in enumerate(self.classes_.tolist())}
        codes = [code_of.get(value, -1) for value in values.tolist()]
        if -1 in codes:
            unknown = values.tolist()[codes.index(-1)]
            raise ValueError(f"class {unknown!r} is not among those of training")
        return torch.tensor(codes)

    def _task(self, y: Tensor) -> Task:
        return (
            Classification(len(self.classes_)) if self._labels is None else MultiLabel(self._labels)
        )

    def _targets_config(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist(), "labels": self._labels}

    def _set_targets(self, config: dict[str, Any]) -> None:
        self.classes_, self._labels = np.asarray(config["classes"]), config["labels"]
        check_classes(self.classes_)
        self.task_ = self._task(torch.empty(0))
