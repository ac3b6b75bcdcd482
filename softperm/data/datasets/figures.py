"""Pictures of a dataset: how large its graphs are, how dense, and a few of them drawn."""

from __future__ import annotations

import networkx as nx
import numpy as np
from jaxtyping import Int
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from softperm.data.datasets.dataset import Dataset
from softperm.data.datasets.statistics import degree_histogram, edge_counts
from softperm.pyg import Data

FEW = 10  # degrees up to which an axis is linear
_DRAWABLE = 500  # a drawing of more vertices shows a cloud


def histograms(dataset: Dataset) -> Figure:
    """How many graphs have which size and number of edges, and how many vertices which degree.

    Args:
        dataset: the dataset.

    Returns:
        A figure of three panels.
    """
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
    if len(degrees) > FEW:
        axes[2].set_xscale("symlog", linthresh=FEW)
    else:
        axes[2].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[2].set_xlim(left=-0.5)
    figure.suptitle(f"{dataset.name}: {len(dataset):,} graphs")
    return figure


def drawings(dataset: Dataset, count: int = 6) -> Figure:
    """Some graphs of different sizes, vertices coloured by their first label or their degree.

    Args:
        dataset: the dataset.
        count: how many graphs.

    Returns:
        A figure of one panel a graph, smallest first, each with its number and class.
    """
    chosen = choose(dataset, count)
    rows = -(-len(chosen) // 3)
    figure = Figure(figsize=(12, 3.8 * rows), layout="constrained")
    axes = figure.subplots(rows, 3, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, i, graph in zip(axes, chosen.tolist(), dataset.graphs(chosen.tolist()), strict=False):
        _draw(axis, graph)
        of = f", class {dataset.class_names[int(dataset.y[i])]}" if dataset.class_names else ""
        axis.set_title(f"graph {i}{of}: {graph.num_nodes} vertices", fontsize=10)
    figure.suptitle(dataset.name)
    return figure


def choose(dataset: Dataset, count: int) -> Int[np.ndarray, " chosen"]:
    """Graphs spread evenly over the sizes that can be drawn, smallest first.

    Args:
        dataset: the dataset.
        count: how many.

    Returns:
        Their numbers.
    """
    sizes = dataset.collection.sizes.numpy()
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] <= max(_DRAWABLE, int(sizes.min()))]
    places = np.linspace(0, order.size - 1, min(count, order.size)).round().astype(int)
    return order[places]


def _draw(axis, graph: Data) -> None:
    drawn = nx.empty_graph(graph.num_nodes)
    drawn.add_edges_from(graph["edge_index"].T.tolist())
    label = graph.label if "label" in graph else None
    colour = np.array([d for _, d in drawn.degree()])
    if label is not None:
        colour = (label if label.ndim == 1 else label[:, 0]).numpy()
    place = nx.spring_layout(drawn, seed=0, iterations=60)
    size = max(6, 300 // len(drawn) ** 0.7)
    nx.draw_networkx_edges(drawn, place, ax=axis, alpha=0.3, width=0.6)
    nx.draw_networkx_nodes(
        drawn, place, ax=axis, node_size=size, node_color=colour, cmap="turbo", linewidths=0
    )


def _bins(values: np.ndarray) -> np.ndarray:
    low, high = max(1, int(values.min())), int(values.max()) + 1
    if _scale(values) == "log":
        return np.geomspace(low, high, 50)
    return np.arange(0, high + 1, max(1, high // 50))


def _scale(values: np.ndarray) -> str:
    return "log" if values.max() > 20 * np.median(values) or values.max() > 1000 else "linear"
