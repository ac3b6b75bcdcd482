"""The numba kernels on inputs at the edges, beside other threads and processes, and stacked."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ops.transport.cases import Case, differentiate, distance, draw, laid_end_to_end, oracle

from softperm.ops.transport import sinkhorn
from softperm.ops.transport.operators import sinkhorn_op
from softperm.ops.transport.problem import Problem, pose


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


def test_masses_that_do_not_add_up_are_met_as_the_oracle_meets_them():
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


def test_strided_inputs_are_read_as_they_are():
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
def test_torchs_threads_are_left_alone_and_a_forked_process_has_its_own():
    command = [sys.executable, "-c", FORKED]
    subprocess.run(command, check=True, timeout=300, cwd=Path(__file__).parents[3])


def test_not_a_number_stays_in_its_problem():
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


def test_models_side_by_side_are_models_one_by_one():
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
