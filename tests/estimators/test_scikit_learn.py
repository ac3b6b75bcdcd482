"""scikit-learn's own checks of estimators, and its tools that index ``X`` with arrays.

The checks make matrices of numbers. Behind an adapter that reads each row as a path whose vertices
carry the row's numbers, they hold our estimators to scikit-learn's contract.
"""

import networkx as nx
import numpy as np
import pytest
from samples import FAST, rings_and_cliques
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.inspection import permutation_importance
from sklearn.model_selection import learning_curve
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import validate_data

from softperm import PiGNNClassifier, PiGNNRegressor
from softperm.data.graphs import graph_array

pytestmark = pytest.mark.filterwarnings(
    "ignore:too few graphs to hold out",
    "ignore:Estimator's parameters changed after set_params",
    "ignore:x of the vertices holds",  # a hint about whole numbers
)
SMALL = {
    **FAST, "epochs": 1, "latent_vertices": 2, "hidden": 2, "head_hidden": (2,), "iterations": 3,
    "batch_size": 512, "validation_fraction": 0.0,
}  # fmt: skip


class _Rows:
    """Reads each row of a matrix as a path of vertices with the row's numbers as attributes."""

    def fit(self, X, y, sample_weight=None):
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=isinstance(self, OfNumbers))
        super().fit(_paths(X), y, sample_weight=sample_weight)
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X):
        return super().predict(self._graphs(X))

    def transform(self, X):
        return super().transform(self._graphs(X))

    def score(self, X, y, sample_weight=None):
        return super().score(self._graphs(X), y, sample_weight)

    def _graphs(self, X):
        if isinstance(X, list) and X and isinstance(X[0], nx.Graph):
            return X  # in a call of a method by another
        self._check_fitted()
        return _paths(validate_data(self, X, reset=False))


class OfClasses(_Rows, PiGNNClassifier):
    def predict_proba(self, X):
        return super().predict_proba(self._graphs(X))


class OfNumbers(_Rows, PiGNNRegressor):
    pass


def _paths(X: np.ndarray) -> list[nx.Graph]:
    graphs = []
    for row in X.tolist():
        graph = nx.path_graph(len(row))
        nx.set_node_attributes(graph, dict(enumerate(row)), "x")
        graphs.append(graph)
    return graphs


LEARNING = "one epoch of a network of two units learns nothing; see test_contract"
NOT_MET = {
    "check_classifiers_train": LEARNING,
    "check_regressors_train": LEARNING,
    "check_class_weight_classifiers": LEARNING,
    "check_all_zero_sample_weights_error": "refused in other words; see test_weights",
    "check_classifiers_regression_target": "refused in other words; see test_targets",
    "check_transformer_preserve_dtypes": "networks compute in 32 bits",
    "check_supervised_y_2d": "a column of targets stays a column, as in multi-output regression",
}  # fmt: skip
"""The checks that do not make sense for networks on graphs, with the reason."""


@parametrize_with_checks(
    [OfClasses(**SMALL), OfNumbers(**SMALL)],
    expected_failed_checks=lambda estimator: NOT_MET,
    xfail_strict=True,
)
def test_scikit_learn_s_checks(estimator, check):
    check(estimator)


GRAPHS, KIND = rings_and_cliques(16)
LEARNS = {**FAST, "epochs": 25, "learning_rate": 1e-2, "batch_size": 64, "validation_fraction": 0.0}


def test_tools_that_index_arrays_take_a_graph_array():
    array, names = graph_array(GRAPHS), np.where(KIND, "clique", "ring")
    bag = BaggingClassifier(PiGNNClassifier(**LEARNS), n_estimators=2, random_state=0)
    assert bag.fit(array, names).score(array, names) > 0.8
    made = PiGNNClassifier(**LEARNS).fit(array, names)
    assert (made.predict(array) == made.predict(GRAPHS)).all()
    importance = permutation_importance(made, array, names, n_repeats=3, random_state=0)
    assert importance.importances.shape == (1, 3)
    assert importance.importances_mean[0] > 0.2  # with graphs exchanged, predictions are wrong
    vote = VotingClassifier([("a", made), ("b", PiGNNClassifier(**LEARNS, seed=1))], voting="soft")
    assert vote.fit(array, names).score(array, names) > 0.8
    sizes, _, scores = learning_curve(
        PiGNNClassifier(**{**FAST, "validation_fraction": 0.0}), array, names,
        train_sizes=[0.5, 1.0], cv=2,
    )  # fmt: skip
    assert sizes.tolist() == [4, 8]
    assert np.isfinite(scores).all()
