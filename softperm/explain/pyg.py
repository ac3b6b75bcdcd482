"""Explanations in PyTorch Geometric's form, so that its metrics and other explainers apply."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch_geometric.explain import ExplainerAlgorithm
from torch_geometric.explain import Explanation as PyGExplanation
from torch_geometric.explain.config import MaskType, ModelMode, ModelTaskLevel
from torch_geometric.nn import MessagePassing

from softperm.data.collection import Collection
from softperm.estimators.pignn import PiGNNEstimator
from softperm.explain.deletion import without
from softperm.nn.attribution import TOLERANCE


class ExplainedModel(nn.Module):
    """A fitted estimator as the model of a :class:`torch_geometric.explain.Explainer`.

    PyG's metrics multiply ``x`` by the mask of vertices and give the mask of edges to modules that
    pass messages. Here a vertex or an edge with mask 0 is removed, one with mask 1 is kept, and
    structural features are computed from what is left. Masks must therefore be 0 or 1: give PyG's
    explainer ``threshold_config=("topk_hard", k)``. Where it keeps one direction of an edge, that
    from the smaller vertex counts.

    Args:
        estimator: a fitted estimator.
        graph: the graph that is explained; its labels and attributes are read from here.
    """

    def __init__(self, estimator: PiGNNEstimator, graph: Any) -> None:
        super().__init__()
        self.estimator = estimator
        self.collection: Collection = estimator.collect([graph])
        self.masks = MessagePassing()  # receives the mask of edges

    @property
    def x(self) -> Float[Tensor, "N 1"]:
        """The argument ``x`` of PyG's explainer: 1 for each vertex, all of which are present."""
        return torch.ones(int(self.collection.ptr[-1]), 1)

    @property
    def edge_index(self) -> Int[Tensor, "2 E"]:
        """The argument ``edge_index`` of PyG's explainer."""
        return self.collection.edge_index.long()

    def forward(self, x: Float[Tensor, "N 1"], edge_index: Int[Tensor, "2 E"]) -> Tensor:
        """The outputs (1, C) of the graph without the vertices and edges that are masked.

        Raises:
            ValueError: a mask has other values than 0 and 1, or the edges are not the graph's.
        """
        if not torch.equal(edge_index, self.edge_index):
            raise ValueError("edge_index must be that of the model: pass model.edge_index")
        mask = getattr(self.masks, "_edge_mask", None)
        edges = torch.ones(edge_index.shape[1]) if mask is None else mask.detach()
        for kind, values in (("vertices", x), ("edges", edges)):
            if not bool(((values == 0) | (values == 1)).all()):
                raise ValueError(
                    f"a mask of {kind} has values other than 0 and 1; parts of a graph are removed "
                    'or kept: set threshold_config=("topk_hard", k) on PyG\'s Explainer'
                )
        row, column = edge_index
        pairs = torch.minimum(row, column) * len(x) + torch.maximum(row, column)
        once = row < column
        kept = torch.isin(pairs, pairs[once & (edges == 1)])  # in both directions
        left = without(self.collection, (x[:, 0] == 1)[None], kept[None])
        return self.estimator._outputs(left)


class PiGNNExplainer(ExplainerAlgorithm):
    """Contributions of vertices and edges as PyG's masks; the model is an :class:`ExplainedModel`.

    The mask of a vertex is its ``vertex_totals``, that of an edge its ``edge_totals``, both for
    the output that is explained. Larger means more in favour of that output; masks may be
    negative.

    Args:
        through_network: see :meth:`~softperm.estimators.pignn.PiGNNEstimator.explain`.
        tolerance: largest error of the sums, relative to the largest difference.
    """

    def __init__(self, through_network: bool = True, tolerance: float = TOLERANCE) -> None:
        super().__init__()
        self.through_network, self.tolerance = through_network, tolerance

    def forward(
        self,
        model: nn.Module,
        x: Any,
        edge_index: Any,
        *,
        target: Tensor,
        index: int | Tensor | None = None,
        **fields: Any,
    ) -> PyGExplanation:
        """The masks of the target's class or, for a regression, of the output at ``index``."""
        if not isinstance(model, ExplainedModel):
            raise ValueError("PiGNNExplainer explains an ExplainedModel: wrap the estimator in one")
        (explanation,) = model.estimator.iterate_explanations(
            model.collection, through_network=self.through_network, tolerance=self.tolerance
        )
        if self.model_config.mode == ModelMode.multiclass_classification:
            output = int(target.reshape(-1)[0])
        else:
            output = 0 if index is None else int(index)
        sign = 1
        if self.model_config.mode == ModelMode.binary_classification and not int(target[output]):
            sign = -1  # the answer is no
        masks: dict[str, Tensor] = {}
        if self.explainer_config.node_mask_type is not None:
            vertices = torch.from_numpy(explanation.vertex_totals[:, output])
            masks["node_mask"] = sign * vertices.float()[:, None]
        if self.explainer_config.edge_mask_type is not None:
            number = {pair: e for e, pair in enumerate(map(tuple, explanation.edge_index.T))}
            pairs = [(min(u, v), max(u, v)) for u, v in edge_index.T.tolist()]
            edges = torch.from_numpy(explanation.edge_totals[:, output])
            masks["edge_mask"] = sign * edges.float()[[number[pair] for pair in pairs]]
        return PyGExplanation(**masks)

    def supports(self) -> bool:
        """Whether the settings of PyG's explainer fit: predictions of graphs, whole vertices."""
        return (
            self.model_config.task_level == ModelTaskLevel.graph
            and self.explainer_config.node_mask_type in (None, MaskType.object)
        )
