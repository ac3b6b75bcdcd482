"""What every system reads of a batch, written once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.data.collection import Collection, GraphBatch


def vertex_features(batch: GraphBatch) -> Float[Tensor, "V F"]:
    """Attributes where the graphs have them (one-hot labels included), else the degree.

    So do Errica et al.: labels and attributes on chemical collections, degrees on social ones.

    Raises:
        ValueError: labels came as codes, which would otherwise be passed over in silence.
    """
    if getattr(batch, "label", None) is not None:
        raise ValueError(
            "the systems read labels as one-hot vectors, but the batch carries codes in `label`: "
            "take batches of a Collection with codes=False"
        )
    x = getattr(batch, "x", None)
    return batch.structure[:, :1] if x is None or x.shape[1] == 0 else x


def edge_features(batch: GraphBatch) -> Float[Tensor, "E Fe"]:
    """Attributes of the edges where the graphs have them, else the constant 1."""
    given = getattr(batch, "edge_attr", None)
    if given is None or given.shape[1] == 0:
        return batch.structure.new_ones(batch.edge_index.shape[1], 1)
    return given


@dataclass(frozen=True)
class PositionedCollection(Collection):
    """A collection whose batches carry ``pos``: where each vertex is, in Å.

    DTNN, MPNN and PPGN read distances where a batch has positions.

    Args:
        position: coordinates of all vertices, in the collection's order.
    """

    position: Float[Tensor, "V 3"] | None = None

    def batch(self, index: Int[Tensor, " b"], totals: tuple[int, int] | None = None) -> GraphBatch:
        """The chosen graphs as :meth:`Collection.batch` gives them, with their positions."""
        made = super().batch(index, totals)
        assert self.position is not None
        start = self.ptr[index.to(self.ptr.device)] - made.ptr[:-1]  # (b,)
        vertices = torch.arange(made.num_nodes, device=made.ptr.device) + start[made.batch]
        made.pos = self.position[vertices]
        return made


def with_positions(collection: Collection, position: Float[Tensor, "V 3"]) -> PositionedCollection:
    """The collection with the positions of its vertices."""
    return PositionedCollection(**vars(collection), position=position)
