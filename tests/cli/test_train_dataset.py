"""``softperm train`` on datasets: official splits, all options, one kind of model folder."""

import csv
import gzip
import json
import lzma
import zipfile
from pathlib import Path

import pytest
import torch
from samples import as_options, run_command, same_weights

from softperm import PiGNNClassifier, PiGNNRegressor
from softperm.cli.inputs import model_folder
from softperm.data.datasets import load_dataset
from softperm.explore import plots
from softperm.settings import PAPER
from softperm.training import sources
from softperm.training.data import TrainingData
from softperm.training.loop import OneModel, predict
from softperm.training.tasks import MultiLabel, Regression

pytest.importorskip("rdkit")
FAST = (
    *as_options({k: v for k, v in PAPER.items() if k != "validation_fraction"}),
    "--epochs", 3, "--latent-vertices", 4, "--hidden", 8, "--batch-size", 8, "--device", "cpu",
)  # fmt: skip
PATH = [(1, 2), (2, 1), (2, 3), (3, 2)]
SMILES = ["CCO", "c1ccccc1", "CC(=O)O", "C#N", "CCN", "OCCO", "c1ccncc1", "CF", "CCF", "C=C"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch, cache):
    monkeypatch.delenv("SOFTPERM_DATA", raising=False)
    monkeypatch.setenv("SOFTPERM_CACHE", str(cache))
    monkeypatch.setenv("SOFTPERM_MIRROR", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr(plots, "save", lambda *_: None)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A data root with a small molpcba, molhiv and QM9."""
    root = tmp_path_factory.mktemp("root")
    rows = [(i % 2, "" if i % 5 == 0 else i % 3 % 2, SMILES[i % 10]) for i in range(30)]
    write_ogb(
        root / "ogbg-molpcba", "a,b", [f"{a},{b},{s},C{i}" for i, (a, b, s) in enumerate(rows)]
    )
    write_ogb(
        root / "ogbg-molhiv", "HIV_active", [f"{a},{s},C{i}" for i, (a, _, s) in enumerate(rows)]
    )
    names = "index,smiles,mu,alpha,homo,lumo,gap,r2,zpve,u0,u298,h298,g298,cv"
    lines = [
        f"{i},{SMILES[i % 10]},{','.join(str(i * k / 7) for k in range(12))}" for i in range(30)
    ]
    (root / "qm9").mkdir()
    text = "\n".join([names, *lines]) + "\n"
    (root / "qm9" / "qm9_130831.csv.xz").write_bytes(lzma.compress(text.encode()))
    return root


def write_ogb(folder: Path, names: str, lines: list[str]) -> None:
    numbers = [str(i) for i in range(len(lines))]
    texts = {
        "mapping/mol": [f"{names},smiles,mol_id", *lines],
        "split/scaffold/train": numbers[:18],
        "split/scaffold/valid": numbers[18:24],
        "split/scaffold/test": numbers[24:],
    }
    for place, rows in texts.items():
        path = folder / f"{place}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))


def read(name: str, root: Path, targets: list[str] | None = None, seed: int = 0) -> TrainingData:
    """The data that ``softperm train`` learns from by default."""
    official = {"test_fraction": None, "validation_fraction": None}
    return sources.from_dataset(load_dataset(name, root), targets, **official, seed=seed)


def train(root: Path, out: Path, *arguments: object):
    return run_command("train", "--data-root", root, "--out", out, *FAST, "--json", *arguments)


def load(run: Path, kind=PiGNNClassifier):
    return kind.load(run / "model", device="cpu")


CASES = [
    (("ogbg-molhiv",), "roc_auc", "probability"),
    (("ogbg-molpcba", "--categories", "embedding"), "average_precision", "probability_b"),
    (("qm9", "--target", "U0"), "mae", "prediction"),
]


@pytest.mark.parametrize(("arguments", "metric", "column"), CASES)
def test_a_dataset_is_trained_on_its_split_and_its_model_reads_tables_and_datasets(
    arguments, metric, column, root, tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr(plots, "save", lambda _, path: drawn.append(path))
    run, wanted = tmp_path / "run", ["u0"] if "qm9" in arguments else None
    done = train(root, run, *arguments)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["metric"] == metric
    assert result["epochs"] == 3
    assert json.loads((run / "result.json").read_text()) == result
    assert {p.name for p in run.iterdir()} == {
        "config.json", "curve.csv", "log.txt", "model", "pictures", "result.json",
        "training.index",
    }  # fmt: skip
    assert 1 <= len(drawn) - 1 <= 6, "the training curve, and a few graphs"
    assert {path.parent for path in drawn} == {run, run / "pictures"}
    assert {p.name for p in (run / "model").iterdir()} == {"config.json", "model.safetensors"}

    estimator = load(run, PiGNNRegressor if "qm9" in arguments else PiGNNClassifier)
    data, codes = read(arguments[0], root, wanted), "embedding" in arguments
    assert estimator.model_.config.embeds_labels is codes
    assert estimator.task_ == data.task
    assert estimator.target_names_ == data.target_names
    test = data.examples(data.split.test, codes)
    outputs = predict(estimator.model_, test.graphs, test.index, 8, torch.device("cpu"))
    assert data.task.score(outputs, data.y[test.index]) == pytest.approx(result["test_score"])
    assert result["test_graphs"] == len(test.index) == (3 if "qm9" in arguments else 6)

    # A table of the first ten molecules gets the same features, so the same predictions.
    table, out = tmp_path / "molecules.csv", tmp_path / "p.csv"
    table.write_text("\n".join(["smiles", *SMILES]) + "\n")
    done = run_command("predict", run, table, "--out", out, "--device", "cpu")
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["graph"] for row in rows] == SMILES
    outputs = estimator._outputs(data.graphs)
    if column == "prediction":
        expected = data.task.decode(outputs)[:, 0]
    else:
        expected = outputs.double().sigmoid()[:, 1 if column == "probability_b" else 0]
    found = torch.tensor([float(row[column]) for row in rows])
    torch.testing.assert_close(found, expected[:10].float(), rtol=1e-5, atol=1e-6)

    # So do all molecules by the name of the dataset, which also has the targets to score.
    place = ("--data-root", root, "--device", "cpu")
    done = run_command("predict", run, arguments[0], "--out", out, *place, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["metric"], said["scored_graphs"]) == (metric, 30)
    assert said["score"] == pytest.approx(data.task.score(outputs, data.y))
    rows = list(csv.DictReader(out.read_text().splitlines()))
    found = torch.tensor([float(row[column]) for row in rows])
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)
    vectors = tmp_path / "vectors.csv"
    for source, count in ((table, 10), (arguments[0], 30)):
        done = run_command("embed", run, source, "--out", vectors, *place)
        assert done.exit_code == 0, done.output
        header, *lines = csv.reader(vectors.read_text().splitlines())
        assert header[1:] == [*estimator.get_feature_names_out(), "problem"]
        aligned = torch.from_numpy(estimator.transform(data.graphs)[:count])
        found = torch.tensor([list(map(float, row[1:-1])) for row in lines])
        torch.testing.assert_close(found, aligned, rtol=1e-5, atol=1e-5)


def write_tiny(folder: Path) -> Path:
    """Twenty labelled paths as a TUDataset."""
    files = folder / "tu" / "TINY"
    files.mkdir(parents=True)
    texts = {
        "A": "".join(f"{3 * g + a}, {3 * g + b}\n" for g in range(20) for a, b in PATH),
        "graph_indicator": "".join(f"{g + 1}\n" * 3 for g in range(20)),
        "graph_labels": "".join(f"{(-1, 1)[g % 2]}\n" for g in range(20)),
        "node_labels": "".join(f"{7 if g % 2 else 4}\n9\n4\n" for g in range(20)),
    }
    for name, text in texts.items():
        (files / f"TINY_{name}.txt").write_text(text)
    return files


def test_the_name_of_a_collection_and_its_files_give_the_same_model_and_predictions(tmp_path):
    files = write_tiny(tmp_path)
    for name, source in (("named", "TINY"), ("files", files)):
        done = train(tmp_path, tmp_path / name, source)
        assert done.exit_code == 0, done.output
    named, from_files = load(tmp_path / "named"), load(tmp_path / "files")
    same_weights(named.model_, from_files.model_)
    assert named.vocabulary_ == from_files.vocabulary_
    assert named.classes_.tolist() == from_files.classes_.tolist() == [-1, 1]
    tables, scores = [], []
    for run, source, other in (
        ("named", files, "graph_label"),
        ("files", "TINY", "class"),
        ("named", "TINY", None),
    ):
        out = tmp_path / "p.csv"
        place = ("--data-root", tmp_path, "--device", "cpu", "--json")
        done = run_command("predict", tmp_path / run, source, "--out", out, *place)
        assert done.exit_code == 0, done.output
        said = json.loads(done.stdout)
        assert said.get("scored_target") == other, "targets of another name are said"
        tables.append(out.read_text())
        scores.append((said["metric"], said["score"], said["scored_graphs"]))
    assert tables[0] == tables[1] == tables[2]
    assert scores[0] == scores[1] == scores[2]


def test_a_dataset_with_other_fields_than_in_training_is_refused(root, tmp_path):
    write_tiny(tmp_path)
    assert train(tmp_path, tmp_path / "run", "TINY").exit_code == 0
    out = ("--out", tmp_path / "p.csv", "--data-root", root)
    done = run_command("predict", tmp_path / "run", "ogbg-molhiv", *out)
    assert done.exit_code == 2
    assert "ogbg-molhiv has 9 columns of vertex labels, but the model was trained" in done.stderr


def test_targets_keep_the_order_in_which_they_are_named(root):
    dataset = load_dataset("QM9", root)
    turned = list(reversed(dataset.target_names))
    data = read("QM9", root, [*turned, turned[0]])
    assert data.target_names == tuple(turned)
    assert torch.equal(data.y, dataset.y.flip(1))


def test_the_task_follows_from_dataset_and_targets(root):
    several = read("OGBG-MOLPCBA", root)
    assert several.task == MultiLabel(2, metric="average_precision")
    assert several.target_names == ("a", "b")
    assert several.split.train.tolist() == list(range(18))
    one = read("ogbg-molpcba", root, ["B"])
    assert one.y.shape == (30, 1)
    assert one.y.isnan().sum() == 6
    energy = read("QM9", root, ["alpha"], seed=3)
    assert isinstance(energy.task, Regression)
    assert energy.y[:, 0].tolist() == pytest.approx([i / 7 for i in range(30)])
    assert [len(part) for part in (energy.split.validation, energy.split.test)] == [0, 3]


def test_fractions_replace_the_official_split(root):
    fractions = {"test_fraction": 0.2, "validation_fraction": None}
    data = sources.from_dataset(load_dataset("ogbg-molhiv", root), None, **fractions, seed=0)
    assert [len(part) for part in (data.split.validation, data.split.test)] == [0, 6]
    assert data.split.test.tolist() != read("ogbg-molhiv", root).split.test.tolist()


def test_the_unit_of_an_error_is_told(root, tmp_path):
    result = json.loads(train(root, tmp_path, "qm9", "--target", "alpha").stdout)
    assert result["unit"] == "bohr³"


def test_embedding_and_one_hot_are_two_networks(root):
    data = read("ogbg-molhiv", root)
    configs = []
    for settings in (
        {"capacity": "auto"},
        {"categories": "embedding", "embedding_size": 7, "capacity": None},
    ):
        configs.append(PiGNNClassifier(**settings).model_config(data))
    hot, embedded = configs
    assert (hot.attribute_size, hot.edge_attribute_size) == (174, 13)
    assert (embedded.attribute_size, embedded.edge_attribute_size) == (0, 0)
    assert (sum(embedded.label_sizes), sum(embedded.edge_label_sizes)) == (174, 13)
    assert (embedded.vertex_width, embedded.edge_width) == (7, 8)
    assert hot.capacity == int(data.graphs.sizes[data.split.train].max())
    assert embedded.capacity is None


def test_time_that_is_up_leaves_a_model_no_test_score_and_a_run_to_resume(root, tmp_path):
    def run(name: str, *more: object):
        return train(root, tmp_path / name, "ogbg-molhiv", *more)

    assert run("whole").exit_code == 0
    stopped = run("parts", "--max-time", "0.000001s")
    assert stopped.exit_code == 130
    result = json.loads(stopped.stdout)
    assert result["interrupted"] is True
    assert "test_score" not in result
    log = tmp_path / "parts" / "log.txt"
    assert "stopped after 0 of 3 epochs; the same command with" in log.read_text()
    assert "resuming" not in log.read_text()
    assert not (tmp_path / "parts" / "curve.csv").exists(), "there is nothing to draw yet"
    with pytest.warns(UserWarning, match="is not finished: the same softperm train command"):
        model_folder(str(tmp_path / "parts"))
    before = (tmp_path / "parts" / "config.json").read_text()
    refused = run("parts", "--ema", 0.5)
    assert refused.exit_code == 2
    assert "holds an unfinished run with other settings (ema was null, now 0.5)" in refused.stderr
    assert (tmp_path / "parts" / "config.json").read_text() == before
    assert run("parts", "--max-time", "1h").exit_code == 0
    assert f"resuming the run in {tmp_path / 'parts'} after 0 epochs" in log.read_text()
    model_folder(str(tmp_path / "parts"))
    same_weights(load(tmp_path / "parts").model_, load(tmp_path / "whole").model_)
    assert "holds a finished run" in run("parts").stderr


def test_settings_reach_the_training(root, tmp_path, monkeypatch):
    seen = []
    begin = OneModel.__init__

    def noting(self, fabric, model, task, train, validation, config):
        seen.append((config, fabric.strategy.precision.precision))
        begin(self, fabric, model, task, train, validation, config)

    monkeypatch.setattr(OneModel, "__init__", noting)
    more = "--accumulate 2 --clip 1.5 --ema 0.9 --decay 0.5 --decay-patience 3 --max-time 2h30m"
    more += " --precision bf16-mixed --learning-rate 0.01 --patience 2 --criterion score"
    done = train(root, tmp_path, "--dataset", "ogbg-molhiv", "--head-final", 5, *more.split())
    assert done.exit_code == 0, done.output
    ((config, precision),) = seen
    assert (config.learning_rate, config.patience, config.criterion) == (0.01, 2, "score")
    assert (config.accumulate, config.clip, config.ema) == (2, 1.5, 0.9)
    assert (config.decay, config.decay_patience, config.max_time) == (0.5, 3, 9000.0)
    assert precision == "bf16-mixed"
    assert load(tmp_path).model_.config.head_final == 5
    told = json.loads((tmp_path / "config.json").read_text())
    assert (told["dataset"], told["accumulate"], told["max_time"]) == ("ogbg-molhiv", 2, 9000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name one source of graphs: a file, or a dataset"),
        (("g.jsonl", "--dataset", "qm9"), "name one source of graphs: a file, or a dataset"),
        (("--dataset", "qm9", "--task", "regression"), "--task is for files of graphs"),
        (("--dataset", "qm9"), "QM9 has the targets mu, alpha, homo"),
        (("qm9", "--target", "U9"), "set target to those to learn, not 'U9'"),
        (("ogbg-molx",), "expected one of ogbg-molhiv, ogbg-molpcba"),
        (("qm9", "--max-time", "soon"), "--max-time must be a time span such as 90s"),
        (("qm9", "--head-hidden", "a"), "--head-hidden must be whole numbers separated"),
        (("qm9", "--ema", 2), "ema must be a number between 0 and 1"),
        (("qm9", "--precision", "16-mixed"), "precision 16-mixed needs a GPU"),
    ],
)
def test_bad_options_are_one_sentence(arguments, message, root, tmp_path):
    plain = ("--epochs", 1, "--device", "cpu", "--out", tmp_path / "run", "--data-root", root)
    done = run_command("train", *arguments, *plain)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def query(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("query") / "query.csv"
    path.write_text("smiles\nc1ccccc1\n")
    return path


def search(library: Path, queries: object, out: Path, *options: object) -> list[dict[str, str]]:
    done = run_command("search", library, queries, "--out", out, *options)
    assert done.exit_code == 0, done.output
    return list(csv.DictReader(out.read_text().splitlines()))


@pytest.mark.parametrize("archive", [False, True], ids=["folder", "zip"])
def test_molecules_of_a_dataset_are_indexed_by_its_name(archive, root, query, tmp_path):
    if archive:
        folder, root = root / "ogbg-molhiv", tmp_path
        with zipfile.ZipFile(root / "ogbg-molhiv.zip", "w") as packed:
            for path in folder.rglob("*.gz"):
                packed.write(path, f"hiv/{path.relative_to(folder)}")
    library = tmp_path / "library.index"
    options = ("--data-root", root, "--id-column", "mol_id")
    done = run_command("index", "ogbg-molhiv", "--out", library, *options)
    assert done.exit_code == 0, done.output
    hits = search(library, query, tmp_path / "hits.csv", "-k", 3)
    assert {row["distance"] for row in hits} == {"0.0"}
    assert {row["hit"] for row in hits} == {"C1", "C11", "C21"}


def test_distances_and_look_alikes_of_a_dataset_are_those_of_its_files(root, query, tmp_path):
    tiny = write_tiny(tmp_path / "root")
    place = ("--data-root", tmp_path / "root")
    written = []
    for name, data in (("named", "TINY"), ("files", tiny)):
        out = tmp_path / f"{name}.csv"
        done = run_command("distance", data, "--labels", "--out", out, *place)
        assert done.exit_code == 0, done.output
        library = tmp_path / f"{name}.index"
        assert run_command("index", data, "--out", library, *place).exit_code == 0
        hits = search(library, data, tmp_path / f"{name}-hits.csv", "-k", 2, *place)
        written.append((out.read_text(), hits))
    assert written[0] == written[1]
    done = run_command("index", "QM9", "--out", tmp_path / "qm9.index", "--data-root", root)
    assert done.exit_code == 0, done.output
    (hit,) = search(tmp_path / "qm9.index", query, tmp_path / "h.csv", "-k", 1)
    assert (hit["hit"], hit["distance"]) == ("c1ccccc1", "0.0")


@pytest.mark.parametrize("command", ["index", "distance"])
def test_a_name_that_no_dataset_has_is_one_sentence(command, root, tmp_path, monkeypatch):
    monkeypatch.setattr("softperm.data.datasets.store._ATTEMPTS", 1)
    out = tmp_path / ("d.csv" if command == "distance" else "library")
    done = run_command(command, "MUTAK", "--out", out, "--data-root", root)
    assert done.exit_code == 2
    assert "did you mean MUTAG?" in done.stderr.strip().splitlines()[-1]
    assert not out.exists()
