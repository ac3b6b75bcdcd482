"""Laws of forests on graphs: scikit-learn's predictions, whole folders, and unseen graphs."""

import networkx as nx
import numpy as np
import pytest
import torch
from samples import random_graph, renumber
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from torch.testing import assert_close

from softperm.data.features import ColourVocabulary, colour_counts
from softperm.data.graphs import as_graphs
from softperm.data.vocabulary import Vocabulary
from softperm.training.forest import (
    SIZES,
    GraphForest,
    Trees,
    _distribution,
    _rows,
    mean_with_network,
    summarise,
)
from softperm.training.tasks import Classification, MultiLabel, Regression

GENERATOR = np.random.default_rng(0)
ROWS = GENERATOR.normal(size=(80, 6)).astype(np.float32)
CODES = np.array([0, 2, 3])[(ROWS[:, :1] + ROWS[:, 1:2] > [-0.5, 0.5]).sum(axis=1)]


def collection(graphs):
    graphs = as_graphs(graphs)
    return Vocabulary.learn(graphs).encode(graphs)


def labelled(n: int, seed: int) -> nx.Graph:
    graph = random_graph(n, seed=seed)
    generator = np.random.default_rng(seed)
    for v in graph:
        graph.nodes[v]["label"] = str(generator.integers(3))
        graph.nodes[v]["x"] = generator.normal(size=2)
    return graph


def test_the_arrays_of_a_forest_predict_as_scikit_learn_does():
    forest = RandomForestClassifier(20, random_state=0).fit(ROWS, CODES)
    predicted = Trees.of(forest.estimators_, forest.classes_)(ROWS)
    assert predicted.shape == (80, 4)  # class 1 does not occur
    np.testing.assert_allclose(predicted[:, forest.classes_], forest.predict_proba(ROWS), atol=1e-6)
    np.testing.assert_array_equal(predicted[:, 1], 0)


def test_the_arrays_of_several_regressions_predict_as_scikit_learn_does():
    targets = np.stack([ROWS[:, 0], ROWS[:, 1] * ROWS[:, 2]], axis=1)
    forest = RandomForestRegressor(20, random_state=0).fit(ROWS, targets)
    predicted = Trees.of(forest.estimators_, np.arange(2))(ROWS)
    np.testing.assert_allclose(predicted, forest.predict(ROWS), atol=1e-6)


def test_damaged_arrays_are_refused():
    forest = RandomForestClassifier(3, random_state=0).fit(ROWS, CODES)
    trees = Trees.of(forest.estimators_, forest.classes_)
    whole = trees.tensors()
    assert_close(Trees.from_tensors(whole, 4, 6).tensors(), whole)
    split = int(np.flatnonzero(trees.feature >= 0)[0])
    for name, place, value in (
        ("left", split, split),  # an endless path
        ("right", split, 10**6),
        ("feature", split, 6),
        ("roots", 0, -1),
        ("leaf_ptr", -1, 10**6),
        ("output", 0, 4),
    ):
        damaged = {key: tensor.clone() for key, tensor in whole.items()}
        damaged[name][place] = value
        with pytest.raises(ValueError, match="do not form trees"):
            Trees.from_tensors(damaged, 4, 6)


def test_a_distribution_has_numpys_quantiles():
    values, ptr = GENERATOR.normal(size=30), np.array([0, 1, 1, 12, 30])
    found = _distribution(values, ptr)
    for row, (a, b) in zip(found, ((0, 1), (1, 1), (1, 12), (12, 30)), strict=True):
        part = values[a:b]
        if not part.size:
            np.testing.assert_array_equal(row, 0)
            continue
        known = [part.mean(), part.std(), *np.quantile(part, [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1])]
        np.testing.assert_allclose(row, known, atol=1e-12)


def test_a_summary_does_not_depend_on_the_numbering_of_vertices():
    graphs = [labelled(n, n) for n in (1, 2, 7, 12)]
    shuffled = [renumber(graph, [*graph][::-1]) for graph in graphs]
    both = collection([*graphs, *shuffled])
    colours = ColourVocabulary.learn(
        both, torch.arange(4), rounds=2, size=None, min_graphs=1, every_round=True
    )
    rows = summarise(both, colours)
    np.testing.assert_allclose(rows[:4], rows[4:], atol=1e-6)


