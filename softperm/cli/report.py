"""``softperm report``: tables and a page from records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softperm.cli.console import echo, print_result, ready_folder
from softperm.cli.evaluation_folder import (
    add_classes,
    classes_in,
    not_started,
    requested_final_runs,
)
from softperm.cli.inputs import Json, output_option
from softperm.errors import counted
from softperm.files import write_atomically

if TYPE_CHECKING:
    from softperm.lab.records import Record


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of records.")],
    out: Annotated[
        Path | None, output_option(help="Output folder; the first run folder by default.")
    ] = None,
    collect: Annotated[
        bool,
        typer.Option(
            "--collect",
            help="Also write the records into one small file, records.jsonl.gz, without curves.",
        ),
    ] = False,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="Write only paper.md: every number of the paper beside ours, from the first "
            "folder that has it.",
        ),
    ] = False,
    title: Annotated[
        str | None, typer.Option(help="Title of the report; by default that of existing tables.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make tables (Markdown, LaTeX, CSV, HTML) of evaluations, with the paper's numbers."""
    from softperm.lab.records import collect_records, find_records
    from softperm.lab.report import in_order, numbers, paper_markdown, shown, write_report
    from softperm.lab.tables import cells_of, finished

    for folder in runs:
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder of records")
    if paper:
        text, path = paper_markdown(runs), (out or runs[0]) / "paper.md"
        ready_folder(path.parent)  # after errors of the records
        write_atomically(path, text)
        print_result({"paper": str(path)}, as_json)
        return
    by_digest: dict[str, Record] = {}
    final_runs: dict[tuple[str, str], int] = {}
    for folder in runs:
        requested = requested_final_runs(folder)
        for record in find_records(folder):
            by_digest.setdefault(record.digest, record)
            pair = record.run.dataset, record.run.model
            final_runs[pair] = max(final_runs.get(pair, 1), requested)
    if not by_digest:
        raise ValueError(
            f"{', '.join(map(str, runs))}: no records there; softperm evaluate writes them"
        )
    records, unfinished = finished(by_digest.values(), final_runs)
    unfinished += dict.fromkeys(s for folder in runs for s in not_started(folder, final_runs))
    if not records:
        raise ValueError("; ".join(unfinished))
    cells = in_order(cells_of(records))  # errors come before anything is written
    out = out or runs[0]
    ready_folder(out)
    for sentence in unfinished:
        echo(f"left out: {sentence}")
    echo(f"{counted(len(records), 'record')}: writing tables and drawing curves")
    classes = {name: names for folder in runs for name, names in classes_in(folder).items()}
    paths = write_report(records, out, title or _title(out, runs), unfinished, classes)
    add_classes(out, classes)
    if collect:
        collect_records(records, out)
    result: dict[str, Any] = {form: str(path) for form, path in paths.items()}
    if as_json:
        result |= {"cells": numbers(cells), "unfinished": unfinished}
    else:
        result = {f"{cell.dataset} {cell.model}": shown(cell) for cell in cells} | result
    print_result(result, as_json)


def _title(out: Path, runs: list[Path]) -> str:
    """The title of the existing table in ``out``, or the common title of the tables in ``runs``."""
    titles = {_first_line(run / "table.md") for run in runs} - {""}
    common = titles.pop() if len(titles) == 1 else "Fair comparison"
    return _first_line(out / "table.md") or common


def _first_line(table: Path) -> str:
    text = table.read_text(encoding="utf-8") if table.exists() else ""
    return text.partition("\n")[0].removeprefix("# ")
