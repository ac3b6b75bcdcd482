"""Laws of the whole network, for every variant of it."""

import math

import networkx as nx
import pytest
import torch
from samples import VARIANTS, collect, double, dressed, random_graph, renumber, variant_name
from torch_geometric.data import Batch, Data

from softperm.data.collection import Collection
from softperm.nn.model import ModelConfig, PiGNN, build

SIZES = (1, 2, 7, 12, 20)
EVERYTHING = torch.arange(len(SIZES))
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)
both_precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["f32", "f64"]
)


def graphs() -> list[nx.Graph]:
    return [random_graph(n, seed=n) for n in SIZES]


def network(variant: dict, dtype: torch.dtype = torch.float64, **more) -> PiGNN:
    settings = {**variant, "attribute_size": 3 if variant["attributes"] else 0, **more}
    del settings["attributes"]
    config = ModelConfig(outputs=3, latent_vertices=6, hidden=8, layers=2, **settings)
    return build(config, seed=1).to(dtype).eval()


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def all_kinds() -> list[nx.Graph]:
    """Also graphs whose vertices are much alike: almost uniform plans, which rounding shows in."""
    regular = nx.random_regular_graph(3, 14, seed=0)
    alike = [
        nx.star_graph(17),
        nx.cycle_graph(9),
        regular,
        nx.path_graph(25),
        nx.complete_graph(16),
    ]
    return [*graphs(), *(dressed(g, seed) for seed, g in enumerate(alike))]


@both_precisions
@every_variant
def test_output_does_not_depend_on_the_numbering_of_vertices(variant, dtype, tolerance):
    model = network(variant, dtype)
    generator = torch.Generator().manual_seed(0)
    whole = all_kinds()
    shuffled = [renumber(g, torch.randperm(len(g), generator=generator).tolist()) for g in whole]
    everything = torch.arange(len(whole))
    ours, theirs = (double(collect(g)).batch(everything) for g in (whole, shuffled))
    close(model(ours), model(theirs), tolerance)


@both_precisions
@every_variant
def test_output_does_not_depend_on_the_grouping_into_batches(variant, dtype, tolerance):
    model = network(variant, dtype)
    collection = double(collect(all_kinds()))
    together = model(collection.batch(torch.arange(len(collection))))
    order = torch.tensor([3, 0, 7, 4, 1, 8, 2, 5, 6])
    apart = torch.cat([model(collection.batch(part)) for part in order.split([2, 1, 4, 2])])
    close(together[order], apart, tolerance)


@pytest.mark.parametrize("dustbin", [False, True])
@pytest.mark.parametrize("encoder", ["linear", "gcn", "gin"])
def test_padding_row_equals_padding_vertices(encoder, dustbin):
    """The single weighted row stands for explicit isolated vertices without features."""
    capacity = 25
    variant = {"encoder": encoder, "attributes": True, "dustbin": dustbin, "head": "mlp"}
    padded_graphs = []
    for graph in graphs():
        padded = graph.copy()
        padded.add_nodes_from(range(len(graph), capacity), x=[0.0, 0.0, 0.0])
        padded_graphs.append(padded)
    ours = double(collect(graphs())).batch(EVERYTHING)
    theirs = double(collect(padded_graphs)).batch(EVERYTHING)
    model = network({**variant, "capacity": capacity})
    explicit = network({**variant, "capacity": None})
    explicit.load_state_dict(model.state_dict())
    close(model(ours), explicit(theirs), 1e-10)
    for d, d_padded in zip(model.permutations(ours), explicit.permutations(theirs), strict=True):
        close(d, d_padded[: len(d)], 1e-10)


@every_variant
def test_rows_sum_to_one_and_columns_to_their_share(variant):
    model = network(variant, iterations=3000, tolerance=1e-14)
    collection = double(collect(graphs()))
    for size, d in zip(SIZES, model.permutations(collection.batch(EVERYTHING)), strict=True):
        n = max(size, variant["capacity"] or 0)
        if variant["dustbin"]:
            assert bool((d.sum(1) <= 1 + 1e-9).all())
            assert bool((d.sum(0) <= 1 + 1e-9).all())
        else:
            close(d.sum(1), torch.ones(size, dtype=d.dtype), 1e-9)
            share = torch.full((6,), n / 6, dtype=d.dtype)
            if n == size:
                close(d.sum(0), share, 1e-9)
            else:
                assert bool((d.sum(0) <= share + 1e-9).all())


