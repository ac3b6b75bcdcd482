"""Graphs and small networks for the tests of systems."""

from __future__ import annotations

import networkx as nx
import numpy as np
import torch
from samples import collect, double, random_graph, renumber
from torch import Tensor, nn

from softperm.data.collection import Collection
from softperm.lab.baselines.classical import count_colours
from softperm.lab.systems import SYSTEMS, DataShape

SMALL: dict[str, dict] = {
    "gin": {"widths": (8, 8), "train_eps": True},
    "graphsage": {"hidden": 8, "layers": 2},
    "gcn": {"hidden": 8, "layers": 2},
    "structure-free": {"hidden": 16},
    "dgcnn": {"hidden": 8, "layers": 2},
    "diffpool": {"hidden": 8, "embedding": 6},
    "ecc": {"hidden": 8, "dropout": 0.0},
    "gcn-edges": {"hidden": 8, "layers": 2, "dropout": 0.0},
    "gin-edges": {"hidden": 8, "layers": 2, "dropout": 0.0},
    "pna": {"hidden": 8, "layers": 2, "dropout": 0.0},
    "dgn": {"hidden": 8, "layers": 2, "dropout": 0.0},
    "phc-gnn": {"hidden": 8, "layers": 2, "dropout": 0.0},
    "dtnn": {"hidden": 8, "factors": 8},
    "mpnn": {"hidden": 8, "width": 6},
    "1-2-gnn": {"hidden": 8, "rounds": 2, "width": 6},
    "1-2-3-gnn": {"hidden": 8, "rounds": 2, "width": 6},
    "ppgn": {"hidden": 12},
}
"""Settings with which each system runs in a moment."""


def molecule(n: int, seed: int) -> nx.Graph:
    """A connected graph with attributes on vertices and edges, all of them different."""
    graph = random_graph(n, seed, density=0.3)
    rng = np.random.default_rng(seed)
    for v in range(1, n):
        u = int(rng.integers(v))
        if not graph.has_edge(u, v):
            graph.add_edge(u, v, x=rng.normal(size=2).astype(np.float32), weight=1.0)
    return graph


GRAPHS = [molecule(n, seed=n) for n in (6, 9, 4, 12, 7)]


def shuffled(graphs: list[nx.Graph], seed: int = 0) -> list[nx.Graph]:
    """The same graphs, vertices listed in random orders."""
    rng = np.random.default_rng(seed)
    return [renumber(g, rng.permutation(len(g)).tolist()) for g in graphs]


def network(name: str, collection: Collection, outputs: int = 3, seed: int = 0) -> nn.Module:
    """A small system in float64."""
    shape = DataShape.of(collection, outputs)
    return SYSTEMS[name].build(shape, SMALL[name], seed).double()


def wl_kernel(collection: Collection, iterations: int) -> np.ndarray:
    """The Weisfeiler–Leman subtree kernel of all pairs."""
    counts, _ = count_colours(collection, iterations)
    return (counts @ counts.T).toarray()


def outputs(model: nn.Module, graphs: list[nx.Graph] | Collection) -> Tensor:
    """What a network says of graphs, in one batch and float64."""
    collection = graphs if isinstance(graphs, Collection) else collect(graphs)
    with torch.no_grad():
        return model(double(collection).batch(torch.arange(len(collection))))
