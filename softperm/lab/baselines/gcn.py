"""GCN (Kipf & Welling, "Semi-Supervised Classification with Graph Convolutional Networks")."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.lab.baselines.layers import Layered, degree, sum_neighbours
from softperm.ops.linear import Linear


class GCNLayer(nn.Module):
    r"""One round of the paper (ICLR 2017).

    .. math:: x_i' = \text{ReLU}\big(b + \sum_j W x_j / \sqrt{\hat d_i \hat d_j}\big)

    Neighbours include the vertex itself, and :math:`\hat d` counts it.

    Args:
        features: size F of the input.
        hidden: size H of the output.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.linear = Linear(features, hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]
    ) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        norm = torch.rsqrt(degree(x, edge_index) + 1)  # (V, 1)
        message = norm * self.linear(x)  # (V, H)
        return torch.relu(norm * (sum_neighbours(message, edge_index) + message) + self.bias)


class GCN(Layered):
    """Graph convolutions for whole graphs.

    The paper classifies vertices and leaves whole graphs open: the frame is that of Errica et al.
    for GraphSAGE (all layers' vectors side by side, max readout, two fully-connected layers).

    Args:
        features: size F of a vertex's features.
        outputs: number C of outputs.
        hidden: size H of the hidden vectors.
        layers: rounds of message passing.
    """

    def __init__(self, features: int, outputs: int, hidden: int = 32, layers: int = 3) -> None:
        sizes = [features, *[hidden] * (layers - 1)]
        super().__init__([GCNLayer(size, hidden) for size in sizes], hidden, outputs)
