"""The registered operator: torch's checks, gradients, mapping over models, compilation."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ops.transport.cases import draw
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from softperm.ops.transport import pose, sinkhorn, sinkhorn_backward_op, sinkhorn_op

SHAPES = [(False, False), (True, False), (False, True), (True, True)]  # padding, dustbin


def _operands(padding, dustbin, dtype=torch.float64):
    case = draw([4, 0, 3], 3, 2.0, padding=padding, dustbin=dustbin, dtype=dtype)
    tensors = list(vars(pose(case.scores, case.ptr, **case.arguments())).values())
    for i in (0, 4, 6):  # scores, extra rows, bin score
        tensors[i] = tensors[i].detach().clone().requires_grad_()
    return tensors


@pytest.mark.parametrize(("padding", "dustbin"), SHAPES)
def test_operators_follow_torchs_rules(padding, dustbin):
    tensors = _operands(padding, dustbin)
    torch.library.opcheck(sinkhorn_op, (*tensors, 6, 0.0, 1, -1))
    plan, history, used, _ = sinkhorn_op(*tensors, 6, 0.0, 1, -1)
    inputs = [t.detach() for t in (torch.rand_like(plan), *tensors, history, used)]
    torch.library.opcheck(sinkhorn_backward_op, (*inputs, 0.0, 1, -1))


@pytest.mark.parametrize(("padding", "dustbin"), SHAPES)
@pytest.mark.parametrize(("gradient", "iterations"), [("truncated", 4), ("implicit", 2000)])
def test_gradients_equal_finite_differences(padding, dustbin, gradient, iterations):
    case = draw([4, 1, 3], 3, 2.0, padding=padding, dustbin=dustbin, dtype=torch.float64)
    leaves = [t for t in (case.scores, case.padding, case.dustbin) if t is not None]
    leaves = [t.detach().clone().requires_grad_() for t in leaves]

    def plan(scores, *others):
        others = list(others)
        arguments = case.arguments()
        arguments["padding"] = others.pop(0) if padding else None
        arguments["dustbin"] = others.pop(0) if dustbin else None
        return sinkhorn(
            scores, case.ptr, **arguments, gradient=gradient, iterations=iterations, tolerance=1e-15
        )

    assert gradcheck(plan, leaves)


def _stack(models: int, dustbin: bool):
    cases = [draw([5, 8], 4, 4.0, padding=True, dustbin=dustbin, seed=s) for s in range(models)]
    shared = cases[0]

    def plan(scores, padding, bin_score):
        return sinkhorn(
            scores,
            shared.ptr,
            padding=padding,
            padding_mass=shared.padding_mass,
            dustbin=bin_score if dustbin else None,
            iterations=12,
        )

    bins = torch.rand(models, generator=torch.Generator().manual_seed(0))
    scores, padding, grad = (
        torch.stack([getattr(c, name) for c in cases]) for name in ("scores", "padding", "grad")
    )
    return plan, [t.requires_grad_() for t in (scores, padding, bins)], grad


@pytest.mark.parametrize("dustbin", [False, True])
def test_mapping_over_models_is_a_loop_over_models(dustbin):
    plan, leaves, grad = _stack(3, dustbin)
    mapped = torch.vmap(plan)(*leaves)
    mapped_gradients = torch.autograd.grad(mapped, leaves, grad, allow_unused=True)
    looped = torch.stack([plan(*(t[i] for t in leaves)) for i in range(3)])
    looped_gradients = torch.autograd.grad(looped, leaves, grad, allow_unused=True)
    torch.testing.assert_close(mapped, looped, rtol=0, atol=0)
    for ours, theirs in zip(mapped_gradients, looped_gradients, strict=True):
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_mapping_over_some_of_the_arguments():
    plan, (scores, padding, bins), _ = _stack(3, False)
    mapped = torch.vmap(plan, in_dims=(1, None, None))(
        scores.detach().movedim(0, 1), padding[0].detach(), bins[0].detach()
    )
    looped = torch.stack([plan(scores[i], padding[0], None) for i in range(3)])
    torch.testing.assert_close(mapped, looped.detach(), rtol=0, atol=0)


COMPILED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from softperm.ops.transport import sinkhorn
from ops.transport.cases import draw
for dustbin in (False, True):
    case = draw([5, 8, 2], 4, 4.0, padding=True, dustbin=dustbin)
    def loss(scores):
        plan = sinkhorn(scores, case.ptr, **case.arguments(), iterations=9)
        return (plan * case.grad).sum()
    values, gradients = [], []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        scores = case.scores.clone().requires_grad_()
        values.append(function(scores))
        values[-1].backward()
        gradients.append(scores.grad)
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(gradients[0], gradients[1])
"""


