"""π-GNN for people with graphs and labels: scikit-learn's contract over lists of graphs."""

from softperm.estimators.classifier import PiGNNClassifier
from softperm.estimators.regressor import PiGNNRegressor

__all__ = ["PiGNNClassifier", "PiGNNRegressor"]
