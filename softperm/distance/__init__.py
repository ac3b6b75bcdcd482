"""Exact graph distances with their proofs, and the alignment of a whole collection."""

from softperm.distance.exact import FrobeniusResult, frobenius_distance
from softperm.distance.matrix import DistanceIntervals, frobenius_intervals, frobenius_matrix

__all__ = [
    "DistanceIntervals",
    "FrobeniusResult",
    "frobenius_distance",
    "frobenius_intervals",
    "frobenius_matrix",
]
