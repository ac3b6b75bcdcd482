"""Many Adams at once are as many single ones."""

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
        together.step(gradient.split(2, dim=1), active)
        for p, optimiser, g, on in zip(alone, single, gradient, active, strict=True):
            if on:
                p.grad = g.clone()
                optimiser.step()
        torch.testing.assert_close(flat, torch.stack([p.detach() for p in alone]))


def test_each_model_may_have_its_own_learning_rate():
    flat, rates = torch.zeros(2, 3), torch.tensor([1e-3, 1e-1])
    StackedAdam(flat, rates).step([torch.ones(2, 3)], torch.tensor([True, True]))
    torch.testing.assert_close(flat, -rates[:, None].expand(2, 3), rtol=1e-5, atol=0.0)
