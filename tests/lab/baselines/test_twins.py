"""Systems equal their twins in PyG with equal weights."""

from functools import partial

import pytest
import torch
from lab.baselines.cases import GRAPHS
from samples import collect, double
from torch import nn
from torch.autograd import grad
from torch.testing import assert_close
from torch_geometric.nn import (
    GCNConv,
    GINConv,
    GINEConv,
    NNConv,
    SAGEConv,
    dense_diff_pool,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.nn.aggr import DegreeScalerAggregation
from torch_geometric.utils import to_dense_adj, to_dense_batch

from softperm.lab.baselines.classification import (
    GIN,
    GCNLayer,
    SAGELayer,
    SAGEPoolLayer,
    side_losses,
)
from softperm.lab.baselines.layers import (
    edge_conditioned_sum,
    mean_readout,
    sum_neighbours,
    sum_readout,
)
from softperm.lab.baselines.ogb import GINRound, PNARound
from softperm.lab.baselines.qm9 import EdgeNetwork
from softperm.nn.permutation import align_adjacency
from softperm.ops.ragged import graph_maximum, pool

BATCH = double(collect(GRAPHS)).batch(torch.arange(len(GRAPHS)))
X = torch.randn(BATCH.num_nodes, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def copy(ours: nn.Linear, theirs: nn.Module) -> None:
    theirs.weight.data = ours.weight.data
    if ours.bias is not None:
        theirs.bias.data = ours.bias.data


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (sum_readout, global_add_pool),
        (mean_readout, global_mean_pool),
        (graph_maximum, global_max_pool),
    ],
)
def test_readouts_equal_pyg(ours, theirs):
    assert_close(ours(X, BATCH.ptr), theirs(X, BATCH.batch))
    outside = torch.cat([X, torch.full((3, 5), 1e9, dtype=X.dtype)])
    assert_close(ours(outside, BATCH.ptr), theirs(X, BATCH.batch))


@pytest.mark.parametrize(
    ("layer", "aggr"),
    [
        (SAGELayer, "mean"),
        (partial(SAGELayer, aggregate=sum_neighbours), "sum"),
        (SAGEPoolLayer, "max"),
    ],
)
def test_graphsage_equals_pyg(layer, aggr):
    ours = layer(5, 7).double()
    theirs = SAGEConv(5, 7, aggr=aggr, project=aggr == "max").double()
    copy(ours.neighbours, theirs.lin_l)
    copy(ours.own, theirs.lin_r)
    if aggr == "max":
        copy(ours.project, theirs.lin)
    assert_close(ours(X, BATCH.edge_index), torch.relu(theirs(X, BATCH.edge_index)))


def test_gcn_equals_pyg():
    ours, theirs = GCNLayer(5, 7).double(), GCNConv(5, 7).double()
    nn.init.normal_(ours.bias)
    theirs.lin.weight.data, theirs.bias.data = ours.linear.weight.data, ours.bias.data
    assert_close(ours(X, BATCH.edge_index), torch.relu(theirs(X, BATCH.edge_index)))


def twin_mlp(ours: nn.Module) -> nn.Sequential:
    modules: list[nn.Module] = []
    for linear, norm in zip(ours.linears, ours.norms, strict=True):
        twin = nn.BatchNorm1d(len(norm.weight))
        twin.load_state_dict(norm.state_dict(), strict=False)
        modules += [linear, twin, nn.ReLU()]
    return nn.Sequential(*modules).double()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_gin_equals_pyg(mode):
    ours = GIN(3, 2, widths=(6, 4), train_eps=True, readout="mean").double()
    nn.init.normal_(ours.eps)
    ours.train(mode == "train")
    mlps = [twin_mlp(m).train(mode == "train") for m in ours.mlps]
    x = mlps[0](BATCH.x.double())
    expected = ours.linears[0](global_mean_pool(x, BATCH.batch))
    for k in (1, 2):
        conv = GINConv(nn.Identity(), eps=float(ours.eps[k - 1].detach())).double()
        x = mlps[k](conv(x, BATCH.edge_index))
        expected = expected + ours.linears[k](global_mean_pool(x, BATCH.batch))
    assert_close(ours(BATCH), expected)


