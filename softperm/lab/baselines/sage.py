"""GraphSAGE (Hamilton et al., "Inductive Representation Learning on Large Graphs", 2017)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.lab.baselines.layers import (
    Layered,
    Neighbours,
    max_neighbours,
    mean_neighbours,
    sum_neighbours,
)
from softperm.ops.linear import Linear


class SAGELayer(nn.Module):
    r"""One round: :math:`x_i' = \text{ReLU}(W_1 x_i + W_2 \, \text{agg}_{j \in N(i)} x_j + b)`.

    Args:
        features: size F of the input.
        hidden: size H of the output.
        aggregate: mean or sum over neighbours.
    """

    def __init__(self, features: int, hidden: int, aggregate: Neighbours = mean_neighbours) -> None:
        super().__init__()
        self.aggregate = aggregate
        self.neighbours = Linear(features, hidden)
        self.own = Linear(features, hidden, bias=False)

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]
    ) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        return torch.relu(self.own(x) + self.neighbours(self.aggregate(x, edge_index)))


class SAGESumLayer(SAGELayer):
    """One round with the sum over neighbours."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(features, hidden, sum_neighbours)


class SAGEPoolLayer(SAGELayer):
    r"""One round with the paper's pooling: the maximum over :math:`\text{ReLU}(W_p x_j + b_p)`.

    Args:
        features: size F of the input.
        hidden: size H of the output.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(features, hidden, max_neighbours)
        self.project = Linear(features, features)

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]
    ) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        pooled = self.aggregate(torch.relu(self.project(x)), edge_index)  # (V, F)
        return torch.relu(self.own(x) + self.neighbours(pooled))


class GraphSAGE(Layered):
    """Each vertex joins its own vector with an aggregate of its neighbours'.

    The paper samples neighbours of very large graphs; here all are taken, as Errica et al. do.
    Left open, or settled as they do: no l2 normalisation of vectors; all layers' vectors side by
    side, max readout, two fully-connected layers. The aggregations of their grid are the mean, the
    sum (:class:`SAGESumLayer`) and the paper's pooling (:class:`SAGEPoolLayer`).

    Args:
        features: size F of a vertex's features.
        outputs: number C of outputs.
        hidden: size H of the hidden vectors.
        layers: rounds of message passing.
        aggregation: ``mean``, ``add`` or ``max`` over neighbours.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        *,
        hidden: int = 32,
        layers: int = 3,
        aggregation: str = "mean",
    ) -> None:
        layer = {"mean": SAGELayer, "add": SAGESumLayer, "max": SAGEPoolLayer}[aggregation]
        sizes = [features, *[hidden] * (layers - 1)]
        super().__init__([layer(size, hidden) for size in sizes], hidden, outputs)
