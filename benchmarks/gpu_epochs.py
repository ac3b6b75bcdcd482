"""Milliseconds of an epoch of ten networks of `tu-table`, with and without merged vertices.

    python benchmarks/gpu_epochs.py RESULT.json MUTAG,DD [--device cuda]

The networks are those of the ten folds, trained as one stack that has the GPU to itself. The result
has the fastest of three epochs after the first, the time until the first one, the number of
distinct rows by kind of features, and the kernels that take most of an epoch.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from softperm.data.datasets import load_dataset
from softperm.lab.recipes import read_recipe
from softperm.lab.systems import DataShape, find_system
from softperm.settings import TrainingConfig
from softperm.training import stack as stacks
from softperm.training.stack import Stack
from softperm.training.tasks import Classification

EPOCHS = 5
KERNELS = 10


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(name: str, model: str, merged: bool, device: str) -> dict:
    """Trains a stack for a few epochs."""
    dataset, recipe = load_dataset(name), read_recipe("tu-table")
    graphs, splits = dataset.collection, dataset.folds().splits
    task = Classification(int(dataset.y.max()) + 1)
    shape = DataShape.of(graphs, task.outputs, splits[0].train)
    settings = {**recipe.settings, "latent_vertices": 20, "hidden": 64}
    models = [find_system(model).build(shape, settings, seed) for seed in range(len(splits))]
    config = TrainingConfig(
        epochs=EPOCHS + 1, batch_size=64, learning_rate=1e-3, criterion="late-score"
    )
    merge = stacks.equal_features
    if not merged:
        stacks.equal_features = lambda *_: {}
    begin = time.perf_counter()
    parts = [split.train for split in splits], [split.validation for split in splits]
    seeds = list(range(len(splits)))
    tasks = [task] * len(splits)
    stack = Stack(models, tasks, graphs, dataset.y, *parts, seeds, config, device=device)
    stacks.equal_features = merge
    wait(device)
    start, seconds = time.perf_counter() - begin, []
    for _ in range(EPOCHS):
        begin = time.perf_counter()
        stack.train_epoch(lambda: None)
        wait(device)
        seconds.append(time.perf_counter() - begin)
    result = {
        "start_s": round(start, 2),
        "epoch_ms": round(1e3 * min(seconds[1:]), 1),
        "distinct": {kind: int(rows.ptr[-1]) for kind, rows in stack.equal.items()},
        "vertices": int(graphs.ptr[-1]),
    }
    if device == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            stack.train_epoch(lambda: None)
            wait(device)
        events = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
        result["kernels_ms"] = {
            event.key[:60]: round(event.self_device_time_total / 1e3, 2)
            for event in events[:KERNELS]
        }
    stack.release()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("datasets", help="separated by commas")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    results: dict[str, dict] = {}
    for name in options.datasets.split(","):
        for model in ("pi-gnn", "pi-gnn-d"):
            for merged in (True, False):
                key = f"{name} {model} {'merged' if merged else 'single'}"
                results[key] = measure(name, model, merged, options.device)
                print(key, json.dumps(results[key]), flush=True)
                options.result.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
