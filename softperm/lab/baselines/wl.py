"""The Weisfeiler–Leman subtree kernel with a support vector machine (Shervashidze et al., 2011)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int, Shaped, UInt64
from sklearn.svm import SVC
from torch import Tensor

from softperm.data.collection import Collection
from softperm.jit import kernel


def refine_colours(collection: Collection, iterations: int) -> UInt64[np.ndarray, "rounds V"]:
    r"""The colours of all vertices after 0, 1, …, ``iterations`` rounds of colour refinement.

    .. math:: c_{t+1}(i) = \text{hash}(c_t(i), \{\!\{ c_t(j) : j \in N(i) \}\!\})

    A colour is a 64-bit number that depends on what a vertex sees alone, so colours of different
    collections with the same label codes agree without a dictionary. The multiset is hashed as a
    sum of mixed numbers. Two of D different colours coincide with a probability of about
    :math:`D^2 / 2^{65}`: less than one in a million for ten million colours.

    Args:
        collection: the graphs; colours begin with their vertex labels, all equal without any.
        iterations: rounds of refinement.
    """
    v = int(collection.ptr[-1])
    colour = np.zeros(v, np.uint64)
    if collection.label is not None:
        for column in collection.label.cpu().numpy().T:
            colour = _mix_all(colour + np.uint64(1) + column.astype(np.int64).view(np.uint64))
    row_ptr, neighbour = _rows(collection)
    rounds = [_mix_all(colour)]
    for _ in range(iterations):
        rounds.append(_refine(rounds[-1], row_ptr, neighbour))
    return np.stack(rounds)


def count_colours(
    collection: Collection, iterations: int
) -> tuple[sp.csr_array, UInt64[np.ndarray, " D"]]:
    """How often each colour occurs in each graph, over all rounds: (B, D), and the D colours."""
    colours = refine_colours(collection, iterations)  # (rounds, V)
    vocabulary, place = np.unique(colours, return_inverse=True)
    graph = np.repeat(np.arange(len(collection)), collection.sizes.cpu().numpy())
    graph = np.tile(graph, len(colours))
    shape = (len(collection), len(vocabulary))
    ones = np.ones(len(graph))
    return sp.coo_array((ones, (graph, place.ravel())), shape).tocsr(), vocabulary


def wl_kernel(collection: Collection, iterations: int) -> Float[np.ndarray, "B B"]:
    r"""The kernel of all pairs: :math:`K(G, G') = \sum_c \#_c(G) \, \#_c(G')` over all rounds.

    Example:
        Two triangles and a hexagon look alike to it:

        >>> import networkx as nx
        >>> from softperm.data.graphs import as_graphs
        >>> from softperm.data.vocabulary import Vocabulary
        >>> pair = as_graphs([nx.disjoint_union(*[nx.cycle_graph(3)] * 2), nx.cycle_graph(6)])
        >>> wl_kernel(Vocabulary.learn(pair).encode(pair), iterations=2)
        array([[108., 108.],
               [108., 108.]])
    """
    counts, _ = count_colours(collection, iterations)
    return (counts @ counts.T).toarray()


class WLKernelClassifier:
    """A support vector machine on the subtree kernel.

    Left open by the paper: the kernel is divided by the norms of both graphs, so that a graph's
    similarity to itself is 1. Graphs without vertex labels begin with one colour for all.

    Args:
        iterations: rounds of colour refinement.
        C: penalty of the support vector machine; the larger, the closer it follows the training
            graphs.
    """

    def __init__(self, iterations: int = 4, C: float = 1.0) -> None:
        self.iterations, self.C = iterations, C

    def fit(
        self, collection: Collection, index: Int[Tensor, " b"], y: Shaped[np.ndarray, " b"]
    ) -> WLKernelClassifier:
        """Learns from the chosen graphs, whose classes are ``y``."""
        if len(classes := np.unique(y)) < 2:
            raise ValueError(
                f"all {len(y)} training graphs are of class {classes.tolist()}: there "
                "is nothing to tell apart; give more graphs of every class"
            )
        counts, self.colours_ = count_colours(_take(collection, index), self.iterations)
        self.counts_ = _normalise(counts)
        kernel = (self.counts_ @ self.counts_.T).toarray()
        self.svm_ = SVC(kernel="precomputed", C=self.C).fit(kernel, np.asarray(y))
        return self

    def predict(self, collection: Collection, index: Int[Tensor, " b"]) -> Shaped[np.ndarray, " b"]:
        """The class of each of the chosen graphs."""
        counts, colours = count_colours(_take(collection, index), self.iterations)
        counts = _normalise(counts)  # before colours unknown to the training graphs are left out
        place = np.searchsorted(self.colours_, colours).clip(max=len(self.colours_) - 1)
        known = np.flatnonzero(self.colours_[place] == colours)
        kernel = counts[:, known] @ self.counts_[:, place[known]].T
        return self.svm_.predict(kernel.toarray())


def _normalise(counts: sp.csr_array) -> sp.csr_array:
    norm = np.sqrt(counts.multiply(counts).sum(axis=1))
    return sp.csr_array(sp.diags_array(1 / np.maximum(norm, 1e-300)) @ counts)


def _take(collection: Collection, index: Tensor) -> Collection:
    """The chosen graphs alone, without attributes, which the kernel does not read."""
    vertices, ptr = _spans(collection.ptr.cpu(), index.cpu())
    edges, edge_ptr = _spans(collection.edge_ptr.cpu(), index.cpu())
    label = collection.label
    return Collection(
        ptr=ptr,
        edge_ptr=edge_ptr,
        edge_index=collection.edge_index.cpu()[:, edges],
        structure=torch.empty(len(vertices), 0),
        label=None if label is None else label.cpu()[vertices],
        label_sizes=collection.label_sizes,
    )


def _spans(ptr: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Positions covered by the chosen spans of ``ptr``, end to end, and the new ``ptr``."""
    lengths = ptr.diff()[index]
    made = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    shift = torch.repeat_interleave(ptr[index] - made[:-1], lengths)
    return torch.arange(len(shift)) + shift, made


def _rows(collection: Collection) -> tuple[np.ndarray, np.ndarray]:
    """Where each vertex's neighbours begin, and the neighbours, numbered over all graphs."""
    ptr, edge_ptr = collection.ptr.cpu().numpy(), collection.edge_ptr.cpu().numpy()
    ends = collection.edge_index.cpu().numpy()
    shift = np.repeat(ptr[:-1], np.diff(edge_ptr))
    degree = np.bincount(ends[0] + shift, minlength=ptr[-1])
    return np.concatenate([[0], np.cumsum(degree)]), ends[1] + shift


@kernel
def _mix(value):
    """A bijection of 64-bit numbers that spreads every bit (Stafford's variant 13)."""
    value += np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def _mix_all(values):
    mixed = np.empty_like(values)
    for i in range(len(values)):
        mixed[i] = _mix(values[i])
    return mixed


@kernel
def _refine(colour, row_ptr, neighbour):
    refined = np.empty_like(colour)
    mixed = _mix_all(colour ^ np.uint64(0xD6E8FEB86659FD93))
    for v in range(len(colour)):
        total = np.uint64(row_ptr[v + 1] - row_ptr[v])
        for e in range(row_ptr[v], row_ptr[v + 1]):
            total += mixed[neighbour[e]]
        refined[v] = _mix(_mix(colour[v]) + total)
    return refined
