"""``softperm train``: from graphs to a run folder with model, curves and pictures."""

from __future__ import annotations

import inspect
import os
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from softperm.cli.console import (
    counting,
    give,
    logging_to,
    names_in,
    ready_folder,
    refuse_foreign,
)

Option = typer.Option
LARGE = "Named datasets"

ONLY_DATASET = {
    "data_root", "categories", "embedding_size", "edge_embedding_size", "accumulate", "clip",
    "ema", "decay", "decay_patience", "decay_floor", "max_time", "precision", "devices", "nodes",
}  # fmt: skip
ONLY_FILE = {"task", "validation_fraction", "test_fraction", "smiles_column", "symmetrise"}


def train(
    out: Annotated[Path, Option(help="Run folder to make; an unfinished run there is resumed.")],
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Graphs: TUDataset folder or zip, CSV with SMILES, JSON Lines, GraphML folder."
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        Option(help="A dataset by name, with its own split, in place of a file: ogbg-molhiv, …"),
    ] = None,
    target: Annotated[
        str | None,
        Option(
            help="Target, or several with commas between (a name that has one itself in quotes); "
            "may be left out if there is only one."
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
    head_norm: Annotated[
        bool, Option(help="LayerNorm before the head; without, it sees how large a graph is.")
    ] = True,
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
    criterion: Annotated[
        str,
        Option(help="What chooses the best epoch: loss, score, or late-score (last of equals)."),
    ] = "loss",
    patience: Annotated[
        int | None, Option(help="Stop after so many epochs without a better one.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Same seed, same numbers.")] = 0,
    device: Annotated[str, Option(help="auto, cpu, cuda, …")] = "auto",
    smiles_column: Annotated[str | None, Option(help="Column of SMILES in a table.")] = None,
    symmetrise: Annotated[bool, Option(help="Read directed edges in both directions.")] = False,
    progress: Annotated[bool, Option(help="Show a progress bar, or lines off a terminal.")] = True,
    as_json: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
    data_root: Annotated[
        Path | None, Option(help="Folder of raw data, looked at first.", rich_help_panel=LARGE)
    ] = None,
    categories: Annotated[
        str, Option(help="Labels as one-hot or embedding.", rich_help_panel=LARGE)
    ] = "one-hot",
    embedding_size: Annotated[
        int, Option(help="Length of an embedded vertex.", rich_help_panel=LARGE)
    ] = 32,
    edge_embedding_size: Annotated[
        int, Option(help="Length of an embedded edge.", rich_help_panel=LARGE)
    ] = 8,
    accumulate: Annotated[
        int, Option(help="Parts of a mini-batch, one by one: less memory.", rich_help_panel=LARGE)
    ] = 1,
    clip: Annotated[
        float | None, Option(help="Largest norm of the gradient.", rich_help_panel=LARGE)
    ] = None,
    ema: Annotated[
        float | None, Option(help="Decay of a running mean of weights.", rich_help_panel=LARGE)
    ] = None,
    decay: Annotated[
        float | None,
        Option(help="Factor on the learning rate at a plateau.", rich_help_panel=LARGE),
    ] = None,
    decay_patience: Annotated[
        int, Option(help="Epochs without a better one till then.", rich_help_panel=LARGE)
    ] = 10,
    decay_floor: Annotated[
        float, Option(help="Learning rate that decay ends at.", rich_help_panel=LARGE)
    ] = 0.0,
    max_time: Annotated[
        str | None, Option(help="Stop, to be resumed, after 90s, 2h30m, …", rich_help_panel=LARGE)
    ] = None,
    precision: Annotated[
        str, Option(help="32, bf16-mixed or 16-mixed.", rich_help_panel=LARGE)
    ] = "32",
    devices: Annotated[
        int, Option(min=1, help="Devices of each machine.", rich_help_panel=LARGE)
    ] = 1,
    nodes: Annotated[int, Option(min=1, help="Machines.", rich_help_panel=LARGE)] = 1,
) -> None:
    """Train on a file of graphs, or on a dataset by name; leaves all in a run folder."""
    _check_options(dict(locals()))
    model = {
        "latent_vertices": latent_vertices, "hidden": hidden, "encoder": encoder, "layers": layers,
        "dustbin": dustbin, "scaling": scaling, "normaliser": normaliser, "iterations": iterations,
        "head": head, "head_norm": head_norm,
    }  # fmt: skip
    fit = {
        "epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate,
        "weight_decay": weight_decay, "criterion": criterion, "patience": patience, "seed": seed,
    }  # fmt: skip
    if not 0 <= test_fraction < 1:
        raise ValueError(f"--test-fraction must be at least 0 and below 1; got {test_fraction}")
    if (out / "result.json").exists():
        raise ValueError(f"{out} holds a finished run: choose another --out, or delete it")
    wanted = None if target is None else names_in(target)
    if dataset is not None:
        model |= {"embedding_size": embedding_size, "edge_embedding_size": edge_embedding_size}
        fit |= {
            "accumulate": accumulate, "clip": clip, "ema": ema, "decay": decay,
            "decay_patience": decay_patience, "decay_floor": decay_floor,
            "max_time": seconds_of(max_time),
        }  # fmt: skip
        asked = {"dataset": dataset, "target": wanted, "data_root": str(data_root or "")}
        asked |= {"categories": categories, "capacity": _capacity(capacity)}
        machine = {"device": device, "devices": devices, "nodes": nodes, "precision": precision}
        _train_dataset(asked, model, fit, machine, out, progress, as_json)
        return
    settings = {
        **model, **fit, "capacity": _capacity(capacity), "validation_fraction": validation_fraction,
        "device": device, "progress": progress,
    }  # fmt: skip
    assert data is not None
    from softperm.cli.runs import WRITTEN, holds_run, train_run
    from softperm.cli.targets import choose_task, read_with_targets
    from softperm.estimators import PiGNNClassifier
    from softperm.training.devices import find_device

    PiGNNClassifier().set_params(**settings)._check_settings()  # before anything is read or made
    find_device(device)
    refuse_foreign(out, WRITTEN, "run of softperm", holds_run(out))
    with logging_to(out / "log.txt", ready_folder(out)) as log:
        with counting("reading graphs") as count:
            file = read_with_targets(data, wanted, smiles_column, symmetrise, count)
        log(f"{file.name}: {len(file.graphs)} graphs, targets {', '.join(file.targets)}")
        task = choose_task(task, file)
        asked = {"data": str(data), "target": list(file.targets), "task": task}
        asked |= {"test_fraction": test_fraction, "symmetrise": symmetrise}
        result = train_run(file, settings, asked, out, log)
        give(result, as_json)
        if result["interrupted"]:
            log(stopped(result["epochs"], epochs, out))
            raise typer.Exit(130)


def _train_dataset(
    asked: dict[str, Any],
    model: dict[str, Any],
    fit: dict[str, Any],
    machine: dict[str, Any],
    out: Path,
    progress: bool,
    as_json: bool,
) -> None:
    """Trains on a dataset by name; of several processes only the first speaks."""
    from softperm.cli.dataset_runs import configure, pose, train_dataset
    from softperm.cli.runs import WRITTEN, holds_run
    from softperm.nn.model import ModelConfig
    from softperm.training.devices import connect, disconnect, find_device
    from softperm.training.fit import TrainingConfig

    settings = TrainingConfig(**fit)
    ModelConfig(1, **model)  # refuses what makes no sense before anything is read or made
    refuse_foreign(out, WRITTEN, "run of softperm", holds_run(out))
    fabric = connect(**{**machine, "device": find_device(machine["device"])})
    first, new = fabric.is_global_zero, ready_folder(out)
    with logging_to(out / "log.txt", new) if first else nullcontext(lambda message: None) as log:
        root = Path(asked["data_root"]) if asked["data_root"] else None
        bars = progress and first and sys.stderr.isatty()
        problem = pose(asked["dataset"], root, asked["target"], settings.seed, bars)
        split = problem.split
        sizes = ", ".join(str(len(part)) for part in (split.train, split.validation, split.test))
        log(f"{problem.dataset.name}: {len(problem.dataset)} graphs, split into {sizes}")
        config = configure(problem, model, asked["categories"], asked["capacity"])
        told = {**asked, **model, **fit, **machine, "target": list(problem.targets)}
        result = train_dataset(
            problem, config, settings, fabric, out, told, log, progress and first
        )
        disconnect(fabric)
        if first:
            give(result, as_json)
        if result["interrupted"]:
            log(stopped(result["epochs"], settings.epochs, out))
            raise typer.Exit(130)


def stopped(done: int, epochs: int, out: Path) -> str:
    """What to say of a training that was stopped."""
    where = f"stopped after {done} of {epochs} epochs"
    return f"{where}; the same command with --out {out} goes on from here"


def _check_options(given: dict[str, Any]) -> None:
    """Raises ValueError unless there is one source of graphs, and options that belong to it."""
    if (given["data"] is None) == (given["dataset"] is None):
        raise ValueError("name either a file of graphs or a --dataset")
    if given["data"] is not None and not given["data"].exists():
        from softperm.data.datasets.catalogue import as_spelt_here

        name = as_spelt_here(str(given["data"]))
        if name is not None:
            raise ValueError(f"{given['data']} is no file, but a dataset: --dataset {name}")
    usual = {name: p.default for name, p in inspect.signature(train).parameters.items()}
    for name in sorted(ONLY_FILE if given["data"] is None else ONLY_DATASET):
        if given[name] != usual[name]:
            option = "--" + name.replace("_", "-")
            kind = "a file of graphs" if given["data"] is None else "a --dataset"
            raise ValueError(f"{option} is for {kind}: leave it out")
    if given["data"] is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("several processes train on a --dataset; a file of graphs needs one")


def seconds_of(text: str | None) -> float | None:
    """A time span such as ``2h30m`` in seconds; a plain number counts seconds.

    Example:
        >>> seconds_of("2h30m"), seconds_of("90"), seconds_of(None)
        (9000.0, 90.0, None)
    """
    if text is None:
        return None
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1, "": 1}
    found = re.fullmatch(r"(?:\d+(?:\.\d+)?[dhms])+|\d+(?:\.\d+)?", text.strip())
    if not found:
        raise ValueError(f"--max-time must be a time span such as 90s or 2h30m; got {text!r}")
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms]?)", text)
    return float(sum(float(number) * units[unit] for number, unit in parts))


def _capacity(text: str) -> int | str | None:
    if text in {"auto", "none"}:
        return None if text == "none" else "auto"
    if not text.isdecimal():
        raise ValueError(f"--capacity must be auto, none or a number; got {text!r}")
    return int(text)
