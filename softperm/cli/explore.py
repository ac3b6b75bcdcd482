"""``softperm explore``: a page to look at a trained model and its graphs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from softperm.cli.console import called, give, lines, ready_file
from softperm.cli.inputs import DataRoot, Device, Json, Run, SmilesColumn, Symmetrise

SHOWN_FACTS = {
    "train_score": "training",
    "validation_score": "validation",
    "test_score": "test",
    "best_epoch": "best epoch",
}
"""Entries of a run's result that the page shows, with their names there."""


def explore(
    run: Run,
    data: Annotated[
        str | None,
        typer.Argument(
            help="Graphs in any format that train reads, or the name of a dataset; by default "
            "those of the run."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="HTML file to write; RUN/explore.html.")] = None,
    map_method: Annotated[
        str, typer.Option("--map", metavar="pca|umap|pacmap", help="How graphs are laid out.")
    ] = "pca",
    explain: Annotated[
        int, typer.Option(min=0, help="Number of graphs whose explanations are stored.")
    ] = 100,
    index: Annotated[
        Path | None, typer.Option(help="Folder of softperm index, for proven neighbours.")
    ] = None,
    device: Device = "auto",
    smiles_column: SmilesColumn = None,
    symmetrise: Symmetrise = False,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Write a page that shows all graphs, their soft permutations and predictions.

    The page is one HTML file. It opens from disk, without a network.
    """
    from softperm.explore.projection import METHODS

    if map_method not in METHODS:
        raise ValueError(f"--map must be {', '.join(METHODS)}; got {map_method!r}")
    from softperm.explore.write_page import page_html
    from softperm.files import write_atomically

    folder = Path(run)
    out = out or (folder / "explore.html" if folder.is_dir() else Path("explore.html"))
    ready_file(out)
    with lines():
        contents = _gather(
            run, data, map_method, explain, index, device, smiles_column, symmetrise, data_root
        )
        text = page_html(contents)
    write_atomically(out, text)
    give({"graphs": len(contents), "bytes": len(text.encode()), "page": str(out)}, as_json)


def _gather(
    run: str,
    data: str | None,
    method: str,
    explained: int,
    index: Path | None,
    device: str,
    smiles_column: str | None,
    symmetrise: bool,
    data_root: Path | None,
) -> Any:
    from softperm.cli.inputs import load_model, read_for
    from softperm.explore.contents import gather
    from softperm.progress import progress_bars
    from softperm.search import GraphIndex

    settings = _read_json(Path(run) / "config.json")
    if data is None:
        data = settings.get("dataset") or settings.get("data")
        if not isinstance(data, str):
            raise ValueError(f"{run} does not name its graphs: softperm explore RUN DATA")
        smiles_column = smiles_column or settings.get("smiles_column")
        symmetrise = symmetrise or bool(settings.get("symmetrise"))
        root = settings.get("data_root")
        data_root = data_root or (Path(root) if isinstance(root, str) else None)
    estimator = load_model(run, device)
    source = read_for(estimator, data, data_root, smiles_column, symmetrise)
    proven = None if index is None else GraphIndex.open(index)
    with called(source.ids), progress_bars() as report:
        return gather(
            estimator,
            source.graphs,
            source.ids,
            source.targets,
            name=Path(data).name or data,
            method=method,
            explained=explained,
            index=proven,
            facts=_facts(Path(run)),
            curve=_curve(Path(run)),
            report=report,
        )


def _facts(run: Path) -> dict[str, str]:
    """The scores of a run, in words."""
    result = _read_json(run / "result.json")
    metric = result.get("metric", "score")
    facts = {}
    for key, name in SHOWN_FACTS.items():
        value = result.get(key)
        if isinstance(value, int | float):
            title = name if key == "best_epoch" else f"{metric} ({name} graphs)"
            facts[title] = f"{value:.4g}"
    return facts


def _curve(run: Path) -> list[dict[str, float]]:
    """The training curve of a run; empty if there is none."""
    path = run / "curve.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: float(v or "nan") for k, v in row.items()} for row in csv.DictReader(file)]


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if there is none, or if it is something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
