"""A batch taken from a collection equals the graphs joined one by one."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from samples import collect, random_graph, rings_and_cliques
from torch.testing import assert_close
from torch_geometric.data import Batch, Data

from softperm.data import collection
from softperm.data import features as feature_module
from softperm.data.collection import Collection, prepare
from softperm.data.features import ColourVocabulary, VertexFeatures, structural_features
from softperm.data.graphs import as_graphs
from softperm.data.vocabulary import Vocabulary
from softperm.nn.encoders import VertexStatistics
from softperm.settings import StructuralFeatures

GRAPHS = [random_graph(n, seed=n) for n in (4, 1, 7, 3, 9)]
COLLECTION = collect(GRAPHS)


def joined(order: list[int]) -> Batch:
    """PyG's own way: one Data per graph, collated."""
    graphs = as_graphs(GRAPHS)
    bonds = 2  # a graph without edges carries no edge fields, which PyG cannot collate
    for graph in graphs:
        if graph.edge_index.shape[1] == 0:
            graph.edge_attr, graph.edge_weight = torch.empty(0, bonds), torch.empty(0)
    return Batch.from_data_list([graphs[i] for i in order])


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0], [1], [4, 4, 1, 4]], ids=str)
def test_a_batch_equals_the_graphs_joined_one_by_one(order):
    ours, theirs = COLLECTION.batch(torch.tensor(order)), joined(order)
    for key in ("edge_index", "x", "edge_attr", "edge_weight", "ptr", "batch"):
        torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=0)
    assert ours.num_nodes == theirs.num_nodes
    features = structural_features(theirs.edge_index, theirs.ptr)
    torch.testing.assert_close(ours.structure, features, check_dtype=False)


@pytest.mark.parametrize("order", [[0, 1, 2], [3, 0], [1]], ids=str)
def test_a_batch_states_the_size_of_its_largest_graph(order):
    batch = COLLECTION.batch(torch.tensor(order))
    assert batch.largest == max(GRAPHS[i].number_of_nodes() for i in order)


def test_an_empty_choice_is_an_empty_batch():
    batch = COLLECTION.batch(torch.empty(0, dtype=torch.long))
    assert batch.ptr.tolist() == [0]
    assert batch.edge_index.shape == (2, 0)
    assert batch.x.shape == (0, 3)


def test_sizes_are_those_of_the_graphs():
    assert len(COLLECTION) == 5
    assert COLLECTION.sizes.tolist() == [4, 1, 7, 3, 9]
    assert COLLECTION.attribute_size == 3
    assert COLLECTION.edge_attribute_size == 2


def test_codes_become_one_hot_vectors_beside_the_attributes():
    """Columns of labels one after another, then attributes; code −1 is the zero vector."""
    made = Collection(
        ptr=torch.tensor([0, 2, 3]),
        edge_ptr=torch.tensor([0, 2, 2]),
        edge_index=torch.tensor([[0, 1], [1, 0]]),
        structure=torch.zeros(3, 2),
        label=torch.tensor([[0, 1], [1, -1], [-1, 0]]),
        label_sizes=(2, 3),
        x=torch.tensor([[0.5], [0.25], [2.0]]),
        edge_label=torch.tensor([[2], [2]]),
        edge_label_sizes=(3,),
    )
    assert made.attribute_size == 6
    batch = made.batch(torch.tensor([1, 0]))
    assert batch.x.tolist() == [
        [0, 0, 1, 0, 0, 2],
        [1, 0, 0, 1, 0, 0.5],
        [0, 1, 0, 0, 0, 0.25],
    ]
    assert batch.edge_attr.tolist() == [[0, 0, 1], [0, 0, 1]]
    assert batch.edge_index.tolist() == [[1, 2], [2, 1]]


def test_a_collection_without_attributes_makes_batches_without():
    batch = collect([random_graph(3, 0, features=0)])
    assert batch.batch(torch.tensor([0])).num_nodes == 3
    plain = Collection(
        ptr=torch.tensor([0, 2]),
        edge_ptr=torch.tensor([0, 0]),
        edge_index=torch.empty(2, 0, dtype=torch.long),
        structure=torch.zeros(2, 2),
    ).batch(torch.tensor([0]))
    assert plain.x is None
    assert plain.edge_attr is None


def test_moving_a_collection_keeps_every_field():
    moved = COLLECTION.to("cpu")
    for field in fields(Collection):
        ours, theirs = getattr(COLLECTION, field.name), getattr(moved, field.name)
        if isinstance(ours, torch.Tensor):
            torch.testing.assert_close(ours, theirs)
        else:
            assert ours == theirs
    assert COLLECTION.to("meta").ptr.device.type == "meta"


def test_preparing_a_users_batch_sorts_edges_with_what_they_carry():
    shuffled = joined([0, 2, 4])
    order = torch.randperm(shuffled.edge_index.shape[1], generator=torch.Generator().manual_seed(0))
    for key in ("edge_attr", "edge_weight"):
        shuffled[key] = shuffled[key][order]
    shuffled.edge_index = shuffled.edge_index[:, order]
    before = shuffled.edge_index.clone()
    ours, theirs = prepare(shuffled), COLLECTION.batch(torch.tensor([0, 2, 4]))
    for key in ("edge_index", "edge_attr", "edge_weight", "x"):
        torch.testing.assert_close(ours[key], theirs[key])
    torch.testing.assert_close(ours.structure, theirs.structure, check_dtype=False)
    assert torch.equal(shuffled.edge_index, before)


