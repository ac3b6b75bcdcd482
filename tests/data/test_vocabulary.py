"""Vocabularies: codes that mean the same at prediction time as in training."""

import json
import warnings

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch_geometric.data import Data

from softperm.data.features import structural_features
from softperm.data.graphs import as_graphs
from softperm.data.vocabulary import Vocabulary

LABELS = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3)


def path(labels, edge_labels=None, **fields) -> nx.Graph:
    """A path whose vertices, and perhaps edges, have these labels."""
    graph = nx.path_graph(len(labels))
    nx.set_node_attributes(graph, dict(enumerate(labels)), "label")
    if edge_labels is not None:
        nx.set_edge_attributes(graph, dict(zip(graph.edges, edge_labels, strict=True)), "label")
    for name, value in fields.items():
        if name == "weight":
            nx.set_edge_attributes(graph, value, name)
        else:
            nx.set_node_attributes(graph, value, name)
    return graph


def read(*graphs) -> list[Data]:
    return as_graphs(list(graphs))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(LABELS, min_size=1, max_size=5), min_size=1, max_size=5))
def test_decoding_the_codes_gives_the_labels_back(drawn):
    graphs = read(*map(path, drawn))
    vocabulary = Vocabulary.learn(graphs)
    (known,) = vocabulary.labels
    codes = vocabulary.encode(graphs).label[:, 0].tolist()
    assert [known[code] for code in codes] == [label for labels in drawn for label in labels]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(LABELS, min_size=1, max_size=5), min_size=1, max_size=5), st.data())
def test_the_order_of_training_graphs_does_not_matter(drawn, data):
    shuffled = data.draw(st.permutations(drawn))
    assert Vocabulary.learn(read(*map(path, drawn))) == Vocabulary.learn(read(*map(path, shuffled)))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(LABELS, unique=True).map(tuple)).map(tuple),
    st.lists(st.lists(LABELS, unique=True).map(tuple)).map(tuple),
    st.integers(0, 9),
    st.booleans(),
)
def test_a_vocabulary_survives_json(labels, edge_labels, size, weighted):
    vocabulary = Vocabulary(labels, edge_labels, size, size + 1, weighted)
    config = json.loads(json.dumps(vocabulary.to_config()))
    assert Vocabulary.from_config(config) == vocabulary


def test_a_collection_holds_the_graphs_end_to_end():
    graphs = read(
        path([3, 1, 3], ["s", "d"], x=[0.5, 1.0], weight=2.0),
        path([1], [], x=[7.0, 8.0]),
        path([1, 9], ["d"], x=[2.0, 3.0]),
    )
    made = Vocabulary.learn(graphs).encode(graphs)
    assert made.ptr.tolist() == [0, 3, 4, 6]
    assert made.edge_ptr.tolist() == [0, 4, 4, 6]
    assert made.edge_index.tolist() == [[0, 1, 1, 2, 0, 1], [1, 0, 2, 1, 1, 0]]
    assert made.label[:, 0].tolist() == [1, 0, 1, 0, 0, 2]
    assert made.label_sizes == (3,)
    assert made.edge_label[:, 0].tolist() == [1, 1, 0, 0, 0, 0]
    assert made.edge_label_sizes == (2,)
    assert made.edge_weight.tolist() == [2, 2, 2, 2, 1, 1]
    assert_close(made.x, torch.cat([graph.x for graph in graphs]))
    assert made.structure.tolist() == [[1, 0], [2, 0], [1, 0], [0, 0], [1, 0], [1, 0]]


def test_structure_is_that_of_each_graph_alone():
    graphs = read(*(nx.gnp_random_graph(n, 0.5, seed=n) for n in range(1, 20)))
    alone = [structural_features(g.edge_index, torch.tensor([0, g.num_nodes])) for g in graphs]
    assert_close(Vocabulary.learn(graphs).encode(graphs).structure, torch.cat(alone))


def test_several_label_columns_are_coded_each_by_itself():
    edges = torch.tensor([[0, 1], [1, 0]])
    one = Data(edge_index=edges, label=torch.tensor([[5, 0], [7, 0]]), num_nodes=2)
    two = Data(edge_index=edges, label=torch.tensor([[7, 2], [6, 0]]), num_nodes=2)
    vocabulary = Vocabulary.learn(read(one, two))
    assert vocabulary.labels == ((5, 6, 7), (0, 2))
    assert vocabulary.encode(read(two)).label.tolist() == [[2, 1], [1, 0]]
    assert vocabulary.encode(read(two)).batch(torch.tensor([0])).x.tolist() == [
        [0, 0, 1, 0, 1],
        [0, 1, 0, 1, 0],
    ]


def test_unseen_labels_are_zero_vectors_with_one_warning_that_counts_them():
    vocabulary = Vocabulary.learn(read(path(["C", "N"], ["s"])))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = vocabulary.encode(read(path(["C", "Br", "Br"], ["s", "t"]), path([1, "N"], ["t"])))
    (warning,) = caught
    assert str(warning.message) == (
        "graph 0 and 1 more: 3 vertices and 2 edges have labels that training did not see (such as "
        "'Br', 1, 't'); these count as no label"
    )
    assert made.label[:, 0].tolist() == [0, -1, -1, -1, 1]
    batch = made.batch(torch.tensor([0, 1]))
    assert batch.x.tolist() == [[1, 0], [0, 0], [0, 0], [0, 0], [0, 1]]
    assert batch.edge_attr.tolist() == [[1], [1], [0], [0], [0], [0]]


