"""Edit distances, edge labels and thresholds, against enumeration and NetworkX."""

import math
from itertools import permutations

import networkx as nx
import numpy as np
import pytest
from distance.oracle import attained, labelled_graph, random_matrix

from softperm.distance import EditCosts, edit_distance, frobenius_distance, frobenius_matrix
from softperm.distance.branch_and_bound import bound_node, plant
from softperm.distance.costs import Frobenius
from softperm.distance.exact import read, solve
from softperm.distance.pairs import pair_of

USUAL = EditCosts()


def random_graph(
    rng: np.random.Generator, most: int = 6, least: int = 1, labels: str = "CN", bonds: str = "sd"
) -> nx.Graph:
    graph = nx.from_numpy_array(random_matrix(rng, int(rng.integers(least, most + 1))))
    nx.set_node_attributes(graph, {v: str(rng.choice(list(labels))) for v in graph}, "label")
    for *_, data in graph.edges(data=True):
        del data["weight"]
        data["label"] = str(rng.choice(list(bonds)))
    return graph


def with_weights(rng: np.random.Generator, graph: nx.Graph, weights: list[float]) -> nx.Graph:
    graph = graph.copy()
    nx.set_edge_attributes(graph, {e: float(rng.choice(weights)) for e in graph.edges}, "weight")
    return graph


def edit_cost(g1: nx.Graph, g2: nx.Graph, image: list, costs: EditCosts) -> float:
    """Cost of matching vertex i with image[i], or with nothing if that is None."""
    v1, v2 = list(g1), list(g2)
    total = costs.vertex_insertion * (len(v2) - sum(j is not None for j in image))
    for i, j in enumerate(image):
        if j is None:
            total += costs.vertex_deletion
        elif g1.nodes[v1[i]].get("label") != g2.nodes[v2[j]].get("label"):
            total += costs.vertex_substitution
    covered = 0.0
    for i, k in nx.complete_graph(len(v1)).edges:
        one = g1.get_edge_data(v1[i], v1[k])
        pair = (image[i], image[k])
        other = None if None in pair else g2.get_edge_data(*(v2[j] for j in pair))
        weight = [abs(e.get("weight", 1.0)) if e else 0.0 for e in (one, other)]
        covered += weight[1]
        mean = (costs.edge_insertion + costs.edge_deletion) / 2
        apart = costs.edge_deletion * weight[0] + costs.edge_insertion * weight[1]
        if one and other:
            difference = mean * abs(one.get("weight", 1.0) - other.get("weight", 1.0))
            surplus = (costs.edge_deletion - costs.edge_insertion) / 2 * (weight[0] - weight[1])
            if one.get("label") != other.get("label"):
                difference += costs.edge_substitution
            apart = min(apart, difference + surplus)
        total += apart
    everything = sum(abs(d.get("weight", 1.0)) for *_, d in g2.edges(data=True))
    return total + costs.edge_insertion * (everything - covered)


def enumerate_edits(g1: nx.Graph, g2: nx.Graph, costs: EditCosts) -> float:
    """The edit distance by trying every partial matching of vertices."""
    n, m = len(g1), len(g2)
    targets = [*range(m), *[None] * n]
    images = set(permutations(targets, n))
    return min(edit_cost(g1, g2, list(image), costs) for image in images)


COSTS = {
    "usual": USUAL,
    "edges": EditCosts.edges(),
    "edges by label": EditCosts.edges(2.0),
    "edges without labels": EditCosts.edges(0.0),
    "dear substitution": EditCosts(vertex_substitution=3.0, edge_substitution=5.0),
    "cheap substitution": EditCosts(vertex_substitution=0.5, edge_substitution=0.25),
    "unequal": EditCosts(1.0, 2.0, 1.5, 0.5, 1.5, 0.75),
    "fractions": EditCosts(0.3, 0.3, 0.37, 0.71, 0.71, 0.2),
    "free vertices": EditCosts(0.0, 0.0, 0.0, 1.0, 1.0, 1.0),
}


