"""Isomorphism, orbits, and a search that may use them or not."""

from itertools import permutations

import networkx as nx
import numpy as np
import pytest
from distance.oracle import labelled_graph, random_matrix, read_pair, shuffled, weigh

from softperm.data.graphs import as_graphs
from softperm.distance.branch_and_bound import advance, open_bound, plant
from softperm.distance.costs import Frobenius
from softperm.distance.pairs import pack
from softperm.distance.symmetry import orbits, representatives, with_orbits

SYMMETRIC = {
    "cycle": nx.cycle_graph(7),
    "star": nx.star_graph(5),
    "grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(2, 3)),
    "complete bipartite": nx.complete_bipartite_graph(3, 4),
    "path": nx.path_graph(6),
    "asymmetric": nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (1, 3)]),
    "two triangles": nx.disjoint_union(nx.complete_graph(3), nx.complete_graph(3)),
}


def enumerate_orbits(matrix: np.ndarray, kind: list) -> list[int]:
    """The least image of each vertex under all automorphisms that keep its kind."""
    n = len(matrix)
    least = list(range(n))
    for p in map(list, permutations(range(n))):
        if all(kind[i] == kind[p[i]] for i in range(n)) and (matrix == matrix[p][:, p]).all():
            least = [min(least[i], p[i]) for i in range(n)]
    return least


@pytest.mark.parametrize("name", SYMMETRIC)
def test_orbits_equal_those_of_all_automorphisms(name):
    matrix = nx.to_numpy_array(SYMMETRIC[name])
    n = len(matrix)
    pair = read_pair(matrix, matrix, labels=False)
    found = orbits(pair.model, pair.kind_b, pair.label_b, pair.twin_b)
    assert found.tolist() == enumerate_orbits(matrix, [0] * n)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_orbits_keep_vertices_apart_that_may_be_matched_differently(name):
    matrix = nx.to_numpy_array(SYMMETRIC[name])
    kinds = [int(v < 2) for v in range(len(matrix))]
    graph = labelled_graph(matrix, kinds)
    pair = with_orbits(read_pair(graph, graph, labels=True), lambda: False)
    assert pair.orbit_b.tolist() == enumerate_orbits(matrix, kinds)
    assert pair.orbit_a.tolist() == pair.orbit_b.tolist()


def test_orbits_out_of_time_are_the_twin_classes():
    cycle, star = nx.cycle_graph(8), nx.star_graph(7)
    pair = with_orbits(read_pair(cycle, star, labels=False), lambda: True)
    assert pair.orbit_a.tolist() == list(range(8))
    assert pair.orbit_b.tolist() == [0, *[1] * 7]


def test_twins_are_vertices_that_can_be_exchanged():
    pair = read_pair(nx.complete_graph(4), nx.complete_bipartite_graph(2, 3), labels=False)
    assert pair.twin_a.tolist() == [0, 0, 0, 0, 4]  # the padding vertex is a class of its own
    assert pair.twin_b.tolist() == [0, 0, 2, 2, 2]
    padded = read_pair(nx.empty_graph(2), nx.path_graph(4), labels=False)
    assert padded.twin_a.tolist() == [0, 0, 0, 0]
    weighted = np.array([[0, 1, 2.0], [1, 0, 0], [2.0, 0, 0]])
    assert read_pair(weighted, weighted, labels=False).twin_a.tolist() == [0, 1, 2]


@pytest.mark.parametrize("probed", [0, 2])
def test_search_finds_the_same_optimum_with_and_without_symmetry(probed):
    rng = np.random.default_rng(probed)
    shapes = [nx.to_numpy_array(graph) for graph in SYMMETRIC.values()]
    shapes += [random_matrix(rng, n) for n in (5, 6, 7)]
    for a in shapes:
        for b in shapes:
            pair = read_pair(shuffled(rng, a), shuffled(rng, b), labels=False)
            alone = np.arange(pair.label_a.size)
            plain = pair._replace(twin_a=alone, twin_b=alone, orbit_a=alone, orbit_b=alone)
            values = []
            for variant in (plain, pair, with_orbits(pair, lambda: False)):
                tree = plant(variant)
                tree.probed[0] = probed
                assert advance(variant, tree, 10**7)
                values.append(tree.value[0])
            assert values[0] == values[1] == values[2]


def test_open_bound_is_a_lower_bound_at_every_moment_of_a_search():
    rng = np.random.default_rng(7)
    for weights in (np.array([1.0]), np.array([0.5, 1.25])):
        a, b = (weigh(rng, random_matrix(rng, 9, 0.5), weights) for _ in range(2))
        pair = read_pair(a, b, labels=False)
        complete, stepwise = plant(pair), plant(pair)
        assert advance(pair, complete, 10**7)
        bounds = [open_bound(stepwise)]
        while not advance(pair, stepwise, 1):
            bounds.append(open_bound(stepwise))
        assert len(bounds) > 5
        assert max(bounds) <= complete.value[0] + 1e-9
        assert stepwise.value[0] == complete.value[0] == open_bound(stepwise)


def representatives_of(graphs: list, *, labels: bool = False) -> list[int]:
    metric, listed = Frobenius(labels), as_graphs(graphs)
    codes = metric.codes(listed)
    packed = pack(listed, codes)
    return representatives(metric.model(codes), packed).tolist()


def test_representatives_are_the_first_isomorphic_graphs():
    rng = np.random.default_rng(8)
    graphs = [nx.from_numpy_array(random_matrix(rng, int(rng.integers(1, 5)))) for _ in range(60)]
    expected = [
        next(k for k, earlier in enumerate(graphs) if nx.is_isomorphic(earlier, graph))
        for graph in graphs
    ]
    assert representatives_of(graphs) == expected
    assert len(set(expected)) < 60


def test_representatives_tell_weights_labels_and_hard_twins_apart():
    edge = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert representatives_of([edge, 2 * edge, edge]) == [0, 1, 0]
    labelled = [labelled_graph(edge, kinds) for kinds in (["C", "N"], ["C", "C"], ["N", "C"])]
    assert representatives_of(labelled, labels=True) == [0, 1, 0]
    assert representatives_of(labelled) == [0, 0, 0]
    alike = [nx.cycle_graph(6), SYMMETRIC["two triangles"]]  # colour refinement sees no difference
    assert representatives_of(alike) == [0, 1]
