"""Agreement of distances with true ones."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from softperm.lab.studies.synthetic import fidelity, vector_distances

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(30, 4))
TRUE = cdist(POINTS, POINTS)


def test_vector_distances_are_euclidean():
    np.testing.assert_allclose(vector_distances(POINTS), TRUE, atol=1e-7)


def test_true_distances_agree_with_themselves():
    found = fidelity(TRUE, TRUE)
    assert (found.mse, found.recall) == (0.0, 1.0)
    assert found.correlation == pytest.approx(1.0)


def test_error_and_correlation_are_over_pairs_with_the_diagonal():
    made = TRUE + RNG.normal(size=TRUE.shape)
    made = (made + made.T) / 2
    pairs = np.triu_indices(30)
    found = fidelity(made, TRUE)
    np.testing.assert_allclose(found.mse, ((made - TRUE)[pairs] ** 2).mean())
    np.testing.assert_allclose(found.correlation, np.corrcoef(made[pairs], TRUE[pairs])[0, 1])


def test_recall_counts_true_neighbours_and_ties():
    true = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
    made = true.copy()
    made[0, 1], made[0, 3] = 3.0, 1.0
    found = fidelity(made, true, neighbours=1)
    np.testing.assert_allclose(found.recall, 3 / 4)
    tied = np.ones((5, 5)) - np.eye(5)
    assert fidelity(RNG.uniform(size=(5, 5)), tied, neighbours=2).recall == 1.0


def test_distances_that_do_not_vary_correlate_with_nothing():
    assert fidelity(np.zeros((4, 4)), TRUE[:4, :4]).correlation == 0.0
