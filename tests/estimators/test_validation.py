"""The held-out part: how it is chosen, that it chooses the epoch, and that it stops training."""

import signal
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from samples import FAST, same_weights, two_kinds
from sklearn.exceptions import NotFittedError

from softperm import PiGNNClassifier, PiGNNRegressor
from softperm.data.graphs import as_graphs
from softperm.training.data import hold_out

DRAWN, Y = two_kinds(16)
GRAPHS = as_graphs(DRAWN)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.5, 0.9])
def test_of_each_class_the_same_share_is_held_out_and_one_graph_stays(fraction):
    groups = np.repeat([3, 1, 2], [40, 20, 1])
    kept, held = hold_out(groups, fraction, seed=1)
    assert sorted([*kept, *held]) == list(range(61))
    for group, count in ((3, 40), (1, 20), (2, 1)):
        expected = min(round(fraction * count), count - 1)
        assert (groups[held] == group).sum() == expected
    assert (np.diff(kept) > 0).all()


def test_the_held_out_part_depends_on_the_seed_alone():
    groups = np.zeros(50)
    first, again, other = (hold_out(groups, 0.2, seed)[1] for seed in (0, 0, 1))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([4, 8], "4 of class 'a'; the best epoch is selected without them"),
        ([4, 3], "4 of class 'a', 3 of class 'b'; the last epoch is kept"),
    ],
)
def test_classes_too_small_to_be_held_out_are_named(sizes, words):
    y = np.repeat(["a", "b"], sizes)
    message = f"too few graphs to hold out 0.1 of them for validation: {words}"
    with pytest.warns(UserWarning, match=message):
        made = PiGNNClassifier(**FAST).fit(GRAPHS[: len(y)], y)
    assert np.isnan(made.curve_[0].validation_loss) == (max(sizes) < 5)


def test_too_few_graphs_to_hold_out_for_a_regression_are_counted():
    with pytest.warns(UserWarning, match="for validation: 4 graphs; the last epoch is kept"):
        PiGNNRegressor(**FAST).fit(GRAPHS[:4], np.arange(4.0))


def test_without_validation_the_last_epoch_is_kept():
    made = PiGNNClassifier(**{**FAST, "validation_fraction": 0.0}).fit(GRAPHS, Y)
    assert made.best_epoch_ == 2
    assert all(np.isnan(epoch.validation_loss) for epoch in made.curve_)


@pytest.mark.parametrize("criterion", ["loss", "score"])
@pytest.mark.parametrize("kind", [PiGNNClassifier, PiGNNRegressor])
def test_the_best_epoch_is_the_one_of_the_best_validation_figure(kind, criterion):
    settings = {**FAST, "epochs": 8, "learning_rate": 3e-2, "criterion": criterion}
    made = kind(**{**settings, "validation_fraction": 0.25}).fit(GRAPHS, Y)
    if criterion == "loss":
        figures = [epoch.validation_loss for epoch in made.curve_]
    else:
        sign = -1 if kind is PiGNNClassifier else 1  # accuracy is to rise, absolute error to fall
        figures = [sign * epoch.validation_score for epoch in made.curve_]
    assert [epoch.number for epoch in made.curve_] == list(range(1, 9))
    assert made.best_epoch_ == int(np.argmin(figures)) + 1
    upto = {**settings, "epochs": made.best_epoch_}
    same_weights(made.model_, kind(**{**upto, "validation_fraction": 0.25}).fit(GRAPHS, Y).model_)


def test_given_validation_graphs_choose_the_epoch_and_are_not_trained_on():
    held = (GRAPHS[12:], Y[12:])
    settings = {**FAST, "epochs": 4, "batch_size": 64}
    made = PiGNNClassifier(**settings).fit(GRAPHS[:12], Y[:12], validation=held)
    flipped = PiGNNClassifier(**settings).fit(
        GRAPHS[:12], Y[:12], validation=(held[0], 1 - held[1])
    )
    losses = [[epoch.train_loss for epoch in run.curve_] for run in (made, flipped)]
    assert losses[0] == losses[1]
    assert made.curve_[0].validation_loss != flipped.curve_[0].validation_loss
    alone = PiGNNClassifier(**{**settings, "validation_fraction": 0.0}).fit(GRAPHS[:12], Y[:12])
    assert [epoch.train_loss for epoch in alone.curve_] == losses[0]


def test_training_stops_when_patience_ends_and_goes_back_to_the_best_epoch():
    settings = {**FAST, "epochs": 60, "learning_rate": 1e-9, "validation_fraction": 0.25}
    made = PiGNNClassifier(**{**settings, "patience": 3, "criterion": "score"}).fit(GRAPHS, Y)
    assert made.best_epoch_ == 1
    assert len(made.curve_) == 4
    assert not made.interrupted_


def test_patience_without_validation_graphs_is_refused():
    with pytest.raises(ValueError, match="patience needs validation graphs"):
        PiGNNClassifier(**{**FAST, "patience": 3, "validation_fraction": 0.0}).fit(GRAPHS, Y)


def test_a_validation_part_without_targets_is_refused():
    held = (GRAPHS[:2], [np.nan, np.nan])
    with pytest.raises(ValueError, match="no validation graph has a target"):
        PiGNNRegressor(**FAST).fit(GRAPHS, Y.astype(float), validation=held)


