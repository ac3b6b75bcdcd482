"""Pictures: training curves, and what a soft permutation does to a graph."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from softperm.files import write_atomically
from softperm.pyg import Data
from softperm.training.epoch_tracker import Epoch
from softperm.training.tasks import Task

WIDE = 50
"""Ratio of the largest to the smallest value above which an axis is logarithmic."""


def plain_text(text: str) -> str:
    """Text that Matplotlib does not read as a formula; SMILES and names of files may have a $."""
    return text.replace("$", r"\$")


@contextmanager
def drawing(what: str) -> Iterator[None]:
    """Warns if a picture cannot be drawn: results do not depend on it. A full disk is an error."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # of Matplotlib, of any kind
        detail = " ".join(str(error).split())[:200]
        warnings.warn(f"{what} could not be drawn ({type(error).__name__}: {detail})", stacklevel=3)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG; ``path`` has no ending."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_atomically(path.with_name(path.name + ".png"), content.getvalue())


def training_curve(curve: Sequence[Epoch], best_epoch: int, task: Task) -> Figure:
    """Losses, and the validation score if there is one, over the epochs.

    Args:
        curve: one row per epoch.
        best_epoch: number of the epoch whose parameters were kept.
        task: names the score and its direction.
    """
    scored = any(np.isfinite(epoch.validation_score) for epoch in curve)
    panels = 2 if scored else 1
    figure = Figure(figsize=(5 * panels, 3.6), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)
    numbers = [epoch.number for epoch in curve]
    axes[0, 0].plot(numbers, [epoch.train_loss for epoch in curve], label="training")
    if scored:
        axes[0, 0].plot(numbers, [epoch.validation_loss for epoch in curve], label="validation")
        axes[0, 1].plot(numbers, [epoch.validation_score for epoch in curve], color="C2")
        better = " (higher is better)" if task.higher_is_better else " (lower is better)"
        axes[0, 1].set(xlabel="epoch", ylabel=f"validation {task.metric}{better}")
    for axis in axes[0]:
        log_where_wide(axis)
        axis.axvline(best_epoch, color="0.7", linestyle="--", linewidth=1, zorder=0)
    axes[0, 0].set(xlabel="epoch", ylabel="loss")
    axes[0, 0].legend(title=f"best epoch {best_epoch}", frameon=False)
    return figure


def log_where_wide(axis: Axes) -> None:
    """Makes the y-axis logarithmic if its values are positive and span more than a factor WIDE.

    A loss that falls to a thousandth of its first value is a flat line otherwise.
    """
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axis.get_lines()]
    figures = np.concatenate([np.zeros(0), *(line[np.isfinite(line)] for line in drawn)])
    if len(figures) and 0 < WIDE * figures.min() < figures.max():
        axis.set_yscale("log")


def alignment(graph: Data, d: Float[np.ndarray, "N P"], title: str = "") -> Figure:
    """A graph and its soft permutation in four panels.

    The graph with each vertex coloured by its strongest latent vertex, D, A, and DᵀAD.

    Args:
        graph: a canonical graph of N vertices.
        d: its soft permutation.
        title: above the panels.
    """
    n, p = d.shape
    adjacency = np.zeros((n, n))
    weight = graph.edge_weight.numpy() if "edge_weight" in graph else 1.0
    adjacency[graph.edge_index[0].numpy(), graph.edge_index[1].numpy()] = weight
    figure = Figure(figsize=(15, 3.9), layout="constrained")
    axes = figure.subplots(1, 4)
    _draw_graph(axes[0], adjacency, d)
    panels = [
        ("soft permutation D", d, "latent vertex", "vertex"),
        ("adjacency A", adjacency, "vertex", "vertex"),
        ("aligned DᵀAD", d.T @ adjacency @ d, "latent vertex", "latent vertex"),
    ]
    for axis, (name, matrix, xlabel, ylabel) in zip(axes[1:], panels, strict=True):
        image = axis.imshow(matrix, cmap="magma", aspect="auto", interpolation="nearest")
        axis.set(title=name, xlabel=xlabel, ylabel=ylabel)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))  # there is no vertex 2.5
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(image, ax=axis, shrink=0.8)
    figure.suptitle(f"{plain_text(title)} ({n} vertices, {p} latent vertices)".strip())
    return figure


def _draw_graph(axis, adjacency: np.ndarray, d: np.ndarray) -> None:
    """The graph, vertices coloured by their strongest latent vertex."""
    import networkx as nx

    graph = nx.from_numpy_array(adjacency)
    strongest = d.argmax(axis=1)
    place = nx.spring_layout(graph, seed=0, iterations=100)
    nx.draw_networkx_edges(graph, place, ax=axis, alpha=0.4)
    drawn = nx.draw_networkx_nodes(
        graph,
        place,
        ax=axis,
        node_color=strongest,
        cmap="turbo",
        vmin=0,
        vmax=max(d.shape[1] - 1, 1),
        node_size=max(20, 400 // len(graph) ** 0.5),
        edgecolors="black",
        linewidths=0.4,
    )
    whole = MaxNLocator(integer=True)
    axis.figure.colorbar(drawn, ax=axis, shrink=0.8, label="strongest latent vertex", ticks=whole)
    axis.set_title("graph")
    axis.set_axis_off()
