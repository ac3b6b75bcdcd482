"""``softperm embed``: the aligned vectors of a file of graphs or of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softperm.cli.console import print_result
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


def embed(
    run: Run,
    data: Source,
    out: Annotated[
        Path,
        typer.Option(
            help="File to write: .npz, .parquet, .csv or .jsonl; or a folder, for Parquet.",
            rich_help_panel="Output",
        ),
    ] = Path("vectors.npz"),
    compact: Annotated[
        bool,
        typer.Option(help="Store half of symmetric matrices, times √2; distances are unchanged."),
    ] = False,
    half: Annotated[bool, typer.Option(help="Store numbers with 16 bits.")] = False,
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
    """Align each graph; writes its vector vec(DᵀAD), vec(DᵀX) to a table.

    A graph without a vector has the reason in the column ``problem``. Memory does not grow with the
    number of graphs, and an interrupted command resumes.
    """
    summary, length = compute_table(
        run, data, out, (".npz", ".parquet", ".csv", ".jsonl"), device=device,
        smiles_column=smiles_column, id_column=id_column, symmetrise=symmetrise,
        skip_empty=skip_empty, strict=strict, data_root=data_root, engine=engine,
        processes=processes,
        options={"vectors": True, "compact": compact, "half": half},
    )  # fmt: skip
    problems = {"problems": summary.problems} if summary.problems else {}
    result = {"graphs": summary.rows, **problems, "length": length, "vectors": str(out)}
    print_result(result, as_json)
