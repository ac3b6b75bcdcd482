"""Laws of the transport on random problems, for all backends."""

import inspect
import math
from dataclasses import replace

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.transport.cases import differentiate, distance, draw, laid_end_to_end

from softperm.ops.transport import sinkhorn, softmax

SIZES = st.lists(st.integers(0, 40), min_size=0, max_size=6)
problems = st.builds(
    draw,
    SIZES,
    st.integers(1, 24),
    st.floats(0, 20),
    padding=st.booleans(),
    dustbin=st.booleans(),
    masses=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 10**6),
)
law = settings(max_examples=25, deadline=None, derandomize=True)


def _plan(case, **options):
    return sinkhorn(case.scores, case.ptr, **case.arguments(), **options)


@law
@given(problems)
def test_rows_hold_their_mass(case):
    """Exactly without dustbins; with them the bin takes the rest."""
    plan = _plan(case)
    mass = torch.ones(len(plan)) if case.row_mass is None else case.row_mass
    assert (plan >= 0).all()
    if case.dustbin is None:
        torch.testing.assert_close(plan.sum(1), mass.to(plan.dtype), rtol=1e-5, atol=0)
    else:
        assert (plan.sum(1) <= mass * (1 + 1e-5)).all()


@law
@given(problems)
def test_columns_hold_their_mass_up_to_the_reported_error(case):
    if case.dustbin is not None or case.padding is not None:
        case = replace(case, dustbin=None, padding=None, padding_mass=None, column_mass=None)
    plan, info = _plan(case, return_info=True)
    p = plan.shape[1]
    for graph, (i, j) in enumerate(zip(case.ptr[:-1], case.ptr[1:], strict=True)):
        held = plan[i:j].double().sum(0)
        due = held.sum() / p if case.column_mass is None else case.column_mass[graph].double()
        gap = (held - due).abs() - due * (float(info.error[graph]) + 1e-5)
        assert gap.max() <= 1e-30


