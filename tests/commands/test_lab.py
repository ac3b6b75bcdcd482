"""``evaluate``, ``report``, ``study`` and ``distance``: from files to reports with one command."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from samples import rings_and_cliques, run_command, write_json_lines

RECIPE = """
title = "Small"
datasets = []
models = ["pi-gnn"]
final_runs = 2
configurations = 2
[training]
epochs = 2
batch_size = 8
criterion = "score"
[settings]
head_hidden = [8]
head_final = 4
hidden = 4
[grid]
latent_vertices = [3, 4]
"""


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rings.jsonl"
    made, kinds = rings_and_cliques(24)
    write_json_lines(path, made, kind=[("ring", "clique")[k] for k in kinds])
    return path


@pytest.fixture(scope="module")
def evaluated(graphs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    recipe = folder / "small.toml"
    recipe.write_text(RECIPE)
    command = ("evaluate", "--recipe", recipe, "--data", graphs, "--folds", 3, "--device", "cpu")
    command = (*command, "--model", "pi-gnn,wl-kernel", "--out", folder / "run")
    return run_command(*command), folder / "run", command


def test_own_graphs_go_from_a_file_to_a_report(evaluated):
    done, folder, _ = evaluated
    assert done.exit_code == 0, done.output
    assert "rings pi-gnn" in done.stdout
    assert "rings wl-kernel" in done.stdout
    page = (folder / "report.html").read_text()
    assert "WL subtree kernel" in page
    assert "p, Wilcoxon" in page
    for name in ("table.md", "table.tex", "table.csv", "log.txt", "curves-rings.png"):
        assert (folder / name).stat().st_size > 0
    assert not list((folder / "checkpoints").glob("*"))


def test_the_same_command_again_does_nothing_and_says_the_same(evaluated):
    done, folder, command = evaluated
    before = {p: p.stat().st_mtime_ns for p in (folder / "records").iterdir()}
    again = run_command(*command)
    assert again.stdout == done.stdout
    assert {p: p.stat().st_mtime_ns for p in (folder / "records").iterdir()} == before


def test_report_makes_the_same_table_again(evaluated, tmp_path):
    _, folder, _ = evaluated
    done = run_command("report", folder, "--out", tmp_path, "--title", "Small", "--json")
    assert done.exit_code == 0, done.output
    assert (
        Path(json.loads(done.stdout)["markdown"]).read_text() == (folder / "table.md").read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "say what to compare on"),
        (("--data", "a.zip", "--dataset", "MUTAG"), "give one"),
        (("--recipe", "tu-table", "--dataset", "NOPE"), "recipe tu-table has no dataset NOPE"),
        (("--recipe", "none-such"), "no recipe is called none-such"),
        (("--recipe", "tu-table", "--model", "gnn"), "no system is called gnn"),
        (("--recipe", "tu-table", "--engine", "slurm"), "--engine must be local or ray"),
    ],
)
def test_bad_requests_are_answered_in_one_sentence(arguments, sentence, tmp_path):
    done = run_command("evaluate", *arguments, "--out", tmp_path)
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_a_folder_with_other_settings_is_refused(evaluated):
    _, _, command = evaluated
    done = run_command(*command, "--seed", 5)
    assert done.exit_code == 2
    assert "holds an evaluation with other settings" in done.stderr


def test_report_without_records_says_so(tmp_path):
    done = run_command("report", tmp_path)
    assert done.exit_code == 2
    assert "no records there" in done.stderr
    assert "no such folder" in run_command("report", tmp_path / "missing").stderr


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_distances_of_a_file_are_proven_and_written(graphs, suffix, tmp_path):
    out = tmp_path / f"distances.{suffix}"
    done = run_command("distance", graphs, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["pairs"], result["proven"]) == (24 * 23 // 2, 24 * 23 // 2)
    if suffix == "npz":
        matrix = np.load(out)["distance"]
        np.testing.assert_allclose(matrix, matrix.T)
        assert matrix[0, 10] == 0  # a ring of five again
    else:
        rows = list(csv.DictReader(out.read_text().splitlines()))
        assert len(rows) == 276
        assert {row["exact"] for row in rows} == {"True"}
    assert [p.name for p in tmp_path.iterdir()] == [out.name]


def test_distances_want_a_format_they_know(graphs, tmp_path):
    done = run_command("distance", graphs, "--out", tmp_path / "d.txt")
    assert done.exit_code == 2
    assert "--out must end in .npz or .csv" in done.stderr


@pytest.mark.parametrize(
    "command",
    [("study", "synthetic"), ("study", "runtime"), ("evaluate", "--recipe", "tu-table")],
    ids=" ".join,
)
def test_a_device_that_is_not_there_is_one_sentence(command, tmp_path):
    done = run_command(*command, "--device", "nope", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "device 'nope' cannot be used here" in done.stderr
