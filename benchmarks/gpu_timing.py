"""How long the Triton kernels of the transport take on a GPU, beside the paper's way; the table."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import triton

from softperm.ops.transport import Problem, gpu, pose

ITERATIONS = 100
BANDWIDTH = 4.3e12  # bytes a second, read and written, as measured by a large copy on an H200
FMAS = 132 * 128 * 1.755e9  # float32 multiply-adds a second of an H200
DECILES = {  # of the vertex counts, 0 to 100 %, then 95 and 99 %: to draw from without the data
    "MUTAG": (10, 12, 13, 15, 16, 18, 19, 21, 22, 23, 28, 25, 28),
    "PROTEINS": (4, 9, 13, 18, 22, 26, 32, 39, 54, 81, 620, 111, 206),
    "COLLAB": (32, 34, 38, 42, 47, 52, 61, 74, 91, 130, 492, 239, 343),
    "DD": (30, 91, 125, 160, 205, 241, 291, 331, 395, 501, 5748, 589, 892),
    "REDDIT-BINARY": (6, 38, 67, 115, 214, 304, 369, 411, 470, 1000, 3782, 1654, 2860),
}
LATENT = {"MUTAG": 20, "PROTEINS": 30, "COLLAB": 20, "DD": 20, "REDDIT-BINARY": 20}


def arrays(problem: Problem):
    p = problem
    return p.scores, p.ptr, p.row_mass, p.column_mass, p.extra, p.extra_mass, p.bin_score


def draw(
    sizes, p, *, padding, dustbin, span=1.0, dtype=torch.float32, seed=0, capacity=None
) -> Problem:
    """Problems with scores between 0 and ``span``."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.as_tensor(sizes)
    scores = torch.rand(int(sizes.sum()), p, generator=generator) * span
    extras = {}
    if padding:
        extras["padding"] = torch.rand(p, generator=generator) * span
        extras["padding_mass"] = ((capacity or sizes.max()) - sizes).clamp(min=0).float()
    if dustbin:
        extras["dustbin"] = torch.tensor(0.5 * span)
    ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    cast = {k: v.to("cuda", dtype) for k, v in extras.items()}
    return pose(scores.to("cuda", dtype), ptr.cuda(), **cast)


def sizes_of(name: str, path: Path, count: int, generator) -> np.ndarray:
    if path.is_file():
        return generator.choice(json.loads(path.read_text())[name], count)
    *deciles, q95, q99 = DECILES[name]
    knots = [*range(0, 91, 10), 95, 99, 100]
    return np.interp(
        generator.random(count) * 100, knots, [*deciles[:-1], q95, q99, deciles[-1]]
    ).astype(int)


def naive(sizes, p, capacity):
    """A step of the paper's way: padded to capacity, log space, recorded for autograd."""
    scores = torch.rand(len(sizes), capacity, p, device="cuda", requires_grad=True)

    def step():
        v = torch.zeros(len(sizes), 1, p, device="cuda")
        u = torch.zeros(len(sizes), capacity, 1, device="cuda")
        for _ in range(ITERATIONS):
            v = np.log(capacity / p) - torch.logsumexp(scores + u, 1, keepdim=True)
            u = -torch.logsumexp(scores + v, 2, keepdim=True)
        (scores + u + v).exp().square().sum().backward()

    return step


def milliseconds(function) -> float:
    return triton.testing.do_bench(function, warmup=20, rep=100, return_mode="median")


def captured(function):
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def peak(function) -> int:
    """Bytes a call takes beyond what is there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def by_kernel(function) -> dict[str, float]:
    """Microseconds on the device of each kernel of a call, by name and threads."""
    from torch.profiler import ProfilerActivity, profile

    repeat = 5
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(repeat):
            function()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        found.export_chrome_trace(path)
        events = json.loads(Path(path).read_text())["traceEvents"]
    total: dict[str, float] = {}
    for e in events:
        if e.get("cat") in ("kernel", "gpu_memset") and "dur" in e:
            name = f"{e['name'][:40]}:{e.get('args', {}).get('block', [0])[0]}"
            total[name] = total.get(name, 0.0) + e["dur"] / repeat
    return {k: round(v, 1) for k, v in sorted(total.items(), key=lambda kv: -kv[1])[:8]}


def measure(name: str, path: Path, models: int, dustbin: bool) -> dict:
    generator = np.random.default_rng(0)
    sizes = sizes_of(name, path, 64, generator)
    p, capacity = LATENT[name], DECILES[name][10]
    tiled = np.tile(sizes, models)
    problem = draw(tiled, p, padding=True, dustbin=dustbin, capacity=capacity)
    grad = torch.randn_like(problem.scores)
    _, history, used, _ = gpu.forward(problem, ITERATIONS, 0.0)

    def forward(tolerance=0.0):
        return gpu.forward(problem, ITERATIONS, tolerance)

    def backward(history=history, used=used, tolerance=0.0, gradient=1):
        return gpu.backward(problem, grad, history, used, tolerance, gradient)

    _, early_history, early_used, _ = forward(1e-6)
    early = (early_history, early_used, 1e-6, 0)
    v, c = problem.scores.shape[0], problem.column_mass.shape[-1]
    potentials = history.numel() * 8
    record = {
        "dataset": name, "problems": len(sizes) * models, "V": v, "P": p, "dustbin": dustbin,
        "forward": milliseconds(forward), "backward": milliseconds(backward),
        "forward_graph": milliseconds(captured(forward)),
        "backward_graph": milliseconds(captured(backward)),
        "early_graph": milliseconds(captured(lambda: forward(1e-6))),
        "implicit_graph": milliseconds(captured(lambda: backward(*early))),
        "early_used": float(early_used.float().mean()),
        "floor_bytes": (5 * v * p * 4 + 2 * potentials) / BANDWIDTH * 1e3,
        "floor_fma": 8 * ITERATIONS * v * c / FMAS * 1e3,
        "peak_bytes": peak(lambda: (forward(), backward())),
        "kernels_us": {"forward": by_kernel(forward), "backward": by_kernel(backward)},
    }  # fmt: skip
    if models == 1 and not dustbin:
        step = naive(sizes, p, capacity)
        step()
        record["naive_peak_bytes"] = peak(step)
        record["naive"] = milliseconds(step)
        torch.cuda.empty_cache()
    return record


COLUMNS = {  # of the table: heading, and what stands under it
    "fwd": "forward",
    "bwd": "backward",
    "fwd graph": "forward_graph",
    "bwd graph": "backward_graph",
    "early": "early_graph",
    "implicit": "implicit_graph",
    "by bytes": "floor_bytes",
    "by fma": "floor_fma",
    "naive": "naive",
}


def table(records: list[dict]):
    """Milliseconds; then how many times faster than naive, eager and captured, and smaller."""
    heading = "".join(f"{name:>10}" for name in (*COLUMNS, "times", "captured", "smaller"))
    print(f"{'dataset':14}{'problems':>9}{'bin':>4}{heading}")
    for r in records:
        slow = r.get("naive", float("nan"))
        captured = slow / (r["forward_graph"] + r["backward_graph"])
        smaller = r.get("naive_peak_bytes", float("nan")) / r["peak_bytes"]
        figures = "".join(f"{r.get(key, float('nan')):10.4f}" for key in COLUMNS.values())
        ratios = (slow / (r["forward"] + r["backward"]), captured, smaller)
        figures += "".join(f"{ratio:10.1f}" for ratio in ratios)
        print(f"{r['dataset']:14}{r['problems']:9}{r['dustbin']:4}{figures}")
