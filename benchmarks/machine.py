"""The machine that a benchmark runs on: its clock, memory, peak rates and name."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import torch


def clock(options) -> float:
    """Seconds so far: processor time where others use the machine too, else wall time."""
    if options.device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if options.busy else time.perf_counter()


def resident(field: str) -> int:
    """Bytes of a field of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def run_watched(command: list[str], env: dict[str, str] | None = None) -> tuple[dict, int]:
    """The JSON that a process prints last, and the peak memory of it and its children in bytes.

    Sampled twenty times a second; pages that they share are counted more than once.
    """
    process = psutil.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    peak, over = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.05):
            with suppress(psutil.Error):
                family = [process, *process.children(recursive=True)]
                peak = max(peak, sum(p.memory_info().rss for p in family))

    watcher = threading.Thread(target=watch)
    watcher.start()
    said, _ = process.communicate()
    over.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"a measurement failed with exit code {process.returncode}")
    return json.loads(said.splitlines()[-1]), peak


def measure_rates(options) -> dict[str, float]:
    """Peak rates of the machine: fused multiply-adds, exponentials, bytes and launches a second."""
    device = options.device
    n = 1536 if device == "cpu" else 8192
    torch.backends.cuda.matmul.allow_tf32 = False
    square = torch.rand(n, n, device=device)
    values = torch.rand(2**18 if device == "cpu" else 2**24, device=device)
    big = torch.rand(2**25 if device == "cpu" else 2**28, device=device)
    out, small = torch.empty_like(big), torch.empty_like(values)
    one = torch.zeros(1, device=device)
    return {
        "fma": n**3 / least_seconds(lambda: torch.matmul(square, square), options),
        "exp": len(values) / least_seconds(lambda: torch.exp(values, out=small), options),
        "bytes": 2 * 4 * len(big) / least_seconds(lambda: out.copy_(big), options),
        "launches": 1 / least_seconds(lambda: one.add_(1), options),
    }


def least_seconds(work: Callable[[], object], options) -> float:
    """The fastest of several times of twenty turns, as processor time is counted coarsely."""
    best = np.inf
    for _ in range(5):
        start = clock(options)
        for _ in range(20):
            work()
        best = min(best, (clock(options) - start) / 20)
    return best


def describe(options) -> dict[str, object]:
    """The machine of a measurement, and how it was measured."""
    name = platform.processor() or platform.machine()
    if options.device == "cuda":
        name = torch.cuda.get_device_name()
    elif Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), name)
    return {
        "device": name,
        "threads": options.threads,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "batch": options.batch,
        "iterations": options.iterations,
        "time": "processor" if options.busy else "wall",
        "data": (options.data_root / "tu").is_dir(),
    }
