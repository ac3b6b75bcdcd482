r"""Which vertices, edges and attributes an output of a π-GNN rests on: integrated gradients.

The head h reads aligned matrices Z, which are linear in the graph's own numbers for a fixed soft
permutation D. Integrated gradients along the straight line from a baseline :math:`Z_0`,

.. math:: g = \int_0^1 \nabla h(Z_0 + t (Z - Z_0)) \, dt, \qquad
    \sum_{pq} g_{pq} (Z - Z_0)_{pq} = h(Z) - h(Z_0),

are therefore pushed back through D exactly: the directed edge uv of weight :math:`A_{uv}` receives
:math:`\sum_{pq} g_{pq} D_{up} D_{vq} A_{uv}`, the attribute f of vertex u receives
:math:`\sum_p g_{pf} D_{up} X_{uf}`. The contributions of a graph add up to its output minus that of
the baseline.

Everything is computed in float64 on the CPU, one graph at a time, so that the explanation of a
graph has the same bits in every run and does not depend on other graphs.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.data.collection import GraphBatch, prepare
from softperm.nn.encoders import AlignedDistances, EmbeddedEdges, EmbedVertices
from softperm.nn.model import (
    PiGNN,
    View,
    adjacency_view,
    attribute_view,
    edge_attribute_view,
    encoded_view,
)
from softperm.pyg import Data

TOLERANCE = 1e-4
"""Largest completeness error relative to the largest difference from the baseline, by default."""
NODES = 4
"""Gauss–Legendre nodes in each interval of the path."""
LARGEST_COUNT = 2**17
"""Evaluations of the head after which the integration of one graph gives up."""
SHARE = 0.75
"""Share of the whole error that the intervals to be halved next have together."""
CHUNK = 2**22
"""Numbers in the gradients that are computed at once."""


@dataclass(frozen=True)
class Contribution:
    """One row of an explanation's table.

    Attributes:
        kind: ``edge``, ``edge attribute``, ``vertex attribute`` or ``structure``.
        u: a vertex, in the graph's own order.
        v: the other vertex of an edge; None for a vertex.
        attribute: name of the attribute; empty for an edge itself.
        output: name of the output.
        contribution: its share of the output's difference from the baseline.
    """

    kind: str
    u: int
    v: int | None
    attribute: str
    output: str
    contribution: float


@dataclass(frozen=True)
class Explanation:
    """The contributions of one graph's parts to each of its C outputs.

    ``vertices``, ``edges`` and ``reference`` add up to ``outputs - baseline``, up to
    ``completeness_error``.

    Attributes:
        outputs: the outputs of the graph.
        baseline: the outputs of the baseline.
        edge_index: the vertices of each undirected edge, which is listed once.
        edge_parts: contributions of each edge: of its presence or weight, then of each attribute.
        attributes: contributions of each attribute of each vertex.
        structure: contributions of the structural features of each vertex through its soft
            permutation; they are zero if that was held fixed.
        reference: contribution of the reference graphs, which a graph's parts cannot account for;
            zero if the baseline is the empty graph.
        completeness_error: ``outputs - baseline`` minus the sum of all contributions.
        output_names: a name for each output.
        attribute_names: a name for each attribute of a vertex.
        edge_attribute_names: a name for each attribute of an edge.
        structure_names: a name for each structural feature.
        explains: what the outputs are, in words.
    """

    outputs: Float[np.ndarray, " C"]
    baseline: Float[np.ndarray, " C"]
    edge_index: Int[np.ndarray, "2 E"]
    edge_parts: Float[np.ndarray, "E K C"]
    attributes: Float[np.ndarray, "N F C"]
    structure: Float[np.ndarray, "N S C"]
    reference: Float[np.ndarray, " C"]
    completeness_error: Float[np.ndarray, " C"]
    output_names: tuple[str, ...] = field(default=(), compare=False)
    attribute_names: tuple[str, ...] = field(default=(), compare=False)
    edge_attribute_names: tuple[str, ...] = field(default=(), compare=False)
    structure_names: tuple[str, ...] = field(default=(), compare=False)
    explains: str = field(default="", compare=False)

    @property
    def vertices(self) -> Float[np.ndarray, "N C"]:
        """Contribution of each vertex: the sum over its attributes and structural features."""
        return self.attributes.sum(1) + self.structure.sum(1)

    @property
    def edges(self) -> Float[np.ndarray, "E C"]:
        """Contribution of each undirected edge, attributes included."""
        return self.edge_parts.sum(1)

    @property
    def vertex_totals(self) -> Float[np.ndarray, "N C"]:
        """Contribution of each vertex with half of that of each of its edges."""
        totals = self.vertices.copy()
        for end in self.edge_index:
            np.add.at(totals, end, self.edges / 2)
        return totals

    @property
    def edge_totals(self) -> Float[np.ndarray, "E C"]:
        """Contribution of each edge, with those of its vertices shared out among their edges.

        The contribution of a vertex of degree k is divided equally among its k edges; that of a
        vertex without edges is left out.
        """
        degree = np.bincount(self.edge_index.ravel(), minlength=len(self.attributes))
        shares = self.vertices / np.maximum(degree, 1)[:, None]  # (N, C)
        return self.edges + shares[self.edge_index[0]] + shares[self.edge_index[1]]

    @property
    def relative_error(self) -> float:
        """The largest completeness error relative to the largest difference from the baseline."""
        scale = np.abs(self.outputs - self.baseline).max(initial=0.0)
        error = np.abs(self.completeness_error).max(initial=0.0)
        return float(error / scale) if scale else float(error)

    def table(self) -> list[Contribution]:
        """One row for each part of the graph that contributes to an output, and each output."""
        pairs = [(int(u), int(v)) for u, v in self.edge_index.T]
        single: list[tuple[int, int | None]] = [(u, None) for u in range(len(self.attributes))]
        edge_names = _names(self.edge_attribute_names, self.edge_parts.shape[1] - 1)
        blocks = [
            ("vertex attribute", single, self.attributes, self.attribute_names),
            ("structure", single, self.structure, self.structure_names),
            ("edge", pairs, self.edge_parts[:, :1], ("",)),
            ("edge attribute", pairs, self.edge_parts[:, 1:], edge_names),
        ]
        outputs = _names(self.output_names, len(self.outputs))
        return [
            Contribution(kind, place[0], place[1], name, outputs[c], float(values[i, k, c]))
            for kind, places, values, names in blocks
            for i, place in enumerate(places)
            for k, name in enumerate(_names(names, values.shape[1]))
            if values[i, k].any()
            for c in range(len(self.outputs))
        ]


def mean_explanation(explanations: Sequence[Explanation]) -> Explanation:
    """The explanation of the mean outputs of several networks, for one graph.

    Means of contributions add up to the mean of the outputs' differences from their baselines.
    """
    first = explanations[0]
    numbers = [
        each.name
        for each in fields(Explanation)
        if each.compare and each.name != "edge_index"  # the same edges in each of them
    ]
    means = {n: np.mean([getattr(each, n) for each in explanations], axis=0) for n in numbers}
    return replace(first, **means)


class Explainer:
    """Explains the outputs of a network, graph by graph.

    Args:
        model: the network; a copy of it in float64 is used.
        decode: applied to the network's outputs (B, C), which are explained in this form; must be
            affine or differentiable.
        through_network: whether the soft permutation moves along the path. Then the structural
            features and attributes of all vertices grow from zero, and the baseline is the same
            graph with zeros in their place: its edges stay, but vertices are indistinguishable.
            Edges receive no contributions of their own. Otherwise the baseline is the empty graph.
        reference: aligned matrices of the baseline in place of the empty graph's zeros, such as
            the means of :meth:`aligned` over training graphs; only without ``through_network``.
        tolerance: largest completeness error relative to the largest difference of an output from
            the baseline.
        sum_is_constant: whether the decoded outputs of each graph have the same sum, such as
            probabilities. The gradient of the last one follows from those of the others.
    """

    def __init__(
        self,
        model: PiGNN,
        decode: Callable[[Tensor], Tensor] | None = None,
        through_network: bool = True,
        reference: Sequence[Float[Tensor, "P ..."]] | None = None,
        tolerance: float = TOLERANCE,
        sum_is_constant: bool = False,
    ) -> None:
        if not 0 < tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1; got {tolerance}")
        if through_network and reference is not None:
            raise ValueError(
                "through the network the baseline is the same graph with features of zero; with "
                "reference graphs as the baseline, pass through_network=False"
            )
        if not through_network and any(isinstance(v, AlignedDistances) for v in model.views):
            raise ValueError(
                "the model reads distances, which receive no contributions of their own while the "
                "soft permutation is held fixed: explain through the network"
            )
        self.model = copy.deepcopy(model).cpu().double().eval()
        self.model.requires_grad_(False)
        self.decode = decode or (lambda outputs: outputs)
        self.reference = None if reference is None else [z.double().cpu() for z in reference]
        self.through_network, self.tolerance = through_network, tolerance
        self.sum_is_constant = sum_is_constant

    @torch.no_grad()
    def aligned(self, batch: GraphBatch) -> list[Float[Tensor, "B P ..."]]:
        """The aligned matrices of each graph, in float64; see ``reference``."""
        batch = self.model.encode(self._read(batch))
        plans = _plans(self.model.permutation(batch))
        return [view(d, batch) for d in plans for view in self.model.views]

    def __call__(self, graph: GraphBatch) -> Explanation:
        """Explains all outputs of a batch that holds one graph.

        Raises:
            ValueError: the batch holds another number of graphs.
        """
        if graph.ptr.numel() != 2:
            raise ValueError(f"expected a batch of one graph; got {graph.ptr.numel() - 1} graphs")
        batch = self._read(graph)
        with torch.no_grad():
            encoded = self.model.encode(batch)
        parts = _Parts(self.model, batch, encoded)
        explain = self._through_network if self.through_network else self._with_fixed_plans
        baseline, outputs, gradients, constant = explain(batch, encoded, parts)
        edges, attributes, structure = parts.contributions(gradients, batch.structure)
        total = edges.sum((0, 1)) + attributes.sum((0, 1)) + structure.sum((0, 1)) + constant
        return Explanation(
            outputs=outputs.numpy(),
            baseline=baseline.numpy(),
            edge_index=parts.ends.numpy(),
            edge_parts=edges.numpy(),
            attributes=attributes.numpy(),
            structure=structure.numpy(),
            reference=constant.numpy(),
            completeness_error=(outputs - baseline - total).numpy(),
        )

    def _head(self, aligned: Sequence[Tensor]) -> Tensor:
        return self.decode(self.model.head(aligned))  # (n, C)

    def _gradients(self, outputs: Float[Tensor, "n C"], inputs: Sequence[Tensor]) -> list[Tensor]:
        """The gradient (n, C, …) of each output with respect to each input (n, …)."""
        if not self.sum_is_constant:
            return _gradients(outputs, inputs)
        some = _gradients(outputs[:, :-1], inputs)
        return [torch.cat([g, -g.sum(1, keepdim=True)], 1) for g in some]

    def _read(self, batch: GraphBatch) -> GraphBatch:
        """The batch in float64, attributes standardised and labels embedded."""
        batch = prepare(batch).to("cpu").__copy__()
        self.model._check(batch)
        for name in ("structure", "x", "edge_attr", "edge_weight"):
            if batch.get(name) is not None:
                batch[name] = batch[name].double()
        with torch.no_grad():
            return self.model.embedding(self.model.standardise(batch))

    def _with_fixed_plans(
        self, batch: GraphBatch, encoded: GraphBatch, parts: _Parts
    ) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
        """Outputs at both ends of the path, gradients, and what the reference contributes."""
        with torch.no_grad():
            plans = _plans(self.model.permutation(encoded))  # K times (N, P)
            aligned = [view(d, encoded)[0] for d in plans for view in self.model.views]
            start = self.reference or [torch.zeros_like(z) for z in aligned]
            pairs = [torch.stack(pair) for pair in zip(start, aligned, strict=True)]
            baseline, outputs = self._head(pairs)  # (C,), (C,)
        deltas = [z - z0 for z, z0 in zip(aligned, start, strict=True)]

        def evaluate(t: Float[Tensor, " n"]) -> tuple[Float[Tensor, "n C"], list[Tensor]]:
            path = [
                (z0 + t.view(-1, *[1] * z0.ndim) * delta).requires_grad_()
                for z0, delta in zip(start, deltas, strict=True)
            ]
            values = self._head(path)
            return values.detach(), self._gradients(values, path)

        gradients = integrate(evaluate, deltas, baseline, outputs, self.tolerance)
        constant = -_sum([_inner(g, z0) for g, z0 in zip(gradients, start, strict=True)])
        still = [f.new_zeros(len(outputs), *f.shape) for f in (batch.structure, parts.x)]
        return baseline, outputs, parts.push_back(gradients, plans, encoded) + still, constant

    def _through_network(
        self, batch: GraphBatch, encoded: GraphBatch, parts: _Parts
    ) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
        """As :meth:`_with_fixed_plans`, along a path on which the features of vertices grow."""

        def evaluate(t: Float[Tensor, " n"]) -> tuple[Float[Tensor, "n C"], list[Tensor]]:
            copies, inputs = _repeat(batch, parts.x, t)
            moved = self.model.encode(copies)
            plans = _plans(self.model.permutation(moved))  # K times (n · N, P)
            values = self._head([view(d, moved) for d in plans for view in self.model.views])
            return values.detach(), self._gradients(values, inputs)

        (baseline, outputs), _ = evaluate(torch.tensor([0.0, 1.0], dtype=torch.float64))
        deltas = [batch.structure, parts.x]
        gradients = integrate(evaluate, deltas, baseline, outputs, self.tolerance)
        still = [values.new_zeros(len(outputs), *values.shape) for values in parts.values]
        return baseline, outputs, still + gradients, torch.zeros_like(outputs)


class _Parts:
    """The entries of one graph from which its aligned matrices are computed.

    A gradient with respect to an aligned matrix becomes one with respect to the weights and
    attributes of undirected edges (E, channels), or attributes of vertices (N, F). Where vertices
    are encoded by φ before they are aligned, a vertex has one number, its presence, which is 1.
    """

    def __init__(self, model: PiGNN, batch: GraphBatch, encoded: GraphBatch) -> None:
        self.model = model
        self.edge_index = batch.edge_index
        self.once = (batch.edge_index[0] < batch.edge_index[1]).nonzero()[:, 0]
        self.ends = batch.edge_index[:, self.once]  # (2, E)
        size = batch.structure.shape[0]
        x = batch.get("x")
        self.x = batch.structure.new_zeros(size, 0) if x is None else x
        self.weight = torch.ones(batch.edge_index.shape[1], 1, dtype=torch.float64)
        if any(isinstance(v, partial) and v.keywords.get("weighted") for v in model.views):
            self.weight = batch.edge_weight[:, None]
        self.vertex_labels = self.edge_labels = None
        if isinstance(model.embedding, EmbedVertices):
            self.vertex_labels = model.embedding.embedding.vectors(batch.label)  # (N, L, F)
        self.values = [self._read(view, batch) for view in model.views]

    def _read(self, view: View, batch: GraphBatch) -> Float[Tensor, "rows channels"]:
        """The numbers that a view aligns."""
        if _plain(view) is adjacency_view:
            return self.weight[self.once]
        if view is attribute_view:
            return self.x
        if view is encoded_view:
            return self.x.new_ones(len(self.x), 1)
        if view is edge_attribute_view:
            return batch.edge_attr[self.once]
        if isinstance(view, AlignedDistances):  # vertices receive its contributions
            return self.x.new_zeros(len(self.once), 0)
        if isinstance(view, EmbeddedEdges):
            self.edge_labels = view.embedding.vectors(batch.edge_label[self.once])  # (E, L, Fe)
            more = [] if batch.get("edge_attr") is None else [batch.edge_attr[self.once]]
            return torch.cat([self.edge_labels.sum(1), *more], 1)
        raise ValueError(
            f"explanations do not support the view {view!r}: use the views of softperm.nn.model"
        )

    def push_back(
        self, gradients: Sequence[Tensor], plans: Sequence[Tensor], batch: GraphBatch
    ) -> list[Float[Tensor, "*n C rows channels"]]:
        """Gradients with respect to aligned matrices as gradients with respect to the numbers.

        ``gradients`` are (…, C, P, …) for each of the ``plans`` (…, N, P) and each view.
        """
        pairs = [(d.unsqueeze(-3), view) for d in plans for view in self.model.views]
        return [
            self._push_back(g, d, view, batch)
            for g, (d, view) in zip(gradients, pairs, strict=True)
        ]

    def _push_back(self, g: Tensor, d: Tensor, view: View, batch: GraphBatch) -> Tensor:
        if view is attribute_view:
            return d @ g  # (…, C, N, F)
        if view is encoded_view:
            encoded = batch.encoded.detach().view(
                *d.shape[:-1], batch.encoded.shape[-1]
            )  # (…, 1, N, H)
            return ((d @ g) * encoded).sum(-1, keepdim=True)
        if _plain(view) is adjacency_view:
            power = view.keywords.get("power", 1) if isinstance(view, partial) else 1
            return self._walks(g, d, power)[..., None]  # (…, C, E, 1)
        u, v = self.ends
        channels = [((d[..., u, :] @ (m + m.mT)) * d[..., v, :]).sum(-1) for m in g.unbind(-1)]
        return torch.stack(channels, -1)  # (…, C, E, channels)

    def _walks(self, g: Tensor, d: Tensor, power: int) -> Float[Tensor, "*n C E"]:
        """Walks of several steps: each of the edges that a walk uses receives an equal share."""
        reached, (u, v) = [d], self.ends
        for _ in range(power - 1):
            source, target = self.edge_index
            messages = self.weight * reached[-1][..., target, :]
            reached.append(torch.zeros_like(d).index_add(-2, source, messages))
        shares = [
            ((before[..., u, :] @ (g + g.mT)) * after[..., v, :]).sum(-1)
            for before, after in zip(reached, reversed(reached), strict=True)
        ]
        return _sum(shares) / power

    def contributions(
        self, gradients: Sequence[Tensor], structure: Float[Tensor, "N S"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients times numbers: of edges (E, K, C), vertices (N, F, C), structure (N, S, C)."""
        *by_view, by_structure, by_x = gradients
        edges = by_x.new_zeros(len(self.once), 1, len(by_x))
        edge_attributes, presence = [], []
        for place, view in enumerate(self.model.views):
            gradient = _sum(by_view[place :: len(self.model.views)])  # of all permutations
            values = self.values[place]
            if _plain(view) is adjacency_view:
                edges = edges + _products(gradient, values, None)
            elif view is attribute_view:
                by_x = by_x + gradient
            elif view is encoded_view:
                presence.append(_products(gradient, values, None))
            else:
                edge_attributes.append(_products(gradient, values, self.edge_labels))
        attributes = torch.cat([_products(by_x, self.x, self.vertex_labels), *presence], 1)
        edges = torch.cat([edges, *edge_attributes], 1)
        return edges, attributes, _products(by_structure, structure, None)


