"""``softperm predict``: a trained model's predictions for a file of graphs or a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softperm.cli.console import echo, print_result
from softperm.cli.inputs import (
    DataRoot,
    Device,
    Engine,
    IdColumn,
    Json,
    Processes,
    Run,
    SkipEmpty,
    SmilesColumn,
    Source,
    Strict,
    Symmetrise,
    compute_table,
)


def predict(
    run: Run,
    data: Source,
    out: Annotated[
        Path,
        typer.Option(help="File to write: .csv, .jsonl or .parquet; or a folder, for Parquet."),
    ] = Path("predictions.csv"),
    device: Device = "auto",
    smiles_column: SmilesColumn = None,
    id_column: IdColumn = None,
    symmetrise: Symmetrise = False,
    skip_empty: SkipEmpty = False,
    strict: Strict = False,
    data_root: DataRoot = None,
    engine: Engine = "local",
    processes: Processes = None,
    as_json: Json = False,
) -> None:
    """Predict for each graph; writes a table with one row per graph.

    A graph without a prediction has the reason in the column ``problem``. Memory does not grow with
    the number of graphs, and an interrupted command resumes. Where the graphs have the targets that
    the model was trained for, prints its score.
    """
    summary, score = compute_table(
        run, data, out, (".csv", ".jsonl", ".parquet"), device=device, smiles_column=smiles_column,
        id_column=id_column, symmetrise=symmetrise, skip_empty=skip_empty, strict=strict,
        data_root=data_root, engine=engine, processes=processes, options={"vectors": False},
    )  # fmt: skip
    if isinstance(score, str):
        echo(f"no score: {score}")
        score = {}
    problems = {"problems": summary.problems} if summary.problems else {}
    print_result({"graphs": summary.rows, **problems, **score, "predictions": str(out)}, as_json)
