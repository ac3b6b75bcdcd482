"""Message passing and a sum over vertices: the GCN and GIN readouts of the distance study."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.nn.permutation import structure
from softperm.ops.ragged import pool


class ReadoutGNN(nn.Module):
    """Encodes vertices, sums each graph's vertices, predicts from the sum.

    The sum is the graph's vector, as in Xu et al., "How Powerful are Graph Neural Networks?" (GIN);
    with the encoder of Kipf and Welling it is the GCN of the paper's distance study.

    Args:
        encoder: turns structural features (V, S) into hidden vectors (V, H).
        hidden: size H of the hidden vectors.
        outputs: number C of outputs.
    """

    def __init__(self, encoder: nn.Module, hidden: int, outputs: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        return self.head(self.transform(batch))

    def transform(self, batch: GraphBatch) -> Float[Tensor, "B H"]:
        """The readout of each graph: the sum of its vertices' hidden vectors."""
        batch = prepare(batch)
        x = structure(batch).to(next(self.parameters()).dtype)
        hidden = self.encoder(x, batch.edge_index, batch.ptr)  # (V, H)
        return pool(torch.ones_like(hidden[:, :1]), hidden, batch.ptr)[:, 0]  # (B, H)
