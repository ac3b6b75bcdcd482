"""Bad input: one sentence on standard error, exit code 2, never a traceback."""

import errno
import json
import os
import zipfile
from pathlib import Path

import networkx as nx
import pytest
import torch
from samples import labelled_path, rings_and_cliques, run_command, write_json_lines

from softperm.cli import app, inputs, run_folder
from softperm.cli.console import logging_to, only_writer
from softperm.explore import plots
from softperm.nn.model_folder import write_folder

GRAPHS, KIND = rings_and_cliques(8)
KIND = KIND.tolist()
FAST = ("--epochs", 1, "--latent-vertices", 3, "--hidden", 4, "--device", "cpu")


@pytest.fixture(autouse=True, scope="module")
def no_pictures():
    """Drawing takes longer than the training here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "_draw_some", lambda *_: 0)
        patch.setattr(plots, "save", lambda *_: None)
        yield


def refused(message: str, *arguments) -> None:
    """Raises unless the command answers with one line that says so, and with exit code 2."""
    done = run_command(*arguments)
    assert done.exit_code == 2, done.output
    lines = done.stderr.strip().splitlines()
    assert message in lines[-1], done.stderr
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in done.output
    assert not done.stdout


def line(nodes: list, links: list, kind=0) -> str:
    made = {"nodes": nodes, "links": links, "graph": {"kind": kind}}
    return json.dumps(made) + "\n"


def attributed(*values) -> list[dict]:
    return [{"id": i, "x": value} for i, value in enumerate(values)]


GOOD = line([{"id": 0}, {"id": 1}], [{"source": 0, "target": 1}], 1)

FILES = {
    "no graphs": ("\n\n", "holds no graphs; expected at least one"),
    "an edge to a missing vertex": (
        GOOD + line([{"id": 0}], [{"source": 0, "target": 7}]),
        "line 2: edge (0, 7) names vertex 7, which is not among the 1 nodes",
    ),
    "a NaN attribute": (line(attributed(float("nan")), []), "line 1: x of vertex 0 is nan"),
    "an infinite attribute": (line(attributed(0.5, 1e400), []), "line 1: x of vertex 1 is inf"),
    "mixed attribute sizes": (
        line(attributed([1, 2]), []) + line(attributed([1, 2]), []) + line(attributed([1]), []),
        "line 3: it has x of 1 value a vertex, but 2 other graphs have x of 2 values a vertex",
    ),
    "one class only": (GOOD * 4, "y has only one class, 1"),
    "not JSON": (GOOD + "{oops\n", "line 2: it is not JSON"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_learnt_from_is_said(case, tmp_path):
    text, message = FILES[case]
    path = tmp_path / "g.jsonl"
    path.write_text(text)
    refused(message, "train", path, "--out", tmp_path / "run", *FAST)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_json_lines(tmp_path_factory.mktemp("data") / "g.jsonl", GRAPHS, kind=KIND)


OPTIONS = {
    "P below 1": (("--latent-vertices", 0), "latent_vertices must be a whole number of at least 1"),
    "no epochs": (("--epochs", 0), "epochs must be 'auto', or a whole number of at least 1; got 0"),
    "an unknown encoder": (("--encoder", "mpnn"), "encoder must be one of linear, gcn, gin"),
    "an unknown criterion": (
        ("--criterion", "auc"),
        "criterion must be one of loss, score, late-score",
    ),
    "a capacity of no size": (("--capacity", "0"), "capacity must be 'auto', a whole number"),
    "a capacity of no sense": (
        ("--capacity", "big"),
        "capacity must be 'auto', a whole number of at least 1, or None; got 'big'",
    ),
    "an unknown task": (
        ("--task", "guess"),
        "task must be auto, classification, multilabel",
    ),
    "all for the test": (
        ("--test-fraction", 1),
        "test_fraction must be a number of at least 0 and below 1, or None; got 1.0",
    ),
    "a device of no kind": (("--device", "gpu"), "device 'gpu' cannot be used here"),
    "a loss that explodes": (
        ("--epochs", 30, "--learning-rate", 1e30, "--validation-fraction", 0),
        "lower learning_rate",
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_an_option_that_makes_no_sense_is_said(case, data, tmp_path):
    options, message = OPTIONS[case]
    refused(message, "train", data, "--out", tmp_path / "run", *FAST, *options)
    assert (tmp_path / "run").exists() == (case == "a loss that explodes")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said(data, tmp_path):
    arguments = ("train", data, "--out", tmp_path / "run", *FAST, "--device", "cuda")
    refused("device 'cuda' cannot be used here", *arguments)


def test_what_cannot_be_read_is_said(tmp_path):
    run = tmp_path / "run"
    refused("cannot be read: No such file", "train", tmp_path / "no.jsonl", "--out", run, *FAST)
    odd = tmp_path / "graphs.xyz"
    odd.write_text("?")
    refused("is not in a known format", "train", odd, "--out", run, *FAST)
    binary = tmp_path / "g.jsonl"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    refused("is not text in UTF-8", "train", binary, "--out", run, *FAST)
    broken = tmp_path / "data.zip"
    broken.write_bytes(b"PK\x03\x04 and then nothing")
    refused("is not a complete zip archive", "train", broken, "--out", run, *FAST)


@pytest.mark.parametrize("name", ["../evil_A.txt", "/etc/evil_A.txt", "D/../../evil_A.txt"])
def test_a_zip_that_points_outside_its_folder_is_refused_and_leaves_nothing(name, tmp_path):
    path = tmp_path / "inside" / "data.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "1, 2\n2, 1\n")
        archive.writestr("D_graph_indicator.txt", "1\n1\n")
    message = "is no file inside the archive's folder; do not use this archive"
    refused(message, "train", path, "--out", tmp_path / "run", *FAST)
    assert not list(tmp_path.rglob("evil*"))


def test_fewer_labels_than_graphs_are_said(tmp_path):
    folder = tmp_path / "D"
    folder.mkdir()
    for name, text in (("A", "1, 2\n2, 1\n3, 4\n4, 3\n"), ("graph_indicator", "1\n1\n2\n2\n")):
        (folder / f"D_{name}.txt").write_text(text)
    (folder / "D_graph_labels.txt").write_text("1\n")
    refused("D_graph_labels.txt", "train", folder, "--out", tmp_path / "run", *FAST)


def test_what_fails_at_once_leaves_no_folder(tmp_path):
    refused("no such", "train", tmp_path / "missing.zip", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    refused("no such", "train", tmp_path / "missing.zip", "--out", tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    refused("no such", "train", tmp_path / "missing.zip", "--out", tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dataset", "MUTAG", "--epochs", 0), "epochs must be 'auto', or a whole number"),
        (("--dataset", "MUTAG", "--max-time", "soon"), "--max-time must be a time span"),
        (("--dataset", "MUTAG", "--capacity", "big"), "capacity must be 'auto'"),
        (("--dataset", "MUTAG", "--encoder", "foo"), "encoder must be one of linear, gcn, gin"),
    ],
)
def test_an_option_that_makes_no_sense_leaves_no_folder(options, message, tmp_path):
    refused(message, "train", *options, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_log_that_is_moved_away_hides_no_error(tmp_path):
    path = tmp_path / "log.txt"

    def fail() -> None:
        with logging_to(path):
            path.unlink()
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        fail()
    with logging_to(path):
        path.unlink()


def test_a_folder_that_cannot_be_written_to_is_said(data, tmp_path):
    """Below a file nothing can be made, whoever asks."""
    (tmp_path / "file").write_text("")
    refused("cannot be written to (Not a directory)", "train", data, "--out", tmp_path / "file/run")
    refused("cannot be written to (File exists)", "train", data, "--out", tmp_path / "file")
    for command in ("predict", "embed"):
        place = tmp_path / "file" / "out.csv"
        refused("cannot be written to", command, tmp_path, data, "--out", place)
        folder = tmp_path / f"{command}.csv"
        folder.mkdir()
        refused("is a folder: --out must name a file", command, tmp_path, data, "--out", folder)


def test_a_disk_that_is_full_is_said_with_the_file(data, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    run = tmp_path / "run"
    refused(f"{run}/config.json: the disk is full", "train", data, "--out", run, *FAST)
    assert sorted(path.name for path in run.iterdir()) == ["log.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_disk_that_is_really_full_is_said(data, tmp_path):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    refused(f"{tmp_path}/log.txt: the disk is full", "train", data, "--out", tmp_path, *FAST)


def test_a_checkpoint_of_another_training_is_said_and_the_config_stays(data, tmp_path, monkeypatch):
    def crash(*_):
        raise OSError(errno.ENOSPC, "the disk is full", "curve.png")

    monkeypatch.setattr(plots, "save", crash)
    refused("curve.png: the disk is full", "train", data, "--out", tmp_path, *FAST)
    monkeypatch.undo()
    before = (tmp_path / "config.json").read_bytes()
    message = "holds an unfinished run with other settings (seed was 0, now 9): choose another"
    refused(message, "train", data, "--out", tmp_path, *FAST, "--seed", 9)
    assert (tmp_path / "config.json").read_bytes() == before
    (tmp_path / run_folder.CHECKPOINT).write_bytes(b"?")
    refused("is damaged, or a checkpoint", "train", data, "--out", tmp_path, *FAST)
    (tmp_path / run_folder.CHECKPOINT).unlink()
    assert run_command("train", data, "--out", tmp_path, *FAST).exit_code == 0


def test_a_second_training_in_one_folder_is_refused(data, tmp_path):
    with only_writer(tmp_path / "run"):
        message = "another softperm command writes to"
        refused(message, "train", data, "--out", tmp_path / "run", *FAST)
    assert run_command("train", data, "--out", tmp_path / "run", *FAST).exit_code == 0


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert run_command("train", data, "--out", folder, *FAST).exit_code == 0
    return folder


@pytest.mark.parametrize("command", ["predict", "embed"])
def test_a_model_that_cannot_be_used_is_said(command, run, data, tmp_path):
    out = ("--out", tmp_path / "out.csv")
    refused("no such model folder", command, tmp_path / "nothing", data, *out)
    refused("model.safetensors is missing", command, tmp_path, data, *out)
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"short")
    refused("model.safetensors is damaged or cut short", command, tmp_path, data, *out)
    write_folder(model, {"softperm_format": 3}, {})
    refused("upgrade softperm to load it", command, tmp_path, data, *out)
    assert not (tmp_path / "out.csv").exists()


def test_a_bare_network_is_no_trained_estimator(data, tmp_path):
    from softperm.nn.model import ModelConfig, build

    build(ModelConfig(2), seed=0).save(tmp_path)
    refused("holds a PiGNN, not a trained estimator", "predict", tmp_path, data)


def test_graphs_with_other_fields_than_in_training_are_said(run, tmp_path):
    path = write_json_lines(tmp_path / "g.jsonl", [labelled_path("ab")])
    out = ("--out", tmp_path / "out.csv")
    for command in ("predict", "embed"):
        refused("g.jsonl line 1: it has label of 1 value a vertex", command, run, path, *out)
    bare = write_json_lines(tmp_path / "bare.jsonl", [nx.path_graph(2), nx.path_graph(3)])
    refused("graph 1: it has no vertex labels to compare", "distance", bare, "--labels", *out)


def test_an_unknown_ending_is_said_before_anything_is_read(tmp_path):
    refused(
        "results end in .npz, .parquet, .csv, .jsonl, or are a folder; got",
        "embed",
        tmp_path,
        tmp_path,
        "--out",
        "v.txt",
    )


def test_what_is_neither_a_file_nor_a_dataset_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTPERM_MIRROR", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("SOFTPERM_CACHE", str(tmp_path / "cache"))
    run = ("--out", tmp_path / "run")
    refused("missing.csv cannot be read: No such file", "train", tmp_path / "missing.csv", *run)
    refused("softperm data list shows the known names", "train", "MUTTAG", *run)
    assert not (tmp_path / "run").exists()


def test_graphs_of_one_vertex_work(tmp_path):
    dots = [nx.empty_graph(1) for _ in range(8)]
    path = write_json_lines(tmp_path / "g.jsonl", dots, kind=KIND)
    done = run_command("train", path, "--out", tmp_path / "run", *FAST)
    assert done.exit_code == 0, done.output
    out = tmp_path / "p.csv"
    assert run_command("predict", tmp_path / "run", path, "--out", out).exit_code == 0


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "error: out of memory: use a smaller --batch-size"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), 2, "error: out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "error: out of memory"),
        (ImportError("needs rdkit:\n pip install"), 2, "error: needs rdkit: pip install"),
        (PermissionError(13, "Permission denied", "a.csv"), 2, "error: a.csv: Permission denied"),
        (ValueError(), 2, "error: ValueError"),
        (ZeroDivisionError("division by zero"), 2, "error: division by zero"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_expected_problem_has_its_sentence_and_exit_code(
    problem, code, said, monkeypatch, tmp_path
):
    def fail(*_):
        raise problem

    monkeypatch.setattr(inputs, "model_folder", fail)
    done = run_command("predict", "run", "data", "--out", tmp_path / "never.csv")
    assert done.exit_code == code
    assert done.stderr.strip().startswith(said)
    assert "Traceback" not in done.output


def test_a_fault_of_our_own_is_not_dressed_up_as_bad_input(monkeypatch, tmp_path):
    def fail(*_):
        raise RuntimeError("an invariant does not hold")

    monkeypatch.setattr(inputs, "model_folder", fail)
    done = run_command("predict", "run", "data", "--out", tmp_path / "never.csv")
    assert isinstance(done.exception, RuntimeError)


@pytest.mark.parametrize("arguments", [("frobnicate",), ("train",), ("train", "--bogus"), ()])
def test_a_command_that_is_not_there_is_a_usage_error(arguments):
    done = run_command(*arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_there_is_help_for_every_command():
    for command in app.registered_commands:
        done = run_command(command.callback.__name__, "--help")
        assert done.exit_code == 0
        assert command.callback.__doc__.split(";")[0].split(",")[0][:20] in done.stdout
