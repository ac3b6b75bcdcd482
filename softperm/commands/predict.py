"""``softperm predict``: a trained model's predictions for a file of graphs."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softperm.commands.console import counting, give, warnings_as_lines

if TYPE_CHECKING:
    from softperm.estimators import PiGNNClassifier, PiGNNRegressor


def predict(
    run: Annotated[Path, typer.Argument(help="Run folder of softperm train, or a model folder.")],
    data: Annotated[Path, typer.Argument(help="Graphs, in any format that train reads.")],
    out: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("predictions.csv"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    smiles_column: Annotated[str | None, typer.Option(help="Column of SMILES in a table.")] = None,
    symmetrise: Annotated[
        bool, typer.Option(help="Read directed edges in both directions.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Predict for each graph of a file; writes a CSV with one row per graph."""
    import numpy as np

    from softperm.folder import write_atomically

    with warnings_as_lines():
        estimator = load_estimator(run, device)
        file = read(data, smiles_column, symmetrise)
        predicted = np.asarray(estimator.predict(file.graphs)).reshape(len(file.graphs), -1)
        names = [f"prediction_{k}" for k in range(predicted.shape[1])]
        columns = dict(zip(names if len(names) > 1 else ["prediction"], predicted.T, strict=True))
        if hasattr(estimator, "predict_proba"):
            chances = estimator.predict_proba(file.graphs)
            several = predicted.shape[1] > 1
            labels = range(chances.shape[1]) if several else estimator.classes_
            columns |= {f"probability_{k}": c for k, c in zip(labels, chances.T, strict=True)}
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["graph", *columns])
    writer.writerows(zip(file.ids, *(c.tolist() for c in columns.values()), strict=True))
    write_atomically(out, text.getvalue().encode())
    give({"graphs": len(file.graphs), "predictions": str(out)}, as_json)


def load_estimator(run: Path, device: str) -> PiGNNClassifier | PiGNNRegressor:
    """The trained estimator of a run folder or model folder."""
    from softperm.estimators import PiGNNClassifier, PiGNNRegressor
    from softperm.folder import FolderError, read_folder

    folder = run / "model" if (run / "model").is_dir() else run
    kinds = {cls.__name__: cls for cls in (PiGNNClassifier, PiGNNRegressor)}
    kind = read_folder(folder)[0].get("kind")
    if kind not in kinds:
        raise FolderError(f"{folder} holds a {kind}, not a trained classifier or regressor")
    return kinds[kind].load(folder, device=device)


def read(data: Path, smiles_column: str | None, symmetrise: bool):
    """The graphs of a file; targets, if it has any, are left alone."""
    from softperm.files import read_graphs

    with counting("reading graphs") as count:
        return read_graphs(
            data, target=[], smiles_column=smiles_column, symmetrise=symmetrise, progress=count
        )