def test_as_many_latent_vertices_as_vertices_gives_doubly_stochastic_matrices():
    variant = {
        "encoder": "linear",
        "attributes": True,
        "dustbin": False,
        "capacity": None,
        "head": "mlp",
    }
    model = network(variant, iterations=3000, tolerance=1e-14)
    collection = double(collect([random_graph(6, seed) for seed in range(4)]))
    for d in model.permutations(collection.batch(torch.arange(4))):
        ones = torch.ones(6, dtype=d.dtype)
        close(d.sum(0), ones, 1e-9)
        close(d.sum(1), ones, 1e-9)


@every_variant
def test_gradients_equal_finite_differences(variant):
    model = network(variant, scaling="standard", iterations=20, tolerance=0.0).train()
    batch = double(collect([random_graph(n, n) for n in (2, 5, 7)])).batch(torch.arange(3))
    names = [
        n for n, _ in model.named_parameters() if "latent" in n or "dustbin" in n or "alpha" in n
    ]
    names += [n for n, _ in model.named_parameters() if "encoder" in n and "bias" in n][:1]
    for name in names:
        check_gradient(model, name, batch)


def check_gradient(model: PiGNN, name: str, batch: Batch) -> None:
    """Directional derivative against a central difference."""
    state = {k: v.clone() for k, v in model.state_dict().items()}
    parameter = dict(model.named_parameters())[name]
    weights = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3)
    model.zero_grad()
    (model(batch) * weights).sum().backward()
    direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)).double()
    slope = (parameter.grad * direction).sum()
    values = []
    with torch.no_grad():
        for step in (1e-6, -1e-6):
            model.load_state_dict(state)
            parameter.add_(step * direction)
            values.append((model(batch) * weights).sum())
    model.load_state_dict(state)
    close((values[0] - values[1]) / 2e-6, slope, 2e-5)


@every_variant
def test_scores_in_the_thousands_give_finite_outputs_and_gradients(variant):
    """Triangle counts of COLLAB, raw: scores of 10,000 and more."""
    dense = [nx.complete_graph(120), nx.star_graph(150), nx.barbell_graph(40, 5), nx.empty_graph(3)]
    for graph in dense:
        nx.set_node_attributes(graph, {v: [1.0, 0.0, -1.0] for v in graph}, "x")
    model = network(variant, torch.float32, scaling="raw").train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "latent" in name:
                parameter.mul_(20)
    batch = collect(dense).batch(torch.arange(4))
    outputs = model(batch)
    outputs.square().sum().backward()
    assert bool(outputs.isfinite().all())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name


def test_edge_attributes_and_weights_enter_the_prediction():
    collection = collect(graphs())
    config = ModelConfig(
        outputs=2, latent_vertices=6, attribute_size=3, edge_attribute_size=2, weighted=True
    )
    model = build(config, seed=0).eval()
    batch = collection.batch(EVERYTHING)
    vectors = model.transform(batch)
    assert vectors.shape == (5, 6 * 6 + 6 * 3 + 6 * 6 * 2)
    for name in ("edge_attr", "edge_weight"):
        changed = batch.clone()
        changed[name] = changed[name] * 2
        assert not torch.allclose(model(batch), model(changed)), name


def test_a_users_own_batch_gives_what_a_collection_gives():
    """Unsorted edges and no structural features: the network prepares them itself."""
    collection = double(collect(graphs()))
    variant = {"encoder": "gin", "attributes": True, "dustbin": True, "capacity": 15, "head": "mlp"}
    model = network(variant)
    data = []
    for graph in graphs():
        edges = torch.tensor([*graph.edges, *((b, a) for a, b in graph.edges)]).reshape(-1, 2).T
        x = torch.tensor([list(graph.nodes[v]["x"]) for v in graph])
        data.append(Data(edge_index=edges.long(), x=x, num_nodes=len(graph)))
    close(model(Batch.from_data_list(data)), model(collection.batch(EVERYTHING)), 1e-10)


def test_a_directed_batch_is_refused():
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    model = network(
        {
            "encoder": "linear",
            "attributes": False,
            "dustbin": False,
            "capacity": None,
            "head": "mlp",
        }
    )
    with pytest.raises(ValueError, match="both directions of every edge"):
        model(Batch.from_data_list([data]))


