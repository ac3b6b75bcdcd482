"""Answers of a trained model to requests: plain JSON values in, plain JSON values out.

``softperm/explore/server.py`` speaks HTTP; nothing here does. No request names a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from softperm.data.canonical import canonicalise, choose_fields
from softperm.data.collection import Collection
from softperm.data.formats.json_lines import node_link_graph
from softperm.data.graphs import as_graph
from softperm.distance import EditCosts, edit_distance
from softperm.errors import counted, errors_about_graph
from softperm.estimators.pignn import PiGNNEstimator
from softperm.explore.contents import (
    EXPLANATION_TOLERANCE,
    NEIGHBOURS,
    Contents,
    Drawings,
    draw,
    read_outputs,
)
from softperm.pyg import Data
from softperm.search import GraphIndex
from softperm.settings import FieldNames
from softperm.training.cuda_graphs import evaluating


@dataclass(frozen=True)
class Limits:
    """The limits of one request.

    Attributes:
        body: size of the request in bytes.
        graphs: number of graphs in a request for predictions.
        vertices: number of vertices of a graph.
        edges: number of undirected edges of a graph.
        explained_vertices: number of vertices of a graph that is explained.
        text: number of characters of a SMILES.
        seconds: time for the search of an exact distance or of proven neighbours.
        neighbours: number of graphs that a search returns of each kind.
    """

    body: int = 1 << 20
    graphs: int = 64
    vertices: int = 1000
    edges: int = 20_000
    explained_vertices: int = 200
    text: int = 2000
    seconds: float = 5.0
    neighbours: int = 100


class RequestError(ValueError):
    """A request that cannot be answered; the message says why."""


class Answers:
    """Predicts, explains, searches and compares graphs.

    Args:
        estimator: a fitted estimator.
        graphs: the graphs of the collection, as for ``predict``.
        contents: what the page shows of them.
        index: for proven neighbours.
        limits: of requests.
    """

    def __init__(
        self,
        estimator: PiGNNEstimator,
        graphs: Sequence[Any] | Collection,
        contents: Contents,
        index: GraphIndex | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.estimator, self.graphs, self.contents, self.index = estimator, graphs, contents, index
        self.limits = limits or Limits()

    def predict(self, request: dict[str, Any]) -> dict[str, Any]:
        """Predictions for ``graphs``, with probabilities where there are classes or answers."""
        graphs = [self._parse(g, f"graphs[{i}]") for i, g in enumerate(self._inputs(request))]
        outputs = read_outputs(self.estimator, self._encode(graphs))
        return {"predictions": [self._prediction(row) for row in outputs.values]}

    def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        """Everything that the page shows about one ``graph``, except its explanation."""
        collection = self._encode(self._one(request, "graph"))
        drawings = draw(self.estimator, collection)
        vector, plan = self._align(collection)
        near, distance = self.contents.vectors.nearest(vector, NEIGHBOURS)
        weight = np.ones(drawings.ends.shape[1]) if drawings.weight is None else drawings.weight
        edges = zip(
            *drawings.ends.tolist(), drawings.edge_label.tolist(), weight.tolist(), strict=True
        )
        return {
            "size": len(plan),
            "label": drawings.label.tolist(),
            "edges": [list(edge) for edge in edges],
            "places": np.round(drawings.places, 4).tolist(),
            "permutation": np.round(plan, 5).tolist(),
            "outputs": read_outputs(self.estimator, collection).values[0].tolist(),
            "neighbours": _hits(near, distance),
            "unknown_labels": int((collection.label < 0).sum())
            if collection.label is not None
            else 0,
        }

    def _align(self, collection: Collection) -> tuple[np.ndarray, np.ndarray]:
        """The aligned vector and the soft permutation of a collection of one graph."""
        model = self.estimator.model_
        with torch.no_grad(), evaluating(model):
            batch = collection.batch(torch.tensor([0])).to(next(model.parameters()).device)
            vector = model.transform(batch)[0].cpu().numpy().astype(float)
            (d,) = model.permutations(batch)
        return vector, (d if d.ndim == 2 else d[0]).cpu().numpy()

    def explain(self, request: dict[str, Any]) -> dict[str, Any]:
        """Contributions of the vertices and edges of one ``graph`` to each output."""
        graphs = self._collect(self._one(request, "graph"))
        size = int(self.estimator.collect(graphs).sizes[0])
        if size > self.limits.explained_vertices:
            raise RequestError(
                f"graph: it has {size} vertices; explanations are for up to "
                f"{self.limits.explained_vertices}"
            )
        (result,) = self.estimator.iterate_explanations(graphs, tolerance=EXPLANATION_TOLERANCE)
        return {
            "explains": result.explains,
            "output_names": list(result.output_names),
            "outputs": result.outputs.tolist(),
            "baseline": result.baseline.tolist(),
            "vertices": result.vertices.tolist(),
            "edge_index": result.edge_index.T.tolist(),
            "edges": result.edges.tolist(),
            "edge_totals": result.edge_totals.tolist(),
        }

    def search(self, request: dict[str, Any]) -> dict[str, Any]:
        """The graphs of the collection nearest to one ``graph``, by vector and by proof."""
        graphs = self._one(request, "graph")
        k = _number(request, "k", 10, 1, self.limits.neighbours)
        vector, _ = self._align(self._encode(graphs))
        near, distance = self.contents.vectors.nearest(vector, int(k))
        named = [
            {"id": str(self.contents.ids[hit["graph"]]), **hit} for hit in _hits(near, distance)
        ]
        answer: dict[str, Any] = {"by_vector": named}
        if self.index is not None and isinstance(graphs, list):
            result = self.index.nearest(graphs[0], int(k), time_limit=self.limits.seconds)
            answer["proven"] = [
                {
                    "id": str(hit.id),
                    "distance": _finite(hit.distance),
                    "lower_bound": hit.lower_bound,
                    "proven": hit.proven,
                }
                for hit in (*result.hits, *result.undecided[: int(k)])
            ]
        return answer

    def distance(self, request: dict[str, Any]) -> dict[str, Any]:
        """The number of edges that differ between ``first`` and ``second``, with its proof."""
        graphs = [
            _comparable(draw(self.estimator, self._encode(self._one(request, name))))
            for name in ("first", "second")
        ]
        seconds = _number(request, "seconds", self.limits.seconds, 0, self.limits.seconds)
        result = edit_distance(*graphs, costs=EditCosts.edges(), time_limit=float(seconds))
        first, second = (graph.num_nodes or 0 for graph in graphs)
        image = [int(v) if v < second else -1 for v in result.permutation[:first]]
        return {
            "distance": _finite(result.distance),
            "lower_bound": result.lower_bound,
            "exact": result.exact,
            "matching": image,
        }

    def _prediction(self, values: np.ndarray) -> dict[str, Any]:
        outputs = self.contents.outputs
        named = dict(zip(outputs.names, values.tolist(), strict=True))
        if outputs.kind == "classes":
            return {"prediction": outputs.names[int(values.argmax())], "probabilities": named}
        return {"probabilities" if outputs.kind == "answers" else "prediction": named}

    def _inputs(self, request: dict[str, Any]) -> list[Any]:
        given = request.get("graphs")
        if not isinstance(given, list) or not given:
            raise RequestError("graphs must be a list of at least one graph")
        if len(given) > self.limits.graphs:
            raise RequestError(f"graphs has {len(given)} entries; at most {self.limits.graphs}")
        return given

    def _one(self, request: dict[str, Any], name: str) -> list[Any] | Collection:
        """One graph of a request, as the estimator takes it."""
        given = request.get(name)
        if given is None:
            raise RequestError(f"{name} is missing: a SMILES, a node-link graph, or a position")
        if not isinstance(given, dict) or "position" not in given:
            return [self._parse(given, name)]
        position = given["position"]
        if type(position) is not int or not 0 <= position < len(self.contents):
            raise RequestError(
                f"{name}: position must be a whole number from 0 to {len(self.contents) - 1}"
            )
        if isinstance(self.graphs, Collection):
            return self.graphs.select(torch.tensor([position]))
        return [self.graphs[position]]

    def _encode(self, graphs: list[Any] | Collection) -> Collection:
        """The graphs as the network reads them, if they are within the limits."""
        return self.estimator._encode(self._collect(graphs))

    def _collect(self, graphs: list[Any] | Collection) -> list[Any] | Collection:
        """SMILES, or graphs encoded by the model's vocabulary, if they are within the limits."""
        if isinstance(graphs, Collection):
            return graphs
        if self.estimator.molecules_ is not None and not all(isinstance(g, str) for g in graphs):
            raise RequestError("this model reads molecules: send SMILES")
        fields = FieldNames(positions=self.estimator.field_names.positions)
        canonical = [as_graph(each, i, fields=fields) for i, each in enumerate(graphs)]
        for i, graph in enumerate(canonical):
            self._check_size(graph, i)
        return graphs if self.estimator.molecules_ else self.estimator.vocabulary_.encode(canonical)

    def _check_size(self, graph: Data, i: int) -> None:
        limits = self.limits
        if (graph.num_nodes or 0) > limits.vertices or graph.num_edges > 2 * limits.edges:
            raise RequestError(
                f"graph {i} has {counted(graph.num_nodes or 0, 'vertex')} and "
                f"{counted(graph.num_edges // 2, 'edge')}; at most {limits.vertices} and "
                f"{limits.edges}"
            )

    def _parse(self, given: Any, name: str) -> Any:
        """SMILES as they are; a node-link object as a canonical graph."""
        if isinstance(given, dict) and set(given) == {"smiles"}:
            given = given["smiles"]
        if isinstance(given, str):
            if len(given) > self.limits.text:
                raise RequestError(f"{name} is longer than {self.limits.text} characters")
            return given
        if not isinstance(given, dict):
            raise RequestError(f"{name} must be a SMILES, or a node-link graph with 'nodes'")
        for key, most in (("nodes", self.limits.vertices), ("links", 2 * self.limits.edges)):
            if isinstance(given.get(key), list) and len(given[key]) > most:
                raise RequestError(f"{name} has more than {most} {key}")
        with errors_about_graph(0, name):
            raw = choose_fields(node_link_graph(given), self.estimator.field_names)
            return canonicalise(raw, self.estimator.symmetrise)[0]


