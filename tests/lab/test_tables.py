"""Means, errors and tests from records."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from softperm.lab.records import Circumstances, Record, Run
from softperm.lab.tables import cells_of, paired_tests

HERE = Circumstances(seconds=2.0, stacked=1, memory=10**9, device="a CPU")


def record(fold: int, seed: int, score: float | None, model: str = "pi-gnn", **changes) -> Record:
    run = Run("MUTAG", model, "final", fold, 10, {"hidden": 32}, seed)
    made = Record(run, "f", "accuracy", True, 0.5, 0.9, score, 3, {}, HERE)
    return replace(made, **changes)


def table(scores: np.ndarray, model: str = "pi-gnn") -> list[Record]:
    return [
        record(fold, seed, float(score), model)
        for fold, row in enumerate(scores)
        for seed, score in enumerate(row)
    ]


SCORES = np.random.default_rng(0).uniform(0.6, 0.9, size=(10, 3))
OTHER = np.random.default_rng(1).uniform(0.5, 0.8, size=(10, 3))


def test_deviation_is_over_folds_of_the_means_of_runs():
    (cell,) = cells_of(table(SCORES))
    np.testing.assert_allclose(cell.mean, SCORES.mean())
    np.testing.assert_allclose(cell.std, SCORES.mean(1).std())
    np.testing.assert_allclose(cell.error, SCORES.mean(1).std() / math.sqrt(10))
    assert (cell.folds, cell.runs, cell.seconds) == (10, 3, 60.0)


def test_one_split_has_its_deviation_over_runs():
    records = [replace(r, run=replace(r.run, fold=0, folds=1)) for r in table(SCORES[:1])]
    (cell,) = cells_of(records)
    np.testing.assert_allclose(cell.std, SCORES[0].std())


def test_time_of_the_selection_counts():
    tried = record(0, 0, None)
    tried = replace(tried, run=replace(tried.run, stage="selection"))
    (cell,) = cells_of([*table(SCORES), tried])
    assert cell.seconds == 62.0


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        (table(SCORES)[3:], r"folds \[0\] of 10 are missing"),
        (table(SCORES)[:-1], r"folds \[9\] have another number of runs"),
        ([record(0, 0, None)], r"folds \[1, 2, .*\] of 10 are missing"),
        ([*table(SCORES)[:-1], record(9, 2, None)], "MUTAG, pi-gnn: fold 9, run 2 has no accuracy"),
        ([*table(SCORES)[:-1], record(9, 2, math.nan)], "fold 9, run 2 has no accuracy: it diverg"),
        ([*table(SCORES)[:-1], record(9, 2, 0.5, fingerprint="g")], "other graphs or splits"),
    ],
)
def test_incomplete_records_are_errors_not_smaller_averages(records, sentence):
    with pytest.raises(ValueError, match=sentence):
        cells_of(records)


def test_runs_of_two_evaluations_are_not_averaged():
    more = {"configuration": {"hidden": 64}, "seed": 9}
    other = [replace(r, run=replace(r.run, **more)) for r in table(SCORES[:, :1])]
    with pytest.raises(ValueError, match="fold 0 has final runs of several evaluations"):
        cells_of([*table(SCORES[:, :2]), *other])


def test_records_of_several_scores_are_not_mixed():
    first, *others = table(SCORES)
    with pytest.raises(ValueError, match="records of several scores or folds"):
        cells_of([replace(first, metric="mae"), *others])


def test_systems_on_other_splits_are_not_paired():
    other = [replace(r, fingerprint="g") for r in table(OTHER, "pi-gnn-d")]
    assert paired_tests(cells_of([*table(SCORES), *other])) == []


def test_paired_tests_agree_with_scipy_and_with_the_correction():
    cells = cells_of([*table(SCORES), *table(OTHER, "pi-gnn-d")])
    (found,) = paired_tests(cells)
    gaps = SCORES.mean(1) - OTHER.mean(1)
    plain = stats.ttest_rel(SCORES.mean(1), OTHER.mean(1)).statistic
    corrected = plain * math.sqrt(0.1 / (0.1 + 1 / 9))
    np.testing.assert_allclose(found.difference, gaps.mean())
    np.testing.assert_allclose(found.corrected_t, 2 * stats.t.sf(abs(corrected), 9))
    np.testing.assert_allclose(found.wilcoxon, stats.wilcoxon(gaps).pvalue)


def wilcoxon_of(gaps: np.ndarray) -> float:
    """What the paired test by Wilcoxon says of two systems with these gaps."""
    first, second = table(0.5 + gaps[:, None]), table(np.full((len(gaps), 1), 0.5), "gin")
    records = [replace(r, run=replace(r.run, folds=len(gaps))) for r in [*first, *second]]
    (found,) = paired_tests(cells_of(records))
    return found.wilcoxon


@pytest.mark.parametrize("folds", [2, 3, 10, 12, 20])
@pytest.mark.parametrize("steps", [1, 3, 30])
def test_folds_with_equal_and_zero_gaps_are_tested_as_scipy_does(folds, steps):
    generator = np.random.default_rng(folds)
    for _ in range(3):
        gaps = generator.integers(-steps, steps + 1, folds) / 64
        gaps[0] = 1 / 64  # not all zero
        expected = stats.wilcoxon(gaps, zero_method="zsplit").pvalue
        np.testing.assert_allclose(wilcoxon_of(gaps), expected)


def test_gaps_that_only_rounding_tells_apart_are_equal():
    gaps = np.array([1, 1, 1, 1, -1, -1, 2, 0, 1, 0]) / 64
    noise = 1e-15 * np.random.default_rng(0).normal(size=10)
    assert wilcoxon_of(gaps + noise) == wilcoxon_of(gaps)


@pytest.mark.parametrize(
    ("models", "pairs"),
    [
        (
            ["pi-gnn", "pi-gnn+a", "pi-gnn+b", "pi-gnn-d", "pi-gnn-d+a"],
            [("pi-gnn", "pi-gnn+a"), ("pi-gnn", "pi-gnn+b"), ("pi-gnn", "pi-gnn-d"),
             ("pi-gnn-d", "pi-gnn-d+a")],
        ),
        (["pi-gnn+a", "pi-gnn"], [("pi-gnn+a", "pi-gnn")]),
        (["pi-gnn+a", "pi-gnn+b", "gin"], [("pi-gnn+a", "pi-gnn+b"), ("pi-gnn+a", "gin"),
                                            ("pi-gnn+b", "gin")]),
    ],
)  # fmt: skip
def test_variants_are_compared_with_what_they_vary_where_that_is_there(models, pairs):
    records = [r for name in models for r in table(SCORES, name)]
    assert [(t.first, t.second) for t in paired_tests(cells_of(records))] == pairs


def test_variants_of_a_system_on_other_splits_are_compared_with_each_other():
    base = [replace(r, fingerprint="g") for r in table(SCORES)]
    variants = [r for name in ("pi-gnn+a", "pi-gnn+b") for r in table(SCORES, name)]
    (found,) = paired_tests(cells_of([*base, *variants]))
    assert (found.first, found.second) == ("pi-gnn+a", "pi-gnn+b")


def test_equal_systems_do_not_differ():
    (found,) = paired_tests(cells_of([*table(SCORES), *table(SCORES, "pi-gnn-d")]))
    assert (found.difference, found.corrected_t, found.wilcoxon) == (0.0, 1.0, 1.0)
