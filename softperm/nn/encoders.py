"""Vertex encoders: features of each vertex in, hidden vectors out.

The last row given to an encoder is the padding vertex: isolated, all features zero. It is encoded
like any other vertex, but it and any vertex after ``ptr[-1]`` stay out of normalisation statistics.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.ops.linear import VertexLinear, vertex_linear
from softperm.ops.normalisation import VertexBatchNorm
from softperm.ops.ragged import propagate


class LogScale(nn.Module):
    """log(1 + x) of the leading features: brings counts that span orders of magnitude together.

    Args:
        count: how many features are scaled; those behind them, a vertex's attributes, pass.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Float[Tensor, "V F"]) -> Float[Tensor, "V F"]:
        """The leading features on a logarithmic scale; 0 stays 0."""
        return torch.cat([torch.log1p(x[:, : self.count]), x[:, self.count :]], dim=1)


class Standardise(nn.Module):
    """(x − mean) / std of the leading features, with the statistics of the training vertices.

    Args:
        mean: mean of each leading feature; features behind them, a vertex's attributes, pass.
        std: standard deviation of each; a feature that never varies is only centred.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Float[Tensor, " S"], std: Float[Tensor, " S"]) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", torch.where(std > 0, std, 1.0))

    def forward(self, x: Float[Tensor, "V F"]) -> Float[Tensor, "V F"]:
        """The leading features centred and scaled."""
        count = len(self.mean)
        return torch.cat([(x[:, :count] - self.mean) / self.std, x[:, count:]], dim=1)


class LinearEncoder(nn.Module):
    r"""The paper's fully-connected layer :math:`\tilde Q = g(Q H + b)`, with g = ReLU.

    Args:
        features: size F of a vertex's features.
        hidden: size H of its hidden vector.
        scale: applied to the features first; none by default.
    """

    def __init__(self, features: int, hidden: int, scale: nn.Module | None = None) -> None:
        super().__init__()
        self.scale = scale or nn.Identity()
        self.linear = VertexLinear(features, hidden)

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
    ) -> Float[Tensor, "V H"]:
        """Encodes each vertex by itself; edges are not used."""
        return torch.relu(self.linear(self.scale(x)))


class GCNEncoder(nn.Module):
    r"""Graph convolutions (Kipf & Welling).

    .. math:: X' = g(\hat D^{-1/2} (A + I) \hat D^{-1/2} X W)

    Args:
        features: size F of a vertex's features.
        hidden: size H of its hidden vector.
        layers: how many rounds of message passing.
        scale: applied to the features first; none by default.
    """

    def __init__(
        self, features: int, hidden: int, layers: int = 3, scale: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.scale = scale or nn.Identity()
        sizes = [features, *[hidden] * layers]
        self.linears = nn.ModuleList(VertexLinear(a, b) for a, b in pairwise(sizes))

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
    ) -> Float[Tensor, "V H"]:
        """Encodes each vertex with its neighbourhood; edges must be canonical."""
        x = self.scale(x)
        degree = propagate(torch.ones_like(x[:, :1]), edge_index, canonical=True)  # (V, 1)
        norm = torch.rsqrt(degree + 1)
        for layer in self.linears:
            assert isinstance(layer, VertexLinear)
            message = norm * vertex_linear(x, layer.weight)  # (V, H)
            total = propagate(message, edge_index, canonical=True) + message
            x = torch.relu(norm * total + layer.bias)
        return x


class GINEncoder(nn.Module):
    r"""Graph isomorphism network (Xu et al.) with ε = 0.

    .. math:: x_i' = \text{MLP}(x_i + \sum_{j \in N(i)} x_j)

    Each MLP is linear, batch normalisation, ReLU, linear, ReLU, as in the GIN paper. The first has
    no bias: the normalisation would take it away, and Adam would follow the rounding of a gradient
    that is zero.

    Args:
        features: size F of a vertex's features.
        hidden: size H of its hidden vector.
        layers: how many rounds of message passing.
        scale: applied to the features first; none by default.
    """

    def __init__(
        self, features: int, hidden: int, layers: int = 3, scale: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.scale = scale or nn.Identity()
        sizes = [features, *[hidden] * layers]
        self.inner = nn.ModuleList(VertexLinear(a, b, bias=False) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(VertexBatchNorm(hidden, relu=True) for _ in range(layers))
        self.outer = nn.ModuleList(VertexLinear(hidden, hidden) for _ in range(layers))

    def forward(
        self, x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
    ) -> Float[Tensor, "V H"]:
        """Encodes each vertex with its neighbourhood; edges must be canonical."""
        x = self.scale(x)
        for inner, norm, outer in zip(self.inner, self.norms, self.outer, strict=True):
            total = x + propagate(x, edge_index, canonical=True)
            hidden = norm(inner(total), ptr[-1])  # (V, H)
            x = torch.relu(outer(hidden))
        return x
