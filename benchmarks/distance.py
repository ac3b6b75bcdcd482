"""Exact distances of whole collections, beside NetworkX's graph edit distance on the same pairs.

    python benchmarks/distance.py [--sample 12] [--timeout 5] [--out distance.json]

Four collections: the 191 graphs of the distance study (18,336 pairs, with each graph and itself),
61 sparse and 61 denser random graphs of 12 vertices (1,830 pairs), and the study grown to 12
vertices. Compilation is done before the clock
starts. Wall time counts on an idle machine; processor time, summed over threads, on any.

What is comparable: with edges that cost 1 to insert or delete and vertices that cost nothing, the
graph edit distance is the number of edges on which the best alignment disagrees, which is half the
squared Frobenius distance. Both programs solve this one problem. NetworkX is given a sample of the
pairs with a time-out each; where it runs out of time its answer is an upper bound without a proof,
and the time it would have taken is not known, so ratios are lower bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numba
import numpy as np
from torch_geometric.data import Data
from torch_geometric.utils import to_networkx

from softperm.datasets.synthetic import distance_study
from softperm.distance import frobenius_distance, frobenius_intervals
from softperm.distance.matrix import available_processors
from softperm.graphs import as_graphs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=12, help="pairs given to NetworkX")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds it has for each")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    frobenius_intervals(as_graphs([nx.path_graph(3), nx.cycle_graph(4)]))  # compiles
    collections = {
        "distance study": distance_study(),
        "random, 12 vertices, p = 0.3": random_graphs(0.3),
        "random, 12 vertices, p = 0.5": random_graphs(0.5),
        "study grown to 12 vertices": distance_study(max_vertices=12),
    }
    rows = [measure(name, graphs, options) for name, graphs in collections.items()]
    show(rows)
    report = {"machine": machine(), "options": vars(options) | {"out": None}, "results": rows}
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=2) + "\n")


def random_graphs(density: float) -> list[Data]:
    return as_graphs([nx.gnp_random_graph(12, density, seed=s) for s in range(61)])


def measure(name: str, graphs: list[Data], options: argparse.Namespace) -> dict:
    """The whole matrix on one thread and on all, then a sample of pairs by both programs."""
    everything = timed(lambda: frobenius_intervals(graphs))
    alone = timed(lambda: frobenius_intervals(graphs, workers=1))
    found = everything["result"]
    count = len(graphs)
    row = {
        "collection": name,
        "graphs": count,
        "pairs": count * (count - 1) // 2,
        "pairs_with_itself": count,  # the paper counts these too
        "proven": bool(found.exact.all()),
        "threads": available_processors(),
        "wall_s": everything["wall_s"],
        "processor_s": everything["processor_s"],
        "one_thread_wall_s": alone["wall_s"],
        "one_thread_processor_s": alone["processor_s"],
    }
    return row | beside_networkx(graphs, found.distance, options.sample, options.timeout)


def timed(work: Callable) -> dict:
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    return {
        "result": result,
        "wall_s": time.perf_counter() - wall,
        "processor_s": time.process_time() - processor,
    }


def beside_networkx(graphs: list[Data], distances: np.ndarray, sample: int, timeout: float) -> dict:
    """Both programs on the same random pairs; raises if they disagree where both are done."""
    rng = np.random.default_rng(0)
    ours, theirs, finished, worse = 0.0, 0.0, 0, 0
    for _ in range(sample):
        i, k = rng.choice(len(graphs), size=2, replace=False)
        one, other = (to_networkx(graphs[g], to_undirected=True) for g in (i, k))
        ours += timed(lambda i=i, k=k: frobenius_distance(graphs[i], graphs[k]))["processor_s"]
        run = timed(lambda one=one, other=other: edit_distance(one, other, timeout))
        theirs += run["processor_s"]
        disagreements = round(distances[i, k] ** 2 / 2)
        in_time = run["wall_s"] < timeout
        if run["result"] < disagreements or (in_time and run["result"] != disagreements):
            raise SystemExit(f"pair ({i}, {k}): {run['result']} edits, {disagreements} expected")
        finished += in_time
        worse += run["result"] > disagreements
    return {
        "sampled_pairs": sample,
        "sample_ours_s": ours,
        "sample_networkx_s": theirs,
        "networkx_finished": finished,
        "networkx_not_optimal": worse,
        "ratio_at_least": theirs / ours,
    }


def edit_distance(one: nx.Graph, other: nx.Graph, timeout: float) -> int:
    free = {"node_del_cost": lambda _: 0, "node_ins_cost": lambda _: 0}
    return round(nx.graph_edit_distance(one, other, timeout=timeout, **free))


def show(rows: list[dict]) -> None:
    head = ("collection", "pairs", "proven", "wall s", "proc. s", "1 thread s", "NetworkX")
    line = "{:<30}{:>12}{:>8}{:>9}{:>9}{:>12}  {}"
    print(line.format(*head))
    for row in rows:
        beside = (
            f"{row['networkx_finished']} of {row['sampled_pairs']} pairs in time, "
            f"{row['networkx_not_optimal']} not optimal, "
            f"at least {row['ratio_at_least']:.0f} times slower"
        )
        figures = (f"{row[key]:.2f}" for key in ("wall_s", "processor_s", "one_thread_wall_s"))
        proven = "all" if row["proven"] else "not all"
        pairs = f"{row['pairs']} + {row['pairs_with_itself']}"
        print(line.format(row["collection"], pairs, proven, *figures, beside))


def machine() -> dict[str, str | int]:
    return {
        "processor": platform.processor() or platform.machine(),
        "processors": available_processors(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "numba": numba.__version__,
        "networkx": nx.__version__,
    }


if __name__ == "__main__":
    main()
