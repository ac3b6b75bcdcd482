"""``softperm report``: the same tables again, from records alone."""

import csv
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from samples import run_command

from softperm.cli.evaluation_folder import claimed_folder, not_started, requested_final_runs
from softperm.lab.records import read_records


def unsigned(text: str) -> str:
    """Records of format 1, which have no checksum."""
    text = re.sub(r', "checksum": "[^"]*"|"checksum": "[^"]*", ', "", text)
    return re.sub(r'"format": \d+', '"format": 1', text)


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
    collected = first / "records.jsonl.gz"
    sizes = [path.stat().st_size for path in folder.rglob("*.jsonl")]
    assert 0 < collected.stat().st_size < sum(sizes) / 10
    content = collected.read_bytes()
    assert run_command("report", folder, "--out", first, "--collect", *told).exit_code == 0
    assert collected.read_bytes() == content, "equal records, equal bytes"
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
    assert "Training curves" in (copy / "report.html").read_text(), "those beside it have curves"


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
    collected = read_records(tmp_path / "out" / "records.jsonl.gz")
    assert {record.run.model for record in collected} == {"wl-kernel"}
    for page in ("table.md", "report.html"):
        text = (tmp_path / "out" / page).read_text()
        assert "π-GNN" not in text
        assert f"Not in the tables: {sentence.removeprefix('left out: ')}." in text


def test_a_run_without_a_score_leaves_its_system_out(evaluated, tmp_path):
    _, folder, _ = evaluated
    part = tmp_path / "part"
    shutil.copytree(folder, part)
    file = next((part / "records").glob("*pi-gnn.final*"))
    file.write_text(
        unsigned(re.sub(r'"test_score": [\d.]+', '"test_score": null', file.read_text(), count=1))
    )
    done = run_command("report", part, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "left out: rings, pi-gnn: fold" in done.stderr
    assert "has no accuracy: it diverged" in done.stderr
    assert "WL" in (tmp_path / "out" / "table.md").read_text()


def test_what_was_asked_for_and_has_not_begun_is_named(evaluated, tmp_path):
    _, folder, _ = evaluated
    part = tmp_path / "part"
    shutil.copytree(folder, part)
    for file in (part / "records").glob("*pi-gnn*"):
        file.unlink()
    done = run_command("report", part, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "left out: pi-gnn: not started" in done.stderr.splitlines()
    text = (tmp_path / "out" / "table.md").read_text()
    assert "Not in the tables: pi-gnn: not started." in text


def claim(folder: Path, settings: dict, models: list[str], datasets: list[str]) -> None:
    with claimed_folder(folder, settings, models, datasets):
        pass


def test_an_evaluation_with_other_settings_is_refused_while_one_is_running(tmp_path):
    """Also before the first one has written a record or a checkpoint."""
    with claimed_folder(tmp_path, {"seed": 0}, ["pi-gnn"], ["MUTAG"]):
        with pytest.raises(ValueError, match=r"other settings \(seed 0 there, 1 now\): choose"):
            claim(tmp_path, {"seed": 1}, ["pi-gnn"], ["MUTAG"])
        claim(tmp_path, {"seed": 0}, ["gin"], ["MUTAG"])
    claim(tmp_path, {"seed": 1}, ["pi-gnn"], ["MUTAG"])
    assert json.loads((tmp_path / "evaluation.json").read_text())["seed"] == 1
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["evaluation.json.lock"]


def test_datasets_that_have_not_begun_are_named(tmp_path):
    records = tmp_path / "records"
    records.mkdir()
    (records / "a.jsonl").touch()
    choices = {"recipe": {"final_runs": 3}}
    claim(tmp_path, choices, ["pi-gnn", "gin"], ["QM9", "MUTAG"])
    claim(tmp_path, choices, ["ecc"], ["NCI1"])
    found = [("QM9-u0", "pi-gnn"), ("MUTAG", "gin"), ("MUTAG", "pi-gnn")]
    assert not_started(tmp_path, found) == ["QM9, gin: not started", "NCI1, ecc: not started"]
    assert requested_final_runs(tmp_path) == 3
    for odd in (None, {"models": None}, [["MUTAG"]]):
        (tmp_path / "evaluation.json").write_text(json.dumps({**choices, "asked": odd}))
        for what in (
            lambda: claim(tmp_path, choices, ["gin"], []),
            lambda: not_started(tmp_path, []),
        ):
            with pytest.raises(ValueError, match=r"evaluation\.json is damaged"):
                what()


def test_what_many_ask_for_at_once_is_all_written_down(tmp_path):
    models = [f"model-{k}" for k in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda m: claim(tmp_path, {"seed": 0}, [m], ["MUTAG"]), models))
    asked = json.loads((tmp_path / "evaluation.json").read_text())["asked"]
    assert sorted(asked) == sorted(["MUTAG", model] for model in models)


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
        text = file.read_text().replace('"wl-kernel"', '"gone"')
        (tmp_path / file.name).write_text(unsigned(text))
    done = run_command("report", tmp_path)
    assert done.exit_code == 2, done.output
    assert "no system is called gone: there are pi-gnn," in done.stderr


def test_fewer_runs_than_were_asked_for_are_unfinished(evaluated, tmp_path):
    _, folder, _ = evaluated
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    written = copy / "evaluation.json"
    choices = json.loads(written.read_text())
    runs = choices["recipe"]["final_runs"]
    choices["recipe"]["final_runs"] = runs + 1
    written.write_text(json.dumps(choices))
    done = run_command("report", copy, "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    (sentence,) = json.loads(done.stdout)["unfinished"]
    wanted = f"rings, pi-gnn: there are {runs} of {runs + 1} final runs; let it finish"
    assert sentence == wanted, "a kernel gives the same every time"


def test_report_without_records_says_so(tmp_path):
    done = run_command("report", tmp_path)
    assert done.exit_code == 2
    assert "no records there" in done.stderr
    assert "no such folder" in run_command("report", tmp_path / "missing").stderr


def test_a_table_made_elsewhere_has_the_title_of_what_it_is_made_of(evaluated, tmp_path):
    _, folder, _ = evaluated
    title = (folder / "table.md").read_text().partition("\n")[0]
    assert title != "# Fair comparison"
    assert run_command("report", folder, "--out", tmp_path / "one").exit_code == 0
    assert (tmp_path / "one" / "table.md").read_text().startswith(title + "\n")
    told = ("--out", tmp_path / "other", "--title", "Other")
    assert run_command("report", folder, *told).exit_code == 0
    both = (tmp_path / "one", folder, tmp_path / "other")
    assert run_command("report", *both, "--out", tmp_path / "both").exit_code == 0
    assert (tmp_path / "both" / "table.md").read_text().startswith("# Fair comparison\n")


def test_a_table_keeps_its_title(evaluated, tmp_path):
    _, folder, _ = evaluated
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    before = (copy / "table.md").read_text()
    assert run_command("report", copy).exit_code == 0
    assert (copy / "table.md").read_text().partition("\n")[0] == before.partition("\n")[0]


def test_how_many_runs_were_asked_for_is_not_guessed(evaluated, tmp_path):
    _, folder, _ = evaluated
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "evaluation.json").write_text("{")
    done = run_command("report", copy)
    assert done.exit_code == 2
    assert (
        "evaluation.json is damaged, so the requested number of final runs is unknown"
        in done.stderr
    )
    assert run_command("report", copy / "records", "--out", tmp_path / "out").exit_code == 0
