"""Vectors of eight numbers in numba, against numpy."""

from typing import no_type_check

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from softperm import vectors


@njit
@no_type_check
def _exp(x, out):
    like = vectors.load(out, 0)
    for i in range(0, len(x), vectors.WIDTH):
        vectors.store(out, i, vectors.exp(vectors.load(x, i), like))


@njit
@no_type_check
def _log(x, out):
    for i in range(0, len(x), vectors.WIDTH):
        vectors.store(out, i, vectors.log(vectors.load(x, i)))


@njit
@no_type_check
def _reduce(x, y):
    x, y = vectors.load(x, 0), vectors.load(y, 0)
    return (
        vectors.total(vectors.fma(x, y, x - y)),
        vectors.peak(vectors.maximum(x, y)),
        vectors.trough(vectors.minimum(x, y)),
        vectors.total(vectors.where_less(x, y, x, y)),
        vectors.total(vectors.widen(x / y)),
        vectors.total(
            vectors.narrow(vectors.widen(x) + vectors.splat(0.5), x) * vectors.fill(x, 2.0)
        ),
    )


@njit
@no_type_check
def _load(x):
    return vectors.total(vectors.load(x, 0))


@pytest.mark.parametrize(("dtype", "lowest"), [(np.float32, -87.0), (np.float64, -708.0)])
def test_exp_is_right_to_rounding(dtype, lowest):
    x = np.random.default_rng(0).uniform(lowest, 80, 8 * 1000)
    out = np.empty(len(x), dtype)
    _exp(x, out)
    truth = np.exp(x.astype(np.longdouble))
    assert np.abs(out / truth - 1).max() < 1.5 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_of_special_values(dtype):
    x = np.array([-np.inf, -1e6, -709.0, 0.0, np.nan, -1e300, -0.0, 1e-300])
    out = np.empty(8, dtype)
    _exp(x, out)
    np.testing.assert_array_equal(out, [0, 0, 0, 1, np.nan, 0, 1, 1])


def test_log_is_right_to_rounding():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.exp(rng.uniform(-700, 700, 4000)), rng.uniform(0.5, 2, 4000)])
    out = np.empty(len(x))
    _log(x, out)
    truth = np.log(x.astype(np.longdouble))
    assert (np.abs(out - truth) <= 3 * np.finfo(float).eps * np.abs(truth)).all()


def test_log_of_special_values():
    x = np.array([0.0, 1.0, np.inf, np.nan, -1.0, 1e-310, 2.0**-1022, np.e])
    out = np.empty(8)
    _log(x, out)
    expected = [-np.inf, 0, np.inf, np.nan, -np.inf, -np.inf, -1022 * np.log(2), 1]
    np.testing.assert_allclose(out, expected, rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arithmetic_and_reductions(dtype):
    x, y = np.random.default_rng(1).uniform(1, 2, (2, 8)).astype(dtype)
    expected = (
        (x * y + x - y).sum(),
        max(x.max(), y.max()),
        min(x.min(), y.min()),
        np.where(x < y, x, y).sum(),
        (x / y).sum(),
        (2 * x + 1).sum(),
    )
    np.testing.assert_allclose(_reduce(x, y), expected, rtol=8 * np.finfo(dtype).eps)


def test_vectors_are_read_from_contiguous_arrays_only():
    with pytest.raises(TypingError, match="contiguous arrays of one or two axes"):
        _load(np.zeros((4, 4))[:, 0])


@njit
@no_type_check
def _rows(table):
    row = vectors.load(table, 0)
    vectors.store(table, 1, vectors.fma(row, row, vectors.fill(row, 0.5)) - row)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_a_table_are_vectors(dtype):
    table = np.random.default_rng(0).standard_normal((3, vectors.WIDE)).astype(dtype)
    expected = table.copy()
    expected[1] = table[0] * table[0] + dtype(0.5) - table[0]
    _rows(table)
    np.testing.assert_allclose(table, expected, rtol=4 * np.finfo(dtype).eps, atol=1e-7)
