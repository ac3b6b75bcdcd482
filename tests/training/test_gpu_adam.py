"""The Triton kernel of many Adams equals that of the CPU; ``kernels.py`` says where it runs."""

import torch
from kernels import DEVICE, law

from softperm.training.adam import StackedAdam

BLOCKS = [30, 5000, 70, 20]
"""Columns of gradients: small ones beside each other, and one that is launched by itself."""


@law
def test_the_kernel_computes_the_same():
    from softperm.training.gpu_adam import LARGE, update  # Triton may be absent without a GPU

    assert sorted(BLOCKS)[-2] < LARGE < max(BLOCKS)
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(3, sum(BLOCKS), generator=generator)
    ours, theirs = flat.clone().to(DEVICE), StackedAdam(flat.clone(), 1e-2, 0.1)
    mean, square, steps = torch.zeros_like(ours), torch.zeros_like(ours), torch.zeros(3)
    for step in range(3):
        gradient = torch.randn(3, sum(BLOCKS), generator=generator)
        active = torch.tensor([True, step % 2 == 0, False])
        theirs.step(gradient.split(BLOCKS, dim=1), active)
        steps += active
        count = steps.clamp(min=1)
        size, root = 1e-2 / (1 - 0.9**count), (1 - 0.999**count).sqrt()
        blocks = gradient.to(DEVICE).split(BLOCKS, dim=1)
        rates = [t.to(DEVICE) for t in (active, size, root)]
        update(ours, mean, square, blocks, *rates, 0.9, 0.999, 0.1, 1e-8)
        torch.testing.assert_close(ours.cpu(), theirs.parameters)
        torch.testing.assert_close(square.cpu(), theirs.square)