@every_variant
def test_a_saved_network_predicts_the_same(variant, tmp_path):
    model = network(variant, torch.float32)
    model.save(tmp_path)
    batch = collect(graphs()).batch(EVERYTHING)
    torch.testing.assert_close(PiGNN.load(tmp_path)(batch), model(batch), rtol=0, atol=0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("latent_vertices", 0, "latent_vertices must be a whole number of at least 1; got 0"),
        ("hidden", -2, "hidden must be a whole number of at least 1; got -2"),
        ("encoder", "mpnn", "encoder must be one of linear, gcn, gin; got 'mpnn'"),
        ("capacity", -3, "capacity must be a whole number of at least 1, or None; got -3"),
    ],
)
def test_a_wrong_setting_is_named(field, value, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{"outputs": 2, field: value})


@pytest.mark.parametrize("encoder", ["linear", "gcn", "gin"])
def test_a_stack_of_models_equals_each_model_alone(encoder):
    """``torch.func`` over the same network: the way many models train in one computation."""
    collection: Collection = double(collect(graphs()))
    variant = {
        "encoder": encoder,
        "attributes": True,
        "dustbin": True,
        "capacity": 15,
        "head": "conv",
    }
    models = [network(variant) for _ in range(3)]
    for seed, model in enumerate(models):
        fresh = build(model.config, seed).double()
        model.load_state_dict(fresh.state_dict())
    batch = collection.batch(EVERYTHING)
    params, buffers = torch.func.stack_module_state(models)
    keys = ("structure", "x", "edge_index", "ptr")

    def one(params, buffers, tensors):
        made = Data(**dict(zip(keys, tensors, strict=True)), canonical=True)
        return torch.func.functional_call(models[0], (params, buffers), (made,))

    tensors = tuple(batch[k].expand(3, *batch[k].shape) for k in keys)
    outputs = torch.vmap(one)(params, buffers, tensors)
    outputs.square().sum().backward()
    for i, model in enumerate(models):
        alone = model(batch)
        alone.square().sum().backward()
        close(outputs[i], alone, 1e-10)
        for name, parameter in model.named_parameters():
            close(params[name].grad[i], parameter.grad, 1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attribute_size": -1}, "attribute_size must be a whole number of at least 0; got -1"),
        (
            {"head_hidden": ()},
            r"head_hidden must be one or more whole numbers of at least 1; got \(\)",
        ),
        ({"capacity": "auto"}, "capacity must be a whole number of at least 1, or None; got 'a"),
        ({"latent_scale": math.nan}, "latent_scale must be a number above 0; got nan"),
        ({"dustbin": "x"}, "dustbin must be True or False; got 'x'"),
        ({"head_norm": 1}, "head_norm must be True or False; got 1"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")  # which would answer in our place
def test_settings_of_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(1, **changes)


@pytest.mark.parametrize("head", ["mlp", "conv"])
@pytest.mark.parametrize("norm", [True, False])
def test_only_without_layer_norm_a_graph_differs_from_two_of_it(head, norm):
    """Copies are assigned alike: their matrices add up, and LayerNorm takes the factor away."""
    one = random_graph(9, seed=0)
    two = nx.disjoint_union(one, one)
    settings = {"attribute_size": 3, "head": head, "head_norm": norm, "latent_scale": 50.0}
    model = build(ModelConfig(2, latent_vertices=5, hidden=8, **settings), seed=0).double().eval()
    single, double_ = model(double(collect([one, two])).batch(torch.arange(2)))
    assert torch.allclose(single, double_, rtol=0, atol=1e-3) == norm


def test_a_batch_without_what_the_network_reads_is_refused():
    model = build(ModelConfig(1, latent_vertices=3, hidden=4, attribute_size=2), seed=0)
    edges = torch.tensor([[0, 1], [1, 0]])
    for x, found in ((None, "none"), (torch.zeros(2, 5), "5")):
        batch = Batch.from_data_list([Data(edge_index=edges, num_nodes=2, x=x)])
        with pytest.raises(
            ValueError, match=rf"reads 2 numbers in x of each vertex; .* has {found}"
        ):
            model(batch)
    model = build(ModelConfig(1, latent_vertices=3, hidden=4, edge_attribute_size=2), seed=0)
    batch = Batch.from_data_list([Data(edge_index=edges, num_nodes=2)])
    with pytest.raises(ValueError, match=r"reads 2 numbers in edge_attr of each edge; .* has none"):
        model(batch)


def test_one_graph_is_no_batch():
    edges = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="expected a PyG Batch, got one graph"):
        build(ModelConfig(2), 0)(Data(edge_index=edges, num_nodes=2))
