"""``softperm data``: list, get, verify and show."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from softperm.cli.data import app
from softperm.data.datasets.store import open_store


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_list_shows_local_files_and_what_would_be_downloaded(write_tu: Callable) -> None:
    root = write_tu("MUTAG")
    rows = {r["name"]: r for r in json.loads(run("list", "--data-root", root, "--json"))}
    assert rows["MUTAG"]["raw files"] == str(root / "tu" / "MUTAG.zip")
    assert rows["COLLAB"]["raw files"] == "to be fetched"
    assert rows["MUTAG"]["prepared"] == "no"
    assert {"ogbg-molhiv", "ogbg-molpcba", "QM9", "REDDIT-MULTI-5K", "PROTEINS_full"} <= set(rows)
    assert "MUTAG" in run("list", "--data-root", root)


def test_get_prepares_and_says_what_was_left_out(write_tu: Callable) -> None:
    root = write_tu(
        A="1, 2\n2, 1\n1, 1\n2, 1\n",
        graph_indicator="1\n1\n",
        graph_labels="0\n",
        node_labels=None,
        node_attributes=None,
    )
    (row,) = json.loads(run("get", "TOY", "--data-root", root, "--json"))
    assert row["graphs"] == 1
    assert row["self-loops / duplicates removed"] == "1 / 1"
    assert len(list((open_store().cache / "prepared").glob("TOY-*/manifest.json"))) == 1


def test_show_prints_statistics_and_draws(write_tu: Callable, tmp_path: Path) -> None:
    root, out = write_tu("MUTAG"), tmp_path / "figures"
    said = run("show", "MUTAG", "--data-root", root, "--out", out)
    assert "mean vertices" in said
    assert "17.93" in said
    assert sorted(p.name for p in out.iterdir()) == ["MUTAG-graphs.png", "MUTAG-histograms.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in out.iterdir())


def test_show_gives_json(write_tu: Callable) -> None:
    said = run("show", "TOY", "--data-root", write_tu(), "--no-figures", "--json")
    (found,) = json.loads(said)
    numbers = {c["field"]: c["found"] for c in found["statistics"]}
    assert (numbers["graphs"], numbers["classes"], numbers["labels"]) == (40, 2, 3)
    assert found["figures"] == []


def test_verify_accepts_undamaged_files(write_tu: Callable) -> None:
    checks = json.loads(run("verify", "TOY", "--data-root", write_tu(), "--json"))
    assert [c["what"] for c in checks] == ["raw files", "data", "prepared files"]
    assert all(c["good"] for c in checks)


def test_verify_without_names_checks_all_local_datasets(write_tu: Callable) -> None:
    root = write_tu("IMDB-BINARY")
    with pytest.raises(ValueError, match=r"these checks failed: IMDB-BINARY \(data\)"):
        run("verify", "--data-root", root)  # the name is known, and the data is not its


def test_verify_mends_prepared_files_and_names_damaged_raw_ones(write_tu: Callable) -> None:
    root = write_tu()
    run("get", "TOY", "--data-root", root)
    (array,) = (open_store().cache / "prepared").glob("TOY-*/edge_index.npy")
    sound = array.read_bytes()
    content = bytearray(sound)
    content[-4] ^= 1
    array.write_bytes(content)
    run("verify", "TOY", "--data-root", root)  # prepares it again
    assert array.read_bytes() == sound
    archive = root / "tu" / "TOY.zip"
    os.truncate(archive, archive.stat().st_size - 10)
    with pytest.raises(ValueError, match=r"these checks failed: TOY \(raw files\)"):
        run("verify", "TOY", "--data-root", root)
    write_tu()
    run("verify", "TOY", "--data-root", root)


def test_a_dataset_that_is_not_local_is_an_error() -> None:
    with pytest.raises(ValueError, match="TOY is not on this machine; softperm data get TOY"):
        run("verify", "TOY")
