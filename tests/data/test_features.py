"""Structural features, held against NetworkX, dense algebra and renumbering."""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import comb

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import collect, labelled_path, renumber
from scipy.linalg import expm
from torch.testing import assert_close

from softperm import parallel
from softperm.data import features
from softperm.data.features import (
    Adjacency,
    ColourVocabulary,
    StructuralFeatures,
    VertexFeatures,
    colour_counts,
    count_triangles,
    structural_features,
    wl_colours,
)

EVERYTHING = StructuralFeatures(
    clustering=True, core=True, neighbours=True, rings=8, walks=9, heat=(1, 4, 16)
)


def triangles(edge_index, ptr):
    bounds = torch.tensor([0, ptr]) if isinstance(ptr, int) else ptr
    return torch.from_numpy(count_triangles(Adjacency.of(edge_index, bounds)))


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
    assert Adjacency.of(edge_index, ptr).degree.tolist() == degrees
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
    assert Adjacency.of(edge_index, ptr).degree.tolist() == [rim] + [3] * rim


@pytest.mark.parametrize("n", [5, 63, 64, 65, 130])
@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_counting_by_marks_and_by_bits_agree(n, density):
    graph = nx.gnp_random_graph(n, density, seed=n)
    graphs = Adjacency.of(*lay_out([graph]))
    out_ptr, out = np.empty(n + 1, dtype=np.int64), np.empty(graphs.column.size + 1, np.int32)
    features._orient(graphs.row_ptr, graphs.column, out_ptr, out)
    marks, bits = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    features._count_by_marks(out_ptr, out, np.empty(n, dtype=np.int32), marks)
    features._count_by_bits(graphs.row_ptr, graphs.column, (n + 63) // 64, bits)
    assert marks.tolist() == bits.tolist() == by_networkx([graph])[1]


def test_features_are_degree_then_triangles_in_float32_by_default():
    graphs = random_graphs(10)
    found = structural_features(*lay_out(graphs))
    assert found.dtype == torch.float32
    assert StructuralFeatures().names == ("degree", "triangles")
    assert_close(found, torch.tensor(by_networkx(graphs)).T.float(), rtol=0, atol=0)


def many_kinds() -> list[nx.Graph]:
    """Random graphs, trees, cliques with twins, a wheel, rings, and vertices without neighbours."""
    return [
        *random_graphs(12),
        nx.random_labeled_tree(30, seed=0),
        nx.barbell_graph(7, 3),
        nx.wheel_graph(12),
        nx.cycle_graph(8),
        nx.star_graph(70),
        nx.windmill_graph(12, 7),
        nx.convert_node_labels_to_integers(nx.hexagonal_lattice_graph(3, 3, with_positions=False)),
        nx.empty_graph(3),
        nx.disjoint_union(nx.cycle_graph(5), nx.empty_graph(2)),
    ]


def column(name: str, graphs: list[nx.Graph], chosen=EVERYTHING) -> torch.Tensor:
    return structural_features(*lay_out(graphs), chosen)[:, chosen.names.index(name)]


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("clustering", nx.clustering),
        ("core", nx.core_number),
        ("mean degree of neighbours", nx.average_neighbor_degree),
        (
            "maximum degree of neighbours",
            lambda g: {v: max((g.degree[u] for u in g[v]), default=0) for v in g},
        ),
    ],
)
def test_a_feature_equals_that_of_networkx(name, oracle):
    graphs = many_kinds()
    expected = [oracle(graph)[v] for graph in graphs for v in range(len(graph))]
    assert_close(column(name, graphs), torch.tensor(expected).float())


