"""The distance of two graphs against enumeration, at its edges, and when time runs out."""

from itertools import count

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from distance.oracle import (
    attained,
    enumerate_distance,
    enumerate_labelled,
    labelled_graph,
    random_matrix,
    read_pair,
    shuffled,
    weigh,
)
from torch_geometric.data import Data

from softperm.data.graphs import as_graphs
from softperm.distance import exact, frobenius_distance
from softperm.distance.costs import Codes, Frobenius
from softperm.distance.exact import as_result, solve
from softperm.distance.pairs import pack, pair_of, unpack


def check_against_enumeration(a: np.ndarray, b: np.ndarray) -> None:
    result = frobenius_distance(a, b)
    np.testing.assert_allclose(result.distance, enumerate_distance(a, b), atol=1e-6)
    np.testing.assert_allclose(attained(a, b, result.permutation), result.distance, atol=1e-6)
    assert result.exact
    assert result.lower_bound == result.distance
    assert len(result.permutation) == max(len(a), len(b))


def test_distance_equals_enumeration_on_two_thousand_pairs_up_to_seven_vertices():
    rng = np.random.default_rng(0)
    sizes = np.concatenate([rng.integers(1, 7, size=360), np.full(40, 7)])  # 7! takes longest
    matrices = [random_matrix(rng, n) for n in sizes]
    codes = Codes(labels=False, edge_labels=False)
    packed = pack(as_graphs(matrices), codes)  # once, and not for each pair
    model = Frobenius().model(codes)
    rows = []
    for i, k in rng.integers(400, size=(2000, 2)):
        result = as_result(solve(pair_of(model, packed, i, packed, k), None), Frobenius())
        a, b = matrices[i], matrices[k]
        attains = attained(a, b, result.permutation)
        rows.append((result.distance, attains, enumerate_distance(a, b)))
        assert result.exact
    distances, attain, expected = np.transpose(rows)
    np.testing.assert_allclose(distances, expected, atol=1e-9)
    np.testing.assert_allclose(attain, distances, atol=1e-9)


@pytest.mark.parametrize(("seed", "optimum"), [(0, 24), (1, 28), (2, 28)])  # proven by the search
def test_restarts_find_the_optimum_that_one_descent_misses(seed, optimum):
    graphs = (nx.gnp_random_graph(18, 0.4, seed=2 * seed + k) for k in range(2))
    pair = read_pair(*(nx.to_numpy_array(graph) for graph in graphs))
    rng, best = np.random.default_rng(0), np.arange(18)
    first = value = float(exact.descend(pair, best))
    for _ in range(100):
        best, value = exact.restart(pair, best, value, 0.0, rng)
        assert value == exact.cost_of(pair, best)
    assert first > value == optimum


def test_restarts_match_vertices_of_equal_label_only():
    rng = np.random.default_rng(3)
    labels = [rng.integers(3, size=12).tolist() for _ in range(2)]
    graphs = [labelled_graph(random_matrix(rng, 12), label) for label in labels]
    pair = read_pair(*graphs, labels=True)
    best = exact._any_permutation(pair)
    value = float(exact.cost_of(pair, best))
    for _ in range(20):
        best, value = exact.restart(pair, best, value, 0.0, rng)
        found = exact.restart(pair, best, np.inf, 0.0, rng)[0]
        assert all(unpack(pair.allowed)[i, j] for i, j in enumerate(found))
        assert sorted(found) == list(range(found.size))


def test_distance_equals_enumeration_for_matrices_as_users_pass_them():
    rng = np.random.default_rng(1)
    for _ in range(200):
        n, m = rng.integers(1, 8, size=2)
        check_against_enumeration(random_matrix(rng, n), random_matrix(rng, m))


