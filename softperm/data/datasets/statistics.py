"""Statistics of a dataset, the paper's numbers for comparison, and figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from softperm.data.datasets.dataset import Dataset
from softperm.errors import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LINEAR_DEGREES = 10  # degrees up to which an axis is linear
_DRAWABLE = 500  # vertices; drawings of larger graphs are not readable


@dataclass(frozen=True)
class Statistics:
    """One column of the paper's table of datasets."""

    max_vertices: int | None
    min_vertices: int | None
    mean_vertices: float
    max_edges: int | None
    min_edges: int | None
    mean_edges: float
    labels: int | None
    attributes: int | None
    graphs: int
    classes: int | None


@dataclass(frozen=True)
class Comparison:
    """One number of the data and of the paper.

    Args:
        field: the name of a field of :class:`Statistics`.
        found: the number in the data, rounded to ``digits``.
        published: the number in the paper; None if it gives none.
        note: why they differ, if they do.
        digits: number of decimals in the paper.
    """

    field: str
    found: float | int | None
    published: float | int | None
    note: str
    digits: int


def statistics_of(dataset: Dataset) -> Statistics:
    """The numbers of the paper's table, computed from a dataset's graphs.

    Returns:
        The numbers, not rounded. Labels are those of the source.
    """
    sizes, edges = dataset.collection.sizes, edge_counts(dataset)
    columns = [len(values) for values in dataset.schema.label_values]
    x = dataset.collection.x
    return Statistics(
        max_vertices=int(sizes.max()),
        min_vertices=int(sizes.min()),
        mean_vertices=float(sizes.double().mean()),
        max_edges=int(edges.max()),
        min_edges=int(edges.min()),
        mean_edges=float(edges.double().mean()),
        labels=sum(columns) if columns else None,
        attributes=None if x is None else x.shape[1],
        graphs=len(dataset),
        classes=len(dataset.class_names) or None,
    )


def edge_counts(dataset: Dataset) -> Int[Tensor, " B"]:
    """Number of undirected edges of each graph."""
    return dataset.collection.edge_ptr.diff() // 2


def compare(dataset: Dataset) -> tuple[Comparison, ...]:
    """Compare a dataset's numbers with the paper's."""
    ours = asdict(statistics_of(dataset))
    paper: dict[str, float | int | None] = {}
    digits = 2
    if dataset.name in PUBLISHED:
        paper = asdict(PUBLISHED[dataset.name])
    elif dataset.name in PUBLISHED_MEANS:
        graphs, vertices, edges = PUBLISHED_MEANS[dataset.name]
        paper = {"graphs": graphs, "mean_vertices": vertices, "mean_edges": edges}
        digits = 1
    comparisons = []
    for name in (f.name for f in fields(Statistics)):
        value, published = ours[name], paper.get(name)
        value = round(value, digits) if isinstance(value, float) else value
        differs = name in paper and value != published
        note = EXPLANATIONS.get((dataset.name, name), "not explained") if differs else ""
        comparisons.append(Comparison(name, value, published, note, digits))
    return tuple(comparisons)


def degree_histogram(dataset: Dataset) -> Int[Tensor, " degrees"]:
    """Number of vertices of each degree, from 0 on."""
    return torch.bincount(dataset.collection.structure[:, 0].long())