def _comparable(drawings: Drawings) -> Data:
    """A graph with the labels that the page compares."""
    u, v = torch.from_numpy(np.ascontiguousarray(drawings.ends))
    graph = Data(edge_index=torch.stack([torch.cat([u, v]), torch.cat([v, u])]))
    graph.num_nodes = int(drawings.ptr[-1])
    if drawings.label_names:
        graph.label = torch.from_numpy(drawings.label)
    if drawings.edge_label_names:
        graph.edge_label = torch.from_numpy(np.tile(drawings.edge_label, 2))
    return graph


def _hits(index: np.ndarray, distance: np.ndarray) -> list[dict[str, Any]]:
    pairs = zip(index.tolist(), distance.tolist(), strict=True)
    return [{"graph": i, "distance": value} for i, value in pairs]


def _number(
    request: dict[str, Any],
    name: str,
    default: int | float,
    least: int | float,
    most: int | float,
) -> int | float:
    value = request.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise RequestError(f"{name} must be a number from {least:g} to {most:g}")
    return value


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


ENDPOINTS: dict[str, tuple[str, Callable[[Answers, dict[str, Any]], dict[str, Any]]]] = {
    "predict": ("Predict for graphs.", Answers.predict),
    "describe": ("Drawing, soft permutation, outputs and neighbours of a graph.", Answers.describe),
    "explain": ("Contributions of vertices and edges to each output.", Answers.explain),
    "search": ("The nearest graphs of the collection.", Answers.search),
    "distance": ("The exact distance of two graphs, with its proof.", Answers.distance),
}
"""The requests of the API: a one-line description and the function that answers."""
