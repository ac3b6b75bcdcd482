"""The Triton kernels of the ragged products equal those of the CPU; ``kernels.py`` says where."""

import pytest
import torch
from kernels import DEVICE, law

from softperm.ragged import cpu

SHAPES = [
    (40, 5, 3, [[0, 1, 1, 20], [20, 22, 30, 40]]),
    (300, 20, 70, [[0, 290], [290, 298]]),
    (4, 1, 1, [[0, 0, 4]]),
    (3, 2, 2, [[0]]),
]


def equal(name: str, *arguments, symmetric: tuple = ()) -> None:
    """Raises unless both devices compute the same."""
    from softperm.ragged import gpu  # Triton may be absent where there is no GPU

    ours = getattr(gpu, name)(*(t.to(DEVICE) for t in arguments)).cpu()
    theirs = getattr(cpu, name)(*arguments, *symmetric)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@law
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("v", "p", "f", "ptr"), SHAPES)
def test_kernels_equal_those_of_the_cpu(v, p, f, ptr, dtype):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    left, right, ptr = draw(v, p), draw(v, f), torch.tensor(ptr)
    equal("pool", left, right, ptr)
    equal("spread", draw(len(ptr), ptr.shape[1] - 1, p, f), right, ptr)
    edges = torch.randint(v, (2, 5 * v), generator=generator)
    edges = edges[:, edges[0].argsort(stable=True)]
    equal("propagate", left, edges, draw(5 * v), symmetric=(False,))


@law
@pytest.mark.parametrize("features", [3, 40, 130])
@pytest.mark.parametrize("alone", [0, 150], ids=["many edges", "few edges"])
def test_vertices_of_all_degrees_are_summed_to_their_last_edge(alone, features):
    generator = torch.Generator().manual_seed(1)
    degrees = torch.tensor([0, 1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300])
    degrees = torch.cat([degrees, torch.zeros(alone, dtype=torch.long)])
    row = torch.arange(len(degrees)).repeat_interleave(degrees)
    col = torch.randint(len(degrees), row.shape, generator=generator)
    x = torch.randn(len(degrees), features, generator=generator)
    weight = torch.randn(len(row), generator=generator)
    equal("propagate", x, torch.stack([row, col]), weight, symmetric=(False,))
