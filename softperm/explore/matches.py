"""Pictures of a query beside the graphs found for it, with their matching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import networkx as nx
import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from softperm.explore.plots import plain_text
from softperm.pyg import Data

UNMATCHED, DISAGREEING, AGREEING = "#dddddd", "#d62728", "#888888"
PANEL = 2.6  # inches
LEGEND = "equal colours: matched vertices; grey: no match; red: edges that differ from the query's"


def draw_matches(
    query: Data,
    title: str,
    hits: Sequence[tuple[Data, str, Int[np.ndarray, "M 2"]]],
) -> Figure:
    """Draws a query and its hits in one row.

    Matched vertices have equal colours and equal places; vertices without a match are grey. Edges
    without a match, or with a match of another label, are red and dashed.

    Args:
        query: the query.
        title: its caption.
        hits: for each hit the graph, a caption, and pairs of a vertex of the query and its match.
    """
    figure = Figure(figsize=(PANEL * (len(hits) + 1), PANEL), layout="constrained")
    axes = figure.subplots(1, len(hits) + 1, squeeze=False)[0]
    place = _layout(query)
    colours = matplotlib.colormaps["hsv"](np.linspace(0, 0.92, max(query.num_nodes or 0, 1)))
    every = {v: colours[v] for v in range(query.num_nodes or 0)}
    _draw(axes[0], query, place, every, set())
    axes[0].set_title(_caption(title), fontsize=8)
    for axis, (graph, caption, matching) in zip(axes[1:], hits, strict=True):
        back = {int(v): int(u) for u, v in matching}
        fixed = {v: place[u] for v, u in back.items()}
        colour = {v: every[u] for v, u in back.items()}
        _draw(axis, graph, _layout(graph, fixed), colour, _disagreeing(graph, query, back))
        axis.set_title(_caption(caption), fontsize=8)
    figure.supxlabel(LEGEND, fontsize=8)
    return figure


def _caption(text: str) -> str:
    """The lines of a caption, each shortened to what fits above a graph."""
    lines = [f"{line[:20]}…{line[-9:]}" if len(line) > 30 else line for line in text.split("\n")]
    return plain_text("\n".join(lines))


def _layout(graph: Data, fixed: dict[int, np.ndarray] | None = None) -> dict[int, np.ndarray]:
    """Places of all vertices; some may be given."""
    drawn = _networkx(graph)
    if not fixed:
        connected = len(drawn) > 0 and nx.is_connected(drawn)
        first = nx.kamada_kawai_layout(drawn) if connected else None
        return nx.spring_layout(drawn, pos=first, seed=0, iterations=20 if first else 100)
    centre = np.mean(list(fixed.values()), axis=0)
    start: dict[int, Any] = {
        v: fixed.get(v, centre + 0.1 * np.array([np.cos(v), np.sin(v)])) for v in drawn
    }
    if len(fixed) == len(drawn):
        return start
    return nx.spring_layout(drawn, pos=start, fixed=list(fixed), seed=0, iterations=100)


def _networkx(graph: Data) -> nx.Graph:
    drawn = nx.empty_graph(graph.num_nodes)
    drawn.add_edges_from(graph.edge_index.T.tolist())
    return drawn


def _edges(graph: Data) -> dict[tuple[int, int], object]:
    """Label and weight of each directed edge."""
    pairs = graph.edge_index.T.tolist()
    labels = graph.get("edge_label")
    weights = graph.get("edge_weight")
    names = [None] * len(pairs) if labels is None else list(labels)
    numbers = [1.0] * len(pairs) if weights is None else weights.tolist()
    return {
        (u, v): kind for (u, v), kind in zip(pairs, zip(names, numbers, strict=True), strict=True)
    }


def _disagreeing(graph: Data, query: Data, back: dict[int, int]) -> set[tuple[int, int]]:
    """Edges of a hit whose match in the query is missing or different."""
    known = _edges(query)
    return {
        (u, v) for (u, v), kind in _edges(graph).items()
        if known.get((back.get(u, -1), back.get(v, -1))) != kind
    }  # fmt: skip


def _draw(
    axis: Axes,
    graph: Data,
    place: dict[int, np.ndarray],
    colour: dict[int, np.ndarray],
    disagreeing: set[tuple[int, int]],
) -> None:
    drawn = _networkx(graph)
    for u, v in drawn.edges:
        apart = (u, v) in disagreeing or (v, u) in disagreeing
        (x0, y0), (x1, y1) = place[u], place[v]
        style = "--" if apart else "-"
        axis.plot([x0, x1], [y0, y1], style, color=DISAGREEING if apart else AGREEING, zorder=1)
    labels = graph.get("label")
    for v in drawn:
        x, y = place[v]
        axis.scatter(x, y, s=110, color=[colour.get(v, UNMATCHED)], edgecolor="black", zorder=2)
        if labels is not None:
            axis.text(
                x, y, plain_text(str(labels[v])), ha="center", va="center", fontsize=6, zorder=3
            )
    axis.set_aspect("equal", adjustable="datalim")
    axis.margins(0.15)
    axis.set_axis_off()
