"""Batch normalisation in Triton equals that of torch; ``kernels.py`` says where this runs."""

import pytest
import torch
from kernels import DEVICE, law
from torch import Tensor

from softperm import normalisation
from softperm.normalisation import VertexBatchNorm

SHAPES = [
    (3, 300, 20, [300, 7, 0]),  # all rows real, few, none
    (2, 33, 70, [1, 40]),  # one real row; more claimed than there are
    (1, 1, 1, [1]),
    (2, 0, 4, [0, 0]),
]


def expected(
    x: Tensor, weight: Tensor, bias: Tensor, count: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, means and variances of each model by its own module."""
    made = []
    for rows, w, b, n in zip(x, weight, bias, count, strict=True):
        norm = VertexBatchNorm(len(w), momentum=1.0, relu=relu).to(w.dtype)
        state = {"weight": w, "bias": b, **dict(norm.named_buffers())}
        n = n.clamp(max=len(rows))
        y = torch.func.functional_call(norm, state, (rows, n))
        real = rows[:n].detach()
        var, mean = torch.var_mean(real, dim=0, correction=0) if n else (w * 0, w * 0)
        made.append((y, mean.detach(), var.detach()))
    y, mean, var = zip(*made, strict=True)
    return torch.stack(y), torch.stack(mean), torch.stack(var)


@law
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("models", "v", "h", "count"), SHAPES)
def test_kernels_equal_the_module(models, v, h, count, dtype, relu):
    from softperm.normalisation.gpu import normalise, normalise_backward

    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    x, weight, bias = 3 * draw(models, v, h) + 50, draw(models, h), draw(models, h)
    grad, count = draw(models, v, h), torch.tensor(count)
    given = [t.requires_grad_() for t in (x, weight, bias)]
    theirs = expected(*given, count, relu)
    there = [t.detach().to(DEVICE) for t in given]
    ours = normalise(*there, count.to(DEVICE), 1e-5, relu)
    close = {"rtol": 1e-4, "atol": 3e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.cpu(), other.detach(), **close)
    wanted = torch.autograd.grad(theirs[0], given, grad)
    found = normalise_backward(grad.to(DEVICE), *there, count.to(DEVICE), *ours[1:], 1e-5, relu)
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-8}
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.cpu(), other, **close)


@law
def test_far_from_zero_the_variance_keeps_its_digits():
    from softperm.normalisation.gpu import normalise

    x = torch.randn(1, 1000, 16, generator=torch.Generator().manual_seed(0)) + 1e4
    ones = torch.ones(1, 16)
    count = torch.tensor([1000])
    _, _, var = normalise(*(t.to(DEVICE) for t in (x, ones, ones, count)), 1e-5, False)
    torch.testing.assert_close(
        var.cpu().double(), x.double().var(1, correction=0), rtol=1e-3, atol=0
    )


@law
def test_a_model_that_diverged_stays_nan_and_spoils_no_other():
    from softperm.normalisation.gpu import normalise

    x = torch.randn(2, 40, 5, generator=torch.Generator().manual_seed(0))
    x[0, 3, 2] = torch.nan
    ones, count = torch.ones(2, 5), torch.tensor([40, 40])
    y, _, _ = normalise(*(t.to(DEVICE) for t in (x, ones, ones, count)), 1e-5, True)
    assert bool(y[0, :, 2].isnan().all())
    assert bool(y[1].isfinite().all())


@law
@pytest.mark.parametrize("mapped", ["rows", "rows last", "nothing but the parameters"])
def test_models_side_by_side_are_each_normalised_by_their_own_count(mapped, monkeypatch):
    """Counts are the last entries of each model's offsets: they do not lie side by side."""
    generator = torch.Generator().manual_seed(0)
    ptr = torch.tensor([[0, 11, 50], [0, 9, 20], [0, 0, 0]])
    x, grad = torch.randn(2, 3, 50, 7, generator=generator, dtype=torch.float64)
    weight, bias = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64)
    if mapped == "rows last":
        x = x.movedim(0, 2).contiguous()
    place = {"rows": 0, "rows last": 2}.get(mapped)
    rows = x if place is not None else x[0]

    def outcome(kernels: bool) -> list[Tensor]:
        monkeypatch.setattr(normalisation, "_has_kernels", lambda *given: kernels)
        device = DEVICE if kernels else "cpu"
        norm = VertexBatchNorm(7, relu=True).double().to(device)
        running = [torch.zeros(3, 7, dtype=torch.float64, device=device) for _ in range(2)]
        given = [t.to(device).detach().requires_grad_() for t in (rows, weight, bias)]

        def one(x, weight, bias, mean, var, ptr):
            state = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
            return torch.func.functional_call(norm, state, (x, ptr[-1]))

        y = torch.vmap(one, in_dims=(place, 0, 0, 0, 0, 0))(*given, *running, ptr.to(device))
        found = torch.autograd.grad(y, given, grad.to(device))
        return [t.detach().cpu() for t in (y, *found, *running)]

    for ours, theirs in zip(outcome(True), outcome(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-8)
