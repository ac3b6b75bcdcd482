"""Host memory of a training on a dataset of the shape of ogbg-molpcba.

    python benchmarks/molecules_memory.py --data-root FOLDER [--graphs 12800] [--out memory.json]

Trains on 437,929 molecules with 128 tasks, made from those of ogbg-molhiv over and over, and says
the most memory that the training's processes held at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from machine import run_watched
from molecules import BATCH, open_molecules, training_data

from softperm.data.datasets.prepared import ArrayWriter, open_prepared
from softperm.estimators import PiGNNClassifier
from softperm.nn.model import build
from softperm.settings import TrainingConfig
from softperm.training.data import Examples
from softperm.training.loop import fit
from softperm.training.tasks import MultiLabel

MOLPCBA, TASKS = 437_929, 128


def repeat(source: Path, target: Path) -> None:
    """A prepared dataset of the shape of ogbg-molpcba: repeated molecules, random targets."""
    prepared = open_prepared(source)
    arrays, rng = prepared.arrays, np.random.default_rng(0)
    ptr, edge_ptr = arrays["ptr"], arrays["edge_ptr"]
    target.mkdir()
    writer = ArrayWriter(target)
    left, base, edge_base = MOLPCBA, 0, 0
    for name in ("ptr", "edge_ptr"):
        writer.append(name, np.zeros(1, np.int64))
    while left:
        count = min(left, len(ptr) - 1)
        v, e = int(ptr[count]), int(edge_ptr[count])
        writer.append("ptr", ptr[1 : count + 1] + base)
        writer.append("edge_ptr", edge_ptr[1 : count + 1] + edge_base)
        for name, rows in (("label", v), ("structure", v), ("edge_label", e)):
            writer.append(name, arrays[name][:rows])
        for side, name in enumerate(("row", "column")):
            writer.append(name, arrays["edge_index"][side, :e])
        drawn = rng.choice(3, (count, TASKS), p=[0.4, 0.59, 0.01])
        writer.append("values", np.array([np.nan, 0, 1], np.float32)[drawn])
        left, base, edge_base = left - count, base + v, edge_base + e
    order = rng.permutation(MOLPCBA)
    parts = {"train": order[:350_343], "validation": order[350_343:394_136]}
    for part, numbers in {**parts, "test": order[394_136:]}.items():
        writer.append(f"split_{part}", numbers)
    names = [f"PCBA-{t}" for t in range(TASKS)]
    writer.stack("edge_index", "row", "column")
    writer.finish(replace(prepared.schema, name="ogbg-molpcba", target_names=tuple(names)))


def measure(chosen: argparse.Namespace) -> dict:
    """Peak resident memory of a training and a validation on a molpcba-shaped dataset."""
    _, pack = open_molecules(chosen)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "molpcba"
        repeat(pack, target)
        command = [sys.executable, __file__, "--hold", "--pack", str(target)]
        command += ["--graphs", str(chosen.graphs), "--latent", str(chosen.latent[0])]
        said, peak = run_watched(command)
        size = sum(file.stat().st_size for file in target.iterdir())
    return {**said, "file_gb": size / 1e9, "peak_gb": peak / 1e9}


def hold(chosen: argparse.Namespace) -> None:
    """Trains on the molpcba-shaped file, of which every byte is read first, as in an epoch."""
    dataset, _ = open_molecules(chosen)
    data = training_data(dataset)
    data = replace(data, task=MultiLabel(TASKS, metric="average_precision"))
    settings = {"latent_vertices": chosen.latent[0], "hidden": 128}
    config = PiGNNClassifier(**settings, categories="embedding").model_config(data)
    some = data.split.train[torch.randperm(len(data.split.train))[: chosen.graphs]]
    held = data.examples(data.split.validation[: chosen.graphs // 4], codes=True)
    every = held.graphs
    for tensor in (every.label, every.structure, every.edge_index, every.edge_label, data.y):
        tensor.double().sum() if tensor.is_floating_point() else tensor.sum(dtype=torch.int64)
    model, begin = build(config, seed=0), time.perf_counter()
    result = fit(
        model,
        data.task,
        Examples(every, data.y, some),
        TrainingConfig(epochs=1, batch_size=BATCH),
        validation=held,
        device=chosen.device,
    )
    told = {"steps": -(-chosen.graphs // BATCH), "seconds": time.perf_counter() - begin}
    told |= {"graphs": len(dataset), "tasks": data.y.shape[1]}
    print(json.dumps({**told, "loss": result.curve[0].train_loss}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-root", type=Path, default=os.environ.get("SOFTPERM_DATA"))
    parser.add_argument("--pack", type=Path, help="a prepared file, in place of a data root")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--graphs", type=int, default=12_800, help="graphs that are trained on")
    parser.add_argument("--latent", type=int, nargs=1, default=[20])
    parser.add_argument("--out", type=Path, help="file for the results as JSON")
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.hold:
        hold(chosen)
        return
    found = measure(chosen)
    print(json.dumps(found, indent=1), flush=True)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
