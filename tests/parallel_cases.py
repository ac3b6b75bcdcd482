"""Trainings that one process and several must agree on; run as a program, it is one of several.

``python parallel_cases.py FOLDER CASE…`` trains the cases and leaves their weights in the folder.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from samples import collect, random_graph

from softperm.nn.model import ModelConfig, build
from softperm.settings import TrainingConfig
from softperm.training.data import Examples
from softperm.training.devices import PeerLost, connect, disconnect
from softperm.training.loop import Epoch, fit
from softperm.training.tasks import MultiLabel

COLLECTION = collect([random_graph(n, seed=n) for n in (3, 9, 5, 7, 4, 12, 6, 8, 2, 10, 11, 1, 6)])
_ANSWERS = torch.arange(26).view(13, 2) % 3 % 2
Y = torch.where(torch.arange(26).view(13, 2) % 4 == 1, torch.nan, _ANSWERS.float())
TRAIN = Examples(COLLECTION, Y, torch.arange(9))
HELD = Examples(COLLECTION, Y, torch.arange(9, 12))
TASK = MultiLabel(2)
"""Nine graphs in mini-batches of four: the last holds one graph, so a process has none of it."""


def case(name: str) -> tuple[dict, dict]:
    """Settings of the network and of the training of a case."""
    return {
        "gin": ({"encoder": "gin"}, {}),
        "parts": ({"encoder": "linear"}, {"accumulate": 2, "clip": 0.1}),
        "means": ({"encoder": "gcn"}, {"ema": 0.5, "decay": 0.5, "decay_patience": 1}),
        "stopped": ({"encoder": "gin"}, {}),
        "killed": ({"encoder": "gin"}, {}),
    }[name]


def train(name: str, device, folder: Path | None, epochs: int = 6, on_epoch=lambda epoch: None):
    """Trains a case and gives the network; in the folder its training can be resumed."""
    choices, training = case(name)
    config = ModelConfig(2, latent_vertices=4, hidden=6, layers=2, dustbin=True, **choices)
    model = build(config, seed=0).double()
    settings = TrainingConfig(epochs=epochs, batch_size=4, learning_rate=1e-2, **training)
    place = None if folder is None else folder / f"{name}.checkpoint"
    result = fit(
        model, TASK, TRAIN, settings, validation=HELD, device=device,
        checkpoint=place, on_epoch=on_epoch,
    )  # fmt: skip
    return model, result


def main() -> None:
    """One of several processes."""
    folder, *names = sys.argv[1:]
    folder = Path(folder)
    fabric = connect("cpu", devices=2)

    def die(epoch: Epoch) -> None:
        if epoch.number == 3:
            os.kill(int((folder / "pid1").read_text()), signal.SIGKILL)

    (folder / f"pid{fabric.global_rank}").write_text(str(os.getpid()))
    fabric.barrier()
    seen: list[Epoch] = []
    for name in names:
        if name == "stopped":
            train(name, fabric, folder, epochs=2)
        try:
            model, _ = train(
                name, fabric, folder, on_epoch=die if name == "killed" else seen.append
            )
        except PeerLost as problem:
            sys.exit(f"error: {problem}")
        torch.save(model.state_dict(), folder / f"{name}{fabric.global_rank}.pt")
    disconnect(fabric)


if __name__ == "__main__":
    main()
