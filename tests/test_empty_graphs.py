"""A graph without vertices is a legal graph in every room."""

import json

import networkx as nx
import numpy as np
import pytest
from samples import random_graph, run_command

from softperm import GraphIndex, PiGNNClassifier, PiGNNRegressor, frobenius_matrix
from softperm.data.formats import read_graphs
from softperm.data.graphs import as_graphs
from softperm.distance import edit_distance
from softperm.errors import GraphWarning

NONE = nx.Graph()
PLACES = (0, 5, 11)
SMALL = {
    "latent_vertices": 4,
    "hidden": 8,
    "epochs": 2,
    "batch_size": 3,
    "validation_fraction": 0.0,
}
VARIANTS = {
    "padded": {},
    "own size": {"capacity": None, "dustbin": True},
    "messages": {"encoder": "gin", "compare": "cosine", "head": "conv"},
    "features": {"walks": 3, "heat": (1, 4), "rings": 5, "core": True, "colours": 1},
    "stack": {"ensemble": 2, "dustbin": True},
}


def graphs(count: int = 12) -> list[nx.Graph]:
    return [NONE if i in PLACES else random_graph(3 + i, seed=i) for i in range(count)]


@pytest.mark.filterwarnings("ignore:.*no vertices", "ignore:.*nearly uniform")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_network_answers_for_an_empty_graph_as_for_padding_alone(variant):
    y = [i % 2 for i in range(12)]
    model = PiGNNClassifier(**SMALL, **VARIANTS[variant]).fit(graphs(), y)
    chances = model.predict_proba(graphs())
    assert np.isfinite(chances).all()
    np.testing.assert_allclose(model.predict_proba([NONE, NONE]), chances[[0, 11]], atol=1e-6)
    np.testing.assert_array_equal(model.transform(graphs())[[0, 5]], 0)  # nothing is aligned
    assert model.permutations([NONE])[0].shape == (0, 4)


@pytest.mark.filterwarnings("ignore:.*no vertices", "ignore:.*nearly uniform")
def test_an_empty_graph_contributes_nothing_to_its_prediction():
    model = PiGNNRegressor(**SMALL, head="mlp").fit(graphs(), np.arange(12.0))
    (explanation,) = model.explain([NONE])
    np.testing.assert_allclose(explanation.outputs, explanation.baseline, rtol=1e-10)


@pytest.mark.filterwarnings("ignore:.*no vertices", "ignore:.*nearly uniform")
def test_a_collection_of_nothing_but_empty_graphs_can_be_learnt():
    model = PiGNNClassifier(**SMALL).fit([NONE] * 8, [0, 0, 0, 1] * 2)
    assert model.predict([NONE]).tolist() == [0]


@pytest.mark.filterwarnings("ignore:.*no vertices")
def test_the_distance_from_an_empty_graph_is_the_norm_of_the_adjacency_matrix():
    others = [nx.path_graph(2), NONE, nx.complete_graph(4)]
    np.testing.assert_allclose(frobenius_matrix([NONE, *others])[0] ** 2, [0, 2, 0, 12])
    assert edit_distance(NONE, nx.path_graph(3)).distance == 5  # three vertices and two edges
    index = GraphIndex.build([*others, NONE], ids=list("abcd"))
    assert [hit.id for hit in index.nearest(NONE, k=2).hits] == ["b", "d"]


def test_one_warning_counts_the_empty_graphs_of_a_list():
    with pytest.warns(GraphWarning, match="graph 0 and 2 more: 3 of 12 graphs have no vertices"):
        read = as_graphs(graphs())
    assert [graph.num_nodes for graph in read][:2] == [0, 4]


@pytest.fixture
def lines(tmp_path):
    """Twelve graphs with classes as JSON Lines, three of them empty."""
    path = tmp_path / "g.jsonl"
    with path.open("w") as file:
        for i, graph in enumerate(graphs()):
            bare = nx.Graph(graph.edges)
            bare.add_nodes_from(graph)
            content = nx.node_link_data(bare, edges="links") | {"y": i % 2}
            file.write(json.dumps(content) + "\n")
    return path


def test_skip_empty_leaves_graphs_and_their_targets_out(lines):
    with pytest.warns(GraphWarning, match="graph 1 and 2 more: 3 of 12 graphs have no vertices"):
        everything = read_graphs(lines)
    some = read_graphs(lines, skip_empty=True)
    kept = [i for i in range(12) if i not in PLACES]
    assert some.ids == tuple(everything.ids[i] for i in kept)
    np.testing.assert_array_equal(some.targets["y"], everything.targets["y"][kept])
    assert all(graph.num_nodes for graph in some.graphs)


def test_commands_take_files_with_empty_graphs(lines, tmp_path):
    out = ["--epochs", "1", "--latent-vertices", "4", "--no-progress", "--json"]
    done = run_command("train", lines, "--out", tmp_path / "run", *out)
    assert done.exit_code == 0, done.output
    assert done.stderr.count("3 of 12 graphs have no vertices") == 1
    for command, rows in (("predict", "p.csv"), ("embed", "v.csv")):
        done = run_command(command, tmp_path / "run", lines, "--out", tmp_path / rows)
        assert done.exit_code == 0, done.output
        assert len((tmp_path / rows).read_text().splitlines()) == 13
        assert done.stderr.count("3 of 12 graphs have no vertices") == 1
        done = run_command(
            command, tmp_path / "run", lines, "--skip-empty", "--out", tmp_path / rows
        )
        assert done.exit_code == 0, done.output
        assert "no vertices" not in done.stderr
        names = [row.split(",")[0] for row in (tmp_path / rows).read_text().splitlines()]
        assert names == ["graph", *(str(i + 1) for i in range(12) if i not in PLACES)]
    pairs = ["--out", tmp_path / "d.csv", "--skip-empty", "--time-limit", "1", "--json"]
    done = run_command("distance", lines, *pairs)
    assert json.loads(done.stdout)["graphs"] == 9


def test_graphs_that_no_vertex_belongs_to_are_read_from_tu_files(tmp_path):
    files = {"A": "1, 2\n2, 1\n3, 4\n4, 3\n", "graph_indicator": "1\n1\n3\n3\n"}
    files |= {"graph_labels": "1\n2\n1\n2\n", "node_labels": "5\n6\n5\n6\n"}
    for kind, text in files.items():
        (tmp_path / f"T_{kind}.txt").write_text(text)
    with pytest.warns(GraphWarning, match="graph 1 and 1 more: 2 of 4 graphs have no vertices"):
        file = read_graphs(tmp_path)
    assert [graph.num_nodes for graph in file.graphs] == [2, 0, 2, 0]
    assert file.targets["graph_label"].tolist() == [1, 2, 1, 2]
