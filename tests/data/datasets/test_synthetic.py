"""The generated collections have the paper's statistics, whatever the seed."""

from collections import Counter
from functools import cache

import networkx as nx
import numpy as np
import pytest
from torch_geometric.utils import to_networkx

from softperm.data.datasets import synthetic
from softperm.data.datasets.synthetic import runtime_study

FAMILIES = {
    "path": 8,
    "cycle": 7,
    "star": 6,
    "complete": 6,
    "grid": 3,
    "Barabási–Albert": 54,
    "Watts–Strogatz": 56,
    "Erdős–Rényi": 51,
}


@cache
def distance_study(seed=0, max_vertices=9):
    return synthetic.distance_study(seed, max_vertices=max_vertices)


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_the_distance_study_has_the_papers_statistics_for_every_seed(seed):
    graphs = distance_study(seed)
    vertices = np.array([g.num_nodes for g in graphs])
    edges = np.array([g.num_edges // 2 for g in graphs])
    assert len(graphs) == 191
    assert len(graphs) * 192 // 2 == 18_336
    assert (vertices.min(), vertices.max(), round(vertices.mean(), 2)) == (2, 9, 7.29)
    assert (edges.min(), edges.max(), round(edges.mean(), 2)) == (1, 36, 11.34)
    assert Counter(g.family for g in graphs) == FAMILIES


@pytest.mark.parametrize("most", [9, 12])
def test_all_graphs_of_the_distance_study_are_connected_and_canonical(most):
    for graph in distance_study(max_vertices=most):
        assert nx.is_connected(to_networkx(graph, to_undirected=True))
        edges = graph.edge_index.T.tolist()
        assert edges == sorted(edges)
        assert all(u != v and [v, u] in edges for u, v in edges)


def test_the_families_without_chance_are_what_their_names_say():
    made = [(g.family, to_networkx(g, to_undirected=True)) for g in distance_study()]
    for family, graph in made:
        degrees = sorted(d for _, d in graph.degree)
        n = len(graph)
        expected = {
            "path": [1, 1] + [2] * (n - 2),
            "cycle": [2] * n,
            "star": [1] * (n - 1) + [n - 1],
            "complete": [n - 1] * n,
        }
        if family in expected:
            assert degrees == expected[family]
    plain = [graph for family, graph in made if family in ("grid", *expected)]
    assert not any(
        nx.is_isomorphic(one, other) for k, one in enumerate(plain) for other in plain[:k]
    )


def test_graphs_grow_to_the_requested_size():
    graphs = distance_study(max_vertices=12)
    assert max(g.num_nodes for g in graphs) == 12
    counts = Counter(g.family for g in graphs)
    for family in ("Barabási–Albert", "Watts–Strogatz", "Erdős–Rényi"):
        assert counts[family] == FAMILIES[family]
    assert counts["path"] == 11
    assert counts["grid"] == 6  # 2×3, 2×4, 2×5, 2×6, 3×3, 3×4
    with pytest.raises(ValueError, match="max_vertices is 8; expected 9"):
        distance_study(max_vertices=8)


def test_a_seed_decides_the_random_graphs_and_nothing_else():
    one, same, other = distance_study(1), synthetic.distance_study(1), distance_study(12345)
    assert all(a.edge_index.equal(b.edge_index) for a, b in zip(one, same, strict=True))
    assert all(a.edge_index.equal(b.edge_index) for a, b in zip(one[:30], other[:30], strict=True))
    differ = [not a.edge_index.equal(b.edge_index) for a, b in zip(one, other, strict=True)]
    assert sum(differ) > 100


@pytest.mark.parametrize("n", [10, 50])
def test_the_runtime_study_has_two_classes_of_different_density(n):
    graphs, classes = runtime_study(n)
    assert len(graphs) == 200
    assert Counter(classes.tolist()) == {0: 100, 1: 100}
    assert {g.num_nodes for g in graphs} == {n}
    density = np.array([g.num_edges for g in graphs]) / (n * (n - 1))
    np.testing.assert_allclose(density[classes == 0].mean(), 0.2, atol=0.03)
    np.testing.assert_allclose(density[classes == 1].mean(), 0.4, atol=0.03)
    one, again, other = (runtime_study(n, seed, graphs=4)[0] for seed in (1, 1, 2))
    assert all(a.edge_index.equal(b.edge_index) for a, b in zip(one, again, strict=True))
    assert not any(a.edge_index.equal(b.edge_index) for a, b in zip(one, other, strict=True))


def test_the_runtime_study_refuses_unequal_classes_and_empty_graphs():
    with pytest.raises(ValueError, match="graphs is 7; expected an even number"):
        runtime_study(10, graphs=7)
    with pytest.raises(ValueError, match="vertices is 0; expected at least 1"):
        runtime_study(0)
