"""The numba kernels against the float64 oracle."""

from dataclasses import replace

import pytest
import torch
from ops.transport.cases import differentiate, distance, draw, jointly, oracle

from softperm.ops.transport import sinkhorn

SIZES = [0, 1, 9, 33, 2, 16, 70]
SHAPES = [(False, False), (True, False), (False, True), (True, True)]  # padding, dustbin


@pytest.mark.parametrize("p", [1, 2, 5, 20, 33, 128])
@pytest.mark.parametrize(("padding", "dustbin"), SHAPES)
def test_float32_equals_the_oracle_at_every_width(p, padding, dustbin):
    case = draw(SIZES, p, 5.0, padding=padding, dustbin=dustbin, seed=p)
    plan, gradients = differentiate(case, iterations=20, tolerance=0.0, gradient="truncated")
    true_plan, true_gradients = oracle(case, iterations=20, tolerance=0.0)
    assert distance(plan, true_plan) < 1e-6
    if p > 1 or dustbin:  # with one column and no bin the plan is constant
        assert distance(jointly(gradients), jointly(true_gradients)) < 1e-5
    else:
        assert jointly(gradients).abs().max() < 1e-6


@pytest.mark.parametrize("masses", [False, True])
@pytest.mark.parametrize(("padding", "dustbin"), SHAPES)
@pytest.mark.parametrize("reach", [1.0, 30.0, 100.0])
def test_float32_equals_the_oracle_at_moderate_scores(reach, padding, dustbin, masses):
    case = draw(SIZES, 6, reach, padding=padding, dustbin=dustbin, masses=masses)
    options = {"iterations": 100, "tolerance": 0.0}
    plan, gradients = differentiate(case, gradient="truncated", **options)
    true_plan, true_gradients = oracle(case, **options)
    assert distance(plan, true_plan) < 1e-5
    assert distance(gradients["scores"], true_gradients["scores"]) < 1e-4
    assert distance(jointly(gradients), jointly(true_gradients)) < 1e-4


@pytest.mark.parametrize("reach", [1e3, 1e4, 1e6, 1e20])
@pytest.mark.parametrize(("padding", "dustbin"), SHAPES)
def test_float32_is_finite_and_near_the_oracle_at_huge_scores(reach, padding, dustbin):
    case = draw(SIZES, 6, reach, padding=padding, dustbin=dustbin)
    options = {"iterations": 50, "tolerance": 0.0}
    plan, gradients = differentiate(case, **options)
    assert all(g.isfinite().all() for g in gradients.values())
    true_plan, true_gradients = oracle(case, **options)
    if reach <= 1e4:
        assert distance(plan, true_plan) < 1e-3
        # Plans are almost hard, so gradients may vanish: compared with what they are made of.
        terms = torch.linalg.vector_norm(case.grad * true_plan)
        gap = torch.linalg.vector_norm(gradients["scores"] - true_gradients["scores"])
        assert gap < 1e-4 * torch.linalg.vector_norm(true_gradients["scores"]) + 1e-10 * terms
    torch.testing.assert_close(plan.sum(1) <= 1 + 1e-5, torch.ones(len(plan), dtype=torch.bool))


@pytest.mark.parametrize(("padding", "dustbin"), SHAPES)
def test_scores_of_raw_triangle_counts_are_as_good_as_any(padding, dustbin):
    """Heavy-tailed features, thousands at most, times a few weights, rectified: many ties at 0."""
    case = draw([75, 52, 200], 12, 1.0, padding=padding, dustbin=dustbin)
    generator = torch.Generator().manual_seed(0)
    counts = torch.randn(327, generator=generator).mul(2).exp()
    counts = counts / counts.max() * 1e4
    features = torch.stack([counts, counts.sqrt()], dim=1)
    weights = torch.randn(2, 12, generator=generator)
    case = replace(case, scores=torch.relu(features @ weights))
    options = {"iterations": 100, "tolerance": 0.0}
    plan, gradients = differentiate(case, gradient="truncated", **options)
    true_plan, true_gradients = oracle(case, **options)
    assert distance(plan, true_plan) < 1e-5
    assert distance(gradients["scores"], true_gradients["scores"]) < 1e-4