def test_rings_are_the_chordless_cycles_of_networkx():
    graphs = [g for g in many_kinds() if nx.density(g) < 0.5]
    found = features.rings(Adjacency.of(*lay_out(graphs)), 8, budget=10**9)
    expected = np.zeros_like(found)
    starts = np.cumsum([0, *map(len, graphs)])
    for graph, start in zip(graphs, starts, strict=False):
        for cycle in nx.chordless_cycles(graph, length_bound=8):
            if len(cycle) > 3:
                expected[start + np.array(cycle), len(cycle) - 4] += 1
    assert expected.any(axis=0).all(), "every length must occur"
    assert (found == expected).all()


def test_naphthalene_has_two_rings_of_six_and_no_ring_of_ten():
    naphthalene = nx.cycle_graph(10)
    naphthalene.add_edge(0, 5)
    found = features.rings(Adjacency.of(*lay_out([naphthalene])), 10)
    assert found[:, 2].tolist() == [2, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    assert found.sum() == 12


@pytest.mark.parametrize("budget", [3, 50, 200, 3000])
def test_rings_beyond_the_budget_saturate_whatever_the_numbering(budget):
    graph = nx.gnp_random_graph(40, 0.15, seed=4)
    order = np.random.default_rng(0).permutation(40)
    moved = nx.relabel_nodes(graph, dict(enumerate(order.tolist())))
    exact, one, other = (
        features.rings(Adjacency.of(*lay_out([g])), 8, b)
        for g, b in ((graph, 10**9), (graph, budget), (moved, budget))
    )
    assert (other[order] == one).all()
    assert ((one == exact) | (one == budget)).all()
    assert (np.diff((one == budget) & (exact != budget), axis=1) >= 0).all(), "then all longer ones"
    assert (one == budget).any()
    assert budget < 100 or (one == exact).any()


@pytest.mark.parametrize("budget", [100, 1000, 10_000])
def test_where_the_bound_promises_few_looks_no_vertex_saturates(budget):
    """The search that finds each ring once agrees with the search from every vertex."""
    promised = 0
    for seed in range(40):
        graphs = Adjacency.of(*lay_out([nx.gnp_random_graph(20, 0.06 + seed / 200, seed=seed)]))
        size, core, longest = graphs.vertices, features.core_number(graphs), 8
        rows, inner = np.empty(size + 1, np.int64), np.empty(graphs.column.size + 1, np.int32)
        features._two_core(graphs.row_ptr, graphs.column, core, rows, inner)
        distance, queue = np.full(size, -1, np.int32), np.empty(size, np.int32)
        scratch = np.zeros(size, np.int32), np.empty(8, np.int32), np.empty(8, np.int64)
        few = features._few_looks(rows, inner, longest, budget, distance, queue)
        assert (distance == -1).all()
        promised += few
        for v in np.flatnonzero(core >= 2) if few else ():
            features._distances(rows, inner, v, longest // 2, distance, queue)
            for length in range(4, longest + 1):
                found = features._rings_of(rows, inner, v, length, budget, distance, *scratch)
                assert found >= 0
            distance[:] = -1
    assert 0 < promised < 40


def dense_walk(graph: nx.Graph) -> np.ndarray:
    a = nx.to_numpy_array(graph, nodelist=range(len(graph)))
    return a / np.maximum(a.sum(1, keepdims=True), 1)


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 17])
def test_return_probabilities_are_the_diagonals_of_dense_powers(steps):
    graphs = many_kinds()
    found = features.return_probabilities(Adjacency.of(*lay_out(graphs)), steps)
    for k in range(1, steps + 1):
        powers = [np.linalg.matrix_power(dense_walk(graph), k).diagonal() for graph in graphs]
        np.testing.assert_allclose(found[:, k - 1], np.concatenate(powers), rtol=0, atol=1e-13)


def test_walks_in_blocks_equal_the_dense_powers_of_a_larger_graph():
    """More vertices than a block holds, most of them further apart than half the steps."""
    graph = nx.disjoint_union(nx.grid_2d_graph(12, 20), nx.barabasi_albert_graph(150, 2, seed=0))
    found = features.return_probabilities(Adjacency.of(*lay_out([graph])), 7)
    expected = np.linalg.matrix_power(dense_walk(graph), 6).diagonal()
    np.testing.assert_allclose(found[:, 5], expected, rtol=0, atol=1e-13)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 150), st.integers(0, 10**6))
