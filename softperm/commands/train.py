"""``softperm train``: from a file of graphs to a run folder with model, curves and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softperm.commands.console import counting, give, logging_to, ready_folder

Option = typer.Option


def train(
    data: Annotated[
        Path,
        typer.Argument(
            help="Graphs: TUDataset folder or zip, CSV with SMILES, JSON Lines, GraphML folder."
        ),
    ],
    out: Annotated[Path, Option(help="Run folder to make; an unfinished run there is resumed.")],
    target: Annotated[
        str | None,
        Option(
            help="Target, or several with commas between; may be left out if there is only one."
        ),
    ] = None,
    task: Annotated[str, Option(help="auto, classification, multilabel or regression.")] = "auto",
    latent_vertices: Annotated[
        int, Option(help="Latent vertices P that all graphs are aligned to.")
    ] = 20,
    hidden: Annotated[int, Option(help="Size of hidden vertex vectors.")] = 32,
    encoder: Annotated[str, Option(help="linear, gcn or gin.")] = "linear",
    layers: Annotated[int, Option(help="Layers of gcn and gin.")] = 3,
    dustbin: Annotated[bool, Option(help="Let vertices stay unmatched (π-GNN-d).")] = False,
    capacity: Annotated[str, Option(help="Size to pad to: auto, none, or a number.")] = "auto",
    scaling: Annotated[
        str, Option(help="Of degree and triangles: log, standard, or the paper's raw.")
    ] = "log",
    normaliser: Annotated[str, Option(help="sinkhorn or softmax.")] = "sinkhorn",
    iterations: Annotated[int, Option(help="Sinkhorn iterations, at most.")] = 100,
    head: Annotated[str, Option(help="mlp or conv.")] = "mlp",
    epochs: Annotated[int, Option(help="Passes over the training graphs.")] = 300,
    batch_size: Annotated[int, Option(help="Graphs in a mini-batch.")] = 64,
    learning_rate: Annotated[float, Option(help="Of Adam.")] = 1e-3,
    weight_decay: Annotated[float, Option(help="Of Adam.")] = 0.0,
    validation_fraction: Annotated[
        float, Option(help="Share held out to choose the best epoch.")
    ] = 0.1,
    test_fraction: Annotated[
        float, Option(help="Share kept out of everything, for the final score.")
    ] = 0.1,
    criterion: Annotated[str, Option(help="What chooses the best epoch: loss or score.")] = "loss",
    patience: Annotated[
        int | None, Option(help="Stop after so many epochs without a better one.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Same seed, same numbers.")] = 0,
    device: Annotated[str, Option(help="auto, cpu, cuda, …")] = "auto",
    smiles_column: Annotated[str | None, Option(help="Column of SMILES in a table.")] = None,
    symmetrise: Annotated[bool, Option(help="Read directed edges in both directions.")] = False,
    progress: Annotated[bool, Option(help="Show a progress bar on a terminal.")] = True,
    as_json: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train on a file of graphs; leaves model, training curve and pictures in a run folder."""
    settings = {
        "latent_vertices": latent_vertices, "hidden": hidden, "encoder": encoder, "layers": layers,
        "dustbin": dustbin, "capacity": _capacity(capacity), "scaling": scaling,
        "normaliser": normaliser, "iterations": iterations, "head": head, "epochs": epochs,
        "batch_size": batch_size, "learning_rate": learning_rate, "weight_decay": weight_decay,
        "validation_fraction": validation_fraction, "criterion": criterion, "patience": patience,
        "seed": seed, "device": device, "progress": progress,
    }  # fmt: skip
    if not 0 <= test_fraction < 1:
        raise ValueError(f"--test-fraction must be at least 0 and below 1; got {test_fraction}")
    ready_folder(out)
    if (out / "result.json").exists():
        raise ValueError(f"{out} holds a finished run: choose another --out, or delete it")
    wanted = None if target is None else [name.strip() for name in target.split(",")]
    from softperm.commands.runs import choose_task, read_with_targets, train_run

    with logging_to(out / "log.txt") as log:
        with counting("reading graphs") as count:
            file = read_with_targets(data, wanted, smiles_column, symmetrise, count)
        log(f"{file.name}: {len(file.graphs)} graphs, targets {', '.join(file.targets)}")
        task = choose_task(task, file)
        asked = {"data": str(data), "target": list(file.targets), "task": task}
        asked |= {"test_fraction": test_fraction, "symmetrise": symmetrise}
        result = train_run(file, settings, asked, out, log)
        give(result, as_json)
        if result["interrupted"]:
            log(f"stopped; the same command with --out {out} goes on from here")
            raise typer.Exit(130)


def _capacity(text: str) -> int | str | None:
    if text in {"auto", "none"}:
        return None if text == "none" else "auto"
    if not text.isdecimal():
        raise ValueError(f"--capacity must be auto, none or a number; got {text!r}")
    return int(text)
