"""Classification of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import ClassifierMixin
from torch import Tensor

from softperm.estimators.base import Graphs, PiGNNEstimator
from softperm.training.data import TrainingData
from softperm.training.tasks import (
    Classification,
    MultiLabel,
    Task,
    check_classes,
    class_array,
    encode_answers,
    encode_classes,
    find_classes,
)


class PiGNNClassifier(ClassifierMixin, PiGNNEstimator):
    """Classifies graphs by aligning them to learnt latent vertices.

    ``y`` is one class per graph (strings, whole numbers or booleans), or a matrix (B, T) of
    yes-or-no answers (1, 0, and NaN where unknown).
    """

    classes_: np.ndarray

    def predict(self, graphs: Graphs) -> np.ndarray:
        """The most likely class of each graph, or the likelier answer to each question."""
        return self.decode(self._outputs(graphs))

    def predict_proba(self, graphs: Graphs) -> np.ndarray:
        """Probability of each class (B, classes), or of a yes to each question (B, T)."""
        return self.probabilities(self._outputs(graphs))

    def decode(self, outputs: Float[Tensor, "B C"]) -> np.ndarray:
        """The predictions that follow from the network's outputs."""
        chances = self.probabilities(outputs)
        if isinstance(self.task_, MultiLabel):
            return (chances > 0.5).astype(np.int64)
        return self.classes_[chances.argmax(axis=1)]

    def probabilities(self, outputs: Float[Tensor, "B C"]) -> np.ndarray:
        """The probabilities that follow from the network's outputs."""
        several = isinstance(self.task_, MultiLabel)
        return (outputs.double().sigmoid() if several else outputs.double().softmax(1)).numpy()

    def score(self, graphs: Graphs, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; for a matrix of answers, the ROC-AUC averaged over its columns."""
        self._check_fitted()
        if isinstance(self.task_, MultiLabel):
            if sample_weight is not None:
                raise ValueError("sample_weight is for classes, not for a matrix of answers")
            outputs = self._outputs(graphs)
            return self.task_.score(outputs, self._encode_targets(y, len(outputs)))
        return super().score(graphs, y, sample_weight)

    def _explained(self, outputs: Float[Tensor, "B C"], probabilities: bool) -> Tensor:
        """Only differences of the logits of classes matter; answers have logits of their own."""
        if isinstance(self.task_, MultiLabel):
            return outputs.sigmoid() if probabilities else outputs
        return outputs.softmax(1) if probabilities else outputs - outputs.mean(1, keepdim=True)

    def _explained_words(self, probabilities: bool) -> str:
        several = len(self.models_) > 1
        each = "answers" if isinstance(self.task_, MultiLabel) else "classes"
        if probabilities:
            return f"probabilities of {each}" + " (means of the networks)" * several
        mean = "means of the networks' " if several else ""
        return f"{mean}logits of {each}" + ", centred" * (each == "classes")

    def _output_names(self) -> Sequence[object]:
        return self.target_names_ if self._labels is not None else self.classes_.tolist()

    def _read_targets(self, y: Any, count: int) -> Tensor:
        values = class_array(y, count)
        if values.ndim == 2:
            self.classes_, self._labels = np.array([0, 1]), values.shape[1]
        else:
            self.classes_, self._labels = find_classes(values), None
        return self._encode_targets(values, count)

    def _encode_targets(self, y: Any, count: int) -> Tensor:
        values = class_array(y, count)
        if self._labels is None:
            return encode_classes(values, self.classes_)
        if values.ndim == 1 and self._labels == 1:
            values = values[:, None]
        if values.ndim != 2 or values.shape[1] != self._labels:
            raise ValueError(f"y must have shape ({count}, {self._labels}); got {values.shape}")
        return encode_answers(values)

    def _class_weight(self, class_weight: Any) -> Any:
        if self._labels is not None or not isinstance(class_weight, dict):
            return class_weight
        codes = {value: code for code, value in enumerate(self.classes_.tolist())}
        if unknown := [each for each in class_weight if each not in codes]:
            raise ValueError(f"class_weight has class {unknown[0]!r}, which is not in y")
        return {codes[each]: weight for each, weight in class_weight.items()}

    def _make_task(self, y: Tensor, weight: Tensor | None = None) -> Task:
        if self._labels is None:
            return Classification(len(self.classes_))
        return MultiLabel(self._labels)

    def _take_targets(self, data: TrainingData) -> None:
        self._labels = None if data.classes is not None else data.y.shape[1]
        self.classes_ = np.array([0, 1]) if data.classes is None else data.classes

    def _targets_config(self) -> dict[str, Any]:
        classes = self.classes_.tolist()
        return {"classes": classes, "labels": self._labels, "metric": self.task_.metric}

    def _set_targets(self, config: dict[str, Any]) -> None:
        self.classes_, self._labels = np.asarray(config["classes"]), config["labels"]
        check_classes(self.classes_)
        self.task_ = self._make_task(torch.empty(0))
        if isinstance(self.task_, MultiLabel):
            self.task_ = MultiLabel(self._labels, config.get("metric", self.task_.metric))
