"""``softperm train``: every format in, a whole run folder out."""

import csv
import json
import re
import zipfile
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from samples import rings_and_cliques, run_command, same_weights, write_json_lines
from torch import nn

from softperm import PiGNNClassifier, PiGNNRegressor
from softperm.cli import run_folder
from softperm.explore import plots
from softperm.training.data import hold_out

pytestmark = pytest.mark.usefixtures("one_quick_picture")
GRAPHS, KIND = rings_and_cliques(20)
NAMES = ["clique" if kind else "ring" for kind in KIND]
DRAW = plots.save
FAST = ("--epochs", 2, "--latent-vertices", 4, "--hidden", 8, "--batch-size", 8, "--device", "cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_json_lines(tmp_path_factory.mktemp("data") / "g.jsonl", GRAPHS, kind=NAMES)


def write_tu(folder: Path) -> Path:
    """The graphs in TUDataset's format, in a folder."""
    folder = folder / "RINGS"
    folder.mkdir(parents=True)
    edges, owner, start = [], [], 1
    for i, graph in enumerate(GRAPHS):
        edges += [f"{u + start}, {v + start}" for a, b in graph.edges for u, v in ((a, b), (b, a))]
        owner += [str(i + 1)] * len(graph)
        start += len(graph)
    for name, lines in (
        ("A", edges),
        ("graph_indicator", owner),
        ("graph_labels", [str(2 * kind - 1) for kind in KIND]),
    ):
        (folder / f"RINGS_{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_tu_zip(folder: Path) -> Path:
    made = write_tu(folder)
    with zipfile.ZipFile(folder / "RINGS.zip", "w") as archive:
        for path in made.iterdir():
            archive.write(path, f"RINGS/{path.name}")
    return folder / "RINGS.zip"


def write_smiles(folder: Path) -> Path:
    pytest.importorskip("rdkit")
    molecules = ["CCO", "c1ccccc1", "CC(=O)O", "C", "CCN", "C#N", "c1ccncc1", "OCCO", "CS", "Cl"]
    rows = [f"{smiles},{i / 7:.3f}" for i, smiles in enumerate(molecules * 2)]
    (folder / "mols.csv").write_text("SMILES,solubility\n" + "\n".join(rows) + "\n")
    return folder / "mols.csv"


def write_lines(folder: Path) -> Path:
    return write_json_lines(folder / "graphs.jsonl", GRAPHS, kind=NAMES)


def write_graphml(folder: Path) -> Path:
    folder = folder / "graphml"
    folder.mkdir()
    for i, (graph, name) in enumerate(zip(GRAPHS, NAMES, strict=True)):
        copy = graph.copy()
        copy.graph["kind"] = name
        nx.write_graphml(copy, folder / f"graph{i:02}.graphml")
    return folder


FORMATS = {
    "a TUDataset folder": (write_tu, PiGNNClassifier),
    "a TUDataset zip": (write_tu_zip, PiGNNClassifier),
    "a table of SMILES": (write_smiles, PiGNNRegressor),
    "JSON Lines": (write_lines, PiGNNClassifier),
    "a GraphML folder": (write_graphml, PiGNNClassifier),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_can_be_trained_on_and_predicted(kind, tmp_path):
    write, estimator = FORMATS[kind]
    path, run = write(tmp_path), tmp_path / "run"
    done = run_command("train", path, "--out", run, *FAST, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["epochs"] == 2
    assert result["test_graphs"] == 2
    assert result["interrupted"] is False
    assert result["metric"] == ("mae" if estimator is PiGNNRegressor else "accuracy")
    assert ("test_r2" in result) is (estimator is PiGNNRegressor)
    assert result["better"] == ("lower" if estimator is PiGNNRegressor else "higher")
    assert f"validation_{result['metric']}," in (run / "curve.csv").read_text()
    assert json.loads((run / "result.json").read_text()) == result
    names = {p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file()}
    pictures = {name for name in names if name.startswith("pictures/")}
    assert len(pictures) == 1
    index = {name for name in names if name.startswith("training.index/")}
    assert "training.index/index.json" in index
    assert names - pictures - index == {
        "config.json", "result.json", "log.txt", "curve.csv", "curve.png", "model/config.json",
        "model/model.safetensors",
    }  # fmt: skip
    assert estimator.load(run / "model").best_epoch_ == result["best_epoch"]
    done = run_command("predict", run, path, "--out", tmp_path / "p.csv", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 21
    assert f"\n{result['metric']}  " in done.stdout, "the score is called by its name"


def test_the_model_is_the_one_that_the_library_trains(data, tmp_path):
    done = run_command("train", data, "--out", tmp_path, *FAST, "--test-fraction", 0)
    assert done.exit_code == 0, done.output
    settings = {"latent_vertices": 4, "hidden": 8, "epochs": 2, "batch_size": 8, "progress": False}
    alone = PiGNNClassifier(**settings).fit(GRAPHS, NAMES)
    same_weights(PiGNNClassifier.load(tmp_path / "model").model_, alone.model_)
    assert "test_score" not in json.loads((tmp_path / "result.json").read_text())


def test_the_run_folder_says_what_was_asked_and_what_was_seen(data, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "save", DRAW)
    done = run_command("train", data, "--out", tmp_path, *FAST, "--encoder", "gcn", "--seed", 5)
    assert done.exit_code == 0, done.output
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["data"] == str(data)
    assert config["target"] == ["kind"]
    assert config["task"] == "auto"
    assert config["test_fraction"] is None
    assert (config["encoder"], config["seed"], config["epochs"]) == ("gcn", 5, 2)
    rows = list(csv.DictReader((tmp_path / "curve.csv").read_text().splitlines()))
    assert [row["number"] for row in rows] == ["1", "2"]
    assert all(float(row["train_loss"]) > 0 for row in rows)
    told = json.loads((tmp_path / "result.json").read_text())
    assert told["seconds"] == round(sum(float(row["seconds"]) for row in rows), 2)
    log = (tmp_path / "log.txt").read_text()
    words = "classification (2 classes, the largest: 50% clique); --task changes this"
    assert f"target kind: {words}" in log
    assert "g: 20 graphs, 18 to train, 0 to validate, 2 to test" in log
    assert "fields of the graphs: none, structure alone" in log
    assert f"wrote {tmp_path}/model" in log
    assert log in done.stderr
    assert str(tmp_path) in done.stdout
    for picture in [tmp_path / "curve.png", *(tmp_path / "pictures").iterdir()]:
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_of_each_class_some_graphs_are_kept_for_the_test(data, tmp_path):
    done = run_command("train", data, "--out", tmp_path, *FAST, "--test-fraction", 0.3, "--json")
    assert json.loads(done.stdout)["test_graphs"] == 6


def test_a_finished_run_is_not_overwritten(data, tmp_path):
    assert run_command("train", data, "--out", tmp_path, *FAST).exit_code == 0
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    done = run_command("train", data, "--out", tmp_path, *FAST)
    assert done.exit_code == 2
    assert "holds a finished run: choose another --out, or delete it" in done.stderr
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("name", ["config.json", "curve.csv"])
def test_files_that_are_not_a_runs_are_not_overwritten(name, data, tmp_path):
    (tmp_path / name).write_text("mine")
    done = run_command("train", data, "--out", tmp_path, *FAST)
    assert done.exit_code == 2
    assert f"holds {name}, but no run of softperm: choose another --out" in done.stderr
    assert (tmp_path / name).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_saved_model_is_not_overwritten_by_a_run(data, tmp_path):
    assert run_command("train", data, "--out", tmp_path / "run", *FAST).exit_code == 0
    before = (tmp_path / "run" / "model" / "config.json").read_bytes()
    done = run_command("train", data, "--out", tmp_path / "run" / "model", *FAST)
    assert "holds config.json, but no run of softperm" in done.stderr
    assert (tmp_path / "run" / "model" / "config.json").read_bytes() == before


def test_a_capacity_below_the_graphs_is_told(data, tmp_path):
    done = run_command("train", data, "--out", tmp_path, *FAST, "--capacity", 2)
    assert done.exit_code == 0, done.output
    assert "warning: capacity is 2, but the largest training graph has" in done.stderr


@pytest.mark.parametrize(("text", "capacity"), [("auto", 9), ("none", None), ("30", 30)])
def test_capacity_may_be_auto_none_or_a_number(text, capacity, data, tmp_path):
    done = run_command("train", data, "--out", tmp_path, *FAST, "--capacity", text)
    assert done.exit_code == 0, done.output
    assert PiGNNClassifier.load(tmp_path / "model").model_.config.capacity == capacity


def test_the_head_may_do_without_layer_norm(data, tmp_path):
    assert run_command("train", data, "--out", tmp_path, "--no-head-norm", *FAST).exit_code == 0
    model = PiGNNClassifier.load(tmp_path / "model").model_
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())


def test_warnings_are_lines_that_the_log_keeps(tmp_path):
    loops = [graph.copy() for graph in GRAPHS]
    for graph in loops:
        graph.add_edge(0, 0)
    path = write_json_lines(tmp_path / "g.jsonl", loops, kind=NAMES)
    done = run_command("train", path, "--out", tmp_path / "run", *FAST)
    assert done.exit_code == 0, done.output
    assert done.stderr.count("warning: removed 20 self-loops") == 1
    assert "warning: removed 20 self-loops" in (tmp_path / "run" / "log.txt").read_text()


def test_what_only_test_graphs_carry_is_told_before_training(tmp_path):
    odd = [graph.copy() for graph in GRAPHS]
    _, test = hold_out(np.array(NAMES), 0.1, 0)
    nx.set_edge_attributes(odd[test[0]], 2.0, "weight")
    path = write_json_lines(tmp_path / "g.jsonl", odd, kind=NAMES)
    done = run_command("train", path, "--out", tmp_path / "run", *FAST)
    assert done.exit_code == 2
    assert f"graph {test[0] + 1}: it has edge weights, but the model was" in done.stderr
    assert "choose another seed, or a test fraction of 0" in done.stderr
    assert not (tmp_path / "run" / "checkpoint.bin").exists()
    assert run_command("train", path, "--out", tmp_path / "b", "--seed", 1, *FAST).exit_code == 0


def test_graphs_of_a_part_are_called_as_the_file_calls_them(tmp_path):
    odd = [graph.copy() for graph in GRAPHS]
    _, test = hold_out(np.array(NAMES), 0.1, 0)
    for k, graph in enumerate(odd):
        nx.set_node_attributes(graph, "new" if k == test[-1] else "old", "label")
    path = write_json_lines(tmp_path / "g.jsonl", odd, kind=NAMES)
    done = run_command("train", path, "--out", tmp_path / "run", *FAST)
    assert done.exit_code == 0, done.output
    assert f"warning: graph {test[-1] + 1}: " in done.stderr


def test_a_name_with_a_comma_stands_in_quotes(tmp_path):
    sizes = {"log P, measured": [float(len(graph)) + 0.5 for graph in GRAPHS]}
    path = write_json_lines(tmp_path / "g.jsonl", GRAPHS, kind=NAMES, **sizes)
    wanted = ("--target", '"log P, measured"')
    done = run_command("train", path, "--out", tmp_path / "run", *wanted, *FAST)
    assert done.exit_code == 0, done.output
    assert "target log P, measured: regression (5 distinct numbers)" in done.stderr


def test_directed_graphs_are_answered_with_the_option(tmp_path):
    arcs = [nx.DiGraph(list(graph.edges)) for graph in GRAPHS]
    path = write_json_lines(tmp_path / "g.jsonl", arcs, kind=NAMES)
    done = run_command("train", path, "--out", tmp_path / "run", *FAST)
    assert done.exit_code == 2
    assert "set symmetrise to treat every edge" in done.stderr


def test_pictures_are_of_graphs_of_different_sizes(monkeypatch, tmp_path):
    monkeypatch.setattr(run_folder, "PICTURES", 6)
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append((figure, path.name)))
    out = tmp_path / "run"
    odd = [nx.empty_graph(1), nx.empty_graph(3), *GRAPHS, nx.path_graph(200)]
    path = write_json_lines(tmp_path / "g.jsonl", odd, kind=["ring", "clique", *NAMES, "ring"])
    assert run_command("train", path, "--out", out, *FAST).exit_code == 0
    (_, curve), *pictures = drawn
    assert curve == "curve.png"
    assert len(pictures) == 6
    assert "graph-1.png" in {name for _, name in pictures}  # as the file counts them
    assert "graph-23.png" not in {name for _, name in pictures}  # too large to look at
    for figure, _ in pictures:
        titles = [axis.get_title() for axis in figure.axes]
        assert titles[:4] == ["graph", "soft permutation D", "adjacency A", "aligned DᵀAD"]


def test_graphs_too_large_to_draw_are_not_drawn(monkeypatch, data, tmp_path):
    monkeypatch.setattr(run_folder, "PREFERRED_SIZE", 3)
    assert run_command("train", data, "--out", tmp_path / "a", *FAST).exit_code == 0
    assert len(list((tmp_path / "a" / "pictures").iterdir())) == 1
    monkeypatch.setattr(run_folder, "LARGEST_SIZE", 4)
    assert run_command("train", data, "--out", tmp_path / "b", *FAST).exit_code == 0
    assert not (tmp_path / "b" / "pictures").exists()
    assert "and 0 pictures" in (tmp_path / "b" / "log.txt").read_text()


def test_off_a_terminal_progress_is_lines(data, tmp_path, monkeypatch):
    monkeypatch.setattr("softperm.progress.LOG_EVERY_SECONDS", 0.0)
    held = ("--validation-fraction", 0.1)
    said = run_command("train", data, "--out", tmp_path / "run", *FAST, *held).stderr
    for epoch in (1, 2):
        assert re.search(
            rf"^training: {epoch} of 2 .*, loss \d.*, validation \d.*, accuracy \d",
            said,
            re.MULTILINE,
        )
    assert "training: 2 of 2" in (tmp_path / "run" / "log.txt").read_text()
    assert "training: " not in run_command(
        "train", data, "--out", tmp_path / "quiet", *FAST, "--no-progress"
    ).stderr  # fmt: skip


def test_fields_that_are_read_are_called_as_the_user_calls_them(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "save", DRAW)
    graphs = [graph.copy() for graph in GRAPHS]
    for graph in graphs:
        nx.set_node_attributes(graph, {v: "ab"[k % 2] for k, v in enumerate(graph)}, "op")
        nx.set_edge_attributes(graph, 2.0, "weight")
    data = write_json_lines(tmp_path / "g.jsonl", graphs, kind=NAMES)
    done = run_command("train", data, "--out", tmp_path / "run", *FAST, "--vertex-labels", "op")
    assert done.exit_code == 0, done.output
    assert "fields of the graphs: vertex labels op (2 values), edge weights" in done.stderr
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["vocabulary"]["columns"] == {"label": ["op"]}
