"""DTNN (Schütt et al., "Quantum-Chemical Insights from Deep Tensor Neural Networks", 2017)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import MemoryLimited, sum_readout, vertex_features
from softperm.lab.baselines.pairs import (
    REMEDY_PAIRS,
    all_pairs,
    bond_distance,
    count_pairs,
    euclidean_distance,
)

FURTHEST = 18.0
"""Centre of the last Gaussian."""


class DTNN(MemoryLimited):
    r"""Each atom is updated by all others, weighted by functions of their distances.

    .. math:: c_i \leftarrow c_i + \sum_{j \ne i} \tanh W \big((W_c c_j + b_c)
        \circ (W_d \hat d_{ij} + b_d)\big), \qquad y = \sum_i \text{MLP}(c_i)

    :math:`\hat d` spreads a distance over Gaussians 0.2 apart and 0.2 wide. The paper's are of
    distances in space, which batches with positions have. A graph alone has none: there the
    distance is the number of bonds between two atoms, and atoms of
    different parts send each other nothing. Atoms begin with a linear embedding of their
    attributes; sizes follow MoleculeNet (Wu et al., 2018), whose numbers the paper quotes.

    Args:
        features: size F of a vertex's features.
        outputs: number C of outputs.
        positions: whether batches carry positions.
        hidden: size H of an atom's vector.
        factors: size of the product of vector and distance.
        rounds: number of rounds.
    """

    title = "DTNN"
    remedy = REMEDY_PAIRS
    centres: Tensor

    def __init__(
        self,
        features: int,
        outputs: int,
        *,
        positions: bool = False,
        hidden: int = 30,
        factors: int = 60,
        rounds: int = 2,
    ) -> None:
        super().__init__()
        self.distance = euclidean_distance if positions else bond_distance
        self.factors = factors
        self.register_buffer("centres", torch.arange(0.0, FURTHEST + 0.1, 0.2))
        self.embed = nn.Linear(features, hidden, bias=False)
        self.vector = nn.ModuleList(nn.Linear(hidden, factors) for _ in range(rounds))
        self.space = nn.ModuleList(nn.Linear(len(self.centres), factors) for _ in range(rounds))
        self.product = nn.ModuleList(nn.Linear(factors, hidden, bias=False) for _ in range(rounds))
        self.atom = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs))

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        dtype = self.embed.weight.dtype
        self.check_memory(batch)
        pairs = all_pairs(batch)
        d = self.distance(batch, pairs).to(dtype)  # (K,)
        near = d.isfinite()
        first, second = pairs.index[:, near]
        spread = torch.exp(-0.5 * ((d[near, None] - self.centres) / 0.2).square())  # (K, G)
        c = self.embed(vertex_features(batch).to(dtype))  # (V, H)
        for vector, space, product in zip(self.vector, self.space, self.product, strict=True):
            message = torch.tanh(product(vector(c)[second] * space(spread)))  # (K, H)
            c = c.index_add(0, first, message)
        return sum_readout(self.atom(c), batch.ptr)

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that a training step takes, by the measured number of vectors of each pair."""
        each = 3 * (len(self.centres) + 4 * self.factors)
        return count_pairs(batch) * each * self.embed.weight.element_size()
