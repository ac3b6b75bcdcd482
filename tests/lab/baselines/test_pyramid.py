"""Laws of pyramids of coarsened graphs: dense oracles, renumbering, batches."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from lab.baselines.cases import GRAPHS, molecule, network, outputs, shuffled
from samples import collect, double, plain_graph
from torch.testing import assert_close

from softperm.lab.baselines import pyramid
from softperm.lab.baselines.layers import TooLarge
from softperm.lab.baselines.pyramid import POOLINGS, Pyramid, add_pyramid, coarsened, with_pyramid

PLAIN = [plain_graph(n, seed=n, density=0.3) for n in (5, 1, 9, 2, 14)]


def adjacency(graph: nx.Graph) -> np.ndarray:
    return nx.to_numpy_array(graph, nodelist=list(graph), weight=None)


def weighted(n: int, seed: int) -> np.ndarray:
    """The weights of a connected graph."""
    a = np.random.default_rng(seed).uniform(0.1, 2, size=(n, n)) * adjacency(molecule(n, seed))
    return np.triu(a, 1) + np.triu(a, 1).T


def laplacian(a: np.ndarray) -> np.ndarray:
    return np.diag(a.sum(1)) - a


def of(graph: nx.Graph) -> Pyramid:
    """The pyramid of a graph without attributes."""
    batch = collect([graph]).batch(torch.tensor([0]))
    return Pyramid.of(batch.edge_index, batch.ptr)


@pytest.mark.parametrize("seed", range(5))
def test_kron_reduction_is_a_schur_complement_and_keeps_resistances(seed):
    a = weighted(11, seed)
    kept = np.arange(11) % 3 != 1
    reduced = laplacian(pyramid.kron_reduction(a, kept))
    whole = laplacian(a)
    inverse = np.linalg.inv(whole[np.ix_(~kept, ~kept)])
    schur = whole[np.ix_(kept, kept)] - whole[np.ix_(kept, ~kept)] @ inverse @ whole[~kept][:, kept]
    np.testing.assert_allclose(reduced, schur, atol=1e-12)

    def resistances(inverse: np.ndarray) -> np.ndarray:
        d = inverse.diagonal()
        return d[:, None] + d - 2 * inverse

    before = resistances(np.linalg.pinv(whole))[np.ix_(kept, kept)]
    np.testing.assert_allclose(resistances(np.linalg.pinv(reduced)), before, atol=1e-10)


@pytest.mark.parametrize("n", [2, 3, 7, 20, 40])
def test_every_removed_vertex_has_a_kept_neighbour_and_some_are_removed(n):
    for a in (weighted(n, seed=n), adjacency(nx.cycle_graph(n)), adjacency(nx.star_graph(n - 1))):
        kept = pyramid.side(a, pyramid.walk_counts(a))
        assert 0 < kept.sum() < n
        assert (a[~kept][:, kept].sum(axis=1) > 0).all()


def test_the_side_is_that_of_the_last_eigenvector():
    a = weighted(15, seed=2)
    u = np.linalg.eigh(laplacian(a))[1][:, -1]
    kept = pyramid.side(a, pyramid.walk_counts(a))
    assert kept.tolist() in ((u >= 0).tolist(), (u <= 0).tolist())


def test_a_large_graph_has_the_side_of_a_small_one(monkeypatch):
    a = weighted(40, seed=1)
    expected = pyramid.side(a, pyramid.walk_counts(a))
    monkeypatch.setattr(pyramid, "LARGE", 20)
    assert pyramid.side(a, pyramid.walk_counts(a)).tolist() == expected.tolist()
    complete = adjacency(nx.complete_graph(30))  # an eigenvalue of multiplicity 29
    assert 0 < pyramid.side(complete, pyramid.walk_counts(complete)).sum() < 30


def test_a_star_keeps_its_centre_and_a_complete_graph_some_vertices():
    assert of(nx.star_graph(6)).level[:, 0].tolist() == [POOLINGS, *[0] * 6]
    assert 0 < (of(nx.complete_graph(6)).level > 0).sum() < 6


def tables(batch) -> torch.Tensor:
    """The weights between all vertices in each level."""
    table = torch.zeros(batch.num_nodes, batch.num_nodes, POOLINGS + 1)
    table[*batch.edge_index] = batch.edge_levels
    return table


def test_the_order_of_vertices_does_not_matter():
    for seed in range(10):
        graph = molecule(4 + seed, seed)
        other = shuffled([graph], seed)[0]
        order = [list(other).index(v) for v in graph]  # where each vertex is in the other
        a, b = (add_pyramid(double(collect([g])).batch(torch.tensor([0]))) for g in (graph, other))
        place = torch.tensor(order)
        assert torch.equal(a.level, b.level[place])

        assert_close(tables(a), tables(b)[place][:, place], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "graph", [nx.path_graph(6), nx.cycle_graph(7), nx.complete_graph(5), nx.petersen_graph()]
)
def test_mirror_images_get_equal_outputs_whichever_side_is_kept(graph):
    """Nothing tells the sides of these graphs apart, so that the first vertex decides."""
    model = network("ecc", collect([graph])).eval()
    rng = np.random.default_rng(0)
    for _ in range(5):
        order = rng.permutation(len(graph)).tolist()
        other = nx.Graph()
        other.add_nodes_from(order)
        other.add_edges_from(graph.edges)
        assert_close(outputs(model, [graph]), outputs(model, [other]), rtol=1e-6, atol=1e-7)


HARD = {
    "equal degrees but for rounding": nx.turan_graph(40, 4),
    "no count tells the sides": nx.corona_product(nx.complete_graph(8), nx.path_graph(2)),
    "many equal eigenvalues": nx.balanced_tree(3, 5),
}


@pytest.mark.parametrize("graph", HARD.values(), ids=HARD)
def test_the_numbering_of_symmetric_graphs_does_not_matter(graph):
    graph, weights = nx.convert_node_labels_to_integers(graph), set()
    rng = np.random.default_rng(0)
    for _ in range(8):
        other = nx.Graph()
        other.add_nodes_from(range(len(graph)))
        order = rng.permutation(len(graph))
        other.add_edges_from((order[u], order[v]) for u, v in graph.edges)
        levels = tables(add_pyramid(double(collect([other])).batch(torch.tensor([0]))))
        of_levels = levels.flatten(0, 1).T.sort().values  # (levels, pairs)
        weights.add(tuple((1e4 * of_levels).round().flatten().tolist()))
    assert len(weights) == 1


def test_a_graph_whose_matrices_need_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr("softperm.lab.baselines.pyramid.LIMIT", 1000)
    with pytest.raises(TooLarge, match=r"ECC would need .* graph has 40 vertices"):
        with_pyramid(collect([nx.path_graph(40)]))


def test_a_graph_of_several_parts_has_their_pyramids():
    parts = [molecule(5, 0), nx.empty_graph(1), molecule(8, 1)]
    bare = [nx.Graph(part.edges) if part.edges else part for part in parts]
    for part, like in zip(bare, parts, strict=True):
        part.add_nodes_from(like)
    together, start = of(nx.disjoint_union_all(bare)), 0
    for part in bare:
        alone, n = of(part), len(part)
        assert torch.equal(together.level[start : start + n], alone.level)
        mine = (together.edge_index[0] >= start) & (together.edge_index[0] < start + n)
        assert torch.equal(together.edge_index[:, mine] - start, alone.edge_index)
        assert_close(together.edge_levels[mine], alone.edge_levels)
        start += n


def test_without_edges_every_vertex_stays():
    for graph in (nx.empty_graph(1), nx.empty_graph(4)):
        found = of(graph)
        assert found.level[:, 0].tolist() == [POOLINGS] * len(graph)
        assert found.edge_index.shape == (2, 0)
    assert coarsened(np.zeros((0, 0)), np.zeros((0, 3)))[-1][0].tolist() == []


def test_the_graphs_own_edges_are_the_first_level():
    for graph in PLAIN:
        found = of(graph)
        own = found.edge_levels[:, 0] > 0
        assert_close(found.edge_index[:, own].T.tolist(), sorted([*map(list, directed(graph))]))
        assert torch.equal(own, found.origin >= 0)
        row, col = found.edge_index
        for level in range(1, POOLINGS + 1):
            there = found.edge_levels[:, level] > 0
            assert (found.level[row[there]] >= level).all()
            assert (found.level[col[there]] >= level).all()


def directed(graph: nx.Graph) -> list[tuple[int, int]]:
    return [*graph.edges, *((v, u) for u, v in graph.edges)]


@pytest.mark.parametrize("graphs", [GRAPHS, PLAIN], ids=["attributes", "plain"])
def test_batches_of_a_prepared_collection_are_those_that_are_computed(graphs):
    collection = collect(graphs)
    prepared = with_pyramid(collection)
    for index in ([0, 1, 2, 3, 4], [3, 1], [2, 2, 0]):
        ours, theirs = (c.batch(torch.tensor(index)) for c in (prepared, collection))
        theirs = add_pyramid(theirs)
        assert add_pyramid(ours) is ours
        for name in ("edge_index", "edge_levels", "level", "edge_attr", "ptr"):
            if theirs.get(name) is not None:
                assert_close(ours[name], theirs[name])
    model = network("ecc", collection).eval()
    assert_close(outputs(model, prepared), outputs(model, collection))


def test_edges_of_coarser_levels_alone_have_no_label():
    labelled = replace(
        collect(PLAIN),
        edge_label=torch.zeros(collect(PLAIN).edge_index.shape[1], 1, dtype=torch.int16),
        edge_label_sizes=(2,),
    )
    prepared = with_pyramid(labelled)
    own = prepared.extra["edge_levels"][:, 0] > 0
    assert set(prepared.edge_label[own, 0].tolist()) == {0}
    assert set(prepared.edge_label[~own, 0].tolist()) <= {-1}
    assert prepared.edge_index.shape[1] == prepared.edge_ptr[-1] == len(own)
