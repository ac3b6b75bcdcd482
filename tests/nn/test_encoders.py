"""Encoders equal PyG's convolutions with the same weights, and padding leaves no trace."""

import networkx as nx
import pytest
import torch
from samples import collect, double, labelled_path, random_graph
from torch import nn
from torch.testing import assert_close
from torch_geometric.nn import GCNConv, GINConv
from torch_geometric.utils import add_self_loops

from softperm.nn.encoders import (
    GCNEncoder,
    GINEncoder,
    LinearEncoder,
    LogScale,
    Moments,
    Standardise,
    StandardiseAttributes,
    VertexBatchNorm,
    VertexNetwork,
    VertexStatistics,
)

BATCH = collect([random_graph(n, seed=n) for n in (6, 1, 9, 4)]).batch(torch.arange(4))
V, FEATURES, HIDDEN = 20, 3, 7


def features() -> torch.Tensor:
    """Attributes of the vertices and, last, the padding vertex."""
    return nn.functional.pad(BATCH.x.double(), (0, 0, 0, 1))


def seeded(kind, *arguments) -> nn.Module:
    torch.manual_seed(0)
    return kind(*arguments).double()


def run(encoder: nn.Module, x: torch.Tensor | None = None) -> torch.Tensor:
    return encoder(features() if x is None else x, BATCH.edge_index, BATCH.ptr)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_gcn_equals_pyg(layers):
    ours = seeded(GCNEncoder, FEATURES, HIDDEN, layers)
    x = features()
    for k, linear in enumerate(ours.linears):
        theirs = GCNConv(FEATURES if k == 0 else HIDDEN, HIDDEN).double()
        theirs.lin.weight.data, theirs.bias.data = linear.weight.data, linear.bias.data
        x = torch.relu(theirs(x, BATCH.edge_index))
    assert_close(run(ours), x)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_gin_equals_pyg(layers, mode, loops):
    """Without the padding vertex, on which PyG's batch normalisation would count."""
    ours = seeded(GINEncoder, FEATURES, HIDDEN, layers, None, loops)
    edges = add_self_loops(BATCH.edge_index, num_nodes=V)[0] if loops else BATCH.edge_index
    x = features()[:-1]
    for norm in ours.norms:
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
        norm.weight.data.uniform_(0.5, 2)
    parts = zip(ours.inner, ours.norms, ours.outer, strict=True)
    for inner, norm, outer in parts:
        first, last = nn.Linear(x.shape[1], HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN)
        twins = [first, nn.BatchNorm1d(HIDDEN), last]
        mlp = nn.Sequential(twins[0], twins[1], nn.ReLU(), twins[2], nn.ReLU())
        theirs = GINConv(mlp, eps=0.0).double().train(mode == "train")  # initialises its network
        for twin, own in zip(twins, (inner, norm, outer), strict=True):
            twin.load_state_dict(own.state_dict(), strict=False)
        x = theirs(x, edges)
    ours.train(mode == "train")
    assert_close(run(ours)[:-1], x)


@pytest.mark.parametrize("kind", [GCNEncoder, GINEncoder])
def test_one_round_sees_neighbours_and_two_rounds_see_theirs(kind):
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])  # a path of four vertices
    ptr = torch.tensor([0, 4])
    x = torch.zeros(5, FEATURES, dtype=torch.float64)
    changed = x.clone()
    changed[0] = 1
    for layers in (1, 2, 3):
        encoder = seeded(kind, FEATURES, HIDDEN, layers).eval()
        moved = (encoder(x, edges, ptr) != encoder(changed, edges, ptr)).any(dim=1)
        assert not moved[layers + 1 :].any()
        assert moved[layers]


def test_the_linear_encoder_is_one_layer_and_a_relu():
    ours = seeded(LinearEncoder, FEATURES, HIDDEN)
    linear = ours.linear
    assert_close(run(ours), torch.relu(features() @ linear.weight.T + linear.bias))


@pytest.mark.parametrize("kind", [LinearEncoder, GCNEncoder, GINEncoder])
def test_the_padding_vertex_is_encoded_as_an_isolated_vertex_without_features(kind):
    encoder = seeded(kind, FEATURES, HIDDEN).eval()
    alone = torch.zeros(2, FEATURES, dtype=torch.float64)
    none = torch.empty(2, 0, dtype=torch.long)
    assert_close(run(encoder)[-1], encoder(alone, none, torch.tensor([0, 1]))[0])


def test_batch_normalisation_equals_torch_on_the_real_vertices():
    ours, theirs = VertexBatchNorm(4).double(), nn.BatchNorm1d(4).double()
    generator = torch.Generator().manual_seed(1)
    for ours_param, theirs_param in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
        values = torch.rand(4, generator=generator, dtype=torch.float64)
        ours_param.data, theirs_param.data = values.clone(), values.clone()
    for step in range(4):
        x = torch.randn(11 + step, 4, generator=generator, dtype=torch.float64) * 3 + 1
        count = torch.tensor(8 + step)
        one, other = x.clone().requires_grad_(), x[:count].clone().requires_grad_()
        weight = torch.randn(int(count), 4, generator=generator, dtype=torch.float64)
        found, expected = ours(one, count)[:count], theirs(other)
        assert_close(found, expected)
        (found * weight).sum().backward()
        (expected * weight).sum().backward()
        assert_close(one.grad[:count], other.grad)
        assert_close(ours.weight.grad, theirs.weight.grad)
        assert_close(ours.running_mean, theirs.running_mean)
        assert_close(ours.running_var, theirs.running_var)
    ours.eval()
    theirs.eval()
    assert_close(ours(x, count), theirs(x))


