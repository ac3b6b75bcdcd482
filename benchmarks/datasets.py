"""Speed and memory of preparing datasets, beside PyG's reader on the same files in one run.

    python benchmarks/datasets.py --data-root FOLDER [--only collab reddit molhiv qm9 molpcba]

Every measurement is a process of its own with an empty cache. Peak memory is the largest sum of
the resident memory of that process and its children, sampled twenty times a second; pages they
share are counted more than once.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import run_watched

HOME = Path(__file__).parents[1]
MOLPCBA = 437_929
TASKS = 128

OURS = """
import json, sys, time
from softperm.data.datasets import load_dataset
import torch, softperm.data.datasets.dataset, softperm.data.datasets.tu
name, root, show = sys.argv[1], sys.argv[2], sys.argv[3] == "1"
begin = time.perf_counter()
first = load_dataset(name, root, progress=show)
made = time.perf_counter()
again = load_dataset(name, root)
opened = time.perf_counter()
assert first.fingerprint == again.fingerprint
from softperm.data.datasets.statistics import compare
from softperm.data.datasets.store import open_store
from pathlib import Path
manifest, = Path(open_store().cache, "prepared").glob("*/manifest.json")
split = first.official_split
print(json.dumps({
    "prepare_s": made - begin, "open_s": opened - made, "graphs": len(first),
    "file_mb": sum(f.stat().st_size for f in manifest.parent.iterdir()) / 1e6,
    "fingerprint": first.fingerprint,
    "targets": list(first.y.shape), "missing": int(first.y.isnan().sum()),
    "split": None if split is None else [len(split.train), len(split.validation), len(split.test)],
    "vertices": int(first.collection.ptr[-1]), "edges": int(first.collection.edge_ptr[-1]) // 2,
    "unlike_the_paper": {c.field: c.note for c in compare(first) if c.note},
}))
"""

PYG = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from torch_geometric.datasets import TUDataset
name, root = sys.argv[1:]
begin = time.perf_counter()
first = TUDataset(root, name)
made = time.perf_counter()
again = TUDataset(root, name)
opened = time.perf_counter()
print(json.dumps({
    "prepare_s": made - begin, "open_s": opened - made, "graphs": len(first),
    "vertices": int(sum(g.num_nodes for g in first)),
    "edges": int(sum(g.num_edges for g in first)) // 2,
}))
"""


def measure(code: str, *arguments: str, cache: Path) -> dict:
    """Run code in a process of its own; what it prints, with its peak memory and CPU time."""
    env = {**os.environ, "PYTHONPATH": str(HOME), "SOFTPERM_CACHE": str(cache)}
    command = [sys.executable, "-c", code, *arguments]
    said, peak = run_watched(command, env)
    return {**said, "peak_mb": peak / 2**20}


def prepare(name: str, root: Path, folder: Path, show: bool = True) -> dict:
    return measure(OURS, name, str(root), str(int(show)), cache=folder / "cache")


def beside_pyg(name: str) -> Callable[[Path, Path], dict]:
    def compare(root: Path, folder: Path) -> dict:
        ours = prepare(name, root, folder)
        raw = folder / "pyg" / name / "raw"
        raw.mkdir(parents=True)
        with zipfile.ZipFile(root / "tu" / f"{name}.zip") as archive:
            for entry in archive.infolist():
                if entry.filename.endswith(".txt"):
                    (raw / Path(entry.filename).name).write_bytes(archive.read(entry))
        theirs = measure(PYG, name, str(folder / "pyg"), cache=folder / "cache")
        assert (ours["graphs"], ours["edges"]) == (theirs["graphs"], theirs["edges"])
        ratios = {f"{k}_ratio": theirs[k] / ours[k] for k in ("prepare_s", "open_s", "peak_mb")}
        return {"softperm": ours, "pyg": theirs, **ratios}

    return compare


def molpcba(root: Path, folder: Path) -> dict:
    """A collection of the shape of ogbg-molpcba, made of the molecules of ogbg-molhiv."""
    place = folder / "made" / "ogbg-molpcba"
    for part in ("mapping", "split/scaffold"):
        (place / part).mkdir(parents=True)
    with gzip.open(root / "ogbg-molhiv" / "mapping" / "mol.csv.gz", "rt") as text:
        smiles = [row["smiles"] for row in csv.DictReader(text)]
    rng = np.random.default_rng(0)
    header = ",".join([*(f"PCBA-{t}" for t in range(TASKS)), "smiles", "mol_id"])
    words = np.array(["", "0.0", "1.0"])
    with gzip.open(place / "mapping" / "mol.csv.gz", "wt", compresslevel=1) as out:
        out.write(header + "\n")
        for first in range(0, MOLPCBA, 10_000):
            count = min(10_000, MOLPCBA - first)
            labels = words[rng.choice(3, (count, TASKS), p=[0.4, 0.59, 0.01])]
            for i, row in enumerate(labels.tolist(), first):
                out.write(",".join(row) + f",{smiles[i % len(smiles)]},CID{i}\n")
    order = rng.permutation(MOLPCBA)
    parts = {"train": order[:350_343], "valid": order[350_343:394_136], "test": order[394_136:]}
    for part, numbers in parts.items():
        with gzip.open(place / "split" / "scaffold" / f"{part}.csv.gz", "wt") as out:
            out.write("".join(f"{n}\n" for n in numbers.tolist()))
    return prepare("ogbg-molpcba", place.parent, folder)


STUDIES: dict[str, Callable[[Path, Path], dict]] = {
    "collab": beside_pyg("COLLAB"),
    "reddit": beside_pyg("REDDIT-BINARY"),
    "molhiv": lambda root, folder: prepare("ogbg-molhiv", root, folder),
    "qm9": lambda root, folder: prepare("QM9", root, folder),
    "molpcba": molpcba,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-root", type=Path, default=os.environ.get("SOFTPERM_DATA"))
    parser.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--out", type=Path, help="file for the results as JSON")
    chosen = parser.parse_args()
    if chosen.data_root is None:
        parser.error("name a data root, or set SOFTPERM_DATA")
    results: dict = {"cores": len(os.sched_getaffinity(0)), "load_before": os.getloadavg()[0]}
    for name in chosen.only:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            results[name] = STUDIES[name](Path(chosen.data_root).resolve(), Path(folder))
            results[name]["load_after"] = os.getloadavg()[0]
            print(
                name, f"{time.perf_counter() - begin:.0f} s", json.dumps(results[name]), flush=True
            )
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
