"""Sets of k vertices of each graph, numbered in closed form, and which of them are neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.data.collection import GraphBatch
from softperm.ops.ragged import owners


@dataclass(frozen=True)
class Subsets:
    """All k-sets of each graph, graph after graph.

    Set {a < b < c} of vertices numbered within their graph has the number C(a, 1) + C(b, 2) +
    C(c, 3) among the sets of the graph, so that no table is needed to find it.

    Attributes:
        members: the vertices of each set, ascending, numbered over the batch.
        ptr: where each graph's sets begin, with the total at the end.
    """

    members: Int[Tensor, "K k"]
    ptr: Int[Tensor, " B1"]


def count_subsets(sizes: Int[Tensor, " B"], k: int) -> Int[Tensor, " B"]:
    """The number of k-sets of each graph."""
    return _choose(sizes, k)


def subsets(batch: GraphBatch, k: int) -> Subsets:
    """The sets of k = 1, 2 or 3 vertices of each graph of a batch."""
    device = batch.ptr.device
    made = torch.arange(int(batch.ptr[-1]), device=device)[:, None]  # (V, 1)
    owner = owners(batch.ptr, len(made))
    for _ in range(k - 1):  # each set once more for every vertex below its lowest
        lowest = made[:, 0] - batch.ptr[owner]  # (K,)
        parent = torch.repeat_interleave(torch.arange(len(made), device=device), lowest)
        begin = torch.cat([lowest.new_zeros(1), lowest.cumsum(0)])
        vertex = torch.arange(len(parent), device=device) - begin[parent]
        owner = owner[parent]
        made = torch.cat([(vertex + batch.ptr[owner])[:, None], made[parent]], dim=1)
    ptr = torch.cat([batch.ptr.new_zeros(1), _choose(batch.ptr.diff(), k).cumsum(0)])
    order = number_of(made, owner, batch.ptr, ptr).argsort()
    return Subsets(made[order], ptr)


def number_of(
    members: Int[Tensor, "K k"],
    owner: Int[Tensor, " K"],
    ptr: Int[Tensor, " B1"],
    set_ptr: Int[Tensor, " B1"],
) -> Int[Tensor, " K"]:
    """Where the set of the given ascending vertices stands."""
    local = members - ptr[owner, None]
    return set_ptr[owner] + sum(_choose(local[:, i], i + 1) for i in range(members.shape[1]))


def local_neighbours(batch: GraphBatch, sets: Subsets) -> Int[Tensor, "2 M"]:
    """Pairs of sets that differ in one vertex, where the two that differ are adjacent.

    Returns:
        Receiving and sending set of each pair.
    """
    members, device = sets.members, batch.ptr.device
    k = members.shape[1]
    owner = owners(batch.ptr, int(batch.ptr[-1]))
    row, col = batch.edge_index
    degree = torch.bincount(row, minlength=len(owner))
    begin = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    found = []
    for i in range(k):
        leaving = members[:, i]  # (K,)
        home = torch.repeat_interleave(torch.arange(len(members), device=device), degree[leaving])
        before = torch.cat([degree.new_zeros(1), degree[leaving].cumsum(0)])
        rank = torch.arange(len(home), device=device) - before[home]
        coming = col[begin[leaving[home]] + rank]
        new = (members[home] != coming[:, None]).all(1)  # it is not in the set yet
        home, coming = home[new], coming[new]
        other = members[home].clone()
        other[:, i] = coming
        other = other.sort(dim=1).values
        found.append(torch.stack([home, number_of(other, owner[coming], batch.ptr, sets.ptr)]))
    return torch.cat(found, dim=1)


def parts(batch: GraphBatch, sets: Subsets, smaller: Subsets) -> Int[Tensor, "K k"]:
    """The sets of one vertex less that each set holds."""
    k = sets.members.shape[1]
    owner = owners(batch.ptr, int(batch.ptr[-1]))[sets.members[:, 0]]
    kept = [[j for j in range(k) if j != i] for i in range(k)]
    numbers = [number_of(sets.members[:, j], owner, batch.ptr, smaller.ptr) for j in kept]
    return torch.stack(numbers, dim=1)


def edges_within(
    batch: GraphBatch, sets: Subsets, values: Float[Tensor, "E Fe"]
) -> Float[Tensor, "K Fe"]:
    """The sum of values over the directed edges between members of each set, halved."""
    pairs = subsets(batch, 2)
    owner = owners(batch.ptr, int(batch.ptr[-1]))
    row, col = batch.edge_index
    once = row < col
    ends = torch.stack([row[once], col[once]], dim=1)
    table = values.new_zeros(len(pairs.members), values.shape[1])
    table[number_of(ends, owner[row[once]], batch.ptr, pairs.ptr)] = values[once]
    k, total = sets.members.shape[1], values.new_zeros(len(sets.members), values.shape[1])
    home = owner[sets.members[:, 0]]
    for i in range(k):
        for j in range(i + 1, k):
            pair = sets.members[:, [i, j]]
            total = total + table[number_of(pair, home, batch.ptr, pairs.ptr)]
    return total


def _choose(n: Int[Tensor, " K"], k: int) -> Int[Tensor, " K"]:
    """N choose k, of small k."""
    made = torch.ones_like(n)
    for i in range(k):
        made = made * (n - i)
    return torch.where(n >= k, made, 0) // {1: 1, 2: 2, 3: 6}[k]
