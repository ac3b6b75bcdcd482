"""The distance study: whole, resumable, and its page."""

import json
import shutil
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from softperm.data.graphs import as_graphs
from softperm.data.vocabulary import Vocabulary
from softperm.lab.studies import synthetic
from softperm.lab.studies.synthetic import FOR_DISTANCES, StudyConfig

GRAPHS = as_graphs([nx.gnm_random_graph(4 + i % 3, 4 + i % 4, seed=i) for i in range(14)])
CONFIG = StudyConfig(
    latent_vertices=(3, 4), seeds=2, epochs=2, distance_latent_vertices=(3,), distance_steps=3,
    hidden=8, held_out=0.2,
)  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    return synthetic.run(GRAPHS, CONFIG, folder), folder


def test_every_method_has_its_figures(found):
    study, _ = found
    named = [(o.method, o.latent_vertices, len(o.runs)) for o in study.results]
    assert named == [
        ("π-GNN", 3, 2), ("π-GNN", 4, 2), ("random", None, 2), ("uniform", None, 2),
        ("GCN", None, 2), ("GIN", None, 2), (FOR_DISTANCES, 3, 2), ("joint alignment", None, 1),
    ]  # fmt: skip
    figures = [run.mse for o in (*study.results, *study.held_out) for run in o.runs]
    assert np.isfinite(figures).all()
    assert study.distances.shape == (14, 14)


def test_joint_alignment_follows_distances_better_than_uniform_and_random_plans(found):
    study, folder = found
    joint = next(o for o in study.results if o.method == "joint alignment")
    uniform = next(o for o in study.results if o.method == "uniform")
    assert joint.mean("mse") < uniform.mean("mse")
    random = json.loads((folder / "random.json").read_text())
    assert joint.mean("mse") < np.mean([run["mse"] for run in random["all"]["runs"]])


def test_networks_start_with_hard_permutations_or_as_those_of_the_authors():
    collection = Vocabulary.learn(GRAPHS).encode(GRAPHS)
    for start, bound in (("hard", 200 / 8**0.5), ("authors", 1.0)):
        config = replace(CONFIG, start=start)
        methods = synthetic._Methods(collection, np.zeros((14, 14)), config, "cpu")
        latent = methods.network(3, 0, 6).permutation.latent
        assert bound / 2 < float(latent.detach().abs().max()) <= bound


def test_finished_parts_are_not_repeated(found, monkeypatch):
    study, folder = found

    def never(*_, **__):
        raise AssertionError("done before")

    for name in ("frobenius_matrix", "Stack", "joint_alignment", "build"):
        monkeypatch.setattr(synthetic, name, never)
    again = synthetic.run(GRAPHS, CONFIG, folder)
    assert again.results == study.results
    np.testing.assert_array_equal(again.learnt[3], study.learnt[3])


@pytest.mark.parametrize("lost", ["learnt-3.npy", "pi-gnn-3.json"])
def test_a_study_killed_between_two_files_of_a_part_resumes(lost, found, tmp_path):
    study, folder = found
    copy = tmp_path / "study"
    shutil.copytree(folder, copy)
    (copy / lost).unlink()
    again = synthetic.run(GRAPHS, CONFIG, copy)
    assert again.results == study.results
    np.testing.assert_array_equal(again.learnt[3], study.learnt[3])


def test_another_study_in_the_same_folder_is_refused(found):
    _, folder = found
    with pytest.raises(ValueError, match="other settings or graphs"):
        synthetic.run(GRAPHS[:-1], CONFIG, folder)


def test_the_page_holds_both_figures_and_all_rows(found, tmp_path):
    study, _ = found
    page = synthetic.write(study, CONFIG, GRAPHS, tmp_path, "A study").read_text()
    assert page.count("<svg") == 2
    for outcome in study.results:
        assert f"{outcome.mean('mse'):.3f} ±" in page
    for name in ("curves", "heat-maps"):
        assert (tmp_path / f"{name}.png").stat().st_size > 0
        assert (tmp_path / f"{name}.svg").stat().st_size > 0
    assert "4 to 6 vertices" in page
    assert synthetic.summary(study)["pairs"] == 105
