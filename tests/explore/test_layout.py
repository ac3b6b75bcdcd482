"""Places of vertices in drawings."""

import networkx as nx
import numpy as np
import pytest
from samples import collect, renumber
from scipy.spatial.distance import pdist, squareform

from softperm.explore.layout import PIVOTS, lay_out


def places_of(graphs: list[nx.Graph]) -> list[np.ndarray]:
    laid = collect(graphs)
    arrays = (laid.ptr.numpy(), laid.edge_ptr.numpy(), laid.edge_index.numpy())
    return np.split(lay_out(*arrays), laid.ptr.numpy()[1:-1])


def test_the_same_graph_is_drawn_in_the_same_way_wherever_it_stands():
    graph = nx.gnp_random_graph(12, 0.3, seed=1)
    first = places_of([graph])[0]
    _, second, _ = places_of([nx.path_graph(4), graph, nx.cycle_graph(5)])
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("n", [2, 7, 30])
def test_a_path_is_drawn_as_an_even_line_from_left_to_right(n):
    (places,) = places_of([nx.path_graph(n)])
    wanted = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) * 2 / (n - 1)
    np.testing.assert_allclose(squareform(pdist(places)), wanted, atol=0.15)
    assert places[:, 0].min() == pytest.approx(-1)
    assert places[:, 0].max() == pytest.approx(1)


def test_a_ring_is_drawn_as_a_ring():
    (places,) = places_of([nx.cycle_graph(8)])
    from_centre = np.linalg.norm(places - places.mean(0), axis=1)
    np.testing.assert_allclose(from_centre, from_centre.mean(), rtol=0.06)


@pytest.mark.parametrize(
    "graph", [nx.empty_graph(1), nx.empty_graph(5), nx.path_graph(PIVOTS + 40)]
)
def test_all_places_are_finite_and_within_the_frame(graph):
    (places,) = places_of([graph])
    assert np.isfinite(places).all()
    assert np.abs(places).max() <= 1 + 1e-9


def test_components_do_not_lie_on_each_other():
    (places,) = places_of([nx.disjoint_union(nx.cycle_graph(5), nx.cycle_graph(5))])
    assert pdist(places).min() > 0.1


def test_large_graphs_are_drawn_by_pivots_and_keep_their_shape():
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(15, 15))
    (places,) = places_of([renumber(grid, list(grid))])
    steps = dict(nx.all_pairs_shortest_path_length(grid))
    wanted = [steps[u][v] for u in range(225) for v in range(u + 1, 225)]
    assert np.corrcoef(wanted, pdist(places))[0, 1] > 0.9
