"""Structural features of whole collections against loops over graphs, in one run.

    python benchmarks/features.py --root DATA [--out features.json] [NAME …]

Each feature is also computed graph by graph as one would with NetworkX (triangles, cores, rings,
neighbours, colours) or dense NumPy (walks, heat), and compared. For walks and heat both powers or
exponentials of a matrix and its eigenvectors are tried, and the faster loop counts. Loops run over
graphs that are built beforehand, which is not timed, and BLAS has one thread, which is fastest for
small matrices. Both ways take turns; the shortest of several times counts. Processor time, of all
threads, is shown beside elapsed time: it says more while other programs run.
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
import numpy as np
import torch
from scipy.linalg import expm
from threadpoolctl import threadpool_limits

from softperm.data.features import (
    Adjacency,
    core_number,
    count_triangles,
    heat_kernel,
    heat_steps,
    neighbour_degrees,
    return_probabilities,
    rings,
    wl_colours,
)
from softperm.data.formats.tu import TUArrays, read_tu
from softperm.parallel import threads

WALKS, HEAT, RINGS, ROUNDS = 16, (1, 4), 8, 3
SECONDS = ["loop_s", "loop_cpu_s", "softperm_s", "softperm_cpu_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["NCI1", "PROTEINS", "IMDB-BINARY"])
    parser.add_argument("--root", type=Path, default=os.environ.get("SOFTPERM_DATA"))
    parser.add_argument("--only", nargs="*", help="features to measure; all by default")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    if options.root is None:
        parser.error("say where the datasets are, with --root or SOFTPERM_DATA")
    rows = []
    for name in options.names:
        arrays = read_tu(Path(options.root) / "tu" / f"{name}.zip")
        rows += measure(arrays, options.repeats, options.only)
    show(rows)
    if options.out is not None:
        report = {"machine": machine(), "results": rows}
        options.out.write_text(json.dumps(report, indent=2) + "\n")


def measure(arrays: TUArrays, repeats: int, only: list[str] | None) -> list[dict]:
    """Seconds of both ways and their ratio, for each feature and for all together."""
    shift = np.repeat(arrays.ptr[:-1], np.diff(arrays.edge_ptr))
    edge_index = torch.from_numpy(arrays.edge_index.astype(np.int64) + shift)
    ptr = torch.from_numpy(arrays.ptr)
    adjacency, graphs = Adjacency.of(edge_index, ptr), networkx_graphs(arrays)
    matrices = [nx.to_numpy_array(graph, nodelist=range(len(graph))) for graph in graphs]
    label = arrays.label
    rows = []
    for name, ours, theirs, given in (
        ("triangles", lambda: count_triangles(adjacency)[:, None], [triangles_of], graphs),
        ("core", lambda: core_number(adjacency)[:, None], [cores_of], graphs),
        ("neighbours", lambda: neighbour_degrees(adjacency), [neighbours_of], graphs),
        ("rings", lambda: rings(adjacency, RINGS), [rings_of], graphs),
        ("walks", lambda: return_probabilities(adjacency, WALKS), WALK_LOOPS, matrices),
        ("heat", lambda: heat_of_collection(adjacency), HEAT_LOOPS, matrices),
        ("colours", lambda: wl_colours(adjacency, ROUNDS, label=label), [colours_of], graphs),
    ):
        if only and name not in only:
            continue
        row = {"dataset": arrays.name, "feature": name, **in_turns(ours, theirs, given, repeats)}
        found = ours()
        for of_graph in theirs:
            check(arrays.name, name, found, np.concatenate([*map(of_graph, given)]))
        rows.append(row)
    every = {k: sum(row[k] for row in rows) for k in SECONDS}
    rows.append({"dataset": arrays.name, "feature": "all", **every})
    return [
        {
            **row,
            "ratio": row["loop_s"] / row["softperm_s"],
            "cpu_ratio": row["loop_cpu_s"] / row["softperm_cpu_s"],
        }
        for row in rows
    ]


def networkx_graphs(arrays: TUArrays) -> list[nx.Graph]:
    graphs = []
    for i in range(len(arrays)):
        edges = arrays.edge_index[:, arrays.edge_ptr[i] : arrays.edge_ptr[i + 1]].T.tolist()
        graph = nx.empty_graph(int(arrays.ptr[i + 1] - arrays.ptr[i]))
        graph.add_edges_from(edges)
        rows = slice(arrays.ptr[i], arrays.ptr[i + 1])
        labels = np.zeros((len(graph), 1)) if arrays.label is None else arrays.label[rows]
        nx.set_node_attributes(graph, {v: str(row) for v, row in enumerate(labels)}, "label")
        graphs.append(graph)
    return graphs


def triangles_of(graph: nx.Graph) -> np.ndarray:
    return np.array([*nx.triangles(graph).values()])[:, None]


def cores_of(graph: nx.Graph) -> np.ndarray:
    return np.array([*nx.core_number(graph).values()])[:, None]


def neighbours_of(graph: nx.Graph) -> np.ndarray:
    mean = nx.average_neighbor_degree(graph)
    most = {v: max((graph.degree[u] for u in graph[v]), default=0) for v in graph}
    return np.array([[mean[v], most[v]] for v in graph])


def rings_of(graph: nx.Graph) -> np.ndarray:
    count = np.zeros((len(graph), RINGS - 3), dtype=np.int64)
    for cycle in nx.chordless_cycles(graph, length_bound=RINGS):
        if len(cycle) > 3:
            count[cycle, len(cycle) - 4] += 1
    return count


def walks_of(a: np.ndarray) -> np.ndarray:
    step = a / np.maximum(a.sum(1, keepdims=True), 1)
    power, columns = np.eye(len(a)), []
    for _ in range(WALKS):
        power = power @ step
        columns.append(power.diagonal())
    return np.stack(columns, axis=1)


def walks_by_eigenvectors(a: np.ndarray) -> np.ndarray:
    value, vector = np.linalg.eigh(normalised(a))
    return vector**2 @ value[:, None] ** np.arange(1, WALKS + 1)


def heat_of(a: np.ndarray) -> np.ndarray:
    laplacian = np.eye(len(a)) - normalised(a)
    return np.stack([expm(-t * laplacian).diagonal() - np.exp(-t) for t in HEAT], axis=1)


def heat_by_eigenvectors(a: np.ndarray) -> np.ndarray:
    value, vector = np.linalg.eigh(np.eye(len(a)) - normalised(a))
    return vector**2 @ np.exp(-value[:, None] * HEAT) - np.exp(-np.array(HEAT))


def normalised(a: np.ndarray) -> np.ndarray:
    scale = 1 / np.sqrt(np.maximum(a.sum(1), 1))
    return scale[:, None] * a * scale


WALK_LOOPS = [walks_of, walks_by_eigenvectors]
HEAT_LOOPS = [heat_of, heat_by_eigenvectors]


def heat_of_collection(adjacency: Adjacency) -> np.ndarray:
    return heat_kernel(return_probabilities(adjacency, heat_steps(max(HEAT))), HEAT)


def colours_of(graph: nx.Graph) -> np.ndarray:
    found = nx.weisfeiler_lehman_subgraph_hashes(
        graph, node_attr="label", iterations=ROUNDS, include_initial_labels=True
    )
    return np.array([found[v] for v in graph])


def in_turns(ours: Callable, theirs: list[Callable], graphs: list, repeats: int) -> dict:
    """Shortest times of a call, and of the fastest loop over all graphs."""
    ours()  # compiles, or loads what was compiled before
    taken, loops = [], {of_graph: [] for of_graph in theirs}
    for _ in range(repeats):
        for of_graph in theirs:
            with threadpool_limits(1, user_api="blas"):
                loops[of_graph].append(timed(lambda of=of_graph: [of(graph) for graph in graphs]))
        taken += [timed(ours) for _ in range(5)]
    fastest = min((np.min(times, axis=0) for times in loops.values()), key=lambda t: t[1])
    return dict(zip(SECONDS, [*fastest.tolist(), *np.min(taken, axis=0).tolist()], strict=True))


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Elapsed seconds and processor seconds of a call."""
    start, cpu_start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu_start


