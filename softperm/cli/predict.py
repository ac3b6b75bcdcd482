"""``softperm predict``: a trained model's predictions for a file of graphs or a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softperm.cli.console import echo, print_result
from softperm.cli.inputs import (
    Json,
    Run,
    Source,
    TableInput,
    compute_table,
    output_option,
    with_shared,
)


@with_shared
def predict(
    run: Run,
    data: Source,
    options: TableInput,
    out: Annotated[
        Path,
        output_option(help="File to write: .csv, .jsonl or .parquet; or a folder, for Parquet."),
    ] = Path("predictions.csv"),
    nearest: Annotated[
        int | None,
        typer.Option(min=1, help="Number of nearest training graphs to name for each graph."),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(min=0, help="With --nearest: seconds for each graph.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Predict for each graph; writes a table with one row per graph.

    A graph without a prediction has the reason in the column problem. Memory does not grow with
    the number of graphs, and an interrupted command resumes.

    Where the graphs have the targets that the model was trained for, prints its score. If model and
    graphs have one target each, the names may differ (scored_target is that of the graphs) if it is
    a class, or if one of them is the name that a dataset or TUDataset's format gives.

    With --nearest 3 each row names the three training graphs with the fewest edges that differ
    (columns nearest_1, distance_1, lower_bound_1, proven_1, …): a prediction for a graph that is
    far from all of them is a guess. proven is False where the time limit did not suffice; the
    distance of the nearest training graph is then between lower_bound_1 and distance_1.
    """
    endings = (".csv", ".jsonl", ".parquet")
    ask = None if nearest is None else (nearest, time_limit)
    summary, score = compute_table(run, data, out, endings, options, ask, vectors=False)
    if isinstance(score, str):
        echo(f"no score: {score}")
        score = {}
    problems = {"problems": summary.problems} if summary.problems else {}
    print_result({"graphs": summary.rows, **problems, **score, "predictions": str(out)}, as_json)
