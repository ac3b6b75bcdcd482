"""Learnt vectors for discrete labels, as in OGB's atom and bond encoders.

In place of one-hot vectors a batch has the codes of its labels, and each label column has a table
of vectors; the vectors of a vertex or an edge are summed over the columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import GraphBatch
from softperm.nn.permutation import align_edge_attributes


class LabelEmbedding(nn.Module):
    r"""Sum of one learnt vector per label column: :math:`x_i = \sum_c T_c[\text{label}_{ic}]`.

    Code −1, an unknown label, adds nothing.
    """

    first: Tensor

    def __init__(self, sizes: Sequence[int], size: int) -> None:
        super().__init__()
        tables = [nn.init.xavier_uniform_(torch.empty(s, size)) for s in sizes]  # as OGB does
        self.table = nn.Parameter(torch.cat(tables))  # (K, size): all columns, one below the other
        first = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.register_buffer("first", first, persistent=False)

    def forward(self, codes: Int[Tensor, "V L"]) -> Float[Tensor, "V F"]:
        """The vector of each row of codes."""
        return self.vectors(codes).sum(1)

    def vectors(self, codes: Int[Tensor, "V L"]) -> Float[Tensor, "V L F"]:
        """The vector of each code, one for each column; zero for an unknown label."""
        known = codes >= 0
        rows = torch.where(known, codes + self.first, 0)
        return nn.functional.embedding(rows, self.table) * known[..., None]

    def one_hot(self, codes: Int[Tensor, "V L"]) -> Float[Tensor, "V K"]:
        """The rows such that ``one_hot(codes) @ table`` is ``forward(codes)``."""
        known = codes >= 0
        rows = torch.where(known, codes + self.first, -1)  # (V, L)
        place = torch.arange(len(self.table), device=codes.device)
        return (rows[..., None] == place).sum(1).to(self.table.dtype)


class EmbedVertices(nn.Module):
    """A batch whose ``x`` begins with the vectors of its vertex labels."""

    def __init__(self, embedding: LabelEmbedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, batch: GraphBatch) -> GraphBatch:
        """A shallow copy of the batch, with vectors in place of codes.

        Raises:
            ValueError: the batch carries no codes.
        """
        label = getattr(batch, "label", None)
        if not isinstance(label, Tensor):
            raise ValueError(
                "this network embeds vertex labels, but the batch has no codes in label: make it "
                "from a Collection with codes=True"
            )
        x = self.embedding(label)  # (V, F)
        if getattr(batch, "x", None) is not None:
            x = torch.cat([x, batch.x.to(x.dtype)], dim=1)
        copy = batch.__copy__()
        copy.x = x
        return copy


class EmbeddedEdges(nn.Module):
    r"""Aligned edge attributes of embedded labels: :math:`D^\top A_c D` for each channel c.

    Alignment is linear, so the aligned vectors are the aligned one-hot labels times the table:
    the number of channels that are aligned is that of the labels, whatever the vectors' length.
    """

    def __init__(self, embedding: LabelEmbedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, d: Float[Tensor, "V P"], batch: GraphBatch) -> Float[Tensor, "B P P Fe"]:
        """The channels of the labels, then those of continuous attributes if there are any.

        Raises:
            ValueError: the batch carries no codes.
        """
        label = getattr(batch, "edge_label", None)
        if not isinstance(label, Tensor):
            raise ValueError(
                "this network embeds edge labels, but the batch has no codes in edge_label: make "
                "it from a Collection with codes=True"
            )
        weights = self.embedding.one_hot(label)  # (E, K)
        more = getattr(batch, "edge_attr", None)
        if more is not None:
            weights = torch.cat([weights, more.to(weights.dtype)], dim=1)
        aligned = align_edge_attributes(d, batch.edge_index, weights, batch.ptr, canonical=True)
        table = self.embedding.table.to(d.dtype)  # (K, Fe)
        count = len(table)
        return torch.cat([aligned[..., :count] @ table, aligned[..., count:]], dim=-1)