def test_the_warning_names_the_first_graph_with_unseen_labels_of_vertices_or_edges():
    """Graphs without edges, and graphs whose labels were seen, come between."""
    vocabulary = Vocabulary.learn(read(path(["C", "N"], ["s"])))
    seen, lone = path(["C", "C"], ["s"]), path(["N"], [])
    for odd, first in ((path(["C", "N"], ["t"]), "graph 3:"), (path(["Br"], []), "graph 3:")):
        with pytest.warns(UserWarning, match=f"^{first}"):
            vocabulary.encode(read(seen, lone, lone, odd, seen))


def test_unseen_integers_are_zero_vectors_too():
    vocabulary = Vocabulary.learn(read(path([6, 7])))
    with pytest.warns(UserWarning, match=r"1 vertex has a label .* \(such as 35\)"):
        made = vocabulary.encode(read(path([7, 35, 6])))
    assert made.batch(torch.tensor([0])).x.tolist() == [[0, 1], [0, 0], [1, 0]]


def test_integers_come_in_order_before_strings_in_order():
    vocabulary = Vocabulary.learn(read(path([10, "b", 9, "a", -1, "B"])))
    assert vocabulary.labels == ((-1, 9, 10, "B", "a", "b"),)


def test_the_string_of_a_number_is_not_the_number():
    vocabulary = Vocabulary.learn(read(path([1, "1"])))
    assert vocabulary.labels == ((1, "1"),)
    with pytest.warns(UserWarning, match="1 vertex has a label"):
        assert Vocabulary.learn(read(path([1]))).encode(read(path(["1"]))).label.tolist() == [[-1]]


def test_graphs_may_be_larger_at_prediction_than_in_training():
    vocabulary = Vocabulary.learn(read(path(["C"])))
    assert vocabulary.encode(read(path(["C"] * 500))).ptr.tolist() == [0, 500]


def test_an_unweighted_graph_has_weights_of_one():
    vocabulary = Vocabulary.learn(read(path([1, 1], weight=2.0), path([1, 1])))
    assert vocabulary.weighted
    assert vocabulary.encode(read(path([1, 1]))).edge_weight.tolist() == [1, 1]


def test_edge_fields_may_be_empty_when_no_graph_has_edges():
    graph = path([1, 1], ["s"])
    nx.set_edge_attributes(graph, [0.5, 0.5], "x")
    made = Vocabulary.learn(read(graph)).encode(read(path([1])))
    assert made.edge_label.shape == (0, 1)
    assert made.edge_attr.shape == (0, 2)
    assert made.batch(torch.tensor([0])).edge_attr.shape == (0, 3)


MISMATCHES = {
    "other size": (
        path([1], x=[1.0, 2.0, 3.0]),
        "graph 1: it has x of 3 values a vertex, but the model was trained on graphs with x of 2",
    ),
    "no attributes": (
        path([1]),
        "graph 1: it has no x, but the model was trained on graphs with x of 2",
    ),
    "no labels": (nx.path_graph(1), "graph 1: it has no x"),
    "more than trained with": (
        path([1, 1], ["s"], x=[1.0, 2.0]),
        "graph 1: it has edge_label of 1 value an edge, but the model was trained on graphs",
    ),
    "weights": (
        path([1, 1], x=[1.0, 2.0], weight=3.0),
        "graph 1: it has edge weights, but the model was trained on graphs without",
    ),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_graphs_that_carry_other_fields_than_in_training_are_refused(case):
    odd, message = MISMATCHES[case]
    vocabulary = Vocabulary.learn(read(path([1, 1], x=[1.0, 2.0])))
    usual = read(path([1], x=[1.0, 2.0]))
    with pytest.raises(ValueError) as caught:
        vocabulary.encode(usual + read(odd))
    assert message in str(caught.value)


def test_no_graphs_are_refused():
    with pytest.raises(ValueError, match="at least one graph"):
        Vocabulary().encode([])


def test_training_graphs_with_different_fields_are_refused():
    with pytest.raises(ValueError, match="graph 1: it has no label, but 1 other graph has label"):
        Vocabulary.learn(read(path([1])) + read(nx.path_graph(2)))


CONFIG = Vocabulary(labels=((1, "a"),)).to_config()


@pytest.mark.parametrize(
    "config",
    [
        {},
        [],
        CONFIG | {"surprise": 1},
        {k: v for k, v in CONFIG.items() if k != "weighted"},
        CONFIG | {"labels": "ab"},
        CONFIG | {"labels": [["a", "a"]]},
        CONFIG | {"labels": [[0.5]]},
        CONFIG | {"labels": [[True]]},
        CONFIG | {"x_size": -1},
        CONFIG | {"x_size": 1.0},
        CONFIG | {"pos_size": -1},
        CONFIG | {"weighted": 1},
    ],
)
def test_a_damaged_configuration_is_refused(config):
    with pytest.raises(ValueError, match=r"^vocabulary: "):
        Vocabulary.from_config(config)
