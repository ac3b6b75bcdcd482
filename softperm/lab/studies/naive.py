"""The paper's way to compute the same: every graph padded, log-sum-exp recorded for autograd."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import Collection
from softperm.nn.model import PiGNN
from softperm.nn.permutation import MixedPermutation, SoftPermutation


class PaddedPiGNN(nn.Module):
    """A π-GNN on graphs padded to its capacity; shares the parameters of the one it is made from.

    Its outputs are those of the ragged network with all iterations, at the cost that the paper
    pays: memory and time follow the largest graph, not the real vertices.

    Args:
        model: with linear encoders, a capacity, and no dustbins.
    """

    def __init__(self, model: PiGNN) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        structure: Float[Tensor, "B N S"],
        adjacency: Float[Tensor, "B N N"],
        x: Float[Tensor, "B N F"] | None = None,
    ) -> Float[Tensor, "B C"]:
        """The outputs of each padded graph."""
        permutation = self.model.permutation
        if isinstance(permutation, MixedPermutation):
            share = torch.sigmoid(permutation.alpha)
            d = share * _plan(permutation.adjacency, structure)  # (B, N, P)
            d = d + (1 - share) * _plan(permutation.attributes, x)
        else:
            d = _plan(permutation, structure)  # (B, N, P)
        aligned = [d.mT @ adjacency @ d]  # (B, P, P)
        if x is not None:
            aligned.append(d.mT @ x)  # (B, P, F)
        return self.model.head(aligned)


def pad(
    graphs: Collection, index: Int[Tensor, " b"], capacity: int
) -> tuple[Float[Tensor, "b N S"], Float[Tensor, "b N N"], Float[Tensor, "b N F"] | None]:
    """Structural features, adjacency and attributes of the chosen graphs, padded with zeros."""
    batch = graphs.batch(index)
    place = torch.arange(batch.num_nodes, device=index.device) - batch.ptr[batch.batch]  # (V,)
    structure = batch.structure.new_zeros(len(index), capacity, batch.structure.shape[1])
    structure[batch.batch, place] = batch.structure
    adjacency = batch.structure.new_zeros(len(index), capacity, capacity)
    row, col = batch.edge_index
    adjacency[batch.batch[row], place[row], place[col]] = 1.0
    if "x" not in batch:
        return structure, adjacency, None
    x = batch.x.new_zeros(len(index), capacity, batch.x.shape[1])
    x[batch.batch, place] = batch.x
    return structure, adjacency, x


def _plan(permutation: nn.Module, x: Float[Tensor, "B N F"] | None) -> Float[Tensor, "B N P"]:
    """Sinkhorn's iterations in log space, as the paper writes them."""
    assert isinstance(permutation, SoftPermutation)
    assert x is not None
    no_edges = torch.empty(2, 0, dtype=torch.long, device=x.device)
    whole = torch.tensor([0, x.shape[0] * x.shape[1]], device=x.device)
    flat = permutation.encoder(x.flatten(0, 1), no_edges, whole)  # (B · N, H)
    scores = permutation.compare(flat, permutation.latent).unflatten(0, x.shape[:2])  # (B, N, P)
    n, p = scores.shape[1:]
    column_mass = math.log(n / p)
    iterations = getattr(permutation.normaliser, "iterations", 100)
    rows = -scores.logsumexp(2, keepdim=True)  # (B, N, 1)
    for _ in range(iterations):
        columns = column_mass - (scores + rows).logsumexp(1, keepdim=True)  # (B, 1, P)
        rows = -(scores + columns).logsumexp(2, keepdim=True)
    return (scores + rows + columns).exp()
