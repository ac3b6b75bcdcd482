"""The runtime study: time of an epoch over the size of graphs, and over latent vertices.

The paper's Section 5.3 (200 random graphs of n vertices, batches of 64), with the naive padded way
beside ours, on the same machine in the same run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from softperm.data.collection import Collection
from softperm.data.datasets.synthetic import runtime_study
from softperm.data.vocabulary import Vocabulary
from softperm.files import write_atomically
from softperm.lab.page import Page
from softperm.lab.records import device_name, versions
from softperm.lab.studies.naive import PaddedPiGNN, pad
from softperm.nn.model import ModelConfig, build
from softperm.training.fit import Examples, TrainingConfig, epoch_order, fit
from softperm.training.tasks import Classification, mean_loss

SIZES = tuple(range(10, 101, 10))
BATCH = 64


@dataclass(frozen=True)
class Timing:
    """Seconds that an epoch takes, on average.

    Attributes:
        vertices: n, size of every graph.
        latent_vertices: P.
        ours: of ``fit``.
        naive: of the padded way.
    """

    vertices: int
    latent_vertices: int
    ours: float
    naive: float


def run(
    folder: Path,
    *,
    epochs: int,
    naive_epochs: int,
    device: str = "cpu",
    say: Callable[[str, float], None] = lambda what, share: None,
) -> tuple[list[Timing], list[Timing]]:
    """Both curves of the paper: over n with P = 10, then over P with n = 50.

    What is measured is kept at once in ``runtime.json``, and a study there that was cut short is
    gone on with.

    Args:
        folder: where it is kept.
        epochs: timed for ours; the paper has 100.
        naive_epochs: timed for the padded way.
        device: where to train.
        say: told what is being done.

    Raises:
        ValueError: the folder holds a study of another device, or of other versions or epochs.
    """
    circumstances = {
        "device": device_name(torch.device(device)),
        "versions": versions(),
        "epochs": epochs,
        "naive_epochs": naive_epochs,
    }
    kept = folder / "runtime.json"
    made = _kept(kept, circumstances)
    over_n, over_p = [(n, 10) for n in SIZES], [(50, p) for p in SIZES]
    plan = list(dict.fromkeys([*over_n, *over_p]))
    for k, (n, p) in enumerate(plan):
        if (n, p) in made:
            continue
        say(f"n = {n}, P = {p}", k / len(plan))
        made[n, p] = measure(n, p, epochs, naive_epochs, torch.device(device))
        found = {
            "over_n": [asdict(made[x]) for x in over_n if x in made],
            "over_p": [asdict(made[x]) for x in over_p if x in made],
        }
        write_atomically(kept, (json.dumps(circumstances | found, indent=1) + "\n").encode())
    say("done", 1.0)
    return [made[x] for x in over_n], [made[x] for x in over_p]


def _kept(path: Path, circumstances: dict[str, Any]) -> dict[tuple[int, int], Timing]:
    """What was measured before, by n and P.

    Raises:
        ValueError: the file is damaged, or of a study under other circumstances.
    """
    if not path.exists():
        return {}
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        timings = [Timing(**t) for t in told["over_n"] + told["over_p"]]
        other = [name for name, value in circumstances.items() if told[name] != value]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path} is damaged: delete it, or choose another folder") from None
    if other:
        raise ValueError(
            f"{path} holds a study with other {' and '.join(other)}: delete it, or choose another "
            "folder"
        )
    return {(t.vertices, t.latent_vertices): t for t in timings}


def measure(n: int, p: int, epochs: int, naive_epochs: int, device: torch.device) -> Timing:
    """Time of an epoch of both ways; the first epoch, which compiles, does not count."""
    graphs, classes = runtime_study(n)
    collection = Vocabulary.learn(graphs).encode(graphs).to(device)
    y = torch.from_numpy(np.asarray(classes))
    config = ModelConfig(outputs=2, latent_vertices=p, capacity=n)
    ours = _time_ours(build(config, 0), collection, y, epochs, device)
    naive = _time_naive(build(config, 0), collection, y, naive_epochs, device)
    return Timing(n, p, ours, naive)


def _time_ours(
    model: nn.Module, graphs: Collection, y: torch.Tensor, epochs: int, device: torch.device
) -> float:
    train = Examples(graphs, y, torch.arange(len(graphs)))
    config = TrainingConfig(epochs=epochs + 1, batch_size=BATCH)
    result = fit(model, Classification(2), train, config, device=device)
    return float(np.median([epoch.seconds for epoch in result.curve[1:]]))


def _time_naive(
    model: nn.Module, graphs: Collection, y: torch.Tensor, epochs: int, device: torch.device
) -> float:
    network = PaddedPiGNN(model.to(device).train())  # pyright: ignore[reportArgumentType]
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    capacity = int(graphs.sizes.max())
    parts = pad(graphs, torch.arange(len(graphs), device=device), capacity)[:2]
    seconds = []
    for epoch in range(1, epochs + 2):
        started = time.perf_counter()
        for part in epoch_order(torch.arange(len(graphs)), 0, epoch).split(BATCH):
            outputs = network(*(tensor[part.to(device)] for tensor in parts))
            loss = mean_loss(Classification(2), outputs, y[part].to(device))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            loss.item()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds[1:]))


def curves(over_n: list[Timing], over_p: list[Timing]) -> Figure:
    """The paper's two curves, ours and the padded way."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    panels = [("vertices n (P = 10)", over_n, "vertices")]
    panels.append(("latent vertices P (n = 50)", over_p, "latent_vertices"))
    for axis, (label, timings, name) in zip(axes, panels, strict=True):
        x = [getattr(t, name) for t in timings]
        axis.plot(x, [1e3 * t.naive for t in timings], marker="s", label="padded, autograd")
        axis.plot(x, [1e3 * t.ours for t in timings], marker="o", label="softperm")
        axis.set(xlabel=label, yscale="log", xticks=x)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("milliseconds for an epoch of 200 graphs")
    axes[1].legend(frameon=False)
    return figure


def write(over_n: list[Timing], over_p: list[Timing], folder: Path, device: str) -> Path:
    """Writes the figure as PNG and SVG, and the page; returns the page's path."""
    figure = curves(over_n, over_p)
    figure.savefig(folder / "runtime.png", dpi=150)
    figure.savefig(folder / "runtime.svg")
    page = Page("Time of an epoch")
    page.paragraph(
        "200 Erdős–Rényi graphs of n vertices in two classes, batches of 64, one model; median "
        f"over epochs, the first left out. Measured on: {device_name(torch.device(device))}."
    )
    page.figure(figure, "Left: over the size of graphs. Right: over latent vertices.")
    for timings in (over_n, over_p):
        page.table(
            [
                {
                    "n": t.vertices,
                    "P": t.latent_vertices,
                    "softperm, ms": f"{1e3 * t.ours:.1f}",
                    "padded, ms": f"{1e3 * t.naive:.1f}",
                    "ratio": f"{t.naive / t.ours:.1f}",
                }
                for t in timings
            ]
        )
    path = folder / "runtime.html"
    page.save(path)
    return path
