"""Estimators with other structural features: the same at training, prediction and after saving."""

import numpy as np
import pytest
from samples import FAST, labelled_path, random_graph, two_kinds

from softperm import PiGNNClassifier

GRAPHS, KIND = two_kinds(24)
WORDS = [labelled_path(word) for word in ("aab", "abba", "bab", "aabb", "ba", "abab") * 4]
RICH = {"walks": 6, "heat": (1, 4), "rings": 6, "core": True, "clustering": True}
COLOURS = {"colours": 2, "colour_min_graphs": 1}


def fitted(graphs=GRAPHS, y=KIND, **settings) -> PiGNNClassifier:
    return PiGNNClassifier(**{**FAST, **settings}).fit(graphs, y)


@pytest.mark.parametrize(
    "settings",
    [
        RICH,
        COLOURS,
        {**RICH, **COLOURS, "colour_degree": True, "categories": "embedding"},
        {**COLOURS, "compare": "cosine", "permutation_heads": 3, "powers": 2},
        {**RICH, "encoded": "both", "permutation_heads": 2, "dropout": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("graphs", [GRAPHS, WORDS], ids=["plain", "labelled"])
def test_a_saved_model_computes_the_features_it_was_trained_with(settings, graphs, tmp_path):
    model = fitted(graphs, **settings)
    model.save(tmp_path)
    loaded = PiGNNClassifier.load(tmp_path)
    assert loaded.features_ == model.features_
    np.testing.assert_array_equal(loaded.transform(graphs), model.transform(graphs))
    names = model.get_feature_names_out()
    assert len(set(names)) == len(names) == model.transform(graphs[:3]).shape[1]


def test_features_are_those_of_the_settings():
    assert fitted(**RICH).model_.config.structure_size == 2 + 5 + 2 + 3 + 1 + 1
    assert fitted().model_.config.structure_size == 2


def test_names_tell_what_a_column_is():
    names = fitted(WORDS, **COLOURS, powers=2).get_feature_names_out().tolist()
    assert names[0] == "adjacency_0_0"
    assert names[16] == "adjacency2_0_0"
    first = names[32:]
    assert first[:4] == ["label_0_a", "label_0_b", "colour1_0_0", "colour1_0_1"]
    assert "colour2_3_0" in first


def test_only_training_graphs_give_colours_their_codes():
    """Validation graphs choose the epoch and teach nothing else."""
    held = [labelled_path("bbbb")] * 4
    with_held = PiGNNClassifier(**FAST, **COLOURS).fit(WORDS, KIND, validation=(held, KIND[:4]))
    assert with_held.features_ == fitted(WORDS, **COLOURS, validation_fraction=0.0).features_


def test_structural_features_reach_the_prediction():
    graphs = [random_graph(9, seed) for seed in range(24)]
    plain, rich = (fitted(graphs, KIND, compare="cosine", walks=k) for k in (0, 6))
    assert plain.transform(graphs).shape == rich.transform(graphs).shape
    assert not np.allclose(plain.transform(graphs), rich.transform(graphs))
