"""Laws of the whole network, for every variant of it."""

import math
from dataclasses import replace

import networkx as nx
import pytest
import samples
import torch
from samples import collect, double, dressed, random_graph, renumber
from torch_geometric.data import Batch, Data

from softperm.data.collection import Collection
from softperm.data.features import StructuralFeatures, structural_features
from softperm.nn.encoders import VertexStatistics
from softperm.nn.model import MANY_GRAPHS, MLPHead, ModelConfig, PiGNN, build
from softperm.ops.layers import VertexBatchNorm

SIZES = (1, 2, 7, 12, 20)
EVERYTHING = torch.arange(len(SIZES))
PLAIN = {"encoder": "linear", "attributes": True, "dustbin": False, "capacity": 15, "head": "mlp"}
BARE = {**PLAIN, "attributes": False}
ENCODED = {"encoded_size": 5, "encoded_rounds": 2}
CHOICES = {
    "cosine": {**PLAIN, "compare": "cosine"},
    "cosine-without-attributes": {**BARE, "compare": "cosine", "capacity": None},
    "cosine-constant-softmax": {
        **PLAIN, "compare": "cosine", "learn_temperature": False, "normaliser": "softmax",
    },
    "cosine-gin-uniform-dustbin": {
        **PLAIN, "compare": "cosine", "encoder": "gin", "latent_init": "uniform", "dustbin": True,
    },
    "shared-dustbin": {**PLAIN, "dustbin": True, "shared_dustbin": True, "structure_share": 0.7},
    "log-standard": {**PLAIN, "scaling": "log-standard"},
    "standard-attributes": {**PLAIN, "attribute_scaling": "standard"},
    "joint": {**PLAIN, "permute_by": "joint", "compare": "cosine"},
    "joint-gcn": {**PLAIN, "permute_by": "joint", "encoder": "gcn"},
    "joint-gin-loops": {
        **PLAIN, "permute_by": "joint", "encoder": "gin", "encoder_loops": True, "dustbin": True,
    },
    "by-structure": {**PLAIN, "permute_by": "structure"},
    "encoded": {**PLAIN, **ENCODED, "encoded": "attributes", "attribute_scaling": "standard"},
    "encoded-both-conv": {**PLAIN, **ENCODED, "encoded": "both", "head": "conv", "dustbin": True},
    "encoded-structure": {**BARE, **ENCODED, "encoded": "structure", "compare": "cosine"},
    "powers": {**PLAIN, "powers": 3},
    "two-permutations": {
        **PLAIN, **ENCODED, "permutation_heads": 2, "encoded": "both", "powers": 2,
    },
    "dropout": {**PLAIN, "attribute_dropout": 0.4, "dropout": 0.4},
    "encoded-dropout": {**BARE, **ENCODED, "encoded": "structure", "dropout": 0.4},
    "by-encoded": {
        **PLAIN, **ENCODED, "encoded": "both", "permute_by": "encoded", "compare": "cosine",
        "dropout": 0.4, "attribute_dropout": 0.2, "scaling": "log-standard",
    },
    "by-encoded-bare": {**BARE, **ENCODED, "encoded": "both", "permute_by": "encoded"},
}  # fmt: skip
every_variant = samples.every_variant(CHOICES)
every_choice = pytest.mark.parametrize("variant", CHOICES.values(), ids=CHOICES)
both_precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["f32", "f64"]
)


def graphs() -> list[nx.Graph]:
    return [random_graph(n, seed=n) for n in SIZES]


def network(variant: dict, dtype: torch.dtype = torch.float64, **more) -> PiGNN:
    settings = {**variant, "attribute_size": 3 if variant["attributes"] else 0, **more}
    del settings["attributes"]
    config = ModelConfig(outputs=3, latent_vertices=6, hidden=8, layers=2, **settings)
    statistics = VertexStatistics.of(collect(graphs()), EVERYTHING)
    model = build(config, seed=1, statistics=statistics).to(dtype).eval()
    for module in model.modules():
        if isinstance(module, VertexBatchNorm):  # as after some training
            module.running_mean.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    return model


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


RICH = StructuralFeatures(
    clustering=True, core=True, neighbours=True, rings=8, walks=8, heat=(1, 4)
)


