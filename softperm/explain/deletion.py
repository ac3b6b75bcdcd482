"""Deletion curves: how an output changes when the parts that an explanation names are removed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from softperm.data.collection import Collection
from softperm.data.features import structural_features
from softperm.errors import counted
from softperm.estimators.pignn import PiGNNEstimator
from softperm.nn.attribution import Explanation

PARTS = ("edges", "vertices")


@dataclass(frozen=True)
class DeletionCurve:
    """An output of one graph while more and more of its edges or vertices are removed.

    An explanation is right to the extent that the output falls faster when the largest
    contributions are removed first than when parts are removed at random.

    Attributes:
        removed: share of the edges or vertices removed, from 0 to 1.
        largest_first: the output, largest contributions removed first.
        smallest_first: the output, smallest contributions removed first.
        random: the mean output of several random orders.
        output: number of the output.
    """

    removed: Float[np.ndarray, " steps"]
    largest_first: Float[np.ndarray, " steps"]
    smallest_first: Float[np.ndarray, " steps"]
    random: Float[np.ndarray, " steps"]
    output: int

    @property
    def gain(self) -> float:
        """The mean of ``random`` minus ``largest_first``: above 0 if the explanation helps."""
        return float(np.trapezoid(self.random - self.largest_first, self.removed))


def deletion_curve(
    estimator: PiGNNEstimator,
    graph: Any,
    explanation: Explanation,
    *,
    parts: str = "edges",
    output: int | None = None,
    steps: int = 10,
    orders: int = 10,
    seed: int = 0,
) -> DeletionCurve:
    """Removes parts of a graph in the order of their contributions and predicts again.

    Structural features are those of what is left of the graph. Outputs are those of the whole
    estimator, as :meth:`~softperm.estimators.pignn.PiGNNEstimator.explain` states them; those of
    classes are probabilities.

    Args:
        estimator: a fitted estimator.
        graph: the graph, or a collection of one graph.
        explanation: of this graph.
        parts: ``edges`` (by ``edge_totals``) or ``vertices`` (by ``vertex_totals``).
        output: number of the output; by default the largest one of the explanation.
        steps: number of points of the curve after the whole graph.
        orders: number of random orders.
        seed: of these.
    """
    if parts not in PARTS:
        raise ValueError(f"parts must be one of {', '.join(PARTS)}; got {parts!r}")
    collection = graph if isinstance(graph, Collection) else estimator.collect([graph])
    if int(collection.ptr[-1]) != len(explanation.attributes):
        raise ValueError(
            f"the explanation is of a graph with {counted(len(explanation.attributes), 'vertex')}; "
            f"this one has {int(collection.ptr[-1])}"
        )
    chosen = int(explanation.outputs.argmax()) if output is None else output
    totals = explanation.edge_totals if parts == "edges" else explanation.vertex_totals
    contributions = totals[:, chosen]
    falling = np.argsort(-contributions, kind="stable")
    rng = np.random.default_rng(seed)
    shuffled = [rng.permutation(len(falling)) for _ in range(orders)]
    removed = np.linspace(0, 1, steps + 1)
    counts = np.rint(removed * len(falling)).astype(int)
    kept = [_kept(order, counts) for order in (falling, falling[::-1], *shuffled)]
    masks = torch.from_numpy(np.concatenate(kept))  # (orders · steps, E or N)
    values = _outputs(estimator, _remove(collection, explanation, masks, parts))[:, chosen]
    curves = values.reshape(len(kept), len(counts))
    return DeletionCurve(removed, curves[0], curves[1], curves[2:].mean(0), chosen)


def without(
    collection: Collection,
    vertices: Bool[Tensor, "K N"],
    edges: Bool[Tensor, "K E"],
) -> Collection:
    """Versions of one graph from which vertices and edges are removed.

    Args:
        collection: one graph, encoded by :meth:`~softperm.estimators.pignn.PiGNNEstimator.collect`.
        vertices: for each version, the vertices that are kept.
        edges: for each version, the directed edges that are kept; both directions of an edge must
            agree. An edge without one of its vertices is removed too.
    """
    (row, column), versions = collection.edge_index.long(), len(vertices)
    edges = edges & vertices[:, row] & vertices[:, column]
    place = vertices.cumsum(1) - 1  # (K, N): the new number of each vertex in its version
    which, edge = edges.nonzero(as_tuple=True)
    _, vertex = vertices.nonzero(as_tuple=True)
    edge_index = torch.stack([place[which, row[edge]], place[which, column[edge]]])
    zero = torch.zeros(1, dtype=torch.long)
    ptr = torch.cat([zero, vertices.sum(1).cumsum(0)])
    edge_ptr = torch.cat([zero, edges.sum(1).cumsum(0)])
    fields: dict[str, Any] = {
        name: value[edge if name.startswith("edge") else vertex]
        for name in ("label", "x", "edge_label", "edge_attr", "edge_weight")
        if (value := getattr(collection, name)) is not None
    }
    fields["extra"] = {
        name: value[edge if name.startswith("edge") else vertex]
        for name, value in collection.extra.items()
    }
    shift = torch.repeat_interleave(ptr[:-1], edges.sum(1))
    structure = structural_features(edge_index + shift, ptr)
    assert len(ptr) == versions + 1
    return replace(
        collection, ptr=ptr, edge_ptr=edge_ptr, edge_index=edge_index, structure=structure, **fields
    )


def _kept(order: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """For each count k, the parts that remain when the first k of an order are removed."""
    rank = np.empty(len(order), dtype=int)
    rank[order] = np.arange(len(order))
    return rank >= counts[:, None]  # (steps, parts)


def _remove(
    collection: Collection, explanation: Explanation, masks: Tensor, parts: str
) -> Collection:
    """The versions of a graph in which only the masked parts are left."""
    count, edge_index = int(collection.ptr[-1]), collection.edge_index.long()
    every = torch.ones(len(masks), count, dtype=torch.bool)
    if parts == "vertices":
        return without(collection, masks, every.new_ones(len(masks), edge_index.shape[1]))
    number = torch.zeros(count, count, dtype=torch.long)
    u, v = torch.from_numpy(explanation.edge_index)
    number[u, v] = number[v, u] = torch.arange(len(u))
    return without(collection, every, masks[:, number[edge_index[0], edge_index[1]]])


def _outputs(estimator: PiGNNEstimator, collection: Collection) -> np.ndarray:
    """Probabilities of classes or binary targets, or predicted numbers, (B, C)."""
    outputs = estimator._outputs(collection)
    if hasattr(estimator, "classes_"):
        return estimator.probabilities(outputs)
    return estimator.decode(outputs).reshape(len(outputs), -1)
