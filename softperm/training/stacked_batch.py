"""Mini-batches of many models as one set of arrays of fixed shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from softperm.collection import Collection
from softperm.linear import SHARE


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
    there = index >= 0
    safe = index.clamp(min=0)
    ptr, vertex, _, real = _lay_out(graphs.ptr, safe, there, room.vertices)
    _, edge, edge_owner, real_edge = _lay_out(graphs.edge_ptr, safe, there, room.edges)
    shift = ptr.gather(1, edge_owner)  # (M, E): where the edge's graph begins
    ends = graphs.edge_index[:, edge].long() + shift  # (2, M, E)
    ends = torch.where(real_edge, ends, _loops(ptr[:, -1:], real_edge, room)).movedim(0, 1)
    made = {
        "ptr": ptr,
        "edge_index": ends.contiguous(),  # (M, 2, E)
        "structure": _rows(graphs.structure, vertex, real),
    }
    label, edge_label = graphs.label, graphs.edge_label
    if graphs.codes:
        for name, codes, item, there_is in (
            ("label", label, vertex, real),
            ("edge_label", edge_label, edge, real_edge),
        ):
            if codes is not None:
                rows = _rows(codes, item, there_is).long()
                made[name] = torch.where(there_is[..., None], rows, -1)
        label = edge_label = None
    x = _attributes(label, graphs.label_sizes, graphs.x, vertex, real)
    edge_attr = _attributes(edge_label, graphs.edge_label_sizes, graphs.edge_attr, edge, real_edge)
    if x is not None:
        made["x"] = x
    if edge_attr is not None:
        made["edge_attr"] = edge_attr
    if graphs.edge_weight is not None:
        made["edge_weight"] = _rows(graphs.edge_weight, edge, real_edge)
    return made, there


def _lay_out(
    ptr: Int[Tensor, " B1"], index: Int[Tensor, "M b"], there: Bool[Tensor, "M b"], room: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where each graph begins (M, b + 1); what each place holds, of which graph, and whether."""
    sizes = torch.where(there, ptr[index + 1] - ptr[index], 0)  # (M, b)
    starts = pad(sizes.cumsum(1), (1, 0))  # (M, b + 1)
    place = torch.arange(room, device=ptr.device).expand(len(index), room).contiguous()  # (M, room)
    owner = torch.searchsorted(starts[:, 1:].contiguous(), place, right=True)
    real = owner < index.shape[1]
    owner = owner.clamp(max=index.shape[1] - 1)
    item = ptr[index].gather(1, owner) + place - starts.gather(1, owner)
    return starts, torch.where(real, item, 0), owner, real


def _loops(
    used: Int[Tensor, "M 1"], real_edge: Bool[Tensor, "M E"], room: Room
) -> Int[Tensor, "M E"]:
    """Vertices for the edges that are not there: the empty ones in turn, so that none is a hub."""
    before = real_edge.sum(1, keepdim=True)  # (M, 1)
    k = torch.arange(room.edges, device=used.device) - before  # (M, E)
    share = k * (room.vertices - used) // (room.edges - before).clamp(min=1)
    return used + share.clamp(min=0)


def _rows(table: Tensor, item: Int[Tensor, "M K"], real: Bool[Tensor, "M K"]) -> Tensor:
    """The table's rows at ``item``, zeros where nothing is."""
    if len(table) == 0:
        return table.new_zeros(*item.shape, *table.shape[1:])
    rows = table[item]
    return torch.where(real.view(*real.shape, *[1] * (rows.ndim - 2)), rows, 0)


def _attributes(
    label: Tensor | None,
    sizes: tuple[int, ...],
    x: Tensor | None,
    item: Int[Tensor, "M K"],
    real: Bool[Tensor, "M K"],
) -> Tensor | None:
    """One-hot labels beside continuous attributes, (M, K, F)."""
    parts: list[Tensor] = []
    if label is not None:
        codes = torch.where(real[..., None], _rows(label, item, real), -1)  # (M, K, L)
        for code, size in zip(codes.unbind(-1), sizes, strict=True):
            parts.append((code[..., None] == torch.arange(size, device=code.device)).float())
    if x is not None:
        parts.append(_rows(x, item, real).float())
    return torch.cat(parts, dim=-1) if parts else None
