"""What ``softperm predict`` and ``softperm embed`` share: a trained model, and graphs for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from softperm.commands.console import counting
from softperm.estimators import PiGNNClassifier, PiGNNRegressor
from softperm.files import GraphFile, read_graphs
from softperm.folder import FolderError, read_folder


def load_estimator(run: str, device: str) -> PiGNNClassifier | PiGNNRegressor:
    """The trained estimator of a run folder or model folder."""
    inner = Path(run) / "model"
    folder = inner if inner.is_dir() else run
    kinds = {cls.__name__: cls for cls in (PiGNNClassifier, PiGNNRegressor)}
    kind = read_folder(folder)[0].get("kind")
    if kind not in kinds:
        raise FolderError(f"{folder} holds a {kind}, not a trained classifier or regressor")
    return kinds[kind].load(folder, device=device)


def read(data: Path, smiles_column: str | None, symmetrise: bool) -> GraphFile:
    """The graphs of a file; targets, if it has any, are left alone."""
    with counting("reading graphs") as count:
        return read_graphs(
            data, target=[], smiles_column=smiles_column, symmetrise=symmetrise, progress=count
        )


def prediction_columns(
    estimator: PiGNNClassifier | PiGNNRegressor, file: GraphFile
) -> dict[str, list[Any]]:
    """Predictions, and probabilities where there are classes, by the name of their column."""
    if isinstance(estimator, PiGNNRegressor):
        return _columns("prediction", estimator.predict(file.graphs))
    chances = estimator.predict_proba(file.graphs)  # (B, classes), or (B, T)
    predicted = estimator.decide(chances)  # (B,), or (B, T)
    labels = estimator.classes_ if predicted.ndim == 1 else range(chances.shape[1])
    named = zip(labels, chances.T.tolist(), strict=True)
    return _columns("prediction", predicted) | {f"probability_{k}": c for k, c in named}


def _columns(name: str, values: np.ndarray) -> dict[str, list[Any]]:
    """A column of that name, or several that are numbered."""
    columns = values.reshape(len(values), -1).T.tolist()  # (T, B)
    several = len(columns) > 1
    return {f"{name}_{k}" if several else name: column for k, column in enumerate(columns)}
