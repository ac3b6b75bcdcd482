"""Training on molecules: throughput beside a PyG GIN, and two processes beside one.

    python benchmarks/molecules.py --data-root FOLDER [--device cuda] [--only speed pair]
    python benchmarks/molecules.py --pack FILE --device cuda --only speed

``speed`` trains π-GNN on ogbg-molhiv through :func:`softperm.training.loop.fit`, and a 5-layer GIN
of hidden size 300 through PyG's DataLoader with workers, in turns, several times each, in one run;
on a GPU it also states the share of time in which a kernel ran. ``pair`` trains with two processes
and with one. Memory is measured by ``molecules_memory.py``.

Both need ogbg-molhiv prepared. A machine without RDKit uses the folder of one that has it,
``prepared/ogbg-molhiv-*`` in the cache of ``softperm data``, 44 MB: name it with ``--pack``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn.models import GIN
from torch_geometric.nn.pool import global_mean_pool

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from softperm.data.datasets import load_dataset
from softperm.data.datasets.dataset import Dataset, dataset_of
from softperm.data.datasets.prepared import open_prepared, prepared_folders
from softperm.data.datasets.store import open_store
from softperm.estimators import PiGNNClassifier
from softperm.nn.encoders import LabelEmbedding
from softperm.nn.model import build
from softperm.settings import TrainingConfig
from softperm.training.data import TrainingData
from softperm.training.devices import connect, disconnect
from softperm.training.loop import fit
from softperm.training.sources import from_dataset
from softperm.training.tasks import mean_loss

BATCH = 128
ROUNDS = 3


def open_molecules(chosen: argparse.Namespace) -> tuple[Dataset, Path]:
    """The dataset, and the folder of its prepared files."""
    if chosen.pack is None:
        dataset = load_dataset("ogbg-molhiv", chosen.data_root)
        folders = prepared_folders(open_store(), "ogbg-molhiv")
        newest = max(folders, key=lambda path: path.stat().st_mtime)  # older code left others
        return dataset, newest
    return dataset_of(open_prepared(chosen.pack), open_store(), None, True), chosen.pack


def training_data(dataset: Dataset) -> TrainingData:
    return from_dataset(dataset, None, test_fraction=None, validation_fraction=None, seed=0)


def train(data: TrainingData, config, graphs: int, device, seed: int) -> float:
    """Seconds of one epoch over a number of graphs, with the library's own loop."""
    codes = bool(config.label_sizes)
    some = data.split.train[torch.randperm(len(data.split.train))[:graphs]]
    examples = data.examples(some, codes)
    settings = TrainingConfig(epochs=1, batch_size=BATCH, seed=seed)
    model = build(config, seed=0)
    result = fit(model, data.task, examples, settings, device=device)
    return result.curve[0].seconds


class Rival(nn.Module):
    """PyG's GIN on embedded atoms, mean-pooled: OGB's baseline without a virtual node."""

    def __init__(self, sizes: tuple[int, ...], hidden: int = 300, layers: int = 5) -> None:
        super().__init__()
        self.atoms = LabelEmbedding(sizes, hidden)
        self.gin = GIN(hidden, hidden, layers, norm="batch_norm")
        self.out = nn.Linear(hidden, 1)

    def forward(self, batch) -> torch.Tensor:
        """One output for each graph."""
        x = self.gin(self.atoms(batch.label), batch.edge_index)
        return self.out(global_mean_pool(x, batch.batch, len(batch)))


