"""Aligned distances: positions of vertices reach the network as mixtures of Gaussian bins."""

import json
import re
import warnings
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from samples import collect, random_graph, renumber, run_command
from torch.testing import assert_close

from softperm import PiGNNAligner, PiGNNClassifier, PiGNNRegressor
from softperm.data.graphs import as_graphs
from softperm.estimators.pignn import UniformPermutationsWarning
from softperm.nn import permutation
from softperm.nn.attribution import Explainer
from softperm.nn.encoders import AlignedDistances
from softperm.nn.model import ModelConfig, PiGNN, build
from softperm.nn.permutation import align_distances
from softperm.ops import pairs
from softperm.ops.pairs import pair_sums
from softperm.pyg import Batch, Data
from softperm.settings import FieldNames, TrainingConfig
from softperm.training.data import Examples
from softperm.training.loop import fit
from softperm.training.stack import Stack
from softperm.training.tasks import Regression

PTR = torch.tensor([0, 5, 6, 6, 14, 17])  # one vertex, none; the last row is outside every graph
ROWS, P, CENTRES, WIDTH = 18, 4, torch.linspace(0, 3, 5, dtype=torch.float64), 0.75
SMALL = {"latent_vertices": 4, "hidden": 8, "progress": False, "head_hidden": (8,), "epochs": 3}


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


D, POS = drawn(ROWS, P).softmax(1), drawn(ROWS, 3, seed=1)


