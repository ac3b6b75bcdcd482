"""Fingerprints bound distances from below, whatever columns they have."""

import numpy as np
import pytest
from search.conftest import COLLECTIONS, random_collection

from softperm.data.graphs import as_graphs
from softperm.distance import EditCosts
from softperm.distance.exact import LARGEST
from softperm.distance.pairs import Packed, pack
from softperm.search import fingerprint
from softperm.search.fingerprint import choose_layout, fingerprints, lower_bounds, prices
from softperm.search.index import search_candidates

COSTS = {
    "edges": EditCosts.edges(),
    "edges by label": EditCosts.edges(2.0),
    "usual": EditCosts(),
    "fractions": EditCosts(0.3, 0.3, 0.5, 0.7, 0.7, 0.6),
}


def bounds_and_costs(graphs: list, costs: EditCosts, known: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds and exact costs of all pairs; the layout is chosen from the first graphs only."""
    listed = as_graphs(graphs)
    codes = costs.codes(listed)
    first = pack(listed[:known], codes)
    _, edge_label = codes.kinds()
    layout = choose_layout(first, edge_label, prices(costs.model(codes), edge_label))
    known_labels = int(edge_label.max(initial=0)) + 1
    packed = pack(listed, codes)
    model, (_, edge_label) = costs.model(codes), codes.kinds()
    price = prices(model, edge_label)
    classes = np.where(edge_label < known_labels, edge_label, 0)
    vectors = fingerprints(packed, classes, layout, model.strict)
    sizes = np.diff(packed.ptr)
    count = len(graphs)
    bounds, exact = np.empty((count, count)), np.empty((count, count))
    for g in range(count):
        bounds[g] = lower_bounds(vectors[g], int(sizes[g]), vectors, sizes, layout, price)
        vertices, edges = (slice(*ptr[g : g + 2]) for ptr in packed[:2])
        query = Packed(
            np.array([0, sizes[g]]), np.array([0, edges.stop - edges.start]),
            packed.label[vertices], packed.ends[edges], packed.kind[edges],
        )  # fmt: skip
        lower, match = np.empty(count), np.full((count, int(sizes[g])), -1, np.int32)
        search_candidates(
            model, query, packed, np.arange(count), 1e6, LARGEST, 10**6, 10**9, exact[g], lower,
            match,
        )  # fmt: skip
    return bounds, exact


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("kind", COLLECTIONS)
def test_bounds_never_exceed_the_exact_cost_of_any_pair(kind, costs):
    """5,000 pairs of each of 20 kinds: 100,000 in all."""
    graphs = random_collection(71, most=6, seed=len(kind), **COLLECTIONS[kind])
    bounds, exact = bounds_and_costs(graphs, COSTS[costs], known=71)
    assert np.isfinite(exact).all()
    assert (bounds <= exact + 1e-9).all()
    apart = exact > 0
    useful = 0.2 if COLLECTIONS[kind].get("weights") else 0.4  # edges count by the least weight
    assert bounds[apart].sum() > useful * exact[apart].sum()


@pytest.mark.parametrize("costs", COSTS)
def test_bounds_hold_for_labels_that_the_layout_does_not_know(costs):
    known = random_collection(30, labels="C", bonds="s", seed=1)
    graphs = known + random_collection(40, labels="CNOS", bonds="sdt", seed=2)
    bounds, exact = bounds_and_costs(graphs, COSTS[costs], known=30)
    assert (bounds <= exact + 1e-9).all()


@pytest.mark.parametrize("columns", [4, 9, 16])
def test_bounds_hold_if_counts_share_columns_and_are_cut_off(columns, monkeypatch):
    monkeypatch.setattr(fingerprint, "COLUMNS", columns)
    graphs = random_collection(60, most=7, labels="CNO", bonds="sd", seed=3)
    bounds, exact = bounds_and_costs(graphs, EditCosts.edges(), known=60)
    assert (bounds <= exact + 1e-9).all()
    assert (bounds > 0).any()


def test_half_the_difference_counts_edges_exactly_for_an_added_edge():
    """An edge changes one count at each end, so the bound is sharp."""
    graphs = random_collection(40, labels="CN", seed=4)
    extended = []
    for graph in graphs:
        if len(graph) > 1 and graph.number_of_edges() < len(graph) * (len(graph) - 1) / 2:
            other = graph.copy()
            missing = next(
                (u, v) for u in graph for v in graph if u < v and not graph.has_edge(u, v)
            )
            other.add_edge(*missing)
            extended += [graph, other]
    bounds, exact = bounds_and_costs(extended, EditCosts.edges(), known=len(extended))
    pairs = np.arange(0, len(extended), 2)
    np.testing.assert_array_equal(bounds[pairs, pairs + 1], exact[pairs, pairs + 1])
    assert (exact[pairs, pairs + 1] == 1).all()
