"""Random forests on counts: what they count, and that only training graphs teach them."""

from dataclasses import replace

import networkx as nx
import pytest
import torch
from samples import collect, labelled_path, rings_and_cliques

from softperm.lab.baselines.classical import ColourForest, CountForest
from softperm.lab.systems import find_system
from softperm.training.tasks import Classification, MultiLabel, Regression

FORESTS = ("forest", "wl-forest")
KINDS, Y = rings_and_cliques(30)
GRAPHS = collect(KINDS)
TRAIN, REST = torch.arange(20), torch.arange(20, 30)


def fitted(name: str, y: torch.Tensor, task, graphs=GRAPHS, seed: int = 0, **settings):
    return (
        find_system(name).build({"trees": 20, **settings}, seed).fit(graphs, TRAIN, y[TRAIN], task)
    )


@pytest.mark.parametrize("name", FORESTS)
def test_a_forest_learns_classes_answers_and_numbers(name):
    kind = torch.from_numpy(Y)
    assert Classification(3).score(
        fitted(name, kind, Classification(3)).outputs(GRAPHS, REST), kind[REST]
    ) == pytest.approx(1.0)
    answers = torch.stack([kind.double(), 1 - kind.double()], dim=1)
    answers[3, 0] = answers[5, 1] = torch.nan
    task = MultiLabel(2)
    assert task.score(fitted(name, answers, task).outputs(GRAPHS, REST), answers[REST]) == 1.0
    numbers = GRAPHS.sizes.double()[:, None]
    task = Regression.of(numbers[TRAIN])
    error = task.score(fitted(name, numbers, task).outputs(GRAPHS, REST), numbers[REST])
    assert error < 0.5 * float((numbers[REST] - numbers[TRAIN].mean()).abs().mean())


@pytest.mark.parametrize("name", FORESTS)
def test_a_seed_decides_a_forest(name):
    y = torch.arange(30) // 3 % 2
    outputs = [
        fitted(name, y, Classification(2), seed=seed).outputs(GRAPHS, REST) for seed in (0, 0, 1)
    ]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("name", FORESTS)
def test_other_graphs_than_those_of_fit_teach_a_forest_nothing(name):
    words = ["aab", "aba", "abb", "bba", "bbb", "aaa"] * 5
    graphs = collect([labelled_path(word) for word in words])
    label = graphs.label.clone()
    label[graphs.ptr[25] :] = 1 - label[graphs.ptr[25] :]
    changed = replace(graphs, label=label)
    y, held = torch.arange(30) // 2 % 2, torch.arange(20, 25)
    first, second = (fitted(name, y, Classification(2), graphs=g) for g in (graphs, changed))
    assert torch.equal(first.outputs(graphs, held), second.outputs(changed, held))


def test_counts_are_sizes_degrees_labels_and_quantiles():
    graph = nx.star_graph(3)
    nx.set_node_attributes(graph, {0: "C", 1: "N", 2: "N", 3: "N"}, "label")
    nx.set_node_attributes(graph, {v: [float(v)] for v in graph}, "x")
    other = nx.path_graph(2)
    nx.set_node_attributes(other, {0: "C", 1: "C"}, "label")
    nx.set_node_attributes(other, {0: [5.0], 1: [7.0]}, "x")
    forest = CountForest()
    graphs = collect([graph, other])
    forest.set_learnt(forest.learn(graphs, torch.tensor([0])))
    assert forest.describe(graphs).tolist() == [
        [4, 3, *(0, 3, 0, 1), *(1, 3), *(0, 0.75, 1.5, 2.25, 3)],
        [2, 1, *(0, 2, 0, 0), *(2, 0), *(5, 5.5, 6, 6.5, 7)],
    ]
    forest.set_learnt(forest.learn(graphs, torch.tensor([1])))
    assert forest.describe(graphs)[0, 2:4].tolist() == [0, 4], "larger degrees count as the largest"


def test_colours_of_fewer_training_graphs_are_counted_together():
    words = ["aaa", "aaa", "aab", "bbb"]
    forest = ColourForest(rounds=1, min_graphs=2)
    graphs = collect([labelled_path(word) for word in words])
    forest.set_learnt(forest.learn(graphs, torch.tensor([0, 1, 2])))
    table = forest.describe(graphs).toarray()
    assert table.sum(1).tolist() == [6, 6, 6, 6], "every vertex once in each round"
    assert table[3].max() == 3, "all colours of bbb are rare"
