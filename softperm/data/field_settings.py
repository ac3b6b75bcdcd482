"""Which attributes of users' vertices and edges are read, by the names that users gave them.

Nothing here loads torch, so that the command line can derive its options from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softperm.settings import Settings, setting

_GROUP = "Data"


@dataclass(frozen=True)
class FieldNames(Settings):
    """Names of the attributes to read; None stands for the names that the kind of graph has.

    These are ``label`` for labels and ``x`` for numbers; in PyG, those of edges are ``edge_label``
    and ``edge_attr``. A name may stand for a vector, or for a matrix with a row for each vertex.
    """

    vertex_labels: Sequence[str] | None = setting(
        None,
        "Vertex attributes to read as discrete labels, by name; by default label.",
        kind=list,
        group=_GROUP,
    )
    vertex_attributes: Sequence[str] | None = setting(
        None,
        "Vertex attributes to read as numbers, by name; by default x.",
        kind=list,
        group=_GROUP,
    )
    edge_labels: Sequence[str] | None = setting(
        None,
        "Edge attributes to read as discrete labels, by name; by default label.",
        kind=list,
        group=_GROUP,
    )
    edge_attributes: Sequence[str] | None = setting(
        None,
        "Edge attributes to read as numbers, by name; by default x.",
        kind=list,
        group=_GROUP,
    )

    @property
    def vertices_chosen(self) -> bool:
        """Whether any name is given for vertices."""
        return self.vertex_labels is not None or self.vertex_attributes is not None

    @property
    def edges_chosen(self) -> bool:
        """Whether any name is given for edges."""
        return self.edge_labels is not None or self.edge_attributes is not None


STANDARD = FieldNames()
