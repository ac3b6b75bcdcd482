"""Random forests on summaries of graphs, beside a network or in its place.

scikit-learn grows the trees. They are kept and saved as plain arrays, which a compiled kernel
reads, so that a model folder holds no pickle and prediction does not need scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.data.collection import Collection
from softperm.data.features import ColourVocabulary, colour_counts
from softperm.jit import kernel
from softperm.parallel import cores, over_ranges
from softperm.training.tasks import Classification, MultiLabel, Regression, Task, mean_prediction

if TYPE_CHECKING:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

Align = Callable[[Collection, Int[Tensor, " b"]], Float[np.ndarray, "b Z"]]
"""Gives the aligned vectors of the chosen graphs of a collection."""

SIZES = 3  # numbers of vertices and edges, density
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
MOST_GRAPHS = 50_000  # of which trees are grown
MOST_SAMPLES = 10_000  # graphs of one tree
MOST_COLOURS = 1024  # of each round
_AT_ONCE = 4096  # graphs whose rows are in memory together
_DTYPES = {"threshold": torch.float64, "value": torch.float32}  # all others are int32
_LEAST = 1e-4  # probability of a class that no tree gives


@dataclass(frozen=True)
class Trees:
    """A forest as arrays; the nodes of all trees lie end to end.

    Attributes:
        roots: first node of each tree.
        feature: column that a node compares; −1 for a leaf.
        threshold: rows with at most this value go left, others right.
        left: left child, or the number of a leaf.
        right: right child.
        leaf_ptr: where the entries of each leaf begin, with the total at the end.
        output: output of each entry.
        value: value of each entry; outputs without an entry are 0.
        outputs: number C of outputs.
    """

    roots: Int[np.ndarray, " T"]
    feature: Int[np.ndarray, " n"]
    threshold: Float[np.ndarray, " n"]
    left: Int[np.ndarray, " n"]
    right: Int[np.ndarray, " n"]
    leaf_ptr: Int[np.ndarray, " L1"]
    output: Int[np.ndarray, " k"]
    value: Float[np.ndarray, " k"]
    outputs: int

    @classmethod
    def of(
        cls,
        trees: Sequence[DecisionTreeClassifier | DecisionTreeRegressor],
        codes: Int[np.ndarray, " c"],
        factors: Float[np.ndarray, " c"] | float = 1.0,
    ) -> Trees:
        """The trees of fitted forests.

        Args:
            trees: of one classification or of several regressions.
            codes: the output of each of the trees' classes or targets.
            factors: by which the values of each class are multiplied.
        """
        parts: dict[str, list[np.ndarray]] = {
            f.name: [] for f in fields(cls) if f.name != "outputs"
        }
        nodes = leaves = entries = 0
        for each in trees:
            tree = each.tree_
            leaf = tree.children_left < 0
            # (leaves, C): shares of classes have their axis last, targets of a regression first
            values = tree.value[leaf].reshape(int(leaf.sum()), -1) * factors
            row, column = np.nonzero(values)
            left = np.where(leaf, np.cumsum(leaf) - 1 + leaves, tree.children_left + nodes)
            parts["roots"].append(np.array([nodes]))
            parts["feature"].append(np.where(leaf, -1, tree.feature))
            parts["threshold"].append(tree.threshold)
            parts["left"].append(left)
            parts["right"].append(tree.children_right + nodes)
            parts["leaf_ptr"].append(np.cumsum(np.bincount(row, minlength=len(values))) + entries)
            parts["output"].append(codes[column])
            parts["value"].append(values[row, column])
            nodes, leaves, entries = nodes + len(leaf), leaves + len(values), entries + len(row)
        parts["leaf_ptr"].insert(0, np.array([0]))
        kinds = {"threshold": np.float64, "value": np.float32}
        arrays = {n: np.concatenate(p).astype(kinds.get(n, np.int32)) for n, p in parts.items()}
        return cls(**arrays, outputs=int(codes.max()) + 1)

    def __call__(self, rows: Float[np.ndarray, "B Z"]) -> Float[np.ndarray, "B C"]:
        """The mean of the trees' values for each row."""
        total = np.zeros((len(rows), self.outputs), dtype=np.float64)
        arrays = [getattr(self, f.name) for f in fields(self) if f.name != "outputs"]
        work = len(rows) * len(self.roots) * 32
        over_ranges(_add_trees, len(rows), work, np.ascontiguousarray(rows), total, *arrays)
        return total / len(self.roots)

    def tensors(self) -> dict[str, Tensor]:
        """The arrays by name."""
        names = [f.name for f in fields(self) if f.name != "outputs"]
        return {name: torch.from_numpy(getattr(self, name)) for name in names}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], outputs: int, columns: int) -> Trees:
        """The forest of arrays that a file holds.

        Raises:
            ValueError: the arrays are not a forest on such rows.
        """
        names = {f.name for f in fields(cls) if f.name != "outputs"}
        if set(tensors) != names or any(t.ndim != 1 for t in tensors.values()):
            raise ValueError(f"a forest needs the vectors {', '.join(sorted(names))}")
        for name, tensor in tensors.items():
            if tensor.dtype != _DTYPES.get(name, torch.int32):
                raise ValueError(f"{name} of its forest has the type {tensor.dtype}")
        trees = cls(**{name: tensors[name].numpy() for name in names}, outputs=outputs)
        trees._check(columns)
        return trees

    def _check(self, columns: int) -> None:
        """Raises ValueError unless every path from a root ends at a leaf."""
        nodes, leaves = len(self.feature), len(self.leaf_ptr) - 1
        leaf = self.feature < 0
        child = np.where(leaf, np.arange(nodes) + 1, np.minimum(self.left, self.right))
        whole = (
            len(self.roots) > 0
            and len(self.threshold) == len(self.left) == len(self.right) == nodes
            and len(self.output) == len(self.value)
            and within(self.roots, nodes)
            and within(self.feature + 1, columns + 1)
            and within(self.left[leaf], leaves)
            and within(self.left[~leaf], nodes)
            and within(self.right[~leaf], nodes)
            and bool((child > np.arange(nodes)).all())  # children come later: no path is endless
            and int(self.leaf_ptr[0]) == 0
            and int(self.leaf_ptr[-1]) == len(self.value)
            and within(self.leaf_ptr, len(self.value) + 1)
            and bool((self.leaf_ptr[1:] >= self.leaf_ptr[:-1]).all())
            and within(self.output, self.outputs)
        )
        if not whole:
            raise ValueError("the arrays of its forest do not form trees on its columns")


