"""Every training measures how sharp its permutations are."""

import warnings

import pytest
import torch
from samples import FAST, rings_and_cliques

from softperm import PiGNNClassifier
from softperm.estimators.pignn import UniformPermutationsWarning

GRAPHS, KIND = rings_and_cliques(12)
WHOLE = {**FAST, "validation_fraction": 0.0}


def test_the_sharpness_is_that_of_the_training_graphs_and_is_saved(tmp_path):
    made = PiGNNClassifier(**WHOLE).fit(GRAPHS, KIND)
    batch = made._encode(GRAPHS).batch(torch.arange(12))
    with torch.no_grad():
        assert made.sharpness_ == made.model_.sharpness(batch)
    made.save(tmp_path / "model")
    assert PiGNNClassifier.load(tmp_path / "model").sharpness_ == made.sharpness_


def test_uniform_permutations_are_warned_of_and_sharp_ones_are_not():
    uniform = PiGNNClassifier(**{**WHOLE, "compare": "cosine", "temperature": 1e3})
    with pytest.warns(UniformPermutationsWarning, match="nearly uniform .row entropy 1.000 of 1"):
        uniform.fit(GRAPHS, KIND)
    assert uniform.sharpness_.row_entropy > 0.99
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings = {**WHOLE, "compare": "cosine", "temperature": 0.02}
        sharp = PiGNNClassifier(**settings).fit(GRAPHS, KIND)
    assert sharp.sharpness_.row_entropy < 0.99
