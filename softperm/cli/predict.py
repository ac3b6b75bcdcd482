"""``softperm predict``: a trained model's predictions for a file of graphs or a dataset."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softperm.cli.console import called, give, lines, ready_file, say
from softperm.cli.inputs import (
    DataRoot,
    Device,
    Input,
    Json,
    Run,
    SmilesColumn,
    Source,
    Symmetrise,
    load_model,
    read_for,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from softperm.estimators.base import PiGNNEstimator


def predict(
    run: Run,
    data: Source,
    out: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("predictions.csv"),
    device: Device = "auto",
    smiles_column: SmilesColumn = None,
    symmetrise: Symmetrise = False,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Predict for each graph; writes a CSV with one row per graph.

    Where the graphs have the targets that the model was trained for, prints its score.
    """
    from softperm.files import CSVWriter, write_atomically

    ready_file(out)
    with lines():
        estimator = load_model(run, device)
        source = read_for(estimator, data, data_root, smiles_column, symmetrise)
        with called(source.ids):
            outputs = estimator._outputs(source.graphs)
        columns = prediction_columns(estimator, outputs)
        score = score_of(estimator, source, outputs)
    text = io.StringIO()
    writer = CSVWriter(text)
    writer.writerow(["graph", *columns])
    writer.writerows(zip(source.ids, *columns.values(), strict=True))
    write_atomically(out, text.getvalue())
    give({"graphs": len(source.ids), **score, "predictions": str(out)}, as_json)


def prediction_columns(estimator: PiGNNEstimator, outputs: Tensor) -> dict[str, list[Any]]:
    """Predictions, and probabilities of classes, by the name of their column."""
    targets = estimator.target_names_
    predictions = _columns("prediction", estimator.decode(outputs), targets)
    if not hasattr(estimator, "classes_"):
        return predictions
    chances = estimator.probabilities(outputs)  # (B, classes), or (B, T)
    single = estimator.decode(outputs).ndim == 1
    return predictions | _columns(
        "probability", chances, estimator.classes_.tolist() if single else targets
    )


def _columns(name: str, values: np.ndarray, endings: Sequence[object]) -> dict[str, list[Any]]:
    """One column of that name, or several, which end in names or else in numbers."""
    if values.ndim == 1 or values.shape[1] == 1:
        return {name: values.ravel().tolist()}
    known = endings if len(endings) == values.shape[1] else range(values.shape[1])
    return {f"{name}_{end}": c for end, c in zip(known, values.T.tolist(), strict=True)}


def score_of(estimator: PiGNNEstimator, source: Input, outputs: Tensor) -> dict[str, Any]:
    """The model's score where the source has its targets; says why if they cannot be scored."""
    import numpy as np
    import torch

    from softperm.training.sources import missing_values

    names = estimator.target_names_
    if not names or any(name not in source.targets for name in names):
        return {}
    columns = [source.targets[name] for name in names]
    y = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    known = ~np.logical_and.reduce([missing_values(column) for column in columns])
    try:
        targets = estimator._encode_targets(y[known], int(known.sum()))
    except ValueError as problem:
        say(f"no score: {problem}")
        return {}
    if not len(targets):
        return {}
    value = estimator.task_.score(outputs[torch.from_numpy(known)], targets)
    return {"metric": estimator.task_.metric, "score": value, "scored_graphs": len(targets)}