def by_loops(d: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
    """One pair of vertices after the other."""
    out = d.new_zeros(len(PTR) - 1, P, P, len(CENTRES))
    for graph, (first, last) in enumerate(zip(PTR[:-1].tolist(), PTR[1:].tolist(), strict=True)):
        for u in range(first, last):
            for v in set(range(first, last)) - {u}:
                distance = (pos[u] - pos[v]).norm()
                out[graph] += d[u, :, None, None] * d[v, None, :, None] * gaussians(distance)
    return out


def gaussians(distance: torch.Tensor) -> torch.Tensor:
    return torch.exp(-((distance[..., None] - CENTRES.to(distance)) ** 2) / (2 * WIDTH**2))


def aligned(d=D, pos=POS, ptr=PTR, largest=None) -> torch.Tensor:
    return align_distances(d, pos, ptr, gaussians, largest)


@pytest.mark.parametrize("largest", [None, 8, 20])
@pytest.mark.parametrize("at_once", [1, 40, 1 << 20])
def test_aligned_distances_are_sums_over_pairs(largest, at_once, monkeypatch):
    monkeypatch.setattr(permutation, "PAIRS_AT_ONCE", at_once)
    assert_close(aligned(largest=largest), by_loops(D, POS))


def test_aligned_distances_are_symmetric_and_zero_without_pairs():
    ours = aligned()
    assert_close(ours, ours.transpose(1, 2))
    assert not ours[1:3].any()
    assert aligned(D[:0], POS[:0], torch.tensor([0, 0])).shape == (1, P, P, 5)
    assert aligned(D[:0], POS[:0], torch.tensor([0])).shape == (0, P, P, 5)


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_positions_have_any_dimension(dimensions):
    pos = drawn(ROWS, dimensions)
    assert_close(aligned(pos=pos), by_loops(D, pos))


def test_rotating_moving_and_renumbering_change_nothing():
    rotation = torch.linalg.qr(drawn(3, 3, seed=2))[0]
    assert_close(aligned(pos=POS @ rotation + drawn(3, seed=3)), aligned())
    order = torch.arange(ROWS)
    order[6:14] = torch.tensor([9, 6, 13, 8, 7, 12, 10, 11])
    assert_close(aligned(D[order], POS[order]), aligned())


def test_a_graph_does_not_depend_on_its_batch():
    alone = [
        aligned(D[a:b], POS[a:b], torch.tensor([0, b - a]))
        for a, b in zip(PTR[:-1].tolist(), PTR[1:].tolist(), strict=True)
    ]
    assert_close(aligned(), torch.cat(alone))


def test_nothing_is_read_on_the_host_if_the_largest_graph_is_known():
    d, pos, ptr = (each.to("meta") for each in (D, POS, PTR))  # have no values to read
    assert aligned(d, pos, ptr, largest=8).shape == (5, P, P, 5)


def test_the_bins_of_a_network_are_gaussians_that_are_mixed():
    view = AlignedDistances(bins=5, furthest=3.0, channels=2).double()
    batch = Data(pos=POS, ptr=PTR)
    assert_close(view(D, batch), aligned() @ view.mixtures)
    one = AlignedDistances(bins=1, furthest=3.0, channels=1)
    assert_close(one.weigh(torch.tensor([[3.0]])), np.exp(-0.5) * one.mixtures[None])


@pytest.mark.parametrize("largest", [None, 8, 20])
@pytest.mark.parametrize("at_once", [1, 40, 1 << 20])
def test_gradients_are_those_of_finite_differences(largest, at_once, monkeypatch):
    monkeypatch.setattr(permutation, "PAIRS_AT_ONCE", at_once)
    torch.autograd.gradcheck(lambda d: aligned(d, largest=largest), D.clone().requires_grad_())
    view = AlignedDistances(bins=5, furthest=3.0, channels=2).double()
    batch = Data(pos=POS, ptr=PTR, largest=largest)

    def mixed(mixtures):
        return torch.func.functional_call(view, {"mixtures": mixtures}, (D, batch))

    torch.autograd.gradcheck(mixed, view.mixtures.detach().clone().requires_grad_())


def test_rows_before_the_first_graph_are_no_vertices(monkeypatch):
    ptr = torch.tensor([2, 6, 9])
    d = D[:12].clone().requires_grad_()

    def checked(weight, x, other, place):  # kernels of a GPU read what a place names
        assert bool(((place >= 0) & (place < other.shape[1])).all())
        return pair_sums(weight, x, other, place)

    monkeypatch.setattr(permutation, "pair_sums", checked)
    torch.autograd.gradcheck(lambda d: aligned(d, POS[:12], ptr), d)
    whole = aligned(D[2:9], POS[2:9], ptr - 2)
    assert_close(aligned(d, POS[:12], ptr).detach(), whole)


def test_sums_over_pairs_are_closed_under_differentiation():
    other = torch.tensor([[0, 1, 2]] * 3)
    weight = drawn(3, 3, 2).requires_grad_()
    x, place = drawn(3, 4, seed=1).requires_grad_(), torch.arange(3)
    torch.autograd.gradgradcheck(lambda w, x: pair_sums(w, x, other, place), (weight, x))
    for name in ("pair_sums", "sums_of_gradients", "pair_products"):
        given = (drawn(1, 3, 2, 4) if name == "pair_products" else weight[None]).detach()
        second = (drawn(1, 3, 2, 4) if name == "sums_of_gradients" else x[None]).detach()
        operator, reference = getattr(pairs, f"{name}_op"), getattr(pairs, f"_{name}")
        arguments = (given, second, other[None], place[None])
        assert_close(operator(*arguments), reference(*arguments))


def test_gradients_of_stacked_models_are_their_own():
    d = torch.stack([D, D.flip(0)]).requires_grad_()
    pos = torch.stack([POS, POS.flip(1)])

    def both(d, pos):
        return align_distances(d, pos, PTR, gaussians, 8)

    stacked = torch.vmap(both)(d, pos)
    weight = drawn(*stacked.shape)
    (ours,) = torch.autograd.grad((stacked * weight).sum(), d)
    alone = torch.stack([both(*each) for each in zip(d, pos, strict=True)])
    assert_close(stacked, alone)
    assert_close(ours, torch.autograd.grad((alone * weight).sum(), d)[0])


def test_gradients_with_positions_are_numbers():
    assert not aligned(D.clone().requires_grad_(), POS.clone().requires_grad_()).isnan().any()


# The network.

GRAPHS = [random_graph(n, seed=n) for n in (1, 3, 9, 5, 7, 4, 12, 6, 8, 2)]
CONFIG = ModelConfig(1, latent_vertices=5, hidden=6, attribute_size=3, distance_bins=4)


def positioned(graphs: list[nx.Graph], dimensions: int = 3) -> list[nx.Graph]:
    """Copies of graphs with random positions of their vertices."""
    copies = [graph.copy() for graph in graphs]
    for seed, graph in enumerate(copies):
        rng = np.random.default_rng(seed)
        nx.set_node_attributes(graph, {v: tuple(3 * rng.random(dimensions)) for v in graph}, "pos")
    return copies


def collection():
    plain = collect(GRAPHS)
    return replace(plain, extra={"pos": 3 * drawn(int(plain.ptr[-1]), 3).float()})


@pytest.mark.parametrize("more", [{}, {"head": "conv"}, {"permutation_heads": 2}])
def test_a_network_reads_distances_and_is_saved(more, tmp_path):
    graphs, config = collection(), replace(CONFIG, **more)
    network, batch = build(config, seed=0).eval(), graphs.batch(torch.arange(10))
    moved = replace(graphs, extra={"pos": graphs.extra["pos"] * 0.5}).batch(torch.arange(10))
    assert not torch.equal(network(batch), network(moved))
    heads = config.permutation_heads
    assert network.transform(batch).shape == (10, heads * (25 + 5 * 3 + 25 * 4))
    network.save(tmp_path)
    assert_close(PiGNN.load(tmp_path)(batch), network(batch))


def test_a_users_own_batch_may_have_positions():
    network = build(replace(CONFIG, attribute_size=0), seed=0).eval()
    edges = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(edge_index=edges, num_nodes=2, pos=torch.rand(2, 3)) for _ in range(2)]
    assert network(Batch.from_data_list(graphs)).shape == (2, 1)
    del graphs[0].pos, graphs[1].pos
    with pytest.raises(ValueError, match=r"^the network reads distances .* no positions .* in pos"):
        network(Batch.from_data_list(graphs))


