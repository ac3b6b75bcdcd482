"""Systems by name: built from what the training graphs offer."""

from dataclasses import replace

import networkx as nx
import pytest
import torch
from lab.evaluations import SMALL, TRAINING
from samples import collect

from softperm.data.datasets import load_dataset
from softperm.data.datasets.dataset import Dataset
from softperm.lab.evaluation_data import from_dataset, from_graphs, with_positions
from softperm.lab.protocol import Contender, ProtocolSettings, evaluate
from softperm.lab.recipes import read_recipe
from softperm.lab.scheduler import LocalExecutor
from softperm.lab.systems import PI_GNN, DataShape, find_system

LABELLED = []
for i in range(20):
    graph = nx.cycle_graph(4 + i % 4) if i % 2 else nx.star_graph(3 + i % 4)
    for v in graph:
        graph.nodes[v]["label"] = "CNO"[v % 3]
    for u, v in graph.edges:
        graph.edges[u, v]["label"] = (u + v) % 2
    LABELLED.append(graph)
SETTINGS = {**SMALL, "latent_vertices": 3}


def test_capacity_is_that_of_the_training_graphs():
    collection = collect([nx.path_graph(n) for n in (3, 9, 5)])
    shape = DataShape.of(collection, 2, torch.tensor([0, 2]))
    assert find_system("pi-gnn").build(shape, SETTINGS, 0).config.capacity == 5
    off = {**SETTINGS, "capacity": "none"}
    assert find_system("pi-gnn").build(shape, off, 0).config.capacity is None


@pytest.mark.parametrize("name", PI_GNN)
def test_variants_are_what_their_names_say(name):
    shape = DataShape.of(collect(LABELLED), 2)
    config = find_system(name).build(shape, SETTINGS, 0).config
    assert config.dustbin == ("-d" in name)
    assert config.encoder == (name.rsplit("-", 1)[1] if name.endswith(("gcn", "gin")) else "linear")


def test_unknown_settings_and_those_that_data_decides_are_refused():
    shape = DataShape.of(collect(LABELLED), 2)
    for wrong in ({"latents": 3}, {"outputs": 3}, {"label_sizes": (3,)}):
        with pytest.raises(ValueError, match="has no setting"):
            find_system("pi-gnn").build(shape, wrong, 0)


def test_own_graphs_are_read_and_divided_as_a_recipe_says():
    graphs, y = collect(LABELLED), torch.arange(20) % 2

    def posed(**changes):
        recipe = replace(read_recipe("own"), **changes)
        return from_graphs(recipe, "mine", graphs, y, "classification", seed=0, folds=3)

    assert posed().graphs.edge_label is not None
    assert posed(edges=False).graphs.edge_label is None
    assert (len(posed().splits), len(posed(splits="random").splits)) == (3, 1)
    prints = {posed(**c).targets["mine"].fingerprint for c in ({}, {"edges": False})}
    assert len(prints) == 2
    with pytest.raises(ValueError, match="is for datasets that are published with a split"):
        posed(splits="official")


def test_embedded_labels_go_through_the_whole_protocol(tmp_path):
    recipe = replace(read_recipe("own"), categories="embedding")
    graphs, y = collect(LABELLED), torch.arange(20) % 2
    data = from_graphs(recipe, "labelled", graphs, y, "classification", seed=0, folds=3)
    assert data.graphs.codes
    contender = Contender("pi-gnn", ({**TRAINING, **SETTINGS, "embedding_size": 5},))
    records = evaluate(data, [contender], ProtocolSettings(final_runs=1), LocalExecutor(), tmp_path)
    assert len(records) == 3
    shape = DataShape.of(data.graphs, 2)
    config = find_system("pi-gnn").build(shape, SETTINGS, 0).config
    assert (config.label_sizes, config.edge_label_sizes) == ((3,), (2,))


@pytest.mark.slow
def test_systems_that_read_distances_get_the_positions_of_a_dataset(data_root):
    check_positions(load_dataset("QM9", data_root))  # a small one: tests/data/datasets/test_qm9.py


def check_positions(dataset: Dataset) -> None:
    """Raises unless an evaluation on QM9 gives each molecule its own positions."""
    recipe = read_recipe("qm9-table")
    first = from_dataset(replace(recipe, targets=("u0",)), dataset, seed=0)
    assert DataShape.of(first.graphs, 1, first.splits[0].train[:100]).positions
    batch = first.graphs.batch(torch.tensor([5, 3]))
    ptr = dataset.collection.ptr
    own = torch.cat([dataset.position[ptr[i] : ptr[i + 1]] for i in (5, 3)])
    assert torch.equal(batch.pos, own)
    bare = replace(dataset, position=None)
    without = from_dataset(replace(recipe, targets=("u0",)), bare, seed=0)
    assert not without.graphs.extra
    prints = [data.targets["QM9-u0"].fingerprint for data in (first, without)]
    assert prints[0] != prints[1], "records of the two are never mixed"


@pytest.mark.parametrize("name", ["dtnn", "mpnn", "ppgn", "pi-gnn"])
def test_with_positions_one_graph_in_two_shapes_is_two_molecules(name):
    graphs = collect([nx.path_graph(3), nx.path_graph(3)])
    straight, bent = [[0, 0, 0], [1, 0, 0], [2, 0, 0]], [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    placed = with_positions(graphs, torch.tensor([*straight, *bent], dtype=torch.float32))
    for seen, alike in ((graphs, True), (placed, False)):
        settings = {"distance_bins": 8} if name == "pi-gnn" and not alike else {}
        model = find_system(name).build(DataShape.of(seen, 1), settings, seed=0).eval()
        with torch.no_grad():
            one, other = model(seen.batch(torch.arange(2)))
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5) == alike
