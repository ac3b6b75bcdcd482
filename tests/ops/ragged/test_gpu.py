"""The Triton kernels over graphs equal numba's and torch's; ``kernels.py`` says where this runs."""

import pytest
import torch
from kernels import DEVICE, law
from torch import Tensor

from softperm.ops import ragged
from softperm.ops.ragged import graph_maximum, neighbour_maximum, owners

SHAPES = [
    (40, 5, 3, [[0, 1, 1, 20], [20, 22, 30, 40]]),
    (20, 17, 66, [[0, 14], [14, 20]]),  # more columns than a block has
    (300, 20, 70, [[0, 290], [290, 298]]),
    (4, 1, 1, [[0, 0, 4]]),
    (1, 2, 2, [[0, 1], [0, 0], [1, 1]]),
    (3, 2, 2, [[0]]),
]


def equal(name: str, *arguments) -> None:
    """Raises unless both devices compute the same."""
    from softperm.ops.ragged import gpu  # Triton may be absent where there is no GPU

    on_device = (t.to(DEVICE) if isinstance(t, Tensor) else t for t in arguments)
    ours = getattr(gpu, name)(*on_device).cpu()
    theirs = getattr(ragged, f"_{name}_cpu")(*arguments)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def propagates(x: Tensor, edges: Tensor, weight: Tensor) -> None:
    """Raises unless both devices compute the same offsets of rows and the same sums."""
    equal("row_offsets", edges, x.shape[1], False)
    offsets = ragged._row_offsets_cpu(edges, x.shape[1], False)
    for weights in (weight, None):
        equal("propagate", x, offsets, edges[:, 1], weights, False)


@law
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("v", "p", "f", "ptr"),
    [pytest.param(*shape, marks=[pytest.mark.slow] * (shape[0] == 300)) for shape in SHAPES],
)
def test_kernels_equal_those_of_the_cpu(v, p, f, ptr, dtype):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    ptr = torch.tensor(ptr)
    m = len(ptr)
    left, right = draw(m, v, p), draw(m, v, f)
    equal("pool", left, right, ptr)
    equal("spread", draw(m, ptr.shape[1] - 1, p, f), right, ptr)
    for count in (0, 1, 5 * v):
        edges = torch.randint(v, (m, 2, count), generator=generator)
        edges = edges.gather(2, edges[:, :1].argsort(dim=2, stable=True).expand_as(edges))
        apart = edges.movedim(1, 0).contiguous().movedim(0, 1)  # the memory layout of training
        assert torch.equal(edges, apart)
        propagates(left, apart, draw(m, count))


@law
@pytest.mark.parametrize("features", [3, 20])
@pytest.mark.parametrize("items", [2, 90])
def test_lists_of_rows_are_summed(features, items):
    """More places than rows, and fewer; the last places have no list."""
    generator = torch.Generator().manual_seed(items)
    for rows, places in ((5, 12), (40, 3)):
        x = torch.randn(2, rows, features, generator=generator)
        ends = torch.randint(items + 1, (2, places), generator=generator).sort().values
        ptr = torch.nn.functional.pad(ends, (1, 0))
        item = torch.randint(rows, (2, items + 4), generator=generator)
        equal("transfer", x, ptr, item, ptr, item)


@law
@pytest.mark.parametrize(
    "features", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (40, 130))]
)
@pytest.mark.parametrize("alone", [0, 150], ids=["many edges", "few edges"])
def test_vertices_of_all_degrees_are_summed_to_their_last_edge(alone, features):
    generator = torch.Generator().manual_seed(1)
    degrees = torch.tensor([0, 1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300])
    degrees = torch.cat([degrees, torch.zeros(alone, dtype=torch.long)])
    row = torch.stack(
        [torch.arange(len(d)).repeat_interleave(d) for d in (degrees, degrees.flip(0))]
    )
    col = torch.randint(len(degrees), row.shape, generator=generator)
    x = torch.randn(2, len(degrees), features, generator=generator)
    propagates(x, torch.stack([row, col], dim=1), torch.randn(row.shape, generator=generator))


def check_maximum(x, lists, back, expected):
    """Raises unless values and gradient equal those of torch's scatter."""
    from softperm.ops.ragged.gpu import maximum, maximum_backward

    there = x.detach().to(DEVICE)
    out, ties = maximum(there, *(t.to(DEVICE) for t in lists))
    torch.testing.assert_close(out.cpu(), expected.detach(), rtol=0, atol=0)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    (expected_gradient,) = torch.autograd.grad(expected, x, grad)
    share = grad.to(DEVICE) / ties.clamp(min=1)
    gradient = maximum_backward(share, there, out, *(t.to(DEVICE) for t in back))
    torch.testing.assert_close(gradient.cpu(), expected_gradient, rtol=1e-5, atol=1e-6)


def with_ties(vertices, features, dtype):
    """Small integers, some negative: most maxima are attained several times."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-3, 2, (vertices, features), generator=generator)
    return drawn.to(dtype).requires_grad_()


@law
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("vertices", "features"), [(40, 5), (7, 200), (1, 1)])
def test_maximum_over_neighbours_equals_torchs_scatter(vertices, features, dtype):
    x = with_ties(vertices, features, dtype)
    dense = torch.rand(vertices, vertices, generator=torch.Generator().manual_seed(2)) < 0.6
    dense |= dense.T.clone()
    dense[0] = dense[:, 0] = False  # no neighbours
    edges = dense.nonzero().T
    ptr = torch.searchsorted(edges[0].contiguous(), torch.arange(vertices + 1))
    lists = ptr[:-1], ptr[1:], edges[1].contiguous()
    check_maximum(x, lists, lists, neighbour_maximum(x, edges))


@law
@pytest.mark.parametrize("ptr", [[0, 0, 1, 36, 38], [0], [0, 40]])
def test_maximum_over_graphs_equals_torchs_scatter(ptr):
    x, ptr = with_ties(40, 6, torch.float32), torch.tensor(ptr)
    vertex, owner = torch.arange(40), owners(ptr, 40)
    back = vertex, vertex + (owner < len(ptr) - 1).long(), owner
    check_maximum(x, (ptr[:-1], ptr[1:], vertex), back, graph_maximum(x, ptr))


@law
@pytest.mark.parametrize("over", ["neighbours", "graphs"])
def test_maximum_of_many_models_at_once(over, monkeypatch):
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
        monkeypatch.setattr(ragged, "_has_kernels", lambda x: kernels)
        device = DEVICE if kernels else "cpu"
        leaf = x.to(device).requires_grad_()
        out = torch.vmap(function)(leaf, second.to(device))
        grad = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=device).view_as(out)
        return out.detach().cpu(), torch.autograd.grad(out, leaf, grad)[0].cpu()

    for ours, theirs in zip(outcome(True), outcome(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@law
def test_maximum_of_nan_is_nan(monkeypatch):
    x = torch.tensor([[1.0, torch.nan], [torch.nan, 2.0], [3.0, 4.0]])
    ptr = torch.tensor([0, 2, 3])
    expected = graph_maximum(x, ptr)
    monkeypatch.setattr(ragged, "_has_kernels", lambda x: True)
    maximum = graph_maximum(x.to(DEVICE), ptr.to(DEVICE)).cpu()
    assert bool(expected[0].isnan().all())
    torch.testing.assert_close(maximum, expected, equal_nan=True)
