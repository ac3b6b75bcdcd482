"""``softperm predict`` and ``softperm embed``: a row for each graph, in every file format."""

import csv
import json
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from samples import FAST, labelled_path, rings_and_cliques, run_command, write_json_lines

from softperm import PiGNNClassifier, PiGNNRegressor

GRAPHS, KIND = rings_and_cliques(12)
NAMES = ["clique" if kind else "ring" for kind in KIND]
SIZES = np.array([float(len(graph)) for graph in GRAPHS])


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Graphs whose file has targets that are not the classes of the model."""
    return write_json_lines(tmp_path_factory.mktemp("data") / "g.jsonl", GRAPHS, kind=["?"] * 12)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[PiGNNClassifier, Path]:
    folder = tmp_path_factory.mktemp("model")
    made = PiGNNClassifier(**FAST).fit(GRAPHS, NAMES)
    made.save(folder)
    return made, folder


def table(path: Path) -> tuple[list[str], list[list[str]]]:
    header, *rows = csv.reader(path.read_text().splitlines())
    return header, rows


def test_classes_come_with_their_probabilities(trained, data, tmp_path):
    made, folder = trained
    out = tmp_path / "new" / "p.csv"
    done = run_command("predict", folder, data, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"graphs": 12, "predictions": str(out)}
    header, rows = table(out)
    assert header == ["graph", "prediction", "probability_clique", "probability_ring", "problem"]
    assert [row[0] for row in rows] == [str(i + 1) for i in range(12)]
    assert [row[1] for row in rows] == made.predict(GRAPHS).tolist()
    chances = np.array([row[2:4] for row in rows], dtype=float)
    np.testing.assert_allclose(chances, made.predict_proba(GRAPHS), rtol=0, atol=1e-6)
    assert {row[-1] for row in rows} == {""}


def test_answers_and_numbers_have_a_column_each(data, tmp_path):
    y = np.stack([KIND, 1 - KIND], axis=1)
    PiGNNClassifier(**FAST).fit(GRAPHS, y).save(tmp_path / "answers")
    PiGNNRegressor(**FAST).fit(GRAPHS, SIZES).save(tmp_path / "number")
    PiGNNRegressor(**FAST).fit(GRAPHS, np.stack([SIZES, SIZES], 1)).save(tmp_path / "numbers")
    pairs = ["prediction_0", "prediction_1"]
    expected = {
        "answers": [*pairs, "probability_0", "probability_1"],
        "number": ["prediction"],
        "numbers": pairs,
    }
    for name, columns in expected.items():
        out = tmp_path / f"{name}.csv"
        assert run_command("predict", tmp_path / name, data, "--out", out).exit_code == 0
        header, rows = table(out)
        assert header == ["graph", *columns, "problem"]
        values = np.array([row[:-1] for row in rows], dtype=float)
        assert np.isfinite(values).all()
    made = PiGNNRegressor.load(tmp_path / "number")
    found = [float(row[1]) for row in table(tmp_path / "number.csv")[1]]
    np.testing.assert_allclose(found, made.predict(GRAPHS), rtol=1e-6)


def named(estimator, name: str, folder: Path) -> Path:
    """A model folder whose target has a name, as one of softperm train."""
    estimator.target_names_ = (name,)
    estimator.save(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    named(PiGNNClassifier(**FAST).fit(GRAPHS, NAMES), "kind", folder / "kind")
    named(PiGNNRegressor(**FAST).fit(GRAPHS, SIZES), "mass", folder / "mass")
    PiGNNRegressor(**FAST).fit(GRAPHS, SIZES).save(folder / "unnamed")
    return folder


@pytest.mark.parametrize(
    ("model", "targets", "reason"),
    [
        (
            "kind",
            {"name": range(12)},
            "the model predicts kind, and the graphs have name; a target",
        ),
        ("mass", {"id": range(12)}, "the model predicts mass, and the graphs have id; a target of"),
        (
            "mass",
            {"a": range(12), "b": range(12)},
            "the model predicts mass, and the graphs have a, b; a target of the same name",
        ),
        ("mass", {"mass": [None] * 12}, "the target mass is missing for all graphs"),
        ("kind", {"kind": ["?"] * 12}, "class '?' is not among those of training"),
        ("unnamed", {"id": range(12)}, "the model predicts targets without names, and the graphs"),
        ("mass", {}, None),
    ],
)
def test_a_score_that_is_not_computed_has_a_reason(models, model, targets, reason, tmp_path):
    data = write_json_lines(tmp_path / "g.jsonl", GRAPHS, **targets)
    done = run_command("predict", models / model, data, "--out", tmp_path / "p.csv", "--json")
    assert done.exit_code == 0, done.output
    assert "score" not in json.loads(done.stdout)
    lines = done.stderr.splitlines()
    assert len(lines) == (reason is not None)
    assert reason is None or f"no score: {reason}" in lines[0]


@pytest.mark.parametrize(
    ("model", "name", "values"),
    [("kind", "label", NAMES), ("kind", "kind", [*NAMES[:11], None]), ("mass", "target", SIZES)],
)
def test_the_only_target_of_a_file_is_scored(models, model, name, values, tmp_path):
    data = write_json_lines(tmp_path / "g.jsonl", GRAPHS, **{name: values})
    done = run_command("predict", models / model, data, "--out", tmp_path / "p.csv", "--json")
    said = json.loads(done.stdout)
    known = [i for i, value in enumerate(values) if value is not None]
    made = (PiGNNRegressor if model == "mass" else PiGNNClassifier).load(models / model)
    graphs, y = [GRAPHS[i] for i in known], [values[i] for i in known]
    expected = abs(made.predict(graphs) - y).mean() if model == "mass" else made.score(graphs, y)
    assert said["score"] == pytest.approx(expected)
    assert said["scored_graphs"] == len(known)
    assert said.get("scored_target") == (None if name == model else name)


def test_columns_are_called_by_the_targets_of_a_run(one_quick_picture, tmp_path):
    rows = [f"{'C' * n},{n},{n / 2}" for n in range(1, 9)]
    molecules = tmp_path / "molecules.csv"
    molecules.write_text("\n".join(["smiles,size,half", *rows]))
    fast = ["--epochs", 1, "--latent-vertices", 2, "--task", "regression", "--test-fraction", 0]
    for targets in (["size", "half"], ["half"]):
        run, out = tmp_path / targets[0], tmp_path / "out.csv"
        given = ["--target", ",".join(targets), "--out", run, *fast]
        assert run_command("train", molecules, *given).exit_code == 0
        assert run_command("predict", run, molecules, "--out", out).exit_code == 0
        several = [f"prediction_{name}" for name in targets]
        assert table(out)[0] == [
            "graph", *(several if len(targets) > 1 else ["prediction"]), "problem",
        ]  # fmt: skip


def test_vectors_are_the_same_in_every_format(trained, data, tmp_path):
    made, folder = trained
    expected, names = made.transform(GRAPHS), made.get_feature_names_out().tolist()
    for ending in ("npz", "csv", "parquet", "jsonl"):
        out = tmp_path / f"v.{ending}"
        done = run_command("embed", folder, data, "--out", out, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == {"graphs": 12, "length": 16, "vectors": str(out)}
    with np.load(tmp_path / "v.npz", allow_pickle=False) as content:
        np.testing.assert_allclose(content["vectors"], expected, rtol=0, atol=1e-6)
        expected = content["vectors"]
        assert content["graph"].tolist() == [str(i + 1) for i in range(12)]
        assert content["name"].tolist() == names
    header, rows = table(tmp_path / "v.csv")
    assert header == ["graph", *names, "problem"]
    assert (np.array([row[1:-1] for row in rows], dtype=np.float32) == expected).all()
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [[line[name] for name in names] for line in lines] == expected.tolist()
    parquet = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "v.parquet")
    assert parquet.column_names == ["graph", *names, "problem"]
    columns = np.stack([parquet[name].to_numpy() for name in names], axis=1)
    assert (columns == expected).all()
    assert columns.dtype == np.float32


def test_parquet_without_its_library_says_what_to_install(trained, data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run_command("embed", trained[1], data, "--out", tmp_path / "v.parquet")
    assert done.exit_code == 2
    assert "pip install 'softperm[parquet]', or write .npz or .csv or .jsonl" in done.stderr


def test_unseen_labels_are_one_line_of_warning(tmp_path):
    words = [labelled_path(word) for word in ("ab", "ba", "aab", "abb")]
    PiGNNClassifier(**{**FAST, "validation_fraction": 0.0}).fit(words, [0, 1] * 2).save(
        tmp_path / "m"
    )
    path = write_json_lines(tmp_path / "g.jsonl", [labelled_path("az"), labelled_path("zz")])
    for command in ("predict", "embed"):
        done = run_command(command, tmp_path / "m", path, "--out", tmp_path / "out.csv")
        assert done.exit_code == 0, done.output
        warned = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
        (line,) = warned
        # The file counts its lines from 1.
        assert "graph 1 and 1 more: 3 vertices have labels that training did" in line


def test_directed_graphs_need_to_be_asked_for(trained, tmp_path):
    path = write_json_lines(tmp_path / "g.jsonl", [nx.DiGraph([(0, 1), (1, 2)])])
    out = ("--out", tmp_path / "p.csv")
    done = run_command("predict", trained[1], path, *out)
    assert done.exit_code == 2
    assert "is directed" in done.stderr
    assert run_command("predict", trained[1], path, *out, "--symmetrise").exit_code == 0


def test_a_model_on_the_hub_can_be_named(trained, data, tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def fetch(name, **_):
        asked.append(name)
        return str(trained[1])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    done = run_command("predict", "hf://someone/model", data, "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    assert set(asked) == {"someone/model"}


def test_a_larger_graph_than_any_in_training_is_predicted(trained, tmp_path):
    path = write_json_lines(tmp_path / "g.jsonl", [nx.path_graph(300)])
    done = run_command("predict", trained[1], path, "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    assert len(table(tmp_path / "p.csv")[1]) == 1


def test_directed_edges_are_read_as_in_training(tmp_path):
    made = PiGNNClassifier(**FAST, symmetrise=True)
    directed = [nx.DiGraph(graph.edges) for graph in GRAPHS]
    made.fit(directed, NAMES).save(tmp_path / "model")
    path = write_json_lines(tmp_path / "g.jsonl", directed)
    for command in ("predict", "embed"):
        done = run_command(command, tmp_path / "model", path, "--out", tmp_path / "t.csv")
        assert done.exit_code == 0, done.output
        assert "no result" not in done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, Path]:
    """A run folder of a training on labelled paths, and a file of more of them."""
    folder = tmp_path_factory.mktemp("nearest")
    graphs = [labelled_path("abbabaab"[: 3 + i % 5]) for i in range(20)]
    data = write_json_lines(folder / "g.jsonl", graphs, kind=["x", "y"] * 10)
    options = [f"--{k.replace('_', '-')}={v}" for k, v in FAST.items() if isinstance(v, int | float)
               and not isinstance(v, bool)]  # fmt: skip
    done = run_command(
        "train",
        data,
        "--out",
        folder / "run",
        "--test-fraction=0",
        *options,
        "--validation-fraction=0",
    )
    assert done.exit_code == 0, done.output
    return folder / "run", data


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_predictions_name_the_nearest_training_graphs_with_their_distances(run, ending, tmp_path):
    from softperm import GraphIndex

    folder, data = run
    out = tmp_path / f"p.{ending}"
    done = run_command("predict", folder, data, "--out", out, "--nearest", 2)
    assert done.exit_code == 0, done.output
    if ending == "csv":
        rows = list(csv.DictReader(out.read_text().splitlines()))
    elif ending == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    index = GraphIndex.open(folder / "training.index")
    assert len(rows) == len(index) == 20
    for row in rows:
        assert float(row["distance_1"]) == 0  # each graph was itself trained on
        assert str(row["proven_1"]) == str(row["proven_2"]) == "True"
        exact = index.nearest(index.graph(row["graph"]), 2)
        assert [float(row["distance_1"]), float(row["distance_2"])] == [h.distance for h in exact]
        assert row["nearest_2"] in index


def test_a_model_without_an_index_of_its_training_graphs_says_so(run, trained, data, tmp_path):
    folder, file = run
    done = run_command("predict", trained[1], data, "--out", tmp_path / "p.csv", "--nearest", 1)
    assert done.exit_code == 2
    assert "has no training.index" in done.output
    done = run_command("predict", folder, file, "--out", tmp_path / "p.csv", "--nearest", 21)
    assert done.exit_code == 2
    assert "the model has 20 training graphs, but the 21 nearest were requested" in done.output


def nearest_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_undecided_training_graphs_leave_an_interval_that_holds_the_distance(run, data, tmp_path):
    folder, file = run
    assert sorted(p.suffix for p in (folder / "training.index").iterdir()) == [
        ".json", ".safetensors",
    ]  # fmt: skip
    tables = []
    for limit in (1e-9, 10):
        out = tmp_path / f"{limit}.csv"
        options = ("--nearest", 3, "--time-limit", limit)
        done = run_command("predict", folder, file, "--out", out, *options)
        assert done.exit_code == 0, done.output
        tables.append(nearest_rows(out))
    for short, full in zip(*tables, strict=True):
        for rank in (1, 2, 3):
            assert (short[f"proven_{rank}"], full[f"proven_{rank}"]) == ("False", "True")
            assert full[f"lower_bound_{rank}"] == full[f"distance_{rank}"]
            exact = float(full[f"distance_{rank}"])
            lower, upper = (float(short[f"{kind}_{rank}"]) for kind in ("lower_bound", "distance"))
            assert lower <= exact <= upper < float("inf")
            assert short[f"nearest_{rank}"]


def test_a_graph_with_unseen_labels_is_as_far_as_its_edges_at_them(run, tmp_path):
    folder, _ = run
    file = write_json_lines(tmp_path / "g.jsonl", [labelled_path("zzz"), labelled_path("abz")])
    done = run_command("predict", folder, file, "--out", tmp_path / "p.csv", "--nearest", 1)
    assert done.exit_code == 0, done.output
    rows = nearest_rows(tmp_path / "p.csv")
    # the least training graph is the path abb of two edges, which share the edge ab with abz
    assert [(float(row["distance_1"]), row["proven_1"]) for row in rows] == [
        (4.0, "True"), (2.0, "True"),
    ]  # fmt: skip


def test_nearest_training_graphs_resume_after_an_interruption(run, tmp_path, monkeypatch):
    from softperm.data.formats import shards
    from softperm.estimators import streaming
    from softperm.search.training_index import NearestTrainingGraphs

    folder, file = run
    for module in (streaming, shards):
        monkeypatch.setattr(module, "ROWS", 8)
    command = ("predict", folder, file, "--nearest", 2, "--processes", 1, "--out")
    assert run_command(*command, tmp_path / "whole.csv").exit_code == 0
    calls, whole = [], NearestTrainingGraphs.__call__

    def stop_at_the_third(self, graphs):
        calls.extend([] if graphs is None else [len(graphs)])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(self, graphs)

    monkeypatch.setattr(NearestTrainingGraphs, "__call__", stop_at_the_third)
    assert run_command(*command, tmp_path / "p.csv").exit_code != 0
    assert run_command(*command, tmp_path / "p.csv").exit_code == 0
    assert calls == [8, 8, 4, 4]  # whole parts are kept
    assert (tmp_path / "p.csv").read_text() == (tmp_path / "whole.csv").read_text()


def test_the_time_limit_does_not_count_the_compilation_of_kernels(run, monkeypatch):
    from softperm import GraphIndex
    from softperm.search import index as index_module

    clock, search = [0.0], index_module.search_candidates
    monkeypatch.setattr(index_module, "perf_counter", lambda: clock[0])

    def slow_at_first(*arguments):
        if not clock[0]:
            clock[0] = 5.0
        return search(*arguments)

    monkeypatch.setattr(index_module, "search_candidates", slow_at_first)
    index = GraphIndex.open(run[0] / "training.index")
    found = index.nearest(index.graph(index.ids[0]), 1, time_limit=1.0)
    assert [(hit.distance, hit.proven) for hit in found] == [(0.0, True)]
