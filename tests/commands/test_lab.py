"""``evaluate``, ``report``, ``study`` and ``distance``: from files to reports with one command."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from samples import rings_and_cliques, run_command, write_json_lines

from softperm.commands.evaluate import _posed
from softperm.lab.recipes import read_recipe

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


def test_report_makes_the_same_table_again(evaluated, tmp_path):
    _, folder, _ = evaluated
    done = run_command("report", folder, "--out", tmp_path, "--title", "Small", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert Path(told["markdown"]).read_text() == (folder / "table.md").read_text()
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    for cell in told["cells"]:
        scores = [float(row["score"]) for row in rows if row["model"] == cell["model"]]
        assert (cell["dataset"], cell["metric"], cell["scores"]) == ("rings", "accuracy", scores)
        assert cell["mean"] == pytest.approx(np.mean(scores))
        assert cell["std"] == pytest.approx(np.std(scores))


def test_records_that_were_collected_make_the_same_table_again(evaluated, tmp_path):
    _, folder, _ = evaluated
    first, second = tmp_path / "first", tmp_path / "second"
    told = "--title", "Small"
    assert run_command("report", folder, "--out", first, "--collect", *told).exit_code == 0
    files = sorted(path.name for path in (first / "records").iterdir())
    assert files == ["rings.pi-gnn.jsonl", "rings.wl-kernel.jsonl"]
    few, all_of_them = (sum(f.stat().st_size for f in p.rglob("*.jsonl")) for p in (first, folder))
    assert few < all_of_them
    assert run_command("report", first, "--out", second, *told).exit_code == 0
    for form in ("table.md", "table.csv", "table.tex"):
        assert (second / form).read_text() == (folder / form).read_text()


def test_records_collected_where_they_lie_count_once(evaluated, tmp_path):
    _, folder, _ = evaluated
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    told = "--title", "Small"
    assert run_command("report", copy, "--collect", *told).exit_code == 0
    assert run_command("report", copy, *told).exit_code == 0
    assert (copy / "table.md").read_text() == (folder / "table.md").read_text()


def test_what_has_not_finished_is_left_out_and_named(evaluated, tmp_path):
    _, folder, _ = evaluated
    part = tmp_path / "part"
    shutil.copytree(folder, part)
    for file in (part / "records").glob("*pi-gnn.final*"):
        file.write_text(file.read_text().splitlines(keepends=True)[0])
    done = run_command("report", part, "--out", tmp_path / "out", "--collect")
    assert done.exit_code == 0, done.output
    (sentence,) = (line for line in done.stderr.splitlines() if line.startswith("left out: "))
    assert sentence.startswith("left out: rings, pi-gnn: folds [")
    assert sentence.endswith("are missing; let it finish")
    kept = [path.name for path in (tmp_path / "out" / "records").iterdir()]
    assert kept == ["rings.wl-kernel.jsonl"]
    assert "π-GNN" not in (tmp_path / "out" / "table.md").read_text()


def test_nothing_is_written_where_nothing_has_finished(evaluated, tmp_path):
    _, folder, _ = evaluated
    part = tmp_path / "part"
    part.mkdir()
    for file in (folder / "records").glob("*pi-gnn.selection*"):
        shutil.copy(file, part)
    done = run_command("report", part, "--out", tmp_path / "out", "--collect")
    assert done.exit_code == 2, done.output
    assert "rings, pi-gnn: no fold has been tested yet" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_record_of_a_system_that_is_gone_is_named(evaluated, tmp_path):
    _, folder, _ = evaluated
    for file in (folder / "records").glob("*wl-kernel*"):
        (tmp_path / file.name).write_text(file.read_text().replace('"wl-kernel"', '"gone"'))
    done = run_command("report", tmp_path)
    assert done.exit_code == 2, done.output
    assert "no system is called gone: there are pi-gnn," in done.stderr


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
    monkeypatch.setattr("softperm.datasets.download.time.sleep", lambda _: None)
    monkeypatch.setattr("softperm.baselines.diffpool.DiffPool.needed", lambda self, batch: 2**60)
    root = tmp_path / "root"
    write_tu(root / "tu" / "TINY", *rings_and_cliques(40))
    (tmp_path / "two.toml").write_text(TWO)
    arguments = ("--recipe", tmp_path / "two.toml", "--data-root", root, "--device", "cpu")
    done = run_command("evaluate", *arguments, "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    assert "TINY pi-gnn" in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert "MISSING-ONE: " in last
    assert "TINY: diffpool, folds [0]: " in last
    assert (tmp_path / "out" / "report.html").exists()


def test_datasets_are_loaded_in_their_turn_and_names_are_looked_at_first(monkeypatch):
    loaded = []

    def load(name, root, **options):
        loaded.append(name)
        raise ValueError("not here")

    monkeypatch.setattr("softperm.datasets.load_dataset", load)
    recipe = read_recipe("tu-table")
    with pytest.raises(ValueError, match="no dataset NOPE"):
        _posed(recipe, ("MUTAG", "NOPE"), None, 0)
    assert loaded == []
    problems = _posed(recipe, ("MUTAG", "DD"), None, 0)
    assert loaded == []
    assert next(problems) == "MUTAG: not here"
    assert loaded == ["MUTAG"]


def test_targets_are_chosen_among_the_recipes(monkeypatch, tmp_path):
    posed = []

    def nothing(recipe, names, root, seed):
        posed.append(recipe.targets)
        return iter(())

    monkeypatch.setattr("softperm.commands.evaluate._posed", nothing)
    command = ("evaluate", "--recipe", "qm9-table", "--models", "pi-gnn", "--out", tmp_path / "run")
    assert run_command(*command, "--target", "alpha,u0").exit_code == 0
    assert run_command(*command).exit_code == 0, "the folder is for all targets"
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
