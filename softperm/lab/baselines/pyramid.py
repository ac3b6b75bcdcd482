"""Pyramids of coarsened graphs for ECC (Simonovsky & Komodakis, CVPR 2017).

A level keeps about half of the vertices of the one before: those on one side of the largest
eigenvector of its Laplacian. Kron reduction joins them, so that resistances between kept vertices
stay as they were; see Shuman et al., "A Multiscale Pyramid Transform for Graph Signals" (2016).

All levels share one list of edges. A vertex knows how many levels it survives, an edge its weight
in each level, 0 where it is absent: so a pyramid is laid out in a mini-batch like any graph.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from torch import Tensor

from softperm.data.collection import Collection, GraphBatch
from softperm.lab.baselines.layers import MemoryLimited, check_bytes

POOLINGS = 2
"""Number of times that a graph is coarsened."""

WEAKEST = 1e-2
"""Weight below which an edge of a coarsened graph is left out; an edge of the graph itself has 1.

Kron reduction makes almost complete graphs of tiny weights. The papers leave edges out at random,
by their resistances; this is a function of the graph.
"""

MATRICES = 6  # of all pairs of vertices that coarsening a graph needs
LIMIT = MemoryLimited.memory_limit
LARGE = 300  # vertices above which the last eigenvectors are found by iteration
TIE = 1e-8  # relative difference of eigenvalues, or of entries from 0, that counts as equality


@dataclass(frozen=True)
class Pyramid:
    """The levels of graphs laid end to end.

    Attributes:
        edge_index: the directed edges of all levels, sorted.
        origin: the edge of the graph itself for each edge; −1 for one of coarser levels alone.
        edge_levels: the weight of each edge in each level; 0 where it is absent.
        level: the last level that each vertex is in.
    """

    edge_index: Int[Tensor, "2 K"]
    origin: Int[Tensor, " K"]
    edge_levels: Float[Tensor, "K L1"]
    level: Float[Tensor, "V 1"]

    @classmethod
    def of(
        cls,
        edge_index: Int[Tensor, "2 E"],
        ptr: Int[Tensor, " B1"],
        x: Float[Tensor, "V F"] | None = None,
    ) -> Pyramid:
        """Coarsens every graph.

        Args:
            edge_index: canonical edges, vertices numbered through all graphs.
            ptr: where each graph's vertices begin, with the total at the end.
            x: attributes, which break ties; see :func:`side`.

        Raises:
            TooLarge: a graph needs too much memory.
        """
        device, vertices = edge_index.device, int(ptr[-1])
        row, col = edge_index.cpu().numpy()
        attributes = np.zeros((vertices, 0)) if x is None else x.double().cpu().numpy()
        level = np.zeros((vertices, 1), dtype=np.float32)
        keys, weights = [row * vertices + col], [np.ones(len(row))]
        coarse_edges: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(POOLINGS)]
        cuts = np.searchsorted(row, ptr.cpu().numpy())
        for (first, last), (begin, end) in zip(pairwise(ptr.tolist()), pairwise(cuts), strict=True):
            n = last - first
            check_bytes("ECC", MATRICES * 8 * n * n, n, "leave the large graphs out", LIMIT)
            a = np.zeros((n, n))
            a[row[begin:end] - first, col[begin:end] - first] = 1.0
            members = np.arange(first, last)
            for k, (kept, coarse) in enumerate(coarsened(a, attributes[first:last])):
                members = members[kept]
                level[members] = k + 1
                i, j = coarse.nonzero()
                coarse_edges[k].append((members[i] * vertices + members[j], coarse[i, j]))
        for each in coarse_edges:
            keys.append(np.concatenate([key for key, _ in each] or [keys[0][:0]]))
            weights.append(np.concatenate([weight for _, weight in each] or [weights[0][:0]]))
        union = np.unique(np.concatenate(keys))
        edge_levels = np.zeros((len(union), POOLINGS + 1), dtype=np.float32)
        for k, (key, weight) in enumerate(zip(keys, weights, strict=True)):
            edge_levels[np.searchsorted(union, key), k] = weight
        origin = np.full(len(union), -1)
        origin[np.searchsorted(union, keys[0])] = np.arange(len(row))
        ends = np.stack([union // max(vertices, 1), union % max(vertices, 1)])
        arrays = ends.astype(np.int64), origin.astype(np.int64), edge_levels, level
        return cls(*(torch.from_numpy(array).to(device) for array in arrays))


def coarsened(
    a: Float64[np.ndarray, "n n"], invariants: Float64[np.ndarray, "n F"]
) -> list[tuple[Int[np.ndarray, " m"], Float64[np.ndarray, "m m"]]]:
    """The levels above a graph: which vertices of the one before are kept, and their weights."""
    levels = []
    for _ in range(POOLINGS):
        invariants = np.hstack([walk_counts(a), invariants])
        _, part = connected_components(csr_array(a), directed=False)
        kept = np.zeros(len(a), dtype=bool)
        for p in range(part.max(initial=-1) + 1):
            members = np.flatnonzero(part == p)
            kept[members] = side(a[np.ix_(members, members)], invariants[members])
        a, invariants = kron_reduction(a, kept), invariants[kept]
        a = np.where(a < WEAKEST, 0.0, a)
        levels.append((np.flatnonzero(kept), a))
    return levels


def walk_counts(a: Float64[np.ndarray, "n n"]) -> Float64[np.ndarray, "n W"]:
    """Weights of walks from each vertex, which renumbering permutes.

    Closed walks of two, three and four steps; then these, added up over one and two steps.
    """
    sparse = csr_array(a)
    squared = sparse @ sparse
    pairs = ((sparse, sparse), (sparse, squared), (squared, squared))
    closed = np.stack([(left * right).sum(axis=1) for left, right in pairs], axis=1)  # (n, 3)
    near = sparse @ closed
    return np.hstack([closed, near, sparse @ near])


def side(
    a: Float64[np.ndarray, "n n"], invariants: Float64[np.ndarray, "n F"]
) -> Bool[np.ndarray, " n"]:
    """The kept vertices of a connected graph: those where the last eigenvector is not negative.

    The sign of an eigenvector is arbitrary, and of a multiple eigenvalue so is the vector. Taken is
    the projection on the eigenspace of the first column of ``invariants`` that is not orthogonal
    to it: counts of walks, of which degrees come first, then attributes. Renumbering the graph then
    renumbers its pyramid. If all are orthogonal (as when the two sides are each other's mirror
    images), the projection of a vertex is taken: of those with the longest one, the first. Every
    removed vertex has a kept neighbour.
    """
    n = len(a)
    if n == 1:
        return np.ones(1, dtype=bool)
    laplacian = np.diag(a.sum(axis=1)) - a
    if n > LARGE:
        start = np.random.default_rng(0).normal(size=n)
        values, vectors = eigsh(csr_array(laplacian), k=8, which="LA", v0=start)
    if n <= LARGE or values.min() > values.max() * (1 - TIE):  # perhaps there are more
        values, vectors = eigh(laplacian)
    space = vectors[:, values > values.max() * (1 - TIE)]  # (n, multiplicity)
    centred = invariants - invariants.mean(axis=0)
    for column, size in zip(centred.T, np.linalg.norm(invariants, axis=0), strict=True):
        shares = space.T @ column
        rounding = 1e-6 * max(size, 1.0)  # by which a column of equal counts may vary
        if np.linalg.norm(shares) > 1e-6 * max(np.linalg.norm(column), rounding):
            break
    else:
        shares = space[np.argmax(np.linalg.norm(space, axis=1).round(6))]
    u = space @ shares
    return u >= -TIE * np.abs(u).max()


def kron_reduction(
    a: Float64[np.ndarray, "n n"], kept: Bool[np.ndarray, " n"]
) -> Float64[np.ndarray, "m m"]:
    r"""The weights among kept vertices, without loops.

    Their Laplacian is :math:`L_{KK} - L_{KR} L_{RR}^{-1} L_{RK}`. Every part of the graph must have
    a kept vertex.
    """
    laplacian = np.diag(a.sum(axis=1)) - a
    inner, across = laplacian[np.ix_(~kept, ~kept)], laplacian[np.ix_(~kept, kept)]
    reduced = laplacian[np.ix_(kept, kept)]
    if len(inner):
        reduced = reduced - across.T @ np.linalg.solve(inner, across)
    weights = np.maximum(-(reduced + reduced.T) / 2, 0.0)
    np.fill_diagonal(weights, 0.0)
    return weights


def with_pyramid(collection: Collection) -> Collection:
    """A collection whose batches have the edges of all levels, ``edge_levels`` and ``level``."""
    whole = collection.batch(torch.arange(len(collection)))
    pyramid = Pyramid.of(whole.edge_index, whole.ptr, getattr(whole, "x", None))
    owner = torch.searchsorted(collection.ptr, pyramid.edge_index[0], right=True) - 1  # (K,)
    edge_ptr = torch.searchsorted(owner, torch.arange(len(collection) + 1))
    new = {"edge_levels": pyramid.edge_levels, "level": pyramid.level}
    label, attr = collection.edge_label, collection.edge_attr
    return replace(
        collection,
        edge_index=(pyramid.edge_index - collection.ptr[owner]).to(collection.edge_index.dtype),
        edge_ptr=edge_ptr,
        edge_label=None if label is None else _carried(label, pyramid.origin, -1),
        edge_attr=None if attr is None else _carried(attr, pyramid.origin, 0),
        edge_weight=None,
        extra={**collection.extra, **new},
    )


def add_pyramid(batch: GraphBatch) -> GraphBatch:
    """The batch with the edges of all levels; a batch of :func:`with_pyramid` is returned as is."""
    if getattr(batch, "edge_levels", None) is not None:
        return batch
    batch, pyramid = copy(batch), Pyramid.of(batch.edge_index, batch.ptr, getattr(batch, "x", None))
    if getattr(batch, "edge_attr", None) is not None:
        batch.edge_attr = _carried(batch.edge_attr, pyramid.origin, 0)
    batch.edge_index, batch.edge_levels = pyramid.edge_index, pyramid.edge_levels
    batch.level = pyramid.level
    return batch


def _carried(rows: Tensor, origin: Tensor, absent: int) -> Tensor:
    """The rows of the graph's own edges, and constants for the others."""
    padded = torch.cat([rows, rows.new_full((1, *rows.shape[1:]), absent)])
    return padded[origin]