def test_a_score_that_validation_graphs_do_not_define_is_refused():
    y = np.stack([Y, Y], axis=1)
    held = (GRAPHS[:2], [[1, 1], [1, 1]])
    with pytest.raises(ValueError, match=r"do not define a roc_auc .* choose criterion loss"):
        PiGNNClassifier(**{**FAST, "criterion": "score"}).fit(GRAPHS, y, validation=held)
    PiGNNClassifier(**{**FAST, "criterion": "loss"}).fit(GRAPHS, y, validation=held)


@pytest.fixture
def pressed(monkeypatch):
    """Ctrl-C at the end of the third epoch."""

    @contextmanager
    def pressing(shown):
        def report(activity, done, total, note):
            if done == 3:
                signal.raise_signal(signal.SIGINT)

        yield report

    monkeypatch.setattr("softperm.estimators.pignn.progress_bars", pressing)


def test_ctrl_c_without_a_checkpoint_leaves_an_estimator_that_is_not_fitted(pressed):
    before = signal.getsignal(signal.SIGINT)
    made = PiGNNClassifier(**{**FAST, "epochs": 50})
    with pytest.raises(KeyboardInterrupt):
        made.fit(GRAPHS, Y)
    with pytest.raises(NotFittedError):
        made.predict(GRAPHS)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_with_a_checkpoint_leaves_the_best_epoch_so_far(pressed, tmp_path):
    made = PiGNNClassifier(**{**FAST, "epochs": 50}, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(KeyboardInterrupt):
        made.fit(GRAPHS, Y)
    assert made.interrupted_
    assert len(made.curve_) == 3
    assert made.predict(GRAPHS).shape == (16,)
    assert (tmp_path / "checkpoint").exists()


def test_a_time_limit_keeps_the_best_epoch_so_far_and_warns():
    made = PiGNNClassifier(**{**FAST, "epochs": 50}, max_time=1e-6)
    with pytest.warns(UserWarning, match="stopped after 0 of 50 epochs; the best epoch so far"):
        made.fit(GRAPHS, Y)
    assert made.interrupted_


def test_a_checkpoint_resumes_a_fit_exactly(tmp_path):
    settings = {**FAST, "learning_rate": 1e-2, "validation_fraction": 0.25}
    whole = PiGNNClassifier(**{**settings, "epochs": 6}).fit(GRAPHS, Y)
    place = tmp_path / "deep" / "checkpoint"
    PiGNNClassifier(**{**settings, "epochs": 2}, checkpoint=place).fit(GRAPHS, Y)
    resumed = PiGNNClassifier(**{**settings, "epochs": 6}, checkpoint=place).fit(GRAPHS, Y)
    same_weights(whole.model_, resumed.model_)
    assert whole.best_epoch_ == resumed.best_epoch_
    assert [e.train_loss for e in whole.curve_] == [e.train_loss for e in resumed.curve_]


def test_a_checkpoint_of_other_data_or_settings_is_refused(tmp_path):
    place = tmp_path / "checkpoint"
    graphs = [graph.clone() for graph in GRAPHS]
    for graph in graphs:
        graph.x = torch.full((graph.num_nodes, 1), 0.5)
    changed = [graph.clone() for graph in graphs]
    changed[3].x[0] = 1.5
    settings = {**FAST, "checkpoint": place}
    PiGNNClassifier(**settings).fit(graphs, Y)
    others = [
        (settings, changed, Y),
        (settings, graphs[::-1], Y),
        (settings, graphs, 1 - Y),
        ({**settings, "seed": 1}, graphs, Y),
        ({**settings, "learning_rate": 0.5}, graphs, Y),
        ({**settings, "hidden": 5}, graphs, Y),
        ({**settings, "validation_fraction": 0.5}, graphs, Y),
    ]
    for chosen, given, y in others:
        with pytest.raises(ValueError, match="belongs to a training with other data or settings"):
            PiGNNClassifier(**chosen).fit(given, y)
    PiGNNClassifier(**settings).fit(graphs, Y)


def test_a_loss_that_explodes_is_said_with_the_remedy():
    made = PiGNNRegressor(**{**FAST, "epochs": 20, "learning_rate": 1e30})
    with pytest.raises(FloatingPointError, match=r"training loss became .* lower learning_rate"):
        made.fit(GRAPHS, Y)


class Terminal:
    """Standard error as a terminal has it."""

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize(
    ("progress", "terminal", "shown"),
    [(True, True, True), (False, True, False), (True, False, False)],
)
def test_the_progress_bar_is_there_on_a_terminal_unless_turned_off(
    progress, terminal, shown, monkeypatch
):
    screen = Terminal()
    screen.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    PiGNNClassifier(**{**FAST, "progress": progress}).fit(GRAPHS, Y)
    assert ("100%" in screen.text and "accuracy" in screen.text) is shown
    assert bool(screen.text) is shown


def test_standard_scaling_uses_the_training_vertices_alone():
    held = (GRAPHS[12:], Y[12:])
    made = PiGNNClassifier(**{**FAST, "scaling": "standard"}).fit(
        GRAPHS[:12], Y[:12], validation=held
    )
    degrees = torch.tensor([float(d) for graph in DRAWN[:12] for _, d in graph.degree()])
    scale = made.model_.permutation.encoder.scale
    assert scale.mean[0].item() == pytest.approx(degrees.mean().item(), rel=1e-5)
    assert scale.std[0].item() == pytest.approx(degrees.std(correction=0).item(), rel=1e-5)


def test_validation_is_a_pair():
    with pytest.raises(
        ValueError, match="validation must be a pair: graphs, and a target for each"
    ):
        PiGNNClassifier(**FAST).fit(GRAPHS, Y, validation=GRAPHS)