def _products(
    gradient: Float[Tensor, "C rows channels"],
    values: Float[Tensor, "rows channels"],
    labels: Float[Tensor, "rows L Fl"] | None,
) -> Float[Tensor, "rows columns C"]:
    """Gradients times values; the leading ones of embedded labels add up to one for each label."""
    width = 0 if labels is None else labels.shape[2]
    columns = (gradient[..., width:] * values[:, width:]).permute(1, 2, 0)
    if labels is None:
        return columns
    return torch.cat([torch.einsum("cvf,vlf->vlc", gradient[..., :width], labels), columns], 1)


def _plain(view: View) -> View:
    """The view of which this one is a power."""
    return view.func if isinstance(view, partial) else view


def _plans(d: Float[Tensor, "*K V P"]) -> list[Float[Tensor, "V P"]]:
    """Each of the permutations side by side."""
    return list(d.unbind()) if d.ndim == 3 else [d]


def integrate(
    evaluate: Callable[[Float[Tensor, " n"]], tuple[Float[Tensor, "n C"], list[Tensor]]],
    deltas: Sequence[Tensor],
    baseline: Float[Tensor, " C"],
    outputs: Float[Tensor, " C"],
    tolerance: float,
) -> list[Float[Tensor, "C ..."]]:
    """Mean gradients along a path of which the outputs at both ends are known.

    Completeness holds in every interval of the path: the integral of the derivative is the
    difference of the outputs at the ends. The intervals in which Gauss–Legendre quadrature misses
    this by most, which are those with the kinks of ReLUs, are halved until the error of the whole
    path is within the tolerance, and the sum of absolute errors within ten times that.

    Args:
        evaluate: outputs at points between 0 and 1, and their gradients (n, C, …).
        deltas: the path's direction, one tensor for each gradient.
        baseline: outputs at 0.
        outputs: outputs at 1.
        tolerance: relative to the largest difference of an output between the ends.
    """
    rounding = 1e-13 * float(outputs.abs().max())  # all that is left for a graph without vertices
    allowed = max(tolerance * float((outputs - baseline).abs().max()), rounding)
    size = len(outputs) * max(1, sum(delta.numel() for delta in deltas))
    at_once = max(1, CHUNK // (2 * size * (NODES + 1)))
    edge = torch.zeros(1, dtype=torch.float64)
    intervals = _Intervals.measured(evaluate, deltas, edge, edge + 1, baseline[None])
    count = 1
    while not intervals.within(allowed):
        if count * (NODES + 1) > LARGEST_COUNT:
            warnings.warn(
                f"contributions differ from the output by up to {intervals.error.sum():.2g} after "
                f"{count * (NODES + 1)} evaluations; allow a larger tolerance",
                stacklevel=3,
            )
            break
        order = intervals.error.argsort(descending=True, stable=True)
        share = intervals.error[order].cumsum(0) / intervals.error.sum()
        worst, rest = order.split([n := int((share < SHARE).sum()) + 1, len(order) - n])
        parts = [intervals.chosen(rest)]
        for some in worst.split(at_once):
            whole = intervals.chosen(some)
            middle = (whole.left + whole.right) / 2
            left, right = torch.cat([whole.left, middle]), torch.cat([middle, whole.right])
            parts.append(_Intervals.measured(evaluate, deltas, left, right, whole.first))
        count += 2 * n
        intervals = _Intervals.joined(parts)
    return [mean.sum(0) for mean in intervals.integrals]


_COLUMNS = ("left", "right", "first", "last", "missed")  # of one row per interval


def _sum(terms: Sequence[Tensor]) -> Tensor:
    """The sum of at least one tensor, in their order."""
    return functools.reduce(torch.add, terms)


@dataclass(frozen=True)
class _Intervals:
    """Parts of a path, the outputs at their ends, and the integrals of the gradients."""

    left: Float[Tensor, " I"]
    right: Float[Tensor, " I"]
    first: Float[Tensor, "I C"]  # outputs at the left end
    last: Float[Tensor, "I C"]
    missed: Float[Tensor, "I C"]  # the difference of the outputs minus its quadrature
    integrals: list[Tensor]

    @classmethod
    def measured(
        cls,
        evaluate: Callable[[Tensor], tuple[Tensor, list[Tensor]]],
        deltas: Sequence[Tensor],
        left: Tensor,
        right: Tensor,
        first: Tensor,
    ) -> _Intervals:
        """Intervals of which the first begin with known outputs, ``first``.

        The k-th interval after these begins where the k-th one ends; see also :func:`integrate`.
        """
        nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(NODES))
        count, width = len(left), right - left
        t = left[:, None] + width[:, None] * (nodes + 1) / 2  # (I, n)
        values, gradients = evaluate(torch.cat([t, right[:, None]], 1).flatten())
        last = values.view(count, NODES + 1, -1)[:, -1]  # (I, C)
        first = torch.cat([first, last[: count - len(first)]])  # (I, C)
        inner = [g.view(count, NODES + 1, *g.shape[1:])[:, :-1] for g in gradients]
        slope = _sum([_inner(g, z) for g, z in zip(inner, deltas, strict=True)])  # (I, n, C)
        missed = last - first - width[:, None] / 2 * torch.einsum("inc,n->ic", slope, weights)
        integrals = [torch.einsum("in...,n,i->i...", g, weights / 2, width) for g in inner]
        return cls(left, right, first, last, missed, integrals)

    @property
    def error(self) -> Float[Tensor, " I"]:
        """The largest absolute error of an output in each interval."""
        return self.missed.abs().amax(1)

    def within(self, allowed: float) -> bool:
        """Whether the error of the whole path is small, and not only by cancellation."""
        whole = float(self.missed.sum(0).abs().max())
        return whole <= allowed and float(self.error.sum()) <= 10 * allowed

    def chosen(self, index: Tensor) -> _Intervals:
        columns = {name: getattr(self, name)[index] for name in _COLUMNS}
        return _Intervals(**columns, integrals=[g[index] for g in self.integrals])

    @staticmethod
    def joined(parts: Sequence[_Intervals]) -> _Intervals:
        columns = {n: torch.cat([getattr(part, n) for part in parts]) for n in _COLUMNS}
        groups = zip(*(part.integrals for part in parts), strict=True)
        return _Intervals(**columns, integrals=[torch.cat(group) for group in groups])


