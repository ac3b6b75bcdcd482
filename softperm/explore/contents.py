"""The contents of the page, one dataclass for each part; see :func:`gather`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.data.collection import Collection
from softperm.estimators.pignn import PiGNNEstimator
from softperm.explore.latent import LatentSummary, LatentVertex
from softperm.explore.layout import lay_out
from softperm.explore.projection import SAMPLE, PrincipalAxes, VectorSpace, place_on_map
from softperm.nn.permutation import row_entropy
from softperm.search import GraphIndex
from softperm.training.cuda_graphs import evaluating
from softperm.training.tasks import MultiLabel

NEIGHBOURS = 8
LARGEST = 1000  # vertices of a graph that is drawn
TARGETS = 12  # targets with columns of their own
PROVEN_GRAPHS = 2000  # graphs whose proven neighbours are looked up
PROVEN_SECONDS = 1.0
EXPLANATION_TOLERANCE = 1e-3  # finer steps change no colour of a drawing
CATEGORIES = 50  # a column of more distinct strings is for search only

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Column:
    """One value for each graph, to colour and to filter the map by.

    Attributes:
        name: its title.
        role: ``target``, ``prediction``, ``error``, ``measure`` (of the graph) or ``metadata``.
        values: numbers, NaN where unknown; or codes of categories, their number where unknown.
        categories: the name of each code; None for numbers.
    """

    name: str
    role: str
    values: np.ndarray
    categories: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Drawings:
    """Vertices, edges and places of all graphs, laid end to end.

    Attributes:
        ptr: where each graph's vertices begin, with the total at the end.
        edge_ptr: where each graph's undirected edges begin, with the total at the end.
        ends: the vertices u < v of each undirected edge, numbered within the graph.
        places: of vertices, within −1 and 1.
        label: code of each vertex's label; zeros if there are none.
        label_names: the name of each code; empty if vertices have no labels.
        edge_label: code of each edge's label; zeros if there are none.
        edge_label_names: the name of each code; empty if edges have no labels.
        weight: of each edge; None means 1.
    """

    ptr: Int[np.ndarray, " B1"]
    edge_ptr: Int[np.ndarray, " B1"]
    ends: Int[np.ndarray, "2 E"]
    places: Float[np.ndarray, "V 2"]
    label: Int[np.ndarray, " V"]
    label_names: tuple[str, ...]
    edge_label: Int[np.ndarray, " E"]
    edge_label_names: tuple[str, ...]
    weight: Float[np.ndarray, " E"] | None = None


@dataclass(frozen=True)
class Outputs:
    """The network's outputs for each graph.

    Attributes:
        kind: ``classes`` (probabilities of classes), ``answers`` (probabilities of a yes) or
            ``numbers``.
        names: a name for each output.
        values: probabilities or numbers.
    """

    kind: str
    names: tuple[str, ...]
    values: Float[np.ndarray, "B C"]


@dataclass(frozen=True)
class Neighbours:
    """Other graphs near a graph.

    Attributes:
        ptr: where each graph's neighbours begin, with the total at the end.
        index: their positions, the nearest first.
        distance: their distances.
        exact: whether each distance is proven; None for distances of vectors.
    """

    ptr: Int[np.ndarray, " B1"]
    index: Int[np.ndarray, " K"]
    distance: Float[np.ndarray, " K"]
    exact: np.ndarray | None = None


@dataclass(frozen=True)
class StoredExplanation:
    """Contributions to each output of one graph; see :class:`softperm.nn.attribution.Explanation`.

    Attributes:
        vertices: contribution of each vertex.
        edges: ``edge_totals`` of each undirected edge, in the order of :class:`Drawings`.
    """

    vertices: Float[np.ndarray, "N C"]
    edges: Float[np.ndarray, "E C"]


@dataclass(frozen=True)
class Contents:
    """Everything that the page shows.

    Attributes:
        name: of the collection.
        ids: the name of each graph.
        places: of graphs on the map.
        map_method: ``pca``, ``umap`` or ``pacmap``.
        map_shares: share of the variance along the two axes of a ``pca``.
        columns: for colours and filters.
        drawings: the graphs themselves.
        permutations: the soft permutations D, laid end to end.
        outputs: predictions.
        neighbours: by learnt vector.
        proven: by exact distance; None without an index.
        explanations: by the position of the graph.
        explains: what the contributions of an explanation add up to, in words.
        latent: the meaning of each latent vertex.
        vectors: the aligned vectors, for neighbours of further graphs.
        facts: sharpness and scores, as names and texts.
        curve: rows of the training curve: epoch, losses, validation score.
        metric: name of the validation score.
    """

    name: str
    ids: Sequence[str]
    places: Float[np.ndarray, "B 2"]
    map_method: str
    map_shares: tuple[float, float]
    columns: tuple[Column, ...]
    drawings: Drawings
    permutations: Float[np.ndarray, "V P"]
    outputs: Outputs
    neighbours: Neighbours
    proven: Neighbours | None
    explanations: Mapping[int, StoredExplanation]
    explains: str
    latent: tuple[LatentVertex, ...]
    vectors: VectorSpace
    facts: Mapping[str, str] = field(default_factory=dict)
    curve: Sequence[Mapping[str, float]] = ()
    metric: str = ""

    def __len__(self) -> int:
        return len(self.ids)


def gather(
    estimator: PiGNNEstimator,
    graphs: Any,
    ids: Sequence[str],
    columns: Mapping[str, np.ndarray],
    *,
    name: str = "graphs",
    method: str = "pca",
    explained: int = 100,
    explain_seconds: float = math.inf,
    index: GraphIndex | None = None,
    facts: Mapping[str, str] | None = None,
    curve: Sequence[Mapping[str, float]] = (),
    report: Report = lambda activity, done, total: None,
) -> Contents:
    """Computes the contents of the page.

    Args:
        estimator: a fitted estimator.
        graphs: as for ``predict``, or an encoded collection.
        ids: a name for each graph.
        columns: targets and metadata: one value for each graph.
        name: of the collection.
        method: of the map; see :func:`softperm.explore.projection.place_on_map`.
        explained: number of graphs, evenly spread, whose explanations are stored.
        explain_seconds: time after which no further graph is explained.
        index: for proven neighbours; its identifiers are those of the graphs.
        facts: shown as they are, such as scores.
        curve: rows of the training curve.
        report: called with an activity, how much of it is done, and the total.
    """
    collection = estimator._encode(graphs)
    outputs = read_outputs(estimator, collection)
    drawings = draw(estimator, collection)
    permutations, vectors, entropy, latent = _align(estimator, collection, drawings, report)
    nearest, distances = vectors.neighbours(NEIGHBOURS)
    count = nearest.shape[1]
    return Contents(
        name=name,
        ids=ids,
        places=place_on_map(vectors.coordinates.astype(float), method),
        map_method=method,
        map_shares=(float(vectors.axes.shares[0]), float(vectors.axes.shares[1])),
        columns=_columns(estimator, outputs, columns, drawings, entropy),
        drawings=drawings,
        permutations=permutations,
        outputs=outputs,
        neighbours=Neighbours(
            np.arange(len(ids) + 1) * count, nearest.ravel(), distances.ravel().astype(float)
        ),
        proven=None if index is None else _proven(index, ids, report),
        explanations=_explain(
            estimator, graphs, drawings, min(explained, len(ids)), explain_seconds, report
        ),
        explains="" if _forest_alone(estimator) else estimator._explains(),
        latent=latent,
        vectors=vectors,
        facts={**(facts or {}), **_sharpness_facts(estimator)},
        curve=curve,
        metric=estimator.task_.metric,
    )


def _sharpness_facts(estimator: PiGNNEstimator) -> dict[str, str]:
    sharpness, config = estimator.sharpness_, estimator.model_.config
    if sharpness is None or config is None:
        return {}
    used = f"{sharpness.used_latent_vertices:.1f} of {config.latent_vertices}"
    return {
        "row entropy (1 is uniform)": f"{sharpness.row_entropy:.3f}",
        "latent vertices in use": used,
        "variance in one component": f"{sharpness.first_component:.1%}",
    }


def draw(estimator: PiGNNEstimator, collection: Collection) -> Drawings:
    """The drawings of a collection; graphs of more than 1,000 vertices have no places."""
    ptr, edge_ptr = collection.ptr.numpy(), collection.edge_ptr.numpy()
    edge_index = collection.edge_index.numpy()
    once = edge_index[0] < edge_index[1]
    before = np.concatenate([[0], np.cumsum(once)])
    small = np.diff(ptr) <= LARGEST
    places = lay_out(
        np.concatenate([[0], np.cumsum(np.diff(ptr) * small)]),
        np.concatenate([[0], np.cumsum(np.diff(edge_ptr) * small)]),
        edge_index[:, np.repeat(small, np.diff(edge_ptr))],
    )
    whole = np.zeros((int(ptr[-1]), 2))
    whole[np.repeat(small, np.diff(ptr))] = places
    vocabulary = estimator.vocabulary_
    label, label_names = _first_labels(collection.label, vocabulary.labels, len(whole))
    edge_label, edge_label_names = _first_labels(
        collection.edge_label, vocabulary.edge_labels, len(once)
    )
    if estimator.molecules_ == "ogb":
        label_names = tuple(map(_element, label_names))
    weight = collection.edge_weight
    return Drawings(
        ptr=ptr,
        edge_ptr=before[edge_ptr],
        ends=edge_index[:, once],
        places=whole,
        label=label,
        label_names=label_names,
        edge_label=edge_label[once],
        edge_label_names=edge_label_names,
        weight=None if weight is None else weight.numpy()[once],
    )


def _first_labels(
    codes: Tensor | None, names: Sequence[Sequence[object]], count: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes and names of the first column of labels; unknown labels have a code of their own."""
    if codes is None or not names:
        return np.zeros(count, np.int64), ()
    known = tuple(map(str, names[0]))
    first = codes[:, 0].long().numpy()
    if (first < 0).any():
        return np.where(first < 0, len(known), first), (*known, "unknown")
    return first, known