def histograms(dataset: Dataset) -> Figure:
    """Histograms of the numbers of vertices and edges of a graph, and of the degrees."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(13, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    counts = (dataset.collection.sizes.numpy(), edge_counts(dataset).numpy())
    for axis, values, name in zip(axes, counts, ("vertices", "edges"), strict=False):
        axis.hist(values, bins=_bins(values), color="C0")
        axis.set(xlabel=f"{name} of a graph", ylabel="graphs", xscale=_scale(values))
    degrees = degree_histogram(dataset).numpy()
    present = np.flatnonzero(degrees)
    axes[2].plot(present, degrees[present], ".", color="C1")
    axes[2].set(xlabel="degree", ylabel="vertices", yscale="log")
    if len(degrees) > LINEAR_DEGREES:
        axes[2].set_xscale("symlog", linthresh=LINEAR_DEGREES)
    else:
        axes[2].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[2].set_xlim(left=-0.5)
    figure.suptitle(f"{dataset.name}: {counted(len(dataset), 'graph')}")
    return figure


def choose(dataset: Dataset, count: int) -> Int[np.ndarray, " chosen"]:
    """Graphs spread evenly over the sizes that can be drawn, smallest first."""
    sizes = dataset.collection.sizes.numpy()
    order = np.argsort(sizes, kind="stable")
    order = order[(sizes[order] > 0) & (sizes[order] <= max(_DRAWABLE, int(sizes.min())))]
    places = np.linspace(0, order.size - 1, min(count, order.size)).round().astype(int)
    return order[places]


def _bins(values: np.ndarray) -> np.ndarray:
    low, high = max(1, int(values.min())), int(values.max()) + 1
    if _scale(values) == "log":
        return np.geomspace(low, high, 50)
    return np.arange(0, high + 1, max(1, high // 50))


def _scale(values: np.ndarray) -> str:
    return "log" if values.max() > 20 * np.median(values) or values.max() > 1000 else "linear"


PUBLISHED: dict[str, Statistics] = {
    "MUTAG": Statistics(28, 10, 17.93, 33, 10, 19.79, 7, None, 188, 2),
    "DD": Statistics(5748, 30, 284.32, 14267, 63, 715.66, 82, None, 1178, 2),
    "NCI1": Statistics(111, 3, 29.87, 119, 2, 32.30, 37, None, 4110, 2),
    "PROTEINS": Statistics(620, 4, 39.05, 1049, 5, 72.81, 3, None, 1113, 2),
    "ENZYMES": Statistics(126, 2, 32.63, 149, 1, 62.14, None, 18, 600, 6),
    "IMDB-BINARY": Statistics(136, 12, 19.77, 1249, 26, 96.53, None, None, 1000, 2),
    "IMDB-MULTI": Statistics(89, 7, 13.00, 1467, 12, 65.93, None, None, 1500, 3),
    "REDDIT-BINARY": Statistics(3782, 6, 429.61, 4071, 4, 497.75, None, None, 2000, 2),
    "REDDIT-MULTI-5K": Statistics(3648, 22, 508.50, 4783, 21, 594.87, None, None, 4999, 5),
    "COLLAB": Statistics(492, 32, 74.49, 40119, 60, 2457.34, None, None, 5000, 3),
}
"""The paper's table of the ten classification datasets."""

PUBLISHED_MEANS: dict[str, tuple[int, float, float]] = {
    "ogbg-molhiv": (41_127, 25.5, 27.5),
    "ogbg-molpcba": (437_929, 26.0, 28.0),
}
"""Graphs, mean vertices and mean edges that the paper's text gives."""

EXPLANATIONS: dict[tuple[str, str], str] = {
    ("PROTEINS", "mean_vertices"): "39.0575, the paper's number if cut instead of rounded",
    ("PROTEINS", "mean_edges"): "72.8158, the paper's number if cut instead of rounded",
    ("ENZYMES", "labels"): "the files hold 3 labels beside the 18 attributes; both are used",
    ("IMDB-MULTI", "mean_edges"): "65.9353, the paper's number if cut instead of rounded",
    ("REDDIT-BINARY", "mean_vertices"): (
        "429.627 with the 21 vertices without edges, 429.6165 without them; the latter is the "
        "paper's number if cut instead of rounded"
    ),
    ("COLLAB", "mean_edges"): (
        "2,457.2158 without the 2,837 self-loops of the files, 2,457.7832 with them; the paper's "
        "number lies between the two"
    ),
}
"""Why a number in the paper differs from the data, by dataset and field."""