def test_compiled_code_computes_the_same():
    """In a separate process, because the shape checks of a test run cannot be compiled."""
    tests = Path(__file__).parents[2]
    command = [sys.executable, "-W", "ignore", "-c", COMPILED, str(tests)]
    subprocess.run(command, check=True, timeout=300, cwd=tests.parent)


def test_masses_receive_no_gradient():
    case = draw([6], 3, masses=True, dtype=torch.float64)
    masses = [t.clone().requires_grad_() for t in (case.row_mass, case.column_mass)]
    scores = case.scores.clone().requires_grad_()
    case = replace(case, scores=scores, row_mass=masses[0], column_mass=masses[1])
    plan = sinkhorn(case.scores, case.ptr, **case.arguments())
    plan.sum().backward()
    assert scores.grad is not None
    assert all(mass.grad is None for mass in masses)


def test_second_derivatives_raise_an_error():
    case = draw([4, 3], 3, 2.0, dtype=torch.float64)
    scores = case.scores.clone().requires_grad_()
    plan = sinkhorn(scores, case.ptr)
    (gradient,) = torch.autograd.grad(plan.square().sum(), scores, create_graph=True)
    with pytest.raises(NotImplementedError, match="use backend='reference'"):
        gradient.sum().backward()
    options = {"iterations": 3, "tolerance": 0.0, "backend": "reference"}
    assert gradgradcheck(lambda s: sinkhorn(s, case.ptr, **options), scores)


def test_forward_mode_and_function_transforms_raise_an_error():
    case = draw([4, 3], 3, 2.0, dtype=torch.float64)
    scores, direction = case.scores, torch.ones_like(case.scores)

    def total(s, **options):
        return sinkhorn(s, case.ptr, **options).square().sum()

    stacked = torch.stack([scores, scores])
    for derivative in (
        lambda: torch.func.grad(total)(scores),
        lambda: torch.func.jvp(total, (scores,), (direction,)),
        lambda: torch.func.jvp(torch.vmap(total), (stacked,), (stacked,)),
        lambda: torch.vmap(torch.func.grad(total))(stacked),
    ):
        with pytest.raises(NotImplementedError, match="backend='reference' does"):
            derivative()
    with forward_ad.dual_level(), pytest.raises(NotImplementedError):
        total(forward_ad.make_dual(scores, direction))
    gradient = torch.func.grad(lambda s: total(s, backend="reference"))(scores)
    scores = scores.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(total(scores), scores)[0], gradient)


@pytest.mark.usefixtures("without_shape_checks")  # which accept plain numbers only
def test_numbers_may_be_tensors_without_axes():
    case = draw([4, 3], 3, 2.0)
    numbers = {"iterations": 7, "tolerance": 0.5, "largest": 4}
    plan = sinkhorn(case.scores, case.ptr, **numbers)
    tensors = {name: torch.tensor(number) for name, number in numbers.items()}
    assert torch.equal(sinkhorn(case.scores, case.ptr, **tensors), plan)


@pytest.mark.usefixtures("without_shape_checks")  # which accept no unsigned types
def test_offsets_may_have_any_integer_type():
    case = draw([4, 3], 3, 2.0)
    plan = sinkhorn(case.scores, case.ptr)
    for kind in (torch.uint8, torch.int16, torch.int32):
        for masses in ({}, {"row_mass": torch.ones(7)}):
            assert torch.equal(sinkhorn(case.scores, case.ptr.to(kind), **masses), plan)


def test_twice_the_same_bits():
    case = draw([40, 9, 17], 6, 30.0, padding=True, dustbin=True)
    runs = []
    for _ in range(2):
        scores = case.scores.clone().requires_grad_()
        plan = sinkhorn(scores, case.ptr, **case.arguments())
        (gradient,) = torch.autograd.grad(plan, scores, case.grad)
        runs.append((plan.detach(), gradient))
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)
