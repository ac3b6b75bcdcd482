"""Ordered pairs of vertices of each graph, and their distances."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.data.collection import GraphBatch
from softperm.lab.baselines.layers import edge_features
from softperm.ops.ragged import owners

REMEDY_PAIRS = "it compares all pairs of vertices, so use smaller batches or smaller graphs"
"""What to do when all pairs of a batch need too much memory."""


@dataclass(frozen=True)
class Pairs:
    """All ordered pairs of different vertices of each graph, sorted.

    Attributes:
        index: first and second vertex, numbered over the batch.
        edge: which pair each directed edge of the batch is.
    """

    index: Int[Tensor, "2 K"]
    edge: Int[Tensor, " E"]


def count_pairs(batch: GraphBatch) -> int:
    """Number of pairs of :func:`all_pairs`."""
    sizes = batch.ptr.diff()
    return int((sizes * (sizes - 1)).sum())


def all_pairs(batch: GraphBatch) -> Pairs:
    """The pairs of a batch."""
    ptr, sizes = batch.ptr, batch.ptr.diff()
    owner = owners(ptr, int(ptr[-1]))
    others = sizes[owner] - 1  # (V,): each vertex meets all others of its graph
    begin = torch.cat([others.new_zeros(1), others.cumsum(0)])
    first = torch.repeat_interleave(torch.arange(len(owner), device=ptr.device), others)  # (K,)
    rank = torch.arange(len(first), device=ptr.device) - begin[first]
    second = ptr[owner[first]] + rank
    second = second + (second >= first)  # leaves out the vertex itself
    row, col = batch.edge_index
    edge = begin[row] + col - ptr[owner[row]] - (col > row).long()
    return Pairs(torch.stack([first, second]), edge)


def pair_features(batch: GraphBatch, pairs: Pairs) -> Float[Tensor, "K Fe1"]:
    """The attributes of the edge between two vertices, and whether there is one."""
    given = edge_features(batch)  # (E, Fe)
    features = given.new_zeros(pairs.index.shape[1], given.shape[1] + 1)
    features[pairs.edge] = torch.cat([given, torch.ones_like(given[:, :1])], dim=1)
    return features


def euclidean_distance(batch: GraphBatch, pairs: Pairs) -> Float[Tensor, " K"]:
    """The distance of each pair in space, in Å."""
    first, second = pairs.index
    return (batch.pos[first] - batch.pos[second]).norm(dim=1)


def bond_distance(batch: GraphBatch, pairs: Pairs) -> Float[Tensor, " K"]:
    """The number of edges on a shortest path between each pair; infinite where there is none.

    Example:
        >>> import networkx as nx
        >>> from softperm.data.graphs import as_graphs
        >>> from softperm.data.vocabulary import Vocabulary
        >>> path = as_graphs([nx.path_graph(3)])
        >>> batch = Vocabulary.learn(path).encode(path).batch(torch.tensor([0]))
        >>> bond_distance(batch, all_pairs(batch))
        tensor([1., 2., 1., 1., 2., 1.])
    """
    sizes = batch.ptr.diff()
    owner = owners(batch.ptr, int(batch.ptr[-1]))
    n = int(sizes.max()) if len(sizes) else 0
    local = torch.arange(len(owner), device=owner.device) - batch.ptr[owner]
    row, col = batch.edge_index
    adjacency = torch.zeros(len(sizes), n, n, device=owner.device)
    adjacency[owner[row], local[row], local[col]] = 1.0
    eye = torch.eye(n, device=owner.device).expand_as(adjacency)
    distance = torch.where(eye > 0, 0.0, torch.inf)
    reached, steps = eye, 0
    while True:
        steps += 1
        wider = ((reached @ adjacency + reached) > 0).float()
        if torch.equal(wider, reached):
            break
        distance = torch.where((wider > reached), float(steps), distance)
        reached = wider
    first, second = pairs.index
    return distance[owner[first], local[first], local[second]]
