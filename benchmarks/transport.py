"""The fused transport against other ways to compute the same, in one run.

    python benchmarks/transport.py [--device cuda] [--out transport.json] [NAME …]

A batch of graphs whose sizes are those of a real dataset (or drawn to match where the data is
absent), padded to the dataset's largest graph, goes forward and backward through

naive      the paper's way: every graph padded, log-sum-exp after log-sum-exp, all of it recorded
           for autograd;
POT        ``ot.batch.solve_batch`` on the same padded arrays, differentiated by autograd;
reference  ``softperm.ops.transport.reference``: ragged, one row for all padding, autograd;
fused      ``softperm.ops.transport.sinkhorn``: all iterations, also when nothing changes any more
           (tolerance −1), with their exact gradient; and with its defaults (stops early, implicit
           gradient where it did).

Scores are those of a fresh model (soft: standard normal, rectified) or of one that is sure of
itself (hard: 30 times that), for which 100 iterations are not enough and all are run.

Times are the fastest of several. Peak memory is what the process (on CUDA, the allocator) held at
most beyond what it held before the call, measured where nothing else was allocated. The floor is
the time that the arithmetic of the fused way, or its traffic with memory if that is more, would
take at the rates that torch's own matmul, exp and copy reach on the machine in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from machine import clock, describe, measure_rates, resident
from torch import Tensor

from softperm.ops.transport import sinkhorn

DATASETS = {  # latent vertices; median and deviation of the logarithm of sizes, smallest, largest
    "MUTAG": (20, 17.5, 0.26, 10, 28),
    "PROTEINS": (30, 26.0, 0.84, 4, 620),
    "COLLAB": (20, 52.0, 0.56, 32, 492),
    "DD": (20, 241.0, 0.68, 30, 5748),
    "REDDIT-BINARY": (20, 304.5, 1.22, 6, 3782),
}
METHODS = ["naive", "POT", "reference", "fused, all iterations", "fused"]
HARDNESS = {"soft": 1.0, "hard": 30.0}


@dataclass(frozen=True)
class Load:
    """A batch: scores and sizes of its graphs, and the capacity to which they are padded."""

    scores: Tensor
    ptr: Tensor
    grad: Tensor
    capacity: int
    iterations: int

    @property
    def batch(self) -> int:
        """Number of graphs."""
        return len(self.ptr) - 1

    def part(self, batch: int) -> Load:
        """The first graphs only."""
        v = int(self.ptr[batch])
        return Load(
            self.scores[:v], self.ptr[: batch + 1], self.grad[:v], self.capacity, self.iterations
        )


@dataclass(frozen=True)
class Row:
    """One line of the table; times in milliseconds, memory in MB."""

    dataset: str
    scores: str
    method: str
    batch: int
    scale: float
    used: float
    forward: float
    backward: float
    memory: float
    floor: float | None
    gap: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(DATASETS))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--data-root", type=Path, default=default_data_root())
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--busy", action="store_true", help="count processor time, where others use the machine too"
    )
    parser.add_argument("--memory-limit", type=float, help="GB that naive ways may take")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)  # of our own processes
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        name, hardness, method = options.memory_of
        load = make_load(name, hardness, options)
        print(memory_of(method, affordable(method, load, options)))
        return
    rates = measure_rates(options)
    rows = []
    for name in options.names:
        rows += compare(name, rates, options)
    show(rows, rates)
    report = {"machine": describe(options), "rates": rates, "rows": [asdict(r) for r in rows]}
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=2) + "\n")


def default_data_root() -> Path:
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("SOFTPERM_DATA", beside))


def compare(name: str, rates: dict[str, float], options) -> list[Row]:
    """All ways on one dataset's shapes; each plan and gradient is held against naive's."""
    rows = []
    for hardness in HARDNESS:
        load = make_load(name, hardness, options)
        truth = None
        for method in METHODS:
            if hardness == "hard" and not (method == "naive" or "fused" in method):
                continue  # they run all iterations whatever the scores
            part = affordable(method, load, options)
            plan, grad, used, forward, backward = timed(method, part, options)
            truth = (plan, grad) if truth is None else truth
            gap = max(distance(*pair) for pair in zip((plan, grad), truth, strict=True))
            scale = load.batch / part.batch
            rows.append(
                Row(
                    name, hardness, method, part.batch, scale, float(used.float().mean()),
                    forward * scale, backward * scale,
                    separate_memory(name, hardness, method, part, options) * scale,
                    floor(load, used, method, rates) if "fused" in method else None, gap,
                )
            )  # fmt: skip
            print(f"  {rows[-1]}", file=sys.stderr)
    return rows


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Relative distance in norm, over the vertices that both have."""
    n = min(len(ours), len(theirs))
    return float((ours[:n] - theirs[:n]).norm() / theirs[:n].norm())


