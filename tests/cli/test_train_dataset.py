"""``softperm train --dataset``: a dataset by name, its official split, a whole run folder."""

import csv
import gzip
import inspect
import json
import lzma
from pathlib import Path

import pytest
import torch
from samples import run_command, same_weights

from softperm.cli import runs
from softperm.cli import train as command
from softperm.cli.dataset_runs import configure, pose
from softperm.cli.train import ONLY_DATASET, ONLY_FILE
from softperm.cli.trained import load_trained
from softperm.data.datasets import load_dataset
from softperm.nn.model import PiGNN
from softperm.training.fit import predict
from softperm.training.run import Run
from softperm.training.tasks import MultiLabel, Regression

pytest.importorskip("rdkit")
FAST = ("--epochs", 3, "--latent-vertices", 4, "--hidden", 8, "--batch-size", 8, "--device", "cpu")
PATH = [(1, 2), (2, 1), (2, 3), (3, 2)]
SMILES = ["CCO", "c1ccccc1", "CC(=O)O", "C#N", "CCN", "OCCO", "c1ccncc1", "CF", "CCF", "C=C"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch, cache):
    monkeypatch.delenv("SOFTPERM_DATA", raising=False)
    monkeypatch.setenv("SOFTPERM_CACHE", str(cache))
    monkeypatch.setenv("SOFTPERM_MIRROR", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr(runs.plots, "save", lambda *_: None)


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


def train(root: Path, out: Path, *arguments: object):
    return run_command("train", "--data-root", root, "--out", out, *FAST, "--json", *arguments)


@pytest.mark.parametrize(
    ("arguments", "metric"),
    [
        (("--dataset", "ogbg-molhiv"), "roc_auc"),
        (("--dataset", "ogbg-molpcba", "--categories", "embedding"), "average_precision"),
        (("--dataset", "qm9", "--target", "U0"), "mae"),
    ],
)
def test_a_dataset_is_trained_on_its_split_and_tested_once(
    arguments, metric, root, tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr(runs.plots, "save", lambda _, path: drawn.append(path))
    done = train(root, tmp_path / "run", *arguments)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["metric"] == metric
    assert result["epochs"] == 3
    run = tmp_path / "run"
    assert json.loads((run / "result.json").read_text()) == result
    assert {p.name for p in run.iterdir()} == {
        "config.json", "curve.csv", "log.txt", "model", "pictures", "result.json",
    }  # fmt: skip
    assert 1 <= len(drawn) - 1 <= 6, "the training curve, and a handful of graphs"
    assert {path.parent for path in drawn} == {run, run / "pictures"}
    model = PiGNN.load(run / "model")
    wanted = ["u0"] if "qm9" in arguments else None
    problem = pose(arguments[1], root, wanted, seed=0, progress=False)
    codes = "embedding" in arguments
    test = problem.examples(problem.split.test, codes)
    outputs = predict(model, test.graphs, test.index, 8, torch.device("cpu"))
    assert problem.task.score(outputs, problem.y[test.index]) == pytest.approx(result["test_score"])
    assert result["test_graphs"] == len(test.index) == (3 if "qm9" in arguments else 6)
    assert bool(model.config.label_sizes) is codes


@pytest.mark.parametrize(
    ("arguments", "column"),
    [
        (("--dataset", "ogbg-molhiv"), "probability"),
        (("--dataset", "ogbg-molpcba", "--categories", "embedding"), "probability_1"),
        (("--dataset", "qm9", "--target", "U0"), "prediction"),
    ],
)
def test_what_was_trained_on_molecules_predicts_for_a_table_of_them(
    arguments, column, root, tmp_path
):
    """Their features are those of the dataset, so predictions are those for the dataset."""
    assert train(root, tmp_path / "run", *arguments).exit_code == 0
    table = tmp_path / "molecules.csv"
    table.write_text("\n".join(["smiles", *SMILES]) + "\n")
    for folder in (tmp_path / "run", tmp_path / "run" / "model"):
        done = run_command("predict", folder, table, "--out", tmp_path / "p.csv", "--device", "cpu")
        assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert [row["graph"] for row in rows] == SMILES
    problem = pose(arguments[1], root, ["u0"] if "qm9" in arguments else None, 0, False)
    same = problem.examples(torch.arange(10), "embedding" in arguments)  # the first ten molecules
    model = PiGNN.load(tmp_path / "run" / "model")
    outputs = predict(model, same.graphs, same.index, 64, torch.device("cpu"))
    if column == "prediction":
        expected = problem.task.decode(outputs)[:, 0]
    else:
        expected = outputs.double().sigmoid()[:, 1 if column == "probability_1" else 0]
    found = torch.tensor([float(row[column]) for row in rows])
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)
    out = tmp_path / "vectors.csv"
    done = run_command("embed", tmp_path / "run", table, "--out", out, "--device", "cpu")
    assert done.exit_code == 0, done.output
    header, *vectors = csv.reader(out.read_text().splitlines())
    assert {len(row) for row in vectors} == {len(header)}
    with torch.no_grad():
        aligned = model.transform(same.graphs.batch(same.index))
    torch.testing.assert_close(
        torch.tensor([list(map(float, row[1:])) for row in vectors]), aligned, rtol=1e-5, atol=1e-5
    )


def test_what_was_trained_on_a_collection_predicts_for_its_files(tmp_path):
    files = tmp_path / "root" / "tu" / "TINY"
    files.mkdir(parents=True)
    texts = {
        "A": "".join(f"{3 * g + a}, {3 * g + b}\n" for g in range(20) for a, b in PATH),
        "graph_indicator": "".join(f"{g + 1}\n" * 3 for g in range(20)),
        "graph_labels": "".join(f"{(-1, 1)[g % 2]}\n" for g in range(20)),
        "node_labels": "".join(f"{7 if g % 2 else 4}\n9\n4\n" for g in range(20)),
    }
    for name, text in texts.items():
        (files / f"TINY_{name}.txt").write_text(text)
    done = train(tmp_path / "root", tmp_path / "run", "--dataset", "TINY")
    assert done.exit_code == 0, done.output
    out = tmp_path / "p.csv"
    done = run_command("predict", tmp_path / "run", files, "--out", out, "--device", "cpu")
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    problem = pose("TINY", tmp_path / "root", None, 0, False)
    graphs = problem.examples(torch.arange(20), False)
    model = PiGNN.load(tmp_path / "run" / "model")
    outputs = predict(model, graphs.graphs, graphs.index, 64, torch.device("cpu"))
    chances = torch.tensor([[float(r["probability_-1"]), float(r["probability_1"])] for r in rows])
    torch.testing.assert_close(chances, outputs.softmax(1), rtol=1e-5, atol=1e-6)
    assert {row["prediction"] for row in rows} <= {"-1", "1"}


def test_a_network_that_does_not_say_how_it_reads_graphs_is_refused(root, tmp_path):
    assert train(root, tmp_path / "run", "--dataset", "ogbg-molhiv").exit_code == 0
    table = tmp_path / "wrong.csv"
    table.write_text("smiles\nC\n")
    reading = tmp_path / "run" / "model" / "reading.json"
    for content, sentence in (("[]", "reading.json is damaged"), (None, "give the run folder")):
        reading.unlink()
        if content is not None:
            reading.write_text(content)
        done = run_command("predict", tmp_path / "run", table, "--out", tmp_path / "p.csv")
        assert done.exit_code == 2
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1


def test_targets_keep_the_order_in_which_they_are_asked_for(root):
    dataset = load_dataset("QM9", root)
    turned = list(reversed(dataset.target_names))
    problem = pose("QM9", root, [*turned, turned[0]], 0, False)
    assert problem.targets == tuple(turned)
    assert torch.equal(problem.y, dataset.y.flip(1))


def test_what_is_learnt_follows_from_name_and_targets(root):
    several = pose("OGBG-MOLPCBA", root, None, 0, False)
    assert several.task == MultiLabel(2, metric="average_precision")
    assert several.targets == ("a", "b")
    assert several.split.train.tolist() == list(range(18))
    one = pose("ogbg-molpcba", root, ["B"], 0, False)
    assert one.y.shape == (30, 1)
    assert one.y.isnan().sum() == 6
    energy = pose("QM9", root, ["alpha"], 3, False)
    assert isinstance(energy.task, Regression)
    assert energy.y[:, 0].tolist() == pytest.approx([i / 7 for i in range(30)])
    again = load_dataset("QM9", root).random_split(3)
    assert torch.equal(energy.split.test, again.test)


def test_the_unit_of_an_error_is_told(root, tmp_path):
    result = json.loads(train(root, tmp_path, "--dataset", "qm9", "--target", "alpha").stdout)
    assert result["unit"] == "bohr³"


def test_embedding_and_one_hot_are_two_networks(root):
    problem = pose("ogbg-molhiv", root, None, 0, False)
    hot = configure(problem, {}, "one-hot", "auto")
    embedded = configure(problem, {"embedding_size": 7}, "embedding", None)
    assert (hot.attribute_size, hot.edge_attribute_size) == (174, 13)
    assert (embedded.attribute_size, embedded.edge_attribute_size) == (0, 0)
    assert (sum(embedded.label_sizes), sum(embedded.edge_label_sizes)) == (174, 13)
    assert (embedded.vertex_width, embedded.edge_width) == (7, 8)
    assert hot.capacity == int(problem.dataset.collection.sizes[problem.split.train].max())
    assert embedded.capacity is None
    with pytest.raises(ValueError, match="--categories must be one-hot or embedding; got 'x'"):
        configure(problem, {}, "x", None)


def test_time_that_is_up_leaves_a_model_no_test_score_and_a_way_to_go_on(root, tmp_path):
    def run(name: str, *more: object):
        return train(root, tmp_path / name, "--dataset", "ogbg-molhiv", *more)

    assert run("whole").exit_code == 0
    stopped = run("parts", "--max-time", "0.000001s")
    assert stopped.exit_code == 130
    result = json.loads(stopped.stdout)
    assert result["interrupted"] is True
    assert "test_score" not in result
    assert PiGNN.load(tmp_path / "parts" / "model").config.outputs == 1
    log = tmp_path / "parts" / "log.txt"
    assert "stopped after 0 of 3 epochs; the same command with" in log.read_text()
    assert "a training was stopped" not in log.read_text()
    assert not (tmp_path / "parts" / "curve.csv").exists(), "there is nothing to draw yet"
    with pytest.warns(UserWarning, match="was stopped before its end: its command goes on"):
        load_trained(str(tmp_path / "parts"), "cpu")
    assert run("parts", "--max-time", "1h").exit_code == 0
    assert "parts after 0 epochs; with the same settings it goes on" in log.read_text()
    load_trained(str(tmp_path / "parts"), "cpu")
    assert (tmp_path / "parts" / "curve.csv").exists()
    ours, theirs = (PiGNN.load(tmp_path / name / "model") for name in ("parts", "whole"))
    same_weights(ours, theirs)
    refused = run("parts")
    assert "holds a finished run" in refused.stderr


def test_settings_reach_the_training(root, tmp_path, monkeypatch):
    seen = []
    begin = Run.__init__

    def noting(self, fabric, model, task, train, validation, config):
        seen.append((config, fabric.strategy.precision.precision))
        begin(self, fabric, model, task, train, validation, config)

    monkeypatch.setattr(Run, "__init__", noting)
    more = "--accumulate 2 --clip 1.5 --ema 0.9 --decay 0.5 --decay-patience 3 --max-time 2h30m"
    more += " --precision bf16-mixed --learning-rate 0.01 --patience 2 --criterion score"
    done = train(root, tmp_path, "--dataset", "ogbg-molhiv", *more.split())
    assert done.exit_code == 0, done.output
    ((config, precision),) = seen
    assert (config.learning_rate, config.patience, config.criterion) == (0.01, 2, "score")
    assert (config.accumulate, config.clip, config.ema) == (2, 1.5, 0.9)
    assert (config.decay, config.decay_patience, config.max_time) == (0.5, 3, 9000.0)
    assert precision == "bf16-mixed"
    told = json.loads((tmp_path / "config.json").read_text())
    assert (told["dataset"], told["accumulate"], told["max_time"]) == ("ogbg-molhiv", 2, 9000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name either a file of graphs or a --dataset"),
        (("g.jsonl", "--dataset", "qm9"), "name either a file of graphs or a --dataset"),
        (("g.jsonl", "--precision", "bf16-mixed"), "--precision is for a --dataset: leave it out"),
        (("--dataset", "qm9", "--test-fraction", 0.2), "--test-fraction is for a file of graphs"),
        (("--dataset", "qm9"), "QM9 has the targets mu, alpha, homo"),
        (("--dataset", "qm9", "--target", "U9"), "name what to learn with --target, not 'U9'"),
        (("--dataset", "ogbg-molx"), "expected one of ogbg-molhiv, ogbg-molpcba"),
        (("--dataset", "qm9", "--max-time", "soon"), "--max-time must be a time span such as 90s"),
        (
            ("--dataset", "qm9", "--target", "mu", "--ema", 2),
            "ema must be a number between 0 and 1",
        ),
        (
            ("--dataset", "qm9", "--target", "mu", "--precision", "16-mixed"),
            "precision 16-mixed needs a GPU",
        ),
    ],
)
def test_bad_options_are_one_sentence(arguments, message, root, tmp_path):
    more = ("--data-root", root) if "--dataset" in arguments and "g.jsonl" not in arguments else ()
    plain = ("--epochs", 1, "--device", "cpu", "--out", tmp_path / "run")
    done = run_command("train", *arguments, *plain, *more)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_options_of_one_source_only_are_options():
    names = set(inspect.signature(command.train).parameters)
    assert names >= ONLY_DATASET | ONLY_FILE


def test_a_checkpoint_of_other_settings_is_refused(root, tmp_path):
    stop = ("--max-time", "0.000001s")
    train(root, tmp_path, "--dataset", "ogbg-molhiv", *stop)
    before = (tmp_path / "config.json").read_text()
    done = train(root, tmp_path, "--dataset", "ogbg-molhiv", "--ema", 0.5)
    assert (tmp_path / "config.json").read_text() == before
    assert done.exit_code == 2
    assert "belongs to a training with other data or settings" in done.stderr
