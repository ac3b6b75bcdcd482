"""Vertex features that survive renumbering, for whole collections at once.

A feature of a vertex depends on the graph around it and not on how its vertices are numbered. All
are computed on the CPU by compiled kernels, on several threads. A vertex without neighbours has 0
in every column, like the padding vertices of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.data.features.adjacency import Adjacency
from softperm.data.features.colours import ColourVocabulary, wl_colours
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
from softperm.settings import Settings, setting

if TYPE_CHECKING:
    from softperm.data.collection import Collection

__all__ = [
    "Adjacency",
    "ColourVocabulary",
    "StructuralFeatures",
    "clustering",
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

_GROUP = "Features"


@dataclass(frozen=True)
class StructuralFeatures(Settings):
    """Which structural features vertices have; the paper's are degree and triangles.

    Colours are no numbers but labels: they need the codes of a :class:`ColourVocabulary`, learnt
    on training graphs. All other features are columns of ``Collection.structure``.
    """

    degree: bool = setting(True, "Number of neighbours of a vertex.", group=_GROUP)
    triangles: bool = setting(True, "Number of triangles through a vertex.", group=_GROUP)
    clustering: bool = setting(
        False, "Share of pairs of neighbours that are neighbours themselves.", group=_GROUP
    )
    core: bool = setting(
        False, "Core number: greatest k such that the vertex is in a k-core.", group=_GROUP
    )
    neighbours: bool = setting(
        False, "Mean and maximum degree of a vertex's neighbours.", group=_GROUP
    )
    rings: int = setting(
        0, "Longest ring (chordless cycle) counted through a vertex, 4 to 12; 0 for none.",
        at_least=0, below=13, group=_GROUP,
    )  # fmt: skip
    walks: int = setting(
        0, "Steps of random walks whose probabilities of return are features; 0 for none.",
        at_least=0, below=257, group=_GROUP,
    )  # fmt: skip
    heat: tuple[int, ...] | None = setting(
        None, "Times of the heat-kernel signature, such as 1 4 16.",
        kind=tuple, at_least=1, below=65, group=_GROUP,
    )  # fmt: skip
    colours: int = setting(
        0, "Rounds of Weisfeiler-Leman colours, which become vertex labels; 0 for none.",
        at_least=0, below=17, group=_GROUP,
    )  # fmt: skip
    colour_size: int = setting(
        512, "Number of colours of a round that have a code of their own.",
        at_least=1, group=_GROUP,
    )  # fmt: skip
    colour_min_graphs: int = setting(
        2, "Number of training graphs that must have a colour; rarer ones share a code.",
        at_least=1, group=_GROUP,
    )  # fmt: skip
    colour_degree: bool = setting(
        False, "Begin colours with the degree of a vertex beside its labels.", group=_GROUP
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rings in (1, 2, 3):
            raise ValueError(
                f"rings must be 0 or from 4 to 12, got {self.rings}; triangles counts those of 3"
            )
        if not self.names:
            raise ValueError(
                "vertices need at least one structural feature: switch degree on, or another one"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each column, as in ``triangles`` or ``return after 4 steps``."""
        switches = ("degree", "triangles", "clustering", "core")
        names = [name for name in switches if getattr(self, name)]
        if self.neighbours:
            names += ["mean degree of neighbours", "maximum degree of neighbours"]
        names += [f"rings of {length}" for length in range(4, self.rings + 1)]
        names += [f"return after {k} steps" for k in range(2, self.walks + 1)]
        return (*names, *(f"heat after {time}" for time in self.heat or ()))

    def compute(
        self, edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
    ) -> Float[Tensor, "V S"]:
        """The columns of every vertex of a collection.

        Numbers are computed as whole numbers or in float64 until the last step. Float32 holds
        every whole number up to 2²⁴; a larger count is rounded to a relative precision of 6e-8.

        Args:
            edge_index: edges of canonical graphs laid end to end; see :meth:`Adjacency.of`.
            ptr: where each graph's vertices begin, with the total at the end.

        Returns:
            A row for each vertex, float32, on the device of ``edge_index``.

        Raises:
            ValueError: the edges are not canonical.
        """
        graphs = Adjacency.of(edge_index, ptr)
        columns: list[np.ndarray] = []
        if self.degree:
            columns.append(graphs.degree)
        if self.triangles or self.clustering:
            count = count_triangles(graphs)
            columns += [count] if self.triangles else []
            columns += [clustering(graphs.degree, count)] if self.clustering else []
        if self.core:
            columns.append(core_number(graphs))
        if self.neighbours:
            columns += [*neighbour_degrees(graphs).T]
        if self.rings:
            columns += [*rings(graphs, self.rings).T]
        columns += self._walk_columns(graphs)
        table = np.stack(columns, axis=1).astype(np.float32)  # (V, S)
        return torch.from_numpy(table).to(edge_index.device)

    def _walk_columns(self, graphs: Adjacency) -> list[np.ndarray]:
        """Return probabilities and the heat kernel, from the same walks."""
        steps = max([self.walks, *map(heat_steps, self.heat or ())])
        if steps < 2:
            return []
        returns = return_probabilities(graphs, steps)  # (V, steps)
        columns = [*returns[:, 1 : self.walks].T]  # no walk is back after one step
        return columns + ([*heat_kernel(returns, self.heat).T] if self.heat else [])

    def learn_colours(
        self, collection: Collection, index: Int[Tensor, " b"]
    ) -> ColourVocabulary | None:
        """The codes of the training graphs' colours; None where colours are switched off.

        Args:
            collection: graphs without columns of colours.
            index: the training graphs; no others are looked at.
        """
        if not self.colours:
            return None
        return ColourVocabulary.learn(
            collection,
            index,
            rounds=self.colours,
            size=self.colour_size,
            min_graphs=self.colour_min_graphs,
            degree=self.colour_degree,
        )


def structural_features(
    edge_index: Int[Tensor, "2 E"],
    ptr: Int[Tensor, " B1"],
    features: StructuralFeatures | None = None,
) -> Float[Tensor, "V S"]:
    """The structural features of every vertex of a collection; by default the paper's two.

    Args:
        edge_index: edges of canonical graphs laid end to end; see :meth:`Adjacency.of`.
        ptr: where each graph's vertices begin, with the total at the end.
        features: which ones.

    Returns:
        A row for each vertex, float32, on the device of ``edge_index``; the columns are
        ``features.names``.

    >>> structural_features(torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), torch.tensor([0, 2, 4]))
    tensor([[1., 0.],
            [1., 0.],
            [1., 0.],
            [1., 0.]])
    """
    return (features or StructuralFeatures()).compute(edge_index, ptr)
