"""scikit-learn's contract, held by both estimators wherever lists of graphs allow it."""

import copy
import pickle

import numpy as np
import pytest
import torch
from samples import FAST, labelled_path, plain_graph, rings_and_cliques, same_weights, two_kinds
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC
from sklearn.utils.validation import check_is_fitted

from softperm import PiGNNClassifier, PiGNNRegressor
from softperm.data.graphs import as_graphs

DRAWN, Y = two_kinds(12)
GRAPHS = as_graphs(DRAWN)
BOTH = pytest.mark.parametrize("kind", [PiGNNClassifier, PiGNNRegressor])
RINGS, KIND = rings_and_cliques(16)
EASY = as_graphs(RINGS)
LEARNS = {**FAST, "epochs": 25, "learning_rate": 1e-2, "batch_size": 64, "validation_fraction": 0.0}


@BOTH
def test_settings_survive_get_set_and_clone(kind):
    settings = {**FAST, "encoder": "gin", "capacity": None, "patience": 3, "seed": 7}
    made = kind(**settings)
    assert made.get_params() == kind().get_params() | settings
    assert kind().set_params(**settings).get_params() == made.get_params()
    twin = clone(made.fit(GRAPHS, Y))
    assert twin.get_params() == made.get_params()
    assert not hasattr(twin, "model_")


@BOTH
def test_fitting_changes_no_setting_and_returns_the_estimator(kind):
    made = kind(**FAST)
    before = made.get_params()
    assert made.fit(GRAPHS, Y) is made
    assert made.get_params() == before


@BOTH
def test_an_unknown_setting_is_an_error(kind):
    with pytest.raises(ValueError, match="Invalid parameter 'depth'"):
        kind().set_params(depth=3)


@BOTH
def test_nothing_works_before_fit(kind, tmp_path):
    made = kind(**FAST)
    calls = [
        lambda: made.predict(GRAPHS),
        lambda: made.score(GRAPHS, Y),
        lambda: made.transform(GRAPHS),
        lambda: made.permutations(GRAPHS),
        lambda: made.get_feature_names_out(),
        lambda: made.save(tmp_path / "model"),
    ]
    if kind is PiGNNClassifier:
        calls.append(lambda: made.predict_proba(GRAPHS))
    for call in calls:
        with pytest.raises(NotFittedError, match="is not fitted yet: call fit first"):
            call()
    with pytest.raises(NotFittedError):
        check_is_fitted(made)
    assert not (tmp_path / "model").exists()
    check_is_fitted(made.fit(GRAPHS, Y))


def test_scikit_learn_knows_which_is_which():
    assert is_classifier(PiGNNClassifier())
    assert is_regressor(PiGNNRegressor())


def test_a_grid_search_finds_the_setting_that_learns():
    grid = {"learning_rate": [1e-9, 1e-2]}
    search = GridSearchCV(PiGNNClassifier(**LEARNS), grid, cv=2).fit(EASY, KIND)
    assert search.best_params_ == {"learning_rate": 1e-2}
    assert search.best_score_ > 0.8
    assert (search.predict(EASY) == KIND).mean() > 0.8


def test_cross_validation_scores_every_fold():
    scores = cross_val_score(PiGNNClassifier(**LEARNS), EASY, KIND, cv=2)
    assert scores.shape == (2,)
    assert scores.mean() > 0.8
    sizes = np.array([float(graph.num_nodes) for graph in EASY])
    guesses = cross_val_predict(PiGNNRegressor(**FAST), EASY, sizes, cv=2)
    assert guesses.shape == (16,)
    assert np.isfinite(guesses).all()


def test_a_pipeline_learns_from_aligned_vectors():
    pipeline = Pipeline([("align", PiGNNClassifier(**FAST)), ("svm", SVC(C=1000))])
    names = np.where(KIND, "clique", "ring")
    pipeline.fit(EASY, names)
    assert pipeline.score(EASY, names) == 1
    pipeline.set_params(align__latent_vertices=3).fit(EASY, names)
    assert pipeline[0].transform(EASY).shape == (16, 9)


