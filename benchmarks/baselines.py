"""One epoch of every system on every dataset of its table: time, peak memory, or a refusal.

    python benchmarks/baselines.py --data-root FOLDER [--datasets MUTAG ENZYMES] [--systems gin]

Every cell is a process of its own: it trains on all graphs for one epoch with the first value of
each hyper-parameter of the system's grid. The batch with the largest graphs comes first, so that
memory reaches its peak, or runs out, at once. An epoch is cut after ``--seconds``; the
result then says how many steps of how many were run, and what a whole epoch would take. On a GPU,
memory is what its allocator had reserved at most; on the CPU, the growth of the resident memory.

Results go to ``results/baselines/one-epoch.json`` after every cell, and a cell that is there is not
measured again. A process that would take more than ``--memory`` GiB is stopped by the system, and
its cell says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from softperm.data.datasets import load_dataset
from softperm.data.datasets.catalogue import PAPER
from softperm.data.datasets.dataset import Dataset
from softperm.lab.baselines.layers import TooLarge
from softperm.lab.evaluation_data import with_positions
from softperm.lab.recipes import grid_points
from softperm.lab.systems import CLASSICAL, SYSTEMS, DataShape
from softperm.training.tasks import Classification, MultiLabel, Regression, Task, mean_loss

HOME = Path(__file__).parents[1]
TABLES = {"classification": PAPER, "ogb": ("ogbg-molhiv", "ogbg-molpcba"), "qm9": ("QM9",)}
LIMIT_GIB = 24.0
OUT = HOME / "results" / "baselines" / "one-epoch.json"


def task_of(dataset: Dataset) -> tuple[Task, torch.Tensor]:
    """The task of a dataset, and its encoded targets."""
    y = dataset.y.clone()
    if dataset.task == "classification":
        return Classification(int(y.max()) + 1), y
    if dataset.task == "multilabel":
        return MultiLabel(y.shape[1]), y
    task = Regression.of(y)
    return task, task.encode(y)


def batches(sizes: torch.Tensor, size: int) -> list[torch.Tensor]:
    """An epoch in random order, the largest graphs together and first."""
    largest = sizes.argsort(descending=True)
    shuffle = torch.randperm(len(sizes) - size, generator=torch.Generator().manual_seed(0))
    return [largest[:size], *largest[size:][shuffle].split(size)] if len(shuffle) else [largest]


def train(name: str, dataset: Dataset, device: torch.device, seconds: float) -> dict:
    """One epoch of a network, or as much of it as the time allows."""
    system, (task, y) = SYSTEMS[name], task_of(dataset)
    settings = {key: values[0] for key, values in system.grid.items()}
    graphs = dataset.collection
    if dataset.position is not None:
        graphs = with_positions(graphs, dataset.position)
    graphs = system.extended(graphs)
    model = system.build(DataShape.of(graphs, task.outputs), settings, seed=0).to(device)
    optimiser = torch.optim.Adam(model.parameters(), settings["learning_rate"])
    parts = batches(graphs.sizes, settings["batch_size"])
    begin, ends = time.perf_counter(), []
    for part in parts:
        loss = mean_loss(task, model(graphs.batch(part).to(device)), y[part].to(device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter() - begin)
        if ends[-1] > seconds and len(ends) > 1:
            break
    later = (ends[-1] - ends[0]) / max(1, len(ends) - 1)  # a step after the first, the largest
    return {
        "steps": len(ends),
        "of_steps": len(parts),
        "ran_s": ends[-1],
        "epoch_s": ends[0] + later * (len(parts) - 1),
        "batch_size": settings["batch_size"],
        "loss": loss.item(),
    }


def fit_classical(name: str, dataset: Dataset) -> dict:
    """Fits a kernel or a forest to nine tenths of the graphs and predicts the rest."""
    begin = time.perf_counter()
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    learnt, held = order[: len(order) * 9 // 10], order[len(order) * 9 // 10 :]
    system = CLASSICAL[name]
    fitted = system.build(next(iter(grid_points(system.grid))), 0)
    task, _ = task_of(dataset)
    fitted.fit(dataset.collection, learnt, dataset.y[learnt], task)
    fitted.outputs(dataset.collection, held)
    spent = time.perf_counter() - begin
    return {"steps": 1, "of_steps": 1, "ran_s": spent, "epoch_s": spent}


def resident(field: str) -> int:
    """Bytes of this process by the system's account: VmRSS now, VmHWM at most."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def measure(name: str, dataset_name: str, root: str, seconds: float, memory: float) -> dict:
    """One measurement, in this process."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory * 2**30),) * 2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        dataset = load_dataset(dataset_name, root)
    except ValueError:
        return {"missing": "the dataset is not in the data root and cannot be fetched"}
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew after loading
    before = resident("VmRSS")
    try:
        classical = name in CLASSICAL
        found = fit_classical(name, dataset) if classical else train(name, dataset, device, seconds)
    except TooLarge as refusal:
        return {"refused": str(refusal)}
    except (MemoryError, RuntimeError) as problem:
        if isinstance(problem, RuntimeError) and "alloc" not in str(problem):
            raise
        return {"failed": f"more than the {memory:.0f} GiB that it was given here"}
    peak = resident("VmHWM") - before
    if device.type == "cuda":
        peak = torch.cuda.max_memory_reserved()
    used = "cuda" if device.type == "cuda" else f"cpu, threads: {torch.get_num_threads()}"
    return {**found, "peak_gib": peak / 2**30, "device": used}


def apart(name: str, dataset: str, chosen: argparse.Namespace) -> dict:
    """One measurement, in a process of its own."""
    command = [sys.executable, __file__, "--one", name, dataset, "--memory", str(chosen.memory)]
    command += ["--data-root", str(chosen.data_root), "--seconds", str(chosen.seconds)]
    env = {**os.environ, "PYTHONPATH": str(HOME)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return {"failed": said[-1] if said else f"exit code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def told(found: dict) -> str:
    """A measurement in words."""
    if "epoch_s" not in found:
        (kind,) = found
        return f"{kind}: {found[kind]}"
    over = f", OVER {LIMIT_GIB:.0f} GiB" if found["peak_gib"] > LIMIT_GIB else ""
    steps = f"{found['steps']} of {found['of_steps']} steps in {found['ran_s']:.1f} s"
    whole = "" if found["steps"] == found["of_steps"] else f", an epoch ≈ {found['epoch_s']:.0f} s"
    return f"{steps}{whole}, {found['peak_gib']:.2f} GiB{over}"


def cells(chosen: argparse.Namespace) -> list[tuple[str, str]]:
    """Every wanted system with every wanted dataset of its table."""
    made = []
    for name, entry in {**SYSTEMS, **CLASSICAL}.items():
        for dataset in (d for table in entry.tables for d in TABLES[table]):
            wanted = not chosen.systems or name in chosen.systems
            if wanted and (not chosen.datasets or dataset in chosen.datasets):
                made.append((name, dataset))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-root", type=Path, default=os.environ.get("SOFTPERM_DATA"))
    parser.add_argument("--datasets", nargs="+", help="all of a system's table by default")
    parser.add_argument("--systems", nargs="+", choices=[*SYSTEMS, *CLASSICAL])
    parser.add_argument("--seconds", type=float, default=180.0, help="after which an epoch is cut")
    parser.add_argument("--memory", type=float, default=LIMIT_GIB, help="GiB of one process")
    parser.add_argument("--out", type=Path, default=OUT, help="file for the results as JSON")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.data_root is None:
        parser.error("name a data root, or set SOFTPERM_DATA")
    if chosen.one:
        measured = measure(*chosen.one, str(chosen.data_root), chosen.seconds, chosen.memory)
        print(json.dumps(measured))
        return
    results: dict = {"cells": {}}
    if chosen.out.exists():
        results = json.loads(chosen.out.read_text())
    results["machine"] = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    results["torch"] = torch.__version__
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    todo = cells(chosen)
    for k, (name, dataset) in enumerate(todo, start=1):
        key = f"{name} {dataset}"
        known = key in results["cells"]
        if not known:
            results["cells"][key] = apart(name, dataset, chosen)
            chosen.out.write_text(json.dumps(results, indent=1) + "\n")
        note = " (known)" if known else ""
        print(f"[{k}/{len(todo)}] {key}: {told(results['cells'][key])}{note}", flush=True)


if __name__ == "__main__":
    main()
