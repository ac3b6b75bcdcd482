"""Random forests on summaries of graphs, in addition to a network or in its place.

scikit-learn grows the trees. They are kept and saved as plain arrays, which a compiled kernel
reads, so that a model folder holds no pickle and prediction does not need scikit-learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from softperm.data.collection import Collection, spacious
from softperm.data.features import ColourVocabulary, colour_counts
from softperm.errors import counted
from softperm.files import release_pages
from softperm.jit import kernel
from softperm.parallel import cores, over_ranges
from softperm.training.tasks import (
    Classification,
    MultiLabel,
    Regression,
    Task,
    code_counts,
    mean_prediction,
)

if TYPE_CHECKING:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

Align = Callable[[Collection, Int[Tensor, " b"]], Float[np.ndarray, "b Z"]]
"""Gives the aligned vectors of the chosen graphs of a collection."""

SIZES = 3  # numbers of vertices and edges, density
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
MOST_GRAPHS = 50_000  # of which trees are grown
MOST_SAMPLES = 10_000  # graphs of one tree
MOST_VALUES = 1 << 26  # values in the leaves of all trees; with more, trees have fewer leaves
MOST_COLOURS = 1024  # of each round
MOST_DEGREES = 100  # larger degrees are counted together
QUARTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
EVIDENCE_GRAPHS = 4096  # training graphs on which forests are compared
EVIDENCE_PRIOR = 5.0  # graphs that each forest is assumed to have predicted best beforehand
NETWORK_PRIOR = 40.0  # the same for a network and its forests together, by their usual shares
_AT_ONCE = 4096  # graphs whose rows are in memory together
_ARRAYS = {
    "roots": np.int32,
    "feature": np.int32,
    "threshold": np.float64,
    "left": np.int32,
    "right": np.int32,
    "leaf_ptr": np.int32,
    "output": np.int32,
    "value": np.float32,
}
_LEAST = 1e-4  # probability of a class that no tree gives
_DOUBT = 0.01  # share of a forest's probability that is spread over all classes in comparisons


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
        first: int = 0,
    ) -> Trees:
        """The trees of a fitted forest.

        Args:
            trees: of a classification or of several regressions.
            codes: the output of each of the trees' classes or targets.
            factors: by which the values of each class are multiplied.
            first: column of the rows that the trees have as their first.
        """
        parts: dict[str, list[np.ndarray]] = {name: [] for name in _ARRAYS}
        nodes = leaves = entries = 0
        for each in trees:
            tree = each.tree_
            leaf = tree.children_left < 0
            # (leaves, C): shares of classes have their axis last, targets of a regression first
            values = tree.value[leaf].reshape(int(leaf.sum()), -1) * factors
            row, column = np.nonzero(values)
            left = np.where(leaf, np.cumsum(leaf) - 1 + leaves, tree.children_left + nodes)
            arrays = {
                "roots": np.array([nodes]),
                "feature": np.where(leaf, -1, tree.feature + first),
                "threshold": tree.threshold,
                "left": left,
                "right": tree.children_right + nodes,
                "leaf_ptr": np.cumsum(np.bincount(row, minlength=len(values))) + entries,
                "output": codes[column],
                "value": values[row, column],
            }
            for name, array in arrays.items():
                parts[name].append(array.astype(_ARRAYS[name]))
            nodes, leaves, entries = nodes + len(leaf), leaves + len(values), entries + len(row)
        parts["leaf_ptr"].insert(0, np.zeros(1, np.int32))
        arrays = {name: np.concatenate(some) for name, some in parts.items()}
        return cls(**arrays, outputs=int(codes.max()) + 1)

    @classmethod
    def mean(cls, forests: Sequence[Trees], shares: Sequence[float]) -> Trees:
        """The mean of several forests with the same outputs, weighted by shares of 1 in all."""
        parts: dict[str, list[np.ndarray]] = {name: [] for name in _ARRAYS}
        count = sum(len(each.roots) for each in forests)
        nodes = leaves = entries = 0
        for each, share in zip(forests, shares, strict=True):
            arrays = {name: getattr(each, name) for name in _ARRAYS}
            arrays["roots"] = each.roots + nodes
            arrays["left"] = each.left + np.where(each.feature < 0, leaves, nodes)
            arrays["right"] = each.right + nodes
            arrays["leaf_ptr"] = each.leaf_ptr[bool(leaves) :] + entries
            arrays["value"] = each.value * np.float32(share * count / len(each.roots))
            for name, array in arrays.items():
                parts[name].append(array)
            nodes, leaves = nodes + len(each.feature), leaves + len(each.leaf_ptr) - 1
            entries += len(each.value)
        arrays = {
            n: np.concatenate(some).astype(_ARRAYS[n], copy=False) for n, some in parts.items()
        }
        return cls(**arrays, outputs=forests[0].outputs)

    def __call__(self, rows: Float[np.ndarray, "B Z"]) -> Float[np.ndarray, "B C"]:
        """The weighted mean of the trees' values for each row."""
        total = np.zeros((len(rows), self.outputs), dtype=np.float64)
        arrays = [getattr(self, name) for name in _ARRAYS]
        work = len(rows) * len(self.roots) * 32
        over_ranges(_add_trees, len(rows), work, np.ascontiguousarray(rows), total, *arrays)
        return total / len(self.roots)

    def tensors(self) -> dict[str, Tensor]:
        """The arrays by name."""
        return {name: torch.from_numpy(getattr(self, name)) for name in _ARRAYS}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], outputs: int, columns: int) -> Trees:
        """The forest of arrays that a file holds.

        Raises:
            ValueError: the arrays are not a forest on such rows.
        """
        if set(tensors) != set(_ARRAYS) or any(t.ndim != 1 for t in tensors.values()):
            raise ValueError(f"a forest needs the vectors {', '.join(sorted(_ARRAYS))}")
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        for name, array in arrays.items():
            if array.dtype != _ARRAYS[name]:
                raise ValueError(f"{name} of its forest has the type {tensors[name].dtype}")
        trees = cls(**arrays, outputs=outputs)
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
    node = np.empty(8, np.int64)
    for block in range(first, last, 16):  # a tree stays in the cache for these rows
        end = min(block + 16, last)
        for root in roots:
            for i in range(block, end, 8):  # side by side, so that rows do not wait for each other
                count, inside = min(8, end - i), True
                node[:] = root
                while inside:
                    inside = False
                    for j in range(count):
                        n, column = node[j], feature[node[j]]
                        if column >= 0:
                            inside = True
                            less = rows[i + j, column] <= threshold[n]
                            node[j] = left[n] * less + right[n] * (1 - less)  # no branch to guess
                for j in range(count):
                    leaf = left[node[j]]
                    for k in range(leaf_ptr[leaf], leaf_ptr[leaf + 1]):
                        total[i + j, output[k]] += value[k]


