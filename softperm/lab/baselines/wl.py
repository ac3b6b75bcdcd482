"""The Weisfeiler–Leman subtree kernel with a support vector machine (Shervashidze et al., 2011)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int
from sklearn.svm import SVC
from torch import Tensor

from softperm.data.collection import Collection
from softperm.data.features import collection_colours
from softperm.training.tasks import Task


def refine_colours(collection: Collection, iterations: int) -> Int[np.ndarray, "rounds V"]:
    """The colours of all vertices after 0, 1, …, ``iterations`` rounds of colour refinement.

    Colours begin with the vertex labels and are equal for all vertices without any; edge labels do
    not count. See :func:`softperm.data.features.wl_colours`.
    """
    without_edge_labels = replace(collection, edge_label=None, edge_label_sizes=())
    return collection_colours(without_edge_labels, iterations).T


def count_colours(
    collection: Collection, iterations: int
) -> tuple[sp.csr_array, Int[np.ndarray, " D"]]:
    """How often each colour occurs in each graph, over all rounds: (B, D), and the D colours."""
    colours = refine_colours(collection, iterations)  # (rounds, V)
    vocabulary, place = np.unique(colours, return_inverse=True)
    graph = np.tile(collection.owner.cpu().numpy(), len(colours))
    shape = (len(collection), len(vocabulary))
    ones = np.ones(len(graph))
    return sp.coo_array((ones, (graph, place.ravel())), shape).tocsr(), vocabulary


class WLKernelClassifier:
    r"""A support vector machine on :math:`K(G, G') = \sum_c \#_c(G) \, \#_c(G')`, over all rounds.

    The paper leaves normalisation open: here the kernel is divided by the norms of both graphs, so
    that the similarity of a graph to itself is 1.

    Args:
        iterations: rounds of colour refinement.
        C: penalty of the support vector machine; the larger, the closer it follows the training
            graphs.
    """

    def __init__(self, iterations: int = 4, C: float = 1.0) -> None:
        self.iterations, self.C = iterations, C

    def fit(
        self, collection: Collection, index: Int[Tensor, " b"], y: Int[Tensor, " b"], task: Task
    ) -> WLKernelClassifier:
        """Fits the classifier to the selected graphs and their classes ``y``."""
        if len(classes := np.unique(y.numpy())) < 2:
            raise ValueError(
                f"all {len(y)} training graphs are of class {classes.tolist()}: there "
                "is nothing to learn; give graphs of several classes"
            )
        counts, self.colours_ = count_colours(collection.select(index), self.iterations)
        self.counts_ = _normalise(counts)
        kernel = (self.counts_ @ self.counts_.T).toarray()
        self.svm_ = SVC(kernel="precomputed", C=self.C).fit(kernel, y.numpy())
        self.classes_ = task.outputs
        return self

    def outputs(self, collection: Collection, index: Int[Tensor, " b"]) -> Float[Tensor, "b C"]:
        """1 for the class of each of the selected graphs, 0 for the other classes."""
        counts, colours = count_colours(collection.select(index), self.iterations)
        counts = _normalise(counts)  # before colours unknown to the training graphs are left out
        place = np.searchsorted(self.colours_, colours).clip(max=len(self.colours_) - 1)
        known = np.flatnonzero(self.colours_[place] == colours)
        kernel = counts[:, known] @ self.counts_[:, place[known]].T
        predicted = torch.from_numpy(self.svm_.predict(kernel.toarray()))
        return torch.nn.functional.one_hot(predicted, self.classes_).double()


def _normalise(counts: sp.csr_array) -> sp.csr_array:
    norm = np.sqrt(counts.multiply(counts).sum(axis=1))
    return sp.csr_array(sp.diags_array(1 / np.maximum(norm, 1e-300)) @ counts)
