"""Scores equal those of OGB's evaluator and of torchmetrics, also with missing answers."""

import numpy as np
import pytest
import torch
from ogb_package import ogb_module

from softperm.training.tasks import Classification, MultiLabel, Regression

NAN = float("nan")


def answers(graphs: int, tasks: int, seed: int, missing: float = 0.4) -> tuple:
    """Random outputs and answers; some are missing, and some questions have one answer only."""
    rng = np.random.default_rng(seed)
    y = (rng.random((graphs, tasks)) < 0.15).astype(np.float32)
    y[rng.random(y.shape) < missing] = NAN
    if tasks > 3:
        y[:, 0] = np.where(np.isnan(y[:, 0]), NAN, 0)  # nobody says yes
        y[:, 1] = np.where(np.isnan(y[:, 1]), NAN, 1)  # nobody says no
        y[:, 2] = NAN  # nobody answers
    outputs = np.nan_to_num(y) + rng.normal(size=y.shape).round(1)  # rounded: some are equal
    return torch.from_numpy(outputs.astype(np.float32)), torch.from_numpy(y)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("name", "tasks", "metric", "key"),
    [
        ("ogbg-molhiv", 1, "roc_auc", "rocauc"),
        ("ogbg-molpcba", 128, "average_precision", "ap"),
    ],
)
def test_scores_are_those_of_ogbs_evaluator(name, tasks, metric, key, seed):
    evaluator = ogb_module("graphproppred/evaluate.py").Evaluator(name)
    outputs, y = answers(200, tasks, seed, missing=0.4 if tasks > 1 else 0.0)
    theirs = evaluator.eval({"y_true": y.numpy(), "y_pred": outputs.numpy()})[key]
    assert MultiLabel(tasks, metric=metric).score(outputs, y) == pytest.approx(theirs, rel=1e-12)


def test_where_ogb_refuses_to_score_the_score_is_undefined():
    evaluator = ogb_module("graphproppred/evaluate.py").Evaluator("ogbg-molhiv")
    outputs, y = torch.rand(5, 1), torch.zeros(5, 1)
    with pytest.raises(RuntimeError, match="No positively labeled data"):
        evaluator.eval({"y_true": y.numpy(), "y_pred": outputs.numpy()})
    assert np.isnan(MultiLabel(1).score(outputs, y))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("metric", "name"),
    [("roc_auc", "binary_auroc"), ("average_precision", "binary_average_precision")],
)
def test_scores_of_questions_are_those_of_torchmetrics(metric, name, seed):
    functions = pytest.importorskip("torchmetrics.functional.classification")
    outputs, y = answers(150, 6, seed)
    theirs = [
        getattr(functions, name)(outputs[there, t].sigmoid(), y[there, t].long()).item()
        for t, there in enumerate((~y.isnan()).unbind(1))
        if 0 < y[there, t].sum() < there.sum()
    ]
    assert len(theirs) == 3
    ours = MultiLabel(6, metric=metric).score(outputs, y)
    assert ours == pytest.approx(np.mean(theirs), rel=1e-5)


def test_accuracy_and_absolute_error_are_those_of_torchmetrics():
    metrics = pytest.importorskip("torchmetrics.functional")
    generator = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(50, 3, generator=generator), torch.arange(50) % 3
    accuracy = metrics.accuracy(outputs, y, task="multiclass", num_classes=3)
    assert Classification(3).score(outputs, y) == pytest.approx(accuracy.item())
    values = torch.randn(50, 2, generator=generator, dtype=torch.float64) * 5 - 400
    task = Regression.of(values)
    predicted = torch.randn(50, 2, generator=generator)
    error = metrics.mean_absolute_error(task.decode(predicted), values)
    assert task.score(predicted, values) == pytest.approx(error.item())
