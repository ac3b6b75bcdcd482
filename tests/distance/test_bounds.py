"""Lower bounds lie below, upper bounds above, and each is what it says."""

import networkx as nx
import numpy as np
import pytest
from distance.oracle import attained, labelled_graph, random_matrix, read_pair, weigh
from numba import njit

from softperm.distance import exact, frobenius_distance
from softperm.distance.branch_and_bound import (
    _pair_neighbours,
    _pair_plain_neighbours,
    bound_node,
    improve,
    plant,
)
from softperm.distance.costs import Frobenius

KINDS = {
    "simple": np.array([1.0]),
    "signed whole": np.array([-1.0, 1.0, 3.0]),
    "signed fractions": np.array([-0.25, 0.5, 1.5]),
}


def pairs(kind: str, count: int):
    rng = np.random.default_rng(len(kind))
    for _ in range(count):
        n, m = rng.integers(2, 10, size=2)
        yield tuple(weigh(rng, random_matrix(rng, k), KINDS[kind]) for k in (n, m))


def spectral_lower_bound(a, b) -> float:
    return Frobenius().distance(exact.spectral_bound(read_pair(a, b)))


def degree_lower_bound(a, b) -> float:
    return Frobenius().distance(exact.degree_bound(read_pair(a, b)))


def assignment_lower_bound(a, b, *, labels: bool = False) -> float:
    """The bound of the search's root, which is that of Gilmore and Lawler."""
    pair = read_pair(a, b, labels=labels)
    return Frobenius().distance(bound_node(pair, plant(pair), 0, np.inf))


def descent_upper_bound(a, b, *, labels: bool = False, restarts: int = 20):
    pair = read_pair(a, b, labels=labels)
    tree = plant(pair)
    bound = bound_node(pair, tree, 0, np.inf)
    best = tree.match.copy()
    return Frobenius().distance(improve(pair, best, np.inf, bound, restarts)), best


def faq_upper_bound(a, b, *, restarts: int = 4):
    pair, rng = read_pair(a, b), np.random.default_rng(0)
    matrices = exact.adjacency_matrices(pair)
    found = [exact.faq(pair, matrices, rng, randomly=r > 0) for r in range(restarts + 1)]
    cost, best = min(found, key=lambda one: one[0])
    return Frobenius().distance(cost), best


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "bound", [spectral_lower_bound, degree_lower_bound, assignment_lower_bound]
)
def test_lower_bounds_never_exceed_the_distance_and_do_reach_past_zero(bound, kind):
    found = [(bound(a, b), frobenius_distance(a, b).distance) for a, b in pairs(kind, 40)]
    assert all(lower <= distance + 1e-9 for lower, distance in found)
    assert sum(lower > 0.3 * distance > 0 for lower, distance in found) > 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", [descent_upper_bound, faq_upper_bound])
def test_upper_bounds_are_attained_by_their_permutation_and_mostly_optimal(bound, kind):
    optimal = 0
    for a, b in pairs(kind, 30):
        upper, p = bound(a, b)
        distance = frobenius_distance(a, b).distance
        np.testing.assert_allclose(attained(a, b, p), upper, atol=1e-6)
        assert upper >= distance - 1e-9
        optimal += upper < distance + 1e-6
    assert optimal >= 24


def test_assignment_bound_equals_the_degree_bound_for_simple_graphs_and_else_exceeds_it():
    for a, b in pairs("simple", 40):
        np.testing.assert_allclose(assignment_lower_bound(a, b), degree_lower_bound(a, b))
    for kind in ("signed whole", "signed fractions"):
        for a, b in pairs(kind, 40):
            assert assignment_lower_bound(a, b) >= degree_lower_bound(a, b) - 1e-9


def test_degree_bound_is_the_distance_of_sorted_degrees():
    star, path = nx.star_graph(4), nx.path_graph(5)  # degrees 4 1 1 1 1 and 2 2 2 1 1
    np.testing.assert_allclose(degree_lower_bound(star, path) ** 2, 4)


def test_spectrum_tells_a_hexagon_from_two_triangles_where_degrees_do_not():
    hexagon = nx.cycle_graph(6)
    triangles = nx.disjoint_union(nx.complete_graph(3), nx.complete_graph(3))
    assert degree_lower_bound(hexagon, triangles) == 0
    # spectra 2 1 1 −1 −1 −2 and 2 2 −1 −1 −1 −1
    np.testing.assert_allclose(spectral_lower_bound(hexagon, triangles) ** 2, 6)
    assert frobenius_distance(hexagon, triangles).distance ** 2 >= 6


def test_bounds_with_labels_hold_and_their_permutation_respects_the_labels():
    rng = np.random.default_rng(4)
    for _ in range(30):
        a, b = random_matrix(rng, 7), random_matrix(rng, 6)
        la, lb = rng.integers(2, size=7).tolist(), rng.integers(2, size=6).tolist()
        one, other = labelled_graph(a, la), labelled_graph(b, lb)
        distance = frobenius_distance(one, other, labels=True).distance
        upper, p = descent_upper_bound(one, other, labels=True)
        lower = assignment_lower_bound(one, other, labels=True)
        assert lower <= distance + 1e-9
        assert distance <= upper + 1e-9
        assert assignment_lower_bound(one, other) <= lower + 1e-9
        assert all(i >= 7 or j >= 6 or la[i] == lb[j] for i, j in enumerate(p))


def test_more_restarts_never_worsen_an_upper_bound():
    rng = np.random.default_rng(6)
    for _ in range(5):
        a, b = random_matrix(rng, 14, 0.5), random_matrix(rng, 14, 0.5)
        for bound in (descent_upper_bound, faq_upper_bound):
            values = [bound(a, b, restarts=r)[0] for r in (0, 2, 6)]
            assert values == sorted(values, reverse=True)


@njit
def call_both(pair, rows, columns, m, domain, general, plain):
    """Python cannot call functions that only kernels call."""
    _pair_neighbours(pair, rows, columns, m, domain, general)
    _pair_plain_neighbours(pair, rows, columns, m, domain, plain)


@pytest.mark.parametrize("density", [0.2, 0.7])  # the second counts non-neighbours too
def test_the_short_cut_of_plain_graphs_gives_the_general_bound(density):
    rng = np.random.default_rng(0)
    for _ in range(50):
        n, free = 12, rng.integers(2, 13)
        pair = read_pair(*(random_matrix(rng, n, density) for _ in range(2)), labels=False)
        rows, columns = (np.sort(rng.permutation(n)[:free]) for _ in range(2))
        open_columns = (rng.random((free, free)) < 0.7) @ (1 << columns.astype(np.uint64))
        general, plain = np.full((2, free, free), np.nan)
        call_both(
            pair, rows, columns, free, open_columns[:, None].astype(np.uint64), general, plain
        )
        np.testing.assert_array_equal(plain, general)
