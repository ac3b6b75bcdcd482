"""What ``softperm predict`` and ``softperm embed`` share: a trained model, and graphs for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    predicted = estimator.predict(file.graphs).reshape(len(file.graphs), -1)  # (B, T)
    several = predicted.shape[1] > 1
    names = [f"prediction_{k}" if several else "prediction" for k in range(predicted.shape[1])]
    columns = dict(zip(names, predicted.T.tolist(), strict=True))
    if isinstance(estimator, PiGNNClassifier):
        chances = estimator.predict_proba(file.graphs)  # (B, classes), or (B, T)
        labels = range(chances.shape[1]) if several else estimator.classes_
        columns |= {f"probability_{k}": c for k, c in zip(labels, chances.T.tolist(), strict=True)}
    return columns
