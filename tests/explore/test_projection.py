"""Principal axes and neighbours of vectors."""

import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.decomposition import PCA

from softperm.explore.projection import PrincipalAxes, VectorSpace, place_on_map


@pytest.mark.parametrize("shape", [(60, 8), (6, 40)], ids=["tall", "wide"])
def test_axes_are_those_of_scikit_learn_up_to_their_sign(shape):
    vectors = np.random.default_rng(0).normal(size=shape) * np.arange(1, shape[1] + 1)
    axes, oracle = PrincipalAxes.of(vectors), PCA(5).fit(vectors)
    np.testing.assert_allclose(axes.shares[:5], oracle.explained_variance_ratio_, rtol=1e-8)
    products = np.abs(axes.axes[:5] @ oracle.components_.T)
    np.testing.assert_allclose(products, np.eye(5), atol=1e-8)
    np.testing.assert_allclose(
        np.abs(axes.project(vectors)[:, :5]), np.abs(oracle.transform(vectors)), atol=1e-8
    )


def test_the_largest_entry_of_an_axis_is_positive():
    vectors = np.random.default_rng(1).normal(size=(30, 6))
    axes = PrincipalAxes.of(vectors).axes
    assert (axes[np.arange(6), np.abs(axes).argmax(1)] > 0).all()


def test_vectors_that_do_not_vary_lie_in_one_place():
    axes = PrincipalAxes.of(np.ones((4, 3)))
    np.testing.assert_array_equal(place_on_map(axes.project(np.ones((4, 3)))), np.zeros((4, 2)))


def test_neighbours_are_the_nearest_others():
    points = np.random.default_rng(2).normal(size=(40, 3))
    points[7] = points[8] = points[9]  # several at distance 0
    space = VectorSpace(PrincipalAxes.of(points), points)
    index, distance = space.neighbours(5)
    whole = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(whole, np.inf)
    np.testing.assert_allclose(distance, np.sort(whole, axis=1)[:, :5], atol=1e-3)
    np.testing.assert_allclose(np.take_along_axis(whole, index, 1), distance, atol=1e-3)
    assert (index != np.arange(40)[:, None]).all()


def test_the_nearest_graphs_of_another_vector():
    points = np.random.default_rng(3).normal(size=(30, 4))
    axes = PrincipalAxes.of(points)
    index, distance = VectorSpace(axes, axes.project(points)).nearest(points[11] + 0.01, 3)
    whole = np.linalg.norm(points - points[11] - 0.01, axis=1)
    np.testing.assert_array_equal(index, np.argsort(whole)[:3])
    np.testing.assert_allclose(distance, np.sort(whole)[:3], rtol=1e-6)


def test_a_graph_alone_has_no_neighbours():
    space = VectorSpace(PrincipalAxes.of(np.zeros((1, 3))), np.zeros((1, 3)))
    index, distance = space.neighbours(5)
    assert index.shape == distance.shape == (1, 0)


@pytest.mark.parametrize(("method", "package"), [("umap", "umap-learn"), ("pacmap", "pacmap")])
def test_a_missing_package_is_named(monkeypatch, method, package):
    monkeypatch.setitem(sys.modules, method, None)
    with pytest.raises(ImportError, match=f"{method} .*: pip install {package}"):
        place_on_map(np.zeros((30, 3)), method)


@pytest.mark.parametrize(("method", "name"), [("umap", "UMAP"), ("pacmap", "PaCMAP")])
def test_another_map_is_computed_from_all_coordinates_with_a_fixed_seed(monkeypatch, method, name):
    """The packages are stood in for: they take long to compile."""

    class Reducer:
        def __init__(self, random_state):
            self.seed = random_state

        def fit_transform(self, points):
            warnings.warn("n_jobs is overridden by random_state", stacklevel=1)
            return points[:, ::-1][:, :2] + self.seed

    monkeypatch.setitem(sys.modules, method, SimpleNamespace(**{name: Reducer}))
    points = np.random.default_rng(0).normal(size=(30, 3))
    np.testing.assert_allclose(place_on_map(points, method), points[:, [2, 1]], rtol=1e-6)
    with pytest.raises(ValueError, match=f"{method} needs at least 20 graphs; .* has 5"):
        place_on_map(points[:5], method)