@dataclass(frozen=True)
class GraphForest:
    """Random forests that read different summaries of a graph, and their weighted mean.

    - ``everything``: sizes, counts of Weisfeiler–Leman colours, quantiles of the features and
      attributes of vertices (see :func:`summarise`), and the aligned vector if requested;
    - ``colours``: sizes and counts of colours;
    - ``counts``: counts of labels and degrees (see :func:`count_table`).

    Which summary says most differs between collections, and the many other numbers distract. With
    ``weigh``, all three are grown and weighted by how well they predict training graphs that their
    trees have not seen (see :func:`evidence_shares`). Without it, the first two have equal weights.

    Attributes:
        colours: the colours that are counted.
        trees: those of all forests, with the forests' shares in their values.
        columns: number of columns that the trees read.
        aligned: whether aligned vectors are among them.
        most_degree: largest degree that is counted by itself; None without the forest on counts.
        shares: weight of each forest, 1 in all.
        network_share: weight of the network in the mean with the forests.
    """

    colours: ColourVocabulary
    trees: Trees
    columns: int
    aligned: bool
    most_degree: int | None
    shares: tuple[float, ...]
    network_share: float

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
        weigh: bool = False,
    ) -> GraphForest:
        """Grows the forests.

        Args:
            graphs: all graphs, with the structural features of the network.
            index: the training graphs; other graphs are not read.
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
            weigh: grow a third forest on counts, and weight the forests by evidence. A network that
                aligns its own training graphs knows their targets, so with ``align`` there is no
                evidence and weights are equal.
        """
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
        most_degree = largest_degree(graphs, chosen) if weigh else None
        targets = task.encode(y[chosen]).double().numpy()
        weights = None if weight is None else weight[chosen].double().numpy()
        codes = _tree_outputs(targets, task)
        of_code = 1.0 if factors is None else factors[codes].numpy()

        def grow() -> tuple[Sequence[Trees], np.ndarray, int]:
            """The forests, their shares, and the number of columns that they read."""
            rows = _rows(graphs, chosen, colours, align, most_degree)
            tensors = [y, *(getattr(graphs, field.name) for field in fields(graphs))]
            release_pages(t.data_ptr() for t in tensors if isinstance(t, Tensor))
            columns = _columns_of(rows, graphs, colours, most_degree)
            own = np.ones(len(rows)) if weights is None else weights
            own = own * (1.0 if factors is None else factors.numpy()[targets.astype(int)])
            sample = np.sort(np.random.default_rng(seed).permutation(len(rows))[:EVIDENCE_GRAPHS])

            def reduce(grown: _Grown) -> tuple[Trees, np.ndarray | None]:
                unseen = grown.out_of_bag(rows, sample, codes, task) if evidence else None
                return Trees.of(grown.trees, codes, of_code, grown.first), unseen

            evidence = weigh and align is None and min(trees, len(columns)) > 1
            # scikit-learn's trees take several times the memory: only one forest at a time
            grown = map(reduce, _grow(rows, targets, weights, task, columns, trees, seed))
            forests, unseen = zip(*grown, strict=True)
            sizes = np.array([len(each.roots) for each in forests])
            shares = np.full(len(sizes), 1 / len(sizes)) if weigh else sizes / sizes.sum()
            if evidence:
                shares = evidence_shares(task, np.stack(unseen), targets[sample], own[sample])
            return forests, shares, rows.shape[1]

        forests, shares, width = grow()
        return cls(
            colours,
            Trees.mean(forests, shares.tolist()),
            width,
            align is not None,
            most_degree,
            tuple(shares.tolist()),
            _network_share(task, weigh),
        )

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
            aligned = align if self.aligned else None
            rows = _rows(graphs, part, self.colours, aligned, self.most_degree)
            if rows.shape[1] != self.columns:
                raise ValueError(
                    f"the forest reads {counted(self.columns, 'number')} of each graph; these "
                    f"graphs have {rows.shape[1]}"
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

    def with_evidence(
        self,
        task: Task,
        outputs: tuple[Float[Tensor, "b C"], Float[Tensor, "b C"]],
        y: Tensor,
        weight: Float[Tensor, " b"] | None = None,
    ) -> GraphForest:
        """The forests with the network's share that validation graphs ask for.

        ``outputs`` are those of the network and of the forests for graphs of which neither has
        learnt, ``y`` and ``weight`` the targets and weights of these.
        """
        values = torch.stack(outputs).double()  # (2, b, C)
        if isinstance(task, Classification):
            values = values.softmax(2)
        elif isinstance(task, MultiLabel):
            values = values.sigmoid()
        weights = np.ones(len(y)) if weight is None else weight.double().cpu().numpy()
        usual = np.array([self.network_share, 1 - self.network_share]) * NETWORK_PRIOR
        shares = evidence_shares(
            task, values.cpu().numpy(), task.encode(y).double().cpu().numpy(), weights, usual
        )
        return replace(self, network_share=float(shares[0]))

    def config(self) -> dict[str, Any]:
        """Everything except the trees, as JSON values."""
        return {
            "colours": self.colours.to_config(),
            "columns": self.columns,
            "aligned": self.aligned,
            "outputs": self.trees.outputs,
            "most_degree": self.most_degree,
            "shares": list(self.shares),
            "network_share": self.network_share,
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
        most, shares, network = (config[k] for k in ("most_degree", "shares", "network_share"))
        if most is not None and not (type(most) is int and 0 <= most <= MOST_DEGREES):
            raise ValueError(f"its forest counts degrees up to {most!r}")
        if not isinstance(shares, list) or not all(map(_is_share, [*shares, network])):
            raise ValueError("the shares of its forests are not numbers from 0 to 1")
        if not math.isclose(math.fsum(shares), 1, abs_tol=1e-6):
            raise ValueError(f"the shares of its forests add up to {math.fsum(shares):g}, not to 1")
        aligned = bool(config["aligned"])
        return cls(colours, trees, columns, aligned, most, tuple(shares), float(network))


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


@dataclass(frozen=True)
class _Grown:
    """A fitted forest: its trees, the training rows of each, and its first column."""

    trees: Sequence[Any]
    samples: Sequence[np.ndarray]
    first: int
    last: int

    def __len__(self) -> int:
        return len(self.trees)

    def out_of_bag(
        self,
        rows: Float[np.ndarray, "b columns"],
        sample: Int[np.ndarray, " e"],
        codes: Int[np.ndarray, " c"],
        task: Task,
    ) -> Float[np.ndarray, "e C"]:
        """Mean values for some training rows, of the trees that were grown without them.

        A row that every tree has seen has NaN.
        """
        own = np.ascontiguousarray(rows[sample, self.first : self.last])
        total, count = np.zeros((len(sample), len(codes))), np.zeros(len(sample))
        for tree, used in zip(self.trees, self.samples, strict=True):
            unseen = np.ones(len(rows), dtype=bool)
            unseen[used] = False
            left = unseen[sample]
            values = tree.tree_.predict(own).reshape(len(sample), -1)
            total[left] += values[left]
            count += left
        means = np.full((len(sample), task.outputs), np.nan)
        means[:, codes] = total / np.where(count > 0, count, np.nan)[:, None]
        return np.where(np.isnan(means) & (count > 0)[:, None], 0.0, means)


def _tree_outputs(targets: np.ndarray, task: Task) -> Int[np.ndarray, " c"]:
    """The output of each value of a tree's leaves."""
    if isinstance(task, Classification):
        return np.unique(targets).astype(np.int64)
    return np.arange(targets.shape[1])


def _grow(
    rows: Float[np.ndarray, "b columns"],
    targets: np.ndarray,
    weights: Float[np.ndarray, " b"] | None,
    task: Task,
    columns: Sequence[tuple[int, int]],
    trees: int,
    seed: int,
) -> Iterator[_Grown]:
    """A forest for each range of columns."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    count = len(_tree_outputs(targets, task))
    kind = RandomForestClassifier if isinstance(task, Classification) else RandomForestRegressor
    if not isinstance(task, Classification):
        there = ~np.isnan(targets)  # (b, T)
        usual = np.where(there, targets, 0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
        targets = np.where(there, targets, usual)
        targets = targets[:, 0] if count == 1 else targets
    settings: dict[str, Any] = {
        "max_features": "sqrt",
        "max_samples": min(len(rows), MOST_SAMPLES),
        "n_jobs": cores(),
    }
    most = max(2, MOST_VALUES // (trees * count))  # leaves of a tree
    if most < settings["max_samples"] and not isinstance(task, Classification):
        settings["max_leaf_nodes"] = most

    def fit(size: int, state: int, first: int, last: int) -> _Grown:
        forest = kind(size, random_state=state, **settings)
        forest.fit(rows[:, first:last], targets, weights)
        return _Grown(forest.estimators_, forest.estimators_samples_, first, last)

    done = 0
    for k, (first, last) in enumerate(columns):
        size = -(-(trees - k) // len(columns))  # the first ones have one more
        if size > 0:
            yield fit(size, (seed + done) % 2**32, first, last)
            done += size


def evidence_shares(
    task: Task,
    predictions: Float[np.ndarray, "K b C"],
    targets: Shaped[np.ndarray, "b ..."],
    weights: Float[np.ndarray, " b"],
    prior: Float[np.ndarray, " K"] | None = None,
) -> Float[np.ndarray, " K"]:
    r"""Shares of several predictors in their mean, by predictions of graphs not learnt from.

    For classes and answers the shares maximise the likelihood of the mean,

    .. math:: \sum_i w_i \log \sum_k s_k \, p_k(y_i \mid G_i) + \sum_k a_k \log s_k,

    and for numbers they minimise the squared error of the mean,

    .. math:: \sum_i w_i \Big(y_i - \sum_k s_k \, \hat y_k(G_i)\Big)^2 +
        \sum_k a_k \Big(s_k - \frac{a_k}{\sum a}\Big)^2,

    with weights of mean 1. The prior a keeps the shares close to each other where there are few
    graphs.

    Args:
        task: of the predictions.
        predictions: probabilities of classes or of a yes, or standardised numbers; NaN where a
            predictor has learnt from a graph.
        targets: encoded targets, (b,) or (b, T); NaN where unknown.
        weights: of the graphs.
        prior: number of graphs that each predictor is assumed to have predicted best;
            ``EVIDENCE_PRIOR`` by default.
    """
    prior = np.full(len(predictions), EVIDENCE_PRIOR) if prior is None else prior
    weights = weights / max(weights.mean(), 1e-300)
    if isinstance(task, Classification):
        chosen = predictions[:, np.arange(len(targets)), targets.astype(int)]  # (K, b)
        chances = (1 - _DOUBT) * chosen + _DOUBT / task.classes
    else:
        truth = targets.reshape(len(targets), -1)  # (b, T)
        weights = np.repeat(weights, truth.shape[1])
        values, truth = predictions.reshape(len(predictions), -1), truth.ravel()  # (K, b · T)
        if isinstance(task, Regression):
            known = ~np.isnan(values + truth).any(axis=0)
            return _least_squares(values[:, known], truth[known], weights[known], prior)
        chances = np.where(truth == 1, values, 1 - values) + 0 * truth  # NaN where unknown
        chances = (1 - _DOUBT) * chances + _DOUBT / 2
    known = ~np.isnan(chances).any(axis=0)
    return _likeliest(chances[:, known], weights[known], prior)


def _likeliest(
    chances: Float[np.ndarray, "K b"], weights: Float[np.ndarray, " b"], prior: np.ndarray
) -> Float[np.ndarray, " K"]:
    """The shares of greatest likelihood, by expectation and maximisation; the maximum is unique."""
    shares = prior / prior.sum()
    for _ in range(1000):
        parts = shares[:, None] * chances
        counts = (weights * parts / parts.sum(axis=0)).sum(axis=1) + prior
        before, shares = shares, counts / counts.sum()
        if np.abs(shares - before).max() < 1e-6:
            break
    return shares


def _least_squares(
    values: Float[np.ndarray, "K b"],
    truth: Float[np.ndarray, " b"],
    weights: Float[np.ndarray, " b"],
    prior: np.ndarray,
) -> Float[np.ndarray, " K"]:
    """The shares of least squared error: the best of the optima with some shares held at 0."""
    usual, count = prior / prior.sum(), len(values)
    square = (values * weights) @ values.T + np.diag(prior)  # (K, K)
    linear = (values * weights) @ truth + prior * usual  # (K,)
    best, least = usual, usual @ square @ usual - 2 * linear @ usual
    for kept in range(1, 2**count):
        own = np.flatnonzero([kept >> k & 1 for k in range(count)])
        ones = np.ones((len(own), 1))
        system = np.block([[square[np.ix_(own, own)], ones], [ones.T, np.zeros((1, 1))]])
        shares = np.zeros(count)
        shares[own] = np.linalg.solve(system, np.append(linear[own], 1.0))[:-1]
        error = shares @ square @ shares - 2 * linear @ shares
        if shares.min() >= 0 and error < least:
            best, least = shares / shares.sum(), error
    return best


def _network_share(task: Task, weigh: bool) -> float:
    """The share of a network in the mean with forests, without validation graphs.

    Out-of-bag predictions decide between forests only: the network has learnt from all training
    graphs. It counts as much as each of the forests. In a regression, where networks are much
    better than forests, it counts as much as all of them.
    """
    if isinstance(task, Regression):
        return 1 / 2
    return 1 / 4 if weigh else 1 / 3


def mean_with_network(
    task: Task, network: Float[Tensor, "b C"], forest: Float[Tensor, "b C"], share: float
) -> Float[Tensor, "b C"]:
    """The mean prediction of a network, which has some share of it, and of forests."""
    return mean_prediction(task, torch.stack([network, forest]), torch.tensor([share, 1 - share]))


def _rows(
    graphs: Collection,
    index: Int[Tensor, " b"],
    colours: ColourVocabulary,
    align: Align | None,
    most_degree: int | None = None,
) -> Float[np.ndarray, "b columns"]:
    """The inputs of the trees, one row for each of the chosen graphs."""
    rows: np.ndarray | None = None
    done = 0
    for part in index.split(_AT_ONCE):
        chosen = graphs.select(part)
        parts = [summarise(chosen, colours)]
        if align is not None:
            parts.append(align(graphs, part))
        if most_degree is not None:
            parts.append(count_table(chosen, most_degree))
        block = np.concatenate(parts, axis=1, dtype=np.float32)
        if rows is None:
            if len(part) == len(index):
                return block
            rows = spacious((len(index), block.shape[1]), np.float32)
        rows[done : done + len(part)] = block
        done += len(part)
    return np.empty((0, 0), np.float32) if rows is None else rows


def _columns_of(
    rows: Float[np.ndarray, "b columns"],
    graphs: Collection,
    colours: ColourVocabulary,
    most_degree: int | None,
) -> list[tuple[int, int]]:
    """The columns that each forest reads: everything, colours, and counts if there are some."""
    width, counted = rows.shape[1], SIZES + sum(colours.sizes)
    if most_degree is None:
        return [(0, width), (0, counted)]
    first = width - count_table(graphs.select(torch.arange(0)), most_degree).shape[1]
    return [(0, first), (0, counted), (first, width)]


def summarise(graphs: Collection, colours: ColourVocabulary) -> Float[np.ndarray, "B columns"]:
    """A summary of each graph without alignment, invariant under renumbering of its vertices.

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
    """Quantiles of the values of each graph, as NumPy's; 0 for a graph without values."""
    count = np.diff(ptr)[:, None]
    owner = np.repeat(np.arange(len(count)), count[:, 0])
    ordered = np.append(values[np.lexsort((values, owner))].astype(np.float64), 0.0)
    last = np.maximum(count - 1, 0)
    place = last * np.asarray(shares)  # (B, Q)
    low = np.floor(place).astype(np.int64)
    first = ptr[:-1, None]
    below, above = ordered[first + low], ordered[first + np.minimum(low + 1, last)]
    return np.where(count > 0, below + (place - low) * (above - below), 0.0)


def largest_degree(graphs: Collection, index: Int[Tensor, " b"]) -> int:
    """The largest degree of the chosen graphs, at most ``MOST_DEGREES``."""
    degrees = _degrees(graphs.select(index))
    return min(int(degrees.max()), MOST_DEGREES) if len(degrees) else 0


def count_table(graphs: Collection, most_degree: int) -> Float[np.ndarray, "B columns"]:
    """Numbers of vertices and edges, counts of labels and degrees, quartiles of attributes.

    Degrees above ``most_degree`` are counted together.
    """
    sizes, edges = graphs.sizes.cpu().numpy(), graphs.edge_ptr.diff().cpu().numpy() / 2
    degrees = _degrees(graphs).clamp(max=most_degree)[:, None]
    columns = [sizes[:, None], edges[:, None]]
    for codes, owner, sizes_of in (
        (degrees, graphs.owner, (most_degree + 1,)),
        (graphs.label, graphs.owner, graphs.label_sizes),
        (graphs.edge_label, graphs.edge_owner, graphs.edge_label_sizes),
    ):
        for c, size in enumerate(sizes_of if codes is not None else ()):
            counts = code_counts(owner, codes[:, c].long(), len(graphs), size)  # (B, size)
            columns.append(counts.cpu().numpy())
    for values, offsets in ((graphs.x, graphs.ptr), (graphs.edge_attr, graphs.edge_ptr)):
        if values is not None:
            ptr = offsets.cpu().numpy()
            columns += [quantiles(c, ptr, QUARTILES) for c in values.cpu().numpy().T]
    return np.concatenate(columns, axis=1)


def _degrees(graphs: Collection) -> Int[Tensor, " V"]:
    """Number of edges from each vertex."""
    return torch.bincount(graphs.edges[0], minlength=int(graphs.ptr[-1]))
