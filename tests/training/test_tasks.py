"""Losses and scores of each task equal their definitions, also if some targets are missing."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from samples import collect, labelled_path
from sklearn.metrics import average_precision_score, roc_auc_score
from torch.nn import functional as F
from torch.testing import assert_close

from softperm.training.tasks import (
    Classification,
    LinearFit,
    MultiLabel,
    Regression,
    StackedScore,
    Task,
    mean_loss,
    with_smoothing,
)

NAN = float("nan")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_classification_is_cross_entropy_and_accuracy():
    outputs, y = random(6, 3), torch.tensor([0, 1, 2, 2, 1, 0])
    task = Classification(3)
    assert task.outputs == 3
    assert task.higher_is_better
    assert_close(mean_loss(task, outputs, task.encode(y)), F.cross_entropy(outputs, y))
    assert task.score(outputs, y) == (outputs.argmax(1) == y).double().mean().item()


def test_label_smoothing_spreads_probability_over_the_classes():
    outputs, y = random(6, 3), torch.tensor([0, 1, 2, 2, 1, 0])
    smooth = F.cross_entropy(outputs, y, label_smoothing=0.3)
    assert_close(mean_loss(with_smoothing(Classification(3), 0.3), outputs, y), smooth)
    answers = torch.tensor([[0.0, 1], [1, NAN], [0, 0]])
    target = 0.7 * answers + 0.15
    there = ~answers.isnan()
    loss = F.binary_cross_entropy_with_logits(random(3, 2)[there], target[there].double())
    assert_close(mean_loss(with_smoothing(MultiLabel(2), 0.3), random(3, 2), answers), loss)
    numbers = Regression((0.0,), (1.0,))
    assert with_smoothing(numbers, 0.3) is numbers


def test_label_smoothing_is_no_part_of_a_tasks_name():
    """Checkpoints of earlier versions name the task without it."""
    assert repr(Classification(3)) == repr(with_smoothing(Classification(3), 0.3))


def test_missing_answers_count_neither_in_loss_nor_in_score():
    outputs = random(8, 2)
    y = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0], [1, NAN], [NAN, 1], [0, NAN], [NAN, NAN]])
    task = MultiLabel(2)
    there = ~y.isnan()
    loss = F.binary_cross_entropy_with_logits(outputs[there], y[there].double())
    assert_close(mean_loss(task, outputs, task.encode(y)), loss)
    for metric, measure in (
        ("roc_auc", roc_auc_score),
        ("average_precision", average_precision_score),
    ):
        columns = [measure(y[there[:, t], t], outputs[there[:, t], t]) for t in range(2)]
        assert MultiLabel(2, metric=metric).score(outputs, y) == pytest.approx(np.mean(columns))


def test_a_question_with_one_answer_only_is_left_out_of_the_score():
    outputs = random(4, 2)
    y = torch.tensor([[0.0, 1], [1, 1], [1, 1], [0, NAN]])
    expected = roc_auc_score(y[:, 0], outputs[:, 0])
    assert MultiLabel(2).score(outputs, y) == pytest.approx(expected)
    assert np.isnan(MultiLabel(2).score(outputs, torch.ones(4, 2)))


def test_regression_standardises_with_the_known_training_targets():
    y = torch.tensor([[1e6, 5.0], [3e6, NAN], [NAN, 5.0], [5e6, 5.0]], dtype=torch.float64)
    task = Regression.of(y)
    assert task.mean == pytest.approx((3e6, 5))
    assert task.std == pytest.approx((np.std([1e6, 3e6, 5e6]), 0))  # one that never varies: 0
    encoded = task.encode(y)
    assert_close(encoded.nanmean(0), torch.zeros(2, dtype=torch.float64))
    assert_close(task.decode(encoded)[0], y[0])


@pytest.mark.parametrize("constant", [0.1, 1 / 3, -1e-7, 1e200, 0.0])
def test_targets_that_only_rounding_varies_do_not_vary(constant):
    y = torch.full((20, 1), constant, dtype=torch.float64)
    assert Regression.of(y).std == (0.0,)
    y[::3] *= 1 + 2**-52
    assert Regression.of(y).std == (0.0,)


def test_outputs_do_not_change_the_prediction_of_a_target_that_is_constant_in_training():
    y = torch.tensor([[1.0, 3.25], [3.0, 3.25], [8.0, 3.25]], dtype=torch.float64)
    task, outputs = Regression.of(y), random(3, 2)
    assert (task.decode(outputs)[:, 1] == 3.25).all()
    y[:, 1] += torch.arange(3.0)  # graphs of validation, where it is not constant
    encoded = task.encode(y)[None]
    score = StackedScore([task], y.device)(outputs[None], encoded, torch.ones(1, 3).bool())
    assert score.item() == pytest.approx(task.score(outputs, y))
    assert_close(task.encode(y)[:, 1], torch.arange(3.0, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_targets_of_any_size_are_standardised(scale):
    y = scale * torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    task = Regression.of(y)
    assert task.std == pytest.approx((scale * np.std([1, 2, 4]),), rel=1e-12)
    assert_close(task.decode(task.encode(y)), y, rtol=1e-12, atol=0)


def test_regression_is_squared_error_of_standardised_and_absolute_error_of_plain_targets():
    y = torch.tensor([[1.0, 50.0], [3.0, NAN], [8.0, 20.0]], dtype=torch.float64)
    task, outputs = Regression.of(y), random(3, 2)
    there = ~y.isnan()
    assert_close(
        mean_loss(task, outputs, task.encode(y)),
        (outputs - task.encode(y))[there].square().mean(),
    )
    error = (outputs * torch.tensor(task.std) + torch.tensor(task.mean) - y)[there].abs().mean()
    assert task.score(outputs, y) == pytest.approx(error.item())
    assert not task.higher_is_better


def test_targets_missing_for_every_training_graph_are_refused():
    y = torch.tensor([[1.0, NAN], [2.0, NAN]])
    with pytest.raises(ValueError, match=r"target 1 is missing \(NaN\) for every training graph"):
        Regression.of(y)


@pytest.mark.parametrize("task", [MultiLabel(2), Regression((0.0, 0.0), (1.0, 1.0))])
def test_a_missing_target_has_no_gradient(task):
    outputs = random(3, 2).requires_grad_()
    y = torch.tensor([[NAN, 1.0], [0.0, NAN], [NAN, NAN]], dtype=torch.float64)
    mean_loss(task, outputs, task.encode(y)).backward()
    assert (outputs.grad != 0).tolist() == (~y.isnan()).tolist()


@pytest.mark.parametrize(
    "task", [Classification(2), MultiLabel(2), Regression((0.0, 0.0), (1.0, 1.0))]
)
def test_graphs_that_are_not_kept_do_not_count(task):
    assert isinstance(task, Task)
    outputs = random(4, 2)
    y = (
        torch.tensor([0, 1, 1, 0])
        if isinstance(task, Classification)
        else random(4, 2).sign().relu()
    )
    keep = torch.tensor([True, False, True, False])
    assert_close(mean_loss(task, outputs, y, keep), mean_loss(task, outputs[keep], y[keep]))


def test_a_batch_without_any_target_has_loss_zero_and_no_gradient():
    outputs = random(2, 2).requires_grad_()
    loss = mean_loss(MultiLabel(2), outputs, torch.full((2, 2), NAN))
    loss.backward()
    assert loss.item() == 0
    assert bool((outputs.grad == 0).all())


def words(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("abc"), rng.integers(1, 9))) for _ in range(count)]


def test_a_linear_fit_finds_linear_functions_of_counts():
    """Of vertices by label, and of edges by the labels of their ends."""
    own = words(80)
    graphs = collect([labelled_path(word) for word in own])
    ends = [sum(set(pair) == set("ab") for pair in pairwise(word)) for word in own]
    y = torch.tensor(
        [[7 - 3 * w.count("a") + 2 * w.count("c"), 5 * n] for w, n in zip(own, ends, strict=True)],
        dtype=torch.float64,
    )
    train = torch.arange(60)
    fit = LinearFit.of(graphs, train, y)
    assert fit.width == len(fit.weights[0])
    assert_close(fit(graphs), y, atol=1e-4, rtol=0)
    known = y.clone()
    known[::3, 1] = NAN  # missing targets are left out; test graphs are not looked at
    known[60:] = 1e6
    assert_close(LinearFit.of(graphs, train, known)(graphs), y, atol=1e-4, rtol=0)


def test_a_linear_fit_counts_a_graph_of_weight_two_twice():
    graphs = collect([labelled_path(word) for word in words(30)])
    y, twice = random(30, 1), torch.tensor([0, 3, 3, 5])
    index = torch.cat([torch.arange(30), twice])
    weight = torch.bincount(index).double()
    double = LinearFit.of(graphs, index, y)(graphs)
    weighted = LinearFit.of(graphs, torch.arange(30), y, weight)(graphs)
    assert_close(weighted.mean(), double.mean(), atol=0.05, rtol=0)


def test_a_linear_fit_counts_large_collections_in_parts(monkeypatch):
    """The counts of all graphs at once might not fit into memory."""
    graphs = collect([labelled_path(word) for word in words(50)])
    y = random(50, 2).double()
    whole = LinearFit.of(graphs, torch.arange(50), y)
    expected = whole(graphs)
    monkeypatch.setattr("softperm.data.collection.SPAN_VERTICES", 20)
    assert len(list(graphs.spans())) > 5
    assert_close(whole(graphs), expected, atol=1e-12, rtol=0)
    monkeypatch.setattr("softperm.training.tasks.MOST_FITTED", 10)
    few = torch.linspace(0, 49, 10).long()
    assert LinearFit.of(graphs, torch.arange(50), y) == LinearFit.of(graphs, few, y)


def test_a_linear_fit_of_few_or_equal_graphs_is_the_mean():
    graphs = collect([labelled_path("ab")] * 5)
    y = torch.tensor([[1.0], [2], [3], [4], [NAN]], dtype=torch.float64)
    assert_close(LinearFit.of(graphs, torch.arange(5), y)(graphs), torch.full((5, 1), 2.5).double())
