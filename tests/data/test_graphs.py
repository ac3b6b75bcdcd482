"""Objects in, canonical graphs out: one form whatever the kind, and errors that name the graph."""

import copy
import warnings

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from softperm.data.graphs import as_graph, as_graphs


def assert_same(one: Data, other: Data) -> None:
    assert set(one.keys()) == set(other.keys())
    for key in one.keys():  # noqa: SIM118, a Data iterates over pairs
        a, b = one[key], other[key]
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype
            assert a.equal(b), key
        else:
            assert a == b, key


@st.composite
def simple_graphs(draw) -> tuple[int, list[tuple[int, int]], list[float] | None]:
    """Number of vertices, undirected edges listed once in any order, and perhaps weights."""
    n = draw(st.integers(1, 8))
    pairs = [(u, v) for u in range(n) for v in range(n) if u != v]
    chosen = draw(st.lists(st.sampled_from(pairs), unique_by=frozenset)) if pairs else []
    number = st.floats(-4, 4, width=32).filter(bool)
    same = len(chosen)
    return n, chosen, draw(st.none() | st.lists(number, min_size=same, max_size=same))


def as_networkx(n, edges, weights):
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edges)
    if weights is not None:
        nx.set_edge_attributes(graph, dict(zip(edges, weights, strict=True)), "weight")
    return graph


def as_data(n, edges, weights):
    ends = torch.tensor(edges).long().reshape(-1, 2)
    data = Data(edge_index=torch.cat([ends, ends.flip(1)]).T, num_nodes=n)
    if weights is not None:
        data.edge_weight = torch.tensor(weights * 2)
    return data


def as_dense(n, edges, weights):
    matrix = np.zeros((n, n))
    for (u, v), weight in zip(edges, weights or [1.0] * len(edges), strict=True):
        matrix[u, v] = matrix[v, u] = weight
    return matrix


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")  # torch, when the test makes one
@settings(max_examples=100, deadline=None)
@given(simple_graphs())
def test_every_kind_of_object_gives_the_same_graph(drawn):
    n, edges, weights = drawn
    dense = as_dense(n, edges, weights)
    wanted = as_graph(dense)
    for other in (
        as_networkx(n, edges, weights),
        as_networkx(n, edges, weights).to_directed(),
        nx.MultiGraph(as_networkx(n, edges, weights)),
        as_data(n, edges, weights),
        torch.from_numpy(dense),
        torch.from_numpy(dense).to_sparse(),
        torch.from_numpy(dense).to_sparse_csr(),
        scipy.sparse.csr_matrix(dense),
        scipy.sparse.coo_array(dense),
        scipy.sparse.dok_array(dense),
        wanted,
    ):
        assert_same(as_graph(other), wanted)
    if weights is None:
        assert_same(as_graph((edges, n)), wanted)
        assert_same(as_graph((edges + [(v, u) for u, v in edges], n)), wanted)
        array = np.array(edges, dtype=np.uint8).reshape(-1, 2)
        if len(edges) != 2:  # two edges may be rows or columns, which is refused
            assert_same(as_graph((array, n)), wanted)
            assert_same(as_graph((torch.from_numpy(array.T.astype(int)), np.int32(n))), wanted)
        assert_same(as_graph(dense.astype(bool)), wanted)


@settings(max_examples=50, deadline=None)
@given(simple_graphs())
def test_edges_come_out_both_ways_sorted_and_simple(drawn):
    n, edges, weights = drawn
    graph = as_graph(as_networkx(n, edges, weights))
    wanted = sorted({(u, v) for u, v in edges} | {(v, u) for u, v in edges})
    assert graph.edge_index.dtype == torch.int64
    assert graph.edge_index.T.tolist() == [list(edge) for edge in wanted]
    assert graph.num_nodes == n


