"""Laws of explanations: contributions add up, follow the numbering, and are exact where linear."""

from dataclasses import fields, replace

import networkx as nx
import numpy as np
import pytest
import torch
from samples import (
    FAST,
    VARIANTS,
    collect,
    double,
    labelled_path,
    random_graph,
    renumber,
    variant_name,
)
from torch import nn

from softperm import PiGNNClassifier, PiGNNRegressor
from softperm.nn.attribution import Explainer, Explanation
from softperm.nn.encoders import VertexStatistics
from softperm.nn.model import ModelConfig, PiGNN, build
from softperm.ops.layers import VertexBatchNorm

GRAPH, SMALL = random_graph(9, seed=4), random_graph(4, seed=4, density=0.8)
GRAPHS = [GRAPH, *(random_graph(n, seed=n) for n in (1, 2, 7, 12))]
PLAIN = {"encoder": "linear", "attributes": True, "dustbin": False, "capacity": 15, "head": "mlp"}
ENCODED = {"encoded_size": 5, "encoded_rounds": 2}
CHOICES = {
    "cosine": {"compare": "cosine"},
    "softmax": {"normaliser": "softmax"},
    "shared-dustbin": {"dustbin": True, "shared_dustbin": True},
    "standard-attributes": {"attribute_scaling": "standard", "scaling": "log-standard"},
    "joint": {"permute_by": "joint"},
    "encoded": {**ENCODED, "encoded": "attributes"},
    "encoded-both": {**ENCODED, "encoded": "both", "head": "conv"},
    "powers": {"powers": 3},
    "two-permutations": {**ENCODED, "permutation_heads": 2, "encoded": "both", "powers": 2},
    "dropout": {"attribute_dropout": 0.4, "dropout": 0.4},
    "no-norm": {"head_norm": False},
    "by-encoded": {**ENCODED, "encoded": "both", "permute_by": "encoded", "compare": "cosine"},
}
EVERY_VARIANT = {
    **{variant_name(variant): variant for variant in VARIANTS[::13]},
    **{name: {**PLAIN, **choice} for name, choice in CHOICES.items()},
}
THROUGH = ("linear-mlp", "softmax", "no-norm", "by-encoded")  # the others are slow
every_variant_both_ways = pytest.mark.parametrize(
    ("variant", "through"),
    [pytest.param(v, False, id=f"{name}-fixed") for name, v in EVERY_VARIANT.items()]
    + [
        pytest.param(
            v, True, id=f"{name}-through-network", marks=[pytest.mark.slow] * (name not in THROUGH)
        )
        for name, v in EVERY_VARIANT.items()
    ],
)
both_ways = pytest.mark.parametrize("through", [False, True], ids=["fixed", "through-network"])


def network(variant: dict, dtype: torch.dtype = torch.float64, **more) -> PiGNN:
    """A network as after some training: its normalisations have statistics."""
    settings = {"head_hidden": (8, 8), "head_final": 8, **variant, **more}
    settings["attribute_size"] = 3 if settings.pop("attributes") else 0
    config = ModelConfig(outputs=3, latent_vertices=6, hidden=8, layers=2, **settings)
    statistics = VertexStatistics.of(collect(GRAPHS), torch.arange(len(GRAPHS)))
    model = build(config, seed=1, statistics=statistics).to(dtype).eval()
    for module in model.modules():
        if isinstance(module, VertexBatchNorm):
            module.running_mean.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    return model


