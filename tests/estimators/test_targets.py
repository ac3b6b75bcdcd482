"""What ``y`` may be: classes of any kind, answers with gaps, numbers of any size with gaps."""

import re

import networkx as nx
import numpy as np
import pytest
import torch
from samples import FAST, labelled_path, rings_and_cliques, two_kinds
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import r2_score

from softperm import PiGNNClassifier, PiGNNRegressor
from softperm.data.graphs import as_graphs

DRAWN, KIND = rings_and_cliques(12)
GRAPHS = as_graphs(DRAWN)
SIZES = np.array([float(graph.num_nodes) for graph in GRAPHS])
LEARNS = {**FAST, "epochs": 40, "learning_rate": 1e-2, "batch_size": 64, "validation_fraction": 0.0}

CLASSES = {
    "strings": np.where(KIND, "clique", "ring"),
    "a list of strings": ["clique" if kind else "ring" for kind in KIND],
    "objects": np.where(KIND, "clique", "ring").astype(object),
    "booleans": KIND.astype(bool),
    "integers": np.where(KIND, -5, 2**40),
    "floats": np.where(KIND, 0.0, 3.0),
    "a tensor": torch.from_numpy(KIND),
    "one column": KIND[:, None],
}


def test_a_generator_of_graphs_is_scored_as_a_list_is():
    answers = np.stack([KIND, 1 - KIND], axis=1)
    for made in (
        PiGNNRegressor(**FAST).fit(GRAPHS, SIZES),
        PiGNNClassifier(**FAST).fit(GRAPHS, answers),
    ):
        y = SIZES if isinstance(made, PiGNNRegressor) else answers
        assert made.score((graph for graph in GRAPHS), y) == made.score(GRAPHS, y)


@pytest.fixture(scope="module")
def codes() -> np.ndarray:
    return PiGNNClassifier(**FAST).fit(GRAPHS, KIND).predict_proba(GRAPHS)


@pytest.mark.parametrize("kind", CLASSES)
def test_classes_may_be_of_any_type_and_come_back_as_they_were(kind, codes):
    flat = np.asarray(CLASSES[kind]).ravel()
    made = PiGNNClassifier(**FAST).fit(GRAPHS, CLASSES[kind])
    assert made.classes_.tolist() == sorted(set(flat.tolist()))
    predicted, chances = made.predict(GRAPHS), made.predict_proba(GRAPHS)
    assert predicted.shape == (12,)
    assert predicted.dtype == flat.dtype
    np.testing.assert_allclose(chances.sum(1), 1, rtol=1e-12)
    assert (predicted == made.classes_[chances.argmax(1)]).all()
    assert made.score(GRAPHS, flat) == (predicted == flat).mean()
    if flat[1] > flat[0]:  # the clique is the second class, as in the codes: the same training
        assert (chances == codes).all()


BAD_CLASSES = {
    "NaN": ([0.0, np.nan] * 6, "graph 1: it has no class (y is nan)"),
    "None": (["a", None] * 6, "graph 1: it has no class (y is None)"),
    "mixed": (np.array(["a", 1] * 6, dtype=object), "y mixes strings with numbers"),
    "bytes": (np.array([b"a", b"b"] * 6), "graph 0: its class is of type bytes"),
    "measurements": ([0.5, 1.5] * 6, "graph 0: its class is 0.5, which is not a whole number"),
    "NUL": (
        np.array(["a", "a\0"] * 6, dtype=object),
        "graph 1: its class 'a\\x00' has the character",
    ),
    "one": (["cat"] * 12, "y has only one class, 'cat'"),
}


@pytest.mark.parametrize("case", BAD_CLASSES)
def test_classes_that_cannot_be_told_apart_are_refused(case):
    y, message = BAD_CLASSES[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        PiGNNClassifier(**FAST).fit(GRAPHS, y)


def test_missing_targets_of_pandas_are_missing():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="graph 1: it has no class"):
        PiGNNClassifier(**FAST).fit(GRAPHS, pandas.array(["a", pandas.NA] * 6, "string"))
    gaps = np.where(KIND, np.nan, SIZES)
    numbers = pandas.Series([pandas.NA if kind else n for kind, n in zip(KIND, SIZES, strict=True)])
    plain = {**FAST, "validation_fraction": 0.0}
    made = [PiGNNRegressor(**plain).fit(GRAPHS, y).predict(GRAPHS) for y in (gaps, numbers)]
    np.testing.assert_array_equal(*made)


def test_a_class_of_validation_that_training_lacks_is_named():
    held = (GRAPHS[:2], ["ring", "star"])
    with pytest.raises(ValueError, match="validation: class 'star' is not among those of training"):
        PiGNNClassifier(**FAST).fit(GRAPHS, CLASSES["strings"], validation=held)


