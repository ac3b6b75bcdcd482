"""``evaluate``, ``study`` and ``distance``: from files to reports with one command."""

import csv
import importlib
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from samples import rings_and_cliques, run_command, write_json_lines

from softperm.cli.evaluate import default_abreast
from softperm.lab.records import find_records

evaluate_command = importlib.import_module("softperm.cli.evaluate")


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


def test_the_page_tells_what_was_chosen_and_how_classes_were_confused(evaluated):
    _, folder, _ = evaluated
    page = (folder / "report.html").read_text()
    expected = ["Chosen configurations", "latent_vertices", "true class", "as clique"]
    expected += ["clique: 12, ring: 12", "Majority class", "balanced accuracy", "row entropy"]
    for words in expected:
        assert words in page, words
    assert "paper (quoted)" not in page
    again = run_command("report", folder, "--out", folder / "again")
    assert again.exit_code == 0, again.output
    assert "as clique" in (folder / "again" / "report.html").read_text()


def test_the_best_configuration_is_kept_as_a_model_ready_to_predict(
    evaluated, graphs, tmp_path, one_quick_picture
):
    _, folder, command = evaluated
    done = run_command(*command, "--keep-best")
    assert done.exit_code == 0, done.output
    model = folder / "best" / "rings" / "model"
    assert f"rings best model  {model}" in done.stdout
    predicted = run_command("predict", model, graphs, "--out", tmp_path / "p.csv")
    assert predicted.exit_code == 0, predicted.output
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert len(rows) == 24
    kept = json.loads((folder / "best" / "rings" / "config.json").read_text())
    tried = [r for r in find_records(folder) if r.run.model == "pi-gnn" and r.run.stage == "final"]
    counts = Counter(r.run.configuration["latent_vertices"] for r in tried)
    assert kept["latent_vertices"] == counts.most_common(1)[0][0]
    assert (kept["validation_fraction"], kept["compare"]) == (0.0, "inner"), "as the recipe trained"
    without = run_command(
        *["wl-kernel" if a == "pi-gnn,wl-kernel" else a for a in command], "--keep-best"
    )
    assert without.exit_code == 2
    assert "--keep-best trains a π-GNN" in without.stderr


def test_the_page_keeps_the_systems_of_earlier_commands(evaluated):
    _, folder, command = evaluated
    before = (folder / "table.md").read_text()
    fewer = ("wl-kernel" if part == "pi-gnn,wl-kernel" else part for part in command)
    done = run_command(*fewer)
    assert done.exit_code == 0, done.output
    assert "rings pi-gnn" not in done.stdout
    assert (folder / "table.md").read_text() == before


def test_the_same_command_again_does_nothing_and_says_the_same(evaluated):
    done, folder, command = evaluated
    before = {p: p.stat().st_mtime_ns for p in (folder / "records").iterdir()}
    again = run_command(*command)
    assert again.stdout == done.stdout
    assert {p: p.stat().st_mtime_ns for p in (folder / "records").iterdir()} == before


