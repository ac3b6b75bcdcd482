"""The frame of GraphSAGE and GCN: what all layers found, the largest over vertices, two layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.aggregate import max_readout
from softperm.lab.baselines.inputs import vertex_features
from softperm.ops.linear import Linear


class Layered(nn.Module):
    """Rounds of message passing side by side, max readout, two fully-connected layers.

    This is the frame of Errica et al. for GraphSAGE; GCN stands in the same one, so that only
    the aggregation differs.

    Args:
        layers: each turns vectors (V, F) and edges into ReLU'd vectors (V, H).
        hidden: size H.
        outputs: number C of outputs.
    """

    def __init__(self, layers: Sequence[nn.Module], hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.hidden = Linear(len(layers) * hidden, hidden)
        self.output = Linear(hidden, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        x = vertex_features(batch).to(self.output.weight.dtype)
        found = []
        for layer in self.layers:
            x = layer(x, batch.edge_index)  # (V, H)
            found.append(x)
        graph = max_readout(torch.cat(found, dim=1), batch.ptr)  # (B, L · H)
        return self.output(torch.relu(self.hidden(graph)))
