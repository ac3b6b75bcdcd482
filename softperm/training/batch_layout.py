"""Where the graphs of many models' mini-batches lie, and what they carry there, in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from softperm.data.collection import Collection


@dataclass(frozen=True)
class Layout:
    """The mini-batches of M models, b graphs each, in arrays of V and E places.

    Attributes:
        ptr: where each graph's vertices begin, with their number at the end.
        vertex: which vertex of the dataset is in each place; −1 for none.
        edge: which directed edge of the dataset is in each place; −1 for none.
        ends: the two vertices of each edge, numbered by their places; where there is no edge, a
            loop at an empty place, which reaches no graph.
    """

    ptr: Int[Tensor, "M b1"]
    vertex: Int[Tensor, "M V"]
    edge: Int[Tensor, "M E"]
    ends: Int[Tensor, "2 M E"]


def lay_out(graphs: Collection, index: Int[Tensor, "M b"], vertices: int, edges: int) -> Layout:
    """Lays each model's graphs end to end.

    Args:
        graphs: the whole dataset.
        index: each model's graphs; −1 for none.
        vertices: places for vertices, more than there are.
        edges: places for directed edges.
    """
    ptr, vertex, _ = _fill(graphs.ptr, index, vertices)
    _, edge, owner = _fill(graphs.edge_ptr, index, edges)
    shift = ptr.gather(1, owner)  # (M, E): where the edge's graph begins
    ends = graphs.edge_index[:, edge.clamp(min=0)].long() + shift  # (2, M, E)
    ends = torch.where(edge >= 0, ends, _loops(ptr[:, -1:], edge, vertices))
    return Layout(ptr, vertex, edge, ends)


def _fill(
    ptr: Int[Tensor, " B1"], index: Int[Tensor, "M b"], room: int
) -> tuple[Int[Tensor, "M b1"], Int[Tensor, "M K"], Int[Tensor, "M K"]]:
    """Where each graph begins; what each place holds, and of which of the model's graphs."""
    safe = index.clamp(min=0)
    sizes = torch.where(index >= 0, ptr[safe + 1] - ptr[safe], 0)  # (M, b)
    starts = pad(sizes.cumsum(1), (1, 0))  # (M, b + 1)
    place = torch.arange(room, device=ptr.device).expand(len(index), room).contiguous()  # (M, K)
    owner = torch.searchsorted(starts[:, 1:].contiguous(), place, right=True)
    real = owner < index.shape[1]
    owner = owner.clamp(max=index.shape[1] - 1)
    item = ptr[safe].gather(1, owner) + place - starts.gather(1, owner)
    return starts, torch.where(real, item, -1), owner


def _loops(used: Int[Tensor, "M 1"], edge: Int[Tensor, "M E"], vertices: int) -> Int[Tensor, "M E"]:
    """Vertices for the edges that are not there: the empty ones in turn, so that none is a hub."""
    edges = edge.shape[1]
    before = (edge >= 0).sum(1, keepdim=True)  # (M, 1)
    k = torch.arange(edges, device=used.device) - before  # (M, E)
    share = k * (vertices - used) // (edges - before).clamp(min=1)
    return used + share.clamp(min=0)


def rows(table: Tensor, item: Int[Tensor, "M K"], fill: int = 0) -> Tensor:
    """The table's rows at ``item``, ``fill`` where nothing is."""
    if len(table) == 0:
        return table.new_full((*item.shape, *table.shape[1:]), fill)
    there = (item >= 0).view(*item.shape, *[1] * (table.ndim - 1))
    return torch.where(there, table[item.clamp(min=0)], fill)


def attributes(
    label: Tensor | None, sizes: tuple[int, ...], x: Tensor | None, item: Int[Tensor, "M K"]
) -> Tensor | None:
    """One-hot labels beside continuous attributes, (M, K, F); zeros where nothing is."""
    parts: list[Tensor] = []
    if label is not None:
        for code, size in zip(rows(label, item, -1).unbind(-1), sizes, strict=True):
            parts.append((code[..., None] == torch.arange(size, device=code.device)).float())
    if x is not None:
        parts.append(rows(x, item).float())
    return torch.cat(parts, dim=-1) if parts else None