def test_padding_touches_no_statistics_of_batch_normalisation():
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    one, other = VertexBatchNorm(3), VertexBatchNorm(3)
    padded = torch.cat([x, torch.full((5, 3), 1e6)])
    found = one(padded, torch.tensor(6))[:6]
    assert_close(found, other(x, torch.tensor(6)))
    assert_close(one.running_mean, other.running_mean)
    assert_close(one.running_var, other.running_var)


def test_batch_normalisation_of_a_single_vertex_is_finite():
    norm = VertexBatchNorm(3)
    found = norm(torch.randn(2, 3), torch.tensor(1))
    assert bool(found.isfinite().all())
    assert bool(norm.running_var.isfinite().all())


def test_log_scale_touches_the_leading_features_alone():
    x = torch.tensor([[0.0, 9.0, -5.0], [1e6, 0.0, 2.0]])
    scaled = LogScale(2)(x)
    assert_close(scaled[:, :2], torch.log1p(x[:, :2]))
    assert_close(scaled[:, 2], x[:, 2])


def test_standardise_centres_and_scales_the_leading_features():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 7 + 3
    scaled = Standardise(Moments.of(x[:, :2]))(x)
    assert_close(scaled[:, :2].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    assert_close(scaled[:, :2].std(0, correction=0), torch.ones(2))
    assert_close(scaled[:, 2], x[:, 2])


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_a_feature_that_only_rounding_varies_is_only_centred(noise):
    x = torch.full((5, 1), 0.3) + torch.tensor([[0.0], [noise], [0.0], [noise], [0.0]])
    assert Standardise(Moments.of(x))(x).abs().max() < 1e-6


def test_statistics_are_those_of_the_vertices_of_training_graphs():
    graphs = [random_graph(n, seed=n) for n in (6, 1, 9, 4)]
    whole, part = collect(graphs), collect([graphs[0], graphs[2]])
    found = VertexStatistics.of(whole, torch.tensor([2, 0]))
    assert found == VertexStatistics.of(part, torch.tensor([0, 1]))
    x, structure = part.x.double(), part.structure.double()
    assert_close(torch.tensor(found.attributes.mean), x.mean(0), check_dtype=False)
    assert_close(torch.tensor(found.structure.mean), structure.mean(0), check_dtype=False)
    logs = torch.log1p(structure)
    assert_close(torch.tensor(found.log_structure.mean), logs.mean(0), check_dtype=False)
    assert_close(torch.tensor(found.log_structure.std), logs.std(0, False), check_dtype=False)


def test_labels_are_not_standardised():
    graphs = [labelled_path(word) for word in ("aab", "ba")]
    for graph in graphs:
        nx.set_node_attributes(graph, {v: [7.0 * v] for v in graph}, "x")
    collection = collect(graphs)
    found = VertexStatistics.of(collection, torch.arange(2)).attributes
    assert found.mean[:2] == (0.0, 0.0)
    assert found.std[:2] == (1.0, 1.0)
    batch = collection.batch(torch.arange(2))
    scaled = StandardiseAttributes(found)(batch)
    assert_close(scaled.x[:, :2], batch.x[:, :2])
    assert abs(float(scaled.x[:, 2].mean())) < 1e-6
    assert float(batch.x[:, 2].max()) == 14, "the given batch stays as it was"


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_the_network_of_vertices_is_its_definition(rounds):
    network = seeded(VertexNetwork, FEATURES, HIDDEN, rounds)
    x = features()[:-1]
    dense = torch.zeros(V, V, dtype=torch.float64)
    dense[BATCH.edge_index[0], BATCH.edge_index[1]] = 1

    def layer(k: int, h: torch.Tensor) -> torch.Tensor:
        norm = nn.BatchNorm1d(HIDDEN).double()
        return torch.relu(norm(h @ network.linears[k].weight.T))

    expected = layer(1, layer(0, x))
    for k in range(2, 2 + rounds):
        expected = expected + layer(k, expected + dense @ expected)
    assert_close(run(network)[:-1], expected)


def test_encoded_vertices_do_not_depend_on_padding_vertices():
    collection = double(collect([random_graph(n, seed=n) for n in (6, 1, 9, 4)]))
    batch = collection.batch(torch.arange(4))
    found = []
    for rows in (0, 11):
        network = seeded(VertexNetwork, FEATURES, HIDDEN, 2)
        x = nn.functional.pad(batch.x, (0, 0, 0, rows), value=100.0)
        found.append((network(x, batch.edge_index, batch.ptr)[:V], *network.buffers()))
    for one, other in zip(*found, strict=True):
        assert_close(one, other)