@BOTH
def test_same_seed_same_numbers_and_the_global_generators_are_left_alone(kind):
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    runs = [kind(**FAST, seed=3).fit(GRAPHS, Y) for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    same_weights(runs[0].model_, runs[1].model_)
    for method in ("predict", "transform"):
        ours, theirs = (getattr(run, method)(GRAPHS) for run in runs)
        assert (ours == theirs).all()
    other = kind(**FAST, seed=4).fit(GRAPHS, Y)
    assert (other.transform(GRAPHS) != runs[0].transform(GRAPHS)).any()


def test_refitting_forgets_the_first_data():
    words = [labelled_path(w) for w in ("ab", "ba", "abab", "aab", "bb", "aa") * 2]
    made = PiGNNClassifier(**FAST).fit(words, ["x", "y"] * 6)
    made.fit([*GRAPHS, *GRAPHS], np.array([7, 8, 9] * 8))
    fresh = PiGNNClassifier(**FAST).fit([*GRAPHS, *GRAPHS], np.array([7, 8, 9] * 8))
    assert made.classes_.tolist() == [7, 8, 9]
    assert made.vocabulary_.labels == ()
    same_weights(made.model_, fresh.model_)
    assert made.curve_[-1].validation_loss == fresh.curve_[-1].validation_loss


def test_a_fit_that_fails_leaves_nothing_of_the_fit_before():
    made = PiGNNClassifier(**FAST).fit(GRAPHS, Y)
    with pytest.raises(ValueError, match="only one class"):
        made.fit(GRAPHS, ["a"] * 12)
    with pytest.raises(NotFittedError):
        made.predict(GRAPHS)


@BOTH
def test_a_fitted_estimator_can_be_copied_and_sent_to_another_process(kind):
    made = kind(**FAST).fit(GRAPHS, Y)
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert (twin.predict(GRAPHS) == made.predict(GRAPHS)).all()


@pytest.mark.parametrize("carried", ["nothing", "x", "x and edge x"])
def test_vectors_have_a_name_for_every_entry(carried):
    pandas = pytest.importorskip("pandas")
    graphs = [carrying(carried, 5 + i, i) for i in range(12)]
    made = PiGNNClassifier(**FAST).fit(graphs, [0, 1] * 6)
    p, f, bonds = 4, 3 * ("x" in carried), 2 * ("edge" in carried)
    length = p * p + p * f + p * p * bonds
    assert made.transform(graphs).shape == (12, length)
    names = made.get_feature_names_out()
    assert len(set(names)) == length
    table = made.set_output(transform="pandas").transform(graphs)
    assert isinstance(table, pandas.DataFrame)
    assert table.columns.tolist() == names.tolist()


def carrying(carried: str, n: int, seed: int):
    """A random graph with vertex and edge attributes, if asked."""
    graph = plain_graph(n, seed, 0.6)
    rng = np.random.default_rng(seed)
    if "x" in carried:
        for v in graph:
            graph.nodes[v]["x"] = rng.normal(size=3)
    if "edge" in carried:
        for e in graph.edges:
            graph.edges[e]["x"] = rng.normal(size=2)
    return graph


def test_the_names_of_entries_follow_their_order():
    graph = carrying("x and edge x", 6, 0)
    made = PiGNNClassifier(**FAST).fit([graph, carrying("x and edge x", 5, 1)] * 6, [0, 1] * 6)
    (d,) = made.permutations([graph])
    x = np.stack([graph.nodes[v]["x"] for v in graph])
    a, channel = np.zeros((6, 6)), np.zeros((6, 6))
    for u, v in graph.edges:
        a[u, v] = a[v, u] = 1
        channel[u, v] = channel[v, u] = graph.edges[u, v]["x"][1]
    vector = dict(zip(made.get_feature_names_out(), made.transform([graph])[0], strict=True))
    np.testing.assert_allclose(vector["adjacency_1_3"], (d.T @ a @ d)[1, 3], atol=1e-5)
    np.testing.assert_allclose(vector["attribute_2_1"], (d.T @ x)[2, 1], atol=1e-5)
    np.testing.assert_allclose(vector["edge_attribute_3_2_1"], (d.T @ channel @ d)[3, 2], atol=1e-5)


def test_numbers_of_numpy_are_settings_too(tmp_path):
    settings = {
        **FAST,
        "latent_vertices": np.int64(3),
        "epochs": np.int64(2),
        "batch_size": np.int64(8),
        "capacity": np.int32(20),
        "learning_rate": np.float64(1e-2),
        "dustbin": np.bool_(True),
        "seed": np.int64(2**62),
        "device": torch.device("cpu"),
    }
    made = PiGNNClassifier().set_params(**settings).fit(GRAPHS, Y)
    made.save(tmp_path)
    assert PiGNNClassifier.load(tmp_path).predict(GRAPHS).tolist() == made.predict(GRAPHS).tolist()