@pytest.mark.parametrize("name", COSTS)
def test_edit_distance_equals_enumeration(name):
    rng = np.random.default_rng(0)
    for _ in range(40):
        g1, g2 = (random_graph(rng, 4) for _ in range(2))
        result = edit_distance(g1, g2, costs=COSTS[name])
        assert result.exact
        np.testing.assert_allclose(result.distance, enumerate_edits(g1, g2, COSTS[name]), atol=1e-9)
        image = [int(j) if j < len(g2) else None for j in result.permutation[: len(g1)]]
        np.testing.assert_allclose(
            edit_cost(g1, g2, image, COSTS[name]), result.distance, atol=1e-9
        )


@pytest.mark.parametrize("weights", [[1.0, 2.0, 1.5, 3.0], [0.25, -1.0, 2.0], None])
@pytest.mark.parametrize("name", ["usual", "edges", "edges by label", "unequal"])
def test_edit_distance_with_weights_equals_enumeration(name, weights):
    rng = np.random.default_rng(1)
    for _ in range(20):
        drawn = rng.normal(size=12).round(3).tolist() if weights is None else weights
        g1, g2 = (with_weights(rng, random_graph(rng, 4), drawn) for _ in range(2))
        result = edit_distance(g1, g2, costs=COSTS[name])
        expected = enumerate_edits(g1, g2, COSTS[name])
        np.testing.assert_allclose(result.distance, expected, atol=1e-6)


def test_edit_distance_equals_networkx():
    rng = np.random.default_rng(2)
    same = {
        "node_match": lambda a, b: a["label"] == b["label"],
        "edge_match": lambda a, b: a["label"] == b["label"],
    }
    for _ in range(60):
        g1, g2 = (random_graph(rng, 5) for _ in range(2))
        assert edit_distance(g1, g2).distance == nx.graph_edit_distance(g1, g2, **same)


def test_counting_edges_is_half_the_squared_frobenius_distance():
    rng = np.random.default_rng(3)
    for substitution, edge_labels in ((0.0, False), (2.0, True)):
        for _ in range(30):
            g1, g2 = (random_graph(rng, 8) for _ in range(2))
            edges = edit_distance(g1, g2, costs=EditCosts.edges(substitution)).distance
            squared = frobenius_distance(g1, g2, labels=True, edge_labels=edge_labels).distance ** 2
            np.testing.assert_allclose(squared / 2, edges, atol=1e-9)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 2.0], [0.5, -1.25]])
def test_frobenius_distance_with_edge_labels_sums_the_squares_of_all_labels(weights):
    rng = np.random.default_rng(4)
    for _ in range(40):
        graphs = [with_weights(rng, random_graph(rng, 5, labels="C"), weights) for _ in range(2)]
        layers = []
        for graph in graphs:
            size = max(len(g) for g in graphs)
            layer = np.zeros((2, size, size))
            for u, v, data in graph.edges(data=True):
                layer["sd".index(data["label"]), u, v] = data["weight"]
            layers.append(layer + layer.transpose(0, 2, 1))
        squares = [
            np.square(layers[0] - layers[1][:, p][:, :, p]).sum()
            for p in map(list, permutations(range(layers[0].shape[1])))
        ]
        found = frobenius_distance(*graphs, edge_labels=True)
        np.testing.assert_allclose(found.distance**2, min(squares), atol=1e-5)
    assert frobenius_matrix(graphs, edge_labels=True)[0, 1] == pytest.approx(found.distance)


@pytest.mark.parametrize("costs", [USUAL, EditCosts.edges(), EditCosts(0.3, 0.3, 0.4, 0.7, 0.7)])
def test_a_threshold_stops_the_search_and_never_changes_the_answer(costs):
    rng = np.random.default_rng(5)
    stopped = 0
    for _ in range(40):
        g1, g2 = (random_graph(rng, 7) for _ in range(2))
        exact = edit_distance(g1, g2, costs=costs).distance
        for at_most in (0.0, 0.5 * exact, exact, exact + 0.1, 2 * exact + 1):
            result = edit_distance(g1, g2, costs=costs, at_most=at_most)
            assert result.lower_bound <= exact + 1e-9
            assert result.distance >= exact - 1e-9
            if exact <= at_most:
                assert result.exact
                assert result.distance == pytest.approx(exact)
            else:
                assert result.exact or result.lower_bound > at_most
                stopped += not result.exact
    assert stopped > 30


