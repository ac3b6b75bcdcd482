"""The nearest training graphs of a prediction: is this graph like anything the model has seen?"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from softperm.data.collection import Collection, slice_graph
from softperm.errors import counted
from softperm.pyg import Data
from softperm.search import storage
from softperm.search.index import SLACK, GraphIndex, Hit

FOLDER = "training.index"  # in a run folder
LARGEST = 200_000  # training graphs of which an index is kept


def write_training_index(
    folder: Path, graphs: Collection, train: Int[Tensor, " t"], ids: Sequence[str]
) -> None:
    """Writes an index of the training graphs; one that is there is replaced.

    Labels are stored as their codes in the model's vocabulary.

    Args:
        folder: of the index.
        graphs: encoded by the vocabulary, without the model's own features.
        train: the training graphs.
        ids: a unique name for each graph of the collection.
    """
    chosen = train.tolist()
    index = GraphIndex.build(
        [coded_graph(graphs, i, len(graphs.label_sizes)) for i in chosen],
        [ids[i] for i in chosen],
        canonical=True,
    )
    shutil.rmtree(folder, ignore_errors=True)
    index.save(folder)
    (folder / f"{storage.MANIFEST}.lock").unlink(missing_ok=True)  # the run has one writer


def coded_graph(graphs: Collection, i: int, columns: int) -> Data:
    """One graph of an encoded collection, with codes as labels.

    Args:
        graphs: the collection.
        i: which graph.
        columns: number of label columns; further ones, such as colours, are left out.
    """
    label = None if graphs.label is None or not columns else graphs.label[:, :columns]
    fields = {"label": label, "edge_label": graphs.edge_label, "edge_weight": graphs.edge_weight}
    return slice_graph(
        i,
        graphs.ptr,
        graphs.edge_ptr,
        graphs.edge_index,
        {name: values for name, values in fields.items() if values is not None},
    )


@dataclass(frozen=True)
class NearestTrainingGraphs:
    """Columns of a table of predictions that name the nearest training graphs.

    The distance of the r-th nearest training graph is between ``lower_bound_r`` and ``distance_r``;
    ``proven_r`` says that both are equal, and that ``nearest_r`` is at this distance.

    Args:
        folder: the run folder of the model.
        count: number of training graphs for each prediction.
        columns: number of label columns of the model's vocabulary.
        time_limit: seconds for each graph; None for no limit.
    """

    folder: str
    count: int
    columns: int
    time_limit: float | None = 1.0

    def check(self) -> None:
        """Raises ValueError if there is no index, it is damaged, or it has too few graphs."""
        if self.count < 1:
            raise ValueError(f"the number of nearest training graphs is {self.count}; expected 1")
        if not (Path(self.folder) / FOLDER / storage.MANIFEST).exists():
            raise ValueError(
                f"{self.folder} has no {FOLDER}, which names the nearest training graphs: train "
                "the model again with it, and name the run folder"
            )
        size = len(_open(self.folder))
        if size < self.count:
            raise ValueError(
                f"the model has {counted(size, 'training graph')}, but the {self.count} nearest "
                "were requested"
            )

    @property
    def identity(self) -> dict[str, Any]:
        """What determines the columns."""
        content = (Path(self.folder) / FOLDER / storage.MANIFEST).read_text(encoding="utf-8")
        about = {"count": self.count, "time_limit": self.time_limit}
        return {**about, "index": content.partition("\n")[0]}

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        kinds = ("nearest", "distance", "lower_bound", "proven")
        return [f"{kind}_{rank}" for rank in range(1, self.count + 1) for kind in kinds]

    def __call__(self, graphs: Collection | None) -> list[np.ndarray]:
        """The columns for the graphs of an encoded collection."""
        nearest = [self._nearest(graphs, i) for i in range(0 if graphs is None else len(graphs))]
        columns = []
        for rank in range(self.count):
            hits = [row[rank] for row in nearest]
            columns.append(np.array([str(hit.id) for hit in hits], dtype=str))
            columns.append(np.array([hit.distance for hit in hits], dtype=np.float64))
            columns.append(np.array([hit.lower_bound for hit in hits], dtype=np.float64))
            columns.append(np.array([hit.proven for hit in hits], dtype=bool))
        return columns

    def _nearest(self, graphs: Collection | None, i: int) -> list[Hit]:
        """The nearest graphs as far as the time allowed, in the order of distances found.

        The r-th has the r-th least lower bound of all graphs. Where too few matchings were found,
        graphs of least lower bound follow, at the distance of removing all edges.
        """
        assert graphs is not None
        index, query = _open(self.folder), coded_graph(graphs, i, self.columns)
        result = index.nearest(query, self.count, time_limit=self.time_limit)
        hits = (*result.hits, *result.undecided)
        bounds = sorted(hit.lower_bound for hit in hits)[: self.count]
        nearest = sorted(hits, key=lambda hit: (hit.distance, not hit.proven, hit.lower_bound))
        nearest = [hit if np.isfinite(hit.distance) else _without_matching(index, query, hit)
                 for hit in nearest[: self.count]]  # fmt: skip
        nearest.sort(key=lambda hit: hit.distance)
        return [
            replace(hit, lower_bound=bound, proven=hit.proven and bound >= hit.distance - SLACK)
            for hit, bound in zip(nearest, bounds, strict=True)
        ]


def _without_matching(index: GraphIndex, query: Data, hit: Hit) -> Hit:
    edges = 0.0
    for graph in (query, index.graph(hit.id)):
        weight = graph.get("edge_weight")
        edges += graph.num_edges / 2 if weight is None else float(weight.abs().sum()) / 2
    return Hit(hit.id, edges, hit.lower_bound, False, hit.matching)


@lru_cache(maxsize=1)
def _open(folder: str) -> GraphIndex:
    """The index of a run folder, cached in this process."""
    return GraphIndex.open(Path(folder) / FOLDER)
