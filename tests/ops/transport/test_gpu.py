"""The Triton kernels against the float64 oracle; ``kernels.py`` says where they run."""

import math
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import DEVICE, law
from ops.transport.cases import Case, distance, draw, jointly, oracle

from softperm.ops.transport import Problem, gpu, pose, reference

SHAPES = [(False, False), (True, False), (False, True), (True, True)]  # padding, dustbin
slow = pytest.mark.slow
LEAVES = ["scores", "padding", "dustbin"]

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"  # numpy, in the interpreter, warns of underflow
)


def solve(case: Case, iterations: int, tolerance=0.0, gradient=1):
    """Plan, gradients of scores, padding and dustbin, and iterations used."""
    moved = {k: t.to(DEVICE) for k, t in vars(case).items() if t is not None}
    leaves = {k: moved[k].clone().requires_grad_() for k in LEAVES if k in moved}
    case = replace(case, **(moved | leaves))
    problem = pose(case.scores, case.ptr, **case.arguments())
    given = Problem(*(t.detach() for t in vars(problem).values()))
    plan, history, used, _ = gpu.forward(given, iterations, tolerance)
    d_scores, d_extra, d_bin = gpu.backward(given, case.grad, history, used, tolerance, gradient)
    outputs = [(problem.scores, d_scores), (problem.extra, d_extra.sum(1))]
    outputs += [(problem.bin_score, d_bin.sum(1))]
    outputs = [(x, g) for x, g in outputs if x.requires_grad]
    computed = torch.autograd.grad(
        [x for x, _ in outputs], list(leaves.values()), [g for _, g in outputs]
    )
    gradients = {k: g.cpu() for k, g in zip(leaves, computed, strict=True)}
    return plan.cpu(), gradients, used.cpu()[0]


def agree(case: Case, iterations: int, limit=1e-6, grad_limit=1e-5, **options):
    """Asserts that plan and gradients equal the oracle's; returns the iterations used.

    Where the constraints leave next to nothing of the gradient, rounding is judged by what they
    were given: 1 % of plan times gradient.
    """
    plan, gradients, used = solve(case, iterations, **options)
    true_plan, true_gradients = oracle(case, iterations=iterations, tolerance=0.0)
    assert distance(plan, true_plan) < limit
    truth = jointly(true_gradients)
    scale = torch.maximum(truth.norm(), 0.01 * (true_plan * case.grad).norm())
    assert (jointly(gradients).double() - truth).norm() <= grad_limit * scale
    return used


@pytest.fixture
def tiny_chips(monkeypatch):
    """Chips that hold 4 rows, so that small problems are divided among groups."""
    monkeypatch.setattr(gpu, "CHIP", (gpu.Tile(128, 1, 168),))
    monkeypatch.setattr(gpu, "STREAM", gpu.Tile(128, 1, 168))


@law
@pytest.mark.parametrize(
    ("padding", "dustbin"),
    [SHAPES[0], SHAPES[3], *(pytest.param(*s, marks=slow) for s in SHAPES[1:3])],
)
def test_float32_equals_the_oracle(padding, dustbin):
    agree(draw([4, 0, 7], 5, padding=padding, dustbin=dustbin), 3)


@law
@settings(max_examples=3, deadline=None, derandomize=True, database=None)
@given(
    sizes=st.lists(st.integers(0, 8), min_size=1, max_size=3),
    p=st.integers(2, 9),
    reach=st.sampled_from([1.0, 30.0]),
    padding=st.booleans(),
    masses=st.booleans(),
)
def test_any_problem_with_dustbins_equals_the_oracle(sizes, p, reach, padding, masses):
    agree(draw(sizes, p, reach, padding=padding, masses=masses, dustbin=True), 3)


@law
@pytest.mark.parametrize("p", [1, 70])
def test_every_width_equals_the_oracle(p):
    agree(draw([3, 5], p, dustbin=True), 3)


@law
def test_float64_equals_the_oracle_and_stops_where_it_does():
    case = draw([6, 3], 4, padding=True, dustbin=True, dtype=torch.float64)
    agree(case, 5, 1e-13, 1e-12)
    used = agree(case, 60, 1e-11, 1e-9, tolerance=1e-12, gradient=0)
    problem = pose(case.scores, case.ptr, **case.arguments())
    assert used.tolist() == reference.solve(problem, 60, 1e-12)[1][0].tolist()
    assert used.max() < 60


