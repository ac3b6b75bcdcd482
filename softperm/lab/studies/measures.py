"""How well distances between vectors stand for true distances between graphs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Fidelity:
    """Agreement of a matrix of distances with the true one, over all pairs i ≤ j.

    Attributes:
        mse: mean squared error.
        correlation: Pearson's, 0 for distances that do not vary.
        recall: share of each graph's ten nearest others that are truly among its ten nearest.
    """

    mse: float
    correlation: float
    recall: float


def vector_distances(vectors: Float[np.ndarray, "B Z"]) -> Float[np.ndarray, "B B"]:
    """Euclidean distances between all pairs of rows."""
    vectors = vectors.astype(np.float64)
    square = (vectors**2).sum(1)
    gaps = square[:, None] + square[None, :] - 2 * vectors @ vectors.T
    np.fill_diagonal(gaps, 0.0)
    return np.sqrt(gaps.clip(min=0))


def fidelity(
    made: Float[np.ndarray, "B B"], true: Float[np.ndarray, "B B"], neighbours: int = 10
) -> Fidelity:
    """How well ``made`` stands for ``true``.

    A true neighbour is any graph not farther than the ten nearest, so that ties count.
    """
    pairs = np.triu_indices(len(true))
    a, b = made[pairs], true[pairs]
    varies = a.std() > 0 and b.std() > 0
    correlation = float(np.corrcoef(a, b)[0, 1]) if varies else 0.0
    return Fidelity(float(((a - b) ** 2).mean()), correlation, _recall(made, true, neighbours))


def _recall(made: np.ndarray, true: np.ndarray, neighbours: int) -> float:
    count = min(neighbours, len(true) - 1)
    if count < 1:
        return 1.0
    away = np.where(np.eye(len(true), dtype=bool), np.inf, 0.0)
    made, true = made + away, true + away
    nearest = np.argsort(made, axis=1, kind="stable")[:, :count]  # (B, count)
    radius = np.sort(true, axis=1)[:, count - 1]  # (B,)
    return float((np.take_along_axis(true, nearest, axis=1) <= radius[:, None] + 1e-9).mean())
