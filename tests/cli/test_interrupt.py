"""Ctrl-C and worse during ``softperm train``: what was trained is kept and training goes on."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numba
import pytest
import torch
from samples import rings_and_cliques, run_command, same_weights, write_json_lines

from softperm import PiGNNClassifier
from softperm.cli import run_folder
from softperm.explore import plots

GRAPHS, KIND = rings_and_cliques(12)
SLOW = """
import sys, time
from contextlib import contextmanager
from softperm.cli import main
from softperm.cli import run_folder
from softperm.estimators import pignn as base
from softperm.explore import plots
from softperm.training import loop

@contextmanager
def announcing(shown):
    def report(activity, done, total, note):
        print("epoch", done, flush=True)
        time.sleep(0.1 * (done >= {slow}))
    yield report

base.progress_bars = announcing
run_folder._draw_some = lambda *_: 0
plots.save = lambda *_: None
loop.SAVE_EVERY_SECONDS, loop.SAVING_SHARE = {save}, 1e9
main()
"""


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(run_folder, "_draw_some", lambda *_: 0)
    monkeypatch.setattr(plots, "save", lambda *_: None)


@pytest.fixture
def data(tmp_path) -> Path:
    return write_json_lines(tmp_path / "g.jsonl", GRAPHS, kind=KIND.tolist())


def command(data: Path, out: Path, epochs: int = 40) -> list[str]:
    options = f"--epochs {epochs} --latent-vertices 4 --hidden 8 --batch-size 4 --device cpu --json"
    return ["train", str(data), "--out", str(out), *options.split()]


def stop(
    number: signal.Signals, at: int, save: float, arguments: list[str]
) -> tuple[int, str, str]:
    """Runs the command in a process of its own, and sends a signal after an epoch."""
    threads = {
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
        "NUMBA_NUM_THREADS": str(numba.get_num_threads()),
    }  # as many as here: sums over threads depend on their number
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW.format(slow=at, save=save), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **threads},
    )
    seen = []
    for line in child.stdout:
        seen.append(line)
        if line == f"epoch {at}\n":
            child.send_signal(number)
    rest = child.stderr.read()
    child.stdout.close()
    child.stderr.close()
    return child.wait(), "".join(seen), rest


@pytest.mark.slow
def test_signals_lose_nothing_that_matters(data, tmp_path):
    """Ctrl-C, then the same command, then a kill, then the same command to its end."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run_command(*command(data, whole)).exit_code == 0

    code, said, errors = stop(signal.SIGINT, 5, 1e9, command(data, broken))
    assert code == 130, errors
    assert "Traceback" not in errors
    result = json.loads(said[said.index("{") :])
    where = f"stopped after {result['epochs']} of 40 epochs"
    assert f"{where}; the same command with --out {broken} resumes it" in errors
    assert result["interrupted"] is True
    assert "test_score" not in result, "test graphs are looked at once, at the end"
    assert 5 <= result["epochs"] < 40
    assert PiGNNClassifier.load(broken / "model").predict(GRAPHS).shape == (12,)
    assert not (broken / "result.json").exists()
    assert not (broken / "pictures").exists(), "who presses Ctrl-C does not wait for pictures"

    code, said, errors = stop(signal.SIGKILL, 12, -1.0, command(data, broken))
    assert code == -signal.SIGKILL, errors
    assert f"resuming the run in {broken} after {result['epochs']} epochs" in errors
    assert said.startswith("epoch 1\n")  # the resumed epochs first
    assert not (broken / "result.json").exists()

    done = run_command(*command(data, broken))
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["epochs"] == 40
    assert not (broken / run_folder.CHECKPOINT).exists()
    ours, theirs = (PiGNNClassifier.load(run / "model").model_ for run in (broken, whole))
    same_weights(ours, theirs)
    first = json.loads((whole / "result.json").read_text())
    for key in ("best_epoch", "train_score", "test_score"):
        assert result[key] == first[key]


@pytest.mark.parametrize("presses", [1, 2])
def test_one_interrupt_ends_the_epoch_and_two_end_it_at_once(presses, data, tmp_path, monkeypatch):
    @contextmanager
    def pressing(shown):
        def report(activity, done, total, note):
            if done == 3:
                for _ in range(presses):
                    signal.raise_signal(signal.SIGINT)

        yield report

    with monkeypatch.context() as patch:
        patch.setattr("softperm.estimators.pignn.progress_bars", pressing)
        done = run_command(*command(data, tmp_path / "run", 8))
    assert done.exit_code == 130
    assert "Traceback" not in done.output
    assert (tmp_path / "run" / "model").exists() is (presses == 1)
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("stopped after " if presses == 1 else "interrupted")
    )
    if presses == 1:
        log = (tmp_path / "run" / "log.txt").read_text()
        assert "resumes it" in log
        for out in ("run", "whole"):
            assert run_command(*command(data, tmp_path / out, 8)).exit_code == 0
        runs = (PiGNNClassifier.load(tmp_path / out / "model").model_ for out in ("run", "whole"))
        same_weights(*runs)
