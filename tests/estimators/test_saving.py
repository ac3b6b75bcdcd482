"""Estimators in folders: the same predictions after loading, or one sentence."""

import json
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from samples import FAST, labelled_path, random_graph, rings_and_cliques, same_weights

from softperm import PiGNN, PiGNNClassifier, PiGNNRegressor
from softperm.data.graphs import as_graphs
from softperm.nn.model import ModelConfig
from softperm.nn.model_folder import FolderError, write_folder
from softperm.settings import TrainingConfig, defaults
from softperm.training.data import changed_settings

DRAWN, KIND = rings_and_cliques(12)
GRAPHS = as_graphs(DRAWN)
SIZES = np.array([float(graph.num_nodes) for graph in GRAPHS])
ANSWERS = np.stack([KIND, 1 - KIND, np.full(12, np.nan)], axis=1)
ANSWERS[0, 2], ANSWERS[1, 2] = 0, 1
WORDS = [labelled_path(word) for word in ("ab", "ba", "aab", "abb", "bab", "bb") * 2]
RICH = as_graphs([random_graph(4 + i, seed=i) for i in range(12)])

CASES = {
    "integers": (PiGNNClassifier, {}, GRAPHS, KIND),
    "strings": (PiGNNClassifier, {}, GRAPHS, np.where(KIND, "Clique", "ring")),
    "booleans": (PiGNNClassifier, {}, GRAPHS, KIND == 1),
    "answers": (PiGNNClassifier, {}, GRAPHS, ANSWERS),
    "one number": (PiGNNRegressor, {}, GRAPHS, 1e6 * SIZES),
    "several numbers": (PiGNNRegressor, {}, GRAPHS, np.stack([SIZES, -SIZES], axis=1)),
    "one column": (PiGNNRegressor, {}, GRAPHS, SIZES[:, None]),
    "labels": (PiGNNClassifier, {}, WORDS, [0, 1] * 6),
    "everything": (PiGNNClassifier, {"encoder": "gin", "dustbin": True}, RICH, [0, 1] * 6),
    "convolutions": (PiGNNRegressor, {"head": "conv", "encoder": "gcn"}, RICH, range(12)),
    "softmax": (PiGNNClassifier, {"normaliser": "softmax", "capacity": None}, GRAPHS, KIND),
    "standard": (PiGNNClassifier, {"scaling": "standard"}, GRAPHS, KIND),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_estimator_equals_the_saved_one(case, tmp_path):
    kind, settings, graphs, y = CASES[case]
    made = kind(**{**FAST, **settings}, checkpoint=tmp_path / "training").fit(graphs, y)
    made.save(tmp_path / "model")
    back = kind.load(tmp_path / "model")
    assert back.get_params() == {**made.get_params(), "checkpoint": None}
    assert back.vocabulary_ == made.vocabulary_
    assert back.best_epoch_ == made.best_epoch_
    same_weights(back.model_, made.model_)
    for method in ("predict", "transform", *(["predict_proba"] if kind is PiGNNClassifier else [])):
        ours, theirs = getattr(made, method)(graphs), getattr(back, method)(graphs)
        assert (ours == theirs).all()
        assert ours.dtype == theirs.dtype
    assert back.score(graphs, y) == made.score(graphs, y)


def test_a_loaded_estimator_can_be_fitted_anew(tmp_path):
    PiGNNClassifier(**FAST).fit(WORDS, [0, 1] * 6).save(tmp_path)
    back = PiGNNClassifier.load(tmp_path).fit(GRAPHS, np.where(KIND, "a", "b"))
    same_weights(back.model_, PiGNNClassifier(**FAST).fit(GRAPHS, np.where(KIND, "a", "b")).model_)


def test_unseen_labels_are_known_as_such_after_loading(tmp_path):
    PiGNNClassifier(**FAST).fit(WORDS, [0, 1] * 6).save(tmp_path)
    with pytest.warns(UserWarning, match="1 vertex has a label"):
        PiGNNClassifier.load(tmp_path).predict([labelled_path("az")])


def test_the_config_is_plain_json_with_readable_settings(tmp_path):
    PiGNNClassifier(**FAST).fit(WORDS, [0, 1] * 6).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["softperm_format"] == 2
    assert config["kind"] == "PiGNNClassifier"
    assert config["params"]["latent_vertices"] == 4
    assert config["vocabulary"]["labels"] == [["a", "b"]]
    assert config["targets"] == {"classes": [0, 1], "labels": None, "metric": "accuracy"}
    assert all(
        isinstance(t, torch.Tensor) for t in load_file(tmp_path / "model.safetensors").values()
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A classifier's configuration and tensors, to be spoilt."""
    folder = tmp_path_factory.mktemp("saved")
    PiGNNClassifier(**FAST).fit(WORDS, [0, 1] * 6).save(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["softperm_format"]
    return config, load_file(folder / "model.safetensors")


def nested(config: dict, key: str, **values) -> dict:
    return {**config, key: {**config[key], **values}}


SPOILT = {
    "an unknown key": (
        lambda c: {**c, "surprise": 1},
        "its configuration is damaged: unknown keys: surp",
    ),
    "an unknown setting": (
        lambda c: nested(c, "params", depth=3),
        "its configuration is damaged: .*depth",
    ),
    "an unknown model setting": (
        lambda c: nested(c, "model", depth=3),
        "do not fit: unknown settings depth",
    ),
    "a wrong setting": (
        lambda c: nested(c, "params", latent_vertices=0),
        "its configuration is damaged: latent_vertices must be",
    ),
    "no settings": (lambda c: {k: v for k, v in c.items() if k != "params"}, "lacks 'params'"),
    "settings that are a list": (lambda c: {**c, "params": [1]}, "its configuration is damaged"),
    "no model": (lambda c: {k: v for k, v in c.items() if k != "model"}, "do not fit"),
    "a model that is a word": (lambda c: {**c, "model": "large"}, "do not fit"),
    "another size": (lambda c: nested(c, "model", hidden=9), "do not fit: .*size mismatch"),
    "no classes": (lambda c: {**c, "targets": {}}, "lacks 'classes'"),
    "other classes": (
        lambda c: nested(c, "targets", classes=[1, 2, 3]),
        "its configuration is damaged: its model has outputs 2, its targets and vocabulary 3",
    ),
    "classes that are null": (
        lambda c: nested(c, "targets", classes=[None, 1]),
        "its configuration is damaged: graph 0: it has no class",
    ),
    "other labels": (
        lambda c: nested(c, "vocabulary", labels=[["a", "b", "c"]]),
        "has attribute_size 2, its targets and vocabulary 3",
    ),
    "a damaged vocabulary": (lambda c: {**c, "vocabulary": {}}, "damaged: vocabulary: expected"),
    "an epoch that is a word": (
        lambda c: {**c, "best_epoch": "last"},
        "its configuration is damaged",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_configuration_that_does_not_fit_is_said_in_one_sentence(case, saved, tmp_path):
    spoil, message = SPOILT[case]
    write_folder(tmp_path, spoil(saved[0]), saved[1])
    with pytest.raises(FolderError, match=message) as caught:
        PiGNNClassifier.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


TOO_LARGE = (
    {"latent_vertices": 200_000}, {"hidden": 2**40}, {"head_hidden": [2**20, 2**20]},
    {"encoder": "gin", "layers": 10**9}, {"encoded": "both", "encoded_rounds": 10**9},
    {"permutation_heads": 10**9}, {"powers": 10**9}, {"structure_size": 10**9},
    {"attribute_size": 10**9}, {"label_sizes": [2**40]}, {"outputs": 2**62},
)  # fmt: skip


def test_a_small_file_cannot_ask_for_a_large_network(saved, tmp_path):
    """Memory and time stay those of the file; in a process of its own, which may be killed."""
    for k, values in enumerate(TOO_LARGE):
        write_folder(tmp_path / f"{k}", nested(saved[0], "model", **values), saved[1])
    code = f"""if True:
        import resource
        from softperm import PiGNNClassifier
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        before = resource.getrusage(resource.RUSAGE_SELF)
        for k in range({len(TOO_LARGE)}):
            try:
                PiGNNClassifier.load(f"{tmp_path}/{{k}}")
            except ValueError as error:
                print(error)
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert after.ru_utime - before.ru_utime < 10, "seconds"
        assert after.ru_maxrss - before.ru_maxrss < 200_000, "kilobytes"
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(TOO_LARGE)
    assert all("its configuration and weights do not fit" in line for line in lines)


def test_missing_and_surplus_weights_are_said(saved, tmp_path):
    config, tensors = saved
    first = next(iter(tensors))
    write_folder(tmp_path, config, {k: v for k, v in tensors.items() if k != first})
    with pytest.raises(FolderError, match=f"Missing key.*{first}"):
        PiGNNClassifier.load(tmp_path)
    write_folder(tmp_path, config, {**tensors, "backdoor": torch.zeros(1)})
    with pytest.raises(FolderError, match=r"Unexpected key.*backdoor"):
        PiGNNClassifier.load(tmp_path)


def test_an_estimator_of_the_other_kind_is_said(tmp_path):
    PiGNNRegressor(**FAST).fit(GRAPHS, SIZES).save(tmp_path)
    with pytest.raises(FolderError, match="holds a PiGNNRegressor, not a PiGNNClassifier"):
        PiGNNClassifier.load(tmp_path)
    with pytest.raises(FolderError, match="holds a PiGNNRegressor, not a PiGNN"):
        PiGNN.load(tmp_path)


def test_means_and_deviations_of_other_numbers_are_said(tmp_path):
    PiGNNRegressor(**FAST).fit(GRAPHS, SIZES).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    del config["softperm_format"]
    write_folder(tmp_path, nested(config, "targets", std=[1.0, 2.0]), tensors)
    with pytest.raises(FolderError, match="there are 1 means but 2 deviations"):
        PiGNNRegressor.load(tmp_path)


def test_a_graph_of_one_vertex_survives_saving(tmp_path):
    made = PiGNNClassifier(**FAST).fit(GRAPHS, KIND)
    made.save(tmp_path)
    alone = [nx.empty_graph(1)]
    assert (PiGNNClassifier.load(tmp_path).transform(alone) == made.transform(alone)).all()


def test_a_setting_at_its_default_leaves_the_fingerprint_of_a_training_unchanged():
    """So a setting that is added later does not invalidate checkpoints."""
    assert changed_settings(ModelConfig(1)).keys().isdisjoint(defaults(ModelConfig))
    assert changed_settings(TrainingConfig()) == {}
    assert changed_settings(TrainingConfig(decay=0.5)) == {"decay": 0.5}
    assert changed_settings(ModelConfig(1, head_norm=False))["head_norm"] is False
