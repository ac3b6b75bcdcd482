"""The runtime study: time of an epoch for different sizes of graphs and numbers of latent vertices.

Section 5.3 of the paper (200 random graphs of n vertices, batches of 64), together with the paper's
padded implementation, on the same machine in the same run.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch_geometric.utils import to_dense_adj, to_dense_batch

from softperm.data.collection import Collection
from softperm.data.datasets.synthetic import runtime_study
from softperm.data.vocabulary import Vocabulary
from softperm.explore.plots import save
from softperm.files import write_atomically
from softperm.lab.records import device_name, versions
from softperm.lab.report import Page
from softperm.nn.model import ModelConfig, PiGNN, build
from softperm.nn.permutation import MixedPermutation, SoftPermutation
from softperm.progress import Report, silent
from softperm.settings import TrainingConfig
from softperm.training.data import Examples, epoch_order
from softperm.training.loop import fit
from softperm.training.tasks import Classification, mean_loss

SIZES = tuple(range(10, 101, 10))
BATCH = 64


@dataclass(frozen=True)
class Timing:
    """Median seconds of an epoch.

    Attributes:
        vertices: n, size of every graph.
        latent_vertices: P.
        ours: with ``fit``.
        naive: with the padded implementation.
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
    progress: Report = silent,
) -> tuple[list[Timing], list[Timing]]:
    """Measures both curves of the paper: over n with P = 10, and over P with n = 50.

    Each measurement is saved in ``runtime.json``, from which an interrupted study resumes. The
    paper's number of epochs is 100; the padded implementation has one of its own.

    Raises:
        ValueError: the folder holds a study with another device, other versions or other epochs.
    """
    circumstances = {
        "device": device_name(torch.device(device)),
        "versions": versions(),
        "epochs": epochs,
        "naive_epochs": naive_epochs,
    }
    path = folder / "runtime.json"
    timings = _load(path, circumstances)
    over_n, over_p = [(n, 10) for n in SIZES], [(50, p) for p in SIZES]
    points = list(dict.fromkeys([*over_n, *over_p]))
    for k, (n, p) in enumerate(points):
        if (n, p) in timings:
            continue
        progress("runtime study", k, len(points), f"n = {n}, P = {p}")
        timings[n, p] = measure(n, p, epochs, naive_epochs, torch.device(device))
        measured = {
            "over_n": [asdict(timings[x]) for x in over_n if x in timings],
            "over_p": [asdict(timings[x]) for x in over_p if x in timings],
        }
        write_atomically(path, json.dumps(circumstances | measured, indent=1) + "\n")
    progress("runtime study", len(points), len(points), "done")
    return [timings[x] for x in over_n], [timings[x] for x in over_p]


def _load(path: Path, circumstances: dict[str, Any]) -> dict[tuple[int, int], Timing]:
    """Loads finished measurements by n and P; refuses those of other circumstances."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        timings = [Timing(**t) for t in content["over_n"] + content["over_p"]]
        other = [name for name, value in circumstances.items() if content[name] != value]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path} is damaged: delete it, or choose another folder") from None
    if other:
        raise ValueError(
            f"{path} holds a study with other {' and '.join(other)}: delete it, or choose another "
            "folder"
        )
    return {(t.vertices, t.latent_vertices): t for t in timings}


def measure(n: int, p: int, epochs: int, naive_epochs: int, device: torch.device) -> Timing:
    """Times an epoch of both implementations, without the first epoch, which compiles."""
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


class PaddedPiGNN(nn.Module):
    """A π-GNN on graphs padded to its capacity, as in the paper; shares the model's parameters.

    Its outputs equal those of the ragged network with all iterations. Memory and time depend on the
    largest graph, not on the number of vertices.

    Args:
        model: a network with linear encoders, a capacity, and no dustbins.
    """

    def __init__(self, model: PiGNN) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        structure: Float[Tensor, "B N S"],
        adjacency: Float[Tensor, "B N N"],
        x: Float[Tensor, "B N F"] | None = None,
    ) -> Float[Tensor, "B C"]:
        """The outputs of each padded graph."""
        permutation = self.model.permutation
        if isinstance(permutation, MixedPermutation):
            share = torch.sigmoid(permutation.alpha)
            d = share * _plan(permutation.adjacency, structure)  # (B, N, P)
            d = d + (1 - share) * _plan(permutation.attributes, x)
        else:
            d = _plan(permutation, structure)  # (B, N, P)
        aligned = [d.mT @ adjacency @ d]  # (B, P, P)
        if x is not None:
            aligned.append(d.mT @ x)  # (B, P, F)
        return self.model.head(aligned)


def pad(
    graphs: Collection, index: Int[Tensor, " b"], capacity: int
) -> tuple[Float[Tensor, "b N S"], Float[Tensor, "b N N"], Float[Tensor, "b N F"] | None]:
    """Structural features, adjacency and attributes of the selected graphs, padded with zeros."""
    batch = graphs.batch(index)
    sizes = {"batch": batch.batch, "max_num_nodes": capacity, "batch_size": len(index)}
    structure, _ = to_dense_batch(batch.structure, **sizes)
    adjacency = to_dense_adj(batch.edge_index, **sizes)
    return structure, adjacency, to_dense_batch(batch.x, **sizes)[0] if "x" in batch else None


def _plan(permutation: nn.Module, x: Float[Tensor, "B N F"] | None) -> Float[Tensor, "B N P"]:
    """The iterations of Sinkhorn in log space, as in the paper."""
    assert isinstance(permutation, SoftPermutation)
    assert x is not None
    no_edges = torch.empty(2, 0, dtype=torch.long, device=x.device)
    whole = torch.tensor([0, x.shape[0] * x.shape[1]], device=x.device)
    flat = permutation.encoder(x.flatten(0, 1), no_edges, whole)  # (B · N, H)
    scores = permutation.compare(flat, permutation.latent).unflatten(0, x.shape[:2])  # (B, N, P)
    n, p = scores.shape[1:]
    column_mass = math.log(n / p)
    iterations = getattr(permutation.normaliser, "keywords", {}).get("iterations", 100)
    rows = -scores.logsumexp(2, keepdim=True)  # (B, N, 1)
    for _ in range(iterations):
        columns = column_mass - (scores + rows).logsumexp(1, keepdim=True)  # (B, 1, P)
        rows = -(scores + columns).logsumexp(2, keepdim=True)
    return (scores + rows + columns).exp()


def curves(over_n: list[Timing], over_p: list[Timing]) -> Figure:
    """The paper's two curves for both implementations."""
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
    save(figure, folder / "runtime.png")
    save(figure, folder / "runtime.svg")
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