def test_walks_count_every_twin(classes, seed):
    """Also where twins are neighbours of each other, and in more classes than one block holds."""
    rng = np.random.default_rng(seed)
    small = nx.gnp_random_graph(classes, rng.uniform(0, 6) / classes, seed=seed)
    owner = np.repeat(np.arange(classes), rng.integers(1, 5, classes))
    a = nx.to_numpy_array(small)[owner][:, owner]
    a += (owner[:, None] == owner) & rng.integers(0, 2, classes).astype(bool)[owner]
    graph = nx.from_numpy_array(a - np.diag(a.diagonal()))
    found = features.return_probabilities(Adjacency.of(*lay_out([graph])), 9)
    powers = [np.linalg.matrix_power(dense_walk(graph), k).diagonal() for k in range(1, 10)]
    np.testing.assert_allclose(found, np.stack(powers, axis=1), rtol=0, atol=1e-13)


@pytest.mark.parametrize("graph", [nx.star_graph(20_000), nx.complete_graph(600)], ids=str)
def test_walks_among_twins_alone_are_back_after_two_steps_as_often_as_their_degrees_say(graph):
    adjacency = Adjacency.of(*lay_out([graph]))
    found = features.return_probabilities(adjacency, 2)[:, 1]
    neighbours = [adjacency.degree[[*graph[v]]] for v in graph]
    expected = [(1 / d).sum() / len(d) for d in neighbours]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("hubs", [False, True])
def test_walks_in_a_large_graph_equal_distributions_of_single_walks(hubs):
    """With hubs half of a walk reaches most vertices, without them hardly any."""
    count = 1 << 13
    graph = nx.barabasi_albert_graph(count, 2, seed=0) if hubs else sparse_graph(count)
    found = features.return_probabilities(Adjacency.of(*lay_out([graph])), 8)
    step = nx.to_scipy_sparse_array(graph, nodelist=range(count), format="csr", dtype=float)
    step /= np.maximum(step.sum(axis=1), 1)[:, None]
    starts = np.random.default_rng(0).permutation(count)[:40]
    walks = np.eye(count)[starts].T  # (V, 40)
    for k in range(8):
        walks = step.T @ walks
        expected = walks[starts, np.arange(40)]
        np.testing.assert_allclose(found[starts, k], expected, rtol=0, atol=1e-13)


def test_walks_in_a_sparse_large_graph_cost_about_as_much_as_in_its_halves():
    count = 1 << 13
    halves = Adjacency.of(*lay_out([sparse_graph(count, seed) for seed in (0, 1)]))
    whole = Adjacency.of(*lay_out([sparse_graph(2 * count)]))
    features.return_probabilities(Adjacency.of(*lay_out([nx.path_graph(3)])), 8)  # compiles
    seconds = {False: [], True: []}
    for joined in (False, True) * 2:
        start = time.process_time()
        features.return_probabilities(whole if joined else halves, 8)
        seconds[joined].append(time.process_time() - start)
    assert min(seconds[True]) < 1.6 * min(seconds[False])  # blocks of any vertices: 2.5 to 3.3


def sparse_graph(count: int, seed: int = 0) -> nx.Graph:
    return nx.gnm_random_graph(count, 2 * count, seed=seed)


@pytest.mark.parametrize("t", [1, 4, 16])
def test_the_heat_kernel_is_the_dense_exponential_within_its_tolerance(t):
    graphs = many_kinds()
    expected = []
    for graph in graphs:
        a = nx.to_numpy_array(graph, nodelist=range(len(graph)))
        scale = 1 / np.sqrt(np.maximum(a.sum(1), 1))
        laplacian = np.eye(len(a)) - scale[:, None] * a * scale
        expected.append(expm(-t * laplacian).diagonal() - np.exp(-t))
    found = column(f"heat after {t}", graphs).double().numpy()
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=6e-8, atol=1.1e-7)


