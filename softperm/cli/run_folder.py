"""The run folder of ``softperm train``: settings, model, training curve, pictures and result."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softperm.cli.console import as_text
from softperm.data.collection import slice_graph
from softperm.errors import counted
from softperm.estimators.pignn import PiGNNEstimator, r_squared
from softperm.files import read_json, write_atomically
from softperm.training.checkpoints import read_checkpoint
from softperm.training.data import TrainingData
from softperm.training.devices import Fabric, OneDevice
from softperm.training.loop import Epoch, TrainingInterrupted
from softperm.training.tasks import Regression

PICTURES = 6
PREFERRED_SIZE, LARGEST_SIZE = 150, 2000  # vertices of graphs to draw; of any that can be drawn
SCORED_VERTICES = 1 << 18  # whose features are in memory together
SCORED_VALUES = 1 << 23  # outputs of training graphs; of more, graphs at even distances are scored
CHECKPOINT = "checkpoint.bin"
FILES = ("config.json", "curve.csv", "curve.png", "model", "pictures", "training.index")
RESUMABLE = {
    "epochs",
    "max_time",
    "progress",
    "device",
    "devices",
    "nodes",
    "precision",
    "data",
    "data_root",
}
"""Settings that may change when a run is resumed."""


def is_run_folder(out: Path) -> bool:
    """Whether a folder holds a run, finished or not; a saved model is not a run."""
    if (out / CHECKPOINT).exists():
        return True
    config = read_json(out / "config.json")
    return "validation_fraction" in config and "softperm_format" not in config


def train_run(
    estimator: PiGNNEstimator,
    data: TrainingData,
    fabric: Fabric | OneDevice,
    out: Path,
    config: Mapping[str, Any],
    log: Callable[[str], None],
    training_index: bool = False,
) -> dict[str, Any]:
    """Trains an estimator and writes the run folder; of several processes, the first writes.

    ``config``, the source and settings of the run, is written to ``config.json``.

    Returns:
        The result to print. The test graphs are scored once, after the last epoch.
    """
    text = as_text({k: str(v) if isinstance(v, Path) else v for k, v in config.items()})
    if fabric.is_global_zero:
        _check_resumable(out, json.loads(text), log)
        if not (out / CHECKPOINT).exists():
            write_atomically(out / "config.json", text)
    estimator.set_params(checkpoint=out / CHECKPOINT)
    with suppress(TrainingInterrupted):  # the best epoch so far is written
        estimator.fit_data(data, fabric)
    curve, stopped = estimator.curve_, estimator.interrupted_
    has_epochs = len(estimator.models_) > 0  # a forest has none
    names = ", ".join(data.target_names)
    better = "higher" if data.task.higher_is_better else "lower"
    result: dict[str, Any] = {
        "run": str(out),
        "model": str(out / "model"),
        "data": data.name,
        "target": names if len(data.target_names) < 13 else f"{len(data.target_names)} targets",
        **({"epochs": len(curve), "best_epoch": estimator.best_epoch_} if has_epochs else {}),
        "interrupted": stopped,
        "metric": data.task.metric,
        "better": better,
        "threads": torch.get_num_threads(),  # another number rounds sums differently
    }
    if not fabric.is_global_zero:
        return result
    if stopped:
        log("stopping: writing the model and its scores")
    write_atomically(out / "config.json", text)
    estimator.save(out / "model")
    result |= _scores(estimator, data)
    if estimator.sharpness_ is not None:
        result |= {k: round(v, 4) for k, v in asdict(estimator.sharpness_).items()}
        log(
            f"soft permutations: row entropy {estimator.sharpness_.row_entropy:.3f} of 1, "
            f"{estimator.sharpness_.used_latent_vertices:.1f} latent vertices in use, "
            f"{estimator.sharpness_.first_component:.0%} of the variance in one component"
        )
    if has_epochs:
        result["seconds"] = round(sum(epoch.seconds for epoch in curve), 2)
    _write_curve(out, curve, estimator.best_epoch_, data)
    written = f"wrote {out}/{'model, curve.csv, curve.png' if curve else 'model'}"
    if not stopped:
        if estimator.sharpness_ is not None:
            written += f" and {_draw_some(estimator, data, out / 'pictures')} pictures"
        if training_index:
            written += _index_training_graphs(data, out)
        write_atomically(out / "result.json", as_text(result))
        (out / CHECKPOINT).unlink(missing_ok=True)
    log(f"scores are {data.task.metric}, where {better} is better")
    log(written)
    return result


def _index_training_graphs(data: TrainingData, out: Path) -> str:
    """Writes the index of the training graphs; returns what to add to the log."""
    from softperm.search.index import unique_ids
    from softperm.search.training_index import FOLDER, LARGEST, write_training_index

    count = len(data.split.train)
    if count > LARGEST:
        return f"; no {FOLDER}, as there are {count:,} training graphs, more than {LARGEST:,}"
    ids = unique_ids(data.ids) if len(data.ids) else [*map(str, range(len(data.graphs)))]
    write_training_index(out / FOLDER, data.graphs, data.split.train, ids)
    return f"; the training graphs are in {FOLDER}"


def _check_resumable(out: Path, config: dict[str, Any], log: Callable[[str], None]) -> None:
    """Announces that a run is resumed.

    Raises:
        ValueError: the folder holds an unfinished run with other settings; the message names them.
    """
    state = read_checkpoint(out / CHECKPOINT, None)
    if state is None:
        return
    before = read_json(out / "config.json")
    differences = [
        f"{name} was {json.dumps(before[name])}, now {json.dumps(config.get(name))}"
        for name in before
        if name not in RESUMABLE and before[name] != config.get(name)
    ]
    if differences:
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise ValueError(
            f"{out} holds an unfinished run with other settings ({'; '.join(differences[:3])}"
            f"{more}): choose another --out, or delete it"
        )
    log(f"resuming the run in {out} after {counted(state['epoch'], 'epoch')}")


def _scores(estimator: PiGNNEstimator, data: TrainingData) -> dict[str, Any]:
    """Scores of the three parts; that of the test graphs only after the last epoch."""

    def outputs(index: Tensor) -> Tensor:
        values = torch.empty(len(index), data.task.outputs, dtype=torch.float64)
        done = 0
        for part in data.graphs.split(index, SCORED_VERTICES):
            graphs = estimator._encode(data.graphs.select(part))
            values[done : done + len(part)] = estimator.outputs_of(graphs, torch.arange(len(part)))
            done += len(part)
        return values

    train, test = data.split.train, data.split.test
    task = estimator.task_  # of what is left by a linear fit
    most = max(1, SCORED_VALUES // task.outputs)
    if len(train) > most:
        train = train[torch.linspace(0, len(train) - 1, most).long()]
    scores: dict[str, Any] = {"train_score": task.score(outputs(train), data.y[train])}
    if len(train) < len(data.split.train):
        scores["scored_train_graphs"] = len(train)
    if estimator.best_epoch_ and len(data.split.validation):
        scores["validation_score"] = estimator.curve_[estimator.best_epoch_ - 1].validation_score
    if len(test) and not estimator.interrupted_:
        values = outputs(test)
        scores["test_score"] = task.score(values, data.y[test])
        if isinstance(task, Regression):
            predicted = task.decode(values).numpy()
            scores["test_r2"] = r_squared(data.y[test].double().numpy(), predicted)
        scores["test_graphs"] = len(test)
    if data.unit is not None:
        scores["unit"] = data.unit
    return scores


def _write_curve(out: Path, curve: Sequence[Epoch], best_epoch: int, data: TrainingData) -> None:
    """The training curve as a table and as a picture; nothing before the first epoch ends."""
    if not curve:
        return
    from softperm.explore import plots

    with plots.drawing("the training curve"):
        plots.save(plots.training_curve(curve, best_epoch, data.task), out / "curve.png")
    text = io.StringIO()
    named = {"validation_score": f"validation_{data.task.metric}"}
    rows = [{named.get(k, k): v for k, v in asdict(epoch).items()} for epoch in curve]
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(out / "curve.csv", text.getvalue())


def _draw_some(estimator: PiGNNEstimator, data: TrainingData, folder: Path) -> int:
    """Draws a few graphs of different sizes with their alignments; returns how many."""
    from softperm.explore import plots

    chosen = _choose_graphs(data.graphs.sizes.numpy())
    if not len(chosen):
        return 0
    graphs = estimator._encode(data.graphs.select(torch.from_numpy(chosen)))
    model = estimator.model_.cpu().eval()
    with torch.no_grad():
        permutations = model.permutations(graphs.batch(torch.arange(len(chosen))))
    folder.mkdir(exist_ok=True)
    ids = [str(data.ids[i]) for i in chosen.tolist()]
    numbered = all(graph.isdecimal() for graph in ids)
    c = data.graphs
    weights = {} if c.edge_weight is None else {"edge_weight": c.edge_weight}
    for place, name, d in zip(chosen.tolist(), ids, permutations, strict=True):
        with plots.drawing(f"graph {name}"):
            graph = slice_graph(place, c.ptr, c.edge_ptr, c.edge_index, weights)
            figure = plots.alignment(graph, d.numpy(), title=f"graph {name}")
            plots.save(figure, folder / f"graph-{name if numbered else place + 1}.png")
    return len(chosen)


def _choose_graphs(sizes: np.ndarray) -> np.ndarray:
    """Positions of a few graphs of different sizes, none too large to draw."""
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    candidates = order[sizes[order] <= PREFERRED_SIZE]
    if not len(candidates):
        candidates = order[:1][sizes[order[:1]] <= LARGEST_SIZE]
    if not len(candidates):
        return candidates
    return candidates[np.unique(np.linspace(0, len(candidates) - 1, PICTURES).astype(int))]