def _element(number: str) -> str:
    """The symbol of an atomic number; the number itself where RDKit is missing."""
    try:
        from rdkit.Chem import GetPeriodicTable
    except ImportError:
        return number
    return GetPeriodicTable().GetElementSymbol(int(number)) if number.isdecimal() else number


def read_outputs(estimator: PiGNNEstimator, collection: Collection) -> Outputs:
    """The predictions for a collection."""
    outputs = estimator.outputs_of(collection, torch.arange(len(collection)))
    names = tuple(map(str, estimator._output_names()))
    if not hasattr(estimator, "classes_"):
        values = estimator.decode(outputs).reshape(len(outputs), -1)
        kind = "numbers"
    else:
        values = estimator.probabilities(outputs)
        kind = "answers" if isinstance(estimator.task_, MultiLabel) else "classes"
    if len(names) != values.shape[1]:
        names = tuple(f"output {c}" for c in range(values.shape[1]))
    return Outputs(kind, names, values)


def _align(
    estimator: PiGNNEstimator, collection: Collection, drawings: Drawings, report: Report
) -> tuple[np.ndarray, VectorSpace, np.ndarray, tuple[LatentVertex, ...]]:
    """Permutations, vectors and row entropy of all graphs; what latent vertices stand for."""
    model, total = estimator.model_, len(collection)
    device = next(model.parameters()).device
    sample = torch.linspace(0, total - 1, min(total, SAMPLE)).long().unique()
    batches = sample.split(int(estimator.batch_size))
    with torch.no_grad(), evaluating(model):
        vectors = [model.transform(collection.batch(b).to(device)).cpu().numpy() for b in batches]
        axes = PrincipalAxes.of(np.concatenate(vectors))
        summary = LatentSummary(drawings.label, drawings.label_names)
        plans, coordinates, entropies = [], [], []
        for part in torch.arange(total).split(int(estimator.batch_size)):
            report("aligning graphs", int(part[0]), total)
            batch = collection.batch(part).to(device)
            d, views = model._align(batch)
            vector = torch.cat([view.flatten(1) for view in views], 1).cpu().numpy()  # (B, Z)
            coordinates.append(axes.project(vector).astype(np.float32))
            plan = (d if d.ndim == 2 else d[0]).cpu()  # (V, P)
            entropies += [float(row_entropy(d)) for d in plan.split(batch.ptr.diff().tolist())]
            rows = int(drawings.ptr[int(part[0])])
            summary.add(plan.numpy(), batch.edge_index.cpu().numpy(), rows)
            plans.append(plan.numpy())
        report("aligning graphs", total, total)
    latent = summary.latent_vertices(drawings.ptr)
    space = VectorSpace(axes, np.concatenate(coordinates))
    return np.concatenate(plans), space, np.array(entropies), latent