@settings(max_examples=50, deadline=None)
@given(simple_graphs(), st.lists(st.integers(0, 7)), st.lists(st.integers(0, 50)))
def test_loops_and_duplicates_go_with_one_warning_that_counts_them(drawn, loops, repeats):
    n, edges, _ = drawn
    loops = [(v % n, v % n) for v in loops]
    again = [edges[k % len(edges)] for k in repeats if edges]
    noisy = (edges + loops + again, n)
    clean = (edges, n)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, untouched = as_graphs([noisy, clean])
    assert_same(found, as_graph(clean))
    assert_same(untouched, as_graph(clean))
    if loops or again:
        (warning,) = caught
        words = str(warning.message)
        for count, kind in ((len(loops), "self-loop"), (len(again), "duplicate edge")):
            assert (f"{count} {kind}{'s' * (count > 1)}" in words) == (count > 0)
        assert "from 1 of 2 graphs" in words
    else:
        assert not caught


def test_an_edge_listed_twice_both_ways_is_one_duplicate():
    twice = Data(edge_index=torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]]), num_nodes=2)
    with pytest.warns(UserWarning, match="removed 1 duplicate edge from 1 of 1 graph; of an edge"):
        graph = as_graph(twice)
    assert graph.edge_index.tolist() == [[0, 1], [1, 0]]


def test_parallel_edges_of_a_multigraph_are_duplicates_and_the_first_counts():
    graph = nx.MultiGraph()
    graph.add_edge("a", "b", weight=2.0)
    graph.add_edge("a", "b", weight=3.0)
    with pytest.warns(UserWarning, match="1 duplicate edge from"):
        assert as_graph(graph).edge_weight.tolist() == [2.0, 2.0]


def labelled() -> nx.Graph:
    """A triangle with a tail, everything carried, vertices out of order."""
    graph = nx.Graph()
    for name, label, x in (("d", "C", [1, 2]), ("a", "N", [3, 4]), ("c", "O", [5, 6])):
        graph.add_node(name, label=label, x=x)
    graph.add_node("b", label="C", x=[7.5, 8])
    for u, v, label, x, w in (("c", "d", 1, 0.5, 2), ("d", "a", 2, 1.5, 3), ("c", "a", 1, 2.5, 4)):
        graph.add_edge(u, v, label=label, x=x, weight=w)
    graph.add_edge("b", "c", label=3, x=3.5, weight=5)
    return graph


def test_vertices_keep_the_order_of_the_object_and_edges_keep_what_they_carry():
    graph, source = as_graph(labelled()), labelled()
    names = list(source)
    assert names == ["d", "a", "c", "b"]
    assert graph.label == ["C", "N", "O", "C"]
    assert graph.x.tolist() == [[1, 2], [3, 4], [5, 6], [7.5, 8]]
    assert graph.x.dtype == graph.edge_attr.dtype == graph.edge_weight.dtype == torch.float32
    carried = zip(graph.edge_attr, graph.edge_label, graph.edge_weight, strict=True)
    for (u, v), (x, label, weight) in zip(graph.edge_index.T.tolist(), carried, strict=True):
        edge = source.edges[names[u], names[v]]
        assert (x.tolist(), int(label), float(weight)) == (
            [edge["x"]],
            edge["label"],
            edge["weight"],
        )


def test_canonical_graphs_are_fixed_points():
    graph = as_graph(labelled())
    assert_same(as_graph(graph), graph)


def test_the_users_object_is_left_as_it_was():
    data = as_data(3, [(0, 1), (1, 2)], [2.0, 3.0])
    data.x, data.y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1])
    before = copy.deepcopy(data)
    graph = as_graph(data)
    graph.x[0] = graph.edge_weight[0] = 99.0
    assert_same(data, before)
    network = labelled()
    as_graph(network)
    assert nx.utils.graphs_equal(network, labelled())
    matrix = scipy.sparse.coo_matrix(([1, 1, 1, 1], ([0, 1, 0, 1], [1, 0, 1, 0])), shape=(2, 2))
    assert as_graph(matrix).edge_weight.tolist() == [2.0, 2.0]
    assert matrix.nnz == 4


