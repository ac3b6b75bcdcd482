"""Exact graph distances with proofs, and the joint alignment of a collection."""

from softperm.distance.costs import EditCosts
from softperm.distance.exact import DistanceResult, edit_distance, frobenius_distance
from softperm.distance.joint import JointAlignment, joint_alignment
from softperm.distance.matrix import DistanceIntervals, frobenius_intervals, frobenius_matrix

__all__ = [
    "DistanceIntervals",
    "DistanceResult",
    "EditCosts",
    "JointAlignment",
    "edit_distance",
    "frobenius_distance",
    "frobenius_intervals",
    "frobenius_matrix",
    "joint_alignment",
]
