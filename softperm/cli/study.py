"""``softperm study``: the paper's studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softperm.cli.console import (
    give,
    goes_on,
    lines,
    ready_folder,
    say,
)
from softperm.progress import progress_bars

app = typer.Typer(help="Run a study of the paper.", no_args_is_help=True)


@app.callback()
def _studies() -> None:
    """Run a study of the paper."""


@app.command()
def synthetic(
    out: Annotated[
        Path, typer.Option(help="Output folder; an interrupted study in it resumes.")
    ] = Path("demo"),
    max_vertices: Annotated[
        int, typer.Option(help="Vertices of the largest graphs; 9 in the paper.")
    ] = 9,
    seeds: Annotated[
        int, typer.Option(min=1, help="Networks trained for each number of latent vertices.")
    ] = 5,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each training.")] = 150,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare distances of learnt vectors with exact graph distances on generated graphs."""
    from softperm.data.datasets.synthetic import distance_study
    from softperm.lab.studies import synthetic as study
    from softperm.lab.studies import synthetic_report as report
    from softperm.training.devices import find_device

    where = str(find_device(device))
    ready_folder(out)
    config = study.StudyConfig(seeds=seeds, epochs=epochs)
    graphs = distance_study(max_vertices=max_vertices)
    with lines(), goes_on(out), progress_bars() as progress:
        found = study.run(graphs, config, out, device=where, progress=progress)
    page = report.write(found, config, graphs, out, f"Distances of {len(graphs)} graphs")
    say(f"open {page} in a browser")
    give({**report.summary(found), "report": str(page)}, as_json)


@app.command()
def runtime(
    out: Annotated[
        Path, typer.Option(help="Output folder; an interrupted study in it resumes.")
    ] = Path("runtime"),
    epochs: Annotated[int, typer.Option(min=1, help="Timed epochs of softperm.")] = 20,
    naive_epochs: Annotated[
        int, typer.Option(min=1, help="Timed epochs of the padded implementation.")
    ] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Time an epoch for different graph sizes and numbers of latent vertices."""
    from softperm.lab.studies import runtime as study
    from softperm.training.devices import find_device

    device = str(find_device(device))
    ready_folder(out)
    with lines(), goes_on(out), progress_bars() as progress:
        over_n, over_p = study.run(
            out, epochs=epochs, naive_epochs=naive_epochs, device=device, progress=progress
        )
    page = study.write(over_n, over_p, out, device)
    ratios = [t.naive / t.ours for t in (*over_n, *over_p)]
    result = {"smallest_ratio": min(ratios), "largest_ratio": max(ratios), "report": str(page)}
    give(result, as_json)
