"""Checks every Triton kernel of the transport against the float64 oracle on a real GPU; measures.

    python benchmarks/gpu_check.py RESULT.json [SIZES.json]

SIZES.json maps a dataset's name to the vertex counts of its graphs (``carry/sizes.json`` by
default); where it is missing, sizes are drawn to match. Failures are collected: the exit code is 1
if there were any. The result is written after every section, the table comes last.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import torch

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]

from gpu_timing import DECILES, ITERATIONS, arrays, draw, measure, table  # noqa: E402

if not find_spec("numba"):  # only the CPU's kernels need it
    sys.modules["softperm.ops.transport.cpu"] = ModuleType("cpu")
    sys.modules["softperm.ops.transport.cpu"].__dict__.update(forward=None, backward=None)

from softperm.ops.transport import Problem, gpu, pose, reference, sinkhorn  # noqa: E402

RAGGED = (0, 1, 2, 7, 31, 32, 33, 100, 129, 400, 513, 900, 2500, 6000)


class Report:
    """The results so far, and the file to which they are written."""

    def __init__(self, path: str):
        self.path = Path(path)
        self.record = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "checks": [],
            "timings": [],
            "failures": [],
        }

    def save(self):
        """Writes it."""
        self.path.write_text(json.dumps(self.record, indent=1))

    def check(self, name: str, function, *args):
        """Runs a check, which returns figures and raises AssertionError with what is wrong."""
        begin = time.perf_counter()
        try:
            figures = function(*args)
            self.record["checks"].append({"name": name, **(figures or {})})
        except Exception as error:
            sentence = f"{type(error).__name__}: {str(error)[:300]}"
            self.record["failures"].append({"name": name, "error": sentence})
            print(f"FAILED {name}: {sentence}", flush=True)
        self.save()
        print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)


def poison():
    """Leaves NaN in the memory that the next tensors are likely to get."""
    torch.cuda.empty_cache()
    blocks = [torch.full((1 << k,), torch.nan, device="cuda") for k in range(8, 27)]
    blocks += [torch.full((1 << 18,), torch.nan, device="cuda") for _ in range(16)]
    del blocks


def solve(problem, grad, iterations=ITERATIONS, tolerance=0.0, gradient=1):
    out = gpu.forward(problem, iterations, tolerance)
    plan, history, used, error = out
    back = gpu.backward(problem, grad, history, used, tolerance, gradient)
    return plan, used, error, *back


def oracle(problem, grad, iterations=ITERATIONS, tolerance=0.0):
    """Plan, iterations, and gradients of scores, extra rows and bin in float64 by autograd."""
    wide = [t.detach().double() if t.is_floating_point() else t for t in arrays(problem)]
    leaves = [wide[0].requires_grad_(), wide[4].requires_grad_(), wide[6].requires_grad_()]
    plan, used, _ = reference.solve(Problem(*wide), iterations, tolerance)
    found = torch.autograd.grad((plan * grad.double()).sum(), leaves, allow_unused=True)
    found = [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True)]
    return plan.detach(), used, found


def compare(problem, plan_limit, grad_limit, tolerance=0.0, gradient=1, iterations=ITERATIONS):
    """Relative distances to the oracle, the worst of all problems."""
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(problem.scores.shape, generator=generator).to(problem.scores)
    poison()
    plan, used, _, d_scores, d_extra, d_bin = solve(problem, grad, iterations, tolerance, gradient)
    exact, _, wanted = oracle(problem, grad, iterations)
    weight = exact * grad
    for name, x in {"plan": plan, "scores": d_scores, "extra": d_extra, "bin": d_bin}.items():
        assert bool(x.isfinite().all()), f"{name}: not finite"
    figures = {"used": int(used.max())}
    spans = [slice(a, b) for a, b in pairwise(problem.ptr[0].tolist()) if b > a]
    figures["plan"] = max(distance(plan[s], exact[s]) for s in spans)
    figures["scores"] = max(distance(d_scores[s], wanted[0][s], weight[s]) for s in spans)
    figures["extra"] = distance(d_extra.sum(1), wanted[1], weight)
    figures["bin"] = distance(d_bin.sum(1), wanted[2], weight)
    assert figures["plan"] <= plan_limit, figures
    assert max(figures[k] for k in ("scores", "extra", "bin")) <= grad_limit, figures
    return figures


def distance(x, y, weight=None) -> float:
    """Relative distance. A gradient below 1 % of its weight, plan · gradient, counts as that."""
    scale = y.norm() if weight is None else torch.maximum(y.norm(), 0.01 * weight.norm())
    return float((x.double() - y).norm() / scale.clamp(min=1e-30))


def check_masses():
    """Any masses, rows without mass, vertices outside every problem, columns without mass."""
    generator = torch.Generator().manual_seed(5)
    sizes = torch.tensor([5, 40, 0, 300, 1200])
    ptr = torch.cat([torch.tensor([3]), 3 + sizes.cumsum(0)])
    v, p = int(sizes.sum()) + 10, 20
    row_mass = torch.rand(v, generator=generator) * (torch.rand(v, generator=generator) > 0.2)
    share = torch.rand(5, p, generator=generator)
    share[1, 3] = 0
    total = torch.stack([row_mass[a:b].sum() for a, b in pairwise(ptr)])
    column_mass = share / share.sum(1, keepdim=True) * total[:, None]
    problem = pose(
        torch.rand(v, p, generator=generator).cuda() * 5, ptr.cuda(), row_mass=row_mass.cuda(),
        column_mass=column_mass.cuda(),
    )  # fmt: skip
    figures = compare(problem, 1e-5, 1e-4)
    plan, *_ = solve(problem, torch.ones_like(problem.scores))
    outside = torch.cat([plan[:3], plan[-7:], plan[row_mass.cuda() == 0]])
    assert float(outside.abs().max()) == 0, "plan outside problems"
    return figures


def check_bits():
    problem = draw(RAGGED, 20, padding=True, dustbin=True, span=5)
    grad = torch.randn_like(problem.scores)
    first = solve(problem, grad)
    for _ in range(3):
        for x, y in zip(first, solve(problem, grad), strict=True):
            assert torch.equal(x, y), "two runs differ"


def check_graph():
    problem = draw(RAGGED, 20, padding=True, dustbin=True, span=5)
    grad = torch.randn_like(problem.scores)
    solve(problem, grad)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = solve(problem, grad)
    for _ in range(2):
        problem.scores.copy_(torch.rand_like(problem.scores) * 8)
        graph.replay()
        for x, y in zip(static, solve(problem, grad), strict=True):
            assert torch.equal(x, y), "replay and eager differ"


def check_compile():
    ptr = torch.tensor([0, 20, 60, 700], device="cuda")
    scores = torch.rand(700, 20, device="cuda", requires_grad=True)

    def loss(x):
        return sinkhorn(x * 2, ptr).square().sum()

    for f in (loss, torch.compile(loss, fullgraph=True)):
        (grad,) = torch.autograd.grad(f(scores), scores)
        if f is loss:
            eager = grad
    assert distance(grad, eager.double()) < 1e-6
    return {"distance": distance(grad, eager.double())}


def check_vmap():
    ptr = torch.tensor([0, 20, 60, 700, 700], device="cuda")
    scores = torch.rand(30, 700, 20, device="cuda") * 4
    stacked = torch.vmap(lambda s: sinkhorn(s, ptr))(scores)
    for x, s in zip(stacked, scores, strict=True):
        assert torch.equal(x, sinkhorn(s, ptr)), "a stacked model differs from it alone"


def check_streams():
    """Two streams with large problems at once: groups of programs must not lock each other out."""
    problems = [draw([20000, 700, 3000], 20, padding=False, dustbin=False, seed=s) for s in (0, 1)]
    alone = [gpu.forward(p, 50, 0.0)[0] for p in problems]
    streams = [torch.cuda.Stream() for _ in problems]
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for stream, problem in zip(streams, problems, strict=True):
            with torch.cuda.stream(stream):
                found.append(gpu.forward(problem, 50, 0.0)[0])
        torch.cuda.synchronize()
    for x, y in zip(alone, found, strict=True):
        assert torch.equal(x, y)


def run_checks(report: Report):
    for p in (1, 5, 20, 30, 40, 64, 128):
        for span in (1.0, 100.0, 1e4):
            limit = 1e-5 if span <= 100 else 1e-3
            for padding, dustbin in (
                ((0, 0), (1, 1)) if p != 20 else ((0, 0), (0, 1), (1, 0), (1, 1))
            ):
                problem = draw(RAGGED, p, padding=padding, dustbin=dustbin, span=span)
                name = f"P={p} span={span:g} padding={padding} dustbin={dustbin}"
                report.check(name, compare, problem, limit, 1e-4)
    for padding, dustbin in ((0, 0), (1, 1)):
        problem = draw(RAGGED, 20, padding=padding, dustbin=dustbin, span=3)
        report.check(f"implicit {dustbin}", compare, problem, 1e-5, 1e-4, 1e-6, 0, 300)
        wide = draw(RAGGED, 20, padding=padding, dustbin=dustbin, span=3, dtype=torch.float64)
        report.check(f"float64 {dustbin}", compare, wide, 1e-11, 1e-9)
        report.check(f"float64 implicit {dustbin}", compare, wide, 1e-9, 1e-8, 1e-13, 0, 300)
    many = draw([700] * 200 + [60000], 20, padding=False, dustbin=False)
    report.check("many large and one of 60,000", compare, many, 1e-5, 1e-4, 0.0, 1, 20)
    report.check("masses", check_masses)
    report.check("bitwise reproducible", check_bits)
    report.check("CUDA graph", check_graph)
    report.check("vmap", check_vmap)
    report.check("torch.compile", check_compile)


def build(p: int, padding: bool, dustbin: bool, dtype: torch.dtype, backward: bool) -> float:
    """Compiles the kernels for one form of problem into Triton's cache; seconds."""
    begin = time.perf_counter()
    problem = draw([3, 20000], p, padding=padding, dustbin=dustbin, dtype=dtype)
    problem.ptr[0, -1] = 9  # two small problems; the launches do not know
    if backward:
        history = problem.scores.new_zeros(1, 2, 2, problem.column_mass.shape[-1]).double()
        used = torch.ones(1, 2, dtype=torch.int32, device="cuda")
        gpu.backward(problem, problem.scores, history, used, 0.0, 1)
    else:
        gpu.forward(problem, 2, 0.0)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def compile_all(report: Report):
    forms = [(p, b, b, torch.float32) for p in (128, 64, 20, 40, 5) for b in (True, False)]
    forms += [(20, True, False, torch.float32), (20, False, True, torch.float32)]
    forms += [(20, True, True, torch.float64), (20, False, False, torch.float64)]
    forms = [(*form, backward) for backward in (True, False) for form in forms]
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        futures = {str(f): pool.submit(build, *f) for f in forms}
        for name, future in futures.items():
            report.check(f"compile {name}", lambda f=future: {"seconds": f.result()})


def main() -> int:
    report = Report(sys.argv[1])
    path = Path(sys.argv[2] if len(sys.argv) > 2 else "carry/sizes.json")
    compile_all(report)
    run_checks(report)
    for models, dustbin in ((1, False), (1, True), (30, False)):
        for name in DECILES:
            report.check(
                f"time {name} x{models} bin={dustbin}",
                lambda *a: report.record["timings"].append(measure(*a)),
                name, path, models, dustbin,
            )  # fmt: skip
    report.check("two streams", check_streams)
    table(report.record["timings"])
    for failure in report.record["failures"]:
        print("FAILED", failure["name"], failure["error"])
    print(f"{len(report.record['checks'])} checks passed, {len(report.record['failures'])} failed")
    return 1 if report.record["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
