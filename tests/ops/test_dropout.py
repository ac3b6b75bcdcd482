"""The operator of dropout: its kernel against the plain reference, gradients, many models."""

import pytest
import torch
from torch.testing import assert_close

from softperm.ops.dropout import BLOCK, _drop_reference, drop, drop_op, mix

KEYS = mix(torch.arange(3) * 12345)
SHAPES = [(3, 0), (3, 1), (3, BLOCK - 1), (3, BLOCK + 1), (1, 70_000), (0, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
def test_the_kernel_gives_the_numbers_of_the_reference(shape, dtype, p):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    keys = KEYS[: shape[0]]
    found = drop_op(x, keys, p)
    assert found.dtype == dtype
    assert_close(found, _drop_reference(x, keys, p), rtol=0, atol=0)


def test_units_that_remain_keep_what_is_not_a_number():
    x = torch.tensor([[torch.nan, torch.inf] * 50])
    found = drop_op(x, KEYS[1:2], 0.5)
    assert_close(found, _drop_reference(x, KEYS[1:2], 0.5), rtol=0, atol=0, equal_nan=True)
    assert int(found.isnan().sum()) in range(10, 40)


def test_the_gradient_belongs_to_the_units_of_the_forward_step():
    seed, step = torch.tensor(7), torch.tensor(3)
    x = torch.randn(5, 40, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: drop(t, 0.4, seed, step), x)
    y = drop(x, 0.4, seed, step)
    kept = (y != 0).double() / 0.6
    step.add_(1)  # as a network does before the gradient
    y.sum().backward()
    assert_close(x.grad, kept)


def test_models_that_are_mapped_drop_their_own_units():
    seeds, steps = torch.tensor([4, 9, 4]), torch.tensor([0, 0, 5])
    x = torch.randn(3, 6, 50, requires_grad=True)
    each = [drop(x[m], 0.3, seeds[m], steps[m]) for m in range(3)]
    found = torch.vmap(lambda *of: drop(of[0], 0.3, *of[1:]))(x, seeds, steps)
    assert_close(found, torch.stack(each), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert_close(gradient, (found != 0) / 0.7)
    shared = torch.vmap(lambda *of: drop(x[0], 0.3, *of))(seeds, steps)  # equal units, own masks
    assert not torch.equal(shared[0], shared[1])
    assert_close(shared[0], each[0], rtol=0, atol=0)
