"""The paper's two synthetic datasets: of the distance study and of the runtime study."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import networkx as nx
import numpy as np
from jaxtyping import Int

from softperm.data.graphs import as_graph
from softperm.pyg import Data

# Number of random graphs of each size, for every value of the family's parameter.
BARABASI_ALBERT = {6: 2, 7: 5, 8: 6, 9: 5}  # 1, 2 and 3 edges per new vertex
WATTS_STROGATZ = {6: 6, 7: 7, 8: 9, 9: 6}  # 2 and 4 neighbours on the ring
ERDOS_RENYI = {5: 1, 6: 5, 7: 5, 8: 3, 9: 3}  # 40 %, 60 % and 80 % of all edges
REWIRING = 0.3  # probability that Watts and Strogatz's model moves an edge


def distance_study(seed: int = 0, *, max_vertices: int = 9) -> list[Data]:
    """The graphs of the distance study: eight families of small connected graphs.

    The paper gives statistics, not the graphs. With the default size every seed has these
    statistics to two decimals: 191 connected graphs, 2 to 9 vertices (1,392 in all, mean 7.29),
    1 to 36 edges (2,166 in all, mean 11.34). The graphs are

    - all paths (2 to 9 vertices), cycles (from 3), stars and complete graphs (from 4), and grids
      (from 2 × 3), without those that also belong to an earlier family: 30 graphs;
    - 54 Barabási–Albert, 56 Watts–Strogatz and 51 Erdős–Rényi graphs, the latter with a given
      number of edges and redrawn until connected. Some may be isomorphic.

    Args:
        seed: determines the random graphs.
        max_vertices: size of the largest graph, 9 in the paper. With more, the first five families
            have graphs up to this size, and every random graph has ``max_vertices - 9`` more
            vertices.

    Returns:
        Canonical graphs, each with the name of its ``family``.

    >>> graphs = distance_study()
    >>> len(graphs), sum(g.num_nodes for g in graphs), sum(g.num_edges for g in graphs) // 2
    (191, 1392, 2166)
    """
    if max_vertices < 9:
        raise ValueError(
            f"max_vertices is {max_vertices}; expected 9, the size in the paper, or more"
        )
    graphs: list[Data] = []
    for family, graph in (*_regular(max_vertices), *_random(max_vertices - 9, seed)):
        data = as_graph(nx.convert_node_labels_to_integers(graph))
        data.family = family
        graphs.append(data)
    return graphs


def runtime_study(
    vertices: int, seed: int = 0, *, graphs: int = 200
) -> tuple[list[Data], Int[np.ndarray, " B"]]:
    """The graphs of the runtime study: Erdős–Rényi graphs of one size, sparse ones and dense ones.

    Edges have probability 0.2 in the first class and 0.4 in the second; the paper only says that
    the first is sparser.

    Args:
        vertices: size of every graph.
        seed: determines the random graphs.
        graphs: number of graphs, even.

    Returns:
        Canonical graphs, and the class of each, 0 for the first half and 1 for the second.
    """
    if graphs < 2 or graphs % 2:
        raise ValueError(f"graphs is {graphs}; expected an even number, half for each class")
    if vertices < 1:
        raise ValueError(f"vertices is {vertices}; expected at least 1")
    classes = np.repeat([0, 1], graphs // 2)
    seeds = np.random.default_rng(seed).integers(2**31, size=graphs).tolist()
    probability = (0.2, 0.4)
    drawn = [
        as_graph(nx.gnp_random_graph(vertices, probability[c], seed=s))
        for c, s in zip(classes, seeds, strict=True)
    ]
    return drawn, classes


def _regular(largest: int) -> Iterator[tuple[str, nx.Graph]]:
    """The five deterministic families; a graph of two families is only in the first of them."""
    yield from (("path", nx.path_graph(n)) for n in range(2, largest + 1))
    yield from (("cycle", nx.cycle_graph(n)) for n in range(3, largest + 1))
    yield from (("star", nx.star_graph(n - 1)) for n in range(4, largest + 1))
    yield from (("complete", nx.complete_graph(n)) for n in range(4, largest + 1))
    for rows in range(2, largest + 1):
        for columns in range(max(rows, 3), largest // rows + 1):
            yield "grid", nx.grid_2d_graph(rows, columns)


def _random(extra: int, seed: int) -> Iterator[tuple[str, nx.Graph]]:
    """The three random families, each graph with ``extra`` more vertices than in the paper."""
    draw = np.random.default_rng(seed)
    rewired = partial(nx.connected_watts_strogatz_graph, p=REWIRING, tries=10_000)
    makers: list[tuple[str, dict[int, int], tuple, Callable]] = [
        ("Barabási–Albert", BARABASI_ALBERT, (1, 2, 3), nx.barabasi_albert_graph),
        ("Watts–Strogatz", WATTS_STROGATZ, (2, 4), rewired),
        ("Erdős–Rényi", ERDOS_RENYI, (0.4, 0.6, 0.8), _erdos_renyi),
    ]
    for family, counts, parameters, make in makers:
        for parameter in parameters:
            for n, count in counts.items():
                for _ in range(count):
                    yield family, make(n + extra, parameter, seed=int(draw.integers(2**31)))


def _erdos_renyi(n: int, density: float, seed: int) -> nx.Graph:
    """A connected graph of n vertices with a given fraction of all edges, at least n edges."""
    edges = max(n, round(density * n * (n - 1) / 2))
    draw = np.random.default_rng(seed)
    while True:
        graph = nx.gnm_random_graph(n, edges, seed=int(draw.integers(2**31)))
        if nx.is_connected(graph):
            return graph
