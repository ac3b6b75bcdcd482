"""The first part of the demonstration: two graphs, aligned by what a network learnt."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import networkx as nx
import numpy as np

from softperm.data.graphs import as_graph
from softperm.estimators import PiGNNClassifier
from softperm.estimators.pignn import UniformPermutationsWarning
from softperm.pyg import Data


@dataclass(frozen=True)
class AlignedPair:
    """Two graphs of one kind, with their learnt soft permutations.

    Attributes:
        graphs: the graphs, their vertices numbered at random.
        permutations: D of each, (N, P).
        before: cosine of their adjacency matrices as they are numbered.
        after: cosine of their aligned adjacency matrices DᵀAD.
        accuracy: of the network on graphs that it was not trained on.
    """

    graphs: tuple[Data, Data]
    permutations: tuple[np.ndarray, np.ndarray]
    before: float
    after: float
    accuracy: float


def run(seed: int = 0, epochs: int = 60) -> AlignedPair:
    """Trains a network to tell barbells from lollipops, and aligns two barbells with it.

    A barbell is two cliques that a path joins, a lollipop one clique with a path. The vertices of
    all graphs are numbered at random.
    """
    rng = np.random.default_rng(seed)
    graphs, kinds = [], []
    for k in range(120):
        clique, path = int(rng.integers(4, 8)), int(rng.integers(2, 7))
        make = nx.lollipop_graph if k % 2 else nx.barbell_graph
        graphs.append(_renumbered(make(clique, path), rng))
        kinds.append("lollipop" if k % 2 else "barbell")
    model = PiGNNClassifier(
        latent_vertices=4, hidden=32, capacity=None, compare="cosine", walks=8, epochs=epochs,
        latent_init="uniform", validation_fraction=0.0, seed=seed, progress=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UniformPermutationsWarning)
        model.fit(graphs[:100], kinds[:100])
    pair = [_renumbered(nx.barbell_graph(5, 3), rng), _renumbered(nx.barbell_graph(6, 4), rng)]
    one, other = model.permutations(pair)
    first, second = (nx.to_numpy_array(graph) for graph in pair)
    n = len(first)
    return AlignedPair(
        graphs=(as_graph(pair[0]), as_graph(pair[1])),
        permutations=(one, other),
        before=_cosine(first, second[:n, :n]),
        after=_cosine(one.T @ first @ one, other.T @ second @ other),
        accuracy=float(model.score(graphs[100:], kinds[100:])),
    )


def _renumbered(graph: nx.Graph, rng: np.random.Generator) -> nx.Graph:
    """The same graph, its vertices in a random order."""
    order = rng.permutation(len(graph)).tolist()
    return nx.from_numpy_array(nx.to_numpy_array(graph, nodelist=order))


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other))