def within(values: np.ndarray, end: int) -> bool:
    """Whether all values are from 0 to end − 1."""
    return bool(((values >= 0) & (values < end)).all())


@kernel
def _add_trees(
    rows, total, roots, feature, threshold, left, right, leaf_ptr, output, value, first, last
):
    for i in range(first, last):
        for root in roots:
            node = root
            while feature[node] >= 0:
                node = left[node] if rows[i, feature[node]] <= threshold[node] else right[node]
            leaf = left[node]
            for k in range(leaf_ptr[leaf], leaf_ptr[leaf + 1]):
                total[i, output[k]] += value[k]


@dataclass(frozen=True)
class GraphForest:
    """Two random forests of equal size: one on colours, one on all that is known of a graph.

    One reads sizes and counts of Weisfeiler–Leman colours, the other also quantiles of the features
    and attributes of vertices (see :func:`summarise`) and the aligned vector. Where colours say
    most, the many other numbers only distract: on most collections the mean of both is better than
    either.

    Attributes:
        colours: the colours that are counted.
        trees: those of both forests.
        columns: number of columns that the trees read.
        aligned: whether aligned vectors are among them.
    """

    colours: ColourVocabulary
    trees: Trees
    columns: int
    aligned: bool

    @classmethod
    def fit(
        cls,
        graphs: Collection,
        index: Int[Tensor, " b"],
        y: Tensor,
        task: Task,
        align: Align | None = None,
        *,
        trees: int = 300,
        rounds: int = 2,
        seed: int = 0,
        weight: Float[Tensor, " B"] | None = None,
        factors: Float[Tensor, " C"] | None = None,
    ) -> GraphForest:
        """Grows both forests.

        Args:
            graphs: all graphs, with the structural features of the network.
            index: the training graphs; no others are looked at.
            y: targets of all graphs, (B,) or (B, T); a missing one (NaN) counts as the mean of
                those that are there, or as 0.
            task: of the targets.
            align: gives aligned vectors, which the trees then read too; none by default.
            trees: number of trees in all.
            rounds: number of rounds of colours.
            seed: of the random choices.
            weight: of each graph; 1 by default.
            factors: of each class, by which its probability is multiplied; 1 by default. Weights of
                graphs would not do: leaves hold graphs of one class, whatever their weight.
        """
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        shuffled = np.random.default_rng(seed).permutation(index.cpu().numpy())
        chosen = torch.from_numpy(np.sort(shuffled[:MOST_GRAPHS]))
        colours = ColourVocabulary.learn(
            graphs,
            chosen,
            rounds=rounds,
            size=MOST_COLOURS,
            min_graphs=max(2, min(5, len(chosen) // 40)),
            degree=graphs.label is None,
            every_round=True,
        )
        rows = _rows(graphs, chosen, colours, align)
        targets = task.encode(y[chosen]).double().numpy()
        shares = None if weight is None else weight[chosen].double().numpy()
        if isinstance(task, Classification):
            kind, codes = RandomForestClassifier, np.unique(targets).astype(np.int64)
        else:
            kind, codes = RandomForestRegressor, np.arange(targets.shape[1])
            there = ~np.isnan(targets)  # (b, T)
            usual = np.where(there, targets, 0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
            targets = np.where(there, targets, usual)
            targets = targets[:, 0] if len(codes) == 1 else targets
        settings: dict[str, Any] = {
            "max_features": "sqrt",
            "max_samples": min(len(chosen), MOST_SAMPLES),
            "n_jobs": cores(),
        }
        grown: list[Any] = []
        counted = SIZES + sum(colours.sizes)  # columns that the second forest reads
        for columns, count in ((rows.shape[1], trees - trees // 2), (counted, trees // 2)):
            if count:
                forest = kind(count, random_state=(seed + len(grown)) % 2**32, **settings)
                grown += forest.fit(rows[:, :columns], targets, shares).estimators_
        own = 1.0 if factors is None else factors[codes].numpy()
        return cls(colours, Trees.of(grown, codes, own), rows.shape[1], align is not None)

    def outputs(
        self,
        graphs: Collection,
        index: Int[Tensor, " b"],
        task: Task,
        align: Align | None = None,
    ) -> Float[Tensor, "b C"]:
        """Outputs in the form of a network's: logits, or standardised numbers."""
        values = np.empty((len(index), self.trees.outputs))
        done = 0
        for part in index.split(_AT_ONCE):
            rows = _rows(graphs, part, self.colours, align if self.aligned else None)
            if rows.shape[1] != self.columns:
                raise ValueError(
                    f"the forest reads {self.columns} numbers of each graph; these graphs have "
                    f"{rows.shape[1]}"
                )
            values[done : done + len(part)] = self.trees(rows)
            done += len(part)
        if isinstance(task, Regression):
            return torch.from_numpy(values).float()
        chances = torch.zeros(len(values), task.outputs, dtype=torch.float64)  # (b, C)
        chances[:, : values.shape[1]] = torch.from_numpy(values)
        if isinstance(task, MultiLabel):
            return chances.clamp(_LEAST, 1 - _LEAST).logit().float()
        chances /= chances.sum(1, keepdim=True)
        return chances.clamp(min=_LEAST).log().float()

    def config(self) -> dict[str, Any]:
        """Everything but the trees, as JSON values."""
        return {
            "colours": self.colours.to_config(),
            "columns": self.columns,
            "aligned": self.aligned,
            "outputs": self.trees.outputs,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GraphForest:
        """The forest that a folder holds.

        Raises:
            ValueError: it is damaged.
        """
        columns, outputs = int(config["columns"]), int(config["outputs"])
        trees = Trees.from_tensors(tensors, outputs, columns)
        colours = ColourVocabulary.from_config(config["colours"])
        return cls(colours, trees, columns, bool(config["aligned"]))


def mean_with_network(
    task: Task, network: Float[Tensor, "b C"], forest: Float[Tensor, "b C"]
) -> Float[Tensor, "b C"]:
    """The mean prediction of a network and of its forests.

    Each of the two forests counts as much as the network. In a regression, where networks are much
    better than forests, both together do.
    """
    share = 1 / 2 if isinstance(task, Regression) else 1 / 3
    return mean_prediction(task, torch.stack([network, forest]), torch.tensor([share, 1 - share]))


def _rows(
    graphs: Collection, index: Int[Tensor, " b"], colours: ColourVocabulary, align: Align | None
) -> Float[np.ndarray, "b columns"]:
    """What the trees read of each of the chosen graphs."""
    parts = [summarise(graphs.select(index), colours)]
    if align is not None:
        parts.append(align(graphs, index))
    return np.concatenate(parts, axis=1, dtype=np.float32)


def summarise(graphs: Collection, colours: ColourVocabulary) -> Float[np.ndarray, "B columns"]:
    """What can be said of a graph without alignment, as numbers that do not depend on numbering.

    Its number of vertices and edges, density, counts of colours, and mean, standard deviation and
    quantiles of every structural feature, vertex attribute, edge attribute and edge weight.
    """
    sizes = graphs.sizes.cpu().numpy()
    edges = graphs.edge_ptr.diff().cpu().numpy() // 2
    density = edges / np.maximum(sizes * (sizes - 1) / 2, 1)
    own = np.stack([sizes, edges, density], axis=1)  # (B, SIZES)
    parts = [own, colour_counts(graphs, colours).toarray()]
    ptr, edge_ptr = graphs.ptr.cpu().numpy(), graphs.edge_ptr.cpu().numpy()
    for values in (graphs.structure, graphs.x):
        if values is not None:
            parts += [_distribution(column, ptr) for column in values.cpu().numpy().T]
    if graphs.edge_attr is not None:
        parts += [_distribution(column, edge_ptr) for column in graphs.edge_attr.cpu().numpy().T]
    if graphs.edge_weight is not None:
        parts.append(_distribution(graphs.edge_weight.cpu().numpy(), edge_ptr))
    return np.concatenate(parts, axis=1, dtype=np.float32)


def _distribution(
    values: Float[np.ndarray, " V"], ptr: Int[np.ndarray, " B1"]
) -> Float[np.ndarray, "B columns"]:
    """Mean, standard deviation and quantiles of the values of each graph; zeros if it has none."""
    count = np.diff(ptr)
    owner = np.repeat(np.arange(len(count)), count)
    values = values.astype(np.float64)
    mean = np.bincount(owner, values, len(count)) / np.maximum(count, 1)
    spread = np.bincount(owner, (values - mean[owner]) ** 2, len(count)) / np.maximum(count, 1)
    moments = np.stack([mean, np.sqrt(spread)], axis=1)
    return np.concatenate([moments, quantiles(values, ptr, QUANTILES)], axis=1)


def quantiles(
    values: Float[np.ndarray, " V"], ptr: Int[np.ndarray, " B1"], shares: Sequence[float]
) -> Float[np.ndarray, "B Q"]:
    """Quantiles of the values of each graph, as NumPy's; 0 for a graph without values.

    Args:
        values: one number of each vertex or edge.
        ptr: where the values of each graph begin, with their number at the end.
        shares: the quantiles, between 0 and 1.
    """
    count = np.diff(ptr)[:, None]
    owner = np.repeat(np.arange(len(count)), count[:, 0])
    ordered = np.append(values[np.lexsort((values, owner))].astype(np.float64), 0.0)
    last = np.maximum(count - 1, 0)
    place = last * np.asarray(shares)  # (B, Q)
    low = np.floor(place).astype(np.int64)
    first = ptr[:-1, None]
    below, above = ordered[first + low], ordered[first + np.minimum(low + 1, last)]
    return np.where(count > 0, below + (place - low) * (above - below), 0.0)