def labelled(dtype: torch.dtype) -> Batch:
    """Graphs with one-hot labels, a few of them unknown; one has no vertices, one has one."""
    many = [random_graph(n, seed=n, density=0.3) for n in (1, 6, 9, 14)]
    batch = double(collect(many)).batch(torch.arange(len(many)).repeat(MANY_GRAPHS // 4))
    batch.ptr = torch.cat([batch.ptr[:1], batch.ptr])  # begins with a graph without vertices
    kind = torch.arange(batch.num_nodes) % 4  # the last one is unknown
    batch.x = torch.eye(4)[kind, :3].to(dtype)
    batch.edge_attr = torch.eye(3)[kind[batch.edge_index].sum(0) % 3, :2].to(dtype)
    batch.edge_weight, batch.structure = batch.edge_weight.to(dtype), batch.structure.to(dtype)
    return batch


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["f32", "f64"]
)
@every_variant
def test_outputs_without_gradients_are_those_of_training(variant, dtype, tolerance):
    """Without gradients the CPU merges equal vertices and skips zeros."""
    model, batch = network(variant, dtype=dtype).eval(), labelled(dtype)
    assert batch.ptr.numel() > MANY_GRAPHS
    with torch.no_grad():
        ours = model(batch)
        vectors = model.transform(batch)
    close(ours, model(batch).detach(), tolerance)
    close(vectors, model.transform(batch).detach(), tolerance)


@pytest.mark.parametrize("head_norm", [True, False])
def test_a_users_head_without_known_symmetries_is_the_same_without_gradients(head_norm):
    batch = labelled(torch.float64)
    torch.manual_seed(0)
    sizes = [view.shape[1:].numel() for view in network(PLAIN)._align(batch)[1]]
    head = MLPHead(sizes, 2, normalise=head_norm).double().eval()
    views = [view.detach() for view in network(PLAIN)._align(batch)[1]]
    with torch.no_grad():
        ours = head(views)
    close(ours, head(views).detach(), 1e-12)


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("graphs", [2, MANY_GRAPHS])
def test_a_head_refuses_views_of_another_size(size, graphs):
    """However many graphs there are, and without reading past the end of a row."""
    head = MLPHead([9], outputs=2).eval()
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"shape"):
        head([torch.ones(graphs, size)])


def test_a_head_in_training_drops_entries_also_without_gradients():
    head, views = MLPHead([9], outputs=2, drop=0.5).train(), [torch.rand(MANY_GRAPHS, 9)]
    with torch.no_grad():
        ours = head(views)
    torch.testing.assert_close(ours, head(views).detach())


@both_precisions
@pytest.mark.parametrize("scaling", ["log", "standard", "log-standard"])
@pytest.mark.parametrize("compare", ["inner", "cosine"])
def test_richer_features_do_not_depend_on_numbering_or_grouping(compare, scaling, dtype, tolerance):
    """Also for graphs whose vertices are all alike, where rounding would be all that differs."""
    whole = all_kinds()
    generator = torch.Generator().manual_seed(0)
    shuffled = [renumber(g, torch.randperm(len(g), generator=generator).tolist()) for g in whole]
    ours, theirs = (featured(g) for g in (whole, shuffled))
    everything = torch.arange(len(whole))
    config = ModelConfig(
        3, 6, hidden=8, structure_size=len(RICH.names), attribute_size=3, capacity=15,
        compare=compare, scaling=scaling, encoded="both", encoded_rounds=1, permutation_heads=2,
    )  # fmt: skip
    model = build(config, 1, VertexStatistics.of(ours, everything)).to(dtype).eval()
    together = model(ours.batch(everything))
    close(together, model(theirs.batch(everything)), tolerance)
    order = torch.tensor([3, 0, 7, 4, 1, 8, 2, 5, 6])
    apart = torch.cat([model(ours.batch(part)) for part in order.split([2, 1, 4, 2])])
    close(together[order], apart, tolerance)


def featured(graphs: list[nx.Graph]) -> Collection:
    """The collection of graphs with richer structural features."""
    collection = collect(graphs)
    shift = torch.repeat_interleave(collection.ptr[:-1], collection.edge_ptr.diff())
    edges = collection.edge_index + shift
    return replace(collection, structure=structural_features(edges, collection.ptr, RICH))


@pytest.mark.parametrize("dustbin", [False, True])
@pytest.mark.parametrize(
    "choices",
    [
        {"encoder": "linear"},
        {"encoder": "gcn"},
        {"encoder": "gin"},
        {"compare": "cosine"},
        {"compare": "cosine", "permute_by": "joint", "scaling": "log-standard", "powers": 2},
        {"compare": "cosine", "permutation_heads": 2, "shared_dustbin": True},
    ],
    ids=str,
)
def test_padding_row_equals_padding_vertices(choices, dustbin):
    """The single weighted row stands for explicit isolated vertices without features."""
    capacity = 25
    variant = {**PLAIN, "dustbin": dustbin, **choices}
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
        close(d, d_padded[..., : d.shape[-2], :], 1e-10)


@every_choice
def test_padding_vertices_leave_no_trace_in_normalisation(variant):
    """Vertices behind those of the last graph, as stacked batches have them, change nothing."""
    collection = double(collect(graphs()))
    model = network(variant, capacity=None)
    batch = collection.batch(EVERYTHING)
    longer = batch.clone()
    for name in ("structure", "x"):
        longer[name] = torch.nn.functional.pad(batch[name], (0, 0, 0, 7))
    outputs = {}
    for name, given in (("alone", batch), ("longer", longer)):
        fresh = network(variant, capacity=None).train()
        outputs[name] = (fresh(given), model(given), *fresh.buffers())
    for alone, padded in zip(outputs["alone"], outputs["longer"], strict=True):
        close(alone, padded, 1e-10)


