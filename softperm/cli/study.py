"""``softperm study``: the paper's studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softperm.cli.console import echo, hint_at_resuming, lines, print_result, ready_folder
from softperm.cli.inputs import Device, Json, output_option
from softperm.progress import progress_bars

Out = Annotated[Path, output_option(help="Output folder; an interrupted study in it resumes.")]
Seeds = Annotated[
    int, typer.Option(min=1, help="Networks trained for each number of latent vertices.")
]

app = typer.Typer(help="Run a study of the paper.", no_args_is_help=True)


NEXT = """\
next, try:
  softperm train GRAPHS --out run        learn from your own file, of any format in docs/files.md
  softperm explore run                   look at what was learnt: a map, alignments, neighbours
  softperm predict run MORE              predict for other graphs
  softperm distance GRAPHS               exact distances, with proofs
  softperm --help, make docs             all commands; the guide and the API reference"""


@app.command()
def demo(
    out: Out = Path("demo"),
    seeds: Seeds = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the study's trainings.")] = 150,
    as_json: Json = False,
) -> None:
    """Align two graphs and draw them, run the study of distances, and suggest what to try next."""
    from softperm.explore import plots
    from softperm.lab.studies import alignment

    ready_folder(out)
    echo("1. Two graphs, aligned. A network learns to tell barbells from lollipops.")
    pair = alignment.run()
    title = f"Two graphs: alike to {pair.before:.1%} as numbered, to {pair.after:.1%} aligned"
    plots.save(plots.aligned_pair(pair.graphs, pair.permutations, title), out / "alignment.png")
    echo(
        f"   It is right on {pair.accuracy:.0%} of graphs it has not seen. The adjacency matrices "
        f"of two barbells,\n   numbered at random, are alike to {pair.before:.1%} (cosine); "
        f"aligned, to {pair.after:.1%}. Look at {out}/alignment.png"
    )
    echo("2. Do distances of learnt vectors follow exact distances of graphs? The paper's study.")
    synthetic(out=out, seeds=seeds, epochs=epochs, as_json=as_json)
    echo(NEXT)


@app.command()
def synthetic(
    out: Out = Path("demo"),
    max_vertices: Annotated[
        int, typer.Option(help="Vertices of the largest graphs; 9 in the paper.")
    ] = 9,
    seeds: Seeds = 5,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each training.")] = 150,
    start: Annotated[
        str, typer.Option(help="Initialisation of networks: hard, or that of the paper's authors.")
    ] = "hard",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Compare distances of learnt vectors with exact graph distances on generated graphs."""
    from softperm.data.datasets.synthetic import distance_study
    from softperm.lab.studies import synthetic as study
    from softperm.training.devices import find_device

    where = str(find_device(device))
    ready_folder(out)
    if start not in study.STARTS:
        raise ValueError(f"--start must be {' or '.join(study.STARTS)}; got {start!r}")
    config = study.StudyConfig(seeds=seeds, epochs=epochs, start=start)
    graphs = distance_study(max_vertices=max_vertices)
    with lines(), hint_at_resuming(out), progress_bars() as progress:
        results = study.run(graphs, config, out, device=where, progress=progress)
    page = study.write(results, config, graphs, out, f"Distances of {len(graphs)} graphs")
    echo(f"open {page} in a browser")
    print_result({**study.summary(results), "report": str(page)}, as_json)


@app.command()
def runtime(
    out: Out = Path("runtime"),
    epochs: Annotated[int, typer.Option(min=1, help="Timed epochs of softperm.")] = 20,
    naive_epochs: Annotated[
        int, typer.Option(min=1, help="Timed epochs of the padded implementation.")
    ] = 3,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Time an epoch for different graph sizes and numbers of latent vertices."""
    from softperm.lab.studies import runtime as study
    from softperm.training.devices import find_device

    device = str(find_device(device))
    ready_folder(out)
    with lines(), hint_at_resuming(out), progress_bars() as progress:
        over_n, over_p = study.run(
            out, epochs=epochs, naive_epochs=naive_epochs, device=device, progress=progress
        )
    page = study.write(over_n, over_p, out, device)
    ratios = [t.naive / t.ours for t in (*over_n, *over_p)]
    result = {"smallest_ratio": min(ratios), "largest_ratio": max(ratios), "report": str(page)}
    print_result(result, as_json)
