"""Mini-batches of many models as one set of arrays of fixed shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softperm.data.collection import Collection
from softperm.ops.linear import SHARE
from softperm.training import batch_layout

CUTS = 64  # places between which the cuts between rooms are chosen


@dataclass(frozen=True)
class Room:
    """Space for the mini-batches of one model: enough for the largest of them.

    Attributes:
        vertices: places for vertices; the last one always stays empty.
        edges: places for directed edges.
        graph: vertices of the largest graph.
    """

    vertices: int
    edges: int
    graph: int

    @classmethod
    def for_batches(cls, graphs: Collection, index: Int[Tensor, "... b"]) -> Room:
        """Room for each of the given mini-batches; −1 marks an empty place for a graph."""
        return cls.of(*(int(need.max()) for need in needs(graphs, index)))

    @classmethod
    def of(cls, vertices: int, edges: int, graph: int) -> Room:
        """Room for as many vertices and one that stays empty; the padding vertex fills a share."""
        return cls(-(-(vertices + 2) // SHARE) * SHARE - 1, edges, graph)

    @classmethod
    def largest(cls, rooms: Iterable[Room]) -> Room:
        """Room that holds what each of the given ones holds."""
        return cls(*map(max, zip(*map(astuple, rooms), strict=True)))


def needs(
    graphs: Collection, index: Int[Tensor, "*steps b"]
) -> tuple[Int[Tensor, "*steps"], Int[Tensor, "*steps"], Int[Tensor, "*steps"]]:
    """Vertices, directed edges and vertices of the largest graph of each mini-batch.

    −1 marks an empty place for a graph.
    """
    there = (index >= 0).to(graphs.ptr.device)
    safe = index.clamp(min=0).to(graphs.ptr.device)
    vertices, edges = (
        torch.where(there, ptr[safe + 1] - ptr[safe], 0) for ptr in (graphs.ptr, graphs.edge_ptr)
    )  # (*steps, b)
    return vertices.sum(-1), edges.sum(-1), vertices.amax(-1)


def rooms(
    vertices: Int[Tensor, " S"],
    edges: Int[Tensor, " S"],
    graph: Int[Tensor, " S"],
    levels: int,
    worth: float = 0.0,
) -> tuple[list[Room], Int[Tensor, " S"]]:
    """A few rooms, from small to large, for steps that need so many vertices and edges.

    Room for the largest mini-batch is twice what most of them need where sizes of graphs differ a
    lot.

    Args:
        vertices: what each step needs.
        edges: what each step needs.
        graph: vertices of the largest graph of each step.
        levels: rooms at most.
        worth: share of the largest room that a further room must save the average step.

    Returns:
        The rooms, and which of them each step goes to.

    >>> steps = torch.tensor([10, 100, 11, 12])
    >>> made, which = rooms(steps, 2 * steps, steps // 5, levels=2)
    >>> [room.edges for room in made], which.tolist()
    ([24, 200], [0, 1, 0, 0])
    """
    share = torch.maximum(
        vertices / vertices.max().clamp(min=1), edges / edges.max().clamp(min=1)
    )  # (S,), of the largest room
    order = share.argsort()
    which, made, begin = torch.zeros_like(order), list[Room](), 0
    for end in _cuts(share[order], levels, worth):
        room = Room.of(*(int(need[order[:end]].max()) for need in (vertices, edges, graph)))
        if not made or room != made[-1]:
            made.append(room)
        which[order[begin:end]] = len(made) - 1
        begin = end
    return made, which


def _cuts(share: Float[Tensor, " S"], levels: int, worth: float) -> list[int]:
    """Where to cut ascending shares, so that steps take least if each takes its part's largest.

    A further cut is made only if all steps together take less by ``worth``.
    """
    ends = sorted({len(share) * k // CUTS for k in range(1, CUTS + 1)} - {0})
    tops = [float(share[end - 1]) for end in ends]
    taken = [end * top for end, top in zip(ends, tops, strict=True)]  # up to each end, one room
    paths = [[end] for end in ends]
    for _ in range(levels - 1):
        better, ways = list(taken), list(paths)
        for i, (end, top) in enumerate(zip(ends, tops, strict=True)):
            for j in range(i):
                cost = taken[j] + (end - ends[j]) * top
                if cost < better[i]:
                    better[i], ways[i] = cost, [*paths[j], end]
        if taken[-1] - better[-1] <= worth * len(share):
            break
        taken, paths = better, ways
    return paths[-1]


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
