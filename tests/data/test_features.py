"""Degree and triangles, held against NetworkX and against what renumbering must not change."""

from concurrent.futures import ThreadPoolExecutor
from math import comb

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from softperm.data import features
from softperm.data.features import degree, structural_features, triangles


def lay_out(graphs: list[nx.Graph]) -> tuple[torch.Tensor, torch.Tensor]:
    """Canonical edges of graphs on 0 … n − 1 end to end, and ``ptr``."""
    ptr = torch.tensor([0, *np.cumsum([len(graph) for graph in graphs])])
    both = [e for g in graphs for e in (torch.tensor([*g.edges]).long().reshape(-1, 2),)]
    edges = torch.cat([e + start for e, start in zip(both, ptr[:-1], strict=True)])
    edges = torch.cat([edges, edges.flip(1)])
    order = (edges[:, 0] * ptr[-1] + edges[:, 1]).argsort()
    return edges[order].T.contiguous(), ptr


def random_graphs(count: int, seed: int = 0) -> list[nx.Graph]:
    rng = np.random.default_rng(seed)
    pairs = zip(rng.integers(1, 40, count).tolist(), rng.uniform(0, 1, count).tolist(), strict=True)
    return [nx.gnp_random_graph(n, p, seed=i) for i, (n, p) in enumerate(pairs)]


def by_networkx(graphs: list[nx.Graph]) -> tuple[list[int], list[int]]:
    degrees = [d for graph in graphs for _, d in graph.degree]
    return degrees, [t for graph in graphs for t in nx.triangles(graph).values()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 10**6)), min_size=1, max_size=6))
def test_counts_equal_those_of_networkx(drawn):
    graphs = [nx.gnp_random_graph(n, (seed % 11) / 10, seed=seed) for n, seed in drawn]
    edge_index, ptr = lay_out(graphs)
    degrees, counts = by_networkx(graphs)
    assert degree(edge_index, int(ptr[-1])).tolist() == degrees
    assert triangles(edge_index, ptr).tolist() == counts


@pytest.mark.parametrize("n", [1, 2, 3, 4, 50, 300])
def test_every_vertex_of_a_complete_graph_lies_in_all_pairs_of_the_others(n):
    edge_index = (1 - torch.eye(n)).nonzero().T.contiguous()
    counts = triangles(edge_index, n)
    assert counts.dtype == torch.int64
    assert counts.tolist() == [comb(n - 1, 2)] * n


def test_hubs_of_a_wheel_count_every_rim_edge():
    hub, rim = 5000, 4999
    edge_index, ptr = lay_out([nx.wheel_graph(hub)])
    assert triangles(edge_index, ptr).tolist() == [rim] + [2] * rim
    assert degree(edge_index, hub).tolist() == [rim] + [3] * rim


@pytest.mark.parametrize("n", [5, 63, 64, 65, 130])
@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_counting_by_marks_and_by_bits_agree(n, density):
    graph = nx.gnp_random_graph(n, density, seed=n)
    row, column = lay_out([graph])[0].numpy()
    row_ptr = np.searchsorted(row, np.arange(n + 1))
    out_ptr, out = np.empty(n + 1, dtype=np.int64), np.empty(row.size, dtype=np.int32)
    features._orient(column, 0, n, row_ptr, out_ptr, out)
    marks, bits = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    features._count_by_marks(out_ptr, out, np.empty(n, dtype=np.int32), marks)
    features._count_by_bits(column, 0, (n + 63) // 64, row_ptr, bits)
    assert marks.tolist() == bits.tolist() == by_networkx([graph])[1]


def test_graphs_without_edges_have_zero_features():
    none = torch.empty(2, 0, dtype=torch.long)
    assert_close(structural_features(none, torch.tensor([0, 2, 3])), torch.zeros(3, 2))
    assert triangles(none, 0).shape == (0,)
    assert structural_features(none, torch.tensor([0])).shape == (0, 2)


def test_renumbering_vertices_renumbers_their_features():
    graph = nx.gnp_random_graph(40, 0.3, seed=1)
    order = np.random.default_rng(2).permutation(40)
    moved = nx.relabel_nodes(graph, dict(enumerate(order.tolist())))
    one = structural_features(*lay_out([graph]))
    other = structural_features(*lay_out([moved]))
    assert_close(other[order], one, rtol=0, atol=0)


def test_a_collection_has_the_features_of_its_graphs_alone():
    graphs = random_graphs(30)
    alone = torch.cat([structural_features(*lay_out([graph])) for graph in graphs])
    assert_close(structural_features(*lay_out(graphs)), alone, rtol=0, atol=0)


def test_features_are_degree_then_triangles_in_float32():
    graphs = random_graphs(10)
    found = structural_features(*lay_out(graphs))
    assert found.dtype == torch.float32
    assert_close(found, torch.tensor(by_networkx(graphs)).T.float(), rtol=0, atol=0)


@pytest.mark.parametrize("edges_per_task", [1, 7, 1000])
def test_counts_do_not_depend_on_how_work_is_split_among_threads(monkeypatch, edges_per_task):
    graphs = random_graphs(60)
    edge_index, ptr = lay_out(graphs)
    monkeypatch.setattr(features, "_EDGES_PER_TASK", edges_per_task)
    assert triangles(edge_index, ptr).tolist() == by_networkx(graphs)[1]


def test_several_threads_may_count_at_once(monkeypatch):
    monkeypatch.setattr(features, "_EDGES_PER_TASK", 100)
    graphs = random_graphs(60)
    edge_index, ptr = lay_out(graphs)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: triangles(edge_index, ptr).tolist(), range(8)))
    assert found == [by_networkx(graphs)[1]] * 8


def test_edges_may_be_int32():
    edge_index, ptr = lay_out(random_graphs(10))
    assert triangles(edge_index.int(), ptr).equal(triangles(edge_index, ptr))
    assert structural_features(edge_index.int(), ptr).equal(structural_features(edge_index, ptr))


@pytest.mark.parametrize(
    ("edges", "ptr"),
    [
        pytest.param([(1, 0), (0, 1)], [0, 2], id="unsorted rows"),
        pytest.param([(0, 2), (0, 1), (1, 0), (2, 0)], [0, 3], id="unsorted columns"),
        pytest.param([(0, 0)], [0, 1], id="self-loop"),
        pytest.param([(0, 1), (0, 2), (1, 2)], [0, 3], id="one way"),
        pytest.param([(0, 1), (1, 2)], [0, 3], id="a path one way"),
        pytest.param([(0, 1), (0, 1), (1, 0), (1, 0)], [0, 2], id="duplicates"),
        pytest.param([(0, 1), (1, 0)], [0, 1, 2], id="joins two graphs"),
        pytest.param([(0, 5), (5, 0)], [0, 3], id="vertex too large"),
        pytest.param([(0, 10**12)], [0, 3], id="column far outside"),
        pytest.param([(-1, 0), (0, -1)], [0, 3], id="negative vertex"),
        pytest.param([(0, 1), (1, 0)], [0], id="more edges than graphs"),
    ],
)
def test_edges_that_are_not_canonical_are_refused(edges, ptr):
    with pytest.raises(ValueError, match="edge_index is not canonical"):
        triangles(torch.tensor(edges).T.contiguous(), torch.tensor(ptr))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_features_come_back_on_the_device_of_the_edges():
    edge_index, ptr = lay_out(random_graphs(10))
    found = structural_features(edge_index.cuda(), ptr.cuda())
    assert found.is_cuda
    assert_close(found.cpu(), structural_features(edge_index, ptr), rtol=0, atol=0)
