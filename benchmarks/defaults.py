"""The accuracy of the defaults of the estimators, and the meaning of their alignment.

    python benchmarks/defaults.py forest    [--root DATA] [--out FILE] [--fold K] [NAME …]
    python benchmarks/defaults.py imbalance [--root DATA] [--out FILE] [--fold K]
    python benchmarks/defaults.py alignment [--root DATA] [--out FILE] [NAME …]

``forest`` compares ``PiGNNClassifier()`` with a random forest of 500 trees on counts of labels and
degrees, by five-fold cross-validation. ``imbalance`` compares ``class_weight="balanced"`` with
none on a part of Mutagenicity with nine graphs of one class for each of the other. ``alignment``
compares matchings and distances that networks learnt with exact ones. Each result is one line of
JSON; a run that was stopped resumes after the lines that FILE has. ``--fold`` measures one fold
of the five, so that several processes can share the work.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedKFold

from softperm import PiGNNAligner, PiGNNClassifier, frobenius_distance
from softperm.data.datasets import Dataset, load_dataset
from softperm.estimators.pignn import PiGNNEstimator
from softperm.lab.baselines.classical import CountForest
from softperm.pyg import Data
from softperm.settings import PAPER
from softperm.training.tasks import Classification

NAMES = (
    "MUTAG", "ENZYMES", "PROTEINS", "PROTEINS_full", "IMDB-BINARY", "IMDB-MULTI", "NCI1",
    "Mutagenicity", "DD", "REDDIT-BINARY", "COLLAB",
)  # fmt: skip
FOLDS = 5
PAIRS, MOST_VERTICES, SECONDS = 2000, 16, 1.0  # of exact distances


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=("forest", "imbalance", "alignment"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--root", type=Path, default=os.environ.get("SOFTPERM_DATA"))
    parser.add_argument("--out", type=Path, help="file to which results are added")
    parser.add_argument("--fold", type=int, choices=range(FOLDS), help="only this fold")
    options = parser.parse_intermixed_args()
    warnings.simplefilter("ignore")
    known = []
    if options.out is not None and options.out.exists():
        known = [json.loads(line) for line in options.out.read_text().splitlines()]
    chosen = range(FOLDS) if options.fold is None else [options.fold]
    study = {"forest": against_forest, "imbalance": imbalance, "alignment": alignment}
    for result in study[options.study](options.names, options.root, known, chosen):
        line = json.dumps({"study": options.study, **result})
        print(line, flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(line + "\n")


def against_forest(
    names: Sequence[str],
    root: Path | None,
    known: Sequence[dict[str, Any]],
    chosen: Sequence[int],
) -> Iterator[dict[str, Any]]:
    """The accuracy of both in each fold."""
    done = {(line["dataset"], line["fold"]) for line in known if line["study"] == "forest"}
    for name in names or NAMES:
        dataset = load_dataset(name, root)
        graphs, y = dataset.graphs(), dataset.y.numpy()
        for fold, train, test in folds(y, chosen):
            if (name, fold) in done:
                continue
            begin = time.perf_counter()
            model = PiGNNClassifier(progress=False)
            model.fit([graphs[i] for i in train], y[train])
            seconds = time.perf_counter() - begin
            accuracy = model.score([graphs[i] for i in test], y[test])
            sharpness = model.sharpness_
            yield {
                "dataset": name, "fold": fold, "default": accuracy,
                "forest": forest_accuracy(dataset, train, test), "seconds": seconds,
                "row_entropy": sharpness.row_entropy, "first_component": sharpness.first_component,
                "shares": model.forest_.shares,
                "majority": float(np.bincount(y[test]).max() / len(test)),
            }  # fmt: skip


def forest_accuracy(dataset: Dataset, train: np.ndarray, test: np.ndarray) -> float:
    """The accuracy of a forest on counts of labels and degrees."""
    index, held = torch.from_numpy(train), torch.from_numpy(test)
    task = Classification(int(dataset.y.max()) + 1)
    forest = CountForest(trees=500).fit(dataset.collection, index, dataset.y[index], task)
    return task.score(forest.outputs(dataset.collection, held), dataset.y[held])


def folds(y: np.ndarray, chosen: Sequence[int]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Number, training and test graphs of the chosen stratified folds, the same for all."""
    parts = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(y, y)
    yield from ((fold, train, test) for fold, (train, test) in enumerate(parts) if fold in chosen)


