"""The Triton kernels of the ragged products equal those of the CPU; ``kernels.py`` says where."""

import pytest
import torch
from kernels import DEVICE, law
from torch import Tensor

from softperm.ops.ragged import cpu

SHAPES = [
    (40, 5, 3, [[0, 1, 1, 20], [20, 22, 30, 40]]),
    (300, 20, 70, [[0, 290], [290, 298]]),
    (4, 1, 1, [[0, 0, 4]]),
    (1, 2, 2, [[0, 1], [0, 0], [1, 1]]),
    (3, 2, 2, [[0]]),
]


def equal(name: str, *arguments, rest: tuple = ()) -> None:
    """Raises unless both devices compute the same."""
    from softperm.ops.ragged import gpu  # Triton may be absent where there is no GPU

    there = (t.to(DEVICE) if isinstance(t, Tensor) else t for t in arguments)
    ours = getattr(gpu, name)(*there).cpu()
    theirs = getattr(cpu, name)(*arguments, *rest)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def propagates(x: Tensor, edges: Tensor, weight: Tensor) -> None:
    """Raises unless both devices find the same offsets of rows and the same sums."""
    equal("row_offsets", edges, x.shape[1], rest=(False,))
    offsets = cpu.row_offsets(edges, x.shape[1], False)
    for weights in (weight, None):
        equal("propagate", x, offsets, edges[:, 1], weights, rest=(False,))


@law
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("v", "p", "f", "ptr"), SHAPES)
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
        apart = edges.movedim(1, 0).contiguous().movedim(0, 1)  # as training lays them out
        assert torch.equal(edges, apart)
        propagates(left, apart, draw(m, count))


@law
@pytest.mark.parametrize("features", [3, 40, 130])
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
