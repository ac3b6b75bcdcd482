"""``softperm train``: from a file of graphs to a run folder with model, curves and pictures."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softperm.commands.console import counting, give, logging_to

if TYPE_CHECKING:
    import numpy as np

    from softperm.estimators import PiGNNClassifier, PiGNNRegressor
    from softperm.files import GraphFile

Option = typer.Option
PICTURES = 6


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
    seed: Annotated[int, Option(help="Same seed, same numbers.")] = 0,
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
    out.mkdir(parents=True, exist_ok=True)
    if (out / "result.json").exists():
        raise ValueError(f"{out} holds a finished run: choose another --out, or delete it")
    with logging_to(out / "log.txt") as log:
        with counting("reading graphs") as count:
            wanted = None if target is None else [name.strip() for name in target.split(",")]
            file = _read(data, wanted, smiles_column, symmetrise, count)
        log(f"{file.name}: {len(file.graphs)} graphs, targets {', '.join(file.targets)}")
        result = _run(file, task, settings, test_fraction, out, log)
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


def _read(data: Path, wanted, smiles_column, symmetrise, count) -> GraphFile:
    from softperm.files import read_graphs

    file = read_graphs(
        data, target=wanted, smiles_column=smiles_column, symmetrise=symmetrise, progress=count
    )
    if wanted is None and len(file.targets) != 1:
        found = ", ".join(file.targets) or "none"
        raise ValueError(f"{data} has these targets: {found}; name what to learn with --target")
    return file


def _run(
    file: GraphFile, task: str, settings: dict[str, Any], test_fraction: float, out: Path, log
):
    """Trains and leaves everything in the run folder; returns what to print."""
    import numpy as np

    from softperm import plots
    from softperm.folder import write_atomically

    y = _targets(file)
    estimator = _estimator(task, y, {**settings, "checkpoint": out / "checkpoint.pt"})
    y = y[:, 0] if y.shape[1] == 1 else y
    order = np.random.default_rng(settings["seed"]).permutation(len(y))
    test, rest = np.split(order, [round(test_fraction * len(y))])
    started = time.perf_counter()
    estimator.fit([file.graphs[i] for i in rest], y[rest])
    result: dict[str, Any] = {
        "run": str(out),
        "model": str(out / "model"),
        "epochs": len(estimator.curve_),
        "best_epoch": estimator.best_epoch_,
        "interrupted": estimator.interrupted_,
        "train_score": estimator.score([file.graphs[i] for i in rest], y[rest]),
    }
    if len(test) > 1:
        result["test_score"] = estimator.score([file.graphs[i] for i in test], y[test])
        result["test_graphs"] = len(test)
    result["seconds"] = round(time.perf_counter() - started, 2)
    estimator.save(out / "model")
    _write_curve(out / "curve.csv", estimator)
    plots.save(plots.training_curve(estimator.curve_, estimator.best_epoch_), out / "curve")
    _draw_some(estimator, file, out / "pictures")
    write_atomically(out / "config.json", (json.dumps(settings, indent=2) + "\n").encode())
    if not estimator.interrupted_:
        write_atomically(out / "result.json", (json.dumps(result, indent=2) + "\n").encode())
        (out / "checkpoint.pt").unlink(missing_ok=True)
    log(f"wrote {out}/model, curve.csv, curve.png and pictures/")
    return result


def _targets(file: GraphFile) -> np.ndarray:
    import numpy as np

    columns = list(file.targets.values())
    for name, column in file.targets.items():
        if column.dtype.kind in "US" and (column == "").any():
            where = file.ids[int(np.flatnonzero(column == "")[0])]
            raise ValueError(f"target {name} is missing for graph {where}")
    return np.stack(columns, axis=1)


def _estimator(task: str, y: np.ndarray, settings: dict) -> PiGNNClassifier | PiGNNRegressor:
    from softperm.estimators import PiGNNClassifier, PiGNNRegressor

    if task == "auto":
        task = _guess(y)
    if task in {"classification", "multilabel"}:
        return PiGNNClassifier(**settings)
    if task == "regression":
        return PiGNNRegressor(**settings)
    raise ValueError(f"--task must be auto, classification, multilabel or regression; got {task!r}")


def _guess(y: np.ndarray) -> str:
    """Words, whole numbers and yes-or-no are classes; other numbers are to be regressed."""
    import numpy as np

    if y.dtype.kind not in "f":
        return "classification"
    there = y[~np.isnan(y)]
    if y.shape[1] > 1 and np.isin(there, (0, 1)).all():
        return "multilabel"
    whole = y.shape[1] == 1 and len(there) == len(y) and (there == there.round()).all()
    return "classification" if whole and len(np.unique(there)) <= 20 else "regression"


def _write_curve(path: Path, estimator) -> None:
    import csv
    import io

    from softperm.folder import write_atomically

    text = io.StringIO()
    rows = [asdict(epoch) for epoch in estimator.curve_]
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["number"])
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def _draw_some(estimator, file: GraphFile, folder: Path) -> None:
    """Pictures of a handful of graphs of different sizes, none too large to look at."""
    import numpy as np

    from softperm import plots

    sizes = np.array([graph.num_nodes for graph in file.graphs])
    candidates = np.argsort(sizes, kind="stable")
    small = candidates[sizes[candidates] <= 150]
    candidates = small if len(small) else candidates[:1]
    chosen = candidates[np.unique(np.linspace(0, len(candidates) - 1, PICTURES).astype(int))]
    graphs = [file.graphs[i] for i in chosen]
    folder.mkdir(exist_ok=True)
    for i, graph, d in zip(chosen, graphs, estimator.permutations(graphs), strict=True):
        picture = plots.alignment(graph, d, title=f"graph {file.ids[i]}")
        plots.save(picture, folder / f"graph-{i}")
