"""One epoch of every system on every dataset of its table: time, peak memory, or a refusal.

    python benchmarks/baselines.py --data-root FOLDER [--datasets MUTAG ENZYMES] [--systems gin wl]

Every measurement is a process of its own: it trains on all graphs for one epoch with the first
value of each hyper-parameter of the system's grid. The batch with the largest graphs comes first,
so that a refusal, or the peak of memory, does not wait for chance. With ``--seconds`` an epoch is
cut after that time, and the time of a whole one is extrapolated from the batches done. On a GPU,
memory is what its allocator had reserved at most; on the CPU, the growth of the resident memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from softperm.baselines import KERNELS, SYSTEMS, DataShape, TooLarge
from softperm.baselines.inputs import with_positions
from softperm.datasets import load_dataset
from softperm.datasets.catalogue import PAPER
from softperm.datasets.dataset import Dataset
from softperm.training.tasks import Classification, MultiLabel, Regression, Task, mean_loss

HOME = Path(__file__).parents[1]
TABLES = {"classification": PAPER, "ogb": ("ogbg-molhiv",), "qm9": ("QM9",)}
LIMIT_GIB = 24.0


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
    """One epoch of a network."""
    system, (task, y) = SYSTEMS[name], task_of(dataset)
    settings = {key: values[0] for key, values in system.grid.items()}
    graphs = dataset.collection
    if dataset.position is not None:
        graphs = with_positions(graphs, dataset.position)
    model = system.build(DataShape.of(graphs, task.outputs), settings, seed=0).to(device)
    optimiser = torch.optim.Adam(model.parameters(), settings["learning_rate"])
    parts = batches(graphs.sizes, settings["batch_size"])
    begin, seen, spent_first = time.perf_counter(), 0, 0.0
    for done, part in enumerate(parts, 1):
        batch = graphs.batch(part).to(device)
        loss = mean_loss(task, model(batch), y[part].to(device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        seen += len(part)
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent = time.perf_counter() - begin
        spent_first = spent_first or spent
        if seconds and spent > seconds and done > 1:
            break
    else:
        return {"epoch_s": spent, "share": 1.0, "first_s": spent_first, "loss": loss.item()}
    later = (spent - spent_first) / max(1, done - 1) * (len(parts) - 1)
    return {
        "epoch_s": spent_first + later,
        "share": seen / len(graphs),
        "first_s": spent_first,
        "loss": loss.item(),
    }


def fit_kernel(name: str, dataset: Dataset) -> dict:
    """Fits on nine tenths of the graphs and classifies the rest."""
    begin = time.perf_counter()
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    learnt, held = order[: len(order) * 9 // 10], order[len(order) * 9 // 10 :]
    machine = KERNELS[name].build({"iterations": 4, "C": 10.0})
    machine.fit(dataset.collection, learnt, dataset.y[learnt].numpy())
    machine.predict(dataset.collection, held)
    return {"epoch_s": time.perf_counter() - begin, "share": 1.0}


def measure(name: str, dataset_name: str, root: str, seconds: float) -> dict:
    """One measurement, in this process."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = load_dataset(dataset_name, root)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    try:
        kernel = name in KERNELS
        found = fit_kernel(name, dataset) if kernel else train(name, dataset, device, seconds)
    except TooLarge as refusal:
        return {"refused": str(refusal)}
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    peak = torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else after - before
    return {**found, "peak_gib": peak, "process_gib": after, "device": device.type}


def apart(name: str, dataset: str, chosen: argparse.Namespace) -> dict:
    """One measurement, in a process of its own."""
    command = [sys.executable, __file__, "--one", name, dataset]
    command += ["--data-root", str(chosen.data_root), "--seconds", str(chosen.seconds)]
    env = {**os.environ, "PYTHONPATH": str(HOME)}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"failed": f"exit code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def row(name: str, dataset: str, found: dict) -> str:
    """A measurement as a row of a table."""
    if "epoch_s" not in found:
        return f"| {name} | {dataset} | – | – | {found.get('refused') or found.get('failed')} |"
    note = "" if found["share"] == 1.0 else f"extrapolated from {found['share']:.0%} of the graphs"
    if found["peak_gib"] > LIMIT_GIB:
        note += f" over {LIMIT_GIB:.0f} GiB"
    return f"| {name} | {dataset} | {found['epoch_s']:.1f} s | {found['peak_gib']:.2f} | {note} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-root", type=Path, default=os.environ.get("SOFTPERM_DATA"))
    parser.add_argument("--datasets", nargs="+", help="all of a system's table by default")
    parser.add_argument("--systems", nargs="+", choices=[*SYSTEMS, *KERNELS])
    parser.add_argument("--seconds", type=float, default=0.0, help="cut an epoch; 0 for never")
    parser.add_argument("--out", type=Path, help="file for the results as JSON")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.data_root is None:
        parser.error("name a data root, or set SOFTPERM_DATA")
    if chosen.one:
        print(json.dumps(measure(*chosen.one, str(chosen.data_root), chosen.seconds)))
        return
    results: dict = {"cores": len(os.sched_getaffinity(0)), "load_before": os.getloadavg()[0]}
    print("| system | dataset | one epoch | peak GiB | |\n|---|---|---|---|---|")
    for name, entry in {**SYSTEMS, **KERNELS}.items():
        for dataset in (d for table in entry.tables for d in TABLES[table]):
            unwanted = chosen.systems and name not in chosen.systems
            if unwanted or (chosen.datasets and dataset not in chosen.datasets):
                continue
            found = apart(name, dataset, chosen)
            results[f"{name} {dataset}"] = found
            print(row(name, dataset, found), flush=True)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