def test_the_steps_of_the_heat_kernel_leave_out_less_than_the_tolerance():
    ones = np.ones((1, 400))  # a walk that is always back: the whole sum
    for t in (1, 3, 16, 64):
        steps = features.heat_steps(t)
        complete = features.heat_kernel(ones, [t])
        left_out = complete - features.heat_kernel(ones[:, :steps], [t])
        assert 0 <= left_out.item() <= 1.01 * features.HEAT_TOLERANCE
        kept_less = features.heat_kernel(ones[:, : steps - 1], [t])
        assert (complete - kept_less).item() > features.HEAT_TOLERANCE


def test_twins_have_the_same_neighbours_beside_each_other_and_one_stand_in():
    graphs = many_kinds()
    found = features.twins(Adjacency.of(*lay_out(graphs)))
    starts = np.cumsum([0, *map(len, graphs)])
    for graph, start in zip(graphs, starts, strict=False):
        for u in graph:
            for v in graph:
                expected = set(graph[u]) - {v} == set(graph[v]) - {u}
                assert (found[start + u] == found[start + v]) == expected


def test_graphs_without_edges_have_zero_features():
    none = torch.empty(2, 0, dtype=torch.long)
    for chosen in (StructuralFeatures(), EVERYTHING):
        size = len(chosen.names)
        found = structural_features(none, torch.tensor([0, 2, 3]), chosen)
        assert_close(found, torch.zeros(3, size))
        assert structural_features(none, torch.tensor([0]), chosen).shape == (0, size)
    assert triangles(none, 0).shape == (0,)


def test_a_vertex_without_neighbours_has_zeros_like_a_padding_vertex():
    graph = nx.disjoint_union(nx.complete_graph(5), nx.empty_graph(2))
    assert not structural_features(*lay_out([graph]), EVERYTHING)[5:].any()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(0, 10**6))
def test_renumbering_vertices_renumbers_their_features(n, seed):
    graph = nx.gnp_random_graph(n, (seed % 9) / 20, seed=seed)
    order = np.random.default_rng(seed).permutation(n)
    moved = nx.relabel_nodes(graph, dict(enumerate(order.tolist())))
    one = structural_features(*lay_out([graph]), EVERYTHING)
    other = structural_features(*lay_out([moved]), EVERYTHING)
    assert_close(other[order], one, rtol=1e-6, atol=1e-7)
    exact = [i for i, name in enumerate(EVERYTHING.names) if not name.startswith(("ret", "heat"))]
    assert_close(other[order][:, exact], one[:, exact], rtol=0, atol=0)


def test_a_collection_has_the_features_of_its_graphs_alone():
    graphs = many_kinds()
    alone = torch.cat([structural_features(*lay_out([graph]), EVERYTHING) for graph in graphs])
    assert_close(structural_features(*lay_out(graphs), EVERYTHING), alone, rtol=0, atol=0)


@pytest.mark.parametrize("name", EVERYTHING.names)
def test_every_feature_has_a_switch_and_its_column(name):
    """A feature has the same values alone and together with all others."""
    switches = {
        "degree": {"degree": True},
        "triangles": {"triangles": True},
        "clustering": {"clustering": True},
        "core": {"core": True},
        "mean": {"neighbours": True},
        "maximum": {"neighbours": True},
        "rings": {"rings": 8},
        "return": {"walks": 9},
        "heat": {"heat": (1, 4, 16)},
    }
    none = {"degree": False, "triangles": False}
    chosen = StructuralFeatures(**{**none, **switches[name.split()[0]]})
    assert len(chosen.names) < len(EVERYTHING.names)
    graphs = many_kinds()
    assert structural_features(*lay_out(graphs), chosen).shape[1] == len(chosen.names)
    assert_close(column(name, graphs, chosen), column(name, graphs), rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"degree": False, "triangles": False}, "at least one structural feature"),
        ({"rings": 3}, "rings must be 0 or from 4 to 12, got 3; triangles counts"),
        ({"rings": 13}, "rings must be a whole number of at least 0 and below 13; got 13"),
        ({"walks": -1}, "walks must be a whole number of at least 0"),
        ({"heat": ()}, "heat must be one or more whole numbers"),
        ({"heat": (0,)}, "heat must be one or more whole numbers of at least 1"),
    ],
)
def test_settings_of_no_sense_are_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        StructuralFeatures(**choices)


