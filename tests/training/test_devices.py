"""Data-parallel training with real processes: the same weights as alone, and one clear end."""

import os
import subprocess
import sys
from pathlib import Path

import parallel_cases as cases
import pytest
import torch
from samples import FAST, rings_and_cliques
from torch.testing import assert_close

from softperm import PiGNNClassifier
from softperm.training.devices import connect, from_first, gather_rows, shares

PROGRAM = Path(cases.__file__)
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k not in {"LOCAL_RANK", "WORLD_SIZE", "RANK"}},
    "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[1]), str(PROGRAM.parent)]),
    "PYTHONWARNINGS": "error::UserWarning,error::FutureWarning",
    "OMP_NUM_THREADS": "1",
}
AGREE = ["gin", "parts", "means", "stopped"]


def launch(folder: Path, launchers: list[list[str]], names: list[str]) -> None:
    """Starts the launchers of one training, and waits until all of them have ended well."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *launcher, str(PROGRAM), str(folder), *names],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for launcher in launchers
    ]
    try:
        for process in started:
            said, warned = process.communicate(timeout=240)
            assert process.returncode == 0, warned
            assert said == ""
    finally:
        for process in started:
            process.kill()


def same_weights(name: str, folder: Path) -> None:
    """Raises unless both processes have the weights that one process finds alone."""
    alone, _ = cases.train(name, "cpu", None)
    for rank in (0, 1):
        theirs = torch.load(folder / f"{name}{rank}.pt")
        assert theirs.keys() == alone.state_dict().keys()
        for key, value in alone.state_dict().items():
            assert_close(theirs[key], value, rtol=1e-6, atol=1e-7)


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> Path:
    """The folder in which two processes, started by torchrun, left the weights of the cases."""
    folder = tmp_path_factory.mktemp("two")
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch(folder, [torchrun], AGREE)
    return folder


@pytest.mark.parametrize("name", AGREE)
def test_two_processes_give_the_weights_of_one(name, together):
    """Batch normalisation, missing answers, a mini-batch of one graph, resuming: all the same."""
    same_weights(name, together)


@pytest.mark.slow
def test_fabric_run_starts_them_too(tmp_path):
    fabric = ["lightning_fabric.cli", "--accelerator", "cpu", "--strategy", "ddp"]
    launch(tmp_path, [[*fabric, "--devices", "2"]], ["gin"])
    same_weights("gin", tmp_path)


@pytest.mark.slow
def test_two_machines_give_the_weights_of_one(tmp_path):
    torchrun = ["torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    meeting = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    launch(tmp_path, [[*torchrun, *meeting, "--node-rank", rank] for rank in "01"], ["gin"])
    same_weights("gin", tmp_path)


def test_one_process_resumes_what_two_began(together):
    """A checkpoint does not depend on how many processes wrote it."""
    seen = []
    model, result = cases.train("gin", "cpu", together, on_epoch=seen.append)
    theirs = torch.load(together / "gin0.pt")
    for key, value in model.state_dict().items():
        assert_close(theirs[key], value, rtol=0, atol=0)
    assert [epoch.number for epoch in seen] == [1, 2, 3, 4, 5, 6]
    assert not result.interrupted


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_nothing_finished_is_lost(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", QUICK, str(tmp_path), "killed"],
            env={**ENVIRONMENT, "LOCAL_RANK": str(rank), "MASTER_PORT": str(free_port())},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, -9], said
    sentence = "error: another of the 2 processes of this training has ended, so process 0 ends too"
    assert said[0].strip().splitlines() == [
        f"{sentence}: run the same command again to resume from the last checkpoint"
    ]
    resumed = []
    model, _ = cases.train("killed", "cpu", tmp_path, on_epoch=resumed.append)
    alone, _ = cases.train("killed", "cpu", None)
    assert (tmp_path / "killed.checkpoint").exists()
    for key, value in alone.state_dict().items():
        assert_close(model.state_dict()[key], value, rtol=1e-6, atol=1e-7)


QUICK = """
from softperm.training import loop
loop.SAVE_EVERY_SECONDS, loop.SAVING_SHARE = -1.0, float('inf')
from parallel_cases import main
main()
"""
_PORT: list[int] = []


def free_port() -> int:
    """A port that nobody uses; the same for all who ask here."""
    if not _PORT:
        from lightning_fabric.plugins.environments.lightning import find_free_network_port

        _PORT.append(find_free_network_port())
    return _PORT[0]


class Several:
    """Stands for one of several processes."""

    def __init__(self, world_size: int, global_rank: int) -> None:
        self.world_size, self.global_rank = world_size, global_rank
        self.is_global_zero = global_rank == 0


@pytest.mark.parametrize(
    ("world", "pieces", "graphs"), [(2, 1, 7), (3, 2, 4), (4, 3, 1), (1, 2, 5), (1, 1, 3)]
)
def test_shares_of_a_mini_batch_are_disjoint_and_cover_it(world, pieces, graphs):
    part, sizes = torch.randperm(graphs), torch.randint(1, 50, (graphs,))
    dealt = [shares(part, sizes, Several(world, rank), pieces) for rank in range(world)]
    assert all(len(mine) == pieces for mine in dealt)
    everything = torch.cat([pile for mine in dealt for pile in mine])
    assert everything.sort().values.tolist() == list(range(graphs))
    counts = [len(pile) for mine in dealt for pile in mine]
    assert max(counts) - min(counts) <= 1


def test_shares_have_about_as_many_vertices():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(2, 200, (4096,), generator=generator)
    part = torch.randperm(4096, generator=generator)[:512]
    vertices = [int(sizes[shares(part, sizes, Several(8, r), 1)[0]].sum()) for r in range(8)]
    assert max(vertices) < 1.01 * sum(vertices) / 8


def test_alone_nothing_is_gathered_and_the_first_answer_is_ones_own():
    fabric = connect("cpu")
    rows = torch.rand(3, 2)
    assert gather_rows(fabric, rows, 3) is rows
    assert from_first(fabric, lambda: 5) == 5
    with pytest.raises(ValueError, match="why"):
        from_first(fabric, lambda: (_ for _ in ()).throw(ValueError("why")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "8"}, "precision must be one of 32, bf16-mixed, 16-mixed; got '8'"),
        ({"precision": "16-mixed"}, "precision 16-mixed needs a GPU"),
        ({"devices": 0}, r"cannot train on 0 cpu device\(s\) of 1 machine\(s\): .*devices=0"),
        ({"nodes": 0}, r"cannot train on 1 cpu device\(s\) of 0 machine\(s\)"),
    ],
)
def test_devices_that_cannot_be_had_are_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        connect("cpu", **arguments)
    assert "\n" not in str(caught.value)


def test_a_plain_device_does_not_read_the_environment_of_a_launcher(monkeypatch):
    """Under torchrun each process that calls an estimator trains alone, on its own graphs."""
    launched = {
        "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0",
        "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    small = {**FAST, "validation_fraction": 0.0, "device": "cpu"}
    assert PiGNNClassifier(**small).fit(*rings_and_cliques(8)).best_epoch_ == 2
    assert not torch.distributed.is_initialized()
