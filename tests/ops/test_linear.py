"""Linear layers of one and of many models."""

import pytest
import torch
from torch.func import functional_call, stack_module_state
from torch.nn.functional import linear as torch_linear

from softperm.ops import layers as module
from softperm.ops.layers import SHARE, Linear, linear, vertex_linear, weight_gradient


@pytest.fixture
def shared(monkeypatch):
    """Uses the path for GPUs, where models share launches."""
    monkeypatch.setattr(module, "_launches_shared", lambda _: True)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def assert_same(ours, expected, tensors):
    """Raises unless values and gradients with respect to the tensors agree."""
    torch.testing.assert_close(ours, expected)
    pull = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad((ours * pull).sum(), tensors),
        torch.autograd.grad((expected * pull).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.usefixtures("shared")
def test_one_model_gets_torchs_values_and_gradients(bias):
    tensors = [drawn(7, 3), drawn(5, 3, seed=1), *([drawn(5, seed=2)] if bias else [])]
    ours, expected = linear(*tensors), torch_linear(*tensors)
    assert_same(ours, expected, tensors)


@pytest.mark.usefixtures("shared")
def test_first_and_second_derivatives_equal_finite_differences():
    tensors = (drawn(4, 3), drawn(2, 3, seed=1), drawn(2, seed=2))
    assert torch.autograd.gradcheck(linear, tensors)
    assert torch.autograd.gradgradcheck(linear, tensors)


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (1, 0, 0), (0, None, None), (None, 0, 0)])
@pytest.mark.usefixtures("shared")
def test_many_models_at_once_equal_each_model_alone(in_dims):
    x = drawn(7, 3) if in_dims[0] is None else drawn(4, 7, 3)
    x = x.detach().movedim(0, 1).requires_grad_() if in_dims[0] == 1 else x
    weight, bias = (drawn(5, 3), drawn(5)) if in_dims[1] is None else (drawn(4, 5, 3), drawn(4, 5))
    tensors = (x, weight, bias)
    ours = torch.vmap(linear, in_dims)(*tensors)
    expected = torch.vmap(torch_linear, in_dims)(*tensors)
    assert_same(ours, expected, tensors)


@pytest.mark.usefixtures("shared")
def test_the_gradient_of_stacked_weights_has_their_memory_layout():
    models = [Linear(3, 5) for _ in range(4)]
    params, buffers = stack_module_state(models)
    out = torch.vmap(lambda p, x: functional_call(models[0], (p, buffers), x))(
        params, torch.randn(4, 9, 3)
    )
    for grad in torch.autograd.grad(out.square().sum(), list(params.values())):
        assert grad.is_contiguous()


def test_dividing_rows_into_shares_does_not_change_the_sum(monkeypatch):
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
def test_the_rounding_of_a_vertex_depends_on_no_other_vertex(features):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, features, generator=generator)
    bias = torch.randn(8, generator=generator)
    row = torch.randn(1, features, generator=generator)
    for count in (5, 9, 17, 31, 65):
        ours = vertex_linear(row.expand(count, features).contiguous(), weight, bias)
        assert torch.equal(ours, vertex_linear(row, weight, bias).expand(count, 8))