@pytest.fixture
def three_threads(monkeypatch):
    monkeypatch.setattr(parallel, "threads", lambda: 3)
    monkeypatch.setattr(parallel, "MIN_OPERATIONS", 0)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_features_do_not_depend_on_how_work_is_split_among_threads(monkeypatch, pieces):
    graphs = many_kinds()
    expected = structural_features(*lay_out(graphs), EVERYTHING)
    monkeypatch.setattr(features, "PIECES", pieces)
    assert_close(structural_features(*lay_out(graphs), EVERYTHING), expected, rtol=0, atol=0)


@pytest.mark.usefixtures("three_threads")
def test_several_threads_may_count_at_once():
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
        pytest.param([(0, 1), (1, 2), (2, 0)], [0, 3], id="a cycle one way"),
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


def by_definition(graph: nx.Graph, rounds: int, degree: bool) -> list[dict]:
    """Colours as nested tuples, without any hash."""
    colour = {v: (graph.nodes[v].get("label"), graph.degree[v] if degree else None) for v in graph}
    found = [colour]
    for _ in range(rounds):
        colour = {
            v: (
                colour[v],
                tuple(sorted((repr(colour[u]), graph[v][u].get("label")) for u in graph[v])),
            )
            for v in graph
        }
        found.append(colour)
    return found


def coloured_graphs(edge_labels: bool = True) -> list[nx.Graph]:
    rng = np.random.default_rng(0)
    graphs = [
        nx.gnp_random_graph(int(n), 0.3, seed=i) for i, n in enumerate(rng.integers(4, 9, 20))
    ]
    for graph in graphs:
        nx.set_node_attributes(graph, {v: int(rng.integers(2)) for v in graph}, "label")
        if edge_labels:
            bonds = {edge: int(rng.integers(2)) for edge in graph.edges}
            nx.set_edge_attributes(graph, bonds, "label")
    return graphs


@pytest.mark.parametrize("start_with_degree", [False, True])
@pytest.mark.parametrize("edge_labels", [False, True])
def test_vertices_have_the_same_colour_if_their_unfolded_neighbourhoods_are_the_same(
    start_with_degree, edge_labels
):
    graphs = coloured_graphs(edge_labels)
    found = features.collection_colours(collect(graphs), 3, start_with_degree)
    each = [by_definition(graph, 3, start_with_degree) for graph in graphs]
    for k in range(4):
        expected = [repr(colours[k][v]) for colours in each for v in colours[k]]
        assert len(set(found[:, k].tolist())) == len(set(expected))
        assert len(set(zip(found[:, k].tolist(), expected, strict=True))) == len(set(expected))


def test_colours_need_edge_labels_to_differ_by_them():
    graphs = Adjacency.of(*lay_out([nx.path_graph(4)]))
    bonds = np.array([[1], [1], [1], [1], [2], [2]])
    plain, labelled = wl_colours(graphs, 1), wl_colours(graphs, 1, edge_label=bonds)
    assert plain[0, 1] == plain[3, 1]
    assert labelled[0, 1] != labelled[3, 1]
    assert (plain[:, 0] == plain[0, 0]).all()