def test_edge_conditioned_messages_equal_pyg():
    edges, h, f, out = BATCH.edge_index, 6, 5, 4
    last = nn.Linear(h, f * out).double()
    body = nn.Sequential(nn.Linear(2, h), nn.ReLU(), last).double()
    theirs = NNConv(f, out, body, aggr="add", root_weight=False, bias=False).double()
    attr = BATCH.edge_attr.double()
    hidden = nn.functional.pad(body[:2](attr), (0, 1), value=1.0)
    weight = torch.cat([last.weight.T, last.bias[None]]).view(h + 1, f, out)
    assert_close(edge_conditioned_sum(X, edges, hidden, weight), theirs(X, edges, attr))


def test_an_edge_network_equals_pyg():
    ours = EdgeNetwork(2, 5, 6).double()
    nn.init.normal_(ours.bias)
    body = nn.Sequential(ours.edge, nn.ReLU(), ours.theta)
    theirs = NNConv(5, 5, body, aggr="add").double()
    theirs.lin.weight, theirs.bias = ours.own.weight, ours.bias
    attr, back = BATCH.edge_attr.double(), BATCH.edge_index.flip(0)  # PyG: first row sends
    y, expected = ours(X, BATCH.edge_index, ours.units(attr)), theirs(X, back, attr)
    assert_close(y, expected)
    weights = [*ours.parameters()]
    for a, b in zip(grad(y.sum(), weights), grad(expected.sum(), weights), strict=True):
        assert_close(a, b)


def test_sparse_pooling_equals_pygs_dense_one():
    logits = X @ torch.randn(5, 3, dtype=X.dtype, generator=torch.Generator().manual_seed(1))
    x, mask = to_dense_batch(X, BATCH.batch)
    s_dense, _ = to_dense_batch(logits, BATCH.batch)
    adj = to_dense_adj(BATCH.edge_index, BATCH.batch).double()
    expected, pooled, link, _ = dense_diff_pool(x, adj, s_dense, mask, normalize=False)
    s = logits.softmax(1)
    ours = align_adjacency(s, BATCH.edge_index, BATCH.ptr, canonical=True)
    assert_close(pool(s, X, BATCH.ptr), expected)
    assert_close(ours, pooled)
    edges = X.new_tensor(BATCH.edge_index.shape[1])
    one, count = torch.tensor(1), BATCH.ptr[-1]
    side = side_losses(s, ours, pool(s, s, BATCH.ptr), edges, one, count)
    entropy = -(s * s.log()).sum(1).mean()
    assert_close(side - entropy, link)


def test_gin_with_edge_features_equals_pyg():
    ours = GINRound(5, 2).double().eval()
    nn.init.normal_(ours.eps)
    theirs = GINEConv(nn.Identity(), eps=float(ours.eps.detach())).double()
    embedded = ours.edge(BATCH.edge_attr.double())
    expected = ours.mlp(theirs(X, BATCH.edge_index.flip(0), embedded), BATCH.ptr[-1])
    assert_close(ours(X, BATCH), expected)


def test_pna_equals_pyg():
    counts = [0, 4, 7, 2]
    ours = PNARound(5, counts).double()
    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification"]
    theirs = DegreeScalerAggregation(
        aggregators, [*scalers, "attenuation"], torch.tensor(counts)
    ).double()
    (row, col), vertices = BATCH.edge_index, len(X)
    x = 1e3 * X  # deviations far above √1e-5, to which the two round 0 in different ways
    expected = ours.update(theirs(x[col], row, dim_size=vertices))
    several = torch.bincount(row) > 1
    assert_close(ours(x, BATCH)[several], expected[several], rtol=1e-4, atol=1e-3)