@law
@given(problems, st.randoms(use_true_random=False))
def test_order_of_the_vertices_does_not_matter(case, random):
    order = []
    for i, j in zip(case.ptr[:-1].tolist(), case.ptr[1:].tolist(), strict=True):
        order += random.sample(range(i, j), j - i)
    order = torch.tensor(order, dtype=torch.int64)
    mass = None if case.row_mass is None else case.row_mass[order]
    moved = replace(case, scores=case.scores[order], grad=case.grad[order], row_mass=mass)
    options = {"iterations": 15, "tolerance": 0.0, "gradient": "truncated"}
    plan, gradients = differentiate(case, **options)
    moved_plan, moved_gradients = differentiate(moved, **options)
    torch.testing.assert_close(moved_plan, plan[order], rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(
        moved_gradients["scores"], gradients["scores"][order], rtol=2e-4, atol=2e-5
    )


@law
@given(problems)
def test_graphs_of_a_batch_do_not_influence_each_other(case):
    plan, gradients = differentiate(case)
    for graph, (i, j) in enumerate(zip(case.ptr[:-1], case.ptr[1:], strict=True)):

        def part(tensor, at):
            return None if tensor is None else tensor[at]

        rows, one = slice(int(i), int(j)), slice(graph, graph + 1)
        alone = replace(
            case,
            scores=case.scores[rows],
            grad=case.grad[rows],
            ptr=laid_end_to_end([int(j - i)]),
            row_mass=part(case.row_mass, rows),
            column_mass=part(case.column_mass, one),
            padding_mass=part(case.padding_mass, one),
        )
        plan_alone, gradients_alone = differentiate(alone)
        if case.row_mass is None:  # otherwise totals of masses are rounded differently
            torch.testing.assert_close(plan_alone, plan[rows], rtol=0, atol=0)
            torch.testing.assert_close(
                gradients_alone["scores"], gradients["scores"][rows], rtol=0, atol=0
            )
        else:
            torch.testing.assert_close(plan_alone, plan[rows], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("backend", ["fused", "reference"])
@pytest.mark.parametrize("dustbin", [False, True])
@pytest.mark.parametrize(
    ("reach", "iterations"), [(6.0, 40), (6.0, 1), (6.0, 3), (100.0, 100), (1e4, 7)]
)
def test_padding_row_equals_padding_vertices(dustbin, reach, iterations, backend):
    """After any number of iterations, also where they are far from the fixed point."""
    sizes, capacity = [3, 8, 5], 8
    options = {"iterations": iterations, "tolerance": 0.0, "backend": backend}
    case = draw(sizes, 4, reach, dustbin=dustbin, dtype=torch.float64)
    padding = torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * reach
    padding_mass = capacity - torch.tensor(sizes).double()
    one_row = replace(case, padding=padding, padding_mass=padding_mass)
    plan, gradients = differentiate(one_row, **options, gradient="truncated")

    blocks, grads, real = [], [], []
    for i, j in zip(case.ptr[:-1], case.ptr[1:], strict=True):
        fill = capacity - int(j - i)
        blocks += [case.scores[i:j], padding.expand(fill, 4)]
        grads += [case.grad[i:j], torch.zeros(fill, 4, dtype=torch.float64)]
        real += [True] * int(j - i) + [False] * fill
    many_rows = replace(
        case, scores=torch.cat(blocks), grad=torch.cat(grads), ptr=laid_end_to_end([capacity] * 3)
    )
    padded, padded_gradients = differentiate(many_rows, **options, gradient="truncated")
    real = torch.tensor(real)
    torch.testing.assert_close(plan, padded[real], rtol=1e-12, atol=1e-14)
    d_scores = padded_gradients["scores"]
    torch.testing.assert_close(gradients["scores"], d_scores[real], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients["padding"], d_scores[~real].sum(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reach", [1.0, 10.0])
def test_plan_equals_that_of_python_optimal_transport(reach):
    case = draw([30, 11], 7, reach, masses=True, dtype=torch.float64)
    plan = _plan(case, iterations=10000, tolerance=1e-13)
    for graph, (i, j) in enumerate(zip(case.ptr[:-1], case.ptr[1:], strict=True)):
        on = case.row_mass[i:j] > 0
        a, b = case.row_mass[i:j][on].numpy(), case.column_mass[graph].numpy()
        cost = -case.scores[i:j][on].numpy()
        expected = ot.sinkhorn(
            a, b * (a.sum() / b.sum()), cost, 1.0, method="sinkhorn_log", numItermax=10000,
            stopThr=1e-14,
        )  # fmt: skip
        np.testing.assert_allclose(plan[i:j][on].numpy(), expected, rtol=1e-8, atol=1e-12)


def test_more_iterations_reduce_the_error_of_the_columns():
    case = draw([25], 6, 15.0, dtype=torch.float64)
    errors = [
        float(_plan(case, iterations=t, tolerance=0.0, return_info=True)[1].error)
        for t in (1, 4, 16, 64)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-2 * errors[0]


def test_adding_a_constant_to_a_row_changes_nothing_in_the_limit():
    case = draw([9, 14], 5, 4.0, dtype=torch.float64)
    shift = torch.linspace(-50, 50, 23, dtype=torch.float64)[:, None]
    options = {"iterations": 2000, "tolerance": 1e-13}
    expected = _plan(case, **options)
    plan = _plan(replace(case, scores=case.scores + shift), **options)
    torch.testing.assert_close(plan, expected, rtol=1e-9, atol=1e-12)


def test_hard_scores_give_a_permutation():
    scores = 1e4 * torch.eye(6)[torch.tensor([3, 0, 5, 1, 4, 2])]
    plan = sinkhorn(scores, torch.tensor([0, 6]))
    torch.testing.assert_close(plan, scores / 1e4)


def test_dustbins_leave_vertices_without_a_match_unmatched():
    scores = torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 0.0]])
    plan = sinkhorn(scores, torch.tensor([0, 3]), dustbin=torch.tensor(5.0))
    assert plan[0, 0] > 0.7
    assert plan[1, 1] > 0.7
    assert plan[2].sum() < 0.05


@law
@given(problems)
def test_softmax_is_a_softmax_in_each_row(case):
    choices = case.scores
    if case.dustbin is not None:
        choices = torch.cat([choices, case.dustbin.expand(len(choices), 1)], dim=1)
    expected = choices.exp() / choices.exp().sum(1, keepdim=True)
    if case.row_mass is not None:
        expected = expected * case.row_mass[:, None]
    arguments = {k: t for k, t in case.arguments().items() if k != "column_mass"}
    plan = softmax(case.scores, case.ptr, **arguments)
    p = case.scores.shape[1]
    torch.testing.assert_close(plan, expected[:, :p], rtol=1e-4, atol=1e-7)


def test_softmax_equals_sinkhorn_where_columns_are_constant():
    """One column update fewer: with constant columns in exp(scores), both agree."""
    scores = torch.rand(5, 3, dtype=torch.float64)
    scores = scores - scores.logsumexp(0)
    plan = sinkhorn(scores, torch.tensor([0, 5]), iterations=1)
    torch.testing.assert_close(plan, softmax(scores, torch.tensor([0, 5])))


def test_softmax_is_zero_outside_graphs_and_checks_the_arguments_like_sinkhorn():
    scores, ptr = torch.randn(5, 3), torch.tensor([1, 2, 4])
    scores[0] = torch.nan  # outside every graph
    mass = torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
    plan = softmax(scores, ptr, row_mass=mass)
    assert plan.dtype == torch.float32
    assert not plan.requires_grad
    torch.testing.assert_close(plan.sum(1), torch.tensor([0.0, 2.0, 0.5, 1.0, 0.0]))
    with pytest.raises(ValueError, match="ptr must rise from 0"):
        softmax(scores, torch.tensor([0, 5, 2]))
    with pytest.raises(ValueError, match="row_mass must be finite and 0 or more"):
        softmax(scores, ptr, row_mass=-torch.ones(5))


def test_softmax_takes_the_arguments_of_sinkhorn():
    ours = set(inspect.signature(softmax).parameters)
    assert ours < set(inspect.signature(sinkhorn).parameters)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.zeros(5)}, r"scores must be \(vertices, latent vertices\)"),
        ({"scores": torch.zeros(5, 2, dtype=torch.int64)}, "floating point; got torch.int64"),
        ({"scores": [[0.0]]}, r"scores must be a tensor; got \[\[0.0\]\]"),
        ({"ptr": torch.zeros(2, 2)}, "ptr must be a vector"),
        ({"ptr": [0, 5]}, r"ptr must be a tensor; got \[0, 5\]"),
        ({"ptr": torch.tensor([0.0, 5.0])}, "ptr must hold whole numbers; got torch.float32"),
        ({"ptr": torch.tensor([0, 6])}, r"ptr must rise from 0 to at most 5, .*; got \[\[0, 6\]\]"),
        ({"ptr": torch.tensor([0, 4, 2])}, "ptr must rise"),
        ({"ptr": torch.tensor([-1, 2])}, "ptr must rise"),
        ({"ptr": torch.tensor([0, 10**6]), "backend": "reference"}, "ptr must rise"),
        (
            {"row_mass": -torch.ones(5)},
            "row_mass must be finite and 0 or more everywhere; got -1.0",
        ),
        ({"row_mass": torch.full((5,), torch.nan)}, "row_mass must be finite and 0 or more"),
        (
            {"padding": torch.ones(2), "padding_mass": -torch.ones(1)},
            "padding_mass must be finite and 0 or more",
        ),
        ({"row_mass": torch.ones(4)}, r"row_mass must have shape \(5,\); got \(4,\)"),
        ({"column_mass": torch.ones(3)}, r"column_mass must have shape \(2,\) or \(1, 2\)"),
        ({"padding": torch.ones(2)}, "expected both of padding and padding_mass, or neither"),
        ({"dustbin": torch.ones(2)}, "dustbin must be one number"),
        ({"dustbin": 1.0}, "dustbin must be a tensor; got 1.0"),
        ({"iterations": 0}, "iterations must be a whole number of at least 1; got 0"),
        ({"iterations": 5.5}, "iterations must be a whole number of at least 1; got 5.5"),
        ({"tolerance": "a"}, "tolerance must be a number or None; got 'a'"),
        ({"tolerance": math.nan}, "tolerance must be a number or None; got nan"),
        ({"largest": 3.0}, "largest must be a whole number or None; got 3.0"),
        ({"ptr": torch.tensor([0, 5], device="meta")}, "ptr is on meta, but scores on cpu"),
        ({"row_mass": torch.full((5,), torch.inf)}, "row_mass must be finite and 0 or more"),
        ({"ptr": torch.tensor([0, 6]), "row_mass": torch.ones(5)}, "ptr must rise from 0 to at"),
        ({"backend": "magic"}, "backend must be 'fused' or 'reference'; got 'magic'"),
        ({"gradient": "exact", "backend": "reference"}, "gradient must be one of"),
        ({"gradient": "exact"}, "gradient must be one of auto, truncated, implicit; got 'exact'"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")  # which would raise first
def test_errors_say_what_was_expected_and_what_came(change, message):
    arguments = {"scores": torch.zeros(5, 2), "ptr": torch.tensor([0, 5])} | change
    with pytest.raises(ValueError, match=message):
        sinkhorn(**arguments)


@pytest.mark.parametrize("backend", ["fused", "reference"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_plan_with_nan_has_the_error_nan(bad, backend):
    scores = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    scores[3, 0] = bad
    plan, info = sinkhorn(scores, torch.tensor([0, 2, 4, 6]), return_info=True, backend=backend)
    assert info.error.isnan().tolist() == [False, True, False]
    assert plan[[0, 1, 4, 5]].isfinite().all()


def test_default_tolerance_is_reached_by_easy_problems():
    case = draw([20, 31], 5, 2.0)
    plan, info = _plan(case, return_info=True)
    exact = _plan(case.to(torch.float64), tolerance=0.0, iterations=1000)
    assert (info.iterations < 30).all()
    assert (info.error <= 1e-6).all()
    assert distance(plan, exact) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_types_are_computed_in_float32(dtype):
    case = draw([6, 9], 4, 5.0, padding=True, dustbin=True, dtype=dtype)
    plan, gradients = differentiate(case)
    expected, expected_gradients = differentiate(case.to(torch.float32))
    assert plan.dtype == gradients["scores"].dtype == gradients["dustbin"].dtype == dtype
    torch.testing.assert_close(plan, expected.to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(gradients["scores"], expected_gradients["scores"].to(dtype))
