"""Small random graphs for tests, as users hold them and as the model reads them."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from softperm.cli import app
from softperm.data.collection import Collection
from softperm.data.graphs import as_graphs
from softperm.data.vocabulary import Vocabulary
from softperm.pyg import Data
from softperm.settings import PAPER


def random_graph(
    n: int, seed: int, density: float = 0.4, features: int = 3, bonds: int = 2
) -> nx.Graph:
    """A random graph with attributes and weights."""
    return dressed(nx.gnp_random_graph(n, density, seed=seed), seed, features, bonds)


def dressed(graph: nx.Graph, seed: int, features: int = 3, bonds: int = 2) -> nx.Graph:
    """The graph, given random vertex attributes, edge attributes and weights."""
    rng = np.random.default_rng(seed)
    for v in graph:
        graph.nodes[v]["x"] = rng.normal(size=features).astype(np.float32)
    for u, v in graph.edges:
        graph.edges[u, v]["x"] = rng.normal(size=bonds).astype(np.float32)
        graph.edges[u, v]["weight"] = float(rng.uniform(0.5, 2))
    return graph


def plain_graph(n: int, seed: int, density: float = 0.4) -> nx.Graph:
    """A random graph that carries nothing."""
    return nx.gnp_random_graph(n, density, seed=seed)


def two_kinds(count: int, seed: int = 0) -> tuple[list[nx.Graph], np.ndarray]:
    """Sparse and dense random graphs, easy to tell apart, and their class."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    sizes = rng.integers(6, 14, size=count)
    pairs = enumerate(zip(sizes.tolist(), y.tolist(), strict=True))
    return [plain_graph(n, seed + i, 0.25 + 0.5 * kind) for i, (n, kind) in pairs], y


def rings_and_cliques(count: int) -> tuple[list[nx.Graph], np.ndarray]:
    """Cycles and complete graphs in turn, which a model tells apart after a few steps."""
    kinds = (nx.cycle_graph, nx.complete_graph)
    return [kinds[i % 2](5 + i // 2 % 5) for i in range(count)], np.arange(count) % 2


def collect(graphs: list[nx.Graph]) -> Collection:
    """The collection of graphs, as training lays them out; made once for each list of graphs."""
    return _collected(pickle.dumps(graphs))


@lru_cache(maxsize=64)
def _collected(pickled: bytes) -> Collection:
    canonical = as_graphs(pickle.loads(pickled))
    return Vocabulary.learn(canonical).encode(canonical)


def renumber(graph: nx.Graph, order: list[int]) -> nx.Graph:
    """The same graph with its vertices listed in another order."""
    made = nx.Graph()
    made.add_nodes_from((v, graph.nodes[v]) for v in order)
    made.add_edges_from(graph.edges(data=True))
    return made


def double(collection: Collection) -> Collection:
    """The collection in float64; its values are unchanged."""
    names = ("structure", "x", "edge_attr", "edge_weight")
    return replace(
        collection,
        **{k: v.double() for k in names if isinstance(v := getattr(collection, k), Tensor)},
    )


def dense_adjacency(graph: Data) -> Tensor:
    """The adjacency matrix (N, N) of a canonical graph."""
    a = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    a[graph.edge_index[0], graph.edge_index[1]] = 1.0
    return a


VARIANTS = [
    {"encoder": e, "attributes": a, "dustbin": d, "capacity": c, "head": h}
    for e, a, d, c, h in itertools.product(
        ("linear", "gcn", "gin"), (False, True), (False, True), (None, 15), ("mlp", "conv")
    )
]


def covering(variants: Sequence[dict]) -> list[dict]:
    """Some of the variants, among which every two choices of settings still come together."""

    def pairs(variant: dict) -> set:
        return {*itertools.combinations(sorted((k, str(v)) for k, v in variant.items()), 2)}

    missing, chosen = set().union(*map(pairs, variants)), []
    while missing:
        chosen.append(max(variants, key=lambda variant: len(pairs(variant) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


def every_variant(more: Mapping[str, dict] | None = None) -> pytest.MarkDecorator:
    """Parameters for all variants and more: slow are those that no pair of settings needs."""
    quick = covering(VARIANTS)
    marks = [[] if variant in quick else [pytest.mark.slow] for variant in VARIANTS]
    given = [
        pytest.param(variant, id=variant_name(variant), marks=mark)
        for variant, mark in zip(VARIANTS, marks, strict=True)
    ]
    others = [pytest.param(variant, id=name) for name, variant in (more or {}).items()]
    return pytest.mark.parametrize("variant", [*given, *others])


def variant_name(variant: dict) -> str:
    """A variant in a few words, for a test's name."""
    words = [variant["encoder"], variant["head"]]
    words += [name for name in ("attributes", "dustbin", "capacity") if variant[name]]
    return "-".join(words)


FAST = {
    **PAPER, "scaling": "log", "latent_vertices": 4, "hidden": 8, "epochs": 2, "batch_size": 16,
    "progress": False,
}  # fmt: skip
"""Settings of an estimator that trains in a moment: a small network of the paper."""


def as_options(settings: Mapping[str, Any]) -> list[str]:
    """Settings as options of the command line."""
    options = []
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            options += [f"--{option}", "none" if value is None else text]
    return options


def labelled_path(labels: str) -> nx.Graph:
    """A path whose vertices carry the letters of a word as labels."""
    graph = nx.path_graph(len(labels))
    nx.set_node_attributes(graph, dict(enumerate(labels)), "label")
    return graph


def same_weights(one: nn.Module, other: nn.Module) -> None:
    """Raises unless two networks have the same parameters and buffers, bit for bit."""
    theirs = other.state_dict()
    assert one.state_dict().keys() == theirs.keys()
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=0, equal_nan=True)


def write_json_lines(path: Path, graphs: list[nx.Graph], **targets: Sequence) -> Path:
    """A file of node-link graphs, one a line, with targets by name."""
    lines = []
    for i, graph in enumerate(graphs):
        content = nx.node_link_data(graph, edges="links")
        content["graph"] = {name: values[i] for name, values in targets.items()}
        lines.append(json.dumps(content, default=lambda value: value.tolist()))
    path.write_text("\n".join(lines) + "\n")
    return path


def run_command(*arguments: object) -> Result:
    """What ``softperm`` answers, in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