@every_variant
def test_rows_sum_to_one_and_columns_to_their_share(variant):
    model = network(variant, iterations=3000, tolerance=1e-14)
    collection = double(collect(graphs()))
    for size, d in zip(SIZES, model.permutations(collection.batch(EVERYTHING)), strict=True):
        n = max(size, variant["capacity"] or 0)
        if variant["dustbin"]:
            assert bool((d.sum(-1) <= 1 + 1e-9).all())
            assert bool((d.sum(-2) <= 1 + 1e-9).all())
        else:
            assert bool(((d.sum(-1) - 1).abs() < 1e-9).all())
            if variant.get("normaliser") == "softmax":
                continue
            share = n / 6
            if n == size:
                assert bool(((d.sum(-2) - share).abs() < 1e-9).all())
            else:
                assert bool((d.sum(-2) <= share + 1e-9).all())


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
    model = network({"scaling": "standard", **variant}, iterations=20, tolerance=0.0).train()
    batch = double(collect([random_graph(n, n) for n in (2, 5, 7)])).batch(torch.arange(3))
    every = [name for name, _ in model.named_parameters()]
    parts = ("latent", "dustbin", "alpha", "log_change", "encode.")
    names = [name for name in every if any(part in name for part in parts)]
    names += [name for name in every if "encoder" in name and "bias" in name][:1]
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
        for step in (1e-7, -1e-7):
            model.load_state_dict(state)
            parameter.add_(step * direction)
            values.append((model(batch) * weights).sum())
    model.load_state_dict(state)
    close((values[0] - values[1]) / 2e-7, slope, 2e-5)


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


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    "variant",
    [
        *({**PLAIN, "encoder": e, "dustbin": True, "head": "conv"} for e in ("gcn", "gin")),
        *CHOICES.values(),
    ],
    ids=["gcn", "gin", *CHOICES],
)
def test_a_stack_of_models_equals_each_model_alone(variant, mode):
    """``torch.func`` over the same network: the way many models train in one computation."""
    collection: Collection = double(collect(graphs()))
    models = [network(variant).train(mode == "train") for _ in range(3)]
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
        for name, buffer in model.named_buffers():
            close(buffers[name][i], buffer, 1e-10)


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


def test_a_batch_with_other_structural_features_is_refused():
    model = build(ModelConfig(1, latent_vertices=3, hidden=4, structure_size=9), seed=0)
    with pytest.raises(ValueError, match=r"reads 9 structural features .* the batch has 2: make"):
        model(collect(graphs()).batch(EVERYTHING))


def test_one_graph_is_no_batch():
    edges = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="expected a PyG Batch, got one graph"):
        build(ModelConfig(2), 0)(Data(edge_index=edges, num_nodes=2))


def test_the_papers_way_can_be_expressed():
    """The start and head of the authors' networks."""
    config = ModelConfig(
        2, hidden=64, scaling="raw", attribute_size=3, dustbin=True, shared_dustbin=True,
        latent_init="uniform", structure_share=0.5025, tolerance=0.0,
        head_hidden=(256,), head_final=64,
    )  # fmt: skip
    model = build(config, seed=0)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    for part in ("adjacency", "attributes"):
        latent = dict(model.named_parameters())[f"permutation.{part}.latent"]
        assert 0.99 < latent.abs().max() < 1
    assert [name for name in shapes if "dustbin" in name] == ["permutation.dustbin"]
    assert model.permutation.dustbin.item() == 1
    assert model.permutation.alpha.item() == pytest.approx(0.01, rel=1e-4)
    matrices = [shape for name, shape in shapes.items() if "head" in name and len(shape) == 2]
    assert matrices == [(256, 400), (256, 60), (64, 512), (2, 64)]


def test_what_a_batch_lacks_is_not_encoded():
    """One configuration serves graphs with and without attributes."""
    for encoded, size in (("attributes", None), ("both", 2), ("structure", 2)):
        model = build(ModelConfig(2, 4, hidden=8, encoded=encoded), seed=0)
        names = dict(model.named_parameters())
        first = names.get("encode.network.linears.0.weight")
        assert (None if first is None else first.shape[1]) == size
        assert model(collect(graphs()).batch(EVERYTHING)).shape == (5, 2)


def test_aligned_vectors_of_several_permutations_follow_one_another():
    variant = {**PLAIN, "permutation_heads": 2, "powers": 2}
    model = network(variant)
    batch = double(collect(graphs())).batch(EVERYTHING)
    vectors = model.transform(batch)
    one = 2 * 6 * 6 + 6 * 3
    assert vectors.shape == (5, 2 * one)
    for k, permutation in enumerate(model.permutation.permutations):
        alone = PiGNN(permutation, model.views, model.head)
        close(alone.transform(batch), vectors[:, k * one : (k + 1) * one], 1e-12)
    assert [tuple(d.shape) for d in model.permutations(batch)] == [(2, n, 6) for n in SIZES]
