"""Callbacks receive each epoch of a training, for one network and for several."""

import pytest
from samples import FAST, rings_and_cliques

from softperm import PiGNNClassifier
from softperm.training.loop import Epoch

GRAPHS, KIND = rings_and_cliques(12)


@pytest.mark.parametrize("ensemble", [1, 2])
def test_callbacks_see_the_curve_as_it_grows(ensemble):
    epochs, numbers = [], []
    settings = {**FAST, "epochs": 4, "ensemble": ensemble, "validation_fraction": 0.3}
    made = PiGNNClassifier(**settings)
    made.fit(GRAPHS, KIND, callbacks=[epochs.append, lambda epoch: numbers.append(epoch.number)])
    assert numbers == [1, 2, 3, 4]
    figures = ("number", "train_loss", "validation_loss", "validation_score")
    for ours, theirs in zip(epochs, made.curve_, strict=True):
        assert isinstance(ours, Epoch)
        assert [getattr(ours, f) for f in figures] == [getattr(theirs, f) for f in figures]


def test_an_error_of_a_callback_ends_the_training():
    def full(epoch: Epoch) -> None:
        raise OSError("the disk of the tracking server is full")

    with pytest.raises(OSError, match="tracking server is full"):
        PiGNNClassifier(**FAST).fit(GRAPHS, KIND, callbacks=[full])
