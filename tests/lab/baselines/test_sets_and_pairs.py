"""Pairs, sets, distances and eigenvectors against the plain way to find them."""

from itertools import combinations, pairwise, product

import networkx as nx
import numpy as np
import pytest
import torch
from lab.baselines.cases import GRAPHS, SMALL, network, outputs, shuffled
from samples import collect, double, plain_graph
from torch.testing import assert_close
from torch_geometric.nn.aggr import Set2Set as PyGSet2Set

from softperm.lab.baselines.classification import DiffPool
from softperm.lab.baselines.layers import TooLarge, edge_offsets
from softperm.lab.baselines.ogb import DGN, PHMLinear, directions, first_eigenvector
from softperm.lab.baselines.qm9 import (
    DTNN,
    GRU,
    MPNN,
    PPGN,
    EdgeNetwork,
    HierarchicalGNN,
    Places,
    Set2Set,
    bond_distance,
    edges_within,
    euclidean_distance,
    local_neighbours,
    pair_features,
    parts,
    subsets,
)
from softperm.lab.evaluation_data import with_positions
from softperm.lab.systems import SYSTEMS, DataShape

PLAIN = [plain_graph(n, seed=n, density=0.4) for n in (5, 1, 7, 2, 4)]
BATCH = double(collect(PLAIN)).batch(torch.arange(len(PLAIN)))
START = BATCH.ptr.tolist()


def whole() -> nx.Graph:
    """All graphs of the batch as one, numbered as there."""
    return nx.disjoint_union_all(PLAIN)


def sets_of(k: int) -> list[tuple[int, ...]]:
    spans = pairwise(START)
    return [s for a, b in spans for s in combinations(range(a, b), k)]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_subsets_are_all_combinations_once(k):
    sets = subsets(BATCH, k)
    found = [tuple(row) for row in sets.members.tolist()]
    assert sorted(found) == sorted(sets_of(k))
    for graph, (a, b) in enumerate(pairwise(sets.ptr.tolist())):
        assert all(START[graph] <= v < START[graph + 1] for row in found[a:b] for v in row)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_local_neighbours_differ_in_one_vertex_and_by_an_edge(k):
    sets, graph = subsets(BATCH, k), whole()
    members = [frozenset(row) for row in sets.members.tolist()]
    expected = set()
    for i, s in enumerate(members):
        for j, t in enumerate(members):
            if len(s & t) == k - 1 and graph.has_edge(*(s - t), *(t - s)):
                expected.add((i, j))
    found = [tuple(pair) for pair in local_neighbours(BATCH, sets).T.tolist()]
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize("k", [2, 3])
def test_parts_are_the_sets_of_one_vertex_less(k):
    sets, smaller = subsets(BATCH, k), subsets(BATCH, k - 1)
    for row, own in zip(sets.members.tolist(), parts(BATCH, sets, smaller).tolist(), strict=True):
        found = {tuple(smaller.members[i].tolist()) for i in own}
        assert found == set(combinations(row, k - 1))


@pytest.mark.parametrize("k", [2, 3])
def test_edges_within_a_set_are_summed(k):
    sets, graph = subsets(BATCH, k), whole()
    low = BATCH.edge_index.min(0).values * 100 + BATCH.edge_index.max(0).values
    found = edges_within(BATCH, sets, low[:, None].double())[:, 0]
    expected = [
        sum(100.0 * u + v for u, v in combinations(row, 2) if graph.has_edge(u, v))
        for row in sets.members.tolist()
    ]
    assert found.tolist() == expected


def test_pairs_and_their_distances_are_those_of_networkx():
    places, graph = Places.of(BATCH), whole()
    steps = dict(nx.all_pairs_shortest_path_length(graph))
    found, there = bond_distance(BATCH, places), pair_features(BATCH, places)[..., -1]
    different = places.different
    for g, (a, b) in enumerate(pairwise(START)):
        assert places.vertex[g].tolist() == [*range(a, b), *[len(graph)] * (7 - (b - a))]
        for u, v in product(range(a, b), repeat=2):
            assert found[g, u - a, v - a] == steps[u].get(v, np.inf)
            assert there[g, u - a, v - a] == graph.has_edge(u, v)
            assert different[g, u - a, v - a] == (u != v)
    assert different.sum() == sum((b - a) * (b - a - 1) for a, b in pairwise(START))
    assert there.sum() == 2 * graph.number_of_edges()
    x = torch.randn(len(graph), 3)
    assert torch.equal(places.gather(places.spread(x)), x)


