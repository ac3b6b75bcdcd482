"""What a dataset looks like in numbers, beside what the paper says of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import torch
from jaxtyping import Int
from torch import Tensor

from softperm.data.datasets.dataset import Dataset
from softperm.data.datasets.published import EXPLANATIONS, PUBLISHED, PUBLISHED_MEANS, Statistics


@dataclass(frozen=True)
class Comparison:
    """One number of the data and of the paper.

    Args:
        field: which number of :class:`Statistics`.
        found: the data's number.
        published: the paper's; None where it gives none.
        note: why they differ, if they do.
        digits: decimals the paper gives, to which ``found`` is rounded.
    """

    field: str
    found: float | int | None
    published: float | int | None
    note: str
    digits: int

    @property
    def agrees(self) -> bool:
        """Whether the two are equal once rounded as the paper rounds."""
        return self.found == self.published


def statistics_of(dataset: Dataset) -> Statistics:
    """The numbers of the paper's table for a dataset, from its graphs.

    Args:
        dataset: any dataset, attributes left out or not.

    Returns:
        The numbers, unrounded. Labels and attributes are those of the source.
    """
    sizes, edges = dataset.collection.sizes, edge_counts(dataset)
    columns = [len(values) for values in dataset.meta.label_values]
    x = dataset.collection.x
    return Statistics(
        max_vertices=int(sizes.max()),
        min_vertices=int(sizes.min()),
        mean_vertices=float(sizes.double().mean()),
        max_edges=int(edges.max()),
        min_edges=int(edges.min()),
        mean_edges=float(edges.double().mean()),
        labels=sum(columns) if columns else None,
        attributes=None if x is None else x.shape[1],
        graphs=len(dataset),
        classes=len(dataset.class_names) or None,
    )


def edge_counts(dataset: Dataset) -> Int[Tensor, " B"]:
    """Undirected edges of each graph."""
    return dataset.collection.edge_ptr.diff() // 2


def compare(dataset: Dataset) -> tuple[Comparison, ...]:
    """Hold a dataset's numbers against the paper's.

    Args:
        dataset: the dataset.

    Returns:
        One comparison for each number of the table.
    """
    found = asdict(statistics_of(dataset))
    said: dict[str, float | int | None] = {}
    digits = 2
    if dataset.name in PUBLISHED:
        said = asdict(PUBLISHED[dataset.name])
    elif dataset.name in PUBLISHED_MEANS:
        graphs, vertices, edges = PUBLISHED_MEANS[dataset.name]
        said = {"graphs": graphs, "mean_vertices": vertices, "mean_edges": edges}
        digits = 1
    made = []
    for name in (f.name for f in fields(Statistics)):
        value, published = found[name], said.get(name)
        value = round(value, digits) if isinstance(value, float) else value
        unlike = bool(said) and name in said and value != published
        note = EXPLANATIONS.get((dataset.name, name), "not explained") if unlike else ""
        made.append(Comparison(name, value, published, note, digits))
    return tuple(made)


def degree_histogram(dataset: Dataset) -> Int[Tensor, " degrees"]:
    """How many vertices have each degree, from 0 up.

    Args:
        dataset: the dataset.

    Returns:
        Counts, (largest degree + 1,).
    """
    return torch.bincount(dataset.collection.structure[:, 0].long())
