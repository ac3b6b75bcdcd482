"""Laws of forests on graphs: scikit-learn's predictions, whole folders, and unseen graphs."""

import json

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
    EVIDENCE_PRIOR,
    SIZES,
    GraphForest,
    Trees,
    _columns_of,
    _distribution,
    _grow,
    _Grown,
    _network_share,
    _rows,
    _tree_outputs,
    count_table,
    evidence_shares,
    mean_with_network,
    summarise,
)
from softperm.training.tasks import Classification, MultiLabel, Regression, Task

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
    trees = Trees.of(forest.estimators_, forest.classes_)
    predicted = trees(ROWS)
    assert predicted.shape == (80, 4)  # class 1 does not occur
    np.testing.assert_array_equal(trees(ROWS[3:]), predicted[3:])  # whatever the number of rows
    np.testing.assert_allclose(predicted[:, forest.classes_], forest.predict_proba(ROWS), atol=1e-6)
    np.testing.assert_array_equal(predicted[:, 1], 0)


def test_the_arrays_of_several_regressions_predict_as_scikit_learn_does():
    targets = np.stack([ROWS[:, 0], ROWS[:, 1] * ROWS[:, 2]], axis=1)
    forest = RandomForestRegressor(20, random_state=0).fit(ROWS, targets)
    predicted = Trees.of(forest.estimators_, np.arange(2))(ROWS)
    np.testing.assert_allclose(predicted, forest.predict(ROWS), atol=1e-6)


def test_a_mean_of_forests_is_the_mean_of_their_predictions_whichever_comes_first():
    """Also where a forest has no leaf with a value above 0, as one of a label that no graph has."""
    forests = []
    for y in (ROWS[:, 0] > 0, np.zeros(len(ROWS)), ROWS[:, 1] > 0):
        grown = RandomForestRegressor(4, random_state=0).fit(ROWS, y)
        forests.append(Trees.of(grown.estimators_, np.zeros(1, int)))
    for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0)):
        shares = np.array([0.5, 0.2, 0.3])
        expected = sum(share * forests[k](ROWS) for share, k in zip(shares, order, strict=True))
        mean = Trees.mean([forests[k] for k in order], shares.tolist())
        assert_close(mean(ROWS), expected, rtol=1e-6, atol=1e-7)


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
    ("task", "share", "weighed"),
    [
        (Classification(3), 1 / 3, 1 / 4),
        (MultiLabel(3), 1 / 3, 1 / 4),
        (Regression((0.0,) * 3, (1.0,) * 3), 1 / 2, 1 / 2),
    ],
    ids=["classes", "answers", "numbers"],
)
def test_a_network_counts_as_much_as_each_forest_unless_it_predicts_numbers(task, share, weighed):
    assert (_network_share(task, False), _network_share(task, True)) == (share, weighed)
    network, forest = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    found = mean_with_network(task, network, forest, share)

    def prediction(outputs):
        if isinstance(task, Classification):
            return outputs.softmax(1)
        return outputs.sigmoid() if isinstance(task, MultiLabel) else outputs

    expected = share * prediction(network) + (1 - share) * prediction(forest)
    assert_close(prediction(found), expected)