class LinearHead(nn.Module):
    """Outputs that are linear in the aligned matrices."""

    def __init__(self, size: int, outputs: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(size, outputs)

    def forward(self, views):
        return self.linear(torch.cat([view.flatten(1) for view in views], dim=1))


def linear_network(**settings):
    torch.manual_seed(0)
    choices = {"attribute_size": 3, "edge_attribute_size": 2, "weighted": True, **settings}
    model = build(ModelConfig(outputs=3, latent_vertices=5, hidden=8, **choices), seed=1)
    with torch.no_grad():
        size = model.transform(one(GRAPH)).shape[1]
    model.head = LinearHead(size)
    return model.double().eval()


def one(graph: nx.Graph):
    return double(collect([graph, *GRAPHS])).batch(torch.tensor([0]))


def total(explanation: Explanation) -> np.ndarray:
    return explanation.vertices.sum(0) + explanation.edges.sum(0) + explanation.reference


def same(one: Explanation, other: Explanation) -> None:
    """Raises unless two explanations are the same bits."""
    for field in fields(Explanation):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


@every_variant_both_ways
def test_contributions_sum_to_the_difference_from_the_baseline(variant, through):
    model = network(variant, torch.float32, edge_attribute_size=2, weighted=True)
    batch = collect([SMALL, *GRAPHS]).batch(torch.tensor([0]))
    explanation = Explainer(model, through_network=through, tolerance=1e-4)(batch)
    difference = explanation.outputs - explanation.baseline
    outputs = model(batch)[0].detach().numpy()
    np.testing.assert_allclose(explanation.outputs, outputs, rtol=1e-4, atol=1e-5)
    largest = np.abs(difference).max()  # rounding is all there is if features do not matter
    assert np.abs(total(explanation) - difference).max() <= 1e-4 * largest + 1e-14
    np.testing.assert_allclose(
        difference - total(explanation), explanation.completeness_error, atol=1e-12
    )
    np.testing.assert_allclose(
        explanation.vertex_totals.sum(0) + explanation.reference, total(explanation), atol=1e-10
    )


@both_ways
def test_outputs_of_constant_sum_need_one_gradient_less(through):
    model = network(PLAIN)
    options = {"decode": lambda z: z.softmax(1), "through_network": through, "tolerance": 0.1}
    each = Explainer(model, **options)(one(SMALL))
    fewer = Explainer(model, **options, sum_is_constant=True)(one(SMALL))
    for part in ("edge_parts", "attributes", "structure"):
        np.testing.assert_allclose(getattr(fewer, part), getattr(each, part), atol=1e-12)
    assert each.attributes[..., -1].any()


@both_ways
def test_two_runs_give_the_same_bits(through):
    model = network(PLAIN, torch.float32)
    explainer = Explainer(model, through_network=through, tolerance=1e-2)
    first, second = (explainer(one(SMALL)) for _ in range(2))
    same(first, second)


@both_ways
def test_renumbering_the_vertices_renumbers_the_explanation(through):
    graph = random_graph(5, seed=2)
    model = network(PLAIN, edge_attribute_size=2, weighted=True, encoder="gin")
    order = np.random.default_rng(0).permutation(len(graph))
    explainer = Explainer(model, through_network=through, tolerance=1e-4)
    ours, theirs = explainer(one(graph)), explainer(one(renumber(graph, order.tolist())))
    scale = np.abs(ours.outputs - ours.baseline).max()
    np.testing.assert_allclose(theirs.attributes, ours.attributes[order], atol=1e-4 * scale)
    np.testing.assert_allclose(theirs.structure, ours.structure[order], atol=1e-4 * scale)
    edges = {frozenset(e): c for e, c in zip(ours.edge_index.T.tolist(), ours.edges, strict=True)}
    for (u, v), contribution in zip(theirs.edge_index.T, theirs.edges, strict=True):
        expected = edges[frozenset((int(order[u]), int(order[v])))]
        np.testing.assert_allclose(contribution, expected, atol=1e-4 * scale)


def test_a_linear_head_is_explained_exactly():
    for settings in ({}, {"dustbin": True}, {"normaliser": "softmax"}, {"permutation_heads": 2}):
        explanation = Explainer(linear_network(**settings), through_network=False)(one(GRAPH))
        scale = np.abs(explanation.outputs - explanation.baseline).max()
        assert np.abs(explanation.completeness_error).max() <= 1e-13 * scale


@pytest.mark.parametrize("powers", [1, 2])
def test_edges_of_a_linear_head_receive_what_their_weights_change(powers):
    """The soft permutation does not read weights, so a finite difference holds it fixed.

    DᵀA²D is quadratic in the weights: by Euler's theorem the derivatives, times the weights, count
    it twice, and the two edges of each walk share it.
    """
    model = linear_network(powers=powers, edge_attribute_size=0, attribute_size=0)
    batch = one(GRAPH)
    explanation = Explainer(model, through_network=False)(batch)
    step, slopes = 1e-5, []
    for u, v in explanation.edge_index.T:
        ends = [(u, v), (v, u)]
        place = [i for i, e in enumerate(batch.edge_index.T.tolist()) if tuple(e) in ends]
        sides = []
        for sign in (1, -1):
            other = batch.clone()
            other.edge_weight[place] *= 1 + sign * step
            sides.append(model(other)[0].detach().numpy())
        slopes.append((sides[0] - sides[1]) / (2 * step))
    if powers == 1:
        np.testing.assert_allclose(explanation.edges, np.stack(slopes), rtol=1e-6, atol=1e-9)
        return
    first = linear_network(powers=2, edge_attribute_size=0, attribute_size=0)
    p2 = 25
    with torch.no_grad():
        first.head.linear.weight[:, p2:] = 0  # DᵀAD alone
    alone = Explainer(first, through_network=False)(batch).edges
    np.testing.assert_allclose(
        2 * (explanation.edges - alone), np.stack(slopes) - alone, rtol=1e-5, atol=1e-8
    )


def test_attributes_of_a_linear_head_receive_what_they_change():
    model, batch = linear_network(permute_by="structure"), one(GRAPH)
    explanation = Explainer(model, through_network=False)(batch)
    for u, f in ((0, 0), (4, 1), (8, 2)):
        other = batch.clone()
        other.x[u, f] = 0
        change = (model(batch) - model(other))[0].detach().numpy()
        np.testing.assert_allclose(explanation.attributes[u, f], change, rtol=1e-9, atol=1e-12)


def test_both_ways_agree_where_the_permutation_cannot_move():
    model = linear_network(normaliser="softmax", permute_by="structure")
    with torch.no_grad():
        model.permutation.latent.zero_()  # every assignment is uniform
    fixed, through = (Explainer(model, through_network=t)(one(GRAPH)) for t in (False, True))
    np.testing.assert_allclose(fixed.attributes, through.attributes, atol=1e-12)
    assert fixed.attributes.any()
    assert not through.structure.any()


def test_through_the_network_the_baseline_is_the_same_graph_with_features_of_zero():
    model, batch = network(PLAIN, weighted=True), one(GRAPH)
    explanation = Explainer(model)(batch)
    bare = batch.clone()
    bare.structure, bare.x = torch.zeros_like(bare.structure), torch.zeros_like(bare.x)
    np.testing.assert_allclose(explanation.baseline, model(bare)[0].detach().numpy(), rtol=1e-9)
    assert explanation.structure.any()
    assert not explanation.edges.any()  # they are there from the start


def test_reference_graphs_take_part_in_the_sum():
    model = network(PLAIN)
    explainer = Explainer(model, through_network=False)
    others = double(collect(GRAPHS)).batch(torch.arange(len(GRAPHS)))
    mean = [z.mean(0) for z in explainer.aligned(others)]
    explanation = Explainer(model, through_network=False, reference=mean)(one(GRAPH))
    assert explanation.reference.any()
    assert explanation.relative_error < 1e-4
    with pytest.raises(ValueError, match="pass through_network=False"):
        Explainer(model, reference=mean)


def test_a_graph_without_edges_and_one_vertex_are_explained():
    for graph in (random_graph(1, seed=1), random_graph(3, seed=0, density=0)):
        for through in (False, True):
            explanation = Explainer(linear_network(), through_network=through)(one(graph))
            assert explanation.edges.shape == (0, 3)
            assert explanation.relative_error < (1e-4 if through else 1e-12)


def test_several_graphs_at_once_are_refused():
    with pytest.raises(ValueError, match="expected a batch of one graph; got 2 graphs"):
        Explainer(network(PLAIN))(double(collect(GRAPHS)).batch(torch.tensor([0, 1])))


WORDS = ["CCO", "CN", "CCC", "OCO", "NCN", "CCN", "CO", "NNC"]


def bonded(word: str) -> nx.Graph:
    graph = labelled_path(word)
    for u, v in graph.edges:
        graph.edges[u, v]["label"] = "double" if u % 2 else "single"
    return graph


@pytest.mark.parametrize("categories", ["one-hot", "embedding"])
def test_a_classifier_explains_labels_by_their_names(categories):
    graphs = [bonded(word) for word in WORDS]
    y = ["yes" if "O" in word else "no" for word in WORDS]
    settings = FAST | {"head_hidden": (8, 8), "validation_fraction": 0.0}
    model = PiGNNClassifier(**settings, categories=categories).fit(graphs, y)
    explanation = model.explain(graphs[:1], through_network=False)[0]
    assert explanation.output_names == ("no", "yes")
    assert abs(explanation.outputs.sum()) < 1e-9
    chances = np.exp(explanation.outputs) / np.exp(explanation.outputs).sum()
    np.testing.assert_allclose(chances, model.predict_proba(graphs[:1])[0], atol=1e-5)
    assert explanation.relative_error < 1e-4
    rows = explanation.table()
    names = {row.attribute for row in rows if row.kind == "vertex attribute"}
    assert names == ({"label C", "label O"} if categories == "one-hot" else {"label 0"})
    bonds = {row.attribute for row in rows if row.kind == "edge attribute"}
    single = {"edge_label double", "edge_label single"}
    assert bonds == (single if categories == "one-hot" else {"edge_label 0"})
    sums = {o: sum(r.contribution for r in rows if r.output == o) for o in ("no", "yes")}
    difference = dict(zip(("no", "yes"), explanation.outputs - explanation.baseline, strict=True))
    assert sums == pytest.approx(difference, rel=1e-3, abs=1e-5)


def test_embedded_labels_are_explained_where_vertices_are_encoded_before_they_are_aligned():
    graphs, y = [bonded(word) for word in WORDS], ["O" in word for word in WORDS]
    settings = FAST | {"validation_fraction": 0.0, "encoded": "both"}
    model = PiGNNClassifier(**settings, categories="embedding").fit(graphs, y)
    assert model.explain(graphs[:1], through_network=False)[0].relative_error < 1e-4


def test_numbers_are_explained_in_the_units_of_the_targets():
    graphs = [random_graph(n, seed=n) for n in range(3, 11)]
    y = np.array([[1000.0 * len(g), g.size()] for g in graphs])
    settings = FAST | {"head_hidden": (8, 8), "validation_fraction": 0.0}
    model = PiGNNRegressor(**settings).fit(graphs, y)
    explanations = model.explain(graphs[:2])
    predicted = model.predict(graphs[:2])
    for explanation, numbers in zip(explanations, predicted, strict=True):
        np.testing.assert_allclose(explanation.outputs, numbers, rtol=1e-5)
        assert explanation.relative_error < 1e-4
    assert {row.attribute for row in explanations[0].table() if row.kind == "structure"} <= {
        "degree",
        "triangles",
    }


def test_answers_have_an_explanation_each_and_reference_graphs_are_encoded():
    graphs = [random_graph(n, seed=n) for n in range(4, 12)]
    y = np.array([[n % 2, n // 2 % 2, 1] for n in range(8)])
    settings = FAST | {"head_hidden": (8, 8), "validation_fraction": 0.0}
    model = PiGNNClassifier(**settings).fit(graphs, y)
    explanation = model.explain(graphs[:1], through_network=False, reference=graphs)[0]
    assert explanation.outputs.shape == (3,)
    np.testing.assert_allclose(
        1 / (1 + np.exp(-explanation.outputs)), model.predict_proba(graphs[:1])[0], atol=1e-5
    )
    assert replace(explanation, output_names=()).table()[0].output == "0"