def _columns(
    estimator: PiGNNEstimator,
    outputs: Outputs,
    given: Mapping[str, np.ndarray],
    drawings: Drawings,
    entropy: np.ndarray,
) -> tuple[Column, ...]:
    """The target first, then predictions, errors, measures of the graphs, and metadata."""
    targets = [name for name in estimator.target_names_ if name in given][:TARGETS]
    columns = []
    for c, name in enumerate(estimator.target_names_[:TARGETS] or ("target",)):
        columns += _judged(outputs, c, name, given.get(name), len(estimator.target_names_) > 1)
    sizes = np.diff(drawings.ptr).astype(float), np.diff(drawings.edge_ptr).astype(float)
    columns += [
        Column("vertices", "measure", sizes[0]),
        Column("edges", "measure", sizes[1]),
        Column("row entropy", "measure", entropy),
    ]
    columns += [_column(name, "metadata", v) for name, v in given.items() if name not in targets]
    return tuple(column for column in columns if column is not None)


def _judged(
    outputs: Outputs, c: int, name: str, truth: np.ndarray | None, several: bool
) -> list[Column | None]:
    """Target, prediction and error of one target."""
    if outputs.kind == "numbers":
        predicted = outputs.values[:, min(c, outputs.values.shape[1] - 1)]
        columns: list[Column | None] = [Column(f"predicted {name}", "prediction", predicted)]
        if truth is not None and truth.dtype.kind in "if":
            values = truth.astype(float)
            columns.insert(0, Column(name, "target", values))
            columns.append(Column(f"absolute error of {name}", "error", np.abs(predicted - values)))
        return columns
    if outputs.kind == "answers":
        chance = Column(f"probability of {name}", "prediction", outputs.values[:, c])
        return [None if truth is None else _column(name, "target", truth), chance]
    best = outputs.values.argmax(1)
    columns = [Column(f"predicted {name}", "prediction", best, outputs.names)]
    if truth is not None:
        code_of = {value: code for code, value in enumerate(outputs.names)}
        codes = np.array([code_of.get(_text(value), len(code_of)) for value in truth])
        wrong = np.where(codes == len(code_of), 2, (codes != best).astype(int))
        columns.insert(0, Column(name, "target", codes, outputs.names))
        columns.append(Column("error", "error", wrong, ("right", "wrong")))
    return columns