def test_graphs_of_one_class_leave_no_folder_behind(tmp_path):
    graphs, _ = rings_and_cliques(10)
    data = write_json_lines(tmp_path / "g.jsonl", graphs, kind=["ring"] * len(graphs))
    done = run_command("evaluate", "--data", data, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "y has only one class" in done.stderr
    assert not (tmp_path / "out").exists()


def test_rows_that_cannot_be_read_are_left_out_as_in_train(graphs, tmp_path):
    file = tmp_path / "broken.jsonl"
    rows = graphs.read_text().splitlines()
    file.write_text("\n".join([*rows[:7], "{oops", *rows[7:]]))
    quick = ("--epochs", 1, "--device", "cpu", "--out", tmp_path / "run")
    command = ("evaluate", "--data", file, "--models", "wl-kernel", "--folds", 3, *quick)
    done = run_command(*command, "--strict")
    assert done.exit_code == 2
    assert "error: broken.jsonl line 8: it is not JSON" in done.stderr
    done = run_command(*command, "--json")
    assert done.exit_code == 0, done.output
    assert "broken: 24 graphs" in done.stderr
    assert json.loads(done.stdout)["unreadable_rows"] == 1
    listed = (tmp_path / "run" / "unreadable.txt").read_text().splitlines()
    assert [line.partition(":")[0] for line in listed] == ["broken.jsonl line 8"]
    trained = run_command("train", file, "--model", "forest", "--out", tmp_path / "t")
    (sentence,) = (line for line in trained.stderr.splitlines() if line.startswith("left out"))
    assert sentence in done.stderr
    assert (tmp_path / "t" / "unreadable.txt").read_text().splitlines() == listed


def test_stacks_take_turns_where_there_is_a_gpu():
    assert [default_abreast(device) for device in ("cpu", "cuda", "cuda:1")] == [1, 4, 4]


def test_evaluate_gives_numbers_as_json(evaluated):
    _, _, command = evaluated
    done = run_command(*command, "--json")
    assert done.exit_code == 0, done.output
    cells = json.loads(done.stdout)["cells"]
    assert [cell["model"] for cell in cells] == ["pi-gnn", "wl-kernel"]
    assert all(isinstance(cell["mean"], float) for cell in cells)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "no graphs to compare on"),
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


def write_tu(folder: Path, graphs: list, classes: np.ndarray) -> None:
    """A dataset as TUDataset publishes them."""
    folder.mkdir(parents=True)
    lines, indicator = [], []
    for number, graph in enumerate(graphs, start=1):
        first = len(indicator) + 1
        indicator += [str(number)] * len(graph)
        for u, v in graph.edges:
            lines += [f"{first + u}, {first + v}", f"{first + v}, {first + u}"]
    texts = {"A": lines, "graph_indicator": indicator, "graph_labels": map(str, classes)}
    for name, rows in texts.items():
        (folder / f"{folder.name}_{name}.txt").write_text("\n".join(rows) + "\n")


TWO = """
title = "Two"
datasets = ["MISSING-ONE", "TINY"]
models = ["pi-gnn", "diffpool"]
final_runs = 1
configurations = 1
[training]
epochs = 1
batch_size = 8
[settings]
head_hidden = [8]
head_final = 4
hidden = 4
[grid]
latent_vertices = [3]
"""


