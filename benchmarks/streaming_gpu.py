"""Molecules per second of ``embed`` on a GPU, and the share of time with a kernel running.

    python benchmarks/streaming_gpu.py prepare .study     # with RDKit: molecules as JSON Lines
    python benchmarks/streaming_gpu.py measure .study --repeat 10 --out h200.json

``prepare`` writes the molecules of ogbg-molhiv (or the first ``--molecules`` of them) as node-link
graphs and as SMILES, and trains a small model, so that the machine that measures needs neither
RDKit nor the dataset. ``measure`` repeats them and embeds them from JSON Lines, from a collection
that is encoded already and, where RDKit is installed, from SMILES; all of them write parts of a
table.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from softperm import PiGNNClassifier
from softperm.data.formats import read_graphs
from softperm.data.formats.shards import read_shards
from softperm.estimators.streaming import ShardWorker, collection_shards, run_shards, write_table
from softperm.settings import PAPER

PART = 16_384  # graphs whose vectors are in memory together


def prepare(folder: Path, data: Path, molecules: int | None) -> None:
    """Writes ``molecules.jsonl.gz``, ``molecules.csv.gz`` and ``model`` into a folder."""
    from softperm.data.molecules import raw_graph_from_smiles

    with gzip.open(data / "ogbg-molhiv/mapping/mol.csv.gz", "rt") as stream:
        smiles = [row["smiles"] for row in csv.DictReader(stream)][:molecules]
    folder.mkdir(exist_ok=True)
    with gzip.open(folder / "molecules.jsonl.gz", "wt", compresslevel=9) as out:
        for text in smiles:
            raw = raw_graph_from_smiles(text)
            nodes = [{"id": i, "label": label} for i, label in enumerate(raw.label or [])]
            links = [
                {"source": int(u), "target": int(v), "label": label}
                for u, v, label in zip(*raw.edges, raw.edge_label or [], strict=True)
            ]
            out.write(json.dumps({"nodes": nodes, "links": links}, separators=(",", ":")) + "\n")
    with gzip.open(folder / "molecules.csv.gz", "wt") as out:
        out.writelines(["smiles\n", *(f"{text}\n" for text in smiles)])
    few = smiles[:2000]
    quick = {"latent_vertices": 20, "epochs": 2, "progress": False}
    made = PiGNNClassifier(**{**PAPER, **quick})
    made.fit(few, ["N" in text for text in few]).save(folder / "model")


def wait(device: str) -> None:
    """Waits until the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def repeat_lines(source: Path, target: Path, times: int, header: bool) -> Path:
    """A compressed file as a plain one, with its lines after the header several times."""
    with gzip.open(source, "rb") as lines, target.open("wb") as out:
        out.write(lines.readline() if header else b"")
        text = lines.read()
        for _ in range(times):
            out.write(text)
    return target


def embed(worker: ShardWorker, open_shards, rows: int) -> dict[str, float]:
    """Time and rate of one run, and the share of it with a kernel running."""
    with tempfile.TemporaryDirectory() as place:
        parts = Path(place) / "parts"
        worker = ShardWorker(
            worker.model, worker.device, folder=parts, vectors=True, ending=worker.ending
        )
        wait(worker.device)
        began = time.monotonic()
        activity = torch.profiler.ProfilerActivity.__members__[worker.device.upper()]
        with torch.profiler.profile(activities=[activity]) as profile:
            write_table(worker, open_shards, parts, {}, run_shards)
            wait(worker.device)
        seconds = time.monotonic() - began
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    busy, until = 0.0, float("-inf")
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return {
        "graphs": rows,
        "seconds": round(seconds, 2),
        "graphs_per_second": round(rows / seconds),
        "share_with_a_kernel": round(busy / 1e6 / seconds, 3),
    }


def measure(folder: Path, out: Path, repeat: int, device: str) -> None:
    """Writes the rates from JSON Lines, from an encoded collection and from SMILES."""
    worker = ShardWorker(str(folder / "model"), device, vectors=True, folder=Path(), ending=".npz")
    graphs = worker.estimator.collect(read_graphs(folder / "molecules.jsonl.gz").graphs)
    worker.estimator.vectors_of(worker.estimator._encode(graphs.select(torch.arange(512))))
    repeated = graphs.select(torch.arange(len(graphs)).repeat(repeat))
    ids = [str(i) for i in range(len(repeated))]
    encoded = worker.estimator._encode(repeated)
    wait(device)
    began = time.monotonic()
    for first in range(0, len(encoded), PART):
        worker.estimator.vectors_of(encoded.select(torch.arange(len(encoded))[first:][:PART]))
    network = time.monotonic() - began
    result = {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "cores": len(os.sched_getaffinity(0)),
        "network_alone_graphs_per_second": round(len(repeated) / network),
        "collection": embed(worker, partial(collection_shards, repeated, ids, {}), len(repeated)),
    }
    with tempfile.TemporaryDirectory() as place:
        for name, file, needs in (
            ("json_lines", "molecules.jsonl", "json"),
            ("smiles", "molecules.csv", "rdkit"),
        ):
            if find_spec(needs) is not None:
                header, target = needs == "rdkit", Path(place) / file
                table = repeat_lines(folder / f"{file}.gz", target, repeat, header)
                result[name] = embed(worker, partial(read_shards, table), len(repeated))
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["prepare", "measure"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SOFTPERM_DATA", "data")))
    parser.add_argument("--molecules", type=int, help="how many; by default all")
    parser.add_argument("--repeat", type=int, default=5, help="how often each is embedded")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("streaming-gpu.json"))
    args = parser.parse_args()
    if args.action == "prepare":
        prepare(args.folder, args.data, args.molecules)
    else:
        measure(args.folder, args.out, args.repeat, args.device)


if __name__ == "__main__":
    main()
