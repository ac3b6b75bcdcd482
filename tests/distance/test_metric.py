"""The distance is a metric: symmetry, identity, triangle inequality."""

import numpy as np
import pytest
from distance.oracle import attained, labelled_graph, shuffled
from hypothesis import given, settings
from hypothesis import strategies as st

from softperm.distance import frobenius_distance

WEIGHTS = {
    "simple": st.sampled_from([0.0, 0.0, 1.0]),
    "whole": st.integers(0, 3).map(float),
    "fractions": st.sampled_from([0.0, 0.25, 0.5, 1.5]),
}


def matrices(weights: st.SearchStrategy, least: int = 1, most: int = 8) -> st.SearchStrategy:
    """Symmetric matrices without a diagonal, of varying size."""

    @st.composite
    def draw_one(draw) -> np.ndarray:
        n = draw(st.integers(least, most))
        matrix = np.zeros((n, n))
        upper = np.triu_indices(n, k=1)
        matrix[upper] = draw(st.lists(weights, min_size=len(upper[0]), max_size=len(upper[0])))
        return matrix + matrix.T

    return draw_one()


def distance(a: np.ndarray, b: np.ndarray) -> float:
    result = frobenius_distance(a, b)
    assert result.exact
    return result.distance


@pytest.mark.parametrize("kind", WEIGHTS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_distance_is_symmetric_and_so_is_its_permutation(kind, data):
    a, b = (data.draw(matrices(WEIGHTS[kind])) for _ in range(2))
    forth, back = frobenius_distance(a, b), frobenius_distance(b, a)
    np.testing.assert_allclose(forth.distance, back.distance, atol=1e-9)
    inverse = np.argsort(forth.permutation)
    np.testing.assert_allclose(attained(b, a, inverse), back.distance, atol=1e-9)


@pytest.mark.parametrize("kind", WEIGHTS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_distance_does_not_see_the_numbering_of_vertices(kind, data):
    a, b = (data.draw(matrices(WEIGHTS[kind])) for _ in range(2))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    assert distance(a, shuffled(rng, a)) == 0
    np.testing.assert_allclose(distance(shuffled(rng, a), b), distance(a, b), atol=1e-9)


@pytest.mark.parametrize("kind", WEIGHTS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_triangle_inequality_holds_among_graphs_of_all_sizes(kind, data):
    a, b, c = (data.draw(matrices(WEIGHTS[kind])) for _ in range(3))
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_triangle_inequality_holds_for_signed_weights_among_graphs_of_one_size(data):
    signed = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
    a, b, c = (data.draw(matrices(signed, least=6, most=6)) for _ in range(3))
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_distance_with_labels_is_a_metric_too(data):
    graphs = []
    for _ in range(3):
        matrix = data.draw(matrices(WEIGHTS["simple"], most=6))
        kinds = st.lists(st.sampled_from("CNO"), min_size=len(matrix), max_size=len(matrix))
        graphs.append(labelled_graph(matrix, data.draw(kinds)))
    a, b, c = graphs
    ab, ba, bc, ac, aa = (
        frobenius_distance(x, y, labels=True).distance
        for x, y in ((a, b), (b, a), (b, c), (a, c), (a, a))
    )
    assert aa == 0
    np.testing.assert_allclose(ab, ba, atol=1e-9)
    assert ac <= ab + bc + 1e-9


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_distance_zero_means_isomorphic_up_to_isolated_vertices(data):
    a, b = (data.draw(matrices(WEIGHTS["simple"], most=5)) for _ in range(2))
    a, b = (matrix[np.ix_(kept, kept)] for matrix in (a, b) for kept in [matrix.any(axis=1)])
    if len(a) and len(b):
        result = frobenius_distance(a, b)
        copies = len(a) == len(b) and np.array_equal(
            a, b[result.permutation][:, result.permutation]
        )
        assert (result.distance == 0) == copies