def test_a_stack_gives_each_network_the_numbers_it_gets_alone(stack_device):
    graphs, y = collection(), torch.arange(10.0)[:, None]
    settings = TrainingConfig(epochs=4, batch_size=3, learning_rate=1e-2)
    train, held = [torch.arange(7), torch.arange(3, 10)], [torch.arange(7, 10), torch.arange(3)]
    tasks = [Regression.of(y[part]) for part in train]
    alone, together = ([build(CONFIG, seed).double() for seed in (3, 4)] for _ in range(2))
    for m, model in enumerate(alone):
        examples, validation = Examples(graphs, y, train[m]), Examples(graphs, y, held[m])
        fit(model, tasks[m], examples, replace(settings, seed=m), validation=validation)
    Stack(together, tasks, graphs, y, train, held, [0, 1], settings, device=stack_device).fit()
    for one, other in zip(alone, together, strict=True):
        batch = graphs.batch(torch.arange(10))
        assert_close(other.cpu()(batch), one.eval()(batch), rtol=1e-7, atol=1e-7)


def test_explanations_through_the_network_are_complete():
    batch = collection().batch(torch.tensor([6]))
    network = build(CONFIG, seed=0)
    explanation = Explainer(network)(batch)
    assert explanation.relative_error < 1e-4
    assert explanation.vertices.any()
    with pytest.raises(ValueError, match=r"explain through the network$"):
        Explainer(network, through_network=False)


# Estimators.


def as_data(graph: nx.Graph) -> Data:
    found = as_graphs([graph], fields=FieldNames(positions=True))[0]
    return Data(edge_index=found.edge_index, x=found.x, pos=found.pos, edge_attr=found.edge_attr)


