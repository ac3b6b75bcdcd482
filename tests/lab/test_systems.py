"""Systems by name: built from what the training graphs offer."""

from dataclasses import replace

import networkx as nx
import pytest
import torch
from lab.problems import SMALL, TRAINING
from samples import collect

from softperm.baselines import DataShape
from softperm.lab.engines import LocalEngine
from softperm.lab.problem import own_problem
from softperm.lab.protocol import Contender, Rules, evaluate
from softperm.lab.systems import PI_GNN, find_system

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


def test_embedded_labels_go_through_the_whole_protocol(tmp_path):
    graphs = replace(collect(LABELLED), codes=True)
    y = torch.arange(20) % 2
    problem = own_problem("labelled", graphs, y, "classification", seed=0, folds=3)
    contender = Contender("pi-gnn", ({**TRAINING, **SETTINGS, "embedding_size": 5},))
    records = evaluate(problem, [contender], Rules(final_runs=1), LocalEngine(), tmp_path)
    assert len(records) == 3
    shape = DataShape.of(graphs, 2)
    config = find_system("pi-gnn").build(shape, SETTINGS, 0).config
    assert (config.label_sizes, config.edge_label_sizes) == ((3,), (2,))
