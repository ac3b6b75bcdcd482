"""Killed commands: nothing finished is lost, and the next run gives identical results.

``make attack`` kills every command that writes many times, the test suite some of them a few times.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest
from attacks.kills import SCENARIOS, available, share
from samples import run_command, write_json_lines

from softperm import GraphIndex
from softperm.data.formats.mapped import prepare_file
from softperm.files import exclusive

KILLS = int(os.environ.get("SOFTPERM_ATTACKS", "0"))
SEED = os.environ.get("SOFTPERM_ATTACK_SEED", "1")
COMMANDS = tuple(filter(available, SCENARIOS))
QUICK = ("data get", "index")
SLOW = ("save", "distance", "train", "predict", "evaluate")


@pytest.mark.parametrize("names", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_killed_commands_run_again_to_the_same_results(names, tmp_path):
    """In processes of their own, whose forks are killed."""
    script = Path(__file__).with_name("kills.py")
    kills = 2
    if KILLS and names == QUICK:
        names = COMMANDS
        kills = -(-KILLS // sum(not SCENARIOS[name].rare for name in names))
    done = subprocess.run(
        [sys.executable, script, tmp_path, *names, "--kills", str(kills), "--seed", SEED],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [loss for each in results for loss in each["losses"]] == []
    for name in names:
        killed = sum(each["kills"] for each in results if each["command"] == name)
        assert killed >= share(name, kills), name


@pytest.fixture
def paths(tmp_path):
    """A file of three paths."""
    return write_json_lines(tmp_path / "a.jsonl", [nx.path_graph(n) for n in (2, 3, 4)])


def test_an_index_killed_before_its_manifest_is_built_anew(paths, tmp_path):
    out = tmp_path / "index"
    (out / "vectors" / "model").mkdir(parents=True)
    for name in ("vectors/vectors.json", f"{'0' * 32}.safetensors", "run.lock"):
        (out / name).write_text("left behind")
    done = run_command("index", paths, "--out", out)
    assert done.exit_code == 0, done.output
    assert len(list(out.glob("*.safetensors"))) == 1
    assert not (out / "vectors").exists()


@pytest.mark.parametrize(
    "name", ["model.safetensors", "vectors/notes.txt", "vectors/model/config.json", "a.part"]
)
def test_no_file_of_the_user_is_removed(name, paths, tmp_path):
    mine = tmp_path / "index" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    done = run_command("index", paths, "--out", tmp_path / "index")
    assert done.exit_code == 2
    assert "is not empty" in done.output
    GraphIndex.build([nx.path_graph(3)], ["a"]).save(tmp_path / "index")
    assert mine.read_text() == "mine"


def test_two_processes_that_add_to_an_index_lose_no_graph(paths, tmp_path):
    """The second to save is refused, and its command is refused from the start."""
    out = tmp_path / "index"
    assert run_command("index", paths, "--out", out).exit_code == 0
    first, second = GraphIndex.open(out), GraphIndex.open(out)
    first.add([nx.cycle_graph(4)], ["first"])
    second.add([nx.cycle_graph(5)], ["second"])
    first.save()
    with pytest.raises(ValueError, match="changed by another process: open the index again"):
        second.save()
    assert "first" in GraphIndex.open(out)
    with exclusive(out / "run"):
        done = run_command("index", paths, "--out", out, "--add")
    assert done.exit_code == 2
    assert "another softperm command writes to" in done.output


def test_a_training_killed_before_its_checkpoint_is_removed_is_finished(tmp_path):
    """Neither is the checkpoint left behind, nor is the run called unfinished."""
    graphs = [nx.path_graph(n) for n in range(2, 8)]
    file = write_json_lines(tmp_path / "a.jsonl", graphs, y=[0, 1] * 3)
    out = tmp_path / "run"
    options = ("--epochs", 1, "--hidden", 4, "--latent-vertices", 3)
    done = run_command("train", file, "--out", out, *options)
    assert done.exit_code == 0, done.output
    (out / "checkpoint.bin").write_bytes(b"left behind")
    done = run_command("predict", out, file, "--out", tmp_path / "p.csv")
    assert "not finished" not in done.output
    assert run_command("train", file, "--out", out, *options).exit_code == 2
    assert not (out / "checkpoint.bin").exists()


def test_parts_of_a_killed_stamp_of_verification_are_removed(tmp_path):
    """The next process that verifies the arrays of a prepared dataset writes the stamp again."""
    kinds = write_json_lines(tmp_path / "a.jsonl", [nx.path_graph(n) for n in (2, 3, 4)])
    found = prepare_file(kinds, cache=tmp_path / "cache")
    assert len(found.graphs) == 3
    (stamp,) = (tmp_path / "cache").rglob("verified")
    stamp.write_text("of another time")
    left = stamp.with_name(f".verified.{platform.node()}.{2**22 + 1}.1.part")  # no such process
    left.write_text("left behind")
    prepare_file(kinds, cache=tmp_path / "cache")
    assert not left.exists()
