"""Targets and tasks: what outputs mean, how they are penalised, and how they are scored.

A target may be missing (NaN): it then counts neither in the loss nor in the score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from softperm.data.collection import Collection
from softperm.errors import GraphError, counted

METRICS = {"ogbg-molpcba": "average_precision"}
"""Metric of binary targets for each dataset that does not use ROC-AUC."""

MOST_KINDS = 1024  # of edges that a linear fit counts
MOST_FITTED = 50_000  # graphs to which a linear fit is fitted
RIDGES = tuple(10.0**k for k in range(-6, 5))  # penalties among which a linear fit chooses


@runtime_checkable
class Task(Protocol):
    """The contract between data, network and report."""

    @property
    def outputs(self) -> int:
        """Number C of outputs that the network needs."""
        ...

    @property
    def metric(self) -> str:
        """Name of the score."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Direction of the score."""
        ...

    def encode(self, y: Tensor) -> Tensor:
        """Targets in the form in which the loss compares them with outputs."""
        ...

    def losses(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of each encoded target, and whether the target is known; both (B,) or (B, T)."""
        ...

    def score(self, outputs: Tensor, y: Tensor) -> float:
        """The score of outputs for all graphs of a set."""
        ...


def mean_loss(
    task: Task,
    outputs: Tensor,
    y: Tensor,
    keep: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    r"""Mean loss over the known targets, :math:`\sum_i w_i \ell_i / \sum_i w_i`.

    A graph of weight 2 counts as two graphs.

    Args:
        task: gives the losses.
        outputs: the network's outputs (B, C).
        y: encoded targets (B,) or (B, T).
        keep: which graphs count (B,); all by default.
        weight: of each graph (B,); 1 by default.
    """
    total, count = total_loss(task, outputs, y, keep, weight)
    return total / positive(count)


def total_loss(
    task: Task,
    outputs: Tensor,
    y: Tensor,
    keep: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum of the losses of the known targets, and sum of their weights; see mean_loss."""
    losses, there = task.losses(outputs, y)
    if keep is not None:
        there = there & keep.view(-1, *[1] * (there.ndim - 1))
    if weight is None:
        return torch.where(there, losses, 0.0).sum(), there.sum()
    weights = torch.where(there, weight.to(losses).view(-1, *[1] * (there.ndim - 1)), 0.0)
    return torch.where(there, losses * weights, 0.0).sum(), weights.sum()


def positive(count: Tensor) -> Tensor:
    """The number of targets, or 1 if it is 0, so that it can divide a sum."""
    return torch.where(count > 0, count, 1)


def class_factors(
    class_weight: object, task: Task, y: Tensor, weight: Tensor | None = None
) -> Float[Tensor, " C"] | None:
    """The factor of each class on the weights of its graphs; None where all are 1.

    Args:
        class_weight: ``balanced`` for n / (C · n_c) with the number n_c of training graphs of class
            c, as in scikit-learn; weights by code of the class, 1 for the others; or None.
        task: of the targets.
        y: targets of the training graphs, (b,) or (b, T).
        weight: of the training graphs (b,), with which they are counted; 1 by default.
    """
    if class_weight is None:
        return None
    if not isinstance(task, Classification):
        raise ValueError(
            "class_weight is for graphs of one class each: weight graphs with sample_weight"
        )
    factors = torch.ones(task.classes, dtype=torch.float64)
    if isinstance(class_weight, Mapping):
        for code, factor in class_weight.items():
            factors[int(code)] = float(factor)
        if not factors.any():
            raise ValueError("every class_weight is 0: nothing could be learnt")
        return factors
    counts = torch.bincount(y, weight, task.classes).double()  # (C,)
    present = counts > 0
    factors[present] = counts.sum() / (present.sum() * counts[present])
    return factors


def weigh(
    y: Tensor, weight: Float[Tensor, " B"] | None, factors: Float[Tensor, " C"] | None
) -> Float[Tensor, " B"] | None:
    """The weight of each graph in the loss: its own times the factor of its class."""
    if factors is None:
        return weight
    return factors[y] if weight is None else weight * factors[y]


def with_smoothing(task: Task, smoothing: float) -> Task:
    """The task with label smoothing in its losses; a regression is returned unchanged.

    Args:
        task: the task.
        smoothing: share s of a target's probability that is spread evenly over the classes.
    """
    if smoothing and isinstance(task, Classification | MultiLabel):
        return replace(task, smoothing=smoothing)
    return task


def mean_prediction(
    task: Task, outputs: Float[Tensor, "K B C"], share: Float[Tensor, " K"] | None = None
) -> Float[Tensor, "B C"]:
    """Outputs whose predictions are the mean of the predictions of K networks.

    Probabilities of classes and of answers are averaged, and numbers of a regression.

    Args:
        task: of the networks.
        outputs: of each network.
        share: of each network in the mean, 1 in all; equal shares by default.
    """
    if share is None:
        share = torch.full((len(outputs),), 1 / len(outputs))
    shares = share.to(outputs)[:, None, None]  # (K, 1, 1)
    if isinstance(task, Classification):
        return (outputs.log_softmax(2) + shares.log()).logsumexp(0)
    if isinstance(task, MultiLabel):
        signed = (nn.functional.logsigmoid(sign * outputs) + shares.log() for sign in (1, -1))
        yes, no = (each.logsumexp(0) for each in signed)
        return yes - no
    return (shares * outputs).sum(0)


def count_targets(task: Task, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Number of known targets, or the sum of their weights."""
    outputs = torch.zeros(len(y), task.outputs, device=y.device)
    return total_loss(task, outputs, y, weight=weight)[1]


@dataclass(frozen=True)
class Classification:
    """One class of several: cross-entropy, accuracy.

    Attributes:
        classes: how many.
        smoothing: see :func:`with_smoothing`.
    """

    classes: int
    metric: str = "accuracy"
    higher_is_better: bool = True
    smoothing: float = field(default=0.0, repr=False)  # fingerprints have it from the settings

    @property
    def outputs(self) -> int:
        """One output per class."""
        return self.classes

    def encode(self, y: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """The codes of the classes, unchanged."""
        return y

    def losses(
        self, outputs: Float[Tensor, "B C"], y: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, " B"], Tensor]:
        """Cross-entropy of each graph."""
        logs = outputs.log_softmax(dim=1)  # (B, C)
        chosen = logs.gather(1, y[:, None])[:, 0]
        if self.smoothing:
            chosen = (1 - self.smoothing) * chosen + self.smoothing * logs.mean(dim=1)
        return -chosen, torch.ones_like(y, dtype=torch.bool)

    def score(self, outputs: Float[Tensor, "B C"], y: Int[Tensor, " B"]) -> float:
        """Share of graphs whose class is right."""
        return float((outputs.argmax(dim=1) == y).double().mean())


@dataclass(frozen=True)
class MultiLabel:
    """Several binary targets per graph, some unknown: binary cross-entropy.

    Attributes:
        labels: how many questions.
        metric: ``roc_auc`` or ``average_precision``, averaged over the questions that have both
            answers, as OGB does.
        smoothing: see :func:`with_smoothing`.
    """

    labels: int
    metric: str = "roc_auc"
    higher_is_better: bool = True
    smoothing: float = field(default=0.0, repr=False)  # fingerprints have it from the settings

    @property
    def outputs(self) -> int:
        """One output per question."""
        return self.labels

    def encode(self, y: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """The answers, unchanged."""
        return y

    def losses(
        self, outputs: Float[Tensor, "B T"], y: Float[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B T"], Tensor]:
        """Binary cross-entropy of each answer."""
        there = ~y.isnan()
        target = torch.nan_to_num(y).to(outputs.dtype)
        if self.smoothing:
            target = (1 - self.smoothing) * target + self.smoothing / 2
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        return loss(outputs, target, reduction="none"), there

    def score(self, outputs: Float[Tensor, "B T"], y: Float[Tensor, "B T"]) -> float:
        """The metric averaged over questions; NaN if no question has both answers."""
        from sklearn.metrics import average_precision_score, roc_auc_score  # takes 0.5 s to load

        measure = {"roc_auc": roc_auc_score, "average_precision": average_precision_score}
        scores = []
        for output, target in zip(outputs.cpu().T, y.cpu().T, strict=True):
            there = ~target.isnan()
            answers = target[there]
            if bool((answers == 0).any()) and bool((answers == 1).any()):
                values = output[there].double().numpy()
                scores.append(measure[self.metric](answers.numpy(), values))
        return float(np.mean(scores)) if scores else float("nan")


@dataclass(frozen=True)
class Regression:
    """Numbers: squared error on standardised targets, absolute error in the targets' own units.

    Attributes:
        mean: mean of each target over the training graphs.
        std: standard deviation of each target over the training graphs; 0 for a target that is
            constant, which is then predicted exactly, whatever the outputs are.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    metric: str = "mae"
    higher_is_better: bool = False

    @classmethod
    def of(cls, y: Float[Tensor, "B T"], weight: Float[Tensor, " B"] | None = None) -> Regression:
        """The task of the given training targets, of which each may count with a weight."""
        values = y.double().cpu().numpy()
        missing = np.flatnonzero(np.isnan(values).all(axis=0))
        if missing.size:
            raise ValueError(
                f"target {missing[0]} is missing (NaN) for every training graph: leave it out, or "
                "train on more graphs"
            )
        largest = np.nanmax(np.abs(values), axis=0)
        far = (largest > 1e150) | (largest < 1e-150)  # whose squares would be infinite, or nothing
        unit = np.where(far & (largest > 0), largest, 1.0)
        values = values / unit
        spread = np.nanmax(values, axis=0) - np.nanmin(values, axis=0)
        varies = spread > 1e-15 * largest / unit  # by more than rounding
        if weight is None:
            mean, std = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        else:
            mean, std = _weighted_statistics(values, weight.double().cpu().numpy())
        std = np.where(varies, std * unit, 0.0)
        return cls(tuple((mean * unit).tolist()), tuple(std.tolist()))

    @property
    def outputs(self) -> int:
        """One output per target."""
        return len(self.mean)

    def encode(self, y: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Standardised targets; those that are constant in training are only centred."""
        mean, std = self._statistics(y)
        return (y - mean) / torch.where(std > 0, std, 1)

    def losses(
        self, outputs: Float[Tensor, "B T"], y: Float[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B T"], Tensor]:
        """Squared error of each standardised target."""
        target = torch.nan_to_num(y).to(outputs.dtype)
        return (outputs - target).square(), ~y.isnan()

    def decode(self, outputs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Outputs in the targets' own units."""
        mean, std = self._statistics(outputs.double())
        return outputs * std + mean

    def score(self, outputs: Float[Tensor, "B T"], y: Float[Tensor, "B T"]) -> float:
        """Mean absolute error over the known targets."""
        return float((self.decode(outputs) - y).abs().nanmean())

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_tensor(self.mean), like.new_tensor(self.std)


@dataclass(frozen=True)
class LinearFit:
    r"""A linear function of the counts of vertices and edges of each kind in a graph.

    With the counts :math:`c(G)`, the fit of a target is :math:`b + c(G) \cdot w`. The weights are
    those of a ridge regression whose penalty leave-one-out errors choose.

    Attributes:
        weights: w of each target (T, F).
        intercept: b of each target (T).
        label_sizes: number of codes of each column of labels that is counted.
        edge_label_sizes: the same for labels of edges.
    """

    weights: tuple[tuple[float, ...], ...]
    intercept: tuple[float, ...]
    label_sizes: tuple[int, ...]
    edge_label_sizes: tuple[int, ...]

    @classmethod
    def of(
        cls,
        graphs: Collection,
        train: Int[Tensor, " t"],
        y: Float[Tensor, "B T"],
        weight: Float[Tensor, " B"] | None = None,
    ) -> LinearFit:
        """The fit of the training graphs, at most ``MOST_FITTED``; missing targets are NaN."""
        from sklearn.linear_model import RidgeCV

        if len(train) > MOST_FITTED:
            train = train[torch.linspace(0, len(train) - 1, MOST_FITTED).long()]

        sizes, edge_sizes = tuple(graphs.label_sizes), tuple(graphs.edge_label_sizes)
        counts = _count(graphs.select(train), sizes, edge_sizes).numpy()  # (t, F)
        unit = counts.std(axis=0)
        varies = unit > 0
        scaled = counts[:, varies] / unit[varies]
        targets = y[train].double().cpu().numpy()  # (t, T)
        own = None if weight is None else weight[train].double().cpu().numpy()
        weights, intercept = np.zeros((targets.shape[1], len(unit))), np.zeros(targets.shape[1])
        patterns, pattern = np.unique(np.isnan(targets), axis=1, return_inverse=True)
        for k, missing in enumerate(patterns.T):  # targets known for the same graphs share a fit
            there, columns = ~missing, pattern.ravel() == k
            known, shares = targets[np.ix_(there, columns)], None if own is None else own[there]
            intercept[columns] = np.average(known, axis=0, weights=shares)
            if there.sum() > 2 and varies.any():
                ridge = RidgeCV(alphas=RIDGES, alpha_per_target=True)
                ridge.fit(scaled[there], known, shares)
                weights[np.ix_(columns, varies)] = ridge.coef_ / unit[varies]
                intercept[columns] = ridge.intercept_
        rows = tuple(map(tuple, weights.tolist()))
        return cls(rows, tuple(intercept.tolist()), sizes, edge_sizes)

    @property
    def width(self) -> int:
        """Number F of counts."""
        own = 2 + sum(self.label_sizes) + sum(self.edge_label_sizes)
        return own + _kinds(self.label_sizes, self.edge_label_sizes)

    def __call__(self, graphs: Collection) -> Float[Tensor, "B T"]:
        """The fit of each graph, float64."""
        weights, intercept = (
            torch.tensor(t, dtype=torch.float64) for t in (self.weights, self.intercept)
        )
        fit = intercept.repeat(len(graphs), 1)  # (B, T)
        for first, last, part in graphs.spans():
            fit[first:last] += _count(part, self.label_sizes, self.edge_label_sizes) @ weights.T
        return fit


def _count(
    graphs: Collection, sizes: Sequence[int], edge_sizes: Sequence[int]
) -> Float[Tensor, "B F"]:
    """Numbers of vertices, of edges, of their labels, and of edges by the labels of their ends.

    Labels of ends count together with the first label of the edge, unless there are many kinds.
    Unseen labels do not count.
    """
    columns = []
    for codes, ptr, owner, own in (
        (graphs.label, graphs.ptr, graphs.owner, sizes),
        (graphs.edge_label, graphs.edge_ptr, graphs.edge_owner, edge_sizes),
    ):
        columns.append(ptr.diff()[:, None])
        for c, size in enumerate(own):
            assert codes is not None
            columns.append(code_counts(owner, codes[:, c].long(), len(graphs), size))
    if kinds := _kinds(sizes, edge_sizes):
        assert graphs.label is not None
        first, second = graphs.label[:, 0].long()[graphs.edges].sort(dim=0).values
        code = first * sizes[0] + second
        if edge_sizes:
            assert graphs.edge_label is not None
            bond = graphs.edge_label[:, 0].long()
            code, first = code * edge_sizes[0] + bond, torch.minimum(first, bond)
        code = torch.where(first >= 0, code, -1)
        columns.append(code_counts(graphs.edge_owner, code, len(graphs), kinds))
    return torch.cat(columns, dim=1).double().cpu()


def code_counts(
    owner: Int[Tensor, " V"], codes: Int[Tensor, " V"], graphs: int, size: int
) -> Int[Tensor, "B K"]:
    """How often each code from 0 to ``size`` − 1 occurs in each graph; code −1 is not counted."""
    known = codes >= 0
    places = owner[known] * size + codes[known]
    return torch.bincount(places, minlength=graphs * size).view(graphs, size)


def _kinds(sizes: Sequence[int], edge_sizes: Sequence[int]) -> int:
    """Number of kinds of edges by the labels of their ends and their own; 0 if they are many."""
    kinds = sizes[0] ** 2 * (edge_sizes[0] if edge_sizes else 1) if sizes else 0
    return kinds if kinds <= MOST_KINDS else 0


def _weighted_statistics(
    values: Float[np.ndarray, "B T"], weight: Float[np.ndarray, " B"]
) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"]]:
    """Weighted mean and standard deviation of the values that are not NaN."""
    shares = np.where(np.isnan(values), 0.0, weight[:, None])  # (B, T)
    totals = shares.sum(axis=0)
    if not totals.all():
        target = int(np.flatnonzero(totals == 0)[0])
        raise ValueError(f"every training graph with a known target {target} has weight 0")
    shares = shares / totals
    known = np.nan_to_num(values)
    mean = (shares * known).sum(axis=0)
    return mean, np.sqrt((shares * (known - mean) ** 2).sum(axis=0))


class StackedScore:
    """The scores of M models, each for its own graphs.

    Accuracy and absolute error are computed for all models at once; other scores one by one.
    """

    def __init__(self, tasks: Sequence[Task], device: torch.device) -> None:
        self.tasks = tasks
        spreads = [task.std for task in tasks if isinstance(task, Regression)]
        self.std = torch.tensor(spreads, dtype=torch.float64, device=device)  # (M, T)
        self.on_device = isinstance(tasks[0], Classification | Regression)

    def __call__(
        self, outputs: Float[Tensor, "M b C"], y: Tensor, there: Bool[Tensor, "M b"]
    ) -> Float[Tensor, " M"]:
        """The scores.

        Args:
            outputs: each model's outputs.
            y: each model's encoded targets (M, b) or (M, b, T).
            there: which places hold a graph.
        """
        if isinstance(self.tasks[0], Classification):
            hits = (outputs.argmax(-1) == y) & there
            return hits.sum(1).double() / there.sum(1)
        if isinstance(self.tasks[0], Regression):
            std = self.std[:, None]  # (M, 1, T); 0 for targets that outputs do not change
            error = torch.where(std > 0, (outputs - y).double() * std, y.double())  # (M, b, T)
            return torch.where(there[..., None], error.abs(), torch.nan).flatten(1).nanmean(1)
        parts = zip(self.tasks, outputs, y, there, strict=True)
        return self.std.new_tensor([t.score(o[k], a[k]) for t, o, a, k in parts])


def target_array(y: Any, count: int) -> np.ndarray:
    """Targets as an array with one row per graph."""
    if y is None:
        raise ValueError("y is missing: each graph needs a target to learn from")
    if isinstance(y, Tensor):
        y = y.detach().cpu()
        y = y.double() if y.is_floating_point() else y
    y = list(y) if isinstance(y, Iterator) else y
    try:
        values = np.asarray(y)
    except ValueError:
        raise ValueError("the rows of y have several lengths; give all the same") from None
    if values.ndim == 0:
        kind = type(y).__name__
        raise ValueError(f"y is of type {kind}; expected a list or array, a target for each graph")
    if values.dtype.kind in "UO":
        as_given = np.array(y, dtype=object)
        absent = [type(value).__name__ == "NAType" for value in as_given.flat]  # NA of pandas
        as_given[np.reshape(absent, as_given.shape).astype(bool)] = None
        if not all(isinstance(value, str) for value in as_given.ravel()):
            values = as_given  # NumPy turns numbers among strings into strings
        for index, value in enumerate(as_given):
            if isinstance(value, str) and "\0" in value:  # NumPy drops it at the end of a string
                raise GraphError(index, f"its class {value!r} has the character NUL; remove it")
    if values.ndim not in (1, 2):
        raise ValueError(f"y must have one or two axes; got shape {values.shape}")
    if len(values) != count:
        raise ValueError(f"got {counted(count, 'graph')} but {counted(len(values), 'target')} in y")
    if values.ndim == 2 and values.shape[1] == 0:
        raise ValueError("y has no columns")
    return values


def weight_array(sample_weight: Any, count: int) -> Tensor | None:
    """The weight of each graph (B,); None for equal weights.

    Raises:
        ValueError: the weights are no finite numbers of at least 0, or all are 0.
    """
    if sample_weight is None:
        return None
    try:
        values = np.array(sample_weight, dtype=np.float64)  # pandas lends arrays for reading only
    except (TypeError, ValueError):
        raise ValueError("sample_weight must hold a number for each graph") from None
    if values.shape != (count,):
        raise ValueError(
            f"sample_weight must hold a number for each of the {count} graphs; got shape "
            f"{values.shape}"
        )
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        index = int(wrong[0])
        raise GraphError(index, f"its sample_weight is {values[index]:g}; expected 0 or more")
    if not values.any():
        raise ValueError("every sample_weight is 0: nothing could be learnt")
    exponent = np.frexp(values.max())[1]
    if abs(exponent) > 64:  # single precision could not hold the weights; only their ratios matter
        values = np.ldexp(values, -exponent)
    return torch.from_numpy(values)


def class_array(y: Any, count: int) -> np.ndarray:
    """Classes, or a matrix of binary targets; a matrix of one column is one class per graph."""
    values = target_array(y, count)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def find_classes(values: np.ndarray) -> np.ndarray:
    """The distinct classes in ascending order.

    Raises:
        ValueError: there is only one, or they are not strings, whole numbers or booleans.
    """
    check_classes(values)
    classes = np.unique(values)
    if len(classes) < 2:
        raise ValueError(
            f"y has only one class, {classes.tolist()[0]!r}: a classifier needs graphs of at least "
            "two"
        )
    return classes


def check_classes(values: np.ndarray) -> None:
    """Raises ValueError unless these are strings, whole numbers or booleans."""
    listed = values.tolist()
    kinds = {type(value) for value in listed}
    for index, value in enumerate(listed):
        if value is None or value != value:
            raise GraphError(index, f"it has no class (y is {value}): leave such graphs out")
        if not isinstance(value, str | int | float):
            raise GraphError(
                index,
                f"its class is of type {type(value).__name__}; expected a string, a whole number "
                "or a boolean",
            )
        if isinstance(value, float) and not value.is_integer():
            raise GraphError(
                index,
                f"its class is {value}, which is not a whole number: use PiGNNRegressor for "
                "measurements",
            )
    if str in kinds and len(kinds) > 1:
        raise ValueError("y mixes strings with numbers: use classes of one type")


def encode_classes(values: np.ndarray, classes: np.ndarray) -> Tensor:
    """The position of each value among the classes (B,).

    Raises:
        ValueError: a value is none of the classes.
    """
    code_of = {value: code for code, value in enumerate(classes.tolist())}
    codes = [code_of.get(value, -1) for value in values.tolist()]
    if -1 in codes:
        unknown = values.tolist()[codes.index(-1)]
        raise ValueError(f"class {unknown!r} is not among those of training")
    return torch.tensor(codes)


def encode_answers(values: np.ndarray) -> Tensor:
    """A matrix (B, T) of 1, 0 and NaN."""
    try:
        values = values.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"a matrix y must hold 1, 0 or NaN; got {values.dtype} values") from None
    odd = ~(np.isnan(values) | (values == 0) | (values == 1))
    if odd.any():
        raise ValueError(f"a matrix y must hold 1, 0 or NaN; got {values[odd][0]:g}")
    return torch.from_numpy(values).float()


def encode_numbers(values: np.ndarray) -> Tensor:
    """A matrix (B, T) of numbers, NaN where unknown; one column for targets of one axis."""
    try:
        values = values.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"y must be numbers to regress; got {values.dtype} values") from None
    if np.isinf(values).any():
        raise GraphError(
            int(np.argwhere(np.isinf(values))[0][0]),
            "its target is infinite: leave such graphs out",
        )
    return torch.from_numpy(values.reshape(len(values), -1))
