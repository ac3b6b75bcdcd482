"""Many Adams at once are as many single ones."""

import os
import subprocess
import sys

import pytest
import torch

from softperm.training.adam import StackedAdam


def matrix(models: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(models, 20, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_each_row_gets_what_torchs_adam_gives_it(decay):
    generator = torch.Generator().manual_seed(0)
    flat = matrix(3, generator)
    alone = [torch.nn.Parameter(row.clone()) for row in flat]
    single = [torch.optim.Adam([p], lr=1e-2, weight_decay=decay) for p in alone]
    together = StackedAdam(flat, 1e-2, decay)
    for step in range(12):
        gradient = matrix(3, generator)
        active = torch.tensor([True, step % 2 == 0, step > 4])
        together.step(gradient, active)
        for p, optimiser, g, on in zip(alone, single, gradient, active, strict=True):
            if on:
                p.grad = g.clone()
                optimiser.step()
        torch.testing.assert_close(flat, torch.stack([p.detach() for p in alone]))


def test_each_model_may_have_its_own_learning_rate():
    flat, rates = torch.zeros(2, 3), torch.tensor([1e-3, 1e-1])
    StackedAdam(flat, rates).step(torch.ones(2, 3), torch.tensor([True, True]))
    torch.testing.assert_close(flat, -rates[:, None].expand(2, 3), rtol=1e-5, atol=0.0)


KERNEL = """
import torch
from softperm.training.adam import StackedAdam
from softperm.training.gpu_adam import update
generator = torch.Generator().manual_seed(0)
flat = torch.randn(3, 2500, generator=generator)
ours, theirs = flat.clone(), StackedAdam(flat.clone(), 1e-2, 0.1)
mean, square, steps = torch.zeros_like(flat), torch.zeros_like(flat), torch.zeros(3)
for step in range(3):
    gradient = torch.randn(3, 2500, generator=generator)
    active = torch.tensor([True, step % 2 == 0, False])
    theirs.step(gradient, active)
    steps += active
    count = steps.clamp(min=1)
    size, root = 1e-2 / (1 - 0.9**count), (1 - 0.999**count).sqrt()
    update(ours, gradient, mean, square, active, size, root, 0.9, 0.999, 0.1, 1e-8)
    torch.testing.assert_close(ours, theirs.parameters)
    torch.testing.assert_close(square, theirs.square)
"""


def test_the_gpu_kernel_computes_the_same():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KERNEL], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