@law
@pytest.mark.parametrize(
    ("reach", "dustbin"), [pytest.param(100.0, False, marks=slow), (1e4, False), (1e4, True)]
)
def test_large_scores_equal_the_oracle(reach, dustbin):
    agree(draw([9, 4], 5, reach, padding=True, dustbin=dustbin), 8)


@law
def test_the_implicit_gradient_equals_that_of_the_limit():
    case = draw([6, 9, 1], 4, padding=True, dustbin=True)
    used = agree(case, 100, 1e-5, 1e-4, tolerance=1e-6, gradient=0)
    assert used.max() < 100


@law
def test_an_iteration_far_from_its_limit_falls_back_to_the_truncated_gradient():
    agree(draw([8], 4, 30.0), 3, gradient=2)


@law
@pytest.mark.parametrize(
    ("padding", "dustbin"), [pytest.param(False, False, marks=slow), (True, True)]
)
def test_larger_problems_equal_the_oracle(tiny_chips, padding, dustbin):
    agree(draw([9, 2], 5, padding=padding, dustbin=dustbin), 3)


@law
def test_larger_problems_with_large_scores_equal_the_oracle(tiny_chips):
    agree(draw([7], 5, 100.0, padding=True, dustbin=True), 4)


def counts(dtype: torch.dtype = torch.float32) -> Case:
    """Scores of raw counts: one hub among leaves, so that potentials move far."""
    case = draw([11], 4, padding=True, dustbin=True, dtype=dtype)
    degree = torch.tensor([1.0] * 10 + [500.0], dtype=dtype)
    return replace(case, scores=torch.outer(degree, torch.linspace(0, 1, 4, dtype=dtype)))


FAR = {torch.float32: (25, 1e-6, 1e-5), torch.float64: (100, 1e-12, 1e-11)}
"""Iterations until log space is needed again, and the tolerance against the oracle."""


@law
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=slow)])
def test_potentials_that_move_far_equal_the_oracle(dtype):
    agree(counts(dtype), *FAR[dtype])


@law
@slow
def test_larger_problems_whose_potentials_move_far_equal_the_oracle(tiny_chips):
    agree(counts(), 25)


@law
def test_rows_with_scores_of_all_sizes_equal_the_oracle():
    case = draw([11], 5)
    agree(replace(case, scores=case.scores + torch.linspace(0, 1e4, 11)[:, None]), 6)


@law
@pytest.mark.parametrize("lowest", [-math.inf, -5e37])
def test_forbidden_pairs_are_not_matched(lowest):
    case = draw([9, 6], 5, masses=True)
    scores = case.scores.clone()
    scores[2, 3] = scores[11, 0] = lowest
    scores[4] = lowest
    mass = torch.ones_like(case.row_mass)
    mass[4] = 0.0
    agree(replace(case, scores=scores, row_mass=mass), 8)


@law
def test_larger_problems_have_the_implicit_gradient(tiny_chips):
    used = agree(draw([7, 2], 4, 2.0, dustbin=True), 100, 1e-5, 1e-4, tolerance=1e-6, gradient=0)
    assert used.max() < 100


@law
def test_any_masses_and_vertices_outside_every_problem():
    case = draw([5, 8], 4, masses=True)
    agree(case, 4)
    inner = replace(case, ptr=torch.tensor([1, 5, 9]), column_mass=None)
    plan, gradients, _ = solve(inner, 3)
    idle = torch.ones(13, dtype=torch.bool)
    idle[1:9] = False
    idle |= case.row_mass == 0
    assert (plan[idle] == 0).all()
    assert (gradients["scores"][idle] == 0).all()
    assert (plan[~idle] > 0).all()


@law
def test_models_at_once_equal_each_model_alone():
    cases = [draw([4, 6], 5, dustbin=True, padding=True, seed=seed) for seed in (0, 1)]
    problems = [pose(c.scores, c.ptr, **c.arguments()) for c in cases]
    alone = [[getattr(q, k).to(DEVICE) for k in q.__dataclass_fields__] for q in problems]
    stacked = [torch.cat(pair) for pair in zip(*alone, strict=True)]
    stacked[1] = torch.stack([alone[0][1][0], alone[1][1][0] + 10])
    together, *each = (gpu.forward(Problem(*a), 3, 0.0) for a in (stacked, *alone))
    for x, *parts in zip(together, *each, strict=True):
        assert torch.equal(x, torch.cat(parts))