def test_colours_are_the_same_on_every_machine():
    """Saved models hold them, so they must never change."""
    graphs = Adjacency.of(*lay_out([nx.path_graph(2)]))
    label = np.array([[5, -1], [7, 0]])
    found = wl_colours(graphs, 1, label=label, edge_label=label, degree=True)
    assert found.tolist() == [
        [-8469833399027393257, -4782122574476255727],
        [5998924939534772036, -1861948433911499301],
    ]


def test_renumbering_vertices_renumbers_their_colours():
    graph = coloured_graphs()[0]
    order = np.random.default_rng(0).permutation(len(graph)).tolist()
    one, other = (
        features.collection_colours(collect([g]), 3) for g in (graph, renumber(graph, order))
    )
    assert (other == one[order]).all()


def learn(graphs: list[nx.Graph], train=None, **choices) -> ColourVocabulary:
    index = torch.arange(len(graphs)) if train is None else torch.tensor(train)
    settings = {"rounds": 2, "size": 100, "min_graphs": 1, **choices}
    return ColourVocabulary.learn(collect(graphs), index, **settings)


def test_only_training_graphs_give_colours_their_codes():
    graphs = [labelled_path(word) for word in ("aab", "aba", "baa", "bbb", "abb")]
    whole = collect(graphs)
    part = ColourVocabulary.learn(whole, torch.tensor([0, 1, 2]), rounds=2, size=9, min_graphs=1)
    again = ColourVocabulary.learn(
        replace_graph(whole, 4), torch.tensor([0, 1, 2]), rounds=2, size=9, min_graphs=1
    )
    assert part == again
    codes = part.encode(whole)
    assert (codes[:9] >= 0).all()
    assert (codes[9:12, 1] == -1).all(), "bbb has no colour of the training graphs after 2 rounds"


def replace_graph(collection, graph):
    """The collection with other labels in one graph."""
    label = collection.label.clone()
    label[collection.ptr[graph] : collection.ptr[graph + 1]] = 0
    return replace(collection, label=label)


def test_rare_colours_share_a_code_that_unseen_ones_get_too():
    words = ["aaa", "aaa", "aab", "bbb"]
    graphs = [labelled_path(word) for word in words]
    found = learn(graphs, train=[0, 1, 2], rounds=1, min_graphs=2)
    codes = found.encode(collect(graphs))[:, 0]
    assert found.pooled == (True,)
    rare = found.sizes[0] - 1
    assert codes[:6].max() < rare, "colours of two graphs have codes of their own"
    assert codes[8] == rare, "the end b of aab is in one training graph"
    assert (codes[9:] == rare).all(), "bbb was not seen"
    assert learn(graphs, train=[0, 1], rounds=1, min_graphs=2).pooled == (False,)
    unseen = learn(graphs, train=[0, 1], rounds=1).encode(collect(graphs))[9:, 0]
    assert (unseen == -1).all()


def test_of_too_many_colours_those_of_most_graphs_have_codes():
    graphs = [labelled_path(word) for word in ("aa", "aa", "aab", "aab", "aab")]
    found = learn(graphs, rounds=1, size=1)
    assert found.sizes == (2,)
    codes = found.encode(collect(graphs))[:, 0].tolist()
    assert codes == [0, 0, 0, 0, *[0, 1, 1] * 3], "an a with one neighbour a is in all graphs"


def test_round_0_is_left_out_where_it_is_a_label_already():
    graphs = coloured_graphs()
    assert learn(graphs).rounds == (1, 2)
    assert learn(graphs, degree=True).rounds == (0, 1, 2)
    several = replace(collect(graphs), label=collect(graphs).label.repeat(1, 2), label_sizes=(2, 2))
    assert ColourVocabulary.learn(
        several, torch.arange(20), rounds=2, size=9, min_graphs=1
    ).rounds == (0, 1, 2)


