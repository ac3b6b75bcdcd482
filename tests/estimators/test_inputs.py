"""Whatever users hold, in any shape, through the estimators."""

import re
import warnings

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from samples import FAST, labelled_path, plain_graph, random_graph, two_kinds
from torch_geometric.data import Data

from softperm import PiGNNClassifier, PiGNNRegressor

GRAPHS, Y = two_kinds(12)


def as_data(graph: nx.Graph) -> Data:
    edges = torch.tensor([*graph.edges, *((b, a) for a, b in graph.edges)]).reshape(-1, 2).T
    return Data(edge_index=edges, num_nodes=len(graph))


KINDS = {
    "Data": as_data,
    "pair": lambda graph: (list(graph.edges), len(graph)),
    "sparse": lambda graph: scipy.sparse.coo_array(nx.to_scipy_sparse_array(graph)),
    "dense": nx.to_numpy_array,
}


@pytest.fixture(scope="module")
def fitted() -> PiGNNClassifier:
    return PiGNNClassifier(**FAST).fit(GRAPHS, Y)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_input_gives_the_same_numbers(kind, fitted):
    made = PiGNNClassifier(**FAST).fit([KINDS[kind](graph) for graph in GRAPHS], Y)
    assert (made.transform(GRAPHS) == fitted.transform(GRAPHS)).all()
    assert (made.predict_proba(GRAPHS) == fitted.predict_proba(GRAPHS)).all()


