"""Kills commands at random moments, in a process that imported everything and forks each of them.

A command is killed before its k-th change of a file, or after some time. Run again, it must give
what it gives without a kill, and what was finished before must still be there.

    python kills.py FOLDER COUNT SEED [SCENARIO …]
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
DONE = ("holds a finished run", "use --add to add graphs")  # the kill came after the last step
FAST = ("--epochs", "3", "--latent-vertices", "3", "--hidden", "4", "--batch-size", "8")


@dataclass(frozen=True)
class Scenario:
    """A command that writes.

    Args:
        arguments: of ``softperm``, given the input folder and the folder to write to.
        result: what the command leaves, as JSON values that are equal for equal numbers.
        check: raises unless a folder that a kill left is sound.
    """

    arguments: Callable[[Path, Path], list[str]]
    result: Callable[[Path], Any]
    check: Callable[[Path, Path], None] = lambda inputs, folder: None


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def arrays(path: Path) -> str:
    """SHA-256 of the arrays of a ``.npz`` file, whose own bytes hold the time."""
    with np.load(path) as content:
        return hashlib.sha256(
            b"".join(name.encode() + content[name].tobytes() for name in sorted(content.files))
        ).hexdigest()


def trained(folder: Path) -> Any:
    """Weights, curve and scores of a run."""
    told = json.loads((folder / "run" / "result.json").read_text())
    told = {k: v for k, v in told.items() if k not in ("run", "model", "seconds")}
    curve = [row.rsplit(",", 1)[0] for row in (folder / "run" / "curve.csv").read_text().split()]
    leftovers = [p.name for p in folder.rglob("*.part")]
    return [digest(folder / "run" / "model" / "model.safetensors"), told, curve, leftovers]


def evaluated(folder: Path) -> Any:
    """The records of an evaluation and its table."""
    from softperm.lab.records import find_records

    records = sorted(record.digest for record in find_records(folder / "run" / "records"))
    leftovers = [p.name for p in folder.rglob("*.part")]
    return [records, digest(folder / "run" / "table.csv"), leftovers]


def prepared(folder: Path) -> Any:
    """The arrays of a prepared dataset."""
    (place,) = (folder / "cache" / "prepared").glob("TOY-*/manifest.json")
    from softperm.data.datasets.prepared import open_prepared

    found = open_prepared(place.parent)
    leftovers = [p.name for p in (folder / "cache").rglob("*.making")]
    return [found.fingerprint, found.damaged_arrays(), leftovers]


def searched(folder: Path) -> Any:
    """Answers of an index."""
    from softperm import GraphIndex

    index = GraphIndex.open(folder / "index")
    return [[hit.id, hit.distance] for hit in index.nearest(nx.path_graph(5), k=4).hits]


def saved_model(inputs: Path, folder: Path) -> None:
    """The model that was there before, or the new one, can be used."""
    from softperm import PiGNNClassifier

    estimator = PiGNNClassifier.load(folder / "model")
    assert estimator.classes_.tolist() in ([0, 1], ["a", "b"])
    estimator.predict([nx.path_graph(3)])


REPORT = ("table.csv", "table.md", "records.jsonl.gz")
SCENARIOS: dict[str, Scenario] = {
    "train": Scenario(
        lambda inputs, out: ["train", f"{inputs}/g.jsonl", "--out", f"{out}/run", *FAST], trained
    ),
    "evaluate": Scenario(
        lambda inputs, out: [
            "evaluate", "--data", f"{inputs}/g.jsonl", "--out", f"{out}/run", "--folds", "2",
            "--epochs", "2", "--final-runs", "1", "--configurations", "1", "--models",
            "pi-gnn,structure-free",
        ],
        evaluated,
    ),
    "distance": Scenario(
        lambda inputs, out: ["distance", f"{inputs}/g.jsonl", "--out", f"{out}/d.npz"],
        lambda folder: arrays(folder / "d.npz"),
    ),
    "data get": Scenario(
        lambda inputs, out: ["data", "get", "TOY", "--data-root", f"{inputs}/root"], prepared
    ),
    "index": Scenario(
        lambda inputs, out: ["index", f"{inputs}/g.jsonl", "--out", f"{out}/index"], searched
    ),
    "predict": Scenario(
        lambda inputs, out: [
            "predict", f"{inputs}/model", f"{inputs}/g.jsonl", "--out", f"{out}/p.csv",
        ],
        lambda folder: digest(folder / "p.csv"),
    ),
    "embed": Scenario(
        lambda inputs, out: [
            "embed", f"{inputs}/model", f"{inputs}/g.jsonl", "--out", f"{out}/e.npz",
        ],
        lambda folder: arrays(folder / "e.npz"),
    ),
    "report": Scenario(
        lambda inputs, out: ["report", f"{inputs}/evaluation", "--out", f"{out}/r", "--collect"],
        lambda folder: [digest(folder / "r" / n) for n in REPORT],
    ),
    "save": Scenario(
        lambda inputs, out: ["save", f"{inputs}/model", f"{out}/model"],
        lambda folder: digest(folder / "model" / "model.safetensors"),
        saved_model,
    ),
}  # fmt: skip


def make_inputs(inputs: Path) -> None:
    """Graphs, a data root, a model, and a finished evaluation."""
    from softperm import PiGNNClassifier

    kinds = (nx.cycle_graph, nx.complete_graph)
    graphs = [kinds[i % 2](4 + i // 2 % 4) for i in range(24)]
    rows = [
        json.dumps({**nx.node_link_data(g, edges="links"), "y": "ab"[i % 2]})
        for i, g in enumerate(graphs)
    ]
    inputs.mkdir(parents=True)
    (inputs / "g.jsonl").write_text("\n".join(rows) + "\n")
    raw = inputs / "root" / "tu" / "TOY"
    raw.mkdir(parents=True)
    (raw / "TOY_A.txt").write_text("1, 2\n2, 1\n3, 4\n4, 3\n")
    (raw / "TOY_graph_indicator.txt").write_text("1\n1\n2\n2\n")
    (raw / "TOY_graph_labels.txt").write_text("1\n2\n")
    settings: dict[str, Any] = {"epochs": 2, "latent_vertices": 3, "hidden": 4, "progress": False}
    PiGNNClassifier(**settings).fit(graphs, ["a", "b"] * 12).save(inputs / "model")
    PiGNNClassifier(**settings).fit(graphs, [0, 1] * 12).save(inputs / "old")


def call(arguments: list[str], folder: Path, log: Path, kill: int | None) -> None:
    """Runs a command in this process, which ends with it; kills itself before a change."""
    os.environ["SOFTPERM_CACHE"] = str(folder / "cache")
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    count, within = 0, str(folder)

    def watch(event: str, args: tuple) -> None:
        nonlocal count
        if event == "open":
            if not (isinstance(args[2], int) and args[2] & WRITING):
                return
        elif event not in CHANGES:
            return
        if isinstance(args[0], int) or within not in os.fsdecode(args[0]):
            return
        if count == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    sys.addaudithook(watch)
    if arguments[0] == "save":
        from softperm import PiGNNClassifier

        PiGNNClassifier.load(arguments[1]).save(arguments[2])
        code = 0
    else:
        from softperm.cli import app

        code = app(arguments, standalone_mode=False) or 0
    (folder.parent / "changes").write_text(str(count))
    os._exit(code)


def run(arguments: list[str], folder: Path, kill: int | None, seconds: float | None) -> int:
    """The exit status of a forked command; negative if it was killed."""
    log = folder.parent / "log"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            call(arguments, folder, log, kill)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def attack(base: Path, name: str, count: int, rng: random.Random) -> dict[str, Any]:
    """Kills one command many times.

    Raises:
        AssertionError: a kill lost something, or changed a result.
    """
    scenario, inputs = SCENARIOS[name], base / "inputs"
    place = base / name.replace(" ", "-")

    def fresh() -> Path:
        shutil.rmtree(place, ignore_errors=True)
        (place / "out").mkdir(parents=True)
        if name == "save":
            shutil.copytree(inputs / "old", place / "out" / "model")
        return place / "out"

    folder = fresh()
    arguments = scenario.arguments(inputs, folder)
    started = time.monotonic()
    status = run(arguments, folder, None, None)
    assert status == 0, (place / "log").read_text()[-2000:]
    duration = time.monotonic() - started
    expected, changes = scenario.result(folder), int((place / "changes").read_text())
    killed = finished = 0
    while killed < count:
        folder = fresh()
        for _ in range(rng.choice([1, 1, 2])):  # a run may be killed twice
            timed = rng.random() < 0.3
            status = run(
                arguments,
                folder,
                None if timed else rng.randrange(changes),
                rng.uniform(0, duration) if timed else None,
            )
            killed += status == -signal.SIGKILL
            finished += status == 0
            assert status in (0, 2, -signal.SIGKILL), (place / "log").read_text()[-2000:]
            scenario.check(inputs, folder)
        status = run(arguments, folder, None, None)
        said = (place / "log").read_text()
        assert status == 0 or any(words in said for words in DONE), f"{name}: {said[-2000:]}"
        found = scenario.result(folder)
        assert found == expected, f"{name}, kill {killed}: {found} instead of {expected}"
    return {"kills": killed, "finished": finished, "changes": changes}


def main(base: Path, count: int, seed: int, names: list[str]) -> None:
    """Kills each command ``count`` times and prints how often."""
    import warnings

    warnings.simplefilter("ignore")
    os.environ.pop("SOFTPERM_DATA", None)
    inputs = base / "inputs"
    if not inputs.exists():
        make_inputs(inputs)
    if "report" in names and not (inputs / "evaluation").exists():
        warm = SCENARIOS["evaluate"].arguments(inputs, base / "warm")
        (base / "warm").mkdir()
        assert run(warm, base / "warm", None, None) == 0, (base / "log").read_text()
        (base / "warm" / "run").rename(inputs / "evaluation")
    for name in names:
        rng = random.Random(f"{seed} {name}")
        print(json.dumps({"command": name, **attack(base, name, count, rng)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or list(SCENARIOS))
