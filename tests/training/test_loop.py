"""The training loop: resuming is exact wherever it was stopped, and Ctrl-C loses nothing."""

import inspect
import math
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from samples import collect, random_graph, rings_and_cliques, same_weights
from sklearn.model_selection import cross_val_score

from softperm import PiGNNClassifier
from softperm.nn.model import ModelConfig, build
from softperm.settings import TrainingConfig
from softperm.training import loop
from softperm.training.data import Examples, epoch_order
from softperm.training.loop import (
    OneModel,
    TrainingInterrupted,
    fit,
    interruptible,
    predict,
    stop_requests,
)
from softperm.training.tasks import Classification, MultiLabel

pytestmark = pytest.mark.usefixtures("shapes_unchecked")  # long trainings

COLLECTION = collect([random_graph(n, seed=n) for n in (3, 9, 5, 7, 4, 12, 6, 8, 2, 10, 11, 1)])
Y = torch.tensor([0, 1] * 6)
TRAIN = Examples(COLLECTION, Y, torch.arange(9))
HELD = Examples(COLLECTION, Y, torch.arange(9, 12))
SETTINGS = TrainingConfig(epochs=6, batch_size=4, learning_rate=1e-2)
TASK = Classification(2)


def network(encoder: str = "gin"):
    config = ModelConfig(2, latent_vertices=4, hidden=6, layers=2, encoder=encoder, dustbin=True)
    return build(config, seed=0)


def press_after(batches: int, monkeypatch, kind: signal.Signals = signal.SIGINT) -> None:
    """Ctrl-C, or another signal, in the given mini-batch of the process."""
    step, done = OneModel._train_step, []

    def pressing(self, part, mini_batches):
        done.append(None)
        if len(done) == batches:
            signal.raise_signal(kind)
        return step(self, part, mini_batches)

    monkeypatch.setattr(OneModel, "_train_step", pressing)


def save_always(monkeypatch) -> None:
    """Writes a checkpoint after every mini-batch."""
    monkeypatch.setattr(loop, "SAVE_EVERY_SECONDS", -1.0)
    monkeypatch.setattr(loop, "SAVING_SHARE", math.inf)


@pytest.fixture(scope="module")
def whole():
    model = network()
    return model, fit(model, TASK, TRAIN, SETTINGS, validation=HELD)


@pytest.mark.parametrize("batches", [1, 2, 3, 5, 9, 17])
def test_training_stopped_in_any_mini_batch_resumes_to_the_same_weights(
    batches, whole, tmp_path, monkeypatch
):
    """Three mini-batches an epoch: stops fall on the ends of epochs and between them."""
    place = tmp_path / "checkpoint"
    press_after(batches, monkeypatch)
    with pytest.raises(TrainingInterrupted) as caught:
        fit(network(), TASK, TRAIN, SETTINGS, validation=HELD, checkpoint=place)
    (stopped,) = caught.value.results
    assert stopped.interrupted
    assert len(stopped.curve) == batches // 3
    monkeypatch.undo()
    model, seen = network(), []
    result = fit(
        model, TASK, TRAIN, SETTINGS, validation=HELD, checkpoint=place, on_epoch=seen.append
    )
    same_weights(model, whole[0])
    assert not result.interrupted
    assert result.best_epoch == whole[1].best_epoch
    assert tuple(seen) == result.curve
    for ours, theirs in zip(result.curve, whole[1].curve, strict=True):
        assert (ours.number, ours.train_loss) == (theirs.number, theirs.train_loss)
        assert ours.validation_loss == theirs.validation_loss


def test_training_in_two_parts_equals_training_at_once(whole, tmp_path):
    short = replace(SETTINGS, epochs=2)
    for settings in (short, SETTINGS):
        model = network()
        fit(model, TASK, TRAIN, settings, validation=HELD, checkpoint=tmp_path / "checkpoint")
    same_weights(model, whole[0])


def test_a_finished_training_is_not_trained_again(whole, tmp_path, monkeypatch):
    place = tmp_path / "checkpoint"
    fit(network(), TASK, TRAIN, SETTINGS, validation=HELD, checkpoint=place)
    monkeypatch.setattr(OneModel, "train_epoch", None)
    model = network()
    fit(model, TASK, TRAIN, SETTINGS, validation=HELD, checkpoint=place)
    same_weights(model, whole[0])