def test_counts_of_colours_are_those_of_dictionaries():
    graphs = coloured_graphs()
    found = learn(graphs, rounds=3, size=None, every_round=True)
    assert found.rounds == (0, 1, 2, 3)
    sparse = colour_counts(collect(graphs), found)
    assert sparse.indices.dtype == np.int32, "as scikit-learn needs them"
    table = sparse.toarray()
    words = [
        Counter((k, repr(colours[k][v])) for k in range(4) for v in graph)
        for graph in graphs
        for colours in [by_definition(graph, 3, False)]
    ]
    expected = [[sum(a[c] * b[c] for c in a) for b in words] for a in words]
    np.testing.assert_array_equal(table @ table.T, expected)
    assert table.shape[1] == len(set().union(*words))


def test_rare_colours_are_counted_together_and_colours_without_a_code_are_not():
    graphs = [labelled_path(word) for word in ("aaa", "aaa", "aab", "bbb")]
    pooled = learn(graphs, train=[0, 1, 2], rounds=1, min_graphs=2)
    table = colour_counts(collect(graphs), pooled).toarray()
    assert table[:, -1].tolist() == [0, 0, 2, 3], "of aab, the last a and b"
    assert table.sum(1).tolist() == [3, 3, 3, 3]
    known = learn(graphs, train=[0, 1], rounds=1)
    assert colour_counts(collect(graphs), known).toarray().sum(1).tolist() == [3, 3, 1, 0]


def test_codes_become_further_labels_of_a_collection():
    for graphs in (coloured_graphs(), random_graphs(5)):
        chosen = StructuralFeatures(colours=2, colour_min_graphs=1)
        collection = collect(graphs)
        found = VertexFeatures.learn(collection, torch.arange(len(graphs)), chosen)
        extended = found.extend(collection)
        assert extended.label_sizes == collection.label_sizes + found.colours.sizes
        assert extended.structure is collection.structure
        assert extended.label.shape[1] == len(extended.label_sizes)
        batch = extended.batch(torch.tensor([1, 0]))
        assert batch.x.shape[1] == sum(extended.label_sizes)
        assert_close(batch.x.sum(1), torch.full((len(batch.x),), float(len(extended.label_sizes))))
    plain = VertexFeatures.learn(collection, torch.arange(5), StructuralFeatures())
    assert plain.extend(collection) is collection


def test_several_labels_of_a_vertex_become_one_joint_label():
    graphs = coloured_graphs()
    plain = collect(graphs)
    settings = StructuralFeatures(joint_labels=True, colour_min_graphs=1)
    assert VertexFeatures.learn(plain, torch.arange(20), settings).colours is None
    label = torch.stack([plain.label[:, 0], torch.arange(len(plain.label)) % 3], dim=1)
    several = replace(plain, label=label, label_sizes=(2, 3))
    extended = VertexFeatures.learn(several, torch.arange(20), settings).extend(several)
    assert extended.label_sizes == (2, 3, 6)
    pairs = label[:, 0] * 3 + label[:, 1]
    assert len({*zip(pairs.tolist(), extended.label[:, 2].tolist(), strict=True)}) == 6


def test_a_collection_is_extended_by_the_features_that_are_switched_on():
    graphs = many_kinds()
    extended = VertexFeatures(EVERYTHING).extend(collect(graphs))
    assert_close(extended.structure, structural_features(*lay_out(graphs), EVERYTHING))


def test_a_vocabulary_of_colours_survives_json():
    found = learn(coloured_graphs(), min_graphs=3, degree=True)
    assert ColourVocabulary.from_config(json.loads(json.dumps(found.to_config()))) == found


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": [1]},
        {"rounds": [1, -1]},
        {"colours": [[3, 1], []]},
        {"colours": [[1.5], []]},
        {"pooled": [1, 0]},
        {"degree": None},
        {"more": 1},
    ],
)
def test_a_damaged_vocabulary_of_colours_is_refused(change):
    sound = learn(coloured_graphs()).to_config()
    with pytest.raises(ValueError, match="colours: expected"):
        ColourVocabulary.from_config({**sound, **change})
