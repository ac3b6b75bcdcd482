"""Kills commands at random moments, in processes that imported everything and fork each command.

A command is killed before its k-th change of a file, shortly after it, or after a random time; or
it is stopped for a while and continues. Run again, it must leave the files and the numbers that it
leaves without a kill, and what was finished before must still be there.

    python kills.py FOLDER --kills 9 [--seed 1] [--processes 1] [--counts FILE] [COMMAND …]

With ``--counts`` the printed lines are also appended to a file, and a later run with the same seed
continues after them.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
DONE = ("holds a finished run", "use --add to add graphs")  # the kill came after the last step
NETWORK = ("--epochs", "3", "--latent-vertices", "3", "--hidden", "4", "--batch-size", "8")
PROTOCOL = ("--folds", "2", "--epochs", "2", "--final-runs", "1", "--configurations", "1")
PART = 6  # kills of a command between two looks at the list of what is left to do
ROWS = 8  # graphs of a part of a table, so that a few graphs make three


@dataclass(frozen=True)
class Scenario:
    """A command that writes.

    Args:
        arguments: of ``softperm``, in which ``IN`` is the input folder and ``OUT`` the output.
        result: what the command leaves, as JSON values that are equal for equal numbers.
        check: raises unless a folder that a kill left is sound.
        start: name of the input that is in the output folder before, and its name there.
        finished: texts of finished work, which a repeated command must not compute again.
        needs: package without which the command cannot run.
        rare: whether it takes so long that it is killed a twentieth as often as the others.
    """

    arguments: str
    result: Callable[[Path], Any]
    check: Callable[[Path], None] = lambda folder: None
    start: tuple[str, str] | None = None
    finished: Callable[[Path], set[str]] = lambda folder: set()
    needs: str | None = None
    rare: bool = False


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests(*names: str) -> Callable[[Path], list[str]]:
    """A function that gives the SHA-256 of files in a folder."""
    return lambda folder: [digest(folder / name) for name in names]


def arrays(name: str) -> Callable[[Path], str]:
    """A function that gives the SHA-256 of the arrays of a ``.npz``, whose bytes hold the time."""

    def content(folder: Path) -> str:
        with np.load(folder / name) as found:
            parts = [key.encode() + found[key].tobytes() for key in sorted(found.files)]
        return hashlib.sha256(b"".join(parts)).hexdigest()

    return content


def trained(folder: Path) -> Any:
    """Weights, curve and scores of a run."""
    result = json.loads((folder / "run" / "result.json").read_text())
    result = {k: v for k, v in result.items() if k not in ("run", "model", "seconds")}
    curve = [row.rsplit(",", 1)[0] for row in (folder / "run" / "curve.csv").read_text().split()]
    return [digest(folder / "run" / "model" / "model.safetensors"), result, curve]


def evaluated(folder: Path) -> Any:
    """The records of an evaluation and its table."""
    from softperm.lab.records import find_records

    records = sorted(record.digest for record in find_records(folder / "run" / "records"))
    return [records, digest(folder / "run" / "table.csv")]


def record_lines(folder: Path) -> set[str]:
    """The finished trainings of an evaluation, with the seconds that they took."""
    files = (folder / "run" / "records").rglob("*.jsonl")
    return {line for file in files for line in file.read_text().splitlines(keepends=True)}


def kept_best(folder: Path) -> Any:
    """An evaluation, and the model that it trained on all graphs."""
    (model,) = (folder / "run" / "best").rglob("model.safetensors")
    return [*evaluated(folder), digest(model)]


def prepared(folder: Path) -> Any:
    """The arrays of a prepared dataset."""
    from softperm.data.datasets.prepared import open_prepared

    (place,) = (folder / "cache" / "prepared").glob("TOY-*/manifest.json")
    found = open_prepared(place.parent)
    return [found.fingerprint, found.damaged_arrays()]


def searched(folder: Path) -> Any:
    """Answers of an index."""
    from softperm import GraphIndex

    index = GraphIndex.open(folder / "index")
    return [[hit.id, hit.distance] for hit in index.nearest(nx.path_graph(5), k=30).hits]


def old_index(folder: Path) -> None:
    """The index that was there before, or the new one, answers."""
    assert len(searched(folder)) in (12, 24)


def saved_model(folder: Path) -> None:
    """The model that was there before, or the new one, can be used."""
    from softperm import PiGNNClassifier

    estimator = PiGNNClassifier.load(folder / "model")
    assert estimator.classes_.tolist() in ([0, 1], ["a", "b"])
    estimator.predict([nx.path_graph(3)])


def vectors(folder: Path) -> Any:
    """Answers of an index and of its vectors."""
    from softperm import GraphIndex
    from softperm.search import VectorIndex

    found = VectorIndex.open(folder / "index" / "vectors", GraphIndex.open(folder / "index"))
    nearest = found.nearest(nx.path_graph(5), k=30).hits
    return [searched(folder), [[hit.id, round(hit.distance, 4)] for hit in nearest]]


def tables(folder: Path) -> list[str]:
    """The parts of a table in a folder."""
    return [digest(path) for path in sorted((folder / "p").glob("*.parquet"))]


def studied(folder: Path) -> Any:
    """Figures of a study."""
    files = (path for path in (folder / "study").iterdir() if path.suffix in (".json", ".npy"))
    return [[path.name, digest(path)] for path in sorted(files)]


EVALUATION = f"evaluate --data IN/g.jsonl --out OUT/run {' '.join(PROTOCOL)}"
SCENARIOS: dict[str, Scenario] = {
    "train": Scenario(f"train IN/g.jsonl --out OUT/run {' '.join(NETWORK)}", trained),
    "train on a dataset": Scenario(
        f"train --dataset TOY --data-root IN/root --out OUT/run {' '.join(NETWORK)}", trained
    ),
    "evaluate": Scenario(
        f"{EVALUATION} --models pi-gnn,structure-free", evaluated, finished=record_lines
    ),
    "evaluate --keep-best": Scenario(
        f"{EVALUATION} --models pi-gnn --keep-best", kept_best, finished=record_lines
    ),
    "distance": Scenario("distance IN/g.jsonl --out OUT/d.npz", arrays("d.npz")),
    "data get": Scenario("data get TOY --data-root IN/root", prepared),
    "data show": Scenario(
        "data show TOY --data-root IN/root --out OUT/pictures",
        digests("pictures/TOY-graphs.png", "pictures/TOY-histograms.png"),
    ),
    "index": Scenario("index IN/g.jsonl --out OUT/index", searched),
    "index --add": Scenario(
        "index IN/g.jsonl --out OUT/index --add", searched, old_index, ("index", "index")
    ),
    "index --vectors": Scenario(
        "index IN/g.jsonl --out OUT/index --vectors IN/model", vectors, needs="faiss"
    ),
    "search": Scenario(
        "search IN/index IN/g.jsonl -k 3 --out OUT/h.csv --matchings OUT/m.json --picture "
        "OUT/h.png",
        digests("h.csv", "m.json", "h.png"),
    ),
    "predict": Scenario("predict IN/model IN/g.jsonl --out OUT/p.csv", digests("p.csv")),
    "predict a folder": Scenario(
        "predict IN/model IN/g.jsonl --out OUT/p --processes 1", tables, needs="pyarrow"
    ),
    "predict on a dataset": Scenario(
        "predict IN/model TOY --data-root IN/root --out OUT/p.jsonl --processes 1",
        digests("p.jsonl"),
    ),
    "embed": Scenario("embed IN/model IN/g.jsonl --out OUT/e.npz --processes 1", arrays("e.npz")),
    "explain": Scenario(
        "explain IN/model IN/g.jsonl --out OUT/x.csv --graphs 1,2 --pictures OUT/x --deletion "
        "OUT/d.csv",
        lambda folder: [[path.name, digest(path)] for path in sorted(folder.rglob("*.[cp]*"))],
    ),
    "explore": Scenario(
        "explore IN/model IN/g.jsonl --out OUT/x.html --explain 3", digests("x.html")
    ),
    "explore --export": Scenario(
        "explore IN/model IN/g.jsonl --out OUT/x.html --export OUT/x.parquet --explain 0",
        digests("x.html", "x.parquet"),
        needs="pyarrow",
    ),
    "push --card": Scenario(
        "push IN/model somebody/something --card OUT/card.md", digests("card.md")
    ),
    "report": Scenario(
        "report IN/evaluation --out OUT/r --collect",
        digests("r/table.csv", "r/table.md", "r/records.jsonl.gz"),
    ),
    "study synthetic": Scenario(
        "study synthetic --seeds 1 --epochs 1 --out OUT/study", studied, rare=True
    ),
    "study runtime": Scenario(
        "study runtime --epochs 1 --naive-epochs 1 --out OUT/study",
        lambda folder: files_in(folder / "study"),
        rare=True,
    ),
    "save": Scenario(
        "save IN/model OUT/model", digests("model/model.safetensors"), saved_model, ("old", "model")
    ),
}


def make_inputs(inputs: Path, names: str) -> None:
    """Graphs and a data root; a model, an index and an evaluation if they are among the names."""
    kinds = (nx.cycle_graph, nx.complete_graph)
    graphs = [kinds[i % 2](4 + i // 2 % 4) for i in range(24)]
    rows = [
        json.dumps({**nx.node_link_data(g, edges="links"), "y": "ab"[i % 2]})
        for i, g in enumerate(graphs)
    ]
    inputs.mkdir(parents=True)
    (inputs / "g.jsonl").write_text("\n".join(rows) + "\n")
    (inputs / "half.jsonl").write_text("\n".join(rows[:12]) + "\n")
    raw = inputs / "root" / "tu" / "TOY"
    raw.mkdir(parents=True)
    whole = nx.disjoint_union_all(graphs).to_directed()
    (raw / "TOY_A.txt").write_text("".join(f"{u + 1}, {v + 1}\n" for u, v in whole.edges))
    owners = [i + 1 for i, graph in enumerate(graphs) for _ in graph]
    (raw / "TOY_graph_indicator.txt").write_text("".join(f"{i}\n" for i in owners))
    (raw / "TOY_graph_labels.txt").write_text("1\n2\n" * 12)
    if "IN/model" in names:
        from softperm import PiGNNClassifier

        settings: dict[str, Any] = {"epochs": 2, "latent_vertices": 3, "hidden": 4}
        settings["progress"] = False
        PiGNNClassifier(**settings).fit(graphs, ["a", "b"] * 12).save(inputs / "model")
        PiGNNClassifier(**settings).fit(graphs, [0, 1] * 12).save(inputs / "old")
    for command, result, name in (
        ("index IN/half.jsonl --out OUT/index", "index", "index"),
        (f"{EVALUATION} --models pi-gnn", "run", "evaluation"),
    ):
        if name not in names:
            continue
        status = run(command.split(), inputs, inputs / "first")
        assert status == 0, (inputs / "log").read_text()
        (inputs / "first" / result).rename(inputs / name)


@dataclass(frozen=True)
class Attack:
    """What happens to a command.

    Args:
        change: number of the change of a file at which the command is killed; None for a time.
        seconds: when it is killed, since its start or since that change.
        stopped: seconds for which it is stopped in place of being killed, as on a machine that
            suspends.
    """

    change: int | None
    seconds: float
    stopped: float | None = None


def call(arguments: list[str], folder: Path, log: Path, attack: Attack | None) -> int:
    """Runs a command in this process, which a change of a file may kill."""
    os.environ["SOFTPERM_CACHE"] = str(folder / "cache")
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    count, within = 0, str(folder)

    def kill() -> None:
        time.sleep(attack.seconds if attack else 0)
        os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, args: tuple) -> None:
        nonlocal count
        if event == "open":
            if not (isinstance(args[2], int) and args[2] & WRITING):
                return
        elif event not in CHANGES:
            return
        if isinstance(args[0], int) or within not in os.fsdecode(args[0]):
            return
        if attack is not None and count == attack.change:
            threading.Thread(target=kill).start() if attack.seconds else kill()
        count += 1

    sys.addaudithook(watch)
    from softperm.estimators import streaming

    streaming.ROWS = ROWS
    if arguments[0] == "save":
        from softperm import PiGNNClassifier

        PiGNNClassifier.load(arguments[1]).save(arguments[2])
        code = 0
    else:
        from softperm.cli import app

        code = app(arguments, standalone_mode=False) or 0
    (log.parent / "changes").write_text(str(count))
    names = (name for name in sys.modules if name.startswith("softperm."))
    (log.parent / "modules").write_text("\n".join(names))
    return code


def run(command: Sequence[str], inputs: Path, folder: Path, attack: Attack | None = None) -> int:
    """The exit status of a forked command; negative if it was killed."""
    arguments = [
        word.replace("IN/", f"{inputs}/").replace("OUT/", f"{folder}/") for word in command
    ]
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = call(arguments, folder, folder.parent / "log", attack)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    if attack is not None and attack.change is None:
        wait(child, attack.seconds)
        if attack.stopped is None:
            os.kill(child, signal.SIGKILL)
        else:
            os.kill(child, signal.SIGSTOP)
            time.sleep(attack.stopped)
            os.kill(child, signal.SIGCONT)
    _, status = os.waitpid(child, 0)
    if attack is None and (modules := folder.parent / "modules").exists():
        for name in modules.read_text().split():
            importlib.import_module(name)  # once here, and not in each of the next forks
    return os.waitstatus_to_exitcode(status)


def wait(child: int, seconds: float) -> None:
    """Waits for a time, or until a process has ended, which stays for ``waitpid``."""
    end = time.monotonic() + seconds
    ended = os.WEXITED | os.WNOWAIT | os.WNOHANG
    while time.monotonic() < end and os.waitid(os.P_PID, child, ended) is None:
        time.sleep(min(0.01, seconds))


def files_in(folder: Path) -> list[str]:
    """Names of all files but locks, without the random parts of names."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(re.sub("[0-9a-f]{32}", "…", n) for n in found if not n.endswith(".lock"))


