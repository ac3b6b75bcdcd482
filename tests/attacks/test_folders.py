"""What else happens to the folder of a running command: it is deleted, or another writes there."""

import shutil

import networkx as nx
import pytest
from samples import run_command, write_json_lines

from softperm.cli import evaluate as evaluate_command
from softperm.cli import run_folder

NETWORK = ("--epochs", 1, "--hidden", 4, "--latent-vertices", 3, "--no-progress")
PROTOCOL = ("--folds", 2, "--epochs", 1, "--final-runs", 1, "--configurations", 1)


@pytest.fixture
def graphs(tmp_path):
    """A file of paths and cycles in two classes."""
    kinds = [(nx.path_graph, nx.cycle_graph)[i % 2](3 + i // 2) for i in range(12)]
    return write_json_lines(tmp_path / "a.jsonl", kinds, y=[0, 1] * 6)


@pytest.mark.parametrize("name", ["a.csv", "link.csv", "."])
@pytest.mark.parametrize("command", ["predict", "explain", "search", "distance"])
def test_no_command_overwrites_its_input(command, name, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("smiles\nCC\n")
    (tmp_path / "link.csv").symlink_to(path)
    first = () if command == "distance" else (tmp_path / "model or index",)
    done = run_command(command, *first, tmp_path / name, "--out", path)
    assert done.exit_code == 2
    assert "is an input of this command: write to another file" in done.output
    assert path.read_text() == "smiles\nCC\n"


def test_a_search_does_not_overwrite_its_index(graphs, tmp_path):
    manifest = tmp_path / "index.json"
    manifest.write_text("an index")
    out = ("--out", tmp_path / "h.csv", "--matchings", manifest)
    done = run_command("search", tmp_path, graphs, *out)
    assert done.exit_code == 2
    assert "is an input of this command" in done.output
    assert manifest.read_text() == "an index"


def test_a_page_does_not_overwrite_its_model(tmp_path):
    config = tmp_path / "config.json"
    config.write_text("a model")
    done = run_command("explore", tmp_path, "--out", config)
    assert done.exit_code == 2
    assert "is an input of this command" in done.output
    assert config.read_text() == "a model"


@pytest.mark.parametrize("gone", [shutil.rmtree, lambda folder: folder.rename(f"{folder}-moved")])
@pytest.mark.parametrize(
    ("command", "module", "step"),
    [
        (("train", *NETWORK), run_folder, "_write_curve"),
        (("evaluate", *PROTOCOL, "--models", "structure-free"), evaluate_command, "add_classes"),
    ],
    ids=["train", "evaluate"],
)
def test_a_folder_that_is_deleted_or_moved_during_a_command_is_an_error(
    command, module, step, gone, graphs, tmp_path, monkeypatch
):
    """Later files are in a new folder of the same name, which looks like a result."""
    monkeypatch.setattr(run_folder, "_draw_some", lambda *_: 0)
    out, real = tmp_path / "run", getattr(module, step)

    def afterwards(*arguments):
        gone(out)
        out.mkdir()
        return real(*arguments)

    name, *options = command
    data = ("--data", graphs) if name == "evaluate" else (graphs,)
    with monkeypatch.context() as patch:
        patch.setattr(module, step, afterwards)
        done = run_command(name, *data, "--out", out, *options)
    assert done.exit_code == 2
    assert f"error: {out} was deleted or moved while it was written to: delete" in done.output
    shutil.rmtree(out)
    assert run_command(name, *data, "--out", out, *options).exit_code == 0