def test_distance_scales_with_tiny_weights():
    rng = np.random.default_rng(2)
    for _ in range(30):
        a, b = (random_matrix(rng, n) * rng.normal(size=(n, n)) for n in rng.integers(3, 6, size=2))
        a, b = ((m + m.T).astype(np.float32) for m in (a, b))
        tiny = frobenius_distance(np.ldexp(a, -70), np.ldexp(b, -70))
        assert tiny.exact
        assert np.ldexp(tiny.distance, 70) == frobenius_distance(a, b).distance


@pytest.mark.parametrize(("n", "pairs"), [(8, 60), (9, 12)])
def test_distance_equals_enumeration_on_sampled_pairs_of_eight_and_nine_vertices(n, pairs):
    rng = np.random.default_rng(n)
    for _ in range(pairs):
        m = int(rng.integers(n - 3, n + 1))
        check_against_enumeration(random_matrix(rng, n), random_matrix(rng, m))


@pytest.mark.parametrize(
    "weights",
    [
        np.array([1.0, 2.0, 3.0]),
        np.array([-2.0, -1.0, 1.0, 2.0]),
        np.array([0.25, 0.5, 1.75]),
        np.array([-0.5, 0.1, 0.3, 2.0], dtype=np.float32).astype(float),
        np.array([0.7], dtype=np.float32).astype(float),
    ],
    ids=["whole", "signed whole", "fractions", "signed fractions", "one weight"],
)
def test_distance_of_weighted_graphs_equals_enumeration(weights):
    rng = np.random.default_rng(0)
    for _ in range(60):
        n, m = rng.integers(1, 8, size=2)
        a = weigh(rng, random_matrix(rng, n), weights)
        b = weigh(rng, random_matrix(rng, m), weights)
        check_against_enumeration(a, b)


@pytest.mark.parametrize("kinds", [["C", "N"], [0, 1, 2], [(0, 1), (1, 0)]])
def test_distance_with_labels_equals_enumeration_with_room_for_every_deletion(kinds):
    rng = np.random.default_rng(1)
    for _ in range(40):
        n, m = rng.integers(1, 5, size=2)
        a, b = random_matrix(rng, n), random_matrix(rng, m)
        la = [kinds[k] for k in rng.integers(len(kinds), size=n)]
        lb = [kinds[k] for k in rng.integers(len(kinds), size=m)]
        result = frobenius_distance(data_of(a, la), data_of(b, lb), labels=True)
        np.testing.assert_allclose(result.distance, enumerate_labelled(a, la, b, lb), atol=1e-9)
        np.testing.assert_allclose(attained(a, b, result.permutation), result.distance, atol=1e-9)
        for i, j in enumerate(result.permutation):
            assert i >= n or j >= m or la[i] == lb[j]
        counted = {kind: max(la.count(kind), lb.count(kind)) for kind in {*la, *lb}}
        assert len(result.permutation) == sum(counted.values())


def data_of(matrix: np.ndarray, labels: list) -> Data:
    edges = torch.from_numpy(np.stack(np.nonzero(matrix)))
    given = labels if isinstance(labels[0], str) else torch.tensor(labels)
    return Data(edge_index=edges, num_nodes=len(matrix), label=given)


def test_graphs_of_one_size_with_different_labels_are_compared_by_deletion():
    edge_of_two_carbons = labelled_graph(np.array([[0.0, 1.0], [1.0, 0.0]]), ["C", "C"])
    edge_of_carbon_and_nitrogen = labelled_graph(np.array([[0.0, 1.0], [1.0, 0.0]]), ["C", "N"])
    result = frobenius_distance(edge_of_two_carbons, edge_of_carbon_and_nitrogen, labels=True)
    np.testing.assert_allclose(result.distance**2, 4)  # both edges have an end that is deleted
    assert len(result.permutation) == 3
    assert frobenius_distance(edge_of_two_carbons, edge_of_carbon_and_nitrogen).distance == 0