def make_load(name: str, hardness: str, options) -> Load:
    """Scores for graphs with the dataset's sizes, the same in every process."""
    p, median, deviation, least, most = DATASETS[name]
    rng = np.random.default_rng(0)
    path = options.data_root / "tu" / f"{name}.zip"
    if path.exists():
        with zipfile.ZipFile(path) as archive:
            owners = archive.read(f"{name}/{name}_graph_indicator.txt").split()
        sizes = rng.choice(np.bincount(np.array(owners, dtype=np.int64))[1:], options.batch)
    else:
        sizes = np.exp(rng.normal(np.log(median), deviation, options.batch))
        sizes = sizes.round().astype(np.int64).clip(least, most)
    ptr = torch.from_numpy(np.concatenate([[0], sizes.cumsum()]))
    generator = torch.Generator().manual_seed(0)
    shape = (int(ptr[-1]), p)
    scores = torch.relu(torch.randn(shape, generator=generator)) * HARDNESS[hardness]
    grad = torch.randn(shape, generator=generator)
    device = options.device
    return Load(scores.to(device), ptr.to(device), grad.to(device), most, options.iterations)


def affordable(method: str, load: Load, options) -> Load:
    """The batch, or where a padded way would need too much memory as much of it as it may have."""
    if method not in {"naive", "POT"}:
        return load
    limit = options.memory_limit or (12 if options.device == "cpu" else 100)
    recorded = 2 * load.iterations * load.capacity * load.scores.shape[1] * 4  # bytes for a graph
    recorded *= 1.6  # as seen: gradients beside what was recorded
    return load.part(max(1, min(load.batch, int(limit * 1e9 / recorded))))


def run(method: str, scores: Tensor, load: Load) -> tuple[Tensor, Tensor]:
    """The plan of the batch's vertices, and iterations used."""
    sizes = load.ptr.diff()
    if method in {"naive", "POT"}:
        inside = torch.arange(load.capacity, device=scores.device) < sizes[:, None]  # (B, N)
        padded = scores.new_zeros(load.batch, load.capacity, scores.shape[1])
        padded = padded.masked_scatter(inside[:, :, None], scores)  # (B, N, P)
        solve = naive if method == "naive" else python_optimal_transport
        used = torch.full((load.batch,), load.iterations)
        return solve(padded, load.iterations)[inside], used
    plan, info = sinkhorn(
        scores,
        load.ptr,
        padding=scores.new_zeros(scores.shape[1]),
        padding_mass=(load.capacity - sizes).to(scores.dtype),
        iterations=load.iterations,
        tolerance=None if method == "fused" else -1.0,
        backend="reference" if method == "reference" else "fused",
        return_info=True,
    )
    return plan, info.iterations


def naive(scores: Tensor, iterations: int) -> Tensor:
    """Sinkhorn in log space on padded scores (B, N, P), as the paper describes it."""
    _, n, p = scores.shape
    u = scores.new_zeros(scores.shape[:2])
    for _ in range(iterations):
        v = np.log(n / p) - torch.logsumexp(scores + u[:, :, None], dim=1)  # (B, P)
        u = -torch.logsumexp(scores + v[:, None, :], dim=2)  # (B, N)
    return (scores + u[:, :, None] + v[:, None, :]).exp()


def python_optimal_transport(scores: Tensor, iterations: int) -> Tensor:
    """The same by POT, whose rows come first: its columns are exact and its rows are not."""
    import ot.batch

    b, n, p = scores.shape
    plan = ot.batch.solve_batch(
        -scores, 1.0, scores.new_ones(b, n), scores.new_full((b, p), n / p), max_iter=iterations,
        tol=0.0, method="log_sinkhorn", grad="autodiff",
    ).plan  # fmt: skip
    return plan