@pytest.mark.parametrize(("padding", "dustbin"), SHAPES)
@pytest.mark.parametrize("reach", [3.0, 300.0])
def test_float64_equals_the_oracle_to_rounding(reach, padding, dustbin):
    case = draw(SIZES, 7, reach, padding=padding, dustbin=dustbin, dtype=torch.float64)
    options = {"iterations": 30, "tolerance": 0.0}
    plan, gradients = differentiate(case, gradient="truncated", **options)
    true_plan, true_gradients = oracle(case, **options)
    assert distance(plan, true_plan) < 1e-12
    assert distance(gradients["scores"], true_gradients["scores"]) < 1e-10


def test_graphs_of_0_to_6000_vertices_in_one_batch():
    sizes = [6000, 0, 1, 3000, 2, 64, 65, 1500]
    case = draw(sizes, 20, 10.0, padding=True)
    options = {"iterations": 10, "tolerance": 0.0}
    plan, gradients = differentiate(case, gradient="truncated", **options)
    true_plan, true_gradients = oracle(case, **options)
    assert distance(plan, true_plan) < 1e-6
    assert distance(jointly(gradients), jointly(true_gradients)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("padding", "dustbin"), SHAPES)
def test_implicit_gradient_is_the_truncated_one_at_convergence(dtype, padding, dustbin):
    case = draw(SIZES, 5, 4.0, padding=padding, dustbin=dustbin, masses=True, dtype=dtype)
    _, implicit = differentiate(case, iterations=1000, gradient="implicit")
    _, truncated = oracle(case, iterations=400, tolerance=0.0)
    bound = 1e-5 if dtype == torch.float32 else 1e-11
    assert distance(jointly(implicit), jointly(truncated)) < bound


def test_implicit_gradient_solves_the_equations_of_the_fixed_point():
    """Against the solution of the whole linear system of the plan's multipliers."""
    case = draw([6], 4, 3.0, dtype=torch.float64)
    plan, gradients = differentiate(case, iterations=1000, gradient="implicit")
    w = case.grad * plan
    system = torch.cat(
        [
            torch.cat([plan.sum(1).diag(), plan], dim=1),
            torch.cat([plan.mT, plan.sum(0).diag()], dim=1),
        ]
    )  # (N + P, N + P), singular along (1, −1), to which the right side is orthogonal
    duals = torch.linalg.pinv(system) @ torch.cat([w.sum(1), w.sum(0)])
    expected = plan * (case.grad - duals[:6, None] - duals[None, 6:])
    torch.testing.assert_close(gradients["scores"], expected, rtol=1e-9, atol=1e-12)


def test_implicit_falls_back_to_the_iterations_that_were_run():
    case = draw([12], 4, 300.0, dtype=torch.float64)  # far from convergence
    _, fallen = differentiate(case, iterations=1, gradient="implicit")
    _, truncated = differentiate(case, iterations=1, gradient="truncated")
    torch.testing.assert_close(fallen["scores"], truncated["scores"], rtol=0, atol=0)


def test_auto_takes_truncated_where_the_iteration_was_cut_off():
    case = draw([9, 5], 4, 20.0, dtype=torch.float64)
    _, auto = differentiate(case, iterations=3, tolerance=1e-9)
    _, truncated = differentiate(case, iterations=3, tolerance=1e-9, gradient="truncated")
    torch.testing.assert_close(auto["scores"], truncated["scores"], rtol=0, atol=0)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-8])
def test_early_stops_are_those_of_the_reference(tolerance):
    case = draw(SIZES, 6, 8.0, padding=True, dtype=torch.float64)
    plans, infos = zip(
        *(
            sinkhorn(
                case.scores,
                case.ptr,
                **case.arguments(),
                tolerance=tolerance,
                return_info=True,
                backend=backend,
            )
            for backend in ("fused", "reference")
        ),
        strict=True,
    )
    torch.testing.assert_close(plans[0], plans[1], rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(infos[0].iterations, infos[1].iterations, rtol=0, atol=0)
    torch.testing.assert_close(infos[0].error, infos[1].error, rtol=1e-4, atol=1e-13)
    assert infos[0].iterations.max() < 100
