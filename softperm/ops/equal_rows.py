"""Equal vertices of a graph, which a network encodes and transports once.

Graphs have few distinct vertices before messages are exchanged: a molecule of 22 atoms has about
four elements, and a discussion of 430 users about 20 pairs of degree and triangles. A row that
stands for k equal vertices has the mass k; see :func:`softperm.ops.transport.sinkhorn`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.jit import inner, kernel
from softperm.ops.operators import check_offsets
from softperm.ops.ragged import Lists, transfer

FEWER = 0.75  # share of distinct rows above which merging is not worth its gathers


@dataclass(frozen=True)
class EqualRows:
    """The distinct rows of each graph, and the vertices that have them.

    Attributes:
        ptr: where each graph's distinct rows begin, with the total at the end.
        starts: where each distinct row's vertices begin in ``order``, with the number of vertices.
        order: the vertices, those of one distinct row after those of another.
        place: the distinct row of each vertex.
        largest: largest number of distinct rows of a graph, or an upper bound.
    """

    ptr: Int[Tensor, " B1"]
    starts: Int[Tensor, " U1"]
    order: Int[Tensor, " V"]
    place: Int[Tensor, " V"]
    largest: int

    @property
    def count(self) -> Int[Tensor, " U"]:
        """Number of vertices with each distinct row."""
        return self.starts.diff()

    def select(self, x: Float[Tensor, "V F"]) -> Float[Tensor, "U F"]:
        """The distinct rows, without gradients."""
        return x.detach()[self.order[self.starts[:-1]]]

    def expand(self, rows: Float[Tensor, "U F"]) -> Float[Tensor, "V F"]:
        """The row of each vertex; zeros for a vertex outside every graph."""
        return transfer(rows, self._own(rows.device), Lists(self.starts, self.order))

    def collect(self, x: Float[Tensor, "V F"]) -> Float[Tensor, "U F"]:
        """The sum over the vertices of each distinct row."""
        return transfer(x, Lists(self.starts, self.order), self._own(x.device))

    def _own(self, device: torch.device) -> Lists:
        """The distinct row of each vertex, as lists of one or none."""
        vertex = torch.arange(len(self.place) + 1, device=device)
        return Lists(torch.minimum(vertex, self.starts[-1]), self.place)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> EqualRows:
        """The same on another device; PyG's batches call it for what they hold."""
        arrays = {name: getattr(self, name) for name in ("ptr", "starts", "order", "place")}
        moved = {name: a.to(device, non_blocking=non_blocking) for name, a in arrays.items()}
        return replace(self, **moved)


def equal_rows(x: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]) -> EqualRows | None:
    """The distinct rows of each graph, compared bit by bit; None if most rows are distinct.

    >>> x, ptr = torch.tensor([[1.0], [2.0], [1.0], [1.0], [1.0]]), torch.tensor([0, 3, 5])
    >>> rows = equal_rows(x, ptr)
    >>> rows.ptr.tolist(), rows.count.tolist(), rows.place.tolist(), rows.order.tolist()
    ([0, 2, 3], [2, 1, 2], [0, 1, 0, 2, 2], [0, 2, 1, 3, 4])
    >>> rows.expand(rows.select(x)).equal(x)
    True
    """
    check_offsets(ptr[None], len(x))
    if not x.numel() or ptr.numel() < 2 or int(ptr[0]) != 0 or int(ptr[-1]) != len(x):
        return None
    bits = x.detach().contiguous().numpy().view(np.uint32)  # (V, F) or, of float64, (V, 2 F)
    place, order = np.empty((2, len(x)), dtype=np.int64)
    first, starts = np.empty((2, len(x) + 1), dtype=np.int64)
    new_ptr = np.zeros(ptr.numel(), dtype=np.int64)
    offsets = ptr.long().contiguous().numpy()
    distinct = _equal_rows(bits, offsets, first, new_ptr, place, starts, order)
    if distinct > FEWER * len(x):
        return None
    arrays = {"ptr": new_ptr, "starts": starts[: distinct + 1], "order": order, "place": place}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return EqualRows(**tensors, largest=int(np.diff(new_ptr).max()))


@kernel
def _equal_rows(bits, ptr, first, new_ptr, place, starts, order):
    """Fills the arrays of :class:`EqualRows` with a hash table for each graph; returns U.

    ``first`` receives a vertex of each distinct row.
    """
    table = np.empty(2, np.int64)
    distinct = 0
    starts[0] = 0
    for g in range(len(ptr) - 1):
        slots = 2
        while slots < 2 * (ptr[g + 1] - ptr[g]):
            slots *= 2
        if slots > len(table):
            table = np.empty(slots, np.int64)
        table[:slots] = -1
        for v in range(ptr[g], ptr[g + 1]):
            slot = _hash(bits[v]) % slots
            while table[slot] >= 0 and not _same(bits[first[table[slot]]], bits[v]):
                slot = (slot + 1) % slots
            if table[slot] < 0:
                table[slot], first[distinct], starts[distinct + 1] = distinct, v, 0
                distinct += 1
            place[v] = table[slot]
            starts[place[v] + 1] += 1
        new_ptr[g + 1] = distinct
        for u in range(new_ptr[g], distinct):
            starts[u + 1] += starts[u]
            first[u] = starts[u]  # from here on the position of its next vertex
        for v in range(ptr[g], ptr[g + 1]):
            order[first[place[v]]] = v
            first[place[v]] += 1
    return distinct


@inner
def _hash(row):
    """A sum of products, which the processor computes side by side, with its bits spread.

    The last bits of most numbers are 0, so the first ones are mixed into them.
    """
    value = np.uint32(0)
    for k in range(len(row)):
        word = row[k] ^ (row[k] >> np.uint32(15))
        value += word * np.uint32((2 * k + 1) * 0x7FEB352D)
    value = np.uint32((value ^ (value >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.int64(value ^ (value >> np.uint32(16)))


@inner
def _same(row, other):
    for k in range(len(row)):  # noqa: SIM110 - numba compiles no generators here
        if row[k] != other[k]:
            return False
    return True
