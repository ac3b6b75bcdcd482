"""``class_weight`` and ``sample_weight``, as scikit-learn spells them."""

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose

from softperm import PiGNNClassifier, PiGNNRegressor

GRAPHS = [nx.path_graph(n) for n in range(3, 9)] + [nx.cycle_graph(n) for n in range(3, 9)]
CLASSES = np.array(["path"] * 6 + ["ring"] * 6)
QUICK = {
    "epochs": 2,
    "batch_size": 100,
    "latent_vertices": 4,
    "hidden": 8,
    "head": "mlp",
    "device": "cpu",
    "progress": False,
}


def test_weights_of_classes_are_weights_of_their_graphs(tmp_path):
    by_class = PiGNNClassifier(**QUICK, class_weight={"ring": 3.0}).fit(GRAPHS, CLASSES)
    weights = np.where(CLASSES == "ring", 3.0, 1.0)
    by_graph = PiGNNClassifier(**QUICK).fit(GRAPHS, CLASSES, sample_weight=weights)
    equal = PiGNNClassifier(**QUICK).fit(GRAPHS, CLASSES)
    assert_allclose(by_class.predict_proba(GRAPHS), by_graph.predict_proba(GRAPHS), rtol=1e-6)
    assert np.abs(by_class.predict_proba(GRAPHS) - equal.predict_proba(GRAPHS)).max() > 1e-4
    by_class.save(tmp_path / "model")
    loaded = PiGNNClassifier.load(tmp_path / "model")
    assert loaded.class_weight == {"ring": 3.0}
    assert_allclose(loaded.predict_proba(GRAPHS), by_class.predict_proba(GRAPHS))


def test_balanced_weights_of_balanced_classes_change_nothing():
    equal = PiGNNClassifier(**QUICK).fit(GRAPHS, CLASSES)
    balanced = PiGNNClassifier(**QUICK, class_weight="balanced").fit(GRAPHS, CLASSES)
    assert_allclose(balanced.predict_proba(GRAPHS), equal.predict_proba(GRAPHS), rtol=1e-5)


def test_a_class_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="class_weight has class 'star', which is not in y"):
        PiGNNClassifier(**QUICK, class_weight={"star": 2.0}).fit(GRAPHS, CLASSES)
    with pytest.raises(ValueError, match="class_weight is for graphs of one class each"):
        PiGNNRegressor(**QUICK, class_weight="balanced").fit(GRAPHS, np.arange(12.0))


def test_weights_of_classes_that_are_all_zero_are_refused():
    with pytest.raises(ValueError, match="every class_weight is 0"):
        PiGNNClassifier(**QUICK, class_weight={"path": 0, "ring": 0}).fit(GRAPHS, CLASSES)


@pytest.mark.parametrize("unit", [2.0**900, 2.0**-900])
def test_only_ratios_of_weights_matter_whatever_their_size(unit):
    weights = np.arange(12.0)
    usual, scaled = (
        PiGNNClassifier(**QUICK).fit(GRAPHS, CLASSES, sample_weight=weights * factor)
        for factor in (1.0, unit)
    )
    assert_allclose(scaled.predict_proba(GRAPHS), usual.predict_proba(GRAPHS), rtol=1e-5)


def test_a_heavy_graph_moves_a_regression_and_validation_graphs_weigh_one():
    y = np.arange(12.0)
    weights = np.where(y == 11, 50.0, 1.0)
    heavy = PiGNNRegressor(**QUICK).fit(GRAPHS, y, sample_weight=weights)
    assert heavy.task_.mean == pytest.approx((np.average(y, weights=weights),))
    held = (GRAPHS[:2], y[:2])
    trained = PiGNNRegressor(**QUICK).fit(GRAPHS, y, validation=held, sample_weight=weights)
    plain = PiGNNRegressor(**QUICK).fit(GRAPHS, y, validation=held, sample_weight=np.ones(12))
    assert trained.curve_[0].validation_loss != plain.curve_[0].validation_loss


def test_weights_may_be_a_series_of_pandas():
    pandas = pytest.importorskip("pandas")
    weights = np.arange(12.0)
    usual, series = (
        PiGNNClassifier(**QUICK).fit(GRAPHS, CLASSES, sample_weight=each)
        for each in (weights, pandas.Series(weights, index=range(20, 32)))  # warnings are errors
    )
    assert (series.predict_proba(GRAPHS) == usual.predict_proba(GRAPHS)).all()
