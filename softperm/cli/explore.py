"""``softperm explore``: a page to look at a trained model and its graphs."""

from __future__ import annotations

import csv
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softperm.cli.console import echo, lines, naming_graphs, print_result, ready_file
from softperm.cli.inputs import Json, ModelInput, Run, output_option, with_shared
from softperm.files import read_json, write_atomically
from softperm.progress import progress_bars

if TYPE_CHECKING:
    import socket

    import numpy as np

    from softperm.estimators.pignn import PiGNNEstimator
    from softperm.explore.contents import Contents
    from softperm.search import GraphIndex

SHOWN_FACTS = {
    "train_score": "training",
    "validation_score": "validation",
    "test_score": "test",
    "best_epoch": "best epoch",
}
"""Entries of a run's result that the page shows, with their names there."""


@with_shared
def explore(
    run: Run,
    options: ModelInput,
    data: Annotated[
        str | None,
        typer.Argument(
            help="Graphs in any format that train reads, or the name of a dataset; by default "
            "those of the run."
        ),
    ] = None,
    out: Annotated[
        Path | None, output_option(help="File to write; RUN/explore.html by default.")
    ] = None,
    map_method: Annotated[
        str, typer.Option("--map", metavar="pca|umap|pacmap", help="Projection of vectors.")
    ] = "pca",
    explain: Annotated[
        int,
        typer.Option(
            min=0, help="Number of graphs whose explanations are stored, a few seconds for each."
        ),
    ] = 100,
    explain_seconds: Annotated[
        float, typer.Option(min=0, help="Time for explanations; the page has those ready by then.")
    ] = 60.0,
    index: Annotated[
        Path | None, typer.Option(help="Folder of softperm index, for proven neighbours.")
    ] = None,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Serve the page and the model's answers in place of writing a file."
        ),
    ] = False,
    host: Annotated[
        str, typer.Option(help="Address to serve at; 0.0.0.0 for all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve at.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name under which clients may address the server, besides localhost, the name of "
            "this machine and IP addresses; may be repeated.",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Parquet file to write as well, for Embedding Atlas."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a page that shows all graphs, their soft permutations and predictions.

    The page is one HTML file. It opens from disk, without a network. With --serve the page can
    also predict for other graphs, explain any graph and prove distances of large ones; the same
    requests are available as JSON.
    """
    from softperm.explore.projection import METHODS

    if map_method not in METHODS:
        raise ValueError(f"--map must be one of {', '.join(METHODS)}; got {map_method!r}")
    from softperm.explore.embedding_atlas import embedding_atlas_parquet
    from softperm.explore.write_page import page_html

    listening = _listen(host, port) if serve else None
    folder = Path(run)
    out = out or (folder / "explore.html" if folder.is_dir() else Path("explore.html"))
    for path in (out, export):
        if path is not None:
            ready_file(path, data, *_files_of(folder), *_files_of(index))
    with lines():
        source = _read(run, data, index, options)
        contents = _gather(source, Path(run), map_method, explain, explain_seconds)
        result: dict[str, Any] = {"graphs": len(contents), "explained": len(contents.explanations)}
        if export is not None:
            write_atomically(export, embedding_atlas_parquet(contents))
            result["export"] = str(export)
        if listening is not None:
            _serve(source, contents, listening, [host, *(allow_host or [])])
            return
        text = page_html(contents)
    write_atomically(out, text)
    print_result({**result, "bytes": len(text.encode()), "page": str(out)}, as_json)


@dataclass(frozen=True)
class _Source:
    """A model, and the graphs to show with it."""

    name: str
    estimator: PiGNNEstimator
    graphs: Any
    ids: tuple[str, ...]
    targets: dict[str, np.ndarray]
    index: GraphIndex | None


def _files_of(folder: Path | None) -> list[Path]:
    """The files that a model or an index consists of."""
    return [] if folder is None else [*folder.glob("*.json"), *folder.glob("*.safetensors")]


def _read(run: str, data: str | None, index: Path | None, options: ModelInput) -> _Source:
    """The model of a run, and the graphs named or else those of the run."""
    from softperm.cli.inputs import load_model, read_for
    from softperm.search import GraphIndex

    settings = read_json(Path(run) / "config.json")
    if not settings:
        load_model(run, options.device)  # says what is missing
    if data is None:
        data = settings.get("dataset") or settings.get("data")
        if not isinstance(data, str):
            raise ValueError(f"{run} does not name its graphs: softperm explore RUN DATA")
        column, root = (settings.get(name) for name in ("smiles_column", "data_root"))
        options = replace(
            options,
            smiles_column=options.smiles_column or column,
            data_root=options.data_root or (Path(root) if isinstance(root, str) else None),
        )
    estimator = load_model(run, options.device)
    source = read_for(estimator, data, options)
    library = None if index is None else GraphIndex.open(index)
    name = Path(data).name or data
    return _Source(name, estimator, source.graphs, source.ids, source.targets, library)


def _gather(
    source: _Source, run: Path, method: str, explained: int, explain_seconds: float
) -> Contents:
    from softperm.explore.contents import gather

    with naming_graphs(source.ids), progress_bars() as report:
        return gather(
            source.estimator,
            source.graphs,
            source.ids,
            source.targets,
            name=source.name,
            method=method,
            explained=explained,
            explain_seconds=explain_seconds,
            index=source.index,
            facts=_facts(run),
            curve=_curve(run),
            report=report,
        )


def _listen(host: str, port: int) -> socket.socket:
    """The server's socket, opened before the long computations."""
    try:
        import uvicorn  # noqa: F401

        from softperm.explore.server import listen
    except ImportError:
        raise ImportError("--serve needs a server: pip install 'softperm[explore]'") from None
    return listen(host, port)


def _serve(source: _Source, contents: Contents, listening: socket.socket, names: list[str]) -> None:
    """Serves until Ctrl-C."""
    from softperm.explore.answers import Answers
    from softperm.explore.server import build_app, serve
    from softperm.explore.write_page import page_html

    answers = Answers(source.estimator, source.graphs, contents, source.index)
    app = build_app(answers, page_html(contents, server=True), names)
    host, port, *_ = listening.getsockname()
    echo(f"serving at http://{f'[{host}]' if ':' in host else host}:{port}/; stop with Ctrl-C")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        serve(app, listening)


def _facts(run: Path) -> dict[str, str]:
    """The scores of a run, in words."""
    result = read_json(run / "result.json")
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
        rows = [{k: float(v or "nan") for k, v in row.items()} for row in csv.DictReader(file)]
    usual = ("number", "train_loss", "validation_loss", "seconds")
    return [{k if k in usual else "validation_score": v for k, v in row.items()} for row in rows]
