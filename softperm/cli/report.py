"""``softperm report``: tables and a page from records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softperm.cli.claims import final_runs, not_begun
from softperm.cli.console import give, ready_folder, say

if TYPE_CHECKING:
    from softperm.lab.records import Record


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of records.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; the first folder by default.")
    ] = None,
    collect: Annotated[
        bool,
        typer.Option(
            "--collect",
            help="Also write the records into one small file, records.jsonl.gz, without curves.",
        ),
    ] = False,
    title: Annotated[
        str | None, typer.Option(help="Of the page; by default that of the tables there are.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Make tables (Markdown, LaTeX, CSV, HTML) of evaluations, beside the paper's numbers."""
    from softperm.lab.records import collect_records, find_records
    from softperm.lab.report import in_order, numbers, shown, write_report
    from softperm.lab.tables import cells_of, finished

    for folder in runs:
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder of records")
    found: dict[str, Record] = {}
    asked: dict[tuple[str, str], int] = {}
    for folder in runs:
        wanted = final_runs(folder)
        for record in find_records(folder):
            found[record.digest] = record
            pair = record.run.dataset, record.run.model
            asked[pair] = max(asked.get(pair, 1), wanted)
    records = list(found.values())
    if not records:
        raise ValueError(
            f"{', '.join(map(str, runs))}: no records there; softperm evaluate makes them"
        )
    records, unfinished = finished(records, asked)
    unfinished += dict.fromkeys(s for folder in runs for s in not_begun(folder, asked))
    if not records:
        raise ValueError("; ".join(unfinished))
    cells = cells_of(records)  # refuses what cannot be a table, before anything is written
    out = out or runs[0]
    ready_folder(out)
    for sentence in unfinished:
        say(f"left out: {sentence}")
    say(f"{len(records):,} records: writing tables and drawing curves")
    made = write_report(records, out, title or _title(out, runs), unfinished)
    if collect:
        collect_records(records, out)
    result: dict[str, Any] = {form: str(path) for form, path in made.items()}
    cells = in_order(cells)
    if as_json:
        result |= {"cells": numbers(cells), "unfinished": unfinished}
    else:
        result = {f"{cell.dataset} {cell.model}": shown(cell) for cell in cells} | result
    give(result, as_json)


def _title(out: Path, runs: list[Path]) -> str:
    """The title of the table that a folder already has, or of the tables it is made of."""
    there = _first_line(out / "table.md")
    titles = {_first_line(run / "table.md") for run in runs} - {""}
    return there or (titles.pop() if len(titles) == 1 else "Fair comparison")


def _first_line(table: Path) -> str:
    text = table.read_text(encoding="utf-8") if table.exists() else ""
    return text.partition("\n")[0].removeprefix("# ")