def test_what_fails_does_not_stop_what_comes_after_it_and_is_named_at_the_end(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("SOFTPERM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SOFTPERM_MIRROR", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr("softperm.data.datasets.store.time.sleep", lambda _: None)
    monkeypatch.setattr(
        "softperm.lab.baselines.classification.DiffPool.needed", lambda self, batch: 2**60
    )
    root = tmp_path / "root"
    write_tu(root / "tu" / "TINY", *rings_and_cliques(40))
    (tmp_path / "two.toml").write_text(TWO)
    arguments = ("--recipe", tmp_path / "two.toml", "--data-root", root, "--device", "cpu")
    done = run_command("evaluate", *arguments, "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    assert "TINY pi-gnn" in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert "MISSING-ONE: " in last
    assert "TINY: diffpool, folds [0, " in last
    assert (tmp_path / "out" / "report.html").exists()
    (told,) = (
        line
        for line in (tmp_path / "out" / "table.md").read_text().splitlines()
        if line.startswith("Not in the tables: ")
    )
    assert "MISSING-ONE: " in told
    assert told.count("TINY: diffpool, folds [0, ") == 1


def test_datasets_are_loaded_in_their_turn_and_names_are_checked_first(monkeypatch, tmp_path):
    loaded = []

    def load(name, root, **options):
        loaded.append(name)
        raise ValueError("not here")

    monkeypatch.setattr("softperm.data.datasets.load_dataset", load)
    command = ("evaluate", "--recipe", "tu-table", "--device", "cpu", "--out", tmp_path / "run")
    done = run_command(*command, "--dataset", "MUTAG,NOPE")
    assert "recipe tu-table has no dataset NOPE" in done.stderr
    assert loaded == []
    done = run_command(*command, "--dataset", "mutag,DD")
    assert loaded == ["MUTAG", "DD"]
    assert done.exit_code == 2
    assert done.stderr.strip().splitlines()[-1].endswith("MUTAG: not here; DD: not here")


def test_targets_are_selected_among_the_recipes(monkeypatch, tmp_path):
    posed = []

    def load(name, root, **options):
        raise ValueError("not here")

    monkeypatch.setattr("softperm.data.datasets.load_dataset", load)
    original = evaluate_command._loader
    monkeypatch.setattr(
        evaluate_command, "_loader", lambda *a: (posed.append(a[0].targets), original(*a))[1]
    )
    command = ("evaluate", "--recipe", "qm9-table", "--models", "pi-gnn", "--out", tmp_path / "run")
    for arguments in (("--target", "alpha,u0"), ()):
        done = run_command(*command, *arguments)
        assert "QM9: not here" in done.stderr, "the folder is for all targets"
    assert posed[0] == ("alpha", "u0")
    assert len(posed[1]) == 12


def test_a_folder_in_which_nothing_was_done_is_for_anything(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTPERM_MIRROR", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("SOFTPERM_CACHE", str(tmp_path / "cache"))
    recipe, out = tmp_path / "mine.toml", tmp_path / "run"
    recipe.write_text("datasets = ['MUTAG']\nmodels = ['gin']")
    missing = ("--data-root", tmp_path / "nowhere", "--device", "cpu", "--out", out)
    for seed in (0, 1):
        done = run_command("evaluate", "--recipe", recipe, *missing, "--seed", seed)
        assert done.exit_code == 2
        assert "other settings" not in done.stderr
        assert json.loads((out / "evaluation.json").read_text())["seed"] == seed
    recipe.write_text("datasets = ['MUTAG']")
    done = run_command("evaluate", "--recipe", recipe, *missing)
    assert "recipe mine names no models: name some with --models" in done.stderr


def test_a_folder_with_other_settings_is_refused(evaluated):
    _, _, command = evaluated
    done = run_command(*command, "--seed", 5)
    assert done.exit_code == 2
    assert "holds an evaluation with other settings (seed 0 there, 5 now): choose" in done.stderr
    done = run_command(*command, "--epochs", 7)
    assert "(recipe.training.epochs 2 there, 7 now): choose another --out" in done.stderr


def test_files_that_are_not_an_evaluations_are_not_overwritten(evaluated, tmp_path):
    (tmp_path / "table.md").write_text("mine")
    done = run_command(*evaluated[2], "--out", tmp_path)
    assert done.exit_code == 2
    assert "holds table.md, but no evaluation: choose another --out" in done.stderr
    assert (tmp_path / "table.md").read_text() == "mine"


def test_a_file_that_is_called_as_a_dataset_is_not_beside_the_papers_numbers(graphs, tmp_path):
    file = tmp_path / "mutag.jsonl"
    shutil.copy(graphs, file)
    command = ("evaluate", "--data", file, "--models", "wl-kernel,pi-gnn", "--folds", 2)
    options = ("--epochs", 1, "--configurations", 1, "--final-runs", 1, "--device", "cpu")
    done = run_command(*command, *options, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "mutag-file pi-gnn" in done.stdout
    assert "paper (quoted) |" not in (tmp_path / "run" / "table.md").read_text().splitlines()[4]
    assert "86.1" not in (tmp_path / "run" / "table.md").read_text()


def test_more_final_runs_go_on_from_those_there_are(evaluated, tmp_path):
    _, folder, command = evaluated
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    before = {p.name: p.read_bytes() for p in (copy / "records").iterdir()}
    done = run_command(*command, "--final-runs", 3, "--out", copy)
    assert done.exit_code == 0, done.output
    assert before.items() <= {p.name: p.read_bytes() for p in (copy / "records").iterdir()}.items()
    records = find_records(copy / "records")
    seeds = [r.run.seed for r in records if (r.run.model, r.run.stage) == ("pi-gnn", "final")]
    assert sorted(seeds) == [1, 1, 1, 2, 2, 2, 3, 3, 3], "three folds, the third run is new"
    text = (copy / "table.md").read_text()
    assert "3 × 3" in text
    before = sorted((copy / "records").iterdir())
    for fewer in (2, 1):
        done = run_command(*command, "--final-runs", fewer, "--out", copy)
        assert done.exit_code == 0, done.output
        assert (copy / "table.md").read_text() == text, "what is there stays"
    assert sorted((copy / "records").iterdir()) == before
    done = run_command("report", copy, "--out", tmp_path / "again")
    assert "left out" not in done.stderr


def test_what_an_evaluation_is_of_may_be_laid_out_anew_but_not_be_damaged(evaluated, tmp_path):
    _, folder, command = evaluated
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    again = [copy if part == folder else part for part in command]
    written = copy / "evaluation.json"
    written.write_text(json.dumps(json.loads(written.read_text())))
    assert run_command(*again).exit_code == 0
    written.write_text("{")
    done = run_command(*again)
    assert done.exit_code == 2
    assert "evaluation.json is damaged: choose another --out" in done.stderr


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


def test_a_learning_rate_that_decays_has_validation_graphs_also_in_the_model_that_is_kept(
    graphs, tmp_path, one_quick_picture
):
    recipe = tmp_path / "decays.toml"
    recipe.write_text(
        'datasets = ["MUTAG"]\nmodels = ["pi-gnn"]\nedges = true\n'
        "[training]\nepochs = 2\ndecay = 0.5\n[grid]\nhidden = [4]\n"
    )
    out = tmp_path / "run"
    options = ("--folds", 2, "--final-runs", 1, "--out", out, "--keep-best")
    done = run_command("evaluate", "--data", graphs, "--recipe", recipe, *options)
    assert done.exit_code == 0, done.output
    assert "held out to decay the learning rate" in done.output
    assert (out / "best" / "rings" / "model" / "model.safetensors").exists()


def test_positions_of_own_graphs_are_read_for_the_systems_that_ask_for_them(
    tmp_path, one_quick_picture
):
    """The model that is kept, which reads none, predicts on files with and without them."""
    graphs, classes = rings_and_cliques(12)
    for graph in graphs:
        for v in graph:
            graph.nodes[v]["pos"] = [float(v), 1.0, 0.5]
    file = write_json_lines(tmp_path / "a.jsonl", graphs, y=classes)
    recipe = tmp_path / "places.toml"
    recipe.write_text(
        'datasets = ["MUTAG"]\nmodels = ["pi-gnn+places", "forest"]\nedges = true\n'
        "[training]\nepochs = 2\n[grid]\nhidden = [4]\n"
        "[variants]\nplaces = { distance_bins = 3 }\n"
    )
    options = ("--folds", 2, "--final-runs", 1, "--keep-best", "--recipe", recipe, "--data", file)
    done = run_command("evaluate", *options, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    kept = tmp_path / "run" / "best" / "a" / "model"
    assert run_command("predict", kept, file, "--out", tmp_path / "p.csv").exit_code == 0
    done = run_command("evaluate", *options, "--models", "forest,pi-gnn", "--out", tmp_path / "b")
    assert done.exit_code == 0, done.output
    assert "warning: these vertex attributes are not used: pos" in done.output
    kept = tmp_path / "b" / "best" / "a" / "model"
    assert run_command("predict", kept, file, "--out", tmp_path / "q.csv").exit_code == 0
