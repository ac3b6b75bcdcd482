"""Which vertices and edges a prediction rests on, and how far an explanation can be trusted.

:meth:`softperm.estimators.pignn.PiGNNEstimator.explain` computes contributions; this package tests
them by deletion, hands them to PyTorch Geometric's metrics, and draws them.
"""

from softperm.explain.deletion import DeletionCurve, deletion_curve, without
from softperm.explain.pictures import draw_explanation, draw_molecule
from softperm.explain.pyg import ExplainedModel, PiGNNExplainer

__all__ = [
    "DeletionCurve",
    "ExplainedModel",
    "PiGNNExplainer",
    "deletion_curve",
    "draw_explanation",
    "draw_molecule",
    "without",
]
