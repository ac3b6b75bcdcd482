"""The numba kernels: against the float64 reference, on edge cases, with threads and processes."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ops.transport.cases import (
    Case,
    differentiate,
    distance,
    draw,
    jointly,
    laid_end_to_end,
    oracle,
)

from softperm.ops.transport import Problem, pose, sinkhorn, sinkhorn_op

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
        # Plans are almost hard, so gradients may vanish: compare with the size of their terms.
        terms = torch.linalg.vector_norm(case.grad * true_plan)
        gap = torch.linalg.vector_norm(gradients["scores"] - true_gradients["scores"])
        assert gap < 1e-4 * torch.linalg.vector_norm(true_gradients["scores"]) + 1e-10 * terms
    torch.testing.assert_close(plan.sum(1) <= 1 + 1e-5, torch.ones(len(plan), dtype=torch.bool))


@pytest.mark.parametrize(("padding", "dustbin"), SHAPES)
def test_scores_of_raw_triangle_counts_equal_the_oracle(padding, dustbin):
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
def test_implicit_gradient_equals_the_truncated_one_at_convergence(dtype, padding, dustbin):
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


def test_auto_uses_truncated_where_the_iteration_did_not_converge():
    case = draw([9, 5], 4, 20.0, dtype=torch.float64)
    _, auto = differentiate(case, iterations=3, tolerance=1e-9)
    _, truncated = differentiate(case, iterations=3, tolerance=1e-9, gradient="truncated")
    torch.testing.assert_close(auto["scores"], truncated["scores"], rtol=0, atol=0)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-8])
def test_early_stops_equal_those_of_the_reference(tolerance):
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


def test_reported_error_is_that_of_the_columns():
    case = draw([30, 12], 6, 40.0)
    plan, info = sinkhorn(case.scores, case.ptr, iterations=7, return_info=True)
    for graph, (i, j) in enumerate([(0, 30), (30, 42)]):
        column = plan[i:j].double().sum(0)
        error = (column * 6 / (j - i) - 1).abs().max()
        assert info.iterations[graph] == 7
        torch.testing.assert_close(info.error[graph].double(), error, rtol=1e-4, atol=1e-6)
        assert error > 1e-2  # non-convergence is visible


@pytest.mark.parametrize("b", [0, 1, 3])
def test_batches_without_vertices(b):
    scores = torch.zeros(0, 4, requires_grad=True)
    padding = torch.ones(4, requires_grad=True)
    plan, info = sinkhorn(
        scores,
        torch.zeros(b + 1, dtype=torch.int64),
        padding=padding,
        padding_mass=torch.ones(b),
        return_info=True,
    )
    plan.sum().backward()
    assert plan.shape == (0, 4)
    assert info.iterations.shape == info.error.shape == (b,)
    torch.testing.assert_close(padding.grad, torch.zeros(4))


def test_rows_without_mass_are_switched_off():
    case = draw([8, 5], 3, 4.0, masses=True)
    off = case.row_mass == 0
    plan, gradients = differentiate(case, iterations=20)
    assert off.any()
    assert plan[off].eq(0).all()
    assert gradients["scores"][off].eq(0).all()
    kept = [int((~off[:8]).sum()), int((~off[8:]).sum())]
    fewer = Case(
        case.scores[~off], laid_end_to_end(kept), case.grad[~off], case.row_mass[~off],
        case.column_mass,
    )  # fmt: skip
    plan_of_kept, gradients_of_kept = differentiate(fewer, iterations=20)
    torch.testing.assert_close(plan[~off], plan_of_kept)
    torch.testing.assert_close(gradients["scores"][~off], gradients_of_kept["scores"])


def test_columns_without_mass_stay_empty():
    case = draw([9], 4, 3.0, dtype=torch.float64)
    case = Case(case.scores, case.ptr, case.grad, column_mass=torch.tensor([4.0, 0, 5, 0]).double())
    plan, gradients = differentiate(case, iterations=50, tolerance=0.0, gradient="truncated")
    assert plan[:, [1, 3]].eq(0).all()
    true_plan, true_gradients = oracle(case, iterations=50, tolerance=0.0)
    assert distance(plan, true_plan) < 1e-12
    assert distance(gradients["scores"], true_gradients["scores"]) < 1e-12


def test_masses_with_different_totals_are_handled_like_the_oracle():
    case = draw([9, 4], 4, 3.0, dtype=torch.float64)
    masses = torch.tensor([[1.0, 2.0, 3.0, 30.0]]).double().expand(2, 4)
    case = replace(case, column_mass=masses)
    options = {"iterations": 60, "tolerance": 0.0}
    plan, gradients = differentiate(case, gradient="truncated", **options)
    true_plan, true_gradients = oracle(case, **options)
    assert distance(plan, true_plan) < 1e-12
    assert distance(gradients["scores"], true_gradients["scores"]) < 1e-11
    info = sinkhorn(case.scores, case.ptr, column_mass=masses, return_info=True)[1]
    assert (info.error > 0.5).all()
    assert (info.iterations == 100).all()


def test_vertices_outside_every_problem_have_no_plan_and_no_gradient():
    case = draw([3, 6, 4], 4)
    inner = Case(case.scores, torch.tensor([3, 5, 9]), case.grad)
    plan, gradients = differentiate(inner)
    outside = torch.tensor([0, 1, 2, 9, 10, 11, 12])
    assert plan[outside].eq(0).all()
    assert gradients["scores"][outside].eq(0).all()
    assert plan[3:9].sum() > 5.99


def test_strided_inputs_give_the_same_result():
    case = draw([5, 7], 4, masses=True)
    wide = torch.zeros(4, 24)
    wide[:, ::2] = case.scores.mT
    strided = wide[:, ::2].mT
    assert not strided.is_contiguous()
    plan = sinkhorn(strided, case.ptr, row_mass=case.row_mass, column_mass=case.column_mass)
    expected = sinkhorn(case.scores, case.ptr, **case.arguments())
    torch.testing.assert_close(plan, expected, rtol=0, atol=0)


@pytest.mark.parametrize("reach", [3.0, 1e4])
def test_same_bits_whatever_the_number_of_threads(reach):
    case = draw([40] * 12 + [300, 1], 6, reach, padding=True, dustbin=True)
    threads = torch.get_num_threads()
    try:
        runs = []
        for count in (1, 2, 2, 2):
            torch.set_num_threads(count)
            runs.append(differentiate(case, iterations=30))
    finally:
        torch.set_num_threads(threads)
    for plan, gradients in runs[1:]:
        torch.testing.assert_close(plan, runs[0][0], rtol=0, atol=0)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, runs[0][1][name], rtol=0, atol=0)


def test_many_callers_at_once():
    case = draw([20] * 60, 5)
    expected = differentiate(case)[1]["scores"]
    results = []

    def call():
        for _ in range(5):
            results.append(differentiate(case)[1]["scores"])

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 20
    for result in results:
        torch.testing.assert_close(result, expected, rtol=0, atol=0)


FORKED = """
import os, torch
from softperm.ops.transport import sinkhorn
scores, ptr = torch.rand(2000, 5), torch.tensor([0, 500, 1000, 1500, 2000])
torch.set_num_threads(1)
sinkhorn(scores, ptr)
assert torch.get_num_threads() == 1
torch.set_num_threads(2)
expected = sinkhorn(scores, ptr)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(sinkhorn(scores, ptr), expected) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_torchs_number_of_threads_is_unchanged_and_a_forked_process_works():
    command = [sys.executable, "-c", FORKED]
    subprocess.run(command, check=True, timeout=300, cwd=Path(__file__).parents[3])


