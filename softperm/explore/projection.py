"""Aligned vectors in few dimensions: principal components, the map, and neighbours."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

METHODS = ("pca", "umap", "pacmap")
SAMPLE = 10_000  # graphs that principal axes are computed from
COMPONENTS = 32  # principal components that are kept at most
FEWEST = 20  # graphs of a map by UMAP or PaCMAP, which look at the neighbours of each
SEED = 0


@dataclass(frozen=True)
class PrincipalAxes:
    """The directions in which vectors vary most.

    Attributes:
        mean: the mean vector.
        axes: orthonormal rows, the direction of largest variance first. The largest entry of each
            is positive, so that the same vectors have the same axes in every run.
        shares: share of each axis in the whole variance.
    """

    mean: Float[np.ndarray, " Z"]
    axes: Float[np.ndarray, "R Z"]
    shares: Float[np.ndarray, " R"]

    @classmethod
    def of(cls, vectors: Float[np.ndarray, "S Z"]) -> PrincipalAxes:
        """The principal axes of vectors: at most 32, at least two."""
        vectors = vectors.astype(np.float64)
        mean = vectors.mean(0)
        centred = vectors - mean
        wide = centred.shape[1] > len(centred)
        values, rows = np.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)
        values, rows = values[::-1].clip(min=0), rows.T[::-1]
        count = min(COMPONENTS, int((values > 1e-12 * max(values[0], 1e-300)).sum()))
        axes = rows[:count] @ centred / np.sqrt(values[:count, None]) if wide else rows[:count]
        if count < 2:  # nothing varies in a second direction
            axes = np.concatenate([axes, np.zeros((2 - count, len(mean)))])
        signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])
        total = max(values.sum(), 1e-300)
        shares = np.zeros(len(axes))
        shares[:count] = values[:count] / total
        return cls(mean, axes * np.where(signs == 0, 1.0, signs)[:, None], shares)

    def project(self, vectors: Float[np.ndarray, "b Z"]) -> Float[np.ndarray, "b R"]:
        """The coordinates of vectors along the axes."""
        return (vectors - self.mean) @ self.axes.T


def place_on_map(
    coordinates: Float[np.ndarray, "B R"], method: str = "pca"
) -> Float[np.ndarray, "B 2"]:
    """Two coordinates for each graph.

    Args:
        coordinates: principal coordinates.
        method: ``pca``, the first two of them; ``umap`` or ``pacmap``, computed from all of them by
            the package of that name.

    Raises:
        ImportError: the package is not installed.
        ValueError: there are too few graphs for ``umap`` or ``pacmap``.
    """
    if method == "pca":
        return coordinates[:, :2]
    if len(coordinates) < FEWEST:
        raise ValueError(
            f"the map {method} needs at least {FEWEST} graphs; this collection has "
            f"{len(coordinates)}: use pca"
        )
    name = {"umap": "umap-learn", "pacmap": "pacmap"}[method]
    try:
        module: Any = __import__(method)
    except ImportError:
        raise ImportError(f"the map {method} needs another package: pip install {name}") from None
    options = {"random_state": SEED}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both warn that a fixed seed makes them slower
        reducer = module.UMAP(**options) if method == "umap" else module.PaCMAP(**options)
        return np.asarray(reducer.fit_transform(coordinates.astype(np.float32)), dtype=np.float64)


@dataclass(frozen=True)
class VectorSpace:
    """Graphs by the principal coordinates of their aligned vectors.

    Attributes:
        axes: the principal axes.
        coordinates: of each graph, in single precision.
    """

    axes: PrincipalAxes
    coordinates: Float[np.ndarray, "B R"]

    def neighbours(self, k: int) -> tuple[Int[np.ndarray, "B k"], Float[np.ndarray, "B k"]]:
        """The k nearest other graphs of each graph, and their distances."""
        from sklearn.neighbors import NearestNeighbors

        count = min(k + 1, len(self.coordinates))
        search = NearestNeighbors(n_neighbors=count).fit(self.coordinates)
        distance, index = search.kneighbors(self.coordinates)
        other = index != np.arange(len(index))[:, None]
        other[other.all(1), -1] = False  # a graph that is not its own neighbour has many twins
        shape = (len(index), count - 1)
        return index[other].reshape(shape), distance[other].reshape(shape)

    def nearest(
        self, vector: Float[np.ndarray, " Z"], k: int
    ) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        """The k graphs nearest to another vector, and their distances."""
        own = self.axes.project(vector[None])[0]
        distance = np.linalg.norm(self.coordinates - own, axis=1).astype(float)
        order = np.argsort(distance, kind="stable")[:k]
        return order, distance[order]