def test_weights_of_one_mean_no_weights():
    assert "edge_weight" not in as_graph(as_data(3, [(0, 1), (1, 2)], [1.0, 1.0]))
    assert as_graph(as_dense(3, [(0, 1), (1, 2)], [1.0, 2.0])).edge_weight.tolist() == [1, 1, 2, 2]


def test_data_may_count_its_vertices_by_num_nodes_or_by_x():
    edges = torch.tensor([[0, 1], [1, 0]])
    assert as_graph(Data(edge_index=edges, num_nodes=7)).num_nodes == 7
    assert as_graph(Data(edge_index=edges, x=torch.ones(5, 2))).num_nodes == 5
    assert as_graph(Data(edge_index=edges, label=["a", "b", "c"])).num_nodes == 3
    assert as_graph(Data(edge_index=torch.empty(2, 0), num_nodes=1)).num_nodes == 1


def test_fields_of_data_are_read_whatever_their_precision():
    edges = torch.tensor([[1, 0], [0, 1]])
    data = Data(
        edge_index=edges,
        x=torch.tensor([1, 0], dtype=torch.uint8),
        edge_attr=torch.tensor([[0.5], [0.5]], dtype=torch.bfloat16, requires_grad=True),
        edge_weight=np.array([[2.0], [2.0]]),
        label=torch.tensor([[1, 2], [3, 4]], dtype=torch.int32),
        edge_label=torch.tensor([True, True]),
    )
    graph = as_graph(data)
    assert graph.x.tolist() == [[1.0], [0.0]]
    assert graph.edge_attr.tolist() == [[0.5], [0.5]]
    assert graph.edge_weight.tolist() == [2.0, 2.0]
    assert graph.label.tolist() == [[1, 2], [3, 4]]
    assert graph.edge_label.tolist() == [1, 1]
    assert graph.label.dtype == graph.edge_label.dtype == torch.int64


def test_integer_and_string_labels_stay_apart():
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, {0: 1, 1: "1", 2: np.int64(7)}, "label")
    assert as_graph(graph).label == [1, "1", 7]


def test_an_empty_attribute_is_none():
    graph = as_graph(Data(edge_index=torch.empty(2, 0), num_nodes=2, x=torch.empty(2, 0)))
    assert "x" not in graph


def test_edges_of_a_graph_without_edges_carry_nothing():
    bare = Data(edge_index=torch.empty(2, 0), num_nodes=2, edge_attr=torch.empty(0, 3))
    full = as_data(2, [(0, 1)], None)
    full.edge_attr = torch.ones(2, 3)
    assert set(as_graphs([bare, full])[0].keys()) == {"edge_index", "num_nodes"}


def test_labels_in_rows_of_several_lengths_name_the_graph():
    odd = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2, label=[[1], [1, 2]])
    with pytest.raises(ValueError, match="graph 0: label has rows of several lengths"):
        as_graphs([odd])


DIRECTED = {
    "DiGraph": nx.DiGraph([(0, 1), (1, 2), (2, 1)]),
    "MultiDiGraph": nx.MultiDiGraph([(0, 1), (1, 2), (2, 1)]),
    "Data": Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 1]]), num_nodes=3),
    "pair": ([(0, 1), (1, 2), (2, 1)], 3),
    "dense": np.array([[0, 1, 0], [0, 0, 1], [0, 1, 0]]),
    "sparse": scipy.sparse.csr_array(np.array([[0, 1, 0], [0, 0, 1], [0, 1, 0]])),
}


@pytest.mark.parametrize("kind", DIRECTED)
def test_directed_graphs_need_symmetrise(kind):
    with pytest.raises(
        ValueError, match=r"graph 4: edge \(0, 1\) is listed in one .*set symmetrise"
    ):
        as_graph(DIRECTED[kind], 4)
    found = as_graph(DIRECTED[kind], symmetrise=True)
    assert_same(found, as_graph(([(0, 1), (1, 2)], 3)))


