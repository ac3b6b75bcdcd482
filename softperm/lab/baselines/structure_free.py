"""Networks that never look at an edge (Errica et al., ICLR 2020): what structure has to beat."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import sum_readout, vertex_features
from softperm.ops.linear import Linear


class MolecularFingerprint(nn.Module):
    """Sums the features of a graph's vertices, then one hidden layer.

    Errica et al. use it on chemical collections with discrete labels: the sum counts the atoms of
    each kind (Ralaivola et al., 2005). Their ReLU after the output layer is left out, because it
    hides scores below 0 from the loss.

    Args:
        features: size F of a vertex's features.
        hidden: size H of the hidden layer.
        outputs: number C of outputs.
    """

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.hidden = Linear(features, hidden)
        self.output = Linear(hidden, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        x = vertex_features(batch).to(self.output.weight.dtype)
        return self.output(torch.relu(self.hidden(sum_readout(x, batch.ptr))))


class DeepMultisets(nn.Module):
    """One layer on each vertex, the sum over vertices, two layers (Zaheer et al., Deep Sets, 2017).

    Errica et al. use it on ENZYMES, which has continuous attributes, and on social collections.

    Args:
        features: size F of a vertex's features.
        hidden: size H of all hidden layers.
        outputs: number C of outputs.
    """

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.vertex = Linear(features, hidden)
        self.hidden = Linear(hidden, hidden)
        self.output = Linear(hidden, outputs)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        x = torch.relu(self.vertex(vertex_features(batch).to(self.output.weight.dtype)))  # (V, H)
        return self.output(torch.relu(self.hidden(sum_readout(x, batch.ptr))))
