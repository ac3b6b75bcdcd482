"""Vertex features that survive renumbering, for whole collections at once.

A feature of a vertex depends on the graph around it and not on how its vertices are numbered. All
are computed on the CPU by compiled kernels, on several threads. A vertex without neighbours has 0
in every column, like the padding vertices of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.data.feature_settings import StructuralFeatures
from softperm.data.features.adjacency import Adjacency
from softperm.data.features.colours import ColourVocabulary, colour_counts, wl_colours
from softperm.data.features.counts import (
    clustering,
    core_number,
    count_triangles,
    degree,
    neighbour_degrees,
    rings,
    triangles,
)
from softperm.data.features.walks import heat_kernel, heat_steps, return_probabilities

if TYPE_CHECKING:
    from softperm.data.collection import Collection

__all__ = [
    "Adjacency",
    "ColourVocabulary",
    "StructuralFeatures",
    "VertexFeatures",
    "clustering",
    "colour_counts",
    "core_number",
    "count_triangles",
    "degree",
    "heat_kernel",
    "heat_steps",
    "neighbour_degrees",
    "return_probabilities",
    "rings",
    "structural_features",
    "triangles",
    "wl_colours",
]


def structural_features(
    edge_index: Int[Tensor, "2 E"],
    ptr: Int[Tensor, " B1"],
    settings: StructuralFeatures | None = None,
) -> Float[Tensor, "V S"]:
    """The structural features of every vertex of a collection; by default the paper's two.

    Numbers are computed as whole numbers or in float64 until the last step. Float32 holds every
    whole number up to 2²⁴; a larger count is rounded to a relative precision of 6e-8.

    Args:
        edge_index: edges of canonical graphs laid end to end; see :meth:`Adjacency.of`.
        ptr: where each graph's vertices begin, with the total at the end.
        settings: the features that are switched on.

    Returns:
        A row for each vertex, float32, on the device of ``edge_index``; the columns are
        ``settings.names``.

    Raises:
        ValueError: the edges are not canonical.

    >>> structural_features(torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), torch.tensor([0, 2, 4]))
    tensor([[1., 0.],
            [1., 0.],
            [1., 0.],
            [1., 0.]])
    """
    settings = settings or StructuralFeatures()
    graphs = Adjacency.of(edge_index, ptr)
    columns: list[np.ndarray] = []
    if settings.degree:
        columns.append(graphs.degree)
    if settings.triangles or settings.clustering:
        count = count_triangles(graphs)
        columns += [count] if settings.triangles else []
        columns += [clustering(graphs.degree, count)] if settings.clustering else []
    if settings.core:
        columns.append(core_number(graphs))
    if settings.neighbours:
        columns += [*neighbour_degrees(graphs).T]
    if settings.rings:
        columns += [*rings(graphs, settings.rings).T]
    columns += _walk_columns(graphs, settings)
    table = np.stack(columns, axis=1).astype(np.float32)  # (V, S)
    return torch.from_numpy(table).to(edge_index.device)


def _walk_columns(graphs: Adjacency, settings: StructuralFeatures) -> list[np.ndarray]:
    """Return probabilities and the heat kernel, from the same walks."""
    steps = max([settings.walks, *map(heat_steps, settings.heat or ())])
    if steps < 2:
        return []
    returns = return_probabilities(graphs, steps)  # (V, steps)
    columns = [*returns[:, 1 : settings.walks].T]  # no walk is back after one step
    return columns + ([*heat_kernel(returns, settings.heat).T] if settings.heat else [])


@dataclass(frozen=True)
class VertexFeatures:
    """The features of a trained model: those switched on, and the codes of colours.

    Attributes:
        settings: the features that are switched on.
        colours: the colours of the training graphs; None where they are switched off.
    """

    settings: StructuralFeatures
    colours: ColourVocabulary | None = None

    @classmethod
    def learn(
        cls, graphs: Collection, index: Int[Tensor, " b"], settings: StructuralFeatures
    ) -> VertexFeatures:
        """The features of training graphs.

        Args:
            graphs: all graphs.
            index: the training graphs, whose colours have codes; no others are looked at.
            settings: the features that are switched on.
        """
        if not settings.colours:
            return cls(settings)
        colours = ColourVocabulary.learn(
            graphs,
            index,
            rounds=settings.colours,
            size=settings.colour_size,
            min_graphs=settings.colour_min_graphs,
            degree=settings.colour_degree,
        )
        return cls(settings, colours)

    def extend(self, graphs: Collection) -> Collection:
        """The collection with these features as its structure, and with colours as labels.

        Args:
            graphs: a collection with degree and triangles as its structure, without colours.
        """
        if self.settings.names != StructuralFeatures().names:
            shift = torch.repeat_interleave(graphs.ptr[:-1], graphs.edge_ptr.diff())
            edge_index = graphs.edge_index.long() + shift
            structure = structural_features(edge_index, graphs.ptr, self.settings)
            graphs = replace(graphs, structure=structure)
        return graphs if self.colours is None else self.colours.extend(graphs)