def check(dataset: str, feature: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Exits unless both results agree; colours need only divide the vertices in the same way."""
    if feature == "colours":
        pairs = zip(found.T.tolist(), expected.T.tolist(), strict=True)
        same = all(len(set(a)) == len(set(b)) == len(set(zip(a, b, strict=True))) for a, b in pairs)
    elif feature == "rings":
        same = bool(((found == expected) | (found == found.max())).all())  # some may saturate
    else:
        same = np.allclose(found, expected, rtol=1e-9, atol=2e-7)
    if not same:
        raise SystemExit(f"{dataset}: {feature} differs from the loop over graphs")


def machine() -> dict[str, str | int]:
    return {
        "threads": threads(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "networkx": nx.__version__,
        "numpy": np.__version__,
    }


def show(rows: list[dict]) -> None:
    names = ["dataset", "feature", *SECONDS, "ratio", "cpu_ratio"]
    print("".join(f"{name:>16}" for name in names))
    for row in rows:
        seconds = "".join(f"{row[k]:>16.4f}" for k in SECONDS)
        ratios = "".join(f"{row[k]:>16.0f}" for k in ("ratio", "cpu_ratio"))
        print(f"{row['dataset']:>16}{row['feature']:>16}{seconds}{ratios}")


if __name__ == "__main__":
    main()