def test_a_threshold_is_in_units_of_the_frobenius_distance():
    path, cycle = nx.path_graph(9), nx.cycle_graph(9)
    assert frobenius_distance(path, cycle, at_most=2**0.5).exact
    short = frobenius_distance(path, cycle, at_most=1.4)
    assert short.lower_bound > 1.4
    a, b = nx.to_numpy_array(path), nx.to_numpy_array(cycle)
    np.testing.assert_allclose(attained(a, b, short.permutation), short.distance)


def test_a_threshold_decides_where_the_distance_itself_takes_too_long():
    rng = np.random.default_rng(6)
    a, b = random_matrix(rng, 40, 0.3), random_matrix(rng, 40, 0.4)
    assert not frobenius_distance(a, b, time_limit=0.2).exact
    assert frobenius_distance(a, b, at_most=10.0, time_limit=10.0).lower_bound > 10.0


@pytest.mark.parametrize("metric", [USUAL, EditCosts.edges(), Frobenius(True, True)], ids=str)
@pytest.mark.parametrize("weights", [None, [1.0, 2.0], [0.5, -1.25, 0.7]], ids=str)
def test_the_root_bound_never_exceeds_the_cost(metric, weights):
    rng = np.random.default_rng(7)
    positive = 0
    for _ in range(60):
        graphs = [random_graph(rng, 7) for _ in range(2)]
        if weights is not None:
            graphs = [with_weights(rng, graph, weights) for graph in graphs]
        packed, model = read(*graphs, metric)
        pair = pair_of(model, packed, 0, packed, 1)
        bound = bound_node(pair, plant(pair), 0, np.inf)
        if isinstance(metric, EditCosts):
            cost = edit_distance(*graphs, costs=metric).distance
        else:
            found = frobenius_distance(*graphs, labels=True, edge_labels=True)
            cost = found.distance**2 / 2
        assert bound <= cost + 1e-6
        positive += bound > 0.4 * cost > 0
    assert positive > 30


@pytest.mark.parametrize("metric", [Frobenius(), Frobenius(labels=True), EditCosts()], ids=str)
def test_the_quick_way_for_plain_graphs_takes_the_same_steps(metric):
    """Equal permutations, not only equal costs: both ways visit the same nodes."""
    rng = np.random.default_rng(8)
    for _ in range(40):
        packed, model = read(*(random_graph(rng, 9, 4, bonds="s") for _ in range(2)), metric)
        assert model.plain
        plain, general = (
            solve(pair_of(m, packed, 0, packed, 1), None)
            for m in (model, model._replace(plain=False))
        )
        assert plain.cost == general.cost
        np.testing.assert_array_equal(plain.permutation, general.permutation)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"vertex_insertion": -1.0}, "vertex_insertion is -1.0; expected a finite number"),
        ({"edge_deletion": math.inf}, "edge_deletion is inf; expected a finite number"),
        ({"edge_substitution": math.nan}, "edge_substitution is nan; expected"),
    ],
)
def test_impossible_costs_are_named(costs, message):
    with pytest.raises(ValueError, match=message):
        EditCosts(**costs)


def test_weight_that_is_lost_costs_a_deletion_and_weight_that_is_gained_an_insertion():
    light, heavy = (nx.Graph([(0, 1, {"weight": weight})]) for weight in (2.0, 5.0))
    costs = EditCosts(edge_insertion=10.0, edge_deletion=1.0)
    assert edit_distance(heavy, light, costs=costs).distance == 3
    assert edit_distance(light, heavy, costs=EditCosts(edge_deletion=10.0)).distance == 3


def test_a_threshold_is_a_distance():
    with pytest.raises(ValueError, match=r"at_most is -1; expected a distance"):
        frobenius_distance(nx.path_graph(3), nx.path_graph(3), at_most=-1)


def test_labels_of_one_graph_alone_are_an_error():
    with pytest.raises(ValueError, match="graph 1: it has no vertex labels to compare"):
        edit_distance(labelled_graph(np.zeros((2, 2)), ["C", "N"]), nx.path_graph(2))
