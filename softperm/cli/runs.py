"""The work of ``softperm train``: from graphs and targets to a run folder."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import Data

from softperm.cli.console import as_text, called
from softperm.data.formats import GraphFile
from softperm.data.vocabulary import Vocabulary
from softperm.estimators import PiGNNClassifier, PiGNNRegressor
from softperm.estimators.preparation import hold_out
from softperm.explore import plots
from softperm.files import write_atomically
from softperm.training.checkpoint import read_checkpoint
from softperm.training.fit import Epoch

Estimator = PiGNNClassifier | PiGNNRegressor

PICTURES = 6
SMALL, LARGE = 150, 2000  # vertices of graphs that are drawn, and of those that can be at all
CHECKPOINT = "checkpoint.bin"
WRITTEN = ("config.json", "curve.csv", "curve.png", "model", "pictures")
SCORES = {"classification": "accuracy", "multilabel": "roc_auc", "regression": "r2"}
"""What an estimator's score is, for each task."""


def holds_run(out: Path) -> bool:
    """Whether a folder is that of a run, finished or not; a saved model is none."""
    if (out / CHECKPOINT).exists():
        return True
    try:
        config = json.loads((out / "config.json").read_text(encoding="utf-8"))
        return "latent_vertices" in config and "softperm_format" not in config
    except (OSError, ValueError, TypeError):
        return False


def train_run(
    file: GraphFile,
    settings: dict[str, Any],
    asked: dict[str, Any],
    out: Path,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Trains and leaves everything in the run folder.

    Args:
        file: graphs and targets.
        settings: of the estimator.
        asked: what else the run was asked for: ``task`` and ``test_fraction`` among it.
        out: the run folder.
        log: says a line and keeps it.

    Returns:
        What to print.
    """
    task = asked["task"]
    kind = PiGNNRegressor if task == "regression" else PiGNNClassifier
    estimator = kind().set_params(**settings, checkpoint=out / CHECKPOINT)
    y = np.stack(list(file.targets.values()), axis=1)
    y = y[:, 0] if y.shape[1] == 1 else y
    groups = y if task == "classification" else np.zeros(len(y))
    rest, test = hold_out(groups, asked["test_fraction"], settings["seed"])
    config = as_text({**asked, **settings}).encode()
    if asked["test_fraction"] and not len(test):
        log("no graph is left for a test part: every class keeps one graph to learn from")
    say_if_resumed(out, log)
    if not (out / CHECKPOINT).exists():  # else it may turn out to be of another training
        write_atomically(out / "config.json", config)
    _check_test_part(file, rest, test)
    with called([file.ids[i] for i in rest]):
        estimator.fit([file.graphs[i] for i in rest], y[rest])
    if estimator.interrupted_:
        log("stopping: the model is scored and written")
    result: dict[str, Any] = {
        "run": str(out),
        "model": str(out / "model"),
        "epochs": len(estimator.curve_),
        "best_epoch": estimator.best_epoch_,
        "interrupted": estimator.interrupted_,
        "metric": SCORES[task],
        "train_score": estimator.score([file.graphs[i] for i in rest], y[rest]),
    }
    if len(test) and not estimator.interrupted_:
        with called([file.ids[i] for i in test]):
            result["test_score"] = estimator.score([file.graphs[i] for i in test], y[test])
        result["test_graphs"] = len(test)
    result["seconds"] = training_seconds(estimator.curve_)
    write_atomically(out / "config.json", config)
    _write(estimator, file, out, log)
    if not estimator.interrupted_:
        write_atomically(out / "result.json", as_text(result).encode())
        (out / CHECKPOINT).unlink(missing_ok=True)
    return result


def _check_test_part(file: GraphFile, rest: np.ndarray, test: np.ndarray) -> None:
    """Raises ValueError if no graph to learn from carries what one of the test part does."""
    if not len(test):
        return
    learnt = Vocabulary.learn([file.graphs[i] for i in rest])
    try:
        with called([file.ids[i] for i in test]):
            learnt.check([file.graphs[i] for i in test])
    except ValueError as problem:
        raise ValueError(
            f"{problem}: it fell into the test part, and none like it is left to learn from; "
            "choose another --seed, or --test-fraction 0"
        ) from None


def _write(
    estimator: Estimator,
    file: GraphFile,
    out: Path,
    log: Callable[[str], None],
) -> None:
    """Model, training curve and, of a training that came to its end, pictures into the folder."""
    estimator.save(out / "model")
    write_curve(out, estimator.curve_, estimator.best_epoch_)
    written = f"wrote {out}/{curve_and_model(estimator.curve_)}"
    if estimator.interrupted_:
        log(written)
    else:
        log(f"{written} and {_draw_some(estimator, file, out / 'pictures')} pictures")


def say_if_resumed(out: Path, log: Callable[[str], None]) -> None:
    """Says that a training goes on, where one was stopped; whether it is the same, fit checks."""
    state = read_checkpoint(out / CHECKPOINT, None)
    if state is not None:
        where = f"a training was stopped in {out} after {len(state['curve'])} epochs"
        log(f"{where}; with the same settings it goes on")


def training_seconds(curve: Sequence[Epoch]) -> float:
    """How long all epochs took, those before an interruption too."""
    return round(sum(epoch.seconds for epoch in curve), 2)


def curve_and_model(curve: Sequence[Epoch]) -> str:
    """The names of what every training leaves behind, for a message."""
    return "model, curve.csv, curve.png" if curve else "model"


def write_curve(out: Path, curve: Sequence[Epoch], best_epoch: int) -> None:
    """The training curve as a table and as a picture; nothing before the end of the first epoch."""
    if not curve:
        return
    plots.save(plots.training_curve(curve, best_epoch), out / "curve")
    text = io.StringIO()
    rows = [asdict(epoch) for epoch in curve]
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(out / "curve.csv", text.getvalue().encode())


def _draw_some(estimator: Estimator, file: GraphFile, folder: Path) -> int:
    """Pictures of a handful of graphs; how many."""
    chosen = worth_drawing(np.array([graph.num_nodes for graph in file.graphs]))
    graphs = [file.graphs[i] for i in chosen]
    ids = [str(file.ids[i]) for i in chosen]
    with called(ids):
        made = estimator.permutations(graphs) if graphs else []
    names = ids if all(i.isdecimal() for i in ids) else [str(i + 1) for i in chosen]
    draw(graphs, made, [f"graph {i}" for i in ids], names, folder)
    return len(chosen)


def worth_drawing(sizes: np.ndarray) -> np.ndarray:
    """Numbers of a handful of graphs of different sizes, none too large to look at."""
    order = np.argsort(sizes, kind="stable")
    few = order[sizes[order] <= SMALL]
    candidates = few if len(few) else order[:1][sizes[order[:1]] <= LARGE]
    if not len(candidates):
        return candidates
    return candidates[np.unique(np.linspace(0, len(candidates) - 1, PICTURES).astype(int))]


def draw(
    graphs: Sequence[Data],
    permutations: Sequence[np.ndarray],
    titles: Sequence[str],
    names: Sequence[str],
    folder: Path,
) -> None:
    """A picture of each graph and its alignment, ``graph-NAME``."""
    if len(graphs):
        folder.mkdir(exist_ok=True)
    for graph, d, title, name in zip(graphs, permutations, titles, names, strict=True):
        plots.save(plots.alignment(graph, d, title=title), folder / f"graph-{name}")
