"""Systems of the comparison as estimators: trained, saved and used as π-GNN is."""

import json
import warnings

import networkx as nx
import numpy as np
import pytest
import torch
from samples import rings_and_cliques, run_command, write_json_lines

from softperm import PiGNNClassifier
from softperm.lab.estimators import (
    FORESTS,
    TRAINABLE,
    ForestClassifier,
    ForestRegressor,
    NetworkClassifier,
    NetworkRegressor,
    load_model,
    system_estimator,
)
from softperm.lab.systems import SYSTEMS
from softperm.nn.model_folder import WEIGHTS, FolderError, read_folder, write_folder
from softperm.training.tasks import Classification

GRAPHS, KIND = rings_and_cliques(24)
NAMES = np.array(["ring", "clique"])[KIND]
QUICK = {"epochs": 2, "progress": False, "device": "cpu"}
WITHOUT_VECTORS = {"dtnn", "ppgn"}


def labelled(graphs):
    copies = [graph.copy() for graph in graphs]
    for graph in copies:
        nx.set_node_attributes(graph, {v: "CN"[k % 2] for k, v in enumerate(graph)}, "label")
        nx.set_edge_attributes(graph, 1, "label")
    return copies


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_saved_network_predicts_and_embeds_as_the_one_that_was_trained(name, tmp_path):
    graphs = labelled(GRAPHS[:8])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not use edge labels")
        model = NetworkClassifier(system=name, **QUICK).fit(graphs, NAMES[:8])
    model.save(tmp_path)
    other = load_model(tmp_path, "cpu")
    np.testing.assert_array_equal(other.predict_proba(graphs), model.predict_proba(graphs))
    assert set(other.predict(graphs)) <= {"ring", "clique"}
    if name in WITHOUT_VECTORS:
        with pytest.raises(ValueError, match="has no vector of it: train another model"):
            other.transform(graphs)
        return
    vectors = other.transform(graphs)
    assert vectors.shape == (8, len(other.get_feature_names_out()))
    np.testing.assert_allclose(vectors, model.transform(graphs), rtol=0)
    assert len(np.unique(vectors.round(5), axis=0)) > 1


def test_a_system_says_which_fields_of_the_graphs_it_does_not_use():
    graphs = labelled(GRAPHS)
    for graph in graphs:
        nx.set_edge_attributes(graph, 2.0, "weight")
        nx.set_node_attributes(graph, 0.5, "x")
    for kind, name, words in (
        (NetworkClassifier, "gin", "GIN does not use edge labels and edge weights"),
        (NetworkClassifier, "ecc", "ECC does not use edge weights"),
        (ForestClassifier, "wl-forest", "does not use vertex attributes and edge weights"),
    ):
        with pytest.warns(UserWarning, match=f"{words}$"):
            kind(system=name, progress=False, **({"epochs": 1} if name != "wl-forest" else {})).fit(
                graphs, NAMES
            )


def test_the_vector_of_a_network_is_what_its_last_layers_read():
    model = NetworkClassifier(system="gin", system_settings={"widths": (5, 4)}, **QUICK)
    model.fit(GRAPHS, NAMES)
    vectors = torch.from_numpy(model.transform(GRAPHS)).split([5, 5, 4], dim=1)
    pairs = zip(vectors, model.model_.linears, strict=True)
    with torch.no_grad():
        outputs = sum(linear(part) for part, linear in pairs)
    torch.testing.assert_close(outputs.softmax(1).double().numpy(), model.predict_proba(GRAPHS))


@pytest.mark.parametrize("name", FORESTS)
def test_a_saved_forest_predicts_as_the_one_that_was_grown(name, tmp_path):
    sizes = np.array([[len(graph), np.nan if i % 5 == 0 else i] for i, graph in enumerate(GRAPHS)])
    answers = np.stack([KIND, 1 - KIND, np.zeros(24)], axis=1)
    few = {"system": name, "system_settings": {"trees": 9}, "progress": False}
    for kind, y in (
        (ForestClassifier, NAMES),
        (ForestClassifier, answers),
        (ForestRegressor, sizes),
    ):
        model = kind(**few).fit(GRAPHS, y)
        model.save(tmp_path)
        other = load_model(tmp_path)
        assert (other.predict(GRAPHS) == model.predict(GRAPHS)).all()
        with pytest.raises(ValueError, match="has no vectors: train another model, such as"):
            other.transform(GRAPHS)
    assert ForestClassifier(**few).fit(GRAPHS, NAMES).score(GRAPHS, NAMES) == 1


def test_forests_refuse_settings_that_they_would_ignore():
    with pytest.raises(ValueError, match="a random forest has no setting learning_rate"):
        ForestClassifier(learning_rate=0.1).fit(GRAPHS, NAMES)
    with pytest.raises(ValueError, match="takes no sample_weight"):
        ForestClassifier().fit(GRAPHS, NAMES, sample_weight=np.ones(24))
    with pytest.raises(ValueError, match="forest has the settings trees; got layers"):
        ForestClassifier(system_settings={"layers": 2}).fit(GRAPHS, NAMES)
    with pytest.raises(ValueError, match="NetworkRegressor is one of gin"):
        NetworkRegressor(system="forest").fit(GRAPHS, KIND)


