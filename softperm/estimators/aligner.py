"""Vectors of graphs whose distances follow exact graph distances, learnt without targets."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softperm.data.collection import Collection
from softperm.data.features import collection_colours, hash_columns
from softperm.data.graphs import read_list
from softperm.data.vocabulary import Vocabulary
from softperm.distance.exact import LARGEST
from softperm.distance.matrix import frobenius_intervals
from softperm.estimators.pignn import Graphs, PiGNNEstimator
from softperm.parallel import cores
from softperm.pyg import Data
from softperm.settings import RECOMMENDED, AlignerConfig, choose
from softperm.training.data import TrainingData, divide
from softperm.training.devices import find_device

Aligner = TypeVar("Aligner", bound="PiGNNAligner")
NEIGHBOURS = 7  # similar graphs that are drawn with each random one
ROUNDS = 3  # of the colours that a sketch counts
FAMILIES = ("neighbours", *(f"colours {k}" for k in range(ROUNDS + 1)))
FACTORS = (0.0, 0.25, 0.5, 2.0, 4.0)  # by which weights are changed in search of a better recall
FEWEST = 20  # graphs of a sample, however large they are
NEAREST = 10  # weights are chosen by the recall of this many graphs among twice as many


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
    capturable = False  # replayed steps pad mini-batches, and padding has no exact distances

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


@dataclass(frozen=True)
class Sketch:
    """Counts of features of the vertices of a graph, hashed into one short vector.

    Each family of features is counted: vertices by label, edge label, label of the neighbour and
    number of such neighbours before; and vertices by their colour after 0, 1, … rounds of colour
    refinement. The k-th vertex of a graph with a feature adds ±√w to one entry, both chosen by the
    hash of the feature and k. Squared distances of sketches are thus, up to collisions, the sums of
    absolute differences of counts, weighted by w. An inserted edge changes few counts by one, and
    squared graph distances by two, which is why these distances follow graph distances.

    Args:
        size: number of entries.
        weights: of each of :data:`FAMILIES`.
        network: factor of the network's vector relative to the sketch.
    """

    size: int
    weights: tuple[float, ...]
    network: float

    def __post_init__(self) -> None:
        values = (*self.weights, self.network)
        sound = type(self.size) is int and self.size >= 0 and len(self.weights) == len(FAMILIES)
        if not sound or not all(0 <= value < float("inf") for value in values):
            raise ValueError("sketch: expected a size and a weight of at least 0 for each family")

    def __call__(self, graphs: Collection) -> Float[np.ndarray, "B S"]:
        """The sketch of each graph."""
        parts = sketch_families(graphs, self.size)
        total = np.zeros((len(graphs), self.size), np.float32)
        for part, weight in zip(parts, self.weights, strict=True):
            total += np.float32(weight**0.5) * part
        return total

    @classmethod
    def fit(
        cls,
        size: int,
        graphs: Collection,
        vectors: Float[np.ndarray, "n F"],
        table: Float[np.ndarray, "n n"],
    ) -> Sketch:
        """Chooses the weights with which the nearest graphs are found by their vectors.

        Starts from equal weights, or from those whose squared distances are nearest to the exact
        ones, near pairs counting most. Changes one weight at a time as long as the recall of the
        nearest graphs rises.
        """
        from scipy.optimize import nnls

        parts = [vectors, *sketch_families(graphs, size)] if size else [vectors]
        squares = np.stack([_squared_distances(part) for part in parts])  # (1 + families, n, n)
        exact = np.square(table)
        upper = np.triu_indices(len(table), 1)
        importance = 1 / (1 + exact[upper])
        weights, _ = nnls((squares[:, *upper] * importance).T, exact[upper] * importance)
        if not size or not weights.any():
            return cls(size, (1.0,) * len(FAMILIES), 1.0)
        weights = max(
            (_improve(start, squares, exact) for start in (weights, np.ones_like(weights))),
            key=lambda improved: _recall(np.tensordot(improved, squares, 1), exact),
        )
        weights *= np.median(_ratios(exact[upper], np.tensordot(weights, squares, 1)[upper]))
        return cls(size, tuple(weights[1:].tolist()), float(weights[0] ** 0.5))


def sketch_families(graphs: Collection, size: int) -> list[Float[np.ndarray, "B S"]]:
    """The hashed counts of each of :data:`FAMILIES`."""
    owner, edge_owner = graphs.owner.numpy(), graphs.edge_owner.numpy()
    colours = collection_colours(graphs, ROUNDS)  # (V, rounds + 1)
    source, target = graphs.edges.numpy()
    columns = [colours[source, 0], colours[target, 0]]
    if graphs.edge_label is not None:
        columns += list(graphs.edge_label.long().numpy().T)
    kind = hash_columns(columns, len(source)).view(np.int64)
    neighbours = hash_columns([kind, _earlier_equals([source, kind])], len(source))
    counted = [(edge_owner, neighbours.view(np.int64))]
    counted += [(owner, colours[:, k]) for k in range(ROUNDS + 1)]
    return [
        _hashed_counts(rows, features + family, len(graphs), size)
        for family, (rows, features) in enumerate(counted)
    ]


def _hashed_counts(
    owner: Int[np.ndarray, " K"], features: Int[np.ndarray, " K"], graphs: int, size: int
) -> Float[np.ndarray, "B S"]:
    """Sums of ±1, in an entry for each feature of a graph and the times that it occurred before."""
    keys = hash_columns([features, _earlier_equals([owner, features])], len(features))
    place = owner * size + (keys % np.uint64(size)).astype(np.int64)
    sign = np.where(keys >> np.uint64(63), 1.0, -1.0)
    sums = np.bincount(place, sign, minlength=graphs * size)
    return sums.reshape(graphs, size).astype(np.float32)


def _earlier_equals(columns: list[Int[np.ndarray, " K"]]) -> Int[np.ndarray, " K"]:
    """How many earlier rows equal each row."""
    keys = hash_columns(columns, len(columns[0]))
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(keys[order]) != 0)[: len(keys)])
    counts = np.diff(np.append(first, len(keys)))
    earlier = np.empty(len(keys), np.int64)
    earlier[order] = np.arange(len(keys)) - np.repeat(first, counts)
    return earlier


def _squared_distances(rows: Float[np.ndarray, "n F"]) -> Float[np.ndarray, "n n"]:
    rows = rows.astype(np.float64)
    norms = np.square(rows).sum(1)
    return np.maximum(norms[:, None] + norms - 2 * rows @ rows.T, 0.0)


def _ratios(one: Float[np.ndarray, " K"], other: Float[np.ndarray, " K"]) -> np.ndarray:
    """Quotients where both numbers are positive; 1 if there are none."""
    positive = (one > 0) & (other > 1e-12)
    return one[positive] / other[positive] if positive.any() else np.ones(1)


def _improve(
    weights: Float[np.ndarray, " K"],
    squares: Float[np.ndarray, "K n n"],
    exact: Float[np.ndarray, "n n"],
) -> Float[np.ndarray, " K"]:
    """Changes one weight at a time as long as the recall rises."""
    best = _recall(np.tensordot(weights, squares, 1), exact)
    usual = weights.sum() / 8
    for _ in range(3):
        before = best
        for k in range(len(weights)):
            own = weights[k] or usual
            for factor in FACTORS:
                changed = weights.copy()
                changed[k] = factor * own
                if (recall := _recall(np.tensordot(changed, squares, 1), exact)) > best + 1e-9:
                    weights, best = changed, recall
        if best <= before:
            break
    return weights


def _recall(learnt: Float[np.ndarray, "n n"], exact: Float[np.ndarray, "n n"]) -> float:
    """Share of the nearest graphs that are among twice as many by vector; ties count."""
    count = min(NEAREST, max(1, (len(exact) - 1) // 4))
    apart = exact + np.diag(np.full(len(exact), np.inf))
    last = np.partition(apart, count - 1, axis=1)[:, count - 1, None]
    near = np.argsort(learnt + np.diag(np.full(len(exact), np.inf)), axis=1)[:, : 2 * count]
    distances = np.take_along_axis(apart, near, axis=1)
    nearer = (apart < last - 1e-9).sum(1)
    hits = (distances < last - 1e-9).sum(1)
    ties = np.minimum((np.abs(distances - last) <= 1e-9).sum(1), count - nearer)
    return float((hits + ties).mean() / count)


class PiGNNAligner(PiGNNEstimator):
    """Turns graphs into vectors whose Euclidean distances follow exact graph distances.

    Trained without targets: the Frobenius distances of all pairs of a sample of the graphs are
    computed exactly (:func:`softperm.distance.frobenius_intervals`, with labels where the graphs
    have them), and the network learns vectors with these distances. Beside the network's entries a
    vector has a sketch of labels, neighbours and colours (:class:`Sketch`); the weights of both
    are those with which the nearest graphs of the sample are found best. For collections in which
    exact distances of all graphs would take too long; see :class:`softperm.search.VectorIndex`.
    """

    sketch_: Sketch

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
        for graph in listed:  # exact distances compare no positions
            graph.pop("pos", None)
        chosen = self._choose(collection, listed)
        self.sample_size_ = len(chosen)
        table, self.proven_pairs_ = self._exact_distances([listed[int(i)] for i in chosen])
        task = Distances(torch.from_numpy(table).float(), settings["dimensions"])
        targets = torch.arange(len(chosen))[:, None]
        fraction, seed = settings["validation_fraction"], settings["seed"]
        split = divide(targets, None, 0.0, fraction, seed)
        sampled = collection.select(chosen)
        data = TrainingData(sampled, targets, task, split, vocabulary)
        self.sketch_ = Sketch(0, (1.0,) * len(FAMILIES), 1.0)
        self._train(data, device)
        vectors = self._outputs(sampled).numpy()
        self.sketch_ = Sketch.fit(settings["sketch"], sampled, vectors, table)
        return self

    def _choose(self, collection: Collection, graphs: list[Data]) -> Int[Tensor, " n"]:
        """The sample: as many graphs as can be compared in the given time, and at least a few.

        The time of a pair follows from its size and from how many pairs of a few graphs are proven
        at once, so that the same seed gives the same sample.
        """
        rows, sizes = torch.arange(len(collection)), collection.sizes
        small = torch.sort(sizes.argsort(stable=True)[: max(int((sizes <= LARGEST).sum()), FEWEST)])
        if len(small.values) < len(rows):
            rows = small.values
            collection = collection.select(rows)
        sizes = collection.sizes.numpy()
        count = affordable(sizes, 0.0, self.distance_seconds)
        if count < min(self.sample, len(rows)):
            drawn = np.random.default_rng(self.seed).choice(len(rows), FEWEST, replace=False)
            labels, edge_labels = self._compared(graphs)
            pilot = frobenius_intervals(
                [graphs[int(rows[i])] for i in drawn],
                labels=labels, edge_labels=edge_labels, time_limit=0.0,
            )  # fmt: skip
            count = affordable(sizes, float(pilot.exact.mean()), self.distance_seconds)
        return rows[sample_graphs(collection, min(count, self.sample), self.seed)]

    @staticmethod
    def _compared(graphs: list[Data]) -> tuple[bool, bool]:
        """Whether distances compare labels of vertices, and of edges."""
        return any("label" in g for g in graphs), any("edge_label" in g for g in graphs)

    def _exact_distances(self, graphs: list[Data]) -> tuple[Float[np.ndarray, "n n"], float]:
        """Distances of all pairs, and the share of them that is proven.

        A distance that is not proven in time is the middle of its interval.
        """
        labels, edge_labels = self._compared(graphs)
        intervals = frobenius_intervals(
            graphs,
            labels=labels,
            edge_labels=edge_labels,
            time_limit=float(self.pair_seconds),
            total_time=self.distance_seconds / 2 / cores(),  # brief searches take the other half
            progress=bool(self.progress),
        )
        middle = (intervals.distance + intervals.lower_bound) / 2
        return middle, float(intervals.exact.mean())

    def vectors_of(self, graphs: Collection) -> Float[np.ndarray, "b F"]:
        """The vector of each graph of an encoded collection: the network's entries, the sketch."""
        learnt = self.outputs_of(graphs, torch.arange(len(graphs))).numpy()
        if not self.sketch_.size:
            return learnt
        return np.concatenate([np.float32(self.sketch_.network) * learnt, self._sketch(graphs)], 1)

    def _sketch(self, graphs: Collection) -> Float[np.ndarray, "b S"]:
        """The sketch of each graph, of which the labels alone count, not the model's colours."""
        labels = len(self.vocabulary_.labels)
        plain = None if not labels or graphs.label is None else graphs.label[:, :labels]
        return self.sketch_(replace(graphs, label=plain))

    def score(self, graphs: Graphs, y: Any = None) -> float:
        """The correlation of the vectors' distances with the exact distances of all pairs.

        For a few dozen graphs: ``distance_seconds`` does not limit the brief search of each pair.
        """
        self._check_fitted()
        listed, _ = read_list(graphs, self.symmetrise, self.field_names, again=True)
        vectors = torch.from_numpy(self.vectors_of(self._encode(self.vocabulary_.encode(listed))))
        table = torch.from_numpy(self._exact_distances(listed)[0]).float()
        task = Distances(table, vectors.shape[1])
        return task.score(vectors, torch.arange(len(listed))[:, None])

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of :meth:`transform`."""
        self._check_fitted()
        names = [f"vector_{k}" for k in range(self.task_.outputs)]
        return np.array([*names, *(f"sketch_{k}" for k in range(self.sketch_.size))], dtype=object)

    def predict(self, graphs: Graphs) -> np.ndarray:
        """Refuses: an aligner predicts nothing."""
        return self.decode(torch.empty(0))

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
        return self.get_feature_names_out()[: self.task_.outputs].tolist()

    def _take_targets(self, data: TrainingData) -> None:
        raise ValueError("an aligner learns from graphs alone: use fit")

    def _targets_config(self) -> dict[str, Any]:
        return {"dimensions": self.task_.outputs, "sketch": asdict(self.sketch_)}

    def _set_targets(self, config: dict[str, Any]) -> None:
        self.task_ = Distances(torch.zeros(0, 0), int(config["dimensions"]))
        stored: Mapping[str, Any] = config["sketch"]
        self.sketch_ = Sketch(**{**stored, "weights": tuple(stored["weights"])})


def affordable(sizes: Int[np.ndarray, " B"], proven: float, seconds: float) -> int:
    """How many graphs can be compared in pairs in half of some seconds, at least ``FEWEST``.

    The estimate follows measurements. A brief search that proves a distance, or its first bounds,
    take a time that grows with the cube of the vertices; one that proves none takes 30 ms more.

    Args:
        sizes: numbers of vertices.
        proven: share of the pairs that a brief search proves.
        seconds: processor time.
    """
    cubes = np.sort(sizes).astype(np.float64) ** 3
    each = 1e-4 + np.minimum(2e-7 * cubes, 0.03) + 6e-8 * cubes  # seconds for a pair
    larger = 2 * np.arange(len(each)) + 1.0  # of all pairs, those in which this graph is the larger
    pair = float((each * larger).sum() / larger.sum()) + (1.0 - proven) * 0.03
    return max(int(np.sqrt(seconds / pair)), FEWEST)  # half of the seconds for half of count² pairs


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
    columns = [torch.log1p(collection.structure.double())]
    for c, size in enumerate(collection.label_sizes):
        assert collection.label is not None
        columns.append(torch.eye(size + 1, dtype=torch.float64)[collection.label[:, c].long()])
    rows = torch.cat([torch.ones(len(columns[0]), 1, dtype=torch.float64), *columns], 1)
    sums = torch.zeros(len(collection), rows.shape[1], dtype=torch.float64)
    return sums.index_add(0, collection.owner, rows).numpy()