def timed(method: str, load: Load, options):
    """Plan, gradient and iterations used, and the least milliseconds forward and backward."""
    best, started = np.full(2, np.inf), time.perf_counter()
    for turn in range(options.repeats + 1):
        scores = load.scores.clone().requires_grad_()
        times = [clock(options)]
        plan, used = run(method, scores, load)
        times.append(clock(options))
        plan.backward(load.grad)
        times.append(clock(options))
        patience = time.perf_counter() - started
        if turn > 0 or patience > 60:  # the first turn warms up, unless it is all we can afford
            best = np.minimum(best, np.diff(times))
        if patience > 60 or (patience > 5 and turn > 2):
            break
    return plan.detach(), scores.grad, used, *(1e3 * best)


def separate_memory(name: str, hardness: str, method: str, part: Load, options) -> float:
    """MB at the peak of one call; on CPU in a process of its own."""
    if options.device == "cuda":
        return memory_of(method, part)
    command = [
        sys.executable, __file__, name, "--memory-of", name, hardness, method,
        "--batch", str(options.batch), "--iterations", str(options.iterations),
        "--threads", str(options.threads), "--data-root", str(options.data_root),
    ]  # fmt: skip
    if options.memory_limit:
        command += ["--memory-limit", str(options.memory_limit)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory_of(method: str, load: Load) -> float:
    """MB that a forward and a backward pass need beyond what there was before."""
    tiny = load.part(1)
    run(method, tiny.scores.clone().requires_grad_(), tiny)[0].backward(tiny.grad)  # compiles
    scores = load.scores.clone().requires_grad_()
    if load.scores.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(method, scores, load)[0].backward(load.grad)
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = resident("VmRSS")
    run(method, scores, load)[0].backward(load.grad)
    return (resident("VmHWM") - before) / 1e6


def floor(load: Load, used: Tensor, method: str, rates: dict[str, float]) -> float:
    """Milliseconds that forward and backward could not be below; see the module's docstring.

    Forward: two multiply-adds an entry and iteration, two exponentials an entry. Backward: the
    same if implicit; if truncated five, three products with the kernel and an update of rank 2.
    """
    p = load.scores.shape[1]
    entries = (load.ptr.diff() + 1).double().cpu() * p  # one row for all padding
    work = float((entries * used.cpu()).sum())
    early = method == "fused" and bool((used < load.iterations).all())
    arithmetic = (2 + (2 if early else 5)) * work / rates["fma"]
    arithmetic += 4 * float(entries.sum()) / rates["exp"]
    history = 8 * p * float(used.sum()) * 2
    traffic = (5 * 4 * load.scores.numel() + history) / rates["bytes"]
    launches = 2 / rates["launches"] if load.scores.is_cuda else 0.0
    return 1e3 * (max(arithmetic, traffic) + launches)


def show(rows: list[Row], rates: dict[str, float]) -> None:
    reached = ", ".join(f"{value:.3g} {name}/s" for name, value in rates.items())
    print(f"\nThe machine reaches {reached}.\n")
    print(
        f"{'':14}{'scores':7}{'way':23}{'graphs':>9}{'used':>6}{'forward':>10}{'backward':>10}"
        f"{'ms':>10}{'naive /':>9}{'MB':>9}{'naive /':>9}{'× floor':>9}{'gap':>9}"
    )
    base = None
    for row in rows:
        base = row if row.method == "naive" else base
        whole = row.forward + row.backward
        graphs = f"{row.batch}" if row.scale == 1 else f"{row.batch}·{row.scale:.3g}"
        above = "" if row.floor is None else f"{whole / row.floor:.1f}"
        print(
            f"{row.dataset:14}{row.scores:7}{row.method:23}{graphs:>9}{row.used:6.1f}"
            f"{row.forward:10.2f}{row.backward:10.2f}{whole:10.2f}"
            f"{(base.forward + base.backward) / whole:9.1f}{row.memory:9.1f}"
            f"{base.memory / max(row.memory, 1e-3):9.1f}{above:>9}{row.gap:9.1e}"
        )


if __name__ == "__main__":
    main()
