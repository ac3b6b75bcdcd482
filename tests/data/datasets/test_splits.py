"""Splits: every graph once, classes in proportion, the same for the same seed."""

import json
import math
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softperm.data.datasets.catalogue import SPLIT_CHECKSUMS
from softperm.data.datasets.splits import Split, make_folds, random_split, read_folds, write_folds


def parts(split: Split) -> list[list[int]]:
    return [split.train.tolist(), split.validation.tolist(), split.test.tolist()]


@given(st.lists(st.integers(0, 3), min_size=20, max_size=120), st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_folds_divide_all_graphs_and_keep_classes_in_proportion(classes: list, seed: int) -> None:
    y = torch.tensor(classes)
    splits = make_folds(y, len(y), seed)
    assert sorted(torch.cat([s.test for s in splits]).tolist()) == list(range(len(y)))
    for split in splits:
        assert sorted(chain(*parts(split))) == list(range(len(y)))
        assert abs(len(split.test) - len(y) / 10) < 1
        assert abs(len(split.validation) - (len(y) - len(split.test)) / 10) < 1
        for c in set(classes):
            share = classes.count(c) / 10
            rest = classes.count(c) - int((y[split.test] == c).sum())
            assert abs(int((y[split.test] == c).sum()) - share) < 1
            assert abs(int((y[split.validation] == c).sum()) - rest / 10) < 1


def test_the_seed_decides_the_folds() -> None:
    y = torch.arange(60) % 3
    one, same, other = (make_folds(y, 60, seed) for seed in (1, 1, 2))
    assert [parts(s) for s in one] == [parts(s) for s in same]
    assert [parts(s) for s in one] != [parts(s) for s in other]


def test_the_selection_splits_of_the_folds_are_drawn_apart() -> None:
    splits = make_folds(None, 100, 0)
    chosen = [set(s.validation.tolist()) for s in splits]
    assert len({frozenset(c) for c in chosen}) == 10


def test_written_folds_read_back_and_leave_nothing_beside(tmp_path: Path) -> None:
    splits = make_folds(torch.arange(40) % 2, 40, 0)
    path = tmp_path / "splits" / "TOY.json"
    write_folds(path, splits)
    folds = read_folds(path, 40)
    assert [parts(s) for s in folds] == [parts(s) for s in splits]
    assert len(folds) == 10
    assert folds[3].test.tolist() == splits[3].test.tolist()
    assert [p.name for p in path.parent.iterdir()] == ["TOY.json"]


def test_the_digest_is_of_the_splits_and_not_of_the_spelling(tmp_path: Path) -> None:
    path = tmp_path / "TOY.json"
    write_folds(path, make_folds(None, 40, 0))
    before = read_folds(path, 40).digest
    path.write_text(json.dumps(json.loads(path.read_text()), indent=3))
    assert read_folds(path, 40).digest == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "expected a list of folds"),
        ('{"test": []}', "expected a list of folds"),
        ('[{"test": [0], "model_selection": []}]', "expected a list of folds"),
        ('[{"test": [0], "model_selection": [{"train": [1]}]}]', "expected a list of folds"),
        (
            '[{"test": [0], "model_selection": [{"train": [1, 2, 3], "validation": []}]}]',
            "validation must be a list of whole numbers, at least one",
        ),
        (
            '[{"test": [0], "model_selection": [{"train": [1, 2.5], "validation": [3]}]}]',
            "train must be a list of whole numbers, at least one",
        ),
        (
            '[{"test": [0], "model_selection": [{"train": [1], "validation": [2]}]}]',
            "fold 0 has 3 graphs, not each of the dataset's 4 once",
        ),
        (
            '[{"test": [0, 3], "model_selection": [{"train": [1], "validation": [2]}]}]',
            "the test sets of the 1 folds do not hold each of the 4 graphs once",
        ),
    ],
)
def test_unusable_splits_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "TOY.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        read_folds(path, 4)


def test_too_few_graphs_are_an_error() -> None:
    with pytest.raises(ValueError, match="expected 20 graphs at least for 10 folds, found 19"):
        make_folds(None, 19, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_folds(None, 30, 0, 1), "expected 2 folds at least, found 1"),
        (lambda: make_folds(torch.arange(100), 50, 0), "a class for each of 50 graphs, found 100"),
        (lambda: random_split(100, 0, -0.1, 0.1), "leave some of 100 graphs"),
        (lambda: random_split(100, 0, 0.6, 0.6), "leave some of 100 graphs"),
        (lambda: random_split(100, 0, math.nan), "expected fractions between 0 and 1, found nan"),
        (lambda: random_split(0, 0), "leave some of 0 graphs"),
    ],
)
def test_splits_that_cannot_be_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_random_split_divides_all_graphs_by_seed() -> None:
    split, again, other = random_split(1000, 3), random_split(1000, 3), random_split(1000, 4)
    assert sorted(chain(*parts(split))) == list(range(1000))
    assert [len(p) for p in parts(split)] == [800, 100, 100]
    assert parts(split) == parts(again) != parts(other)


@pytest.mark.data
@pytest.mark.parametrize("name", sorted(SPLIT_CHECKSUMS))
def test_the_local_splits_are_the_published_ones(data_root: Path, name: str) -> None:
    path = data_root / "splits" / f"{name}.json"
    graphs = max(max(fold["test"]) for fold in json.loads(path.read_text())) + 1
    folds = read_folds(path, graphs)
    assert folds.digest == SPLIT_CHECKSUMS[name]
    assert len(folds) == 10
    shares = [len(s.validation) / (graphs - len(s.test)) for s in folds]
    np.testing.assert_allclose(shares, 0.1, atol=0.01)
