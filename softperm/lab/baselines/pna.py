"""PNA (Corso et al., "Principal Neighbourhood Aggregation for Graph Nets", NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch_geometric.nn import PNAConv

from softperm.data.collection import GraphBatch
from softperm.lab.baselines.layers import edge_features
from softperm.lab.baselines.molecular import Molecular, narrowing_head

AGGREGATORS = ["mean", "min", "max", "std"]
SCALERS = ["identity", "amplification", "attenuation"]


class PNARound(nn.Module):
    r"""One round: four aggregators, each scaled in three ways by the degree.

    .. math:: \bigoplus = \big[1, \tfrac{\log(d + 1)}{\delta}, \tfrac{\delta}{\log(d + 1)}\big]
        \otimes [\mu, \min, \max, \sigma]

    δ is the mean of log(d + 1) over the training vertices. Messages are linear in both ends and
    the edge's features; towers share the work, and the paper's number of them varies.

    Args:
        hidden: size H of the vectors.
        edge_size: size of an edge's features.
        degree_counts: number of training vertices with degree 0, 1, 2, …
        towers: groups of channels, each with its own messages; a divisor of H.
    """

    def __init__(
        self, hidden: int, edge_size: int, degree_counts: Sequence[int], towers: int = 4
    ) -> None:
        super().__init__()
        counts = torch.tensor(degree_counts if any(degree_counts[1:]) else (0, 1))
        self.convolution = PNAConv(
            hidden,
            hidden,
            AGGREGATORS,
            SCALERS,
            counts,
            edge_dim=hidden,
            towers=towers,
            divide_input=True,
        )
        self.edge = nn.Linear(edge_size, hidden, bias=False)

    def forward(self, x: Float[Tensor, "V H"], batch: GraphBatch) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        e = self.edge(edge_features(batch).to(x.dtype))  # (E, H)
        return self.convolution(x, batch.edge_index.flip(0), e)  # PyG: first row sends


def pna(
    features: int,
    edge_size: int,
    outputs: int,
    degree_counts: Sequence[int],
    *,
    hidden: int = 80,
    layers: int = 4,
    dropout: float = 0.3,
) -> Molecular:
    """The frame for molecules with rounds of :class:`PNARound`."""
    rounds = [PNARound(hidden, edge_size, degree_counts) for _ in range(layers)]
    head = narrowing_head(hidden, outputs)
    return Molecular(features, hidden, rounds, head, dropout=dropout, residual=True)
