"""The registered operator: what torch asks of it, gradients, stacking, compilation."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck

from softperm.transport import sinkhorn
from softperm.transport.operators import sinkhorn_backward_op, sinkhorn_op
from softperm.transport.problem import pose
from transport.cases import draw

SHAPES = [(False, False), (True, False), (False, True), (True, True)]  # padding, dustbin


def _operands(padding, dustbin, dtype=torch.float64):
    case = draw([4, 0, 3], 3, 2.0, padding=padding, dustbin=dustbin, dtype=dtype)
    tensors = list(vars(pose(case.scores, case.ptr, **case.arguments())).values())
    for i in (0, 4, 6):  # scores, extra rows, bin score
        tensors[i] = tensors[i].detach().clone().requires_grad_()
    return tensors


@pytest.mark.parametrize(("padding", "dustbin"), SHAPES)
def test_operators_keep_torchs_rules(padding, dustbin):
    tensors = _operands(padding, dustbin)
    torch.library.opcheck(sinkhorn_op, (*tensors, 6, 0.0, 1))
    plan, history, used, error = sinkhorn_op(*tensors, 6, 0.0, 1)
    saved = [t.detach() for t in (plan, *tensors, history, used, error)]
    torch.library.opcheck(sinkhorn_backward_op, (torch.rand_like(saved[0]), *saved, 0.0, 1))


@pytest.mark.parametrize(("padding", "dustbin"), SHAPES)
@pytest.mark.parametrize(("gradient", "iterations"), [("truncated", 4), ("implicit", 2000)])
def test_gradients_are_those_of_finite_differences(padding, dustbin, gradient, iterations):
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
    stacked = [
        torch.stack([c.scores for c in cases]),
        torch.stack([c.padding for c in cases]),
        bins,
    ]
    return plan, [t.requires_grad_() for t in stacked], torch.stack([c.grad for c in cases])


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


def test_gradients_may_be_mapped_too():
    plan, leaves, grad = _stack(3, True)

    def loss(scores, padding, bin_score, weight):
        return (plan(scores, padding, bin_score) * weight).sum()

    leaves = [t.detach() for t in leaves]
    mapped = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*leaves, grad)
    for i in range(3):
        alone = torch.func.grad(loss, argnums=(0, 1, 2))(*(t[i] for t in leaves), grad[i])
        for ours, theirs in zip(mapped, alone, strict=True):
            torch.testing.assert_close(ours[i], theirs, rtol=0, atol=0)


@pytest.mark.parametrize("dustbin", [False, True])
def test_compiled_code_computes_the_same(dustbin):
    case = draw([5, 8, 2], 4, 4.0, padding=True, dustbin=dustbin)

    def loss(scores):
        plan = sinkhorn(scores, case.ptr, **case.arguments(), iterations=9)
        return (plan * case.grad).sum()

    eager_scores = case.scores.clone().requires_grad_()
    compiled_scores = case.scores.clone().requires_grad_()
    expected = loss(eager_scores)
    value = torch.compile(loss, fullgraph=True, backend="aot_eager")(compiled_scores)
    torch.testing.assert_close(value, expected)
    expected.backward()
    value.backward()
    torch.testing.assert_close(compiled_scores.grad, eager_scores.grad)


def test_masses_carry_no_gradient():
    case = draw([6], 3, masses=True, dtype=torch.float64)
    masses = [t.clone().requires_grad_() for t in (case.row_mass, case.column_mass)]
    scores = case.scores.clone().requires_grad_()
    case = replace(case, scores=scores, row_mass=masses[0], column_mass=masses[1])
    plan = sinkhorn(case.scores, case.ptr, **case.arguments())
    plan.sum().backward()
    assert scores.grad is not None
    assert all(mass.grad is None for mass in masses)


def test_twice_the_same_bits():
    case = draw([40, 9, 17], 6, 30.0, padding=True, dustbin=True)
    runs = []
    for _ in range(2):
        scores = case.scores.clone().requires_grad_()
        plan = sinkhorn(scores, case.ptr, **case.arguments())
        (gradient,) = torch.autograd.grad(plan, scores, case.grad)
        runs.append((plan.detach(), gradient))
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)
