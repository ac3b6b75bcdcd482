"""Cost models for matching vertices and edges: the Frobenius distance and the edit distance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from torch_geometric.data import Data

CHANNELS = 8  # more distinct weights are bounded by sorted rows in place of channels
TABLE_KINDS = 2048  # kinds of edges up to which their costs are tabulated


@dataclass(frozen=True)
class EditCosts:
    """The costs of the graph edit distance.

    The distance is the least total cost of edits that turn one graph into the other. A vertex or
    edge of different label is substituted, or deleted and inserted if that costs less; an infinite
    ``vertex_substitution`` forbids to match vertices of different label. A deleted or inserted
    edge of weight w costs ``|w|`` times the given cost. Where edges of weights w and w′ are
    matched, lost weight costs as much as its deletion and gained weight as its insertion:
    ``|w − w′|`` times the cost if both cost the same.

    Args:
        vertex_insertion: cost of a vertex of the second graph without a match.
        vertex_deletion: cost of a vertex of the first graph without a match.
        vertex_substitution: cost of matching vertices of different label.
        edge_insertion: cost of an edge of the second graph without a match.
        edge_deletion: cost of an edge of the first graph without a match.
        edge_substitution: cost of matching edges of different label.

    >>> EditCosts.edges().vertex_substitution
    inf
    """

    vertex_insertion: float = 1.0
    vertex_deletion: float = 1.0
    vertex_substitution: float = 1.0
    edge_insertion: float = 1.0
    edge_deletion: float = 1.0
    edge_substitution: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            cost = getattr(self, field.name)
            endless = math.isinf(cost) and not field.name.endswith("substitution")
            if not cost >= 0 or endless:
                raise ValueError(f"{field.name} is {cost}; expected a finite number, zero or more")

    @classmethod
    def edges(cls, edge_substitution: float = 1.0) -> EditCosts:
        """Counts edges outside the maximum common edge subgraph (MCES).

        Vertices cost nothing, but only vertices of equal label can be matched. Without edge labels
        and weights the distance is half the squared Frobenius distance of labelled graphs.

        Args:
            edge_substitution: cost of matching edges of different label; 2 is the cost of a
                deletion and an insertion, 0 ignores edge labels.
        """
        return cls(0.0, 0.0, math.inf, 1.0, 1.0, edge_substitution)

    def codes(self, graphs: Sequence[Data]) -> Codes:
        """Codes of the labels that matter: those that graphs carry and that have a cost."""
        return Codes(
            labels=self.vertex_substitution > 0 and any("label" in g for g in graphs),
            edge_labels=self.edge_substitution > 0 and any("edge_label" in g for g in graphs),
        )

    def model(self, codes: Codes) -> Model:
        """The costs of graphs with these codes.

        The search needs only the sum of the costs of insertion and deletion. Their difference
        contributes a constant, which follows from the sizes of the two graphs.
        """
        value, label = codes.kinds()
        edge = (self.edge_insertion + self.edge_deletion) / 2
        return _model(value * edge, label, self.edge_substitution, self)

    def distance(self, cost: float) -> float:
        """The distance that belongs to a cost of the search."""
        return cost

    def cost(self, distance: float) -> float:
        """The cost of the search that belongs to a distance."""
        return distance


@dataclass(frozen=True)
class Frobenius:
    """The Frobenius distance; the search minimises half its square.

    Args:
        labels: whether only vertices of equal label can be matched.
        edge_labels: whether an edge that is matched with one of another label counts as two: the
            adjacency matrices of all labels are compared one by one.
    """

    labels: bool = False
    edge_labels: bool = False

    def codes(self, graphs: Sequence[Data]) -> Codes:
        """Codes of the labels that matter."""
        return Codes(labels=self.labels, edge_labels=self.edge_labels)

    def model(self, codes: Codes) -> Model:
        """The costs of graphs with these codes."""
        value, label = codes.kinds()
        if np.isin(value, (0.0, 1.0)).all():
            return _model(value, label, 2.0, EditCosts.edges())
        whole = (value == np.floor(value)).all() and np.square(value).max() < 2.0**40
        table = np.zeros((0, 0))
        if np.unique(label[1:]).size > 1:
            _check_kinds(value.size)
            squares, edge = np.square(value), value != 0
            apart = (label[:, None] != label) & edge[:, None] & edge
            table = np.where(apart, squares[:, None] + squares, np.square(value[:, None] - value))
            value = np.abs(value)  # so that differences of values never exceed the table
        return Model(
            value=value,
            table=table,
            plain=False,
            power=2,
            member=np.zeros((0, value.size), bool),
            price=np.zeros(0),
            strict=True,
            vertex=0.0,
            relabel=math.inf,
            step=2.0 if whole else 0.0,
            surplus=np.zeros(2),
        )

    def distance(self, cost: float) -> float:
        """The distance that belongs to a cost of the search."""
        return math.sqrt(2.0 * max(cost, 0.0))

    def cost(self, distance: float) -> float:
        """The cost of the search that belongs to a distance."""
        return distance * distance / 2.0


Metric = Frobenius | EditCosts


class Codes:
    """Codes of vertex labels and kinds of edges, numbered in the order of their first use."""

    def __init__(self, *, labels: bool, edge_labels: bool) -> None:
        self.labels, self.edge_labels = labels, edge_labels
        self.vertex: dict[object, int] = {}
        self.edge: dict[tuple[object, float], int] = {(None, 0.0): 0}

    def kinds(self) -> tuple[Float[np.ndarray, " K"], Int[np.ndarray, " K"]]:
        """Weight and label code of each kind of edge."""
        names: dict[object, int] = {}
        label = [names.setdefault(name, len(names)) for name, _ in self.edge]
        return np.array([weight for _, weight in self.edge]), np.array(label, dtype=np.int64)


class Model(NamedTuple):
    """The costs of a collection in the form that the compiled search reads.

    An edge has a kind, its label and weight; kind 0 is no edge. The cost of matching a pair of
    kinds e and f is ``table[e, f]``, or ``|value[e] − value[f]|^power`` if there is no table.

    A channel is a set of kinds with a price. The cost of kinds e and f is at least the sum of the
    prices of the channels that contain one of them and not the other. This makes a lower bound of
    simple graphs, one for each channel, a lower bound of graphs with edge labels and weights.

    Args:
        value: (K,) weight of each kind.
        table: (K, K) cost of matching two kinds; (0, 0) if there are too many kinds.
        plain: whether edges have one kind, with weight 1; the search is then faster.
        power: exponent of the difference of two weights; 2 for the Frobenius distance.
        member: (C, K) kinds of each channel; no channels if there are too many weights.
        price: (C,) price of each channel.
        strict: whether only vertices of equal label can be matched.
        vertex: cost of a vertex without a match; the mean of insertion and deletion.
        relabel: cost of matching vertices of different label.
        step: all costs of a pair of graphs differ by multiples of this number; 0 if unknown.
        surplus: (2,) further cost of each vertex and each unit of edge weight that the first graph
            has more than the second, if insertion and deletion have different costs.
    """

    value: Float[np.ndarray, " K"]
    table: Float[np.ndarray, "K K"]
    plain: bool
    power: int
    member: Bool[np.ndarray, "C K"]
    price: Float[np.ndarray, " C"]
    strict: bool
    vertex: float
    relabel: float
    step: float
    surplus: Float[np.ndarray, " 2"]


def _check_kinds(kinds: int) -> None:
    if kinds > TABLE_KINDS:
        raise ValueError(
            f"the graphs have {kinds:,} different combinations of edge label and weight; at most "
            f"{TABLE_KINDS:,} are supported, so round the weights or leave out labels or weights"
        )


def _model(value: np.ndarray, label: np.ndarray, substitution: float, costs: EditCosts) -> Model:
    """The model of absolute differences of weights, and a constant for edges of different label."""
    labelled = np.unique(label[1:]).size > 1 and substitution > 0
    edge = value != 0
    tabulated = labelled or value.size <= TABLE_KINDS
    kinds = value if tabulated else value[:0]
    cost = np.abs(kinds[:, None] - kinds)
    without_match = np.abs(kinds)[:, None] + np.abs(kinds)
    if labelled:
        _check_kinds(value.size)
        apart = (label[:, None] != label) & edge[:, None] & edge
        cost = np.where(apart, np.minimum(cost + substitution, without_match), cost)
    vertex = (costs.vertex_insertion + costs.vertex_deletion) / 2
    relabel = costs.vertex_substitution
    savings = [2.0 * vertex] if math.isinf(relabel) else [2 * vertex, abs(2 * vertex - relabel)]
    savings.extend(np.unique(without_match - cost) if tabulated else 2 * np.abs(value))
    total = costs.edge_deletion + costs.edge_insertion
    member, price = _channels(value, label if labelled else np.zeros_like(label), substitution)
    return Model(
        value=value,
        table=cost,
        plain=value.size <= 2 and bool((value == np.arange(value.size)).all()),
        power=1,
        member=member,
        price=price,
        strict=math.isinf(relabel),
        vertex=vertex,
        relabel=relabel,
        step=_common_step(savings),
        surplus=np.array([
            (costs.vertex_deletion - costs.vertex_insertion) / 2,
            (costs.edge_deletion - costs.edge_insertion) / total if total else 0.0,
        ]),
    )  # fmt: skip


def _channels(
    value: np.ndarray, label: np.ndarray, substitution: float
) -> tuple[Bool[np.ndarray, "C K"], Float[np.ndarray, " C"]]:
    """Levels of weight and labels as channels, with prices that never exceed the cost."""
    levels = np.unique(np.append(value, 0.0))
    labels = np.unique(label[1:]) if np.unique(label[1:]).size > 1 else label[:0]
    least = float(np.abs(value[value != 0]).min(initial=np.inf))
    for_label = min(substitution / 2, least)  # a pair of labels is in one channel each
    member, price = [value != value], [0.0]
    for low, high in pairwise(levels):
        next_to_zero = low == 0 or high == 0
        member.append(value >= high if high > 0 else value <= low)
        price.append(high - low - (for_label if labels.size and next_to_zero else 0.0))
    for one in labels:
        member.append((label == one) & (value != 0))
        price.append(for_label)
    useful = np.flatnonzero(np.array(price) > 0)
    if useful.size > CHANNELS:
        useful = useful[:0]
    return np.array(member)[useful], np.array(price)[useful]


def _common_step(numbers: list[float]) -> float:
    """The greatest number of which all given ones are multiples; 0 if there is no simple one."""
    positive = [float(number) for number in numbers if number > 0]
    fractions = [Fraction(number).limit_denominator(1000) for number in positive]
    if any(abs(float(f) - number) > 1e-12 for f, number in zip(fractions, positive, strict=True)):
        return 0.0
    denominator = math.lcm(*(f.denominator for f in fractions))
    return math.gcd(*(int(f * denominator) for f in fractions)) / denominator
