"""The policy for the best epoch: one model, many models, and a recorded curve agree."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softperm.settings import CRITERIA, TrainingConfig
from softperm.training.loop import Epoch, EpochTracker

FIGURES = st.lists(
    st.tuples(*[st.sampled_from([0.1, 0.2, 0.3, 0.4, math.nan])] * 2), min_size=1, max_size=12
)


def reference(figures, criterion: str, patience: int | None) -> int:
    """The best epoch, by a plain loop; scores are better when higher."""
    best, lowest = 0, math.inf
    for number, (loss, score) in enumerate(figures, start=1):
        if patience is not None and best and number - best > patience:
            break
        value = loss if criterion == "loss" else -score
        equal = criterion == "late-score" and value == lowest
        if value < lowest or equal or best == 0 or criterion == "last":
            best, lowest = number, math.inf if math.isnan(value) else value
    return best


@settings(deadline=None, max_examples=50)
@given(FIGURES, st.sampled_from(CRITERIA), st.sampled_from([None, 1, 2, 5]))
def test_the_best_epoch_of_a_curve_is_that_of_a_plain_loop(figures, criterion, patience):
    config = TrainingConfig(criterion=criterion, patience=patience)
    curve = [Epoch(k, 0.0, *row, 0.0) for k, row in enumerate(figures, start=1)]
    assert EpochTracker.best_epoch_of(curve, config, True) == reference(
        figures, criterion, patience
    )


@settings(deadline=None, max_examples=50)
@given(FIGURES, st.sampled_from([None, 2]))
def test_many_models_are_tracked_as_each_alone(figures, patience):
    """Models with the same figures and different criteria."""
    config = TrainingConfig(epochs=len(figures), patience=patience, decay=0.3, decay_patience=1)
    together = EpochTracker(config, True, models=len(CRITERIA), criteria=CRITERIA)
    alone = [EpochTracker(replace(config, criterion=c), True) for c in CRITERIA]
    for loss, score in torch.tensor(figures, dtype=torch.float64):
        improved = together.end_epoch(loss.expand(4), score.expand(4))
        assert improved.tolist() == [bool(one.end_epoch(loss[None], score[None])) for one in alone]
    for name in ("best_epoch", "best_value", "rates"):
        assert getattr(together, name).tolist() == [getattr(one, name).item() for one in alone]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, math.nan]), min_size=1, max_size=20))
def test_the_learning_rate_falls_as_that_of_reduce_on_plateau(losses):
    parameter = torch.nn.Parameter(torch.zeros(1))
    adam = torch.optim.Adam([parameter], lr=0.07)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        adam, factor=0.3, patience=2, threshold=0.0, min_lr=0.004, eps=0.0
    )
    config = TrainingConfig(
        epochs=20, learning_rate=0.07, decay=0.3, decay_patience=2, decay_floor=0.004
    )
    tracker = EpochTracker(config, True)
    for epoch, loss in enumerate(losses, start=1):
        plateau.step(math.inf if math.isnan(loss) else loss)
        tracker.end_epoch(torch.tensor([loss], dtype=torch.float64), torch.zeros(1))
        assert tracker.learning_rates(epoch).item() == adam.param_groups[0]["lr"]


def test_the_learning_rate_is_halved_every_so_many_epochs():
    tracker = EpochTracker(TrainingConfig(learning_rate=0.4, halve_every=2), True)
    rates = [tracker.learning_rates(epoch).item() for epoch in range(6)]
    assert rates == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]


def test_patience_ends_training_once_no_model_may_improve():
    config = TrainingConfig(epochs=9, patience=2)
    tracker = EpochTracker(config, True, models=2)
    over = []
    for losses in [(3.0, 3.0), (2.0, 4.0), (2.5, 4.0), (2.5, 1.0), (2.5, 1.0)]:
        tracker.end_epoch(torch.tensor(losses), torch.zeros(2))
        over.append(tracker.is_over(int(tracker.epoch)))
    assert over == [False, False, False, True, True]
    assert tracker.best_epoch.tolist() == [2, 1], "the fourth epoch came after patience had ended"


def test_without_validation_the_last_epoch_is_the_best():
    tracker = EpochTracker(TrainingConfig(epochs=3), True, validated=False)
    undefined = torch.tensor([math.nan])
    assert [bool(tracker.end_epoch(undefined, undefined)) for _ in range(3)] == [True] * 3
    assert tracker.best_epoch.tolist() == [3]


def test_a_resumed_tracker_may_have_more_epochs():
    short, long = (EpochTracker(TrainingConfig(epochs=k), True) for k in (2, 4))
    for loss in (2.0, 1.0):
        short.add(torch.tensor([loss]), torch.tensor([5]))
        short.end_epoch(torch.tensor([loss]), torch.tensor([0.5]))
    long.load(short.tensors())
    assert short.is_over(2)
    assert not long.is_over(2)
    assert long.curve(0, [1.0, 2.0]) == short.curve(0, [1.0, 2.0])
    assert long.curve(0, [1.0, 2.0])[1] == Epoch(2, 1.0, 1.0, 0.5, 2.0)


@pytest.mark.parametrize(("models", "words"), [(1, "graphs do not"), (2, "graphs of model 0 do")])
def test_an_undefined_score_is_refused_as_criterion(models, words):
    tracker = EpochTracker(TrainingConfig(criterion="score"), True, models=models)
    tracker.end_epoch(torch.ones(models), torch.full((models,), math.nan))
    with pytest.raises(ValueError, match=f"{words}.*define a roc_auc"):
        tracker.check_scores(1, "roc_auc")
