"""Random forests on counts, and a kernel: what a comparison of networks should begin with.

``forest`` counts labels and degrees, which say nothing about how vertices are connected.
``wl-forest`` counts Weisfeiler–Leman colours: it knows the neighbourhoods of vertices and has no
alignment, so the difference between it and π-GNN is what alignment adds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from softperm.data.collection import Collection
from softperm.data.features import ColourVocabulary, collection_colours, colour_counts
from softperm.errors import counted
from softperm.parallel import threads
from softperm.training.forest import MOST_DEGREES, Trees, count_table, largest_degree
from softperm.training.tasks import Classification, MultiLabel, Regression, Task

LEAST = 1e-6  # probability of a class that no tree votes for
ROWS = 256  # graphs whose dense rows are in memory together

Table = sp.csr_array | np.ndarray


class GraphForest(ABC):
    """A random forest on one vector for each graph; for all tasks."""

    def __init__(self, trees: int = 500, seed: int = 0) -> None:
        self.trees, self.seed = trees, seed

    @abstractmethod
    def learn(self, collection: Collection, index: Int[Tensor, " b"]) -> dict[str, Any]:
        """What :meth:`describe` needs of the selected graphs, as JSON values."""

    @abstractmethod
    def set_learnt(self, learnt: Mapping[str, Any]) -> None:
        """Takes what :meth:`learn` gave."""

    @abstractmethod
    def describe(self, collection: Collection) -> Table:
        """The vector of each graph (B, Z)."""

    def fit(
        self,
        collection: Collection,
        index: Int[Tensor, " b"],
        y: Shaped[Tensor, "b ..."],
        task: Task,
    ) -> GraphForest:
        """Fits the forest to the selected graphs and their targets ``y``."""
        self.task_, self.learnt_ = task, self.learn(collection, index)
        self.set_learnt(self.learnt_)
        table = self.describe(collection)[index.cpu().numpy()]
        self.columns_ = table.shape[1]
        if isinstance(task, Classification):
            self.trees_ = [self._grow(table, y.cpu().numpy())]
            return self
        self.trees_ = []
        for column in task.encode(y).cpu().numpy().T:
            known = np.flatnonzero(~np.isnan(column))
            self.trees_.append(self._grow(table[known], column[known]))
        return self

    def _grow(self, table: Table, y: np.ndarray) -> Trees:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        kind = (
            RandomForestRegressor if isinstance(self.task_, Regression) else RandomForestClassifier
        )
        forest = kind(n_estimators=self.trees, random_state=self.seed, n_jobs=threads())
        forest.fit(table, y)
        codes = getattr(forest, "classes_", np.zeros(1)).astype(np.int64)
        return Trees.of(forest.estimators_, codes)

    def outputs(self, collection: Collection, index: Int[Tensor, " b"]) -> Float[Tensor, "b C"]:
        """Outputs that the task reads as it reads a network's, such as logarithms of shares."""
        table = self.describe(collection)[index.cpu().numpy()]
        if table.shape[1] != self.columns_:
            raise ValueError(
                f"the forest reads {counted(self.columns_, 'number')}, not {table.shape[1]}"
            )
        values = [_predict(trees, table) for trees in self.trees_]
        if isinstance(self.task_, Classification):
            shares = np.zeros((len(index), self.task_.classes))
            shares[:, : values[0].shape[1]] = values[0]
            return torch.from_numpy(np.log(np.maximum(shares, LEAST)))
        columns = [_log_odds(v) if isinstance(self.task_, MultiLabel) else v[:, 0] for v in values]
        return torch.from_numpy(np.stack(columns, axis=1))

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The learnt state: JSON values, and the arrays of the trees."""
        arrays = {
            f"{k}.{name}": tensor
            for k, trees in enumerate(self.trees_)
            for name, tensor in trees.tensors().items()
        }
        outputs = [trees.outputs for trees in self.trees_]
        return {"columns": self.columns_, "outputs": outputs, **self.learnt_}, arrays

    def restore(
        self, state: Mapping[str, Any], arrays: Mapping[str, Tensor], task: Task
    ) -> GraphForest:
        """Takes what :meth:`state` gave.

        Raises:
            ValueError: it is damaged, or not of this task.
        """
        self.task_, self.columns_ = task, int(state["columns"])
        self.learnt_ = {k: v for k, v in state.items() if k not in ("columns", "outputs")}
        self.set_learnt(self.learnt_)
        kept: list[dict[str, Tensor]] = [{} for _ in state["outputs"]]
        for name, tensor in arrays.items():
            place, _, own = name.partition(".")
            kept[int(place)][own] = tensor
        self.trees_ = [
            Trees.from_tensors(tensors, int(outputs), self.columns_)
            for tensors, outputs in zip(kept, state["outputs"], strict=True)
        ]
        count, most = (1, task.outputs) if isinstance(task, Classification) else (task.outputs, 2)
        if len(self.trees_) != count or max(trees.outputs for trees in self.trees_) > most:
            raise ValueError("its forests do not have the outputs of its targets")
        return self


class CountForest(GraphForest):
    """A forest on sizes, on counts of labels and degrees, and on quantiles of attributes."""

    def learn(self, collection: Collection, index: Int[Tensor, " b"]) -> dict[str, Any]:
        """The largest degree of the selected graphs."""
        return {"most": largest_degree(collection, index)}

    def set_learnt(self, learnt: Mapping[str, Any]) -> None:
        """Takes the largest degree."""
        self.most_ = min(int(learnt["most"]), MOST_DEGREES)

    def describe(self, collection: Collection) -> np.ndarray:
        """Counts and quantiles of each graph (B, Z)."""
        return count_table(collection, self.most_)


class ColourForest(GraphForest):
    """A forest on counts of Weisfeiler–Leman colours.

    Args:
        rounds: rounds of colour refinement; colours of all rounds are counted.
        min_graphs: number of training graphs in which a colour must occur to be counted by itself;
            rarer and unseen colours of a round are counted together.
        trees: number of trees.
        seed: of the forest's random choices.
    """

    def __init__(
        self, rounds: int = 2, min_graphs: int = 5, trees: int = 500, seed: int = 0
    ) -> None:
        super().__init__(trees, seed)
        self.rounds, self.min_graphs = rounds, min_graphs

    def learn(self, collection: Collection, index: Int[Tensor, " b"]) -> dict[str, Any]:
        """The colours of the selected graphs."""
        colours = ColourVocabulary.learn(
            collection, index, rounds=self.rounds, size=None, min_graphs=self.min_graphs,
            every_round=True,
        )  # fmt: skip
        return {"colours": colours.to_config()}

    def set_learnt(self, learnt: Mapping[str, Any]) -> None:
        """Takes the colours."""
        self.colours_ = ColourVocabulary.from_config(learnt["colours"])

    def describe(self, collection: Collection) -> sp.csr_array:
        """Number of vertices of each colour in each graph (B, colours)."""
        return colour_counts(collection, self.colours_)


def _predict(trees: Trees, table: Table) -> Float[np.ndarray, "b C"]:
    """The mean of the trees' values for each row, some rows at a time."""
    parts = [table[first : first + ROWS] for first in range(0, table.shape[0], ROWS)]
    dense = [part.toarray() if isinstance(part, sp.csr_array) else part for part in parts]
    values = [trees(part.astype(np.float32)) for part in dense]
    return np.concatenate([np.empty((0, trees.outputs)), *values])


def _log_odds(shares: Float[np.ndarray, "b C"]) -> Float[np.ndarray, " b"]:
    """Log odds of the answer 1 from the shares of the answers 0 and 1, or of 0 alone."""
    yes = (shares[:, 1] if shares.shape[1] > 1 else np.zeros(len(shares))).clip(LEAST, 1 - LEAST)
    return np.log(yes) - np.log1p(-yes)


# The Weisfeiler–Leman subtree kernel with a support vector machine (Shervashidze et al., 2011).


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
        from sklearn.svm import SVC  # loaded by no forest

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