@pytest.mark.parametrize("kind", ["classes", "answers", "numbers"])
def test_a_forest_learns_from_training_graphs_alone(kind):
    graphs = collection([nx.path_graph(n) if n % 2 else nx.cycle_graph(n) for n in range(4, 44)])
    cycle = torch.arange(40) % 2 == 0
    task, y = {
        "classes": (Classification(3), cycle.long() * 2),
        "answers": (MultiLabel(2), torch.stack([cycle, ~cycle], 1).float()),
        "numbers": (Regression((0.5,), (0.5,)), cycle[:, None].float()),
    }[kind]
    if kind == "answers":
        y[::5, 1] = torch.nan
    train = torch.arange(30)
    forest = GraphForest.fit(graphs, train, y, task, trees=40)
    outputs = forest.outputs(graphs, torch.arange(40), task)
    assert outputs.shape == (40, task.outputs)
    test = slice(30, 40)
    if kind == "classes":
        assert_close(outputs.softmax(1).sum(1), torch.ones(40))
        assert task.score(outputs[test], y[test]) == 1
    else:
        assert bool((outputs[test, 0] > 0).eq(cycle[test]).all())
    other = torch.where(torch.arange(40).view(-1, *[1] * (y.ndim - 1)) < 30, y, y.flip(0))
    again = GraphForest.fit(graphs, train, other, task, trees=40)
    assert_close(again.outputs(graphs, torch.arange(40), task), outputs)


def test_weights_of_graphs_and_factors_of_classes_change_the_forest():
    graphs = collection([nx.path_graph(5)] * 20)
    y = torch.tensor([0] * 15 + [1] * 5)
    task, everything = Classification(2), torch.arange(20)
    weight = torch.where(y == 1, 9.0, 1.0)
    factors = torch.tensor([1.0, 9.0], dtype=torch.float64)
    for changes, expected in (({}, 0), ({"weight": weight}, 1), ({"factors": factors}, 1)):
        forest = GraphForest.fit(graphs, everything, y, task, trees=50, **changes)
        outputs = forest.outputs(graphs, everything, task)
        assert int(outputs[0].argmax()) == expected
        assert_close(outputs.exp().sum(1), torch.ones(20))


def test_factors_multiply_probabilities():
    graphs = collection([labelled(9, seed) for seed in range(40)])
    y, task, everything = torch.arange(40) % 3, Classification(3), torch.arange(40)
    plain = GraphForest.fit(graphs, everything, y, task, trees=30)
    factors = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    other = GraphForest.fit(graphs, everything, y, task, trees=30, factors=factors)
    expected = plain.trees(_rows(graphs, everything, plain.colours, None)) * factors.numpy()
    found = other.trees(_rows(graphs, everything, other.colours, None))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_one_half_of_the_trees_reads_sizes_and_colours_alone():
    graphs = collection([labelled(9, seed) for seed in range(40)])
    forest = GraphForest.fit(
        graphs, torch.arange(40), torch.arange(40) % 2, Classification(2), trees=31
    )
    counted = SIZES + sum(forest.colours.sizes)
    assert counted < forest.columns
    names = np.searchsorted(forest.trees.roots, np.arange(len(forest.trees.feature)), side="right")
    of_second_half = names > 16
    assert forest.trees.feature[of_second_half].max() < counted
    assert forest.trees.feature[~of_second_half].max() >= counted
    assert len(forest.trees.roots) == 31
    colours = colour_counts(graphs, forest.colours).toarray()
    np.testing.assert_array_equal(summarise(graphs, forest.colours)[:, SIZES:counted], colours)


def test_a_single_tree_is_a_forest():
    graphs = collection([nx.path_graph(n) for n in (3, 4, 5, 6)])
    task, y = Classification(2), torch.tensor([0, 0, 1, 1])
    forest = GraphForest.fit(graphs, torch.arange(4), y, task, trees=1)
    assert len(forest.trees.roots) == 1
    assert bool(forest.outputs(graphs, torch.arange(4), task).isfinite().all())


@pytest.mark.parametrize(
    ("task", "share"),
    [(Classification(3), 1 / 3), (MultiLabel(3), 1 / 3), (Regression((0.0,) * 3, (1.0,) * 3), 0.5)],
    ids=["classes", "answers", "numbers"],
)
def test_a_network_counts_as_much_as_each_forest_unless_it_predicts_numbers(task, share):
    network, forest = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    found = mean_with_network(task, network, forest)

    def prediction(outputs):
        if isinstance(task, Classification):
            return outputs.softmax(1)
        return outputs.sigmoid() if isinstance(task, MultiLabel) else outputs

    expected = share * prediction(network) + (1 - share) * prediction(forest)
    assert_close(prediction(found), expected)