def test_nan_stays_in_its_problem():
    case = draw([5, 6], 3)
    scores = case.scores.clone()
    scores[2, 1] = torch.nan
    plan, gradients = differentiate(Case(scores, case.ptr, case.grad), iterations=5)
    assert plan[:5].isnan().any()
    assert plan[5:].isfinite().all()
    assert gradients["scores"][5:].isfinite().all()


def test_forbidden_pairs_have_no_mass():
    case = draw([6], 3, dtype=torch.float64)
    scores = case.scores.clone()
    scores[0, 0] = scores[4, 2] = -torch.inf
    plan = sinkhorn(scores, case.ptr)
    assert plan[0, 0] == plan[4, 2] == 0
    torch.testing.assert_close(plan.sum(0), torch.full((3,), 2.0, dtype=torch.float64))


def test_models_at_once_equal_each_model_alone():
    cases = [draw([4, 9, 2], 5, 4.0, padding=True, dustbin=True, seed=s) for s in range(3)]
    problems = [_problem(c) for c in cases]
    v = len(cases[0].scores)
    stacked = sinkhorn_op(
        torch.cat([p.scores for p in problems]),
        torch.cat([p.ptr + i * v for i, p in enumerate(problems)]),
        *(
            torch.cat([getattr(p, name) for p in problems])
            for name in ("row_mass", "column_mass", "extra", "extra_mass", "bin_score")
        ),
        30, 0.0, 0, -1,
    )  # fmt: skip
    for i, problem in enumerate(problems):
        alone = sinkhorn_op(*vars(problem).values(), 30, 0.0, 0, -1)
        torch.testing.assert_close(stacked[0][i * v : i * v + v], alone[0], rtol=0, atol=0)
        torch.testing.assert_close(stacked[2][i], alone[2][0], rtol=0, atol=0)


def _problem(case: Case) -> Problem:
    return pose(case.scores, case.ptr, **case.arguments())