def targets_of(kind: str, count: int) -> tuple[Task, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    if kind == "classes":
        return Classification(3), torch.randint(3, (count,), generator=generator)
    if kind == "answers":
        y = torch.randint(2, (count, 2), generator=generator).float()
        y[::7, 1] = torch.nan
        return MultiLabel(2), y
    y = torch.randn(count, 2, generator=generator).double()
    return Regression((0.0,) * 2, (1.0,) * 2), y


KINDS = ["classes", "answers", "numbers"]


@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_the_best_on_a_grid(kind):
    task, y = targets_of(kind, 60)
    generator = np.random.default_rng(2)
    predictions = generator.random((3, 60, task.outputs))
    if kind == "classes":
        predictions /= predictions.sum(axis=2, keepdims=True)
        truth = np.eye(3)[y.numpy()]
        predictions[1] = 0.6 * predictions[1] + 0.4 * truth
    else:
        predictions[1] = 0.5 * predictions[1] + 0.5 * np.nan_to_num(y.numpy())
    predictions[0, 4] = np.nan  # learnt from: does not count
    weights = generator.random(60) + 0.5

    def cost(shares):
        scale = weights / weights.mean()
        mean = np.tensordot(shares, predictions, 1)
        if kind == "numbers":
            error = np.nansum(scale[:, None] * (mean - y.numpy()) ** 2)
            return error + EVIDENCE_PRIOR * ((shares - 1 / 3) ** 2).sum()
        if kind == "classes":
            chance = 0.99 * mean[np.arange(60), y.numpy()] + 0.01 / 3
            likelihood = np.nansum(scale * np.log(chance))
        else:
            chance = 0.99 * np.where(y.numpy() == 1, mean, 1 - mean) + 0.01 / 2
            likelihood = np.nansum(
                np.where(np.isnan(y.numpy()), 0, scale[:, None] * np.log(chance))
            )
        return -likelihood - EVIDENCE_PRIOR * np.log(np.maximum(shares, 1e-300)).sum()

    found = evidence_shares(task, predictions, y.numpy(), weights)
    assert found.sum() == pytest.approx(1)
    ticks = np.linspace(0, 1, 41)
    grid = [np.array([a, b, 1 - a - b]) for a in ticks for b in ticks if a + b <= 1 + 1e-9]
    assert cost(found) <= min(cost(np.maximum(each, 0)) for each in grid) + 1e-6
    assert found.argmax() == 1
    nothing = np.full_like(predictions, np.nan)
    np.testing.assert_allclose(evidence_shares(task, nothing, y.numpy(), weights), 1 / 3)


def test_out_of_bag_predictions_are_those_of_scikit_learn():
    forest = RandomForestClassifier(30, random_state=0, oob_score=True).fit(ROWS, CODES)
    grown = _Grown(forest.estimators_, forest.estimators_samples_, 0, 6)
    codes = forest.classes_
    found = grown.out_of_bag(ROWS, np.arange(80), codes, Classification(4))
    np.testing.assert_allclose(found[:, codes], forest.oob_decision_function_, atol=1e-9)
    np.testing.assert_array_equal(found[:, 1], 0)
    one = _Grown(forest.estimators_[:1], forest.estimators_samples_[:1], 0, 6)
    seen = np.isin(np.arange(80), forest.estimators_samples_[0])
    alone = one.out_of_bag(ROWS, np.arange(80), codes, Classification(4))
    np.testing.assert_array_equal(np.isnan(alone).all(axis=1), seen)


@pytest.mark.parametrize("kind", KINDS)
def test_weighted_forests_predict_the_mean_of_three_forests(kind):
    graphs = collection([labelled(9, seed) for seed in range(40)])
    task, y = targets_of(kind, 40)
    everything = torch.arange(40)
    forest = GraphForest.fit(graphs, everything, y, task, trees=31, weigh=True)
    assert len(forest.shares) == 3
    assert sum(forest.shares) == pytest.approx(1)
    rows = _rows(graphs, everything, forest.colours, None, forest.most_degree)
    columns = _columns_of(rows, graphs, forest.colours, forest.most_degree)
    counts = count_table(graphs, forest.most_degree).astype(np.float32)
    np.testing.assert_array_equal(rows[:, slice(*columns[2])], counts)
    targets = task.encode(y).double().numpy()
    grown = list(_grow(rows, targets, None, task, columns, 31, 0))
    assert [len(each) for each in grown] == [11, 10, 10]
    codes, own = _tree_outputs(targets, task), np.ones(40)
    unseen = np.stack([each.out_of_bag(rows, everything.numpy(), codes, task) for each in grown])
    np.testing.assert_allclose(forest.shares, evidence_shares(task, unseen, targets, own))
    expected = sum(
        share
        * np.mean([t.tree_.predict(rows[:, g.first : g.last]).reshape(40, -1) for t in g.trees], 0)
        for share, g in zip(forest.shares, grown, strict=True)
    )
    np.testing.assert_allclose(forest.trees(rows), expected, atol=1e-6)
    again = GraphForest.from_config(json.loads(json.dumps(forest.config())), forest.trees.tensors())
    assert again.shares == forest.shares
    assert_close(again.outputs(graphs, everything, task), forest.outputs(graphs, everything, task))


def test_weights_of_graphs_and_classes_decide_between_forests():
    sizes = [*range(4, 24)] * 4
    graphs = collection(
        [labelled(n, seed) if seed % 2 else nx.path_graph(n) for seed, n in enumerate(sizes)][1::2]
    )
    y = torch.arange(40) % 2
    task, everything = Classification(2), torch.arange(40)
    plain = GraphForest.fit(graphs, everything, y, task, trees=60, weigh=True)
    factors = torch.tensor([1.0, 50.0], dtype=torch.float64)
    other = GraphForest.fit(graphs, everything, y, task, trees=60, weigh=True, factors=factors)
    assert plain.shares != other.shares
    vectors = GraphForest.fit(
        graphs, everything, y, task, lambda g, i: np.zeros((len(i), 2)), trees=60, weigh=True
    )
    assert vectors.shares == (1 / 3, 1 / 3, 1 / 3)  # a network knows the targets of its graphs


def test_damaged_shares_are_refused():
    graphs = collection([nx.path_graph(n) for n in (3, 4, 5, 6)])
    y = torch.tensor([0, 0, 1, 1])
    forest = GraphForest.fit(graphs, torch.arange(4), y, Classification(2), trees=6, weigh=True)
    config, tensors = forest.config(), forest.trees.tensors()
    for changes, words in (
        ({"shares": [0.5, 0.6, 0.7]}, "add up to 1.8"),
        ({"shares": [-1.0, 1.0, 1.0]}, "numbers from 0 to 1"),
        ({"shares": "abc"}, "numbers from 0 to 1"),
        ({"network_share": float("nan")}, "numbers from 0 to 1"),
        ({"network_share": True}, "numbers from 0 to 1"),
        ({"most_degree": 10**9}, "counts degrees up to 1000000000"),
    ):
        with pytest.raises(ValueError, match=words):
            GraphForest.from_config({**config, **changes}, tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_validation_graphs_decide_the_share_of_the_network(kind):
    task, y = targets_of(kind, 200)
    graphs = collection([nx.path_graph(n) for n in (3, 4, 5, 6)])
    few = torch.arange(4)
    forest = GraphForest.fit(graphs, few, y[:4], task, trees=3, weigh=True)
    noise = torch.randn(200, task.outputs, generator=torch.Generator().manual_seed(3))
    if kind == "classes":
        right = 3 * torch.nn.functional.one_hot(y, 3).float()
    else:
        right = torch.nan_to_num(y).float() * (6 if kind == "answers" else 1)
        right -= 3 * (kind == "answers")
    good = forest.with_evidence(task, (right, noise), y).network_share
    bad = forest.with_evidence(task, (noise, right), y).network_share
    assert good > 0.7 > forest.network_share > 0.2 > bad
