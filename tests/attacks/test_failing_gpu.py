"""A GPU that fails in the middle of a training: one sentence, and the next command resumes it."""

import json
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest
import torch
from typer.testing import CliRunner

from softperm.cli import app
from softperm.training import loop
from softperm.training.checkpoints import read_checkpoint

NETWORK = ("--epochs", "6", "--latent-vertices", "4", "--hidden", "4", "--batch-size", "4")
FAILURE = "CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later"
FAILING = """
import sys
import torch
from softperm.cli import main
from softperm.training import cuda_graphs, loop
kind, calls = sys.argv.pop(1), 0
loop.SAVE_EVERY_SECONDS, loop.SAVING_SHARE = 0.0, 1e9
shift = torch.zeros((), dtype=torch.long, device="cuda")
mean_loss, replay = cuda_graphs.mean_loss, torch.cuda.CUDAGraph.replay
def loss_of_shifted(task, outputs, y, present, weights):
    index = torch.arange(len(y), device="cuda") + shift
    return mean_loss(task, outputs, y[index], present, weights)
def failing(graph):
    global calls
    calls += 1
    if calls == 20:  # of six in an epoch
        if kind == "memory":
            torch.empty(1 << 50, device="cuda")
        shift.fill_(1 << 20)  # an index that is out of bounds
    replay(graph)
cuda_graphs.mean_loss, torch.cuda.CUDAGraph.replay = loss_of_shifted, failing
main()
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    kinds = (nx.cycle_graph, nx.complete_graph)
    graphs = [kinds[i % 2](4 + i // 2 % 4) for i in range(24)]
    rows = [{**nx.node_link_data(g, edges="links"), "y": i % 2} for i, g in enumerate(graphs)]
    (tmp_path / "g.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["train", str(tmp_path / "g.jsonl"), "--out", str(tmp_path / "run"), *NETWORK]
    return [*arguments, "--test-fraction", "0", "--device"]


def assert_resumes(command: list[str], run: Path) -> None:
    """The checkpoint of the failed command is whole, and the same command resumes from it."""
    state = read_checkpoint(run / "checkpoint.bin", None)
    assert state is not None
    epochs = state["epoch"]
    assert 0 < epochs < 6
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert f"resuming the run in {run} after {epochs} epochs" in done.output
    assert len((run / "curve.csv").read_text().splitlines()) == 7


def test_an_error_of_a_gpu_is_one_sentence_and_costs_no_finished_epoch(
    command, tmp_path, monkeypatch
):
    step, calls = loop.OneModel._train_step, 0

    def failing(self, part, mini_batches):
        nonlocal calls
        calls += 1
        if calls == 20:
            raise RuntimeError(FAILURE)
        return step(self, part, mini_batches)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "SAVE_EVERY_SECONDS", 0.0)
        patch.setattr(loop, "SAVING_SHARE", 1e9)
        patch.setattr(loop.OneModel, "_train_step", failing)
        done = CliRunner().invoke(app, [*command, "cpu"])
    assert done.exit_code == 2
    assert done.output.splitlines()[-1] == (
        "error: the GPU failed (CUDA error: device-side assert triggered): run the same command "
        "again, which resumes it"
    )
    assert_resumes([*command, "cpu"], tmp_path / "run")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("kind", "sentence"),
    [("assertion", "error: the GPU failed (CUDA error: "), ("memory", "error: out of memory in ")],
)
def test_an_error_in_a_replayed_graph_is_one_sentence(kind, sentence, command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FAILING, kind, *command, "cuda"], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(sentence)
    assert_resumes([*command, "cuda"], tmp_path / "run")