@law
@pytest.mark.parametrize(
    ("most", "launches"),
    [
        pytest.param(15, 3, marks=slow),
        (14, 2),
        pytest.param(3, 2, marks=slow),
        pytest.param(2, 1, marks=slow),
    ],
)
def test_knowing_the_largest_graph_spares_launches_and_changes_nothing(monkeypatch, most, launches):
    """Chips of 4 and 16 rows, two of them extra rows."""
    counts_of_launches = []
    monkeypatch.setattr(gpu, "CHIP", (gpu.Tile(128, 1, 168), gpu.Tile(512, 1, 168)))
    monkeypatch.setattr(gpu, "STREAM", gpu.Tile(128, 1, 168))
    run = gpu.run_concurrently
    monkeypatch.setattr(
        gpu, "run_concurrently", lambda x, d: (counts_of_launches.append(len(x)), run(x, d))
    )
    case = draw([0, *[most] * (16 // most + 1)], 3, padding=True, dustbin=True)
    problem = pose(case.scores, case.ptr, **case.arguments())
    moved = Problem(*(t.detach().to(DEVICE) for t in vars(problem).values()))
    grad = case.grad.to(DEVICE)
    results = []
    for largest in (-1, most):
        plan, history, used, error = gpu.forward(moved, 2, 0.0, largest)
        back = gpu.backward(moved, grad, history, used, 0.0, 1, largest)
        results.append((plan, used, error, *back))  # history may end before its last row
    assert counts_of_launches == [3, 3, launches, launches]
    for every, promised in zip(*results, strict=True):
        assert torch.equal(every, promised)


@law
def test_empty_batches_have_empty_plans():
    none = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
    no = {k: torch.zeros(s, device=DEVICE) for k, s in {"v": (0, 3), "b": (1, 0, 3)}.items()}
    empty = torch.zeros(1, 0, 3, device=DEVICE)
    bins = torch.zeros(1, device=DEVICE)
    problem = Problem(no["v"], none, no["v"][:, 0], no["b"], empty, empty.mT[:, :0], bins)
    plan, history, used, error = gpu.forward(problem, 5, 0.0)
    assert plan.shape == (0, 3)
    assert history.shape == (1, 0, 5, 3)
    assert used.shape == error.shape == (1, 0)


def test_more_columns_than_the_kernels_take_are_refused_with_the_remedy():
    problem = pose(torch.zeros(2, 2000), torch.tensor([0, 2]))
    with pytest.raises(
        ValueError, match=r"at most 1024 columns.*got 2000; use backend='reference'"
    ):
        gpu._layout(problem, -1)


def _play(rank: int, programs: int, kernel, arguments):
    """Runs a kernel as one of several programs."""
    from triton.runtime.interpreter import interpreter_builder as builder

    builder.set_grid_dim = lambda *_: setattr(builder, "grid_dim", (programs, 1, 1))
    builder.set_grid_idx = lambda *_: setattr(builder, "grid_idx", (rank, 0, 0))
    kernel[(1,)](*arguments)


class _AtOnce:
    """A kernel whose programs run at once, each in a process, on memory that they share."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            tensors = {t.data_ptr(): t for t in arguments if torch.is_tensor(t)}
            shared = {at: t.clone().share_memory_() for at, t in tensors.items()}
            passed = [shared[t.data_ptr()] if torch.is_tensor(t) else t for t in arguments]
            roles = [(rank, grid[0], self.kernel, passed) for rank in range(grid[0])]
            context = get_context("fork")
            players = [context.Process(target=_play, args=role, daemon=True) for role in roles]
            for player in players:
                player.start()
            for player in players:
                player.join(120)
            assert [player.exitcode for player in players] == [0] * grid[0]
            for at, t in tensors.items():
                t.copy_(shared[at])

        return launch


@pytest.fixture
def programs_at_once(tiny_chips, monkeypatch):
    """Three programs, each in a process, share every streamed problem."""
    launch = gpu._stream
    monkeypatch.setattr(gpu, "_multiprocessors", lambda _: 3)
    monkeypatch.setattr(gpu, "_stream", lambda k, *rest: launch(_AtOnce(k), *rest))


@law
@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU runs the programs of a group at once anyway")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork while torch has idle threads
def test_programs_that_share_a_problem_agree(programs_at_once):
    agree(draw([9, 2, 5], 4, padding=True, dustbin=True), 3)


@law
@slow
@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU runs the programs of a group at once anyway")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork while torch has idle threads
def test_programs_that_share_a_problem_agree_where_potentials_move_far(programs_at_once):
    agree(counts(), 25)