def test_messages_among_all_places_are_those_along_all_edges():
    complete = [nx.complete_graph(n) for n in (4, 1, 6)]
    batch = double(collect(complete)).batch(torch.arange(3))
    message = EdgeNetwork(2, 5, 7).double()
    x = torch.randn(11, 5, dtype=torch.float64)
    e = torch.randn(batch.edge_index.shape[1], 2, dtype=torch.float64)
    places = Places.of(batch)
    units = places.pairs(message.units(e))  # 0 at pairs that are no edge
    assert_close(
        message.among_all(x, places, units), message(x, batch.edge_index, message.units(e))
    )


def test_the_recurrent_unit_and_the_readout_equal_torchs():
    ours, theirs = GRU(5).double(), torch.nn.GRUCell(5, 5).double()
    theirs.weight_ih.data, theirs.bias_ih.data = ours.given.weight.data, ours.given.bias.data
    theirs.weight_hh.data, theirs.bias_hh.data = ours.own.weight.data, ours.own.bias.data
    m, x = (torch.randn(BATCH.num_nodes, 5, dtype=torch.float64) for _ in range(2))
    assert_close(ours(m, x), theirs(m, x))
    reader, twin = Set2Set(5, 3).double(), PyGSet2Set(5, 3).double()
    twin.lstm.weight_ih_l0.data, twin.lstm.bias_ih_l0.data = (
        reader.given.weight.data,
        reader.given.bias.data,
    )
    twin.lstm.weight_hh_l0.data = reader.own.weight.data
    torch.nn.init.zeros_(twin.lstm.bias_hh_l0)
    assert_close(reader(x, BATCH.ptr), twin(x, BATCH.batch))


def test_the_first_eigenvector_solves_its_equation():
    connected = [g for g in PLAIN if nx.is_connected(g)] + [nx.path_graph(11), nx.star_graph(0)]
    batch = collect(connected).batch(torch.arange(len(connected)))
    phi = first_eigenvector(batch.edge_index, batch.ptr)
    for graph, part in zip(connected, phi.split(batch.ptr.diff().tolist()), strict=True):
        if len(graph) == 1:
            assert part.tolist() == [0.0]
            continue
        laplacian = nx.laplacian_matrix(graph, nodelist=range(len(graph))).toarray()
        value = np.linalg.eigvalsh(laplacian)[1]
        assert_close(torch.from_numpy(laplacian).double() @ part, value * part, rtol=0, atol=1e-9)
        assert_close(part.norm().item(), 1.0)


def test_the_field_weighs_neighbours_by_one_in_all_and_points_both_ways():
    path = collect([nx.path_graph(6)]).batch(torch.tensor([0]))
    phi = first_eigenvector(path.edge_index, path.ptr)
    field = directions(phi, path.edge_index, edge_offsets(path))[:, 0]
    total = torch.zeros(6, dtype=torch.float64).index_add(0, path.edge_index[0], field.abs())
    assert_close(total, torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-6)
    signs = {(u, v): s for (u, v), s in zip(path.edge_index.T.tolist(), field.sign(), strict=True)}
    assert all(signs[u, v] == -signs[v, u] == signs[0, 1] for u, v in signs if u < v)


def test_a_hypercomplex_layer_is_a_sum_of_kronecker_products():
    layer = PHMLinear(3, 6, 9).double()
    whole = sum(torch.kron(a, s) for a, s in zip(layer.rule, layer.weight, strict=True))
    x = torch.randn(4, 6, dtype=torch.float64)
    assert_close(layer(x), x @ whole.T + layer.bias)
    with pytest.raises(ValueError, match="multiples of 3; got 6 and 8"):
        PHMLinear(3, 6, 8)