def test_labels_can_only_make_graphs_more_distant():
    rng = np.random.default_rng(2)
    for _ in range(30):
        a, b = random_matrix(rng, 6), random_matrix(rng, 7)
        one = labelled_graph(a, rng.integers(3, size=6).tolist())
        other = labelled_graph(b, rng.integers(3, size=7).tolist())
        free = frobenius_distance(one, other).distance
        assert frobenius_distance(one, other, labels=True).distance >= free - 1e-9


@pytest.mark.parametrize("n", [12, 30, 64, 70])
def test_a_renumbered_copy_is_at_distance_zero_and_the_permutation_finds_it(n):
    rng = np.random.default_rng(n)
    a = random_matrix(rng, n, density=0.3)
    b = shuffled(rng, a)
    result = frobenius_distance(a, b)
    assert result.exact
    assert result.distance == 0
    np.testing.assert_array_equal(a, b[result.permutation][:, result.permutation])


def test_a_renumbered_copy_of_a_regular_graph_is_found_although_degrees_say_nothing():
    rng = np.random.default_rng(6)
    a = nx.to_numpy_array(nx.random_regular_graph(3, 50, seed=1))
    result = frobenius_distance(a, shuffled(rng, a), time_limit=60.0)
    assert result.exact
    assert result.distance == 0


def test_a_copy_with_one_edge_less_is_at_squared_distance_two():
    rng = np.random.default_rng(5)
    a = random_matrix(rng, 24, density=0.25)
    b = a.copy()
    i, k = np.argwhere(a)[0]
    b[i, k] = b[k, i] = 0
    result = frobenius_distance(a, shuffled(rng, b))
    assert result.exact
    np.testing.assert_allclose(result.distance**2, 2)


def test_strongly_regular_graphs_of_equal_parameters_are_told_apart():
    rook = nx.line_graph(nx.complete_bipartite_graph(4, 4))
    steps = [(1, 0), (0, 1), (1, 1)]
    shrikhande = nx.Graph(
        ((i, k), ((i + x) % 4, (k + y) % 4)) for i in range(4) for k in range(4) for x, y in steps
    )
    result = frobenius_distance(rook, shrikhande)
    assert result.exact
    assert result.distance > 0


@pytest.mark.parametrize("weights", [[1.0], [-1.0, 2.0], [0.25, 0.5, 1.75]])
@pytest.mark.parametrize("steps", [1, 20])
def test_long_search_raises_its_lower_bound_to_the_optimum_from_a_poor_start(
    weights, steps, monkeypatch
):
    monkeypatch.setattr(exact, "EFFORT", 49 * steps)  # relaxations between two looks at the clock
    monkeypatch.setattr(exact, "faq", lambda *_, randomly: (np.inf, np.arange(7)))
    rng = np.random.default_rng(steps)
    for _ in range(25):
        a, b = (weigh(rng, random_matrix(rng, 7), np.array(weights)) for _ in range(2))
        pair = read_pair(a, b, labels=False)
        poor = rng.permutation(7)
        solution = exact._search_long(pair, poor, 0.0, np.inf, lambda: False)
        result = as_result(solution, Frobenius())
        assert result.exact
        np.testing.assert_allclose(result.distance, enumerate_distance(a, b), atol=1e-6)
        np.testing.assert_allclose(attained(a, b, result.permutation), result.distance, atol=1e-6)
        looks = count()
        cut = as_result(
            exact._search_long(pair, poor, 0.0, np.inf, lambda looks=looks: next(looks) > 14),
            Frobenius(),
        )
        assert cut.lower_bound <= result.distance + 1e-9
        assert result.distance <= cut.distance + 1e-9
        assert cut.exact == (cut.lower_bound == cut.distance)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_isolated_vertices_are_free(n):
    alone = nx.empty_graph(n)
    star = nx.star_graph(4)
    assert frobenius_distance(alone, nx.empty_graph(3)).distance == 0
    np.testing.assert_allclose(frobenius_distance(alone, star).distance ** 2, 8)
    assert frobenius_distance(nx.disjoint_union(star, alone), star).distance == 0