def test_without_checkpoints_in_between_a_crash_loses_what_came_after_the_last(
    whole, tmp_path, monkeypatch
):
    """A crash, unlike Ctrl-C, writes nothing: the training goes on from the last checkpoint."""
    place = tmp_path / "checkpoint"
    save_always(monkeypatch)

    def crash(epoch):
        if epoch.number == 4:
            raise SystemError

    with pytest.raises(SystemError):
        fit(network(), TASK, TRAIN, SETTINGS, validation=HELD, checkpoint=place, on_epoch=crash)
    seen = []
    model = network()
    fit(model, TASK, TRAIN, SETTINGS, validation=HELD, checkpoint=place, on_epoch=seen.append)
    same_weights(model, whole[0])
    assert [epoch.number for epoch in seen] == [1, 2, 3, 4, 5, 6]


def test_another_fingerprint_is_refused(tmp_path):
    place = tmp_path / "checkpoint"
    fit(network(), TASK, TRAIN, SETTINGS, checkpoint=place, fingerprint="one")
    with pytest.raises(ValueError, match="other data or settings"):
        fit(network(), TASK, TRAIN, SETTINGS, checkpoint=place, fingerprint="two")


def test_the_order_of_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch_alone():
    index = torch.arange(5, 30)
    orders = [epoch_order(index, seed, epoch).tolist() for seed in (0, 1) for epoch in (1, 2)]
    assert all(sorted(order) == index.tolist() for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == epoch_order(index, 0, 1).tolist()
    assert sorted(epoch_order(index, 2**62, 3).tolist()) == index.tolist()


def test_training_depends_on_the_training_graphs_alone():
    """Nothing of the graphs outside ``train`` and ``validation`` reaches the network."""
    other = collect([random_graph(n, seed=n) for n in (3, 9, 5, 7, 4, 12, 6, 8, 2, 30, 3, 2)])
    y = torch.cat([Y[:9], 1 - Y[9:]])
    one, two = network(), network()
    fit(one, TASK, TRAIN, SETTINGS)
    fit(two, TASK, Examples(other, y, torch.arange(9)), SETTINGS)
    same_weights(one, two)


def test_the_loop_has_no_parameter_for_test_graphs():
    assert set(inspect.signature(fit).parameters) == {
        "model", "task", "train", "config", "validation", "device", "checkpoint",
        "fingerprint", "on_epoch", "interrupted",
    }  # fmt: skip
    given = set(inspect.signature(PiGNNClassifier.fit).parameters)
    assert given == {"self", "graphs", "y", "validation", "sample_weight", "callbacks"}


def test_the_network_is_left_in_evaluation_mode_and_predicting_keeps_its_mode(whole):
    model = whole[0]
    assert not model.training
    model.train()
    outputs = predict(model, COLLECTION, torch.tensor([4, 4, 0]), 2, torch.device("cpu"))
    assert model.training
    model.eval()
    assert outputs.shape == (3, 2)
    torch.testing.assert_close(outputs[0], outputs[1])
    assert not outputs.requires_grad


def test_a_loss_that_is_not_a_number_ends_training_with_the_remedy():
    settings = TrainingConfig(epochs=50, batch_size=4, learning_rate=1e25)
    with pytest.raises(
        FloatingPointError, match=r"loss became (nan|inf) in epoch \d+, step \d+: lower"
    ):
        fit(network("linear"), TASK, TRAIN, settings)


class Scripted(Classification):
    """A task whose scores are given beforehand."""

    def score(self, outputs, y):
        return SCORES.pop(0)


SCORES: list[float] = []


def test_the_best_epoch_is_the_first_of_equal_ones_and_patience_counts_from_it():
    SCORES[:] = [0.5, 0.7, 0.6, 0.7, 0.7, 0.9]
    settings = TrainingConfig(epochs=6, batch_size=4, criterion="score", patience=3)
    result = fit(network("linear"), Scripted(2), TRAIN, settings, validation=HELD)
    assert result.best_epoch == 2
    assert len(result.curve) == 5
    assert not result.interrupted


def test_late_score_keeps_the_last_of_equal_epochs_and_patience_counts_from_it():
    SCORES[:] = [0.5, 0.7, 0.6, 0.7, 0.6, 0.6, 0.6, 0.9]
    settings = TrainingConfig(epochs=8, batch_size=4, criterion="late-score", patience=3)
    result = fit(network("linear"), Scripted(2), TRAIN, settings, validation=HELD)
    assert result.best_epoch == 4
    assert len(result.curve) == 7


def test_an_epoch_whose_validation_loss_is_not_a_number_is_never_the_best(monkeypatch):
    losses = iter([float("nan"), 0.5, float("nan"), 0.4, float("nan"), 0.6])
    monkeypatch.setattr(OneModel, "_validate", lambda self: (next(losses), 0.5))
    result = fit(network("linear"), TASK, TRAIN, SETTINGS, validation=HELD)
    assert result.best_epoch == 4


def test_a_score_that_is_undefined_is_refused_as_criterion():
    y = torch.ones(12, 2)
    settings = TrainingConfig(epochs=2, criterion="score")
    train, held = (Examples(COLLECTION, y, part.index) for part in (TRAIN, HELD))
    with pytest.raises(ValueError, match="do not define a roc_auc"):
        fit(network("linear"), MultiLabel(2), train, settings, validation=held)


def test_the_first_interrupt_is_a_request_and_the_second_is_at_once():
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as pressed:
        assert not pressed()
        signal.raise_signal(signal.SIGINT)
        assert pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_signals_are_handled_only_where_there_is_a_checkpoint():
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(kind) for kind in kinds]
    with stop_requests(None):
        assert [signal.getsignal(kind) for kind in kinds] == before
    with stop_requests(Path("checkpoint")) as requested:
        signal.raise_signal(signal.SIGTERM)
        assert requested()
    assert [signal.getsignal(kind) for kind in kinds] == before


