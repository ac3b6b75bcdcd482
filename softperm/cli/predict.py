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
        typer.Option(
            help="File to write: .csv, .jsonl or .parquet; or a folder, for Parquet.",
            rich_help_panel="Output",
        ),
    ] = Path("predictions.csv"),
    device: Device = "auto",
    smiles_column: SmilesColumn = None,
    id_column: IdColumn = None,
    symmetrise: Symmetrise = False,
    skip_empty: SkipEmpty = False,
    strict: Strict = False,
    nearest: Annotated[
        int | None,
        typer.Option(min=1, help="Number of nearest training graphs to name for each graph."),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(min=0, help="With --nearest: seconds for each graph.")
    ] = 1.0,
    data_root: DataRoot = None,
    engine: Engine = "local",
    processes: Processes = None,
    as_json: Json = False,
) -> None:
    """Predict for each graph; writes a table with one row per graph.

    A graph without a prediction has the reason in the column ``problem``. Memory does not grow with
    the number of graphs, and an interrupted command resumes. Where the graphs have the targets that
    the model was trained for, prints its score.

    With --nearest 3 each row names the three training graphs with the fewest edges that differ
    (columns nearest_1, distance_1, lower_bound_1, proven_1, …): a prediction for a graph that is
    far from all of them is a guess. proven is False where the time limit did not suffice; the
    distance of the nearest training graph is then between lower_bound_1 and distance_1.
    """
    summary, score = compute_table(
        run, data, out, (".csv", ".jsonl", ".parquet"), device=device, smiles_column=smiles_column,
        id_column=id_column, symmetrise=symmetrise, skip_empty=skip_empty, strict=strict,
        data_root=data_root, engine=engine, processes=processes, options={"vectors": False},
        nearest=None if nearest is None else (nearest, time_limit),
    )  # fmt: skip
    if isinstance(score, str):
        echo(f"no score: {score}")
        score = {}
    problems = {"problems": summary.problems} if summary.problems else {}
    print_result({"graphs": summary.rows, **problems, **score, "predictions": str(out)}, as_json)
