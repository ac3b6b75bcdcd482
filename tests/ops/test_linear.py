"""Linear layers of one and of many models."""

import pytest
import torch
from torch.func import functional_call, stack_module_state
from torch.nn.functional import linear as torch_linear

from softperm.ops import linear as module
from softperm.ops.linear import SHARE, Linear, linear, vertex_linear, weight_gradient


@pytest.fixture
def shared(monkeypatch):
    """Launches are shared, as on a GPU."""
    monkeypatch.setattr(module, "_launches_shared", lambda _: True)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def assert_same(found, wanted, tensors):
    """The same values, and the same gradients of them with respect to the tensors."""
    torch.testing.assert_close(found, wanted)
    pull = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad((found * pull).sum(), tensors),
        torch.autograd.grad((wanted * pull).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.usefixtures("shared")
def test_one_model_gets_torchs_values_and_gradients(bias):
    tensors = [drawn(7, 3), drawn(5, 3, seed=1), *([drawn(5, seed=2)] if bias else [])]
    found, wanted = linear(*tensors), torch_linear(*tensors)
    assert_same(found, wanted, tensors)


@pytest.mark.usefixtures("shared")
def test_gradients_and_their_gradients_equal_differences():
    tensors = (drawn(4, 3), drawn(2, 3, seed=1), drawn(2, seed=2))
    assert torch.autograd.gradcheck(linear, tensors)
    assert torch.autograd.gradgradcheck(linear, tensors)


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (1, 0, 0), (0, None, None), (None, 0, 0)])
@pytest.mark.usefixtures("shared")
def test_many_models_get_what_each_gets_alone(in_dims):
    x = drawn(7, 3) if in_dims[0] is None else drawn(4, 7, 3)
    x = x.detach().movedim(0, 1).requires_grad_() if in_dims[0] == 1 else x
    weight, bias = (drawn(5, 3), drawn(5)) if in_dims[1] is None else (drawn(4, 5, 3), drawn(4, 5))
    tensors = (x, weight, bias)
    found = torch.vmap(linear, in_dims)(*tensors)
    wanted = torch.vmap(torch_linear, in_dims)(*tensors)
    assert_same(found, wanted, tensors)


@pytest.mark.usefixtures("shared")
def test_the_gradient_of_stacked_weights_lies_in_memory_as_they_do():
    models = [Linear(3, 5) for _ in range(4)]
    params, buffers = stack_module_state(models)
    out = torch.vmap(lambda p, x: functional_call(models[0], (p, buffers), x))(
        params, torch.randn(4, 9, 3)
    )
    for grad in torch.autograd.grad(out.square().sum(), list(params.values())):
        assert grad.is_contiguous()


def test_rows_divided_into_shares_sum_to_the_same(monkeypatch):
    grad, x = drawn(2, 6 * SHARE, 5), drawn(2, 6 * SHARE, 3, seed=1)
    whole = weight_gradient(grad, x)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    torch.testing.assert_close(weight_gradient(grad, x), whole)


def test_mixed_precision_multiplies_with_16_bits():
    layer = Linear(3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(torch.randn(4, 3))
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("features", [1, 3, 5, 7, 11])
def test_a_vertex_rounds_alike_in_every_place_and_company(features):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, features, generator=generator)
    bias = torch.randn(8, generator=generator)
    row = torch.randn(1, features, generator=generator)
    for count in (5, 9, 17, 31, 65):
        found = vertex_linear(row.expand(count, features).contiguous(), weight, bias)
        assert torch.equal(found, vertex_linear(row, weight, bias).expand(count, 8))
