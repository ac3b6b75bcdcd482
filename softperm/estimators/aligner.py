"""Vectors of graphs whose distances follow exact graph distances, learnt without targets."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softperm.data.collection import Collection
from softperm.data.graphs import read_list
from softperm.data.vocabulary import Vocabulary
from softperm.distance.matrix import frobenius_intervals
from softperm.estimators.pignn import Graphs, PiGNNEstimator
from softperm.pyg import Data
from softperm.settings import RECOMMENDED, AlignerConfig, choose
from softperm.training.data import TrainingData, divide
from softperm.training.devices import find_device

Aligner = TypeVar("Aligner", bound="PiGNNAligner")
NEIGHBOURS = 7  # similar graphs that are drawn with each random one


@dataclass(frozen=True, eq=False)
class Distances:
    """The task of an aligner: distances of vectors equal known distances of graphs.

    The target of a graph is its row in the table. The loss of a graph is the mean over the other
    graphs of the mini-batch of (‖zᵢ − zⱼ‖ − dᵢⱼ)² / (1 + dᵢⱼ): near pairs count most.

    Attributes:
        table: the distance of each pair of graphs.
        outputs: length of the vectors.
    """

    table: Float[Tensor, "n n"]
    outputs: int

    metric = "correlation"
    higher_is_better = True
    capturable = False  # a replayed step pads its mini-batch, and padding has no distances

    def __repr__(self) -> str:
        """Identifies the task; checkpoints compare it."""
        digest = zlib.crc32(self.table.cpu().contiguous().numpy().tobytes())
        return f"Distances({digest:08x}, {self.outputs})"

    def encode(self, y: Tensor) -> Tensor:
        """Rows of the table, as they are."""
        return y

    def losses(
        self, outputs: Float[Tensor, "B C"], y: Int[Tensor, "B 1"]
    ) -> tuple[Float[Tensor, " B"], Bool[Tensor, " B"]]:
        """The loss of each graph, and that all count."""
        learnt, exact = self._distances(outputs, y)
        error = (learnt - exact).square() / (1 + exact)  # (B, B)
        losses = error.sum(1) / max(len(y) - 1, 1)  # a graph is at distance 0 from itself
        return losses, torch.ones_like(losses, dtype=torch.bool)

    def score(self, outputs: Float[Tensor, "B C"], y: Int[Tensor, "B 1"]) -> float:
        """Pearson correlation of learnt with exact distances over all pairs."""
        upper = tuple(torch.triu_indices(len(y), len(y), 1))
        both = torch.stack([each[upper] for each in self._distances(outputs, y)])
        if both.shape[1] < 2 or not bool((both.std(1) > 0).all()):
            return 0.0
        return float(torch.corrcoef(both.double())[0, 1])

    def _distances(
        self, outputs: Float[Tensor, "B C"], y: Int[Tensor, "B 1"]
    ) -> tuple[Float[Tensor, "B B"], Float[Tensor, "B B"]]:
        rows = y[:, 0]
        exact = self.table.to(outputs.device)[rows][:, rows].to(outputs.dtype)
        mode = "donot_use_mm_for_euclid_dist"  # exact for near vectors
        learnt = torch.cdist(outputs, outputs, compute_mode=mode)
        return (learnt.square() + 1e-9).sqrt(), exact


class PiGNNAligner(PiGNNEstimator):
    """Turns graphs into vectors whose Euclidean distances follow exact graph distances.

    Trained without targets: the Frobenius distances of all pairs of a sample of the graphs are
    computed exactly (:func:`softperm.distance.frobenius_intervals`, with labels where the graphs
    have them), and the network learns vectors with these distances. For collections in which exact
    distances of all graphs would take too long; see :class:`softperm.search.VectorIndex`.
    """

    sources = (AlignerConfig, *PiGNNEstimator.sources)
    changed = {**RECOMMENDED, "head": "mlp", "head_norm": False, "dropout": 0.0}  # noqa: RUF012

    def _settings(self) -> dict[str, Any]:
        values = super()._settings()
        AlignerConfig(**choose(AlignerConfig, values))
        return values

    def fit(self: Aligner, graphs: Graphs, y: Any = None) -> Aligner:
        """Learns vectors from graphs alone.

        Args:
            graphs: as for :meth:`softperm.PiGNNClassifier.fit`.
            y: ignored; scikit-learn's pipelines pass it.
        """
        self._forget()
        settings = self._settings()
        if settings["ensemble"] != 1 or "forest" in settings["head"]:
            raise ValueError("an aligner is one network: set ensemble to 1 and head to mlp or conv")
        device = find_device(self.device)
        listed, columns = read_list(graphs, self.symmetrise, self.field_names)
        if len(listed) < 2:
            raise ValueError("an aligner needs at least two graphs, whose distance it learns")
        vocabulary = Vocabulary.learn(listed, columns)
        collection = vocabulary.encode(listed)
        chosen = sample_graphs(collection, settings["sample"], settings["seed"])
        table, self.proven_pairs_ = self._exact_distances([listed[int(i)] for i in chosen])
        task = Distances(torch.from_numpy(table).float(), settings["dimensions"])
        targets = torch.arange(len(chosen))[:, None]
        fraction, seed = settings["validation_fraction"], settings["seed"]
        split = divide(targets, None, 0.0, fraction, seed)
        data = TrainingData(collection.select(chosen), targets, task, split, vocabulary)
        return self._train(data, device)

    def _exact_distances(self, graphs: list[Data]) -> tuple[Float[np.ndarray, "n n"], float]:
        """Distances of all pairs, and the share of them that is proven.

        A distance that is not proven in time is the middle of its interval.
        """
        intervals = frobenius_intervals(
            graphs,
            labels=any("label" in graph for graph in graphs),
            edge_labels=any("edge_label" in graph for graph in graphs),
            time_limit=float(self.pair_seconds),
            progress=bool(self.progress),
        )
        middle = (intervals.distance + intervals.lower_bound) / 2
        return middle, float(intervals.exact.mean())

    def vectors_of(self, graphs: Collection) -> Float[np.ndarray, "b F"]:
        """The vector of each graph of an encoded collection."""
        return self.outputs_of(graphs, torch.arange(len(graphs))).numpy()

    def score(self, graphs: Graphs, y: Any = None) -> float:
        """The correlation of the vectors' distances with the exact distances of all pairs."""
        self._check_fitted()
        listed, _ = read_list(graphs, self.symmetrise, self.field_names, again=True)
        vectors = self._outputs(self.vocabulary_.encode(listed))
        table = torch.from_numpy(self._exact_distances(listed)[0]).float()
        task = Distances(table, vectors.shape[1])
        return task.score(vectors, torch.arange(len(listed))[:, None])

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of :meth:`transform`."""
        self._check_fitted()
        return np.array([f"vector_{k}" for k in range(self.task_.outputs)], dtype=object)

    def decode(self, outputs: Tensor) -> np.ndarray:
        """Refuses: an aligner predicts nothing."""
        raise ValueError("an aligner predicts nothing: use transform, or softperm embed")

    def _explained(self, outputs: Tensor, probabilities: bool) -> Tensor:
        if probabilities:
            raise ValueError("an aligner has no probabilities: leave out probabilities")
        return outputs

    def _explained_words(self, probabilities: bool) -> str:
        return "entries of the vector"

    def _output_names(self) -> Sequence[object]:
        return self.get_feature_names_out().tolist()

    def _take_targets(self, data: TrainingData) -> None:
        raise ValueError("an aligner learns from graphs alone: use fit")

    def _targets_config(self) -> dict[str, Any]:
        return {"dimensions": self.task_.outputs}

    def _set_targets(self, config: dict[str, Any]) -> None:
        self.task_ = Distances(torch.zeros(0, 0), int(config["dimensions"]))


def sample_graphs(collection: Collection, count: int, seed: int) -> Int[Tensor, " n"]:
    """Graphs whose distances are learnt: random ones, each with similar graphs.

    Most random pairs of a large collection are far apart, while the nearest ones decide what is
    found. Graphs are similar if their numbers of vertices of each label, degree and edges agree.
    """
    total = len(collection)
    if total <= count:
        return torch.arange(total)
    from sklearn.neighbors import NearestNeighbors

    counts = _counts(collection)
    rng = np.random.default_rng(seed)
    centres = rng.choice(total, max(1, count // (NEIGHBOURS + 1)), replace=False)
    finder = NearestNeighbors(n_neighbors=min(NEIGHBOURS + 1, total), metric="manhattan")
    near = finder.fit(counts).kneighbors(counts[centres], return_distance=False)
    chosen = np.unique(np.concatenate([centres, near.ravel()]))[:count]
    others = np.setdiff1d(np.arange(total), chosen)
    more = rng.choice(others, count - len(chosen), replace=False)
    return torch.from_numpy(np.sort(np.concatenate([chosen, more])))


def _counts(collection: Collection) -> Float[np.ndarray, "B K"]:
    """Numbers of vertices of each label, and sums of structural features, of each graph."""
    owner = torch.repeat_interleave(torch.arange(len(collection)), collection.sizes)
    columns = [torch.log1p(collection.structure.double())]
    for c, size in enumerate(collection.label_sizes):
        assert collection.label is not None
        columns.append(torch.eye(size + 1, dtype=torch.float64)[collection.label[:, c].long()])
    rows = torch.cat([torch.ones(len(owner), 1, dtype=torch.float64), *columns], 1)
    sums = torch.zeros(len(collection), rows.shape[1], dtype=torch.float64)
    return sums.index_add(0, owner, rows).numpy()
