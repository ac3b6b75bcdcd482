"""Exact graph distances with their proofs, and the alignment of a whole collection."""

from softperm.distance.exact import FrobeniusResult, frobenius_distance
from softperm.distance.joint import JointAlignment, joint_alignment
from softperm.distance.matrix import DistanceIntervals, frobenius_intervals, frobenius_matrix

__all__ = [
    "DistanceIntervals",
    "FrobeniusResult",
    "JointAlignment",
    "frobenius_distance",
    "frobenius_intervals",
    "frobenius_matrix",
    "joint_alignment",
]
