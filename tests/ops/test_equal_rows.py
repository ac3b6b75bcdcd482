"""Equal vertices are found, and their common row reaches each of them."""

import numpy as np
import pytest
import torch

from softperm.ops.equal_rows import equal_rows

SIZES = (5, 0, 1, 8, 3)
PTR = torch.tensor([0, *SIZES]).cumsum(0)


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_equal_rows_are_the_distinct_rows_of_each_graph(dtype, kinds):
    generator = torch.Generator().manual_seed(kinds)
    x = drawn(kinds, 4, dtype=dtype)[torch.randint(kinds, (int(PTR[-1]),), generator=generator)]
    rows = equal_rows(x, PTR)
    assert torch.equal(rows.expand(rows.select(x)), x)
    assert torch.equal(torch.bincount(rows.place), rows.count)
    assert torch.equal(rows.place[rows.order], rows.place.sort().values)
    assert torch.equal(rows.order.sort().values, torch.arange(len(x)))
    for begin, end, first, last in zip(PTR, PTR[1:], rows.ptr, rows.ptr[1:], strict=False):
        assert last - first == len(x[begin:end].unique(dim=0))
        assert bool(((rows.place[begin:end] >= first) & (rows.place[begin:end] < last)).all())
    assert rows.largest == max(rows.ptr.diff().tolist())


def test_a_row_receives_the_gradients_of_its_vertices():
    x = torch.tensor([1.0, 2.0, 1.0, 1.0, 2.0])[torch.randint(5, (int(PTR[-1]),))][:, None]
    rows = equal_rows(x, PTR)
    values = drawn(len(rows.count), 3).requires_grad_()
    assert torch.autograd.gradcheck(rows.expand, values)
    weight = drawn(len(x), 3, seed=1)
    (ours,) = torch.autograd.grad((rows.expand(values) * weight).sum(), values)
    (wanted,) = torch.autograd.grad((values[rows.place] * weight).sum(), values)
    torch.testing.assert_close(ours, wanted)


def test_rows_are_not_merged_where_that_gains_nothing():
    assert equal_rows(drawn(int(PTR[-1]), 4), PTR) is None  # all distinct
    assert equal_rows(torch.ones(int(PTR[-1]) + 1, 4), PTR) is None  # a vertex of no graph
    assert equal_rows(torch.ones(0, 4), torch.tensor([0])) is None


def test_colliding_hashes_are_told_apart():
    """Rows whose sum of products is the same: the constants of two columns cancel."""
    x = torch.zeros(4, 2)
    x.numpy().view(np.uint32)[1:3] = [[3 << 8, 0], [0, 1 << 8]]
    rows = equal_rows(x, torch.tensor([0, 4]))
    assert rows.place.tolist() == [0, 1, 2, 0]