@pytest.mark.parametrize("kind", ["networkx", "pyg"])
@pytest.mark.parametrize("more", [{}, {"ensemble": 2}, {"categories": "embedding"}])
def test_an_estimator_reads_positions_where_distances_are_asked_for(kind, more, tmp_path):
    graphs, y = positioned(GRAPHS), np.arange(10.0)
    graphs = [as_data(graph) for graph in graphs] if kind == "pyg" else graphs
    model = PiGNNRegressor(distance_bins=3, distance_range=4.0, **SMALL, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(graphs, y)
    names = model.get_feature_names_out()
    assert names[-1] == "distance_3_3_3"
    assert model.transform(graphs).shape == (10, len(names))
    assert len(model.permutations(graphs)) == 10
    assert sum(e.vertices.sum() for e in model.explain(graphs[:2], tolerance=0.01)) != 0
    model.save(tmp_path)
    assert_close(PiGNNRegressor.load(tmp_path).predict(graphs), model.predict(graphs))


def test_predictions_do_not_depend_on_the_numbering_of_vertices():
    graphs = positioned(GRAPHS)
    model = PiGNNRegressor(distance_bins=3, **SMALL).fit(graphs, np.arange(10.0))
    turned = [renumber(graph, list(graph)[::-1]) for graph in graphs]
    assert_close(model.predict(turned), model.predict(graphs), rtol=1e-4, atol=1e-4)


def test_networkx_and_pyg_give_the_same_predictions():
    graphs = positioned([nx.path_graph(n) for n in range(2, 9)])
    nx.set_edge_attributes(graphs[0], {})
    data = [Data(edge_index=g.edge_index, num_nodes=g.num_nodes, pos=g.pos) for g in as_graphs(
        graphs, fields=FieldNames(positions=True)
    )]  # fmt: skip
    model = PiGNNRegressor(distance_bins=3, **SMALL)
    first = model.fit(graphs, np.arange(7.0)).predict(graphs)
    assert_close(model.fit(data, np.arange(7.0)).predict(data), first)


def stretched(factor: float) -> list[nx.Graph]:
    """Paths along a line, and graphs of a vertex or none, which have no pairs."""
    graphs = [nx.path_graph(n) for n in (2, 5, 8, 3, 8, 6, 1)]
    for graph in graphs:
        nx.set_node_attributes(graph, {v: (factor * v, 0.0) for v in graph}, "pos")
    return graphs


@pytest.mark.parametrize("kind", [PiGNNRegressor, PiGNNAligner])
def test_a_warning_says_how_many_pairs_are_beyond_the_range(kind):
    graphs = stretched(10.0)
    distances = [10.0 * abs(u - v) for g in graphs for u in g for v in g if u < v]
    share = np.mean([d > 30 for d in distances])
    model = kind(distance_bins=3, distance_range=30.0, **{**SMALL, "hidden": 4})
    with pytest.warns(UserWarning, match="farther apart than distance_range") as caught:
        model.fit(graphs, *([] if kind is PiGNNAligner else [np.arange(7.0)]))
    (words,) = (str(w.message) for w in caught if "distance_range" in str(w.message))
    assert words.startswith(f"{share:.0%} of the pairs of vertices are farther apart than")
    assert words.endswith("(99% of the pairs are within 70)")


def test_the_share_of_far_pairs_is_measured_on_a_sample():
    large = nx.path_graph(500)
    nx.set_node_attributes(large, {v: (float(v),) for v in large}, "pos")
    model = PiGNNRegressor(distance_bins=2, distance_range=250.0, **SMALL)
    with pytest.warns(UserWarning, match="25% of the pairs of vertices are farther apart"):
        model.fit([large] * 4, np.arange(4.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UniformPermutationsWarning)
        model.set_params(distance_range=400.0).fit([large] * 4, np.arange(4.0))


def test_an_aligner_reads_positions():
    graphs = positioned([nx.path_graph(n) for n in (3, 4, 5) * 2])
    aligner = PiGNNAligner(distance_bins=3, latent_vertices=4, epochs=2, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UniformPermutationsWarning)
        aligner.fit(graphs)
    moved = graphs[3:]  # the same graphs at other positions
    assert not np.array_equal(aligner.transform(graphs[:3]), aligner.transform(moved))


def test_a_graph_without_vertices_needs_no_positions():
    graphs = [*positioned(GRAPHS), nx.Graph()]
    model = PiGNNClassifier(distance_bins=3, **SMALL)
    with pytest.warns(UserWarning, match="1 of 11 graphs has no vertices"):
        model.fit(graphs, np.arange(11) % 2)
    with pytest.warns(UserWarning, match="1 of 1 graph has no vertices"):
        assert model.predict(graphs[-1:]).shape == (1,)


def lacking(vertex: int) -> list[nx.Graph]:
    graphs = positioned(GRAPHS)
    del graphs[4].nodes[vertex]["pos"]
    return graphs


def with_value(value: object) -> list[nx.Graph]:
    graphs = positioned(GRAPHS)
    graphs[4].nodes[2]["pos"] = value
    return graphs


@pytest.mark.parametrize(
    ("graphs", "sentence"),
    [
        (GRAPHS, "graph 0: it has no positions, which distance_bins needs: give every vertex pos"),
        (lacking(2), "graph 4: vertex 2 has no pos, but 6 others have; give it to all or to none"),
        (with_value((1.0, 2.0)), "graph 4: pos of vertex 2 has 2 values, but that of vertex 0 has"),
        (with_value("a"), "graph 4: pos of vertex 2 is 'a'; expected a number or a vector"),
        (with_value((1.0, np.nan, 2.0)), "graph 4: pos of vertex 2 is nan in float32; expected"),
        (
            [*positioned(GRAPHS)[:9], *positioned(GRAPHS[9:], 2)],
            "graph 9: it has pos of 2 values a vertex, but 9 other graphs have pos of 3 values",
        ),
    ],
)
def test_unusable_positions_are_errors_that_name_the_graph(graphs, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        PiGNNRegressor(distance_bins=3, **SMALL).fit(graphs, np.arange(10.0))


def test_positions_have_as_many_coordinates_as_in_training(tmp_path):
    rings = positioned([nx.cycle_graph(n) for n in (3, 4, 5, 6)])
    flat = positioned([nx.cycle_graph(4)], dimensions=2)
    sentence = "it has pos of 2 values a vertex, but the model was trained on graphs with pos of 3"
    model = PiGNNRegressor(distance_bins=3, **SMALL)
    with pytest.raises(ValueError, match=f"^validation: graph 0: {sentence}"):
        model.fit(rings, np.arange(4.0), validation=(flat, [0.0]))
    model.fit(rings, np.arange(4.0)).save(tmp_path / "model")
    with pytest.raises(ValueError, match=f"^graph 0: {sentence}"):
        model.predict(flat)
    rows, out = [nx.node_link_data(graph, edges="links") for graph in [*rings, *flat]], tmp_path
    (out / "rings.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    done = run_command("predict", out / "model", out / "rings.jsonl", "--out", out / "p.csv")
    assert done.exit_code == 0, done.output
    assert "1 of 5 graphs has no result" in done.stderr
    assert sentence in done.stderr


def test_graphs_of_too_many_vertices_are_refused(monkeypatch):
    monkeypatch.setattr("softperm.data.canonical.MOST_POSITIONS", 11)
    with pytest.raises(ValueError, match=r"^graph 6: it has 12 vertices; distance_bins compares"):
        PiGNNRegressor(distance_bins=3, **SMALL).fit(positioned(GRAPHS), np.arange(10.0))


def test_positions_are_not_read_without_distances():
    graphs, model = positioned(GRAPHS), PiGNNRegressor(**SMALL)
    with pytest.warns(UserWarning, match="not used: pos .*; distance_bins reads pos as positions"):
        model.fit(graphs, np.arange(10.0))
    assert "pos" not in model.collect(graphs).extra


def test_smiles_have_no_positions():
    pytest.importorskip("rdkit")
    with pytest.raises(ValueError, match=r"^graph 0: it has no positions"):
        PiGNNRegressor(distance_bins=3, **SMALL).fit(["CCO", "CC"], [1.0, 2.0])


@pytest.mark.parametrize("gradients", [False, True])
def test_small_graphs_beside_a_large_one_cost_no_more_than_their_own_pairs(gradients, monkeypatch):
    monkeypatch.setattr(permutation, "PAIRS_AT_ONCE", 400)
    sizes = [100, *[5] * 60]
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    pos, d = torch.randn(400, 3), torch.rand(400, 4)
    pairs = []

    def weigh(distance):
        pairs.append(distance.numel())
        return distance[..., None]

    with torch.set_grad_enabled(gradients):
        aligned = align_distances(d, pos, ptr, weigh)
    assert sum(pairs) <= 100 * 100 + 300 * 5 + 4 * 100
    for b in range(len(sizes)):
        own = slice(ptr[b], ptr[b + 1])
        expected = d[own].T @ torch.cdist(pos[own], pos[own]) @ d[own]
        torch.testing.assert_close(aligned[b, ..., 0], expected, rtol=1e-4, atol=1e-4)


def test_positions_of_too_few_vertices_are_named():
    short = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=3, pos=torch.zeros(2, 3))
    clf = PiGNNClassifier(distance_bins=2, epochs=1, progress=False)
    with pytest.raises(ValueError, match="graph 0: pos has 2 rows"):
        clf.fit([short, short], [0, 1])
    with pytest.warns(UserWarning, match="are not used: pos"):
        as_graphs([short])