POSITIONED = ["dtnn", "mpnn", "1-2-gnn", "1-2-3-gnn", "ppgn"]


def placed(graphs: list[nx.Graph], turn: np.ndarray):
    """The graphs with positions that follow their vertices, turned in space."""
    collection = collect(graphs)
    rng = np.random.default_rng(1)
    place = {(i, v): rng.normal(size=3) for i, g in enumerate(GRAPHS) for v in sorted(g)}
    rows = [place[i, v] @ turn + 5 for i, g in enumerate(graphs) for v in g]
    return with_positions(collection, torch.tensor(np.array(rows)).float())


@pytest.mark.parametrize("name", POSITIONED)
def test_with_positions_only_distances_count(name):
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    here = placed(GRAPHS, np.eye(3))
    shape = DataShape.of(here, 2)
    assert shape.positions
    model = SYSTEMS[name].build(shape, SMALL[name], 0).double().eval()
    y = outputs(model, here)
    assert_close(y, outputs(model, placed(shuffled(GRAPHS), turn)), rtol=1e-4, atol=1e-5)
    further = placed(GRAPHS, 2 * np.eye(3))
    assert not torch.allclose(y, outputs(model, further), rtol=1e-3)


def test_a_positioned_batch_holds_each_graphs_own_positions():
    here = placed(GRAPHS, np.eye(3))
    batch = here.batch(torch.tensor([3, 0]))
    own = torch.cat([here.extra["pos"][here.ptr[i] : here.ptr[i + 1]] for i in (3, 0)])
    assert_close(batch.pos, own)
    distance = euclidean_distance(batch, Places.of(batch))
    assert_close(distance[0, 0, 1], (own[0] - own[1]).norm())


LARGE = {
    "DTNN": lambda: DTNN(1, 1),
    "MPNN": lambda: MPNN(1, 1, 1),
    "PPGN": lambda: PPGN(1, 1, 1),
    "1-2-3-GNN": lambda: HierarchicalGNN(1, 1, 1, set_size=3),
    "DiffPool with 10 clusters": lambda: DiffPool(1, 40, 1, hidden=8, embedding=8),
    "DGN": lambda: DGN(1, 1, hidden=8, layers=2),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_does_not_fit_is_refused_in_words_before_it_is_built(name):
    batch = collect([nx.path_graph(40), nx.path_graph(3)]).batch(torch.arange(2))
    sentence = rf"{name} would need about [\d.]+ GiB .* 40 vertices, and may use 0.0 GiB: \w+"
    model = LARGE[name]()
    model.memory_limit = 1000
    with pytest.raises(TooLarge, match=sentence):
        model(batch)
    model.memory_limit = 2**33
    assert model(batch).shape == (2, 1)


def test_the_largest_graph_of_a_collection_can_be_refused():
    huge = collect([nx.path_graph(6000)])
    batch = huge.batch(torch.tensor([0]))
    for name in ("ppgn", "1-2-3-gnn"):
        with pytest.raises(TooLarge, match=r"6,000 vertices, and may use 24\.0 GiB"):
            network(name, huge)(batch)
    long = collect([nx.path_graph(1500)])
    for name in ("diffpool", "dgcnn", "gin"):  # bounded: no n × n matrix
        assert outputs(network(name, long).eval(), long).isfinite().all()


def test_the_shape_of_a_collection_is_what_it_holds():
    shape = DataShape.of(collect(PLAIN), 3, torch.tensor([0, 2]))
    assert (shape.outputs, shape.largest, shape.features, shape.edge_size) == (3, 7, 1, 1)
    assert (shape.size_percentiles[0], shape.size_percentiles[100]) == (5.0, 7.0)
    degrees = [d for i in (0, 2) for _, d in PLAIN[i].degree]
    assert list(shape.degree_counts) == np.bincount(degrees).tolist()
    dressed = DataShape.of(collect(GRAPHS), 1)
    assert (dressed.features, dressed.edge_size, dressed.continuous) == (3, 2, True)
