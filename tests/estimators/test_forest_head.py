"""The forest beside the network: mean of both, whole folders, renumbering, every task."""

import numpy as np
import pytest
from samples import renumber, rings_and_cliques
from torch.testing import assert_close

from softperm import PiGNN, PiGNNClassifier, PiGNNRegressor
from softperm.settings import training_config

QUICK = {"epochs": 3, "trees": 20, "latent_vertices": 4, "encoded_size": 8, "progress": False}
GRAPHS, KIND = rings_and_cliques(24)


@pytest.fixture(scope="module")
def fitted() -> PiGNNClassifier:
    return PiGNNClassifier(**QUICK).fit(GRAPHS, KIND)


def with_head(fitted: PiGNNClassifier, head: str) -> np.ndarray:
    """The probabilities of the same networks and forest with another head."""
    twin = PiGNNClassifier(**QUICK, head=head)
    twin.__dict__.update({k: v for k, v in vars(fitted).items() if k.endswith("_")})
    twin._labels = None
    if head == "mlp":
        twin.forest_ = None
    return twin.predict_proba(GRAPHS)


def test_predictions_are_the_mean_of_the_network_and_three_forests(fitted):
    network, forest = (with_head(fitted, head) for head in ("mlp", "forest"))
    assert np.abs(network - forest).max() > 0.01
    np.testing.assert_allclose(fitted.predict_proba(GRAPHS), (network + 3 * forest) / 4, atol=1e-5)
    assert len(fitted.forest_.shares) == 3


def test_validation_graphs_change_the_share_of_the_network(tmp_path):
    model = PiGNNClassifier(**QUICK, validation_fraction=0.5).fit(GRAPHS, KIND)
    assert 0 < model.forest_.network_share != 1 / 4
    model.save(tmp_path / "model")
    again = PiGNNClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(GRAPHS), model.predict_proba(GRAPHS))


def test_network_and_forest_share_one_alignment(fitted, monkeypatch):
    calls = []
    align = PiGNN._align
    monkeypatch.setattr(PiGNN, "_align", lambda *given: calls.append(1) or align(*given))
    fitted.predict(GRAPHS)
    batches = len(list(fitted._batches(fitted._encode(GRAPHS))))
    assert len(calls) == batches


def test_a_folder_keeps_the_forest(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    again = PiGNNClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(GRAPHS), fitted.predict_proba(GRAPHS))


def test_the_same_seed_grows_the_same_forest(fitted):
    again = PiGNNClassifier(**QUICK).fit(GRAPHS, KIND)
    assert_close(again.forest_.trees.tensors(), fitted.forest_.trees.tensors(), rtol=0, atol=0)


def test_predictions_do_not_depend_on_the_numbering_of_vertices(fitted):
    shuffled = [renumber(graph, [*graph][::-1]) for graph in GRAPHS]
    np.testing.assert_allclose(
        fitted.predict_proba(shuffled), fitted.predict_proba(GRAPHS), atol=1e-5
    )


def test_answers_and_numbers_have_forests_too(tmp_path):
    answers = np.stack([KIND, 1 - KIND], axis=1).astype(float)
    answers[3, 0] = np.nan
    multilabel = PiGNNClassifier(**QUICK, head="forest").fit(GRAPHS, answers)
    chances = multilabel.predict_proba(GRAPHS)
    assert chances.shape == answers.shape
    assert multilabel.score(GRAPHS, answers) == 1
    sizes = np.array([graph.number_of_nodes() for graph in GRAPHS], dtype=float) * 100
    regressor = PiGNNRegressor(**QUICK, head="forest").fit(GRAPHS, sizes)
    assert regressor.score(GRAPHS, sizes) > 0.8
    regressor.save(tmp_path / "model")
    again = PiGNNRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(GRAPHS), regressor.predict(GRAPHS))


@pytest.mark.parametrize(("graphs", "epochs"), [(10, 150), (640, 150), (6400, 40), (50_000, 30)])
def test_more_graphs_need_fewer_epochs(graphs, epochs):
    values = {**PiGNNClassifier().get_params(), "batch_size": 64}
    assert training_config(values, graphs).epochs == epochs
    assert training_config({**values, "epochs": 7}, graphs).epochs == 7
