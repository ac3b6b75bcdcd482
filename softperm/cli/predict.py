"""``softperm predict``: a trained model's predictions for a file of graphs."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from softperm.cli.console import called, give, ready_file, warnings_as_lines


def predict(
    run: Annotated[
        str,
        typer.Argument(
            help="Run folder of softperm train, a model folder, or hf://owner/name on the Hub."
        ),
    ],
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
    from softperm.cli.trained import load_trained, prediction_columns, read
    from softperm.files import write_atomically

    ready_file(out)
    with warnings_as_lines():
        trained = load_trained(run, device)
        file = read(data, smiles_column, symmetrise)
        with called(file.ids):
            columns = prediction_columns(trained, file)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["graph", *columns])
    writer.writerows(zip(file.ids, *columns.values(), strict=True))
    write_atomically(out, text.getvalue().encode())
    give({"graphs": len(file.graphs), "predictions": str(out)}, as_json)
