"""Largest values in Triton equal torch's scatter; ``kernels.py`` says where this runs."""

import pytest
import torch
from kernels import DEVICE, law

from softperm.ragged import graph_maximum, neighbour_maximum, owners


def check(x, lists, back, expected):
    """Raises unless values and gradient are those of torch's scatter."""
    from softperm.ragged.gpu_maximum import maximum, maximum_backward

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