def test_directions_that_carry_different_things_are_refused_unless_symmetrised():
    matrix = np.array([[0, 2.0], [3.0, 0]])
    with pytest.raises(ValueError, match=r"edge \(0, 1\) has edge_weight 2.0 .* and 3.0"):
        as_graph(matrix)
    assert as_graph(matrix, symmetrise=True).edge_weight.tolist() == [2.0, 2.0]
    graph = nx.DiGraph()
    graph.add_edge("b", "a", label="up")
    graph.add_edge("a", "b", label="down")
    with pytest.raises(ValueError, match=r"edge \('b', 'a'\) has edge_label up .* and down"):
        as_graph(graph)
    assert as_graph(graph, symmetrise=True).edge_label == ["up", "up"]


def test_rounding_does_not_make_a_matrix_asymmetric():
    matrix = np.array([[0, 0.1 + 0.2], [0.3, 0]])
    weights = as_graph(matrix.astype(np.float32) * np.float32([[1, 1 + 1e-6]])).edge_weight
    assert weights[0] == weights[1]


def test_lists_may_be_any_iterable_of_graphs():
    wanted = as_graph(nx.path_graph(3))
    matrices = np.stack([nx.to_numpy_array(nx.path_graph(3))] * 2)
    for objs in (
        (nx.path_graph(3), nx.path_graph(3)),
        iter([nx.path_graph(3), nx.path_graph(3)]),
        matrices,
        torch.from_numpy(matrices),
    ):
        for graph in as_graphs(objs):
            assert_same(graph, wanted)


def test_weighted_and_unweighted_graphs_may_stand_together():
    graphs = as_graphs([as_dense(2, [(0, 1)], [1.0]), as_dense(2, [(0, 1)], [2.0])])
    assert ["edge_weight" in graph for graph in graphs] == [False, True]


def test_smiles_become_molecules():
    ethanol, carbon = as_graphs(["CCO", "C"])
    assert ethanol.label == ["C", "C", "O"]
    assert ethanol.edge_label == ["SINGLE"] * 4
    assert carbon.edge_index.shape == (2, 0)


def test_graphs_may_lie_in_an_array_as_scikit_learn_holds_them():
    graphs = [nx.path_graph(n) for n in (2, 3, 4)]
    held = np.empty(3, dtype=object)
    held[:] = graphs
    assert [g.num_nodes for g in as_graphs(held[[2, 0]])] == [4, 2]
    assert [g.num_nodes for g in as_graphs(np.array(["CCO", "CC"]))] == [3, 2]


def test_a_matrix_of_half_precision_is_read():
    matrix = torch.tensor([[0, 0.5], [0.5, 0]]).bfloat16()
    for form in (matrix, matrix.to_sparse()):
        assert as_graph(form).edge_weight.tolist() == [0.5, 0.5]


def test_what_rounding_left_of_zeros_may_differ():
    matrix = np.array([[0, 1, 0], [1, 0, 1e-17], [0, 2e-17, 0]])
    assert as_graph(matrix).edge_index.shape == (2, 4)


def test_a_bare_number_and_a_list_of_one_are_the_same_attribute():
    graph = nx.path_graph(2)
    graph.nodes[0]["x"], graph.nodes[1]["x"] = 1, [2.5]
    assert as_graph(graph).x.tolist() == [[1.0], [2.5]]


def test_sparse_attributes_become_dense():
    edges = torch.tensor([[0, 1], [1, 0]])
    for x in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()):
        assert torch.equal(as_graph(Data(edge_index=edges, num_nodes=2, x=x)).x, torch.eye(2))


@pytest.mark.parametrize("empty", [[], (), np.zeros(0), np.zeros((0, 2)), torch.zeros(0)])
def test_a_graph_without_edges_may_have_empty_edge_labels_of_any_type(empty):
    """An empty list becomes an array of real numbers, which labels otherwise may not be."""
    known = {"edge_index": torch.zeros((2, 0), dtype=torch.int64), "num_nodes": 1, "label": ["a"]}
    integers = torch.zeros(0, dtype=torch.int64)
    expected = as_graph(Data(**known, edge_label=integers))
    assert_same(as_graph(Data(**known, edge_label=empty)), expected)