def _column(name: str, role: str, values: np.ndarray) -> Column | None:
    """A column of numbers or categories; None for strings of too many values to colour by."""
    if values.dtype.kind in "ifb" and values.ndim == 1:
        return Column(name, role, values.astype(float))
    names, codes = np.unique(values.astype(str), return_inverse=True)
    return Column(name, role, codes, tuple(names.tolist())) if len(names) <= CATEGORIES else None


def _text(value: Any) -> str:
    return str(value.item() if isinstance(value, np.generic) else value)


def _explain(
    estimator: PiGNNEstimator,
    graphs: Any,
    drawings: Drawings,
    count: int,
    seconds: float,
    report: Report,
) -> dict[int, StoredExplanation]:
    """Explanations of evenly spread graphs that are not too large to draw, until the time is over.

    The order is random, so that those that are ready in time are spread over all graphs.
    """
    if count <= 0 or _forest_alone(estimator):
        return {}
    sizes = np.diff(drawings.ptr)
    chosen = np.unique(np.linspace(0, len(sizes) - 1, count).astype(int))
    chosen = np.random.default_rng(0).permutation(chosen[sizes[chosen] <= LARGEST]).tolist()
    results = estimator.iterate_explanations(
        graphs if isinstance(graphs, Collection) else [graphs[i] for i in chosen],
        index=chosen if isinstance(graphs, Collection) else None,
        tolerance=EXPLANATION_TOLERANCE,
    )
    stored, end = {}, monotonic() + seconds
    for done, i in enumerate(chosen):
        if monotonic() > end:
            break
        report("explaining predictions", done, len(chosen))
        result = next(results)
        stored[i] = StoredExplanation(result.vertices, result.edge_totals)
    report("explaining predictions", len(chosen), len(chosen))
    return stored


def _forest_alone(estimator: PiGNNEstimator) -> bool:
    """Whether trees alone predict; they have no contributions."""
    return estimator.head == "forest" and estimator.forest_ is not None


def _proven(index: GraphIndex, ids: Sequence[str], report: Report) -> Neighbours:
    """The nearest graphs of an index for up to 2,000 graphs, each within a second."""
    position = {str(identifier): i for i, identifier in reversed(list(enumerate(ids)))}
    chosen = set(np.unique(np.linspace(0, len(ids) - 1, PROVEN_GRAPHS).astype(int)).tolist())
    counts, places, distances, exact = [], [], [], []
    for i, identifier in enumerate(ids):
        hits: list[Any] = []
        if i in chosen and identifier in index:
            report("proven neighbours", i, len(ids))
            result = index.nearest(
                index.graph(identifier), NEIGHBOURS + 1, time_limit=PROVEN_SECONDS
            )
            hits = [h for h in result if str(h.id) in position and h.id != identifier][:NEIGHBOURS]
        counts.append(len(hits))
        places += [position[str(hit.id)] for hit in hits]
        distances += [hit.distance for hit in hits]
        exact += [hit.proven for hit in hits]
    return Neighbours(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.array(places, np.int64),
        np.array(distances, float),
        np.array(exact, bool),
    )
