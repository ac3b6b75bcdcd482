"""What ``softperm predict`` and ``softperm embed`` share: a trained model, and graphs for it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from softperm.cli.console import counting
from softperm.cli.dataset_models import dataset_estimator
from softperm.cli.runs import CHECKPOINT
from softperm.data.formats import GraphFile, read_graphs
from softperm.estimators import PiGNNClassifier, PiGNNRegressor
from softperm.nn.model_folder import FolderError, read_folder


@dataclass(frozen=True)
class Trained:
    """A trained estimator, and what it makes of the graphs of a file.

    Attributes:
        estimator: of any graphs, or of the graphs that a named dataset holds.
        prepare: what the estimator takes of a file: its graphs, or their SMILES.
        targets: names of what it was trained for, where a run folder tells them.
    """

    estimator: PiGNNClassifier | PiGNNRegressor
    prepare: Callable[[GraphFile], list[Any]]
    targets: tuple[str, ...] = ()


def load_trained(run: str, device: str) -> Trained:
    """What ``softperm train`` left in a run folder, or an estimator's model folder.

    Warns where the training has not come to its end.
    """
    inner = Path(run) / "model"
    if inner.is_dir() and (Path(run) / CHECKPOINT).exists():
        warnings.warn(
            f"the training in {run} was stopped before its end: its command goes on with it",
            stacklevel=2,
        )
    folder = inner if inner.is_dir() else run
    kinds = {cls.__name__: cls for cls in (PiGNNClassifier, PiGNNRegressor)}
    kind = read_folder(folder)[0].get("kind")
    if kind == "PiGNN":
        estimator = dataset_estimator(Path(folder), device)
        smiles = estimator.wants_smiles  # which a table of molecules calls them by
        taken = (lambda file: list(file.ids)) if smiles else (lambda file: file.graphs)
        return Trained(estimator, taken, _targets(Path(run)))
    if kind not in kinds:
        raise FolderError(f"{folder} holds a {kind}, not a trained classifier or regressor")
    estimator = kinds[kind].load(folder, device=device)
    return Trained(estimator, lambda file: file.graphs, _targets(Path(run)))


def _targets(run: Path) -> tuple[str, ...]:
    """Names of what a run was trained for; none where it does not tell, as a model folder."""
    with suppress(OSError, ValueError):
        names = json.loads((run / "config.json").read_text(encoding="utf-8")).get("target")
        if isinstance(names, list):
            return tuple(map(str, names))
    return ()


def read(data: Path, smiles_column: str | None, symmetrise: bool) -> GraphFile:
    """The graphs of a file; targets, if it has any, are left alone."""
    with counting("reading graphs") as count:
        return read_graphs(
            data, target=[], smiles_column=smiles_column, symmetrise=symmetrise, progress=count
        )


def prediction_columns(trained: Trained, file: GraphFile) -> dict[str, list[Any]]:
    """Predictions, and probabilities where there are classes, by the name of their column."""
    estimator, graphs = trained.estimator, trained.prepare(file)
    if isinstance(estimator, PiGNNRegressor):
        return _columns("prediction", estimator.predict(graphs), trained.targets)
    chances = estimator.predict_proba(graphs)  # (B, classes), or (B, T)
    predicted = estimator.decide(chances)  # (B,), or (B, T)
    labels = estimator.classes_.tolist() if predicted.ndim == 1 else trained.targets
    predictions = _columns("prediction", predicted, trained.targets)
    return predictions | _columns("probability", chances, labels)


def _columns(name: str, values: np.ndarray, ends: Sequence[object]) -> dict[str, list[Any]]:
    """A column of that name; or several, which end in the names they have, or in numbers."""
    if values.ndim == 1 or values.shape[1] == 1:
        return {name: values.ravel().tolist()}
    known = ends if len(ends) == values.shape[1] else range(values.shape[1])
    return {f"{name}_{end}": c for end, c in zip(known, values.T.tolist(), strict=True)}