def test_without_a_checkpoint_ctrl_c_leaves_fit_at_once(monkeypatch):
    press_after(2, monkeypatch)
    seen = []
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(network(), TASK, TRAIN, SETTINGS, validation=HELD, on_epoch=seen.append)
    assert caught.type is KeyboardInterrupt
    assert seen == []


def test_an_interrupted_network_has_the_parameters_of_its_best_epoch(tmp_path, monkeypatch):
    short, stopped = network(), network()
    best = fit(short, TASK, TRAIN, replace(SETTINGS, epochs=3), validation=HELD)
    press_after(11, monkeypatch)  # in the fourth epoch
    with pytest.raises(TrainingInterrupted) as caught:
        fit(stopped, TASK, TRAIN, SETTINGS, validation=HELD, checkpoint=tmp_path / "checkpoint")
    (result,) = caught.value.results
    assert (result.best_epoch, len(result.curve)) == (best.best_epoch, 3)
    same_weights(stopped, short)


def test_ctrl_c_in_the_last_mini_batch_is_not_lost(tmp_path, monkeypatch):
    """The training is finished, but a search over many trainings must end."""
    press_after(18, monkeypatch)
    with pytest.raises(TrainingInterrupted) as caught:
        fit(network(), TASK, TRAIN, SETTINGS, validation=HELD, checkpoint=tmp_path / "checkpoint")
    assert not caught.value.results[0].interrupted


def test_a_caller_that_handles_signals_itself_can_stop_a_training(tmp_path):
    seen = []
    with pytest.raises(TrainingInterrupted):
        fit(network(), TASK, TRAIN, SETTINGS, checkpoint=tmp_path / "c", on_epoch=seen.append,
            interrupted=lambda: len(seen) == 2)  # fmt: skip
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(network(), TASK, TRAIN, SETTINGS, interrupted=lambda: True)
    assert caught.type is KeyboardInterrupt


def test_ctrl_c_ends_a_cross_validation(monkeypatch):
    graphs, y = rings_and_cliques(12)
    small = {"epochs": 3, "latent_vertices": 2, "hidden": 4, "validation_fraction": 0.0}
    classifier = PiGNNClassifier(**small)
    fits, step = [], OneModel._train_step

    def pressing(self, part, mini_batches):
        fits.append(id(self))
        signal.raise_signal(signal.SIGINT)
        return step(self, part, mini_batches)

    monkeypatch.setattr(OneModel, "_train_step", pressing)
    with pytest.raises(KeyboardInterrupt):
        cross_val_score(classifier, graphs, y, cv=3)
    assert len(fits) == 1


def test_a_training_that_keeps_nothing_ends_with_its_process():
    code = """
import os, signal
from samples import rings_and_cliques
from softperm import PiGNNClassifier
from softperm.training.loop import OneModel
end = OneModel._end_epoch
OneModel._end_epoch = lambda self: [end(self), os.kill(os.getpid(), signal.SIGTERM)]
PiGNNClassifier(epochs=3, latent_vertices=2, hidden=4).fit(*rings_and_cliques(8))
print("went on")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done.stderr


def test_training_works_outside_the_main_thread():
    results = []
    model = network("linear")
    thread = threading.Thread(target=lambda: results.append(fit(model, TASK, TRAIN, SETTINGS)))
    thread.start()
    thread.join()
    assert len(results[0].curve) == 6
