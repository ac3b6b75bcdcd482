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
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from softperm.data.datasets.dataset import Dataset
from softperm.data.datasets.statistics import choose
from softperm.errors import counted
from softperm.explore.layout import lay_out
from softperm.files import write_atomically
from softperm.pyg import Data
from softperm.training.loop import Epoch
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


def save(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Writes a figure atomically, in the format of the path's ending; PNG if it has none."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:] or "png", dpi=dpi)
    write_atomically(path, content.getvalue())


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

    The graph with each vertex in the mixed colours of its latent vertices, D, A, and DᵀAD.

    Args:
        graph: a canonical graph of N vertices.
        d: its soft permutation.
        title: above the panels.
    """
    n, p = d.shape
    adjacency = dense_adjacency(graph)
    figure = Figure(figsize=(15, 3.9), layout="constrained")
    axes = figure.subplots(1, 4)
    _draw_graph(axes[0], graph, d)
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
    sizes = f"{counted(n, 'vertex')}, {counted(p, 'latent vertex')}"
    figure.suptitle(f"{plain_text(title)} ({sizes})".strip())
    return figure


def aligned_pair(
    graphs: Sequence[Data], permutations: Sequence[Float[np.ndarray, "_ P"]], title: str = ""
) -> Figure:
    """Two graphs, one above the other: drawn, as they are numbered, and aligned.

    Args:
        graphs: canonical graphs.
        permutations: the soft permutation (N, P) of each.
        title: above the panels.
    """
    figure = Figure(figsize=(12, 6.6), layout="constrained")
    axes = figure.subplots(2, 3, width_ratios=(1.5, 1, 1))
    for k, (graph, d) in enumerate(zip(graphs, permutations, strict=True)):
        adjacency = dense_adjacency(graph)
        _draw_graph(axes[k, 0], graph, d)
        axes[k, 1].imshow(adjacency, cmap="magma", interpolation="nearest")
        axes[k, 2].imshow(d.T @ adjacency @ d, cmap="magma", interpolation="nearest")
        axes[k, 1].set(xlabel="vertex", ylabel="vertex")
        axes[k, 2].set(xlabel="latent vertex", ylabel="latent vertex")
        axes[k, 0].set_title(f"graph {k + 1}: {counted(len(adjacency), 'vertex')}")
        for axis in axes[k, 1:]:
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 1].set_title("adjacency A, numbered at random")
    axes[0, 2].set_title("aligned DᵀAD")
    figure.suptitle(title)
    return figure


def dense_adjacency(graph: Data) -> Float[np.ndarray, "N N"]:
    """The adjacency matrix of a graph."""
    n = int(graph.num_nodes or 0)
    adjacency = np.zeros((n, n))
    weight = graph["edge_weight"].numpy() if "edge_weight" in graph else 1.0
    rows, columns = graph["edge_index"].numpy()
    adjacency[rows, columns] = weight
    return adjacency


def draw(
    axis: Axes, graph: Data, colour: np.ndarray, size: float, colours: int | None = None
) -> PathCollection:
    """Draws a graph, each component beside the others.

    Args:
        axis: where.
        graph: a canonical graph.
        colour: a number for each vertex.
        size: of a vertex, in square points.
        colours: number of colours on the scale; by default that of the values.
    """
    ptr = np.array([0, graph.num_nodes])
    ends = graph["edge_index"].numpy()
    place = lay_out(ptr, np.array([0, ends.shape[1]]), ends)
    lines = LineCollection(list(place[ends.T]), colors="0.6", linewidths=0.8, zorder=1)
    axis.add_collection(lines)
    scale = {} if colours is None else {"vmin": 0, "vmax": max(colours - 1, 1)}
    drawn = axis.scatter(
        *place.T, c=colour, s=size, cmap="turbo", edgecolors="black", linewidths=0.4, zorder=2,
        clip_on=False, **scale,
    )  # fmt: skip
    axis.set_aspect("equal", adjustable="datalim")
    axis.margins(0.08)
    axis.set_axis_off()
    return drawn


def drawings(dataset: Dataset, count: int = 6) -> Figure:
    """Some graphs of different sizes, vertices coloured by their first label or their degree.

    Args:
        dataset: the dataset.
        count: how many graphs.

    Returns:
        A figure of one panel per graph, smallest first, with its number and class.
    """
    chosen = choose(dataset, count)
    rows = -(-len(chosen) // 3)
    figure = Figure(figsize=(12, 3.8 * rows), layout="constrained")
    axes = figure.subplots(rows, 3, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, i, graph in zip(axes, chosen.tolist(), dataset.graphs(chosen.tolist()), strict=False):
        colour = np.bincount(graph["edge_index"][0].numpy(), minlength=graph.num_nodes or 0)
        if "label" in graph:
            colour = (graph.label if graph.label.ndim == 1 else graph.label[:, 0]).numpy()
        draw(axis, graph, colour, max(6, 300 // max(graph.num_nodes or 0, 1) ** 0.7))
        name = f", class {dataset.class_names[int(dataset.y[i])]}" if dataset.class_names else ""
        axis.set_title(f"graph {i}{name}: {counted(graph.num_nodes or 0, 'vertex')}", fontsize=10)
    figure.suptitle(dataset.name)
    return figure


def _draw_graph(axis: Axes, graph: Data, d: np.ndarray) -> None:
    """The graph, each vertex in the colours of its latent vertices, mixed by their shares.

    Vertices with the same row of D have the same colour, and a uniform row has the mean colour.
    """
    size = max(20, 400 // max(len(d), 1) ** 0.5)
    drawn = draw(axis, graph, d.argmax(axis=1), size, colours=d.shape[1])
    whole = MaxNLocator(integer=True)
    assert axis.figure is not None
    axis.figure.colorbar(drawn, ax=axis, shrink=0.8, label="latent vertex", ticks=whole)
    palette = drawn.to_rgba(np.arange(d.shape[1]))  # (P, 4)
    mass = d.sum(axis=1, keepdims=True)
    shares = np.where(mass > 0, d, 1.0) / np.where(mass > 0, mass, d.shape[1])  # (N, P)
    drawn.set_array(None)
    drawn.set_facecolor(np.clip(shares @ palette, 0, 1))
    axis.set_title("graph")
