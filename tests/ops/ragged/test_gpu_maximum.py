"""Largest values in Triton equal torch's scatter; ``kernels.py`` says where this runs."""

import pytest
import torch
from kernels import DEVICE, law

from softperm.ops.ragged import graph_maximum, maximum, neighbour_maximum, owners


def check(x, lists, back, expected):
    """Raises unless values and gradient are those of torch's scatter."""
    from softperm.ops.ragged.gpu_maximum import maximum, maximum_backward

    there = x.detach().to(DEVICE)
    out, ties = maximum(there, *(t.to(DEVICE) for t in lists))
    torch.testing.assert_close(out.cpu(), expected.detach(), rtol=0, atol=0)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    (wanted,) = torch.autograd.grad(expected, x, grad)
    share = grad.to(DEVICE) / ties.clamp(min=1)
    found = maximum_backward(share, there, out, *(t.to(DEVICE) for t in back))
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-5, atol=1e-6)


def with_ties(vertices, features, dtype):
    """Small whole numbers, negative ones among them: most maxima are shared."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-3, 2, (vertices, features), generator=generator)
    return drawn.to(dtype).requires_grad_()


@law
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("vertices", "features"), [(40, 5), (7, 200), (1, 1)])
def test_over_neighbours(vertices, features, dtype):
    x = with_ties(vertices, features, dtype)
    dense = torch.rand(vertices, vertices, generator=torch.Generator().manual_seed(2)) < 0.6
    dense |= dense.T.clone()
    dense[0] = dense[:, 0] = False  # no neighbours
    edges = dense.nonzero().T
    ptr = torch.searchsorted(edges[0].contiguous(), torch.arange(vertices + 1))
    lists = ptr[:-1], ptr[1:], edges[1].contiguous()
    check(x, lists, lists, neighbour_maximum(x, edges))


@law
@pytest.mark.parametrize("ptr", [[0, 0, 1, 36, 38], [0], [0, 40]])
def test_over_graphs_of_all_sizes_with_vertices_outside_all(ptr):
    x, ptr = with_ties(40, 6, torch.float32), torch.tensor(ptr)
    vertex, owner = torch.arange(40), owners(ptr, 40)
    back = vertex, vertex + (owner < len(ptr) - 1).long(), owner
    check(x, (ptr[:-1], ptr[1:], vertex), back, graph_maximum(x, ptr))


@law
@pytest.mark.parametrize("over", ["neighbours", "graphs"])
def test_many_models_at_once(over, monkeypatch):
    x = torch.stack([with_ties(12, 5, torch.float64).detach().roll(m, 0) for m in range(3)])
    dense = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(2)) < 0.3
    dense = dense | dense.mT
    most = int(dense.sum((1, 2)).max())
    loops = [torch.full((2, most - int(d.sum())), 11) for d in dense]  # fill up, at the last vertex
    edges = torch.stack(
        [torch.cat([d.nonzero().T, fill], 1) for d, fill in zip(dense, loops, strict=True)]
    )
    ptr = torch.tensor([[0, 0, 3, 10], [0, 2, 2, 2], [0, 12, 12, 12]])
    function, second = {
        "neighbours": (neighbour_maximum, edges),
        "graphs": (graph_maximum, ptr),
    }[over]

    def outcome(kernels: bool):
        monkeypatch.setattr(maximum, "_has_kernels", lambda x: kernels)
        device = DEVICE if kernels else "cpu"
        given = x.to(device).requires_grad_()
        out = torch.vmap(function)(given, second.to(device))
        grad = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=device).view_as(out)
        return out.detach().cpu(), torch.autograd.grad(out, given, grad)[0].cpu()

    for ours, theirs in zip(outcome(True), outcome(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@law
def test_what_is_not_a_number_is_not_skipped(monkeypatch):
    x = torch.tensor([[1.0, torch.nan], [torch.nan, 2.0], [3.0, 4.0]])
    ptr = torch.tensor([0, 2, 3])
    expected = graph_maximum(x, ptr)
    monkeypatch.setattr(maximum, "_has_kernels", lambda x: True)
    found = graph_maximum(x.to(DEVICE), ptr.to(DEVICE)).cpu()
    assert bool(expected[0].isnan().all())
    torch.testing.assert_close(found, expected, equal_nan=True)
