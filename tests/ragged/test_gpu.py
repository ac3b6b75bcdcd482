"""The Triton kernels of the ragged products, under Triton's interpreter on the CPU."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = """
import torch
from softperm.ragged import cpu, gpu

def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)

generator = torch.Generator().manual_seed(0)
for dtype in (torch.float32, torch.float64):
    for v, p, f, ptr in [
        (40, 5, 3, [[0, 1, 1, 20], [20, 22, 30, 40]]),
        (300, 20, 70, [[0, 290], [290, 298]]),
        (4, 1, 1, [[0, 0, 4]]),
        (3, 2, 2, [[0]]),
    ]:
        left = torch.randn(v, p, generator=generator, dtype=dtype)
        right = torch.randn(v, f, generator=generator, dtype=dtype)
        ptr = torch.tensor(ptr)
        shape = (len(ptr), ptr.shape[1] - 1, p, f)
        small = torch.randn(shape, generator=generator, dtype=dtype)
        close(gpu.pool(left, right, ptr), cpu.pool(left, right, ptr))
        close(gpu.spread(small, right, ptr), cpu.spread(small, right, ptr))
        edges = torch.randint(v, (2, 5 * v), generator=generator)
        edges = edges[:, edges[0].argsort(stable=True)]
        weight = torch.randn(5 * v, generator=generator, dtype=dtype)
        close(gpu.propagate(left, edges, weight), cpu.propagate(left, edges, weight, False))
print("equal")
"""


def test_kernels_equal_those_of_the_cpu():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
