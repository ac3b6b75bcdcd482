"""Triangles of whole collections against ``networkx.triangles``, in one run.

    python benchmarks/features.py --root DATA [--out features.json] [NAME …]

Every count is compared with NetworkX's. NetworkX's graphs are built beforehand, and building them
is not timed; it runs once over all graphs, ours several times, of which the median counts.
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

from softperm.data.features import structural_features, triangles
from softperm.data.formats.tu import TUArrays, read_tu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["REDDIT-BINARY", "COLLAB"])
    parser.add_argument("--root", type=Path, default=os.environ.get("SOFTPERM_DATA"))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    if options.root is None:
        parser.error("say where the datasets are, with --root or SOFTPERM_DATA")
    rows = [measure(options.root / "tu" / f"{n}.zip", options.repeats) for n in options.names]
    show(rows)
    report = {"machine": machine(), "results": rows}
    print(json.dumps(report, indent=2))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=2) + "\n")


def measure(path: Path, repeats: int) -> dict[str, float | int | str]:
    """Times in seconds of both, and their ratios, over one dataset."""
    arrays = read_tu(path)
    shift = np.repeat(arrays.ptr[:-1], np.diff(arrays.edge_ptr))
    edge_index = torch.from_numpy(arrays.edge_index.astype(np.int64) + shift)
    ptr = torch.from_numpy(arrays.ptr)
    counts = triangles(edge_index, ptr)  # compiles, or loads what was compiled before
    ours = timed(lambda: triangles(edge_index, ptr), repeats)
    both = timed(lambda: structural_features(edge_index, ptr), repeats)
    alone = on_one_core(lambda: timed(lambda: triangles(edge_index, ptr), repeats))
    theirs, expected = by_networkx(arrays)
    if not np.array_equal(counts.numpy(), expected):
        raise SystemExit(f"{arrays.name}: counts differ from NetworkX's")
    return {
        "dataset": arrays.name,
        "graphs": len(arrays),
        "vertices": int(arrays.ptr[-1]),
        "edges": arrays.edge_index.shape[1] // 2,
        "triangles": int(counts.sum()) // 3,
        "networkx_s": theirs,
        "softperm_s": ours,
        "softperm_one_core_s": alone,
        "softperm_degree_and_triangles_s": both,
        "ratio": theirs / ours,
        "ratio_one_core": theirs / alone,
    }


def by_networkx(arrays: TUArrays) -> tuple[float, np.ndarray]:
    """Seconds that ``networkx.triangles`` takes over all graphs, and its counts."""
    seconds, counts = 0.0, []
    for i in range(len(arrays)):
        edges = arrays.edge_index[:, arrays.edge_ptr[i] : arrays.edge_ptr[i + 1]].T.tolist()
        graph = nx.empty_graph(int(arrays.ptr[i + 1] - arrays.ptr[i]))
        graph.add_edges_from(edges)
        start = time.perf_counter()
        found = nx.triangles(graph)
        seconds += time.perf_counter() - start
        counts.extend(found.values())
    return seconds, np.array(counts)


def timed(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def on_one_core(work: Callable[[], float]) -> float:
    """What the call returns when this process may use one core only."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        return work()
    finally:
        os.sched_setaffinity(0, cores)


def machine() -> dict[str, str | int]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "networkx": nx.__version__,
        "torch": torch.__version__,
    }


def show(rows: list[dict]) -> None:
    columns = ("dataset", "graphs", "edges", "triangles", "networkx_s", "softperm_s", "ratio")
    columns = (*columns, "ratio_one_core")
    print("".join(f"{column:>16}" for column in columns))
    for row in rows:
        cells = (row[c] if not isinstance(row[c], float) else f"{row[c]:.3f}" for c in columns)
        print("".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
