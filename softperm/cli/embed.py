"""``softperm embed``: the aligned vectors of a file of graphs or of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softperm.cli.console import print_result
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
def embed(
    run: Run,
    data: Source,
    options: TableInput,
    out: Annotated[
        Path,
        output_option(
            help="File to write: .npz, .parquet, .csv or .jsonl; or a folder, for Parquet."
        ),
    ] = Path("vectors.npz"),
    compact: Annotated[
        bool,
        typer.Option(help="Store half of symmetric matrices, times √2; distances are unchanged."),
    ] = False,
    half: Annotated[bool, typer.Option(help="Store numbers with 16 bits.")] = False,
    as_json: Json = False,
) -> None:
    """Align each graph; writes its vector vec(DᵀAD), vec(DᵀX) to a table.

    A graph without a vector has the reason in the column problem. Memory does not grow with the
    number of graphs, and an interrupted command resumes.
    """
    endings = (".npz", ".parquet", ".csv", ".jsonl")
    summary, length = compute_table(
        run, data, out, endings, options, vectors=True, compact=compact, half=half
    )
    problems = {"problems": summary.problems} if summary.problems else {}
    result = {"graphs": summary.rows, **problems, "length": length, "vectors": str(out)}
    print_result(result, as_json)