def test_what_only_pi_gnn_has_is_refused_in_one_sentence():
    model = NetworkClassifier(system="structure-free", **QUICK).fit(GRAPHS, NAMES)
    with pytest.raises(ValueError, match="Structure-free has no soft permutations"):
        model.permutations(GRAPHS)
    with pytest.raises(ValueError, match="predictions of Structure-free are not explained"):
        model.explain(GRAPHS)


def test_settings_come_from_the_command_then_from_a_grid_without_choice_then_from_the_class():
    settings, make = system_estimator("gin", {"epochs": 7, "dropout": 0.25})
    assert settings["learning_rate"] == 0.01  # the only value in the grid
    assert settings["batch_size"] == 64  # the grid has two
    assert settings["system_settings"] == {"dropout": 0.25}
    assert isinstance(make(Classification(2)), NetworkClassifier)
    settings, make = system_estimator("pi-gnn-d-gin", {"epochs": 7})
    assert (settings["dustbin"], settings["encoder"]) == (True, "gin")
    assert isinstance(make(Classification(2)), PiGNNClassifier)
    with pytest.raises(ValueError, match="pi-gnn-gin has encoder gin; got gcn"):
        system_estimator("pi-gnn-gin", {"encoder": "gcn"})
    with pytest.raises(ValueError, match="gin has no setting walks: it has those of training"):
        system_estimator("gin", {"walks": 3})
    with pytest.raises(ValueError, match="wl-kernel has no model folder: train one of pi-gnn"):
        system_estimator("wl-kernel", {})
    assert len(TRAINABLE) == 25


@pytest.mark.parametrize("kind", [NetworkClassifier, ForestClassifier])
def test_a_folder_that_does_not_fit_itself_is_refused(kind, tmp_path):
    extra = QUICK if kind is NetworkClassifier else {"system_settings": {"trees": 2}}
    kind(**extra).fit(GRAPHS, NAMES).save(tmp_path)
    config, tensors = read_folder(tmp_path)
    config.pop("softperm_format", None)
    wrong = [{**config, "targets": {**config["targets"], "classes": ["a", "b", "c"]}}]
    wrong += [{**config, "model": {**config["model"], "system": "ecc", "columns": 1}}]
    if kind is NetworkClassifier:
        huge = {**config["model"], "settings": {"widths": [10**7, 10**7]}}
        wrong.append({**config, "model": huge})
    for each in wrong[kind is ForestClassifier :]:
        write_folder(tmp_path, each, tensors)
        with pytest.raises(FolderError):
            load_model(tmp_path, "cpu")
    assert (tmp_path / WEIGHTS).exists()


def test_commands_train_use_and_resume_any_system(tmp_path):
    data = write_json_lines(tmp_path / "g.jsonl", GRAPHS, kind=NAMES.tolist())
    quick = ("--model", "gin", "--epochs", 3, "--no-progress", "--device", "cpu", "--json")
    done = run_command("train", data, "--out", tmp_path / "gin", *quick)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["epochs"] == 3
    config = json.loads((tmp_path / "gin" / "config.json").read_text())
    assert (config["model"], config["validation_fraction"]) == ("gin", None)
    assert not {"latent_vertices", "checkpoint", "system"} & set(config)
    done = run_command("predict", tmp_path / "gin", data, "--out", tmp_path / "p.csv", "--json")
    assert json.loads(done.stdout)["scored_graphs"] == 24
    done = run_command("embed", tmp_path / "gin", data, "--out", tmp_path / "v.csv", "--json")
    assert json.loads(done.stdout)["length"] == 5 * 32
    done = run_command("embed", tmp_path / "gin", data, "--compact", "--out", tmp_path / "v.csv")
    assert done.exit_code == 2
    assert "compact vectors are for π-GNN" in done.stderr
    done = run_command("explain", tmp_path / "gin", data, "--out", tmp_path / "e.csv")
    assert done.exit_code == 2
    assert "holds a NetworkClassifier, not a trained estimator of π-GNN" in done.stderr
    done = run_command("train", data, "--out", tmp_path / "gin", *quick)
    assert "holds a finished run" in done.stderr
    trees = ("--model", "wl-forest", "--trees", 5, "--json")
    done = run_command("train", data, "--out", tmp_path / "forest", *trees)
    assert done.exit_code == 0, done.output
    assert "epochs" not in json.loads(done.stdout)
    done = run_command("predict", tmp_path / "forest", data, "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    done = run_command("embed", tmp_path / "forest", data, "--out", tmp_path / "v.csv")
    assert done.exit_code == 2
    assert "error: Random forest on WL colours has no vectors" in done.stderr
