"""Random collections of graphs with labels, edge labels and weights."""

import networkx as nx
import numpy as np
import pytest


def random_collection(
    count: int,
    *,
    most: int = 7,
    labels: str = "",
    bonds: str = "",
    weights: tuple[float, ...] = (),
    seed: int = 0,
) -> list[nx.Graph]:
    """Sparse random graphs of 1 to ``most`` vertices; many are near each other."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(1, most + 1))
        graph = nx.gnm_random_graph(n, int(rng.integers(0, n + 2)), seed=int(rng.integers(2**31)))
        if labels:
            drawn = {v: str(rng.choice(list(labels))) for v in graph}
            nx.set_node_attributes(graph, drawn, "label")
        if bonds:
            drawn = {e: str(rng.choice(list(bonds))) for e in graph.edges}
            nx.set_edge_attributes(graph, drawn, "label")
        if weights:
            drawn = {e: float(rng.choice(weights)) for e in graph.edges}
            nx.set_edge_attributes(graph, drawn, "weight")
        graphs.append(graph)
    return graphs


COLLECTIONS = {
    "plain": {},
    "labels": {"labels": "CCCNO"},
    "labels and bonds": {"labels": "CCN", "bonds": "ssd"},
    "weights": {"weights": (1.0, 2.0, 0.5)},
    "everything": {"labels": "CN", "bonds": "sd", "weights": (1.0, 1.5)},
}


@pytest.fixture(params=COLLECTIONS)
def collection(request) -> list[nx.Graph]:
    return random_collection(150, **COLLECTIONS[request.param])
