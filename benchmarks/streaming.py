"""Speed and memory of ``softperm predict`` and ``embed`` on a large table of SMILES.

    python benchmarks/streaming.py --rows 10000 100000 1000000 --out results/streaming/cpu.json
    python benchmarks/streaming.py --commands train --rows 437929 --epochs 1 --out training.json

The table repeats the molecules of ogbg-molhiv with a few atoms put before them, where RDKit accepts
the result. Memory is the sum over all processes (proportional set size), once a second;
the time of RDKit to parse the same SMILES in as many processes is the floor. Processor time is that
of all processes together. ``train`` learns 128 tasks, of which 40 % of the values are missing.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

PREFIXES = ("", "C", "CC", "O", "N", "CO", "CN", "F", "Cl", "CCC", "OC", "NC", "C=C", "C#C", "S",
            "CS", "BrC", "CCO", "CCN", "FC", "ClC", "OCC", "NCC", "CC(C)", "C(F)")  # fmt: skip

TASKS = 128

FLOOR = """
import sys
from rdkit import Chem, RDLogger
RDLogger.DisableLog("rdApp.*")
part, parts, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with open(path) as stream:
    next(stream)
    for number, line in enumerate(stream):
        if number % parts == part:
            Chem.MolFromSmiles(line.rstrip().split(",")[1])
"""


def molecules(root: Path) -> list[str]:
    """The SMILES of ogbg-molhiv."""
    with gzip.open(root / "ogbg-molhiv/mapping/mol.csv.gz", "rt") as stream:
        return [row["smiles"] for row in csv.DictReader(stream)]


def write_table(path: Path, smiles: list[str], rows: int, tasks: int) -> None:
    """A table of molecules that RDKit accepts, with names and binary targets."""
    from rdkit import Chem, RDLogger

    RDLogger.DisableLog("rdApp.*")
    texts = (prefix + text for prefix, text in itertools.product(PREFIXES, smiles))
    valid = (text for text in texts if Chem.MolFromSmiles(text) is not None)
    words, rng = np.array(["", "0", "1"]), np.random.default_rng(0)
    with path.open("w") as stream:
        stream.write(",".join(["id", "smiles", *(f"task{t}" for t in range(tasks))]) + "\n")
        for i, text in enumerate(itertools.islice(itertools.cycle(valid), rows)):
            targets = words[rng.choice(3, tasks, p=[0.4, 0.59, 0.01])]
            stream.write(",".join([f"m{i}", text, *targets]) + "\n")


def proportional_set_size(process: int) -> int:
    """Bytes of memory of a process on Linux, shared pages divided by the number of their users.

    The kernel's sum is read: psutil would add up the mappings, which takes a core's time from what
    is measured.
    """
    rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    (line,) = (line for line in rollup.splitlines() if line.startswith("Pss:"))
    return 1024 * int(line.split()[1])


def measure(commands: list[list[str]]) -> dict[str, object]:
    """Wall time, processor time and peak memory of commands that run at the same time."""
    began = time.monotonic()
    running = [subprocess.Popen(c, stdout=subprocess.DEVNULL, stderr=sys.stderr) for c in commands]
    times: dict[int, float] = {}
    trace = []
    while any(process.poll() is None for process in running):
        total = 0
        for process in running:
            try:
                parent = psutil.Process(process.pid)
                for each in [parent, *parent.children(recursive=True)]:
                    total += proportional_set_size(each.pid)
                    spent = each.cpu_times()
                    times[each.pid] = spent.user + spent.system
            except (psutil.Error, OSError):
                continue
        trace.append((round(time.monotonic() - began, 1), round(total / 1e6)))
        time.sleep(1)
    assert all(process.returncode == 0 for process in running)
    step = max(1, len(trace) // 200)
    return {
        "wall_s": round(time.monotonic() - began, 1),
        "processor_s": round(sum(times.values()), 1),
        "peak_mb": max(memory for _, memory in trace),
        "memory_mb": trace[::step],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000])
    parser.add_argument("--processes", type=int, nargs="+", default=[2])
    parser.add_argument("--commands", nargs="+", default=["floor", "predict", "embed"])
    parser.add_argument("--model", type=Path, help="model folder; trained on 2,000 by default")
    parser.add_argument("--epochs", type=int, default=1, help="of train")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SOFTPERM_DATA", "data")))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    smiles = molecules(args.data)
    args.out = args.out.resolve()
    folder = Path(tempfile.mkdtemp(dir=args.out.parent))
    model = args.model
    if model is None and args.commands != ["train"]:
        from softperm import PiGNNClassifier
        from softperm.settings import PAPER

        model = folder / "model"
        few = smiles[:2000]
        quick = {"latent_vertices": 20, "epochs": 2, "progress": False}
        paper = PiGNNClassifier(**{**PAPER, **quick})
        paper.fit(few, ["N" in text for text in few]).save(model)
    records = []
    for rows in args.rows:
        table = folder / f"{rows}.csv"
        write_table(table, smiles, rows, TASKS if "train" in args.commands else 0)
        for processes, command in itertools.product(args.processes, args.commands):
            if command == "floor":
                parts = [[str(part), str(processes), str(table)] for part in range(processes)]
                commands = [[sys.executable, "-c", FLOOR, *words] for words in parts]
            elif command == "train":
                words = ["train", table, "--out", folder / "run", "--epochs", args.epochs]
                words += ["--task", "multilabel", "--device", "cpu"]
                words += ["--target", ",".join(f"task{t}" for t in range(TASKS))]
                commands = [[sys.executable, "-m", "softperm", *map(str, words)]]
            else:
                words = [command, model, table, "--out", folder / f"{command}-{rows}-{processes}"]
                words += ["--id-column", "id", "--processes", processes, "--device", "cpu"]
                commands = [[sys.executable, "-m", "softperm", *map(str, words)]]
            record = {"command": command, "rows": rows, "processes": processes}
            records.append({**record, **measure(commands)})
            args.out.write_text(json.dumps(records, indent=1) + "\n")
            print(
                json.dumps({k: v for k, v in records[-1].items() if k != "memory_mb"}), flush=True
            )


if __name__ == "__main__":
    main()
