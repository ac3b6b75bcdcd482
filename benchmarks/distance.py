"""Exact Frobenius distances: all pairs of the distance study, and of random 12-vertex graphs.

    python benchmarks/distance.py [--out distance.json] [--networkx-pairs 10]

Times are of one run each after compilation, on all cores. NetworkX's exact graph edit distance,
which counts edges on which the best alignment disagrees (half the squared Frobenius distance when
vertices are free to insert and delete), gets a few of the same pairs beside it, each with a
time limit: it stops with the best value found, which may not be the least.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import networkx as nx
import numpy as np

from softperm.data.datasets.synthetic import distance_study
from softperm.data.graphs import as_graphs
from softperm.distance import frobenius_intervals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networkx-pairs", type=int, default=10)
    parser.add_argument("--networkx-limit", type=float, default=5.0, help="seconds for one pair")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    frobenius_intervals(as_graphs([nx.path_graph(4), nx.cycle_graph(5), nx.star_graph(9)]))
    loads = {"191 graphs of the study": distance_study(), "61 random graphs": random_graphs()}
    report = {"machine": f"{platform.machine()}, Python {platform.python_version()}", "rows": []}
    for name, graphs in loads.items():
        row = measure(name, graphs, options)
        report["rows"].append(row)
        print(json.dumps(row, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=2) + "\n")


def random_graphs(count: int = 61, vertices: int = 12) -> list:
    """1,830 pairs of Erdős–Rényi graphs with edge probabilities from sparse to dense."""
    rng = np.random.default_rng(0)
    made = [
        nx.gnp_random_graph(vertices, rng.uniform(0.2, 0.8), seed=int(rng.integers(2**31)))
        for _ in range(count)
    ]
    return as_graphs(made)


def measure(name: str, graphs: list, options) -> dict:
    """Time of all pairs, and of NetworkX on the first few that are not copies."""
    started = time.perf_counter()
    found = frobenius_intervals(graphs)
    seconds = time.perf_counter() - started
    first, second = np.triu_indices(len(graphs), 1)
    rng = np.random.default_rng(1)
    apart = np.flatnonzero(found.distance[first, second] > 0)
    chosen = rng.choice(apart, size=options.networkx_pairs, replace=False)
    spent, right = [], 0
    for k in chosen:
        a, b = (to_networkx(graphs[i]) for i in (first[k], second[k]))
        started = time.perf_counter()
        value = edit_distance(a, b, options.networkx_limit)
        spent.append(time.perf_counter() - started)
        right += value == round(found.distance[first[k], second[k]] ** 2 / 2)
    return {
        "load": name,
        "pairs": len(first),
        "proven": int(found.exact[first, second].sum()),
        "seconds": seconds,
        "milliseconds_per_pair": 1e3 * seconds / len(first),
        "networkx_pairs": len(chosen),
        "networkx_limit": options.networkx_limit,
        "networkx_seconds_per_pair": float(np.mean(spent)),
        "networkx_found_the_least": right,
    }


def to_networkx(graph) -> nx.Graph:
    made = nx.empty_graph(graph.num_nodes)
    made.add_edges_from(graph.edge_index.T.tolist())
    return made


def edit_distance(a: nx.Graph, b: nx.Graph, limit: float) -> int:
    """Edges inserted or deleted by the best edit path found in time; vertices cost nothing."""
    free = {"node_del_cost": lambda _: 0, "node_ins_cost": lambda _: 0}
    value = nx.graph_edit_distance(a, b, timeout=limit, **free)
    return -1 if value is None else round(value)


if __name__ == "__main__":
    main()
