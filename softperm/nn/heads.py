"""Heads: aligned matrices in, outputs out.

Because every graph is aligned to the same latent vertices, position has a meaning: matrices may
be flattened into vectors or read like images.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softperm.nn.encoders import dropout
from softperm.ops.layers import Linear


class MLPHead(nn.Module):
    """Normalised vectors, one two-layer MLP each, joined by a final two-layer MLP (Section 5.2).

    Args:
        sizes: length of each aligned vector.
        outputs: number C of outputs.
        hidden: layers of each vector's MLP; the paper's are 256 and 128.
        final: hidden size of the final MLP.
        normalise: whether LayerNorm comes first, as in the paper. It removes the size of a graph,
            which is the sum of a vector's entries.
        drop: share of aligned entries and hidden units dropped in training.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        outputs: int,
        hidden: Sequence[int] = (256, 128),
        final: int = 64,
        normalise: bool = True,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.branches = nn.ModuleList(_mlp([size, *hidden], drop, normalise) for size in sizes)
        joined = len(sizes) * hidden[-1]
        self.final = nn.Sequential(_mlp([joined, final], drop), Linear(final, outputs))

    def forward(self, views: Sequence[Float[Tensor, "B ..."]]) -> Float[Tensor, "B C"]:
        """Outputs from the aligned matrices of each graph."""
        pairs = zip(self.branches, views, strict=True)
        vectors = [branch(view.flatten(1)) for branch, view in pairs]  # each (B, 128)
        return self.final(torch.cat(vectors, dim=1))


class ConvHead(nn.Module):
    """Filters over runs of consecutive latent vertices, as over an image (Section 4.1).

    A filter covers ``height`` latent vertices with all their entries, giving a feature map of
    length P − height + 1 for each; the largest value of each map goes on to fully-connected layers.

    Args:
        channels: entries of one latent vertex in each aligned matrix: P, F, or P · d_e.
        latent_vertices: number P of latent vertices.
        outputs: number C of outputs.
        filters: number of filters for each matrix.
        height: latent vertices that a filter covers; at most P.
        final: hidden size of the fully-connected layers.
        normalise: whether LayerNorm comes first; see :class:`MLPHead`.
        drop: share of aligned entries and hidden units dropped in training.
    """

    def __init__(
        self,
        channels: Sequence[int],
        latent_vertices: int,
        outputs: int,
        filters: int = 128,
        height: int = 3,
        final: int = 64,
        normalise: bool = True,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        height = min(height, latent_vertices)
        self.norms = nn.ModuleList(
            nn.LayerNorm([latent_vertices, c]) if normalise else nn.Identity() for c in channels
        )
        self.convolutions = nn.ModuleList(nn.Conv1d(c, filters, height) for c in channels)
        joined = len(channels) * filters
        self.final = nn.Sequential(_mlp([joined, final], drop), Linear(final, outputs))

    def forward(self, views: Sequence[Float[Tensor, "B P ..."]]) -> Float[Tensor, "B C"]:
        """Outputs from the aligned matrices of each graph."""
        pooled = []
        for norm, convolution, view in zip(self.norms, self.convolutions, views, strict=True):
            image = norm(view.flatten(2)).mT  # (B, channels, P)
            pooled.append(torch.relu(convolution(image)).amax(dim=2))  # (B, filters)
        return self.final(torch.cat(pooled, dim=1))


def _mlp(sizes: Sequence[int], drop: float, normalise: bool = False) -> nn.Sequential:
    """Linear layers, each with dropout before and ReLU behind it, and LayerNorm first if wanted."""
    layers: list[nn.Module] = [nn.LayerNorm(sizes[0])] if normalise else []
    for a, b in pairwise(sizes):
        layers += [dropout(drop)] if drop else []
        layers += [Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)
