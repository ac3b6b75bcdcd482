"""Batch normalisation in Triton equals that of torch; ``kernels.py`` says where this runs."""

import pytest
import torch
from kernels import DEVICE, law
from torch import Tensor

from softperm.ops import layers
from softperm.ops.layers import VertexBatchNorm

MOMENTUM = 0.3
SHAPES = [
    (3, 300, 20, [300, 7, 0]),  # all rows real, few, none
    (2, 33, 70, [1, 40]),  # one real row; a count larger than the number of rows
    (1, 1, 1, [1]),
    (2, 0, 4, [0, 0]),
]


def expected(
    x: Tensor, weight: Tensor, bias: Tensor, count: Tensor, running: Tensor, relu: bool
) -> list[Tensor]:
    """Rows, means, variances and running statistics of each model, from a module of its own."""
    results = []
    for rows, w, b, n, mean, var in zip(x, weight, bias, count, *running, strict=True):
        norm = VertexBatchNorm(len(w), momentum=MOMENTUM, relu=relu).to(w.dtype)
        learnt = {"running_mean": mean.clone(), "running_var": var.clone()}
        n = n.clamp(max=len(rows))
        y = torch.func.functional_call(norm, {"weight": w, "bias": b, **learnt}, (rows, n))
        real = rows[:n].detach()
        var, mean = torch.var_mean(real, dim=0, correction=0) if n else (w * 0, w * 0)
        results.append((y, mean.detach(), var.detach(), *learnt.values()))
    return [torch.stack(parts) for parts in zip(*results, strict=True)]


@law
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("models", "v", "h", "count"),
    [pytest.param(*shape, marks=[pytest.mark.slow] * (shape[1] == 300)) for shape in SHAPES],
)
def test_kernels_equal_the_module(models, v, h, count, dtype, relu):
    from softperm.ops.gpu_normalisation import normalise, normalise_backward

    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    x, weight, bias = 3 * draw(models, v, h) + 50, draw(models, h), draw(models, h)
    running = draw(2, models, h)
    grad, count = draw(models, v, h), torch.tensor(count)
    given = [t.requires_grad_() for t in (x, weight, bias)]
    theirs = expected(*given, count, running, relu)
    there = [t.detach().to(DEVICE) for t in (*given, count)]
    ours = normalise(*there, *running.to(DEVICE), 1e-5, relu, MOMENTUM)
    close = {"rtol": 1e-4, "atol": 3e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.cpu(), other.detach(), **close)
    their_gradients = torch.autograd.grad(theirs[0], given, grad)
    gradients = normalise_backward(grad.to(DEVICE), *there, *ours[1:3], 1e-5, relu)
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-8}
    for one, other in zip(gradients, their_gradients, strict=True):
        torch.testing.assert_close(one.cpu(), other, **close)


@law
def test_far_from_zero_the_variance_keeps_its_digits():
    from softperm.ops.gpu_normalisation import normalise

    x = torch.randn(1, 1000, 16, generator=torch.Generator().manual_seed(0)) + 1e4
    ones = torch.ones(1, 16)
    count = torch.tensor([1000])
    given = (t.to(DEVICE) for t in (x, ones, ones, count, ones, ones))
    _, _, var, *_ = normalise(*given, 1e-5, False, 0.1)
    torch.testing.assert_close(
        var.cpu().double(), x.double().var(1, correction=0), rtol=1e-3, atol=0
    )


@law
def test_a_model_that_diverged_stays_nan_and_spoils_no_other():
    from softperm.ops.gpu_normalisation import normalise

    x = torch.randn(2, 40, 5, generator=torch.Generator().manual_seed(0))
    x[0, 3, 2] = torch.nan
    ones, count = torch.ones(2, 5), torch.tensor([40, 40])
    given = (t.to(DEVICE) for t in (x, ones, ones, count, ones, ones))
    y, *_ = normalise(*given, 1e-5, True, 0.1)
    assert bool(y[0, :, 2].isnan().all())
    assert bool(y[1].isfinite().all())


@law
@pytest.mark.parametrize("mapped", ["rows", "rows last", "nothing but the parameters"])
def test_models_at_once_are_each_normalised_by_their_own_count(mapped, monkeypatch):
    """Counts are the last entries of each model's offsets: they are not contiguous."""
    generator = torch.Generator().manual_seed(0)
    ptr = torch.tensor([[0, 11, 50], [0, 9, 20], [0, 0, 0]])
    x, grad = torch.randn(2, 3, 50, 7, generator=generator, dtype=torch.float64)
    weight, bias = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64)
    if mapped == "rows last":
        x = x.movedim(0, 2).contiguous()
    place = {"rows": 0, "rows last": 2}.get(mapped)
    rows = x if place is not None else x[0]

    def outcome(kernels: bool) -> list[Tensor]:
        monkeypatch.setattr(layers, "_has_kernels", lambda *given: kernels)
        device = DEVICE if kernels else "cpu"
        norm = VertexBatchNorm(7, relu=True).double().to(device)
        running = [torch.zeros(3, 7, dtype=torch.float64, device=device) for _ in range(2)]
        given = [t.to(device).detach().requires_grad_() for t in (rows, weight, bias)]

        def one(x, weight, bias, mean, var, ptr):
            state = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
            return torch.func.functional_call(norm, state, (x, ptr[-1]))

        y = torch.vmap(one, in_dims=(place, 0, 0, 0, 0, 0))(*given, *running, ptr.to(device))
        assert not any(t.requires_grad for t in running)  # or steps keep earlier graphs
        gradients = torch.autograd.grad(y, given, grad.to(device))
        return [t.detach().cpu() for t in (y, *gradients, *running)]

    for ours, theirs in zip(outcome(True), outcome(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-8)
