"""Weights of graphs and classes in the loss: a graph of weight 2 counts as two graphs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from samples import collect, random_graph
from sklearn.utils.class_weight import compute_class_weight
from torch.testing import assert_close

from softperm.nn.model import ModelConfig, build
from softperm.settings import TrainingConfig
from softperm.training.data import Examples
from softperm.training.loop import fit
from softperm.training.stack import Stack
from softperm.training.tasks import (
    Classification,
    MultiLabel,
    Regression,
    class_factors,
    count_targets,
    mean_loss,
    weight_array,
)

pytestmark = pytest.mark.usefixtures("shapes_unchecked")

NAN = float("nan")
GRAPHS = [random_graph(n, seed=n) for n in (3, 9, 5, 7, 4, 12, 6, 8)]
WEIGHT = torch.tensor([2.0, 1, 1, 3, 1, 0, 1, 1], dtype=torch.float64)
REPEATED = torch.arange(8).repeat_interleave(WEIGHT.long())
SETTINGS = TrainingConfig(epochs=3, batch_size=100, learning_rate=1e-2)
CODES = torch.tensor([0, 1, 1, 1, 0, 1, 1, 2])
ANSWERS = torch.tensor([[0.0, 1], [1, NAN], [0, 0], [NAN, 1], [1, 1], [0, 0], [1, 0], [0, 1]])
NUMBERS = torch.tensor([[1.0], [5], [2], [-3], [NAN], [7], [0], [4]], dtype=torch.float64)
TASKS = {
    "classes": (Classification(3), CODES),
    "answers": (MultiLabel(2), ANSWERS),
    "numbers": (Regression.of(NUMBERS), NUMBERS),
}


def network(outputs: int, seed: int = 0) -> torch.nn.Module:
    config = ModelConfig(outputs, latent_vertices=4, hidden=6, encoder="linear", attribute_size=3)
    return build(config, seed).double()


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("settings", [{}, {"accumulate": 3}, {"label_smoothing": 0.1}])
def test_a_graph_of_weight_two_counts_as_two_graphs(kind, settings):
    task, y = TASKS[kind]
    config, graphs = replace(SETTINGS, **settings), collect(GRAPHS)
    weighted, repeated = network(task.outputs), network(task.outputs)
    one = fit(weighted, task, Examples(graphs, y, torch.arange(8), WEIGHT), config)
    two = fit(repeated, task, Examples(graphs, y, REPEATED), config)
    assert_close([e.train_loss for e in one.curve], [e.train_loss for e in two.curve])
    for a, b in zip(weighted.parameters(), repeated.parameters(), strict=True):
        assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("class_weight", [None, "balanced", {1: 0.5}])
def test_a_stack_weighs_as_each_training_alone_does(kind, class_weight, stack_device):
    task, y = TASKS[kind]
    if kind != "classes" and class_weight is not None:
        pytest.skip("only classes have weights")
    config = replace(SETTINGS, batch_size=2, class_weight=class_weight)
    graphs, train, held = collect(GRAPHS), torch.arange(5), torch.arange(5, 8)
    alone, stacked = ([network(task.outputs, seed) for seed in (0, 1)] for _ in range(2))
    parts = [train, torch.tensor([4, 3, 0])]
    stack = Stack(
        stacked, [task] * 2, graphs, y, parts, [held] * 2, [5, 6], config,
        weight=WEIGHT, device=stack_device,
    )  # fmt: skip
    together = stack.fit()
    slack = 1e-8 if stack_device == "cpu" else 1e-6
    for m, part in enumerate(parts):
        examples = Examples(graphs, y, part, WEIGHT)
        own = replace(config, seed=5 + m)
        one = fit(alone[m], task, examples, own, validation=replace(examples, index=held))
        for a, b in zip(one.curve, together[m].curve, strict=True):
            assert a.train_loss == pytest.approx(b.train_loss, rel=1e-7)
            assert a.validation_loss == pytest.approx(b.validation_loss, rel=1e-5)
        for p, q in zip(alone[m].parameters(), stacked[m].cpu().parameters(), strict=True):
            assert_close(p, q, rtol=slack, atol=slack)


@pytest.mark.parametrize("y", [[0, 1, 1, 1, 0, 2], [0, 2, 2], [1, 1, 0, 0]])
def test_balanced_weights_are_scikit_learns(y):
    codes = np.unique(y)
    expected = compute_class_weight("balanced", classes=codes, y=np.array(y))
    factors = class_factors("balanced", Classification(3), torch.tensor(y))
    assert_close(factors[codes], torch.from_numpy(expected))
    absent = np.setdiff1d(np.arange(3), codes)
    assert_close(factors[absent], torch.ones(len(absent), dtype=torch.float64))


def test_balanced_weights_count_a_graph_of_weight_two_twice():
    task, whole = Classification(3), torch.arange(8)
    one = class_factors("balanced", task, CODES[whole], WEIGHT)
    assert_close(one, class_factors("balanced", task, CODES[REPEATED]))


def test_the_weighted_loss_is_torchs():
    outputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    factors = torch.tensor([0.5, 2.0, 3.0])
    expected = torch.nn.functional.cross_entropy(outputs, CODES, factors)
    assert_close(mean_loss(Classification(3), outputs, CODES, weight=factors[CODES]), expected)


def test_graphs_without_weight_leave_no_loss():
    outputs, nothing = torch.ones(8, 3), torch.zeros(8)
    assert mean_loss(Classification(3), outputs, CODES, weight=nothing).item() == 0
    assert count_targets(MultiLabel(2), ANSWERS, torch.full((8,), 0.25)).item() == 14 / 4


def test_weighted_targets_are_standardised_as_repeated_ones():
    assert Regression.of(NUMBERS, WEIGHT).mean == pytest.approx(
        Regression.of(NUMBERS[REPEATED]).mean
    )
    assert Regression.of(NUMBERS, WEIGHT).std == pytest.approx(Regression.of(NUMBERS[REPEATED]).std)
    alone = torch.tensor([0.0, 0, 0, 0, 1, 0, 0, 0])
    with pytest.raises(ValueError, match="every training graph with a known target 0 has weight 0"):
        Regression.of(NUMBERS, alone)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2.0], "a number for each of the 3 graphs; got shape"),
        ([1.0, -2.0, 0.0], "graph 1: its sample_weight is -2; expected 0 or more"),
        ([1.0, 2.0, NAN], "graph 2: its sample_weight is nan"),
        ([0, 0, 0], "every sample_weight is 0"),
        (["a", "b", "c"], "sample_weight must hold a number for each graph"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        weight_array(weights, 3)


def test_class_weights_are_for_classes():
    with pytest.raises(ValueError, match="class_weight must be 'balanced', a dict from class to"):
        TrainingConfig(class_weight="equal")
    with pytest.raises(ValueError, match="class_weight of class 1 must be a number of at least 0"):
        TrainingConfig(class_weight={1: -1.0})
    config, examples = replace(SETTINGS, class_weight="balanced"), TASKS["answers"]
    with pytest.raises(ValueError, match="class_weight is for graphs of one class each"):
        fit(
            network(2), examples[0], Examples(collect(GRAPHS), examples[1], torch.arange(8)), config
        )
