"""Explanations of a planted motif (BA-2motif), against GNNExplainer and PGExplainer on a GIN.

    python benchmarks/explanations.py [--graphs 1000] [--explained 100] [--out explanations.json]

A graph is a tree of 20 vertices grown by preferential attachment with one of two motifs attached,
a house or a ring of five vertices; the class is the motif. The edges of the motif are the truth,
and an explanation is scored by the ROC-AUC of its edge scores, the mean over graphs. The π-GNN has
its default settings and is explained by its contributions; the GIN (PyTorch Geometric) is explained
by PyG's two explainers in the same run. Times are processor time of one thread.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer, GNNExplainer, PGExplainer
from torch_geometric.nn import GINConv, global_mean_pool

from softperm import PiGNNClassifier
from softperm.data.graphs import as_graph

RING = [(20, 21), (21, 22), (22, 23), (23, 24), (24, 20)]
HOUSE = [*RING, (21, 24)]
CLASSIFICATION = {
    "mode": "multiclass_classification", "task_level": "graph", "return_type": "raw",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=1000, help="training graphs")
    parser.add_argument("--explained", type=int, default=100, help="graphs that are explained")
    parser.add_argument("--epochs", type=int, default=60, help="of the GIN")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    train = ba_2motif(options.graphs, options.seed)
    test = ba_2motif(options.explained, options.seed + 1)
    rows = [*explain_pignn(train, test, options), *explain_gin(train, test, options)]
    for row in rows:
        print(json.dumps(row), flush=True)
    report = {"machine": f"{platform.machine()}, Python {platform.python_version()}", "rows": rows}
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=2) + "\n")


def ba_2motif(count: int, seed: int) -> tuple[list[nx.Graph], np.ndarray, list[set[frozenset]]]:
    """Graphs, their classes (0: house, 1: ring) and the edges of their motifs."""
    rng = np.random.default_rng(seed)
    graphs, motifs = [], []
    for i in range(count):
        tree = nx.barabasi_albert_graph(20, 1, seed=int(rng.integers(2**31)))
        motif = (HOUSE, RING)[i % 2]
        bridge = (int(rng.integers(20)), 20 + int(rng.integers(5)))
        name = rng.permutation(25).tolist()
        graph = nx.empty_graph(25)
        graph.add_edges_from((name[u], name[v]) for u, v in [*tree.edges, *motif, bridge])
        graphs.append(graph)
        motifs.append({frozenset((name[u], name[v])) for u, v in motif})
    return graphs, np.arange(count) % 2, motifs


def auc(edge_index: np.ndarray, scores: np.ndarray, motif: set[frozenset]) -> float:
    """ROC-AUC of the scores of a graph's edges."""
    truth = [frozenset((int(u), int(v))) in motif for u, v in edge_index.T]
    return float(roc_auc_score(truth, scores))


def explain_pignn(train: tuple, test: tuple, options: argparse.Namespace) -> list[dict]:
    start = time.process_time()
    model = PiGNNClassifier(seed=options.seed, progress=False, device="cpu")
    model.fit(train[0], train[1])
    fitting, accuracy = time.process_time() - start, model.score(test[0], test[1])
    rows = []
    for name, through in (("through the network", True), ("permutation held fixed", False)):
        began = time.process_time()
        explanations = model.explain(test[0], through_network=through, tolerance=1e-4)
        scores = [
            auc(each.edge_index, each.edge_totals[:, each.outputs.argmax()], motif)
            for each, motif in zip(explanations, test[2], strict=True)
        ]
        rows.append(
            {
                "explainer": f"contributions of a π-GNN, {name}",
                **summary(scores, accuracy, fitting, began),
                "largest_completeness_error": max(each.relative_error for each in explanations),
                "explains": explanations[0].explains,
            }
        )
    return rows


class GIN(nn.Module):
    """Three GIN layers and a mean over vertices; vertices carry a constant and their degree."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        sizes = [2, hidden, hidden, hidden]
        self.layers = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Linear(b, b)))
            for a, b in pairwise(sizes)
        )
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, x, edge_index, batch=None):
        """Logits of the classes of each graph."""
        for layer in self.layers:
            x = layer(x, edge_index).relu()
        if batch is None:
            batch = torch.zeros(len(x), dtype=torch.long)
        return self.head(global_mean_pool(x, batch))


def with_degree(graph: nx.Graph, kind: int) -> Data:
    data = as_graph(graph)
    degree = torch.bincount(data.edge_index[0], minlength=data.num_nodes).float()
    data.x = torch.stack([torch.ones_like(degree), degree], 1)
    data.y = torch.tensor([kind])
    return data


def explain_gin(train: tuple, test: tuple, options: argparse.Namespace) -> list[dict]:
    start = time.process_time()
    data, held = (
        [with_degree(g, int(k)) for g, k in zip(graphs, y, strict=True)]
        for graphs, y, _ in (train, test)
    )
    model = GIN()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(options.epochs):
        for part in torch.randperm(len(data)).split(64):
            batch = Batch.from_data_list([data[int(i)] for i in part])
            loss = nn.functional.cross_entropy(
                model(batch.x, batch.edge_index, batch.batch), batch.y
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    model.eval()
    whole = Batch.from_data_list(held)
    with torch.no_grad():
        outputs = model(whole.x, whole.edge_index, whole.batch)
    accuracy = float((outputs.argmax(1) == whole.y).double().mean())
    fitting = time.process_time() - start
    rows = []
    for name, explainer in (
        ("GNNExplainer on a GIN", gnn_explainer(model)),
        ("PGExplainer on a GIN", pg_explainer(model, data[:200])),
    ):
        began = time.process_time()
        scores = []
        for graph, motif in zip(held, test[2], strict=True):
            options_ = {} if name.startswith("GNN") else {"target": graph.y}
            mask = explainer(graph.x, graph.edge_index, **options_).edge_mask
            once = graph.edge_index[0] < graph.edge_index[1]
            both = {frozenset(e): [] for e in graph.edge_index[:, once].T.tolist()}
            for edge, value in zip(graph.edge_index.T.tolist(), mask.tolist(), strict=True):
                both[frozenset(edge)].append(value)
            means = np.array([np.mean(values) for values in both.values()])
            scores.append(auc(graph.edge_index[:, once].numpy(), means, motif))
        rows.append({"explainer": name, **summary(scores, accuracy, fitting, began)})
    return rows


def gnn_explainer(model: nn.Module) -> Explainer:
    return Explainer(
        model, GNNExplainer(epochs=200), explanation_type="model", edge_mask_type="object",
        node_mask_type=None, model_config=CLASSIFICATION,
    )  # fmt: skip


def pg_explainer(model: nn.Module, data: list[Data], epochs: int = 30) -> Explainer:
    algorithm = PGExplainer(epochs=epochs, lr=3e-3)
    explainer = Explainer(
        model, algorithm, explanation_type="phenomenon", edge_mask_type="object",
        model_config=CLASSIFICATION,
    )  # fmt: skip
    for epoch in range(epochs):
        for graph in data:
            algorithm.train(epoch, model, graph.x, graph.edge_index, target=graph.y)
    return explainer


def summary(scores: list[float], accuracy: float, fitting: float, began: float) -> dict:
    return {
        "edge_roc_auc": float(np.mean(scores)),
        "house": float(np.mean(scores[::2])),
        "ring": float(np.mean(scores[1::2])),
        "accuracy": accuracy,
        "seconds_to_fit": fitting,
        "seconds_per_explanation": (time.process_time() - began) / len(scores),
    }


if __name__ == "__main__":
    main()