def _inner(g: Tensor, z: Tensor) -> Tensor:
    """The inner product of the last axes of g with all of z."""
    return (g * z).flatten(g.ndim - z.ndim).sum(-1)


def _gradients(outputs: Float[Tensor, "n C"], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The gradient (n, C, …) of each output with respect to each input (n, …)."""
    rows = [
        torch.autograd.grad(
            column.sum(), inputs, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for column in outputs.unbind(1)
    ]
    return [torch.stack(columns, 1) for columns in zip(*rows, strict=True)]


def _repeat(
    batch: GraphBatch, x: Float[Tensor, "N F"], t: Float[Tensor, " n"]
) -> tuple[GraphBatch, list[Float[Tensor, "n N _"]]]:
    """A copy of a graph for each t, its features times t; and these features."""
    n, size = len(t), len(x)
    shift = torch.arange(n).repeat_interleave(batch.edge_index.shape[1]) * size
    inputs = [(t.view(-1, 1, 1) * f).requires_grad_() for f in (batch.structure, x)]
    copies = Data(
        structure=inputs[0].flatten(0, 1),
        x=inputs[1].flatten(0, 1),
        edge_index=batch.edge_index.repeat(1, n) + shift,
        ptr=torch.arange(n + 1) * size,
        canonical=True,
    )
    for name in ("edge_attr", "edge_weight", "edge_label", "pos"):
        value = batch.get(name)
        if value is not None:
            copies[name] = value.repeat(n, *[1] * (value.ndim - 1))
    return cast("GraphBatch", copies), inputs


def _names(names: Sequence[str], count: int) -> Sequence[str]:
    return names if len(names) == count else [str(i) for i in range(count)]
