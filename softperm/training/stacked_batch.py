"""Mini-batches of many models as one set of arrays of fixed shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from softperm.collection import Collection
from softperm.linear import SHARE
from softperm.training import batch_layout


@dataclass(frozen=True)
class Room:
    """Space for the mini-batch of one model: enough for the largest that will come.

    Attributes:
        vertices: places for vertices; the last one always stays empty.
        edges: places for directed edges.
    """

    vertices: int
    edges: int

    @classmethod
    def for_batches(cls, graphs: Collection, index: Int[Tensor, "... b"]) -> Room:
        """Room for each of the given mini-batches; −1 marks an empty place for a graph."""
        there = index >= 0
        safe = index.clamp(min=0).to(graphs.ptr.device)
        sizes = [
            torch.where(there.to(ptr.device), ptr[safe + 1] - ptr[safe], 0).sum(-1).max()
            for ptr in (graphs.ptr, graphs.edge_ptr)
        ]
        return cls.of(int(sizes[0]), int(sizes[1]))

    @classmethod
    def of(cls, vertices: int, edges: int) -> Room:
        """Room for as many vertices and one that stays empty; the padding vertex fills a share."""
        return cls(-(-(vertices + 2) // SHARE) * SHARE - 1, edges)

    @classmethod
    def largest(cls, rooms: Iterable[Room]) -> Room:
        """Room that holds what each of the given ones holds."""
        vertices, edges = zip(*((room.vertices, room.edges) for room in rooms), strict=True)
        return cls(max(vertices), max(edges))


def gather(
    graphs: Collection, index: Int[Tensor, "M b"], room: Room
) -> tuple[dict[str, Tensor], Bool[Tensor, "M b"]]:
    """The mini-batches of M models: what :meth:`Collection.batch` gives, with a model axis.

    Shapes depend on ``room`` alone and nothing is read on the host, so that assembling a batch can
    be captured in a CUDA graph. Places without a vertex hold zeros; places without an edge hold
    loops at empty vertices, which reach no graph.

    Args:
        graphs: the whole dataset, on the device that trains.
        index: each model's graphs; −1 for none.
        room: space for the vertices and edges of one model's graphs.

    Returns:
        Arrays by name, each with leading axis M, and which places hold a graph.
    """
    layout = batch_layout
    if index.is_cuda:
        from softperm.training import gpu_batch_layout as layout  # needs Triton
    at = layout.lay_out(graphs, index, room.vertices, room.edges)
    made = {
        "ptr": at.ptr,
        "edge_index": at.ends.movedim(0, 1),  # (M, 2, E)
        "structure": layout.rows(graphs.structure, at.vertex),
    }
    label, edge_label = graphs.label, graphs.edge_label
    if graphs.codes:
        for name, codes, item in (
            ("label", label, at.vertex),
            ("edge_label", edge_label, at.edge),
        ):
            if codes is not None:
                made[name] = layout.rows(codes, item, -1).long()
        label = edge_label = None
    x = layout.attributes(label, graphs.label_sizes, graphs.x, at.vertex)
    edge_attr = layout.attributes(edge_label, graphs.edge_label_sizes, graphs.edge_attr, at.edge)
    if x is not None:
        made["x"] = x
    if edge_attr is not None:
        made["edge_attr"] = edge_attr
    if graphs.edge_weight is not None:
        made["edge_weight"] = layout.rows(graphs.edge_weight, at.edge)
    return made, index >= 0