@pytest.mark.parametrize("field", ["edge_weight", "edge_attr"])
def test_directions_of_an_edge_that_differ_are_refused(field):
    """Gradients would be wrong: they rely on symmetry."""
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    values = torch.tensor([1.0, 1.0, 2.0, 2.0])
    values = values[:, None] if field == "edge_attr" else values
    batch = Batch.from_data_list([Data(edge_index=edges, num_nodes=3, **{field: values})])
    assert torch.equal(prepare(batch)[field], values)
    values *= 1e-9
    values[3] = 5e-9
    batch = Batch.from_data_list([Data(edge_index=edges, num_nodes=3, **{field: values})])
    with pytest.raises(
        ValueError, match=f"the two directions of an edge must have the same {field}"
    ):
        prepare(batch)


def test_a_users_own_field_largest_is_ignored():
    edges = torch.tensor([[0, 1], [1, 0]])
    batch = Batch.from_data_list([Data(edge_index=edges, num_nodes=2, largest=1)])
    assert "largest" not in prepare(batch)


def test_a_single_graph_and_missing_vertices_are_refused():
    edges = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="expected a PyG Batch, got one graph"):
        prepare(Data(edge_index=edges, num_nodes=2))
    with pytest.raises(ValueError, match="edges at vertices outside 0 to 2"):
        prepare(Batch.from_data_list([Data(edge_index=edges + 2, num_nodes=3)]))


def test_a_batch_of_a_collection_is_returned_unchanged():
    batch = COLLECTION.batch(torch.tensor([0, 1]))
    assert prepare(batch) is batch


@pytest.mark.parametrize(
    "edges", [[[0], [1]], [[0, 1, 1], [1, 0, 1]], [[0, 1, 0], [1, 0, 1]]], ids=str
)
def test_a_batch_that_is_directed_or_has_loops_or_repeats_is_refused(edges):
    batch = Batch.from_data_list([Data(edge_index=torch.tensor(edges), num_nodes=2)])
    with pytest.raises(ValueError, match="must hold simple undirected graphs"):
        prepare(batch)


DUPLICATES = [[0, 1, 0, 1], [1, 0, 1, 0]]
BETWEEN = [[0, 2], [2, 0]]


@pytest.mark.parametrize("edges", [DUPLICATES, BETWEEN], ids=["duplicates", "between graphs"])
def test_a_batch_with_structure_must_be_simple_too(edges):
    """``structure`` is no proof that somebody checked the edges: outputs would silently change."""
    pair = [Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2) for _ in range(2)]
    batch = Batch.from_data_list(pair)
    batch.edge_index, batch.structure = torch.tensor(edges), torch.zeros(4, 2)
    with pytest.raises(ValueError, match="must hold simple undirected graphs"):
        prepare(batch)


def test_structure_needs_a_row_for_each_vertex():
    edges = torch.tensor([[0, 1], [1, 0]])
    batch = Batch.from_data_list([Data(edge_index=edges, num_nodes=2)])
    batch.structure = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"\(3, 2\); expected one row for each of 2 vertices"):
        prepare(batch)


def test_a_collection_prints_its_sizes_and_the_names_of_its_arrays():
    vertices, edges = int(COLLECTION.ptr[-1]), int(COLLECTION.edge_ptr[-1])
    expected = f"Collection(5 graphs, {vertices} vertices, {edges} directed edges"
    assert repr(COLLECTION).startswith(expected)
    assert len(repr(COLLECTION)) < 200
    assert ("edge_weight" in repr(COLLECTION)) == (COLLECTION.edge_weight is not None)


def test_work_in_spans_of_graphs_gives_the_results_of_the_whole(monkeypatch):
    graphs, _ = rings_and_cliques(24)
    whole = Vocabulary().encode(as_graphs(graphs))
    index = torch.arange(0, len(whole), 3)
    features = StructuralFeatures(clustering=True, walks=4)

    def results():
        extended = VertexFeatures(features).extend(whole)
        learnt = ColourVocabulary.learn(
            whole, index, rounds=2, size=9, min_graphs=2, degree=True, every_round=True
        )
        statistics = VertexStatistics.of(extended, index)
        return extended.structure, learnt, learnt.extend(whole).label, statistics

    expected = results()
    monkeypatch.setattr(collection, "SPAN_VERTICES", 40)
    monkeypatch.setattr(collection, "MAPPED_BYTES", 0)
    monkeypatch.setattr(feature_module, "SPAN_VERTICES", 40)
    assert len(list(whole.spans())) >= 5
    found = results()
    assert_close(found[0], expected[0], rtol=0, atol=0)
    assert found[1] == expected[1]
    assert_close(found[2], expected[2], rtol=0, atol=0)
    for kind in ("structure", "log_structure"):
        one, other = getattr(found[3], kind), getattr(expected[3], kind)
        np.testing.assert_allclose((one.mean, one.std), (other.mean, other.std), rtol=1e-12)