def test_many_classes_of_few_graphs_each():
    made = PiGNNClassifier(**{**FAST, "validation_fraction": 0}).fit(GRAPHS, np.arange(12) // 2)
    assert made.predict_proba(GRAPHS).shape == (12, 6)


def test_answers_with_gaps_are_learnt_question_by_question():
    y = np.stack([KIND, 1 - KIND, SIZES > 7], axis=1).astype(float)
    y[::3, 0] = np.nan
    y[5, :] = np.nan
    made = PiGNNClassifier(**LEARNS).fit(GRAPHS, y)
    chances = made.predict_proba(GRAPHS)
    assert chances.shape == (12, 3)
    assert (chances >= 0).all()
    assert (chances <= 1).all()
    predicted = made.predict(GRAPHS)
    assert set(np.unique(predicted)) <= {0, 1}
    assert (predicted == (chances > 0.5)).all()
    assert (predicted[:, 0] == KIND).mean() > 0.8
    assert (predicted[:, 1] == 1 - KIND).mean() > 0.8
    assert made.score(GRAPHS, y) > 0.8  # ROC-AUC


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full((12, 2), 2.0), "a matrix y must hold 1, 0 or NaN; got 2"),
        (np.full((12, 2), "yes"), "a matrix y must hold 1, 0 or NaN; got <U3 values"),
        (np.empty((12, 0)), "y has no columns"),
    ],
)
def test_a_matrix_of_other_than_answers_is_refused(y, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        PiGNNClassifier(**FAST).fit(GRAPHS, y)


def test_answers_of_another_shape_are_refused():
    made = PiGNNClassifier(**FAST).fit(GRAPHS, np.stack([KIND, KIND], axis=1))
    with pytest.raises(ValueError, match=re.escape("y must have shape (12, 2); got (12, 3)")):
        made.score(GRAPHS, np.zeros((12, 3)))


def test_targets_of_any_magnitude_are_learnt_alike():
    """Standardised inside: units change nothing but the units of the predictions."""
    plain = PiGNNRegressor(**LEARNS).fit(GRAPHS, SIZES)
    huge = PiGNNRegressor(**LEARNS).fit(GRAPHS, 1e6 * SIZES + 3e7)
    assert plain.score(GRAPHS, SIZES) > 0.5
    np.testing.assert_allclose(
        huge.predict(GRAPHS), 1e6 * plain.predict(GRAPHS) + 3e7, rtol=1e-3, atol=1e4
    )
    assert plain.predict(GRAPHS).shape == (12,)


@pytest.mark.parametrize("head", ["mlp", "forest", "mlp+forest"])
def test_a_target_that_never_varies_is_predicted_exactly(head, tmp_path):
    settings = {**FAST, "head": head, "trees": 5}
    made = PiGNNRegressor(**settings).fit(GRAPHS, np.full(12, 3.25))
    assert (made.predict(GRAPHS) == 3.25).all()
    made.save(tmp_path)
    assert (PiGNNRegressor.load(tmp_path).predict(GRAPHS) == 3.25).all()
    made = PiGNNRegressor(**settings).fit(GRAPHS, np.stack([SIZES, np.full(12, 3.25)], axis=1))
    predicted = made.predict(GRAPHS)
    assert (predicted[:, 1] == 3.25).all()
    assert predicted[:, 0].std() > 0
    if head == "mlp":  # an output that nothing changes has no contributions
        assert not made.explain(GRAPHS[:1])[0].vertices[:, 1].any()


def test_several_targets_with_gaps_are_learnt_column_by_column():
    edges = np.array([float(graph.number_of_edges()) for graph in DRAWN])
    y = np.stack([SIZES, 1000 * edges], axis=1)
    gaps = y.copy()
    gaps[::4, 0] = np.nan
    gaps[1::4, 1] = np.nan
    made = PiGNNRegressor(**LEARNS).fit(GRAPHS, gaps)
    predicted = made.predict(GRAPHS)
    assert predicted.shape == (12, 2)
    assert r2_score(y, predicted) > 0.5
    known = [~np.isnan(column) for column in gaps.T]
    expected = np.mean(
        [r2_score(y[k, t], predicted[k, t]) for t, k in enumerate(known)]
    )  # over the known
    assert made.score(GRAPHS, gaps) == pytest.approx(expected)


def test_one_column_stays_a_column():
    made = PiGNNRegressor(**FAST).fit(GRAPHS, SIZES[:, None])
    assert made.predict(GRAPHS).shape == (12, 1)
    with pytest.raises(ValueError, match=re.escape("y must have shape (12, 1) as in training")):
        made.score(GRAPHS, SIZES)


def test_weights_of_samples_count_in_the_score():
    made = PiGNNRegressor(**FAST).fit(GRAPHS, SIZES)
    weight = np.linspace(0, 1, 12)
    expected = r2_score(SIZES, made.predict(GRAPHS), sample_weight=weight)
    assert made.score(GRAPHS, SIZES, sample_weight=weight) == pytest.approx(expected)


def test_the_score_of_one_number_is_undefined_and_says_so():
    made = PiGNNRegressor(**FAST).fit(GRAPHS, SIZES)
    with pytest.warns(UndefinedMetricWarning, match="fewer than two graphs"):
        assert np.isnan(made.score(GRAPHS[:1], SIZES[:1]))


def test_targets_may_be_as_large_as_numbers_are():
    made = PiGNNRegressor(**FAST).fit(GRAPHS, SIZES * 1e300)
    plain = PiGNNRegressor(**FAST).fit(GRAPHS, np.asarray(SIZES, dtype=np.float64))
    np.testing.assert_allclose(made.predict(GRAPHS) / 1e300, plain.predict(GRAPHS), rtol=1e-4)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_targets_may_be_tensors_of_any_kind(kind):
    y = torch.tensor(np.asarray(SIZES), dtype=kind, requires_grad=True)
    made = PiGNNRegressor(**FAST).fit(GRAPHS, y)
    plain = PiGNNRegressor(**FAST).fit(GRAPHS, y.detach().double().numpy())
    np.testing.assert_array_equal(made.predict(GRAPHS), plain.predict(GRAPHS))


BAD_NUMBERS = {
    "words": (["a"] * 12, "y must be numbers to regress; got <U1 values"),
    "infinite": ([*SIZES[:-1], np.inf], "graph 11: its target is infinite"),
    "all missing": (
        np.stack([SIZES, np.full(12, np.nan)], axis=1),
        "target 1 is missing (NaN) for every training graph",
    ),
}


@pytest.mark.parametrize("case", BAD_NUMBERS)
def test_numbers_that_cannot_be_learnt_are_refused(case):
    y, message = BAD_NUMBERS[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        PiGNNRegressor(**FAST).fit(GRAPHS, y)


def test_validation_targets_of_another_shape_are_refused():
    held = (GRAPHS[:2], np.zeros((2, 3)))
    with pytest.raises(ValueError, match=re.escape("validation: y must have shape (2,)")):
        PiGNNRegressor(**FAST).fit(GRAPHS, SIZES, validation=held)


def test_a_classifier_of_graphs_with_nothing_but_size_still_gives_probabilities():
    graphs, y = two_kinds(12)
    empty = [nx.empty_graph(len(graph)) for graph in graphs]
    chances = PiGNNClassifier(**FAST).fit(empty, y).predict_proba(empty)
    np.testing.assert_allclose(chances.sum(1), 1, rtol=1e-12)


def test_a_linear_fit_of_a_constant_target_predicts_it():
    y = np.stack([np.full(len(GRAPHS), 3.5), np.zeros(len(GRAPHS)), SIZES**1.5], axis=1)
    predicted = PiGNNRegressor(**{**FAST, "linear_fit": True}).fit(GRAPHS, y).predict(GRAPHS)
    np.testing.assert_allclose(predicted[:, :2], y[:, :2], rtol=1e-10, atol=1e-10)
    assert np.isfinite(predicted).all()


def test_a_linear_fit_is_subtracted_before_training_and_added_to_predictions(tmp_path):
    """Energies of molecules are close to sums over atoms; the network learns what is left."""
    rng = np.random.default_rng(0)
    own = ["".join(rng.choice(list("abc"), rng.integers(2, 9))) for _ in range(40)]
    graphs = [labelled_path(word) for word in own]
    y = np.array([-400.0 * len(word) + 90 * word.count("a") for word in own])
    fitted = PiGNNRegressor(**FAST, linear_fit=True).fit(graphs, y)
    np.testing.assert_allclose(fitted.predict(graphs), y, atol=0.1)
    unseen = fitted.predict([labelled_path("aac")])  # its counts decide, as in training
    np.testing.assert_allclose(unseen, -400 * 3 + 180, atol=0.1)
    fitted.save(tmp_path)
    loaded = PiGNNRegressor.load(tmp_path)
    np.testing.assert_array_equal(loaded.predict(graphs), fitted.predict(graphs))
    assert "without the linear fit" in next(iter(loaded.explain(graphs[:1]))).explains
    fitted.set_params(linear_fit=False).fit(graphs, y)
    assert fitted.linear_fit_ is None


@pytest.mark.parametrize("y", [np.full(12, 3.0), np.zeros(12), -1e9 + 1e-3 * SIZES], ids=str)
def test_a_linear_fit_of_constant_or_far_targets_is_exact(y):
    fitted = PiGNNRegressor(**FAST, linear_fit=True).fit(GRAPHS, y)
    np.testing.assert_allclose(fitted.predict(GRAPHS), y, rtol=1e-11, atol=1e-300)


def test_classes_have_no_linear_fit():
    with pytest.raises(ValueError, match="linear_fit is for regressions"):
        PiGNNClassifier(**LEARNS, linear_fit=True).fit(GRAPHS, KIND)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ("ring" * 3, "y is of type str; expected a list or array"),
        ({0: 1}, "y is of type dict; expected a list or array"),
        ([[1, 0], [1]] * 6, "the rows of y have several lengths"),
    ],
)
def test_what_is_no_list_of_targets_is_refused(y, words):
    for made in (PiGNNClassifier(**FAST), PiGNNRegressor(**FAST)):
        with pytest.raises(ValueError, match=words):
            made.fit(GRAPHS, y)


def test_a_generator_of_targets_is_a_list(codes):
    made = PiGNNClassifier(**FAST).fit(GRAPHS, (int(kind) for kind in KIND))
    assert (made.predict_proba(GRAPHS) == codes).all()
