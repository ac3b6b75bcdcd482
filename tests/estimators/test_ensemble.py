"""An ensemble: networks trained as one stack, whose predictions are averaged."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from samples import FAST, rings_and_cliques

from softperm import PiGNNClassifier, PiGNNRegressor
from softperm.nn.model import MANY_GRAPHS
from softperm.nn.model_folder import FolderError, read_folder, write_folder
from softperm.training.loop import predict

GRAPHS, KIND = rings_and_cliques(12)
SIZES = np.array([float(len(graph)) for graph in GRAPHS])
ANSWERS = np.stack([KIND, 1 - KIND], axis=1).astype(float)
CASES = {
    "classes": (PiGNNClassifier, KIND),
    "answers": (PiGNNClassifier, ANSWERS),
    "numbers": (PiGNNRegressor, SIZES),
}


def predictions(estimator, network) -> np.ndarray:
    """Probabilities or numbers of one of its networks."""
    graphs = estimator._encode(GRAPHS)
    outputs = predict(network, graphs, torch.arange(12), 5, torch.device("cpu"))
    if isinstance(estimator, PiGNNRegressor):
        return estimator.decode(outputs)
    return estimator.probabilities(outputs)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_predictions_are_the_mean_of_the_networks(case, fraction, tmp_path):
    kind, y = CASES[case]
    made = kind(**{**FAST, "ensemble": 3, "validation_fraction": fraction}).fit(GRAPHS, y)
    assert len(made.models_) == 3
    each = [predictions(made, network) for network in made.models_]
    assert np.abs(each[0] - each[1]).max() > 1e-4  # of different seeds
    predict_one = made.predict if kind is PiGNNRegressor else made.predict_proba
    assert_allclose(predict_one(GRAPHS), np.mean(each, axis=0), rtol=1e-5)
    made.save(tmp_path / "model")
    back = kind.load(tmp_path / "model")
    assert (back.predict(GRAPHS) == made.predict(GRAPHS)).all()
    assert (back.transform(GRAPHS) == made.transform(GRAPHS)).all()
    assert back.score(GRAPHS, y) == made.score(GRAPHS, y)


def test_many_graphs_at_once_get_the_predictions_of_few():
    """The weights of the first layers are rearranged for many graphs only, in each network."""
    made = PiGNNClassifier(**FAST, ensemble=2).fit(GRAPHS, KIND)
    many = made.predict_proba(GRAPHS * (MANY_GRAPHS // 6))
    assert_allclose(many[: len(GRAPHS)], made.predict_proba(GRAPHS), rtol=0, atol=1e-5)


def test_the_first_network_is_the_one_that_is_trained_alone():
    """Except for rounding: a stack pads its mini-batches."""
    alone = PiGNNClassifier(**FAST).fit(GRAPHS, KIND)
    made = PiGNNClassifier(**FAST, ensemble=2).fit(GRAPHS, KIND)
    assert made.best_epoch_ == alone.best_epoch_
    losses = [[epoch.train_loss for epoch in each.curve_] for each in (made, alone)]
    assert_allclose(*losses, rtol=1e-4)
    assert_allclose(made.transform(GRAPHS), alone.transform(GRAPHS), rtol=1e-3, atol=1e-4)


def test_an_ensemble_resumes_from_its_checkpoint(tmp_path):
    whole = PiGNNClassifier(**{**FAST, "epochs": 6}, ensemble=2).fit(GRAPHS, KIND)
    file = tmp_path / "training"
    settings = {**FAST, "epochs": 6, "ensemble": 2, "checkpoint": file}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softperm.training.loop.Control.check", stop_after(3))
        part = PiGNNClassifier(**settings).fit(GRAPHS, KIND)
    assert part.interrupted_
    assert len(part.curve_) == 3
    with pytest.raises(ValueError, match="belongs to a training with other data or settings"):
        PiGNNClassifier(**{**settings, "ensemble": 3}).fit(GRAPHS, KIND)
    resumed = PiGNNClassifier(**settings).fit(GRAPHS, KIND)
    assert not resumed.interrupted_
    assert (resumed.predict_proba(GRAPHS) == whole.predict_proba(GRAPHS)).all()


def stop_after(epochs: int):
    """A ``Control.check`` that ends a training after some epochs, as its time limit does."""
    calls = []

    def check(self, losses=()):
        calls.append(None)
        self.stop = len(calls) > epochs
        return [float(loss) for loss in losses]

    return check


def test_a_folder_with_a_network_missing_is_refused(tmp_path):
    PiGNNClassifier(**FAST, ensemble=2).fit(GRAPHS, KIND).save(tmp_path / "model")
    config, tensors = read_folder(tmp_path / "model")
    fewer = {name: tensor for name, tensor in tensors.items() if not name.startswith("ensemble.")}
    write_folder(tmp_path / "model", config, fewer)
    with pytest.raises(FolderError, match="ensemble is 2, but the file holds 1 network"):
        PiGNNClassifier.load(tmp_path / "model")


def test_settings_of_one_network_alone_are_refused():
    with pytest.raises(ValueError, match="clip is not supported when models are trained in"):
        PiGNNClassifier(**FAST, ensemble=2, clip=1.0).fit(GRAPHS, KIND)
    settings = {**FAST, "validation_fraction": 0.0, "patience": 2}
    with pytest.raises(ValueError, match="patience needs validation graphs"):
        PiGNNClassifier(**settings, ensemble=2).fit(GRAPHS, KIND)
