"""Structural features of whole collections against loops over graphs, in one run.

    python benchmarks/features.py --root DATA [--out features.json] [NAME …]

Each feature is also computed graph by graph as one would with NetworkX (triangles, cores, rings,
neighbours) or dense NumPy (walks, heat, colours), and compared. Those loops run once over graphs
that are built beforehand, which is not timed; ours run several times, of which the median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import torch
from scipy.linalg import expm

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["NCI1", "PROTEINS", "IMDB-BINARY"])
    parser.add_argument("--root", type=Path, default=os.environ.get("SOFTPERM_DATA"))
    parser.add_argument("--only", nargs="*", help="features to measure; all by default")
    parser.add_argument("--repeats", type=int, default=7)
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
        ("triangles", lambda: count_triangles(adjacency)[:, None], triangles_of, graphs),
        ("core", lambda: core_number(adjacency)[:, None], cores_of, graphs),
        ("neighbours", lambda: neighbour_degrees(adjacency), neighbours_of, graphs),
        ("rings", lambda: rings(adjacency, RINGS), rings_of, graphs),
        ("walks", lambda: return_probabilities(adjacency, WALKS), walks_of, matrices),
        ("heat", lambda: heat_of_collection(adjacency), heat_of, matrices),
        ("colours", lambda: wl_colours(adjacency, ROUNDS, label=label), colours_of, graphs),
    ):
        if only and name not in only:
            continue
        found = ours()  # compiles, or loads what was compiled before
        seconds, expected = loop(theirs, given)
        check(arrays.name, name, found, expected)
        rows.append(
            {
                "dataset": arrays.name,
                "feature": name,
                "loop_s": seconds,
                "softperm_s": timed(ours, repeats),
            }
        )
    both = {k: sum(row[k] for row in rows) for k in ("loop_s", "softperm_s")}
    rows.append({"dataset": arrays.name, "feature": "all", **both})
    return [{**row, "ratio": row["loop_s"] / row["softperm_s"]} for row in rows]


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


def heat_of(a: np.ndarray) -> np.ndarray:
    scale = 1 / np.sqrt(np.maximum(a.sum(1), 1))
    laplacian = np.eye(len(a)) - scale[:, None] * a * scale
    return np.stack([expm(-t * laplacian).diagonal() - np.exp(-t) for t in HEAT], axis=1)


def heat_of_collection(adjacency: Adjacency) -> np.ndarray:
    return heat_kernel(return_probabilities(adjacency, heat_steps(max(HEAT))), HEAT)


def colours_of(graph: nx.Graph) -> np.ndarray:
    found = nx.weisfeiler_lehman_subgraph_hashes(
        graph, node_attr="label", iterations=ROUNDS, include_initial_labels=True
    )
    return np.array([found[v] for v in graph])


def loop(of_graph: Callable, graphs: list) -> tuple[float, np.ndarray]:
    """Seconds that a loop over all graphs takes, and what it gives."""
    start = time.perf_counter()
    rows = [of_graph(graph) for graph in graphs]
    return time.perf_counter() - start, np.concatenate(rows)


def timed(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


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
    print(f"{'dataset':>14}{'feature':>12}{'loop, s':>12}{'softperm, s':>14}{'ratio':>10}")
    for row in rows:
        print(
            f"{row['dataset']:>14}{row['feature']:>12}{row['loop_s']:>12.3f}"
            f"{row['softperm_s']:>14.4f}{row['ratio']:>10.0f}"
        )


if __name__ == "__main__":
    main()
