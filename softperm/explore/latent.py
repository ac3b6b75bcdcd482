"""The meaning of each latent vertex: the vertices that are assigned to it, and their kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

EXAMPLES = 12
SHOWN = 6  # labels, degrees and neighbourhoods listed for a latent vertex
LARGEST_DEGREE = 15  # larger degrees are counted together


@dataclass(frozen=True)
class Share:
    """How often a kind of vertex occurs.

    Attributes:
        name: the label, degree or neighbourhood that these vertices have in common.
        here: its share of the vertices of one latent vertex.
        overall: its share of all vertices.
    """

    name: str
    here: float
    overall: float


@dataclass(frozen=True)
class Example:
    """A vertex of a graph with the strength of its assignment."""

    graph: int
    vertex: int
    strength: float


@dataclass(frozen=True)
class LatentVertex:
    """The vertices of all graphs that are assigned to one latent vertex most strongly.

    Attributes:
        mass: share of all assignments that this latent vertex has.
        vertices: share of all vertices that are assigned to it more strongly than to any other.
        labels: the most frequent labels among these vertices; empty without labels.
        degrees: the same of degrees.
        neighbourhoods: the same of vertices and neighbours, such as ``O next to C, H``.
        examples: the vertices assigned to it most strongly, at most one of each graph.
    """

    mass: float
    vertices: float
    labels: tuple[Share, ...]
    degrees: tuple[Share, ...]
    neighbourhoods: tuple[Share, ...]
    examples: tuple[Example, ...]


class LatentSummary:
    """Collects the assignments of vertices to latent vertices, batch by batch.

    Args:
        label: code of the label of every vertex of the collection.
        label_names: the name of each code; empty if vertices have no labels.
    """

    def __init__(self, label: Int[np.ndarray, " V"], label_names: Sequence[str]) -> None:
        self.label, self.label_names = label, label_names
        self.by_label: dict[int, np.ndarray] = {}
        self.by_degree: dict[int, np.ndarray] = {}
        self.by_neighbourhood: dict[int, np.ndarray] = {}
        self.texts: dict[int, str] = {}
        self.total: np.ndarray | None = None  # assignments to each latent vertex
        self.count: np.ndarray | None = None  # vertices whose strongest assignment is to it
        self.best: list[tuple[np.ndarray, np.ndarray]] = []  # strengths, vertices: (k, P) each

    def add(
        self,
        d: Float[np.ndarray, "v P"],
        edge_index: Int[np.ndarray, "2 e"],
        first: int,
    ) -> None:
        """Adds the soft permutations of consecutive graphs.

        Args:
            d: their rows.
            edge_index: both directions of their edges, numbered within the batch.
            first: the number of the first vertex in the collection.
        """
        label = self.label[first : first + len(d)]
        degree = np.bincount(edge_index[0], minlength=len(d))
        kind = label if self.label_names else degree
        key = _hash(kind)
        around = np.zeros(len(d), np.uint64)
        np.add.at(around, edge_index[0], _hash(kind[edge_index[1]]) ^ np.uint64(0x9E3779B97F4A7C15))
        key = key * np.uint64(31) + around
        strongest = (d == d.max(1, keepdims=True)).astype(float)
        strongest /= strongest.sum(1, keepdims=True)  # equally strong ones share a vertex
        _accumulate(self.by_label, label, strongest)
        _accumulate(self.by_degree, np.minimum(degree, LARGEST_DEGREE), strongest)
        codes, places = _accumulate(self.by_neighbourhood, key.view(np.int64), strongest)
        for code, place in zip(codes.tolist(), places.tolist(), strict=True):
            if code not in self.texts:
                ends = edge_index[1][edge_index[0] == place]
                self.texts[code] = self._describe(kind, place, ends)
        self.total = d.sum(0, dtype=float) + (0 if self.total is None else self.total)
        self.count = strongest.sum(0) + (0 if self.count is None else self.count)
        order = np.argsort(-d, axis=0, kind="stable")[: 4 * EXAMPLES]  # (k, P)
        self.best.append((np.take_along_axis(d, order, 0), order + first))
        if len(self.best) > 64:
            self.best = [self._strongest()]

    def _describe(self, kind: np.ndarray, vertex: int, ends: np.ndarray) -> str:
        names = sorted(self._name(int(kind[v])) for v in ends)
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        own = self._name(int(kind[vertex]))
        return f"{own} next to {listed}" if names else f"{own} alone"

    def _name(self, kind: int) -> str:
        return self.label_names[kind] if self.label_names else f"degree {kind}"

    def _strongest(self) -> tuple[np.ndarray, np.ndarray]:
        strengths, vertices = (np.concatenate(parts) for parts in zip(*self.best, strict=True))
        order = np.argsort(-strengths, axis=0, kind="stable")[: 4 * EXAMPLES]
        return np.take_along_axis(strengths, order, 0), np.take_along_axis(vertices, order, 0)

    def latent_vertices(self, ptr: Int[np.ndarray, " B1"]) -> tuple[LatentVertex, ...]:
        """The summary of each latent vertex.

        Args:
            ptr: where each graph's vertices begin, with the total at the end.
        """
        assert self.total is not None, "add is called before"
        assert self.count is not None, "add is called before"
        strengths, vertices = self._strongest()
        whole = max(float(self.total.sum()), 1e-300)
        names = {code: self._name(code) for code in self.by_label} if self.label_names else {}
        degrees = {
            code: f"{code}" if code < LARGEST_DEGREE else f"{code} or more"
            for code in self.by_degree
        }
        return tuple(
            LatentVertex(
                mass=float(self.total[p] / whole),
                vertices=float(self.count[p] / max(float(self.count.sum()), 1e-300)),
                labels=self._shares(self.by_label, names, p),
                degrees=self._shares(self.by_degree, degrees, p),
                neighbourhoods=self._shares(self.by_neighbourhood, self.texts, p),
                examples=_one_for_each_graph(strengths[:, p], vertices[:, p], ptr),
            )
            for p in range(len(self.total))
        )

    def _shares(
        self, sums: dict[int, np.ndarray], names: dict[int, str], p: int
    ) -> tuple[Share, ...]:
        """The kinds with the largest share here, most frequent first."""
        assert self.count is not None
        here, whole = float(self.count[p]), float(self.count.sum())
        shares = [
            Share(names[code], float(each[p] / here), float(each.sum() / whole))
            for code, each in sums.items()
            if code in names and each[p]
        ]
        return tuple(sorted(shares, key=lambda share: (-share.here, share.name))[:SHOWN])


def _one_for_each_graph(
    strengths: np.ndarray, vertices: np.ndarray, ptr: np.ndarray
) -> tuple[Example, ...]:
    """The strongest vertices, at most one of each graph."""
    examples: dict[int, Example] = {}
    for strength, vertex in zip(strengths.tolist(), vertices.tolist(), strict=True):
        graph = int(np.searchsorted(ptr, vertex, side="right")) - 1
        examples.setdefault(graph, Example(graph, vertex - int(ptr[graph]), strength))
    return tuple(examples.values())[:EXAMPLES]


def _accumulate(
    sums: dict[int, np.ndarray], codes: np.ndarray, d: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Adds the rows of each code to its sum; returns the codes and a row of each."""
    unique, places, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[order], np.arange(len(unique)))
    added = np.add.reduceat(d[order].astype(float), starts, axis=0)
    for code, each in zip(unique.tolist(), added, strict=True):
        sums[code] = sums[code] + each if code in sums else each
    return unique, places


def _hash(codes: np.ndarray) -> np.ndarray:
    """A 64-bit number for each code (the finaliser of splitmix64)."""
    x = codes.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