def imbalance(
    names: Sequence[str],
    root: Path | None,
    known: Sequence[dict[str, Any]],
    chosen: Sequence[int],
) -> Iterator[dict[str, Any]]:
    """Balanced accuracy with and without weights of classes, for each predictor."""
    dataset = load_dataset("Mutagenicity", root)
    y = dataset.y.numpy()
    rng = np.random.default_rng(0)
    common, rare = (rng.permutation(np.flatnonzero(y == label)) for label in (0, 1))
    kept = np.sort(np.concatenate([common, rare[: len(common) // 9]]))
    graphs, y = dataset.graphs(), y[kept]
    graphs = [graphs[i] for i in kept]
    done = {
        (line["head"], line["class_weight"], line["fold"])
        for line in known
        if line["study"] == "imbalance"
    }
    for head in ("mlp+forest", "mlp"):
        for weight in (None, "balanced"):
            for fold, train, test in folds(y, chosen):
                if (head, weight, fold) in done:
                    continue
                model = PiGNNClassifier(head=head, class_weight=weight, progress=False)
                model.fit([graphs[i] for i in train], y[train])
                answers = model.predict([graphs[i] for i in test])
                yield {
                    "head": head, "class_weight": weight, "fold": fold,
                    "graphs": np.bincount(y).tolist(),
                    "balanced_accuracy": float(balanced_accuracy_score(y[test], answers)),
                    "recall_of_the_rare": float((answers[y[test] == 1] == 1).mean()),
                }  # fmt: skip


def alignment(
    names: Sequence[str],
    root: Path | None,
    known: Sequence[dict[str, Any]],
    chosen: Sequence[int],
) -> Iterator[dict[str, Any]]:
    """How well learnt matchings and distances follow exact ones, for pairs of one class."""
    for name in names or ("MUTAG", "IMDB-BINARY"):
        dataset = load_dataset(name, root)
        graphs, y = dataset.graphs(), dataset.y.numpy()
        small = np.flatnonzero(dataset.collection.sizes.numpy() <= MOST_VERTICES)
        kinds = {
            "labels": dataset.collection.label is not None,
            "edge_labels": dataset.collection.edge_label is not None,
        }
        pairs = random_pairs(small, y)
        exact = [
            frobenius_distance(graphs[i], graphs[j], **kinds, time_limit=SECONDS) for i, j in pairs
        ]
        networks: dict[str, PiGNNEstimator] = {
            "paper": PiGNNClassifier(**PAPER, progress=False),
            "default": PiGNNClassifier(progress=False),
            "aligner": PiGNNAligner(progress=False),
        }
        for kind, network in networks.items():
            network.fit(graphs, y)
            plans = network.permutations([graphs[i] for i in small])
            plan_of = dict(zip(small.tolist(), plans, strict=True))
            vectors = network.transform([graphs[i] for i in small])
            if kind != "aligner":  # the aligned adjacency matrix alone
                vectors = vectors[:, : plans[0].shape[1] ** 2]
            vector_of = dict(zip(small.tolist(), vectors, strict=True))
            learnt = [float(np.linalg.norm(vector_of[i] - vector_of[j])) for i, j in pairs]
            proven = [k for k, result in enumerate(exact) if result.exact]
            rows = np.array(
                [
                    agreement(plan_of, graphs, *pairs[k], exact[k].permutation)
                    for k in proven
                    if y[pairs[k][0]] == y[pairs[k][1]]
                ]
            )
            matched, chance, chance_by_label = rows.mean(0)
            yield {
                "dataset": name, "network": kind, "pairs": len(pairs), "proven": len(proven),
                "pairs_of_one_class": len(rows), "agreement": matched, "chance": chance,
                "chance_by_label": chance_by_label, "factor": matched / chance,
                "spearman": float(
                    spearmanr([learnt[k] for k in proven], [exact[k].distance for k in proven])[0]
                ),
                "row_entropy": network.sharpness_.row_entropy,
            }  # fmt: skip


def random_pairs(among: np.ndarray, y: np.ndarray) -> list[tuple[int, int]]:
    """Different graphs, half of the pairs of one class."""
    rng = np.random.default_rng(0)
    pairs: list[tuple[int, int]] = []
    while len(pairs) < PAIRS:
        i, j = (int(k) for k in rng.choice(among, 2, replace=False))
        if len(pairs) % 2 == 0 or y[i] == y[j]:
            pairs.append((i, j))
    return pairs


def agreement(
    plan_of: dict[int, np.ndarray], graphs: list[Data], i: int, j: int, permutation: np.ndarray
) -> tuple[float, float, float]:
    """Share of matched vertices with the same latent vertex, in the exact and in random matchings.

    Returns:
        The share in the exact matching; the mean over all pairs of vertices; the mean over all
        pairs of vertices of equal label, weighted as the exact matching has them.
    """
    first, second = (plan_of[k].argmax(1) for k in (i, j))
    matched = [(u, v) for u, v in enumerate(permutation[: len(first)]) if v < len(second)]
    same = first[:, None] == second  # (N, M)
    one, other = (label_of(graphs[k]) for k in (i, j))
    by_label = [same[one == one[u]][:, other == other[v]].mean() for u, v in matched]
    return (
        float(np.mean([same[u, v] for u, v in matched])),
        float(same.mean()),
        float(np.mean(by_label)),
    )


def label_of(graph: Data) -> np.ndarray:
    """The label of each vertex; one for all where there are none."""
    if "label" not in graph:
        return np.zeros(int(graph.num_nodes), dtype=int)
    return np.asarray(graph.label).reshape(int(graph.num_nodes), -1)[:, 0]


if __name__ == "__main__":
    main()
