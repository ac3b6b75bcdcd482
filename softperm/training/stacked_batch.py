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

HARDLY = 0.85  # of the next room: one that is not smaller by more is not worth having


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
        vertices, edges = needs(graphs, index)
        return cls.of(int(vertices.max()), int(edges.max()))

    @classmethod
    def of(cls, vertices: int, edges: int) -> Room:
        """Room for as many vertices and one that stays empty; the padding vertex fills a share."""
        return cls(-(-(vertices + 2) // SHARE) * SHARE - 1, edges)

    @classmethod
    def largest(cls, rooms: Iterable[Room]) -> Room:
        """Room that holds what each of the given ones holds."""
        vertices, edges = zip(*((room.vertices, room.edges) for room in rooms), strict=True)
        return cls(max(vertices), max(edges))


def needs(
    graphs: Collection, index: Int[Tensor, "*steps b"]
) -> tuple[Int[Tensor, "*steps"], Int[Tensor, "*steps"]]:
    """Vertices and directed edges of each mini-batch; −1 marks an empty place for a graph."""
    there = (index >= 0).to(graphs.ptr.device)
    safe = index.clamp(min=0).to(graphs.ptr.device)
    vertices, edges = (
        torch.where(there, ptr[safe + 1] - ptr[safe], 0).sum(-1)
        for ptr in (graphs.ptr, graphs.edge_ptr)
    )
    return vertices, edges


def rooms(
    vertices: Int[Tensor, " S"], edges: Int[Tensor, " S"], levels: int
) -> tuple[list[Room], Int[Tensor, " S"]]:
    """A few rooms, from small to large, for steps that need so many vertices and edges.

    Room for the largest mini-batch is twice what most of them need where sizes of graphs differ a
    lot. A room is left out if the next one above it is hardly larger.

    Args:
        vertices: what each step needs.
        edges: what each step needs.
        levels: rooms at most.

    Returns:
        The rooms, and which of them each step goes to.

    >>> steps = torch.tensor([10, 11, 12, 100])
    >>> made, which = rooms(steps, 2 * steps, levels=2)
    >>> [room.edges for room in made], which.tolist()
    ([22, 200], [0, 0, 1, 1])
    """
    share = torch.maximum(
        vertices / vertices.max().clamp(min=1), edges / edges.max().clamp(min=1)
    )  # (S,), of the largest room
    order = share.argsort()
    ends = [len(order) * k // levels for k in range(levels, 0, -1)]  # steps up to each level
    kept: list[int] = []
    for end in ends:
        if end and (not kept or share[order[end - 1]] < HARDLY * share[order[kept[-1] - 1]]):
            kept.append(end)
    made, which, begin = list[Room](), torch.zeros_like(order), 0
    for level, end in enumerate(reversed(kept)):
        up_to = order[:end]
        made.append(Room.of(int(vertices[up_to].max()), int(edges[up_to].max())))
        which[order[begin:end]] = level
        begin = end
    return made, which


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