def test_molecules_are_graphs():
    pytest.importorskip("rdkit")
    smiles = ["CCO", "c1ccccc1", "CC(=O)O", "C", "CCN", "C#N", "c1ccncc1", "OCC"]
    made = PiGNNClassifier(**{**FAST, "validation_fraction": 0}).fit(smiles, ["a", "b"] * 4)
    assert made.vocabulary_.labels == (("C", "N", "O"),)
    bonds = ("AROMATIC", "DOUBLE", "SINGLE", "TRIPLE")
    assert made.vocabulary_.edge_labels == (bonds,)
    assert made.transform(smiles).shape == (8, 4 * 4 + 4 * 3 + 4 * 4 * 4)
    vectors = made.transform(["OCC", "CCO"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)


def test_graphs_of_several_kinds_are_refused(fitted):
    mixed = [GRAPHS[0], as_data(GRAPHS[1])]
    message = re.escape("graph 1: it is a PyG Data, but graph 0 is a networkx graph")
    with pytest.raises(ValueError, match=message):
        PiGNNClassifier(**FAST).fit(mixed, [0, 1])
    with pytest.raises(ValueError, match=message):
        fitted.predict(mixed)


def test_rows_of_a_permutation_sum_to_one_in_the_graphs_own_order(fitted):
    graph = plain_graph(9, 1)
    order = [4, 2, 8, 0, 1, 7, 3, 6, 5]
    listed = nx.Graph()
    listed.add_nodes_from(order)
    listed.add_edges_from(graph.edges)
    one, other = fitted.permutations([graph, listed])
    assert one.shape == (9, 4)
    np.testing.assert_allclose(one.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(other, one[order], atol=1e-5)


def test_rows_of_a_permutation_with_dustbins_sum_to_at_most_one():
    made = PiGNNClassifier(**FAST, dustbin=True).fit(GRAPHS, Y)
    for d in made.permutations(GRAPHS):
        assert (d.sum(1) <= 1 + 1e-5).all()
        assert (d.sum(0) <= 1 + 1e-2).all()


ODD = {
    "one vertex": nx.empty_graph(1),
    "no edges": nx.empty_graph(7),
    "far larger than any in training": plain_graph(200, 3, 0.05),
}


@pytest.mark.parametrize("normaliser", ["sinkhorn", "softmax"])
@pytest.mark.parametrize("encoder", ["linear", "gcn", "gin"])
def test_odd_graphs_can_be_learnt_and_predicted(encoder, normaliser):
    made = PiGNNClassifier(**FAST, encoder=encoder, normaliser=normaliser)
    made.fit([*GRAPHS, ODD["one vertex"], ODD["no edges"]], [*Y, 0, 1])
    chances = made.predict_proba(list(ODD.values()))
    np.testing.assert_allclose(chances.sum(1), 1)
    assert [d.shape for d in made.permutations(list(ODD.values()))] == [(1, 4), (7, 4), (200, 4)]
    assert np.isfinite(made.transform(list(ODD.values()))).all()


def test_training_on_graphs_of_one_vertex_works():
    made = PiGNNRegressor(**FAST).fit([nx.empty_graph(1)] * 8, [1.0, 2.0, 3.0, 4.0] * 2)
    assert np.isfinite(made.predict([nx.empty_graph(1)])).all()


def test_capacity_is_the_largest_training_graph_unless_said_otherwise():
    largest = max(map(len, GRAPHS))
    found = {}
    for capacity in ("auto", None, largest, 50):
        made = PiGNNClassifier(**{**FAST, "validation_fraction": 0.0, "capacity": capacity}).fit(
            GRAPHS, Y
        )
        found[capacity] = made.model_.config.capacity, made.transform(GRAPHS)
    assert {k: v[0] for k, v in found.items()} == {
        "auto": largest,
        None: None,
        largest: largest,
        50: 50,
    }
    assert (found["auto"][1] == found[largest][1]).all()
    assert not np.allclose(found["auto"][1], found[50][1])
    assert not np.allclose(found["auto"][1], found[None][1])


def test_the_largest_graph_does_not_set_the_capacity_when_it_is_held_out():
    large = plain_graph(40, 0)
    made = PiGNNClassifier(**FAST).fit(GRAPHS, Y, validation=([large, GRAPHS[1]], [0, 1]))
    assert made.model_.config.capacity == max(map(len, GRAPHS))


def test_there_may_be_more_latent_vertices_than_vertices():
    made = PiGNNClassifier(**{**FAST, "latent_vertices": 30}).fit(GRAPHS, Y)
    for d in made.permutations(GRAPHS):
        np.testing.assert_allclose(d.sum(1), 1, atol=1e-5)


def test_labels_that_training_did_not_see_are_zeros_with_one_warning():
    words = [labelled_path(word) for word in ("ab", "ba", "aab", "abb", "bab", "bb") * 2]
    made = PiGNNClassifier(**FAST).fit(words, [0, 1] * 6)
    unseen = [labelled_path(word) for word in ("az", "zzb")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vectors = made.transform(unseen)
    (warning,) = caught
    assert "3 vertices have labels that training did not see" in str(warning.message)
    aligned = vectors[:, 16:].reshape(2, 4, 2)  # D.T @ X
    np.testing.assert_allclose(aligned.sum(1), [[1, 0], [0, 1]], atol=1e-5)
    with pytest.warns(UserWarning, match="did not see") as caught:
        made.predict(unseen)
    assert len(caught) == 1


def test_weights_of_edges_count():
    heavy = [random_graph(8, seed) for seed in range(12)]
    for graph in heavy:
        for *_, carried in [*graph.nodes(data=True), *graph.edges(data=True)]:
            carried.pop("x", None)
    made = PiGNNClassifier(**FAST).fit(heavy, [0, 1] * 6)
    assert made.model_.config.weighted
    (d,) = made.permutations(heavy[:1])
    expected = d.T @ nx.to_numpy_array(heavy[0]) @ d
    np.testing.assert_allclose(made.transform(heavy[:1])[0], expected.ravel(), atol=1e-5)
    plain = PiGNNClassifier(**FAST).fit(GRAPHS, Y)
    with pytest.raises(
        ValueError, match="graph 0: it has edge weights, but the model was trained on"
    ):
        plain.predict(heavy)


def test_other_fields_of_validation_graphs_name_the_graph_among_them():
    graphs = [nx.path_graph(4), nx.path_graph(5)]
    nx.set_edge_attributes(graphs[1], 2.0, "weight")
    with pytest.raises(ValueError, match="validation: graph 1: it has edge weights, but the model"):
        PiGNNClassifier(**FAST).fit(GRAPHS, Y, validation=(graphs, [0, 1]))


def test_other_fields_than_in_training_name_the_graph(fitted):
    graphs = [plain_graph(5, 0), labelled_path("ab")]
    with pytest.raises(ValueError, match="graph 1: it has label of 1 value a vertex"):
        fitted.predict(graphs)


def test_directed_graphs_are_read_only_when_asked():
    arcs = [nx.DiGraph(list(graph.edges)) for graph in GRAPHS if graph.edges]
    for arc, graph in zip(arcs, GRAPHS, strict=True):
        arc.add_nodes_from(graph)
    with pytest.raises(ValueError, match="listed in one direction only"):
        PiGNNClassifier(**FAST).fit(arcs, Y)
    made = PiGNNClassifier(**FAST, symmetrise=True).fit(arcs, Y)
    assert made.predict(arcs).shape == (12,)


def with_x(values: list) -> nx.Graph:
    """A path whose vertices carry these attributes."""
    graph = nx.path_graph(len(values))
    nx.set_node_attributes(graph, dict(enumerate(values)), "x")
    return graph


NO_FIT = {
    "no graphs": (([], []), "expected a list of graphs, got an empty list"),
    "an edge to a missing vertex": (
        ([([(0, 1)], 2), ([(3, 12)], 9)], [0, 1]),
        "graph 1: edge (3, 12) names vertex 12, but the graph has 9 vertices",
    ),
    "NaN attribute": (
        ([nx.path_graph(2), with_x([0.0, np.nan])], [0, 1]),
        "graph 1: x of vertex 1 is nan",
    ),
    "infinite attribute": (
        ([with_x([0.0, -np.inf]), nx.path_graph(2)], [0, 1]),
        "graph 0: x of vertex 1 is -inf",
    ),
    "mixed attribute sizes": (
        ([with_x([[0.0, 1.0]]), with_x([1.0, 2.0]), with_x([3.0])], [0, 1, 0]),
        "graph 0: it has x of 2 values a vertex, but 2 other graphs have x of 1 value a vertex",
    ),
    "fewer targets than graphs": ((GRAPHS, Y[:-1]), "got 12 graphs but 11 targets in y"),
    "no targets": ((GRAPHS, None), "y is missing"),
    "one class": ((GRAPHS, ["cat"] * 12), "y has only one class, 'cat'"),
    "a missing class": (
        (GRAPHS, ["a", "b"] * 5 + ["a", float("nan")]),
        "graph 11: it has no class (y is nan): leave such graphs out",
    ),
    "strings and numbers": ((GRAPHS, ["a", 1] * 6), "y mixes strings with numbers"),
    "targets of three axes": ((GRAPHS, np.zeros((12, 1, 1))), "y must have one or two axes"),
}


@pytest.mark.parametrize("case", NO_FIT)
def test_what_cannot_be_fitted_is_said_in_one_sentence(case):
    (graphs, y), message = NO_FIT[case]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        PiGNNClassifier(**FAST).fit(graphs, y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("latent_vertices", 0, "latent_vertices must be a whole number of at least 1; got 0"),
        ("encoder", "mpnn", "encoder must be one of linear, gcn, gin; got 'mpnn'"),
        ("head", "tree", "head must be one of mlp, conv, forest, mlp+forest; got 'tree'"),
        ("capacity", 0, "capacity must be 'auto', a whole number of at least 1, or None; got 0"),
        ("capacity", "large", "capacity must be 'auto'"),
        ("epochs", 0, "epochs must be 'auto', or a whole number of at least 1; got 0"),
        ("batch_size", 0, "batch_size must be a whole number of at least 1; got 0"),
        ("patience", 0, "patience must be a whole number of at least 1, or None; got 0"),
        ("seed", -1, "seed must be a whole number of at least 0; got -1"),
        ("seed", 2**64, "seed must be below 2**63; got 18446744073709551616"),
        ("learning_rate", 0.0, "learning_rate must be a number above 0; got 0.0"),
        ("learning_rate", float("nan"), "learning_rate must be a number above 0; got nan"),
        ("weight_decay", -1.0, "weight_decay must be a number of at least 0; got -1.0"),
        ("criterion", "auc", "criterion must be one of loss, score, late-score, last; got 'auc'"),
        (
            "validation_fraction",
            1,
            "validation_fraction must be a number of at least 0 and",
        ),
        ("device", "gpu", "device 'gpu' cannot be used here"),
        ("device", "cuda:63", "device 'cuda:63' cannot be used here"),
        ("device", None, "device must be 'auto' or a device such as 'cpu'; got None"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_is_read(name, value, message):
    made = PiGNNClassifier(**FAST).set_params(**{name: value})
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        made.fit([], [])
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_with_the_remedy(fitted, tmp_path):
    with pytest.raises(ValueError, match=r"device 'cuda' cannot be used here \(.*'cpu' or 'auto'"):
        PiGNNClassifier(**FAST, device="cuda").fit(GRAPHS, Y)
    fitted.save(tmp_path)
    with pytest.raises(ValueError, match="device 'cuda' cannot be used here"):
        PiGNNClassifier.load(tmp_path, device="cuda")
