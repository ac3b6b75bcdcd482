"""``softperm data``: find, fetch, check and look at datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softperm.cli.console import echo, ready_folder
from softperm.cli.inputs import DataRoot, Json, Symmetrise
from softperm.errors import counted
from softperm.progress import progress_bars

if TYPE_CHECKING:
    from softperm.data.datasets.dataset import Dataset
    from softperm.data.datasets.statistics import Comparison

app = typer.Typer(help="Find, fetch, check and look at datasets.", no_args_is_help=True)

Names = Annotated[list[str], typer.Argument(help="MUTAG, ogbg-molhiv, QM9, any TUDataset name.")]


@app.command("list")
def list_(data_root: DataRoot = None, as_json: Json = False) -> None:
    """List the known datasets, and which of them are on this machine."""
    from softperm.data.datasets.catalogue import find_entry, known_names
    from softperm.data.datasets.prepared import prepared_folders
    from softperm.data.datasets.store import open_store
    from softperm.data.datasets.verify import raw_path

    store = open_store(data_root)
    rows = []
    for entry in map(find_entry, known_names()):
        path = raw_path(entry, store)
        prepared = prepared_folders(store, entry.name)
        rows.append(
            {
                "name": entry.name,
                "kind": entry.kind,
                "raw files": "to be fetched" if path is None else str(path),
                "prepared": f"{len(prepared)} in the cache" if prepared else "no",
            }
        )
    _table(rows, as_json)
    if not as_json:
        echo("any other name is looked up among the TUDatasets")


@app.command()
def get(
    names: Names, data_root: DataRoot = None, symmetrise: Symmetrise = False, as_json: Json = False
) -> None:
    """Fetch and prepare datasets, so that they open at once from then on."""
    from softperm.data.datasets import load_dataset

    rows = []
    for name in names:
        dataset = load_dataset(name, data_root, symmetrise=symmetrise, progress=True)
        left_out = f"{dataset.schema.self_loops:,} / {dataset.schema.duplicates:,}"
        rows.append(
            {
                "name": name,
                "graphs": len(dataset),
                "task": dataset.task,
                "self-loops / duplicates removed": left_out,
                "fingerprint": dataset.fingerprint[:16],
            }
        )
    _table(rows, as_json)


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="By default all that are on this machine.")
    ] = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Check raw files, the data in them, prepared files and splits; exit code 2 if one is bad."""
    from softperm.data.datasets.catalogue import find_entry, known_names
    from softperm.data.datasets.store import open_store
    from softperm.data.datasets.verify import raw_path
    from softperm.data.datasets.verify import verify as look

    store = open_store(data_root)
    entries = [find_entry(name) for name in names or known_names()]
    if not names:
        entries = [e for e in entries if raw_path(e, store) is not None]
    with progress_bars() as report:
        checks = [check for entry in entries for check in look(entry, store, report)]
    _table([asdict(check) for check in checks], as_json)
    bad = [f"{c.name} ({c.what})" for c in checks if not c.good]
    if bad:
        raise ValueError(f"these checks failed: {', '.join(bad)}")


@app.command()
def show(
    names: Names,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("data-figures"),
    data_root: DataRoot = None,
    symmetrise: Symmetrise = False,
    figures: Annotated[bool, typer.Option(help="Draw histograms and graphs.")] = True,
    as_json: Json = False,
) -> None:
    """Compare statistics of datasets with those in the paper, and draw some graphs."""
    from softperm.data.datasets import load_dataset
    from softperm.data.datasets.statistics import compare

    results = []
    for name in names:
        dataset = load_dataset(name, data_root, symmetrise=symmetrise, progress=True)
        compared = compare(dataset)
        paths = _pictures(dataset, out) if figures else []
        if not as_json:
            _print_comparison(dataset, compared)
            for path in paths:
                echo(f"wrote {path}")
        results.append(
            {
                "name": name,
                "fingerprint": dataset.fingerprint,
                "self_loops_left_out": dataset.schema.self_loops,
                "repeats_left_out": dataset.schema.duplicates,
                "statistics": [asdict(c) for c in compared],
                "figures": [str(p) for p in paths],
            }
        )
    if as_json:
        _table(results, as_json)


def _pictures(dataset: Dataset, out: Path) -> list[Path]:
    from softperm.data.datasets.statistics import histograms
    from softperm.explore.plots import drawings, save

    ready_folder(out)
    figures = {"histograms": histograms(dataset), "graphs": drawings(dataset)}
    paths = [out / f"{dataset.name}-{what}.png" for what in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        save(figure, path, dpi=120)
    return paths


def _print_comparison(dataset: Dataset, compared: Sequence[Comparison]) -> None:
    title = f"{dataset.name}: {counted(len(dataset), 'graph')}, {dataset.task}"
    rows = [
        {
            "": row.field.replace("_", " "),
            "here": _number(row.found, row.digits),
            "paper": _number(row.published, row.digits),
            "why they differ": row.note,
        }
        for row in compared
    ]
    _table(rows, False, title)


def _number(value: float | int | None, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:,.{digits}f}" if isinstance(value, float) else f"{value:,}"


def _table(rows: Sequence[dict[str, Any]], as_json: bool, title: str | None = None) -> None:
    import json

    from rich.console import Console
    from rich.table import Table

    if as_json:
        typer.echo(json.dumps(list(rows), indent=2, ensure_ascii=False))
        return
    table = Table(*(rows[0] if rows else ("nothing here",)), title=title)
    for row in rows:
        table.add_row(*(("no", "yes")[v] if isinstance(v, bool) else str(v) for v in row.values()))
    Console().print(table)