class Theirs:
    """The rival's training as PyG's examples write it."""

    def __init__(
        self, dataset: Dataset, data: TrainingData, device: torch.device, workers: int
    ) -> None:
        self.device, self.task = device, data.task
        kept = data.split.train[:20_000]
        self.data = dataset.graphs(kept.tolist())
        for graph, y in zip(self.data, data.y[kept], strict=True):
            graph.y = y[None]
        self.loader = {
            "batch_size": BATCH,
            "num_workers": workers,
            "pin_memory": device.type == "cuda",
        }
        self.model = Rival(dataset.collection.label_sizes).to(device)
        self.adam = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def batches(self, graphs: int) -> Iterator:
        """Mini-batches of a number of graphs, collated by workers."""
        chosen = [self.data[i] for i in torch.randperm(len(self.data))[:graphs].tolist()]
        return iter(DataLoader(chosen, shuffle=True, **self.loader))

    def train(self, graphs: int) -> float:
        """Seconds from the first batch to the last, workers having started."""
        batches = self.batches(graphs + BATCH)
        self.step(next(batches))
        self.wait()
        begin = time.perf_counter()
        for batch in batches:
            self.step(batch)
        self.wait()
        return time.perf_counter() - begin

    def step(self, batch) -> None:
        """One step of Adam."""
        batch = batch.to(self.device, non_blocking=True)
        loss = mean_loss(self.task, self.model(batch), batch.y)
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        self.adam.step()

    def wait(self) -> None:
        """Until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def busy_share(work) -> float:
    """Share of the time in which a kernel ran; the first fifth of them, the start, left out."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    spans = sorted(
        (e.time_range.start, e.time_range.end)
        for e in seen.events()
        if e.device_type == torch.autograd.DeviceType.CUDA
    )
    spans = spans[len(spans) // 5 :]
    busy, reach = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return busy / (reach - spans[0][0])


def speed(chosen: argparse.Namespace) -> dict:
    dataset, _ = open_molecules(chosen)
    data, device = training_data(dataset), torch.device(chosen.device)
    rival = Theirs(dataset, data, device, chosen.workers)
    ours = {}
    for categories in ("one-hot", "embedding"):
        for p in chosen.latent:
            estimator = PiGNNClassifier(latent_vertices=p, hidden=128, categories=categories)
            ours[f"pi-gnn {categories} P={p}"] = estimator.model_config(data)
    fabric = connect(device, precision=chosen.precision)
    rates: dict[str, list[float]] = {name: [] for name in (*ours, "pyg gin")}
    for config in ours.values():
        train(data, config, 2 * BATCH, fabric, seed=9)  # compiles
    rival.train(2 * BATCH)
    for turn in range(ROUNDS):
        for name, config in ours.items():
            seconds = train(data, config, chosen.graphs, fabric, seed=turn)
            rates[name].append(chosen.graphs / seconds)
        rates["pyg gin"].append(chosen.graphs / rival.train(chosen.graphs))
    found = {name: {"graphs_per_s": float(np.median(r)), "all": r} for name, r in rates.items()}
    for name, config in ours.items():
        found[name]["parameters"] = sum(w.numel() for w in build(config, 0).parameters())
        found[name]["over_pyg"] = found[name]["graphs_per_s"] / found["pyg gin"]["graphs_per_s"]
        if device.type == "cuda":
            found[name]["busy"] = busy_share(
                lambda c=config: train(data, c, chosen.graphs // 4, fabric, seed=9)
            )
    found["pyg gin"]["parameters"] = sum(w.numel() for w in rival.model.parameters())
    if device.type == "cuda":
        found["pyg gin"]["busy"] = busy_share(lambda: rival.train(chosen.graphs // 4))
    return found


def pair(chosen: argparse.Namespace) -> dict:
    """Two processes of one thread each, and one process of one thread, by turns.

    Processor time per graph shows the cost of working together even on a busy machine; graphs per
    second show it only if enough cores are free.
    """
    rates: dict[int, list[dict]] = {1: [], 2: []}
    _, pack = open_molecules(chosen)
    for _ in range(ROUNDS):
        for processes, seen in rates.items():
            command = [sys.executable, __file__, "--worker", str(processes), "--pack", str(pack)]
            command += ["--graphs", str(chosen.graphs), "--latent", str(chosen.latent[0])]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
            seen.append(json.loads(done.stdout.splitlines()[-1]))
    found: dict = {"all": rates}
    for key in ("graphs_per_s", "core_ms_per_graph"):
        medians = {n: float(np.median([r[key] for r in seen])) for n, seen in rates.items()}
        found[key] = {**medians, "two_over_one": medians[2] / medians[1]}
    return found


def worker(chosen: argparse.Namespace) -> None:
    fabric = connect("cpu", devices=chosen.worker)
    dataset, _ = open_molecules(chosen)
    data = training_data(dataset)
    settings = {"latent_vertices": chosen.latent[0], "hidden": 128, "categories": "embedding"}
    config = PiGNNClassifier(**settings).model_config(data)
    torch.manual_seed(0)
    train(data, config, 2 * BATCH, fabric, seed=9)
    before = time.process_time()
    seconds = train(data, config, chosen.graphs, fabric, seed=0)
    spent = fabric.all_reduce(torch.tensor(time.process_time() - before), reduce_op="sum")
    disconnect(fabric)
    if fabric.is_global_zero:
        rate, cost = chosen.graphs / seconds, 1e3 * spent.item() / chosen.graphs
        print(json.dumps({"graphs_per_s": rate, "core_ms_per_graph": cost}), flush=True)


STUDIES = {"speed": speed, "pair": pair}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-root", type=Path, default=os.environ.get("SOFTPERM_DATA"))
    parser.add_argument("--pack", type=Path, help="a prepared file, in place of a data root")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="32")
    parser.add_argument("--graphs", type=int, default=12_800, help="graphs of one measurement")
    parser.add_argument("--latent", type=int, nargs="+", default=[20, 40])
    parser.add_argument("--workers", type=int, default=min(8, (os.cpu_count() or 1) - 1))
    parser.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--out", type=Path, help="file for the results as JSON")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        worker(chosen)
        return
    results: dict = {"cores": os.cpu_count(), "device": chosen.device, "torch": torch.__version__}
    if chosen.device != "cpu":
        results["device"] = torch.cuda.get_device_name()
    for name in chosen.only:
        results[name] = STUDIES[name](chosen)
        print(name, json.dumps(results[name], indent=1), flush=True)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