def test_every_form_of_a_graph_gives_the_same_distance():
    rng = np.random.default_rng(3)
    a, b = random_matrix(rng, 7, 0.5), random_matrix(rng, 6, 0.5)
    forms = [
        (a, b),
        (scipy.sparse.csr_array(a), scipy.sparse.coo_array(b)),
        (nx.from_numpy_array(a), nx.from_numpy_array(b)),
        (data_of(a, [0] * 7), data_of(b, [0] * 6)),
        (nx.from_numpy_array(a), b),
    ]
    distances = [frobenius_distance(one, other).distance for one, other in forms]
    assert len(set(distances)) == 1


@pytest.mark.parametrize("n", [20, 40, 80])
def test_a_search_out_of_time_returns_the_interval_and_says_so(n):
    rng = np.random.default_rng(n)
    a, b = random_matrix(rng, n, 0.5), random_matrix(rng, n, 0.5)
    result = frobenius_distance(a, b, time_limit=0.05)
    assert not result.exact
    assert 0 <= result.lower_bound < result.distance
    np.testing.assert_allclose(attained(a, b, result.permutation), result.distance)
    assert round(result.lower_bound**2 / 2) % 2 == round((a.sum() + b.sum()) / 2) % 2


def test_graphs_too_large_to_search_get_bounds_and_nothing_is_claimed():
    one, other = nx.gnp_random_graph(200, 0.03, seed=0), nx.gnp_random_graph(193, 0.05, seed=1)
    result = frobenius_distance(one, other)
    assert not result.exact
    assert 0 < result.lower_bound < result.distance
    a, b = nx.to_numpy_array(one), nx.to_numpy_array(other)
    np.testing.assert_allclose(attained(a, b, result.permutation), result.distance)
    labels = {v: v % 2 for v in range(200)}
    nx.set_node_attributes(one, labels, "label")
    nx.set_node_attributes(other, {v: v % 3 for v in range(193)}, "label")
    with_labels = frobenius_distance(one, other, labels=True)
    for i, j in enumerate(with_labels.permutation):
        assert i >= 200 or j >= 193 or i % 2 == j % 3


def test_more_time_never_widens_the_interval():
    rng = np.random.default_rng(9)
    a, b = random_matrix(rng, 17, 0.5), random_matrix(rng, 17, 0.5)
    short = frobenius_distance(a, b, time_limit=0.0)
    longer = frobenius_distance(a, b, time_limit=0.5)
    assert short.lower_bound <= longer.lower_bound <= longer.distance <= short.distance


NAN = np.array([[0, np.nan], [np.nan, 0]])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.triu(np.ones((3, 3)), k=1), r"graph 1: edge \(0, 1\) .* directed"),
        (nx.DiGraph([(0, 1)]), "graph 1: .* directed"),
        (np.ones((2, 3)), r"graph 1: it is a matrix of shape \(2, 3\); expected a square"),
        (NAN, "graph 1: edge_weight .* nan"),
        (scipy.sparse.csr_array(NAN), "graph 1: edge_weight .* nan"),
        (7, "graph 1: it is an int"),
    ],
    ids=["directed matrix", "directed", "not square", "NaN", "sparse NaN", "number"],
)
def test_bad_graphs_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        frobenius_distance(nx.path_graph(3), bad)


def test_labels_that_are_not_there_are_an_error():
    with pytest.raises(ValueError, match="graph 0: it has no vertex labels to compare; add them"):
        frobenius_distance(nx.path_graph(3), nx.path_graph(3), labels=True)


@pytest.mark.parametrize("limit", [-1.0, float("nan")])
def test_a_time_limit_is_a_number_of_seconds(limit):
    with pytest.raises(ValueError, match=r"time_limit is .*; expected seconds"):
        frobenius_distance(nx.path_graph(3), nx.path_graph(3), time_limit=limit)