def attack(base: Path, name: str, count: int, seed: str) -> dict[str, Any]:
    """Kills one command many times.

    Returns:
        Numbers of kills, of stops, of commands that had ended before their kill, of repeated
        commands with the same result; and a text for each loss.
    """
    rng, scenario, inputs = random.Random(seed), SCENARIOS[name], base / "inputs"
    place = base / seed.replace(" ", "-")
    folder, command = place / "out", scenario.arguments.split()
    counts: dict[str, Any] = dict.fromkeys(("kills", "stops", "ended", "identical"), 0)
    about, losses = {"command": name, "seed": seed}, []

    def fresh() -> None:
        shutil.rmtree(place, ignore_errors=True)
        folder.mkdir(parents=True)
        if scenario.start is not None:
            shutil.copytree(inputs / scenario.start[0], folder / scenario.start[1])

    def said() -> str:
        log = place / "log"  # missing if the command was killed before it opened it
        return log.read_text()[-2000:] if log.exists() else ""

    fresh()
    started = time.monotonic()
    if run(command, inputs, folder) != 0:
        return {**about, **counts, "changes": 0, "losses": [f"not killed: {said()}"]}
    duration = time.monotonic() - started
    expected = [scenario.result(folder), files_in(folder)]
    changes = int((place / "changes").read_text())

    def one() -> Attack:
        kind = rng.random()
        if kind < 0.05:
            return Attack(None, rng.uniform(0, duration), stopped=rng.uniform(0, 2))
        if kind < 0.35:
            return Attack(None, rng.uniform(0, duration))
        delay = rng.choice([0.0, 0.0, rng.uniform(0, 0.01)])
        return Attack(rng.randrange(changes), delay)

    while counts["kills"] < count and len(losses) < 3:
        fresh()
        try:
            finished: set[str] = set()
            for _ in range(rng.choice([1, 1, 2])):  # a run may be killed twice
                attack = one()
                status = run(command, inputs, folder, attack)
                counts["kills"] += status == -signal.SIGKILL
                counts["stops"] += attack.stopped is not None
                counts["ended"] += status == 0
                ended = any(words in said() for words in DONE)
                assert status in (0, -signal.SIGKILL) or (status == 2 and ended), said()
                scenario.check(folder)
                finished |= scenario.finished(folder)
            status = run(command, inputs, folder)
            assert status == 0 or any(words in said() for words in DONE), said()
            found = [scenario.result(folder), files_in(folder)]
            assert found == expected, f"{found} instead of {expected}"
            assert finished <= scenario.finished(folder), "a finished training was repeated"
            counts["identical"] += 1
        except Exception as problem:
            losses.append(f"{attack}: {type(problem).__name__}: {str(problem)[:3000]}")
    shutil.rmtree(place, ignore_errors=True)
    return {**about, **counts, "changes": changes, "losses": losses}


