"""The compiled assignment problem against SciPy's."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from softperm.distance.branch_and_bound import assign


def solve(cost: np.ndarray, v: np.ndarray, limit: float = np.inf):
    m = len(v)
    u, v, columns = np.zeros(m), v.copy(), np.zeros(m, dtype=np.int64)
    value = assign(cost, m, u, v, columns, limit)
    return value, u, v, columns


@pytest.mark.parametrize("forbidden", [0.0, 0.3])
def test_value_and_matching_equal_scipy_from_any_start(forbidden):
    rng = np.random.default_rng(0)
    for _ in range(200):
        m = int(rng.integers(1, 12))
        cost = rng.integers(0, 9, size=(m, m)) / 2
        cost[rng.random((m, m)) < forbidden] = np.inf
        np.fill_diagonal(cost, np.minimum(cost.diagonal(), 20.0))  # so that something matches
        value, u, v, columns = solve(cost, rng.normal(size=m))
        rows, expected = linear_sum_assignment(cost)
        np.testing.assert_allclose(value, cost[rows, expected].sum(), atol=1e-9)
        np.testing.assert_allclose(cost[rows, columns].sum(), value, atol=1e-9)
        assert sorted(columns) == list(range(m))
        assert (cost - u[:, None] - v >= -1e-9).all()


def test_what_cannot_be_matched_costs_infinity():
    cost = np.array([[1.0, np.inf, np.inf], [2.0, np.inf, np.inf], [0.0, 1.0, 1.0]])
    assert solve(cost, np.zeros(3))[0] == np.inf
    assert solve(np.full((2, 2), np.inf), np.zeros(2))[0] == np.inf


def test_work_stops_past_the_limit_with_a_lower_bound():
    rng = np.random.default_rng(1)
    for _ in range(100):
        cost = rng.random((9, 9))
        full = solve(cost, np.zeros(9))[0]
        early = solve(cost, np.zeros(9), limit=0.5 * full)[0]
        assert 0.5 * full < early <= full + 1e-9


def test_rows_and_columns_past_the_first_m_play_no_part():
    rng = np.random.default_rng(2)
    cost = rng.random((8, 8))
    inner = solve(cost[:5, :5].copy(), np.zeros(5))[0]
    assert solve(cost, np.zeros(5))[0] == inner
