"""Networks that never look at an edge (Errica et al., ICLR 2020): what structure has to beat."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import sum_readout, vertex_features
from softperm.ops.linear import Linear


class StructureFree(nn.Module):
    """Sums vectors of a graph's vertices, then one hidden layer.

    Where vertices have discrete labels alone, the sum counts the atoms of each kind: the molecular
    fingerprint of Ralaivola et al. (2005). Elsewhere (ENZYMES with its continuous attributes,
    social datasets) a layer on each vertex precedes the sum: Deep Multisets (Zaheer et al., 2017).
    The ReLU of Errica et al. after the output layer of the fingerprint is left out, because it
    hides scores below 0 from the loss.

    Args:
        features: size F of a vertex's features.
        outputs: number C of outputs.
        labels_alone: whether all features are one-hot labels.
        hidden: size H of all hidden layers.
    """

    def __init__(
        self, features: int, outputs: int, labels_alone: bool, *, hidden: int = 32
    ) -> None:
        super().__init__()
        self.vertex = None if labels_alone else Linear(features, hidden)
        self.hidden = Linear(features if labels_alone else hidden, hidden)
        self.output = Linear(hidden, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        x = vertex_features(batch).to(self.output.weight.dtype)  # (V, F)
        if self.vertex is not None:
            x = torch.relu(self.vertex(x))  # (V, H)
        return self.output(torch.relu(self.hidden(sum_readout(x, batch.ptr))))