def available(name: str) -> bool:
    """Whether the packages that a command needs are installed."""
    needed = SCENARIOS[name].needs
    return needed is None or importlib.util.find_spec(needed) is not None


def share(name: str, kills: int) -> int:
    """How often a command is killed if a usual one is killed so many times."""
    return -(-kills // (20 if SCENARIOS[name].rare else 1))


def main() -> None:
    """Kills each command so many times and prints lines of JSON, several for each command."""
    import warnings

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("commands", nargs="*", default=[*filter(available, SCENARIOS)])
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--counts", type=Path, default=Path(os.devnull))
    options = parser.parse_intermixed_args()
    warnings.simplefilter("ignore")
    os.environ.pop("SOFTPERM_DATA", None)
    chosen = [SCENARIOS[name] for name in options.commands]
    names = " ".join(f"{each.arguments} {each.start}" for each in chosen)
    make_inputs(options.folder / "inputs", names.replace("--data IN/", ""))
    kills = {name: share(name, options.kills) for name in options.commands}
    parts = [(n, k) for k in range(0, options.kills, PART) for n in kills if k < kills[n]]
    before = options.counts.read_text().splitlines() if options.counts.exists() else []
    done = {json.loads(line)["seed"] for line in before}
    parts = [(n, k) for n, k in parts if f"{options.seed} {n} {k}" not in done]
    context = multiprocessing.get_context("fork")
    parts.sort(key=lambda part: not SCENARIOS[part[0]].rare)
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        results = [
            pool.submit(
                attack, options.folder, n, min(PART, kills[n] - k), f"{options.seed} {n} {k}"
            )
            for n, k in parts
        ]
        with options.counts.open("a") as counts:
            for result in as_completed(results):
                print(line := json.dumps(result.result()), flush=True)
                counts.write(f"{line}\n")
                counts.flush()


if __name__ == "__main__":
    main()
