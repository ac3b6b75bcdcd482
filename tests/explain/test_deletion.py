"""Deletion curves, PyG's metrics and pictures of explanations, on a planted motif."""

from dataclasses import replace

import matplotlib.image
import networkx as nx
import numpy as np
import pytest
import torch
from samples import FAST, labelled_path, random_graph
from torch_geometric.explain import Explainer as PyGExplainer
from torch_geometric.explain import metric

from softperm import PiGNNClassifier, PiGNNRegressor
from softperm.data.graphs import as_graph
from softperm.explain import (
    ExplainedModel,
    PiGNNExplainer,
    deletion_curve,
    draw_explanation,
    draw_molecule,
    without,
)
from softperm.explore.plots import save

QUICK = {**FAST, "validation_fraction": 0.0}


def tree_with_clique(clique: bool, seed: int) -> nx.Graph:
    """A random tree; with a clique of five vertices at its first vertex if asked."""
    graph = nx.random_labeled_tree(9, seed=seed)
    if clique:
        graph = nx.disjoint_union(graph, nx.complete_graph(5))
        graph.add_edge(0, 9)
    return graph


GRAPHS = [tree_with_clique(seed % 2 == 1, seed) for seed in range(40)]
Y = np.arange(40) % 2
SETTINGS = {
    **QUICK, "epochs": 60, "learning_rate": 1e-2, "head_hidden": (16,), "compare": "cosine",
    "validation_fraction": 0.0, "walks": 4, "encoded": "both", "encoded_rounds": 1,
    "encoded_size": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def estimator():
    made = PiGNNClassifier(**SETTINGS).fit(GRAPHS, Y)
    assert made.score(GRAPHS, Y) > 0.9
    return made


def test_a_graph_without_parts_is_the_graph_that_never_had_them(estimator):
    """Labels, attributes, positions and structural features are those of what is left."""
    graphs = [random_graph(6 + i, seed=i) for i in range(6)]
    whole = random_graph(7, seed=3)
    for graph in (whole, *graphs):
        nx.set_node_attributes(graph, {v: (v, v * v) for v in graph}, "pos")
    features = {"walks": 3, "triangles": True, "distance_bins": 3, "distance_range": 100.0}
    made = PiGNNClassifier(**{**QUICK, **features}).fit(graphs, [0, 1] * 3)
    collection = made.collect([whole])
    kept = torch.tensor([True, True, False, True, True, True, False])
    gone = next(iter(whole.edges))
    u, v = collection.edge_index
    edges = ~(((u == gone[0]) & (v == gone[1])) | ((u == gone[1]) & (v == gone[0])))
    smaller = whole.copy()
    smaller.remove_edge(*gone)
    smaller.remove_nodes_from([2, 6])
    ours = made._outputs(without(collection, kept[None], edges[None]))
    torch.testing.assert_close(ours, made._outputs([smaller]), rtol=0, atol=0)


def test_removing_the_largest_contributions_first_hurts_most(estimator):
    graph = GRAPHS[1]
    (explanation,) = estimator.explain([graph])
    for parts in ("edges", "vertices"):
        curve = deletion_curve(estimator, graph, explanation, parts=parts, output=1)
        chance = estimator.predict_proba([graph])[0, 1]
        for line in (curve.largest_first, curve.smallest_first, curve.random):
            assert line[0] == pytest.approx(chance, abs=1e-6)
            assert line[-1] == pytest.approx(curve.largest_first[-1], abs=1e-6)
        assert curve.removed.tolist() == pytest.approx(np.linspace(0, 1, 11))
        assert curve.gain > 0
        again = deletion_curve(estimator, graph, explanation, parts=parts, output=1)
        np.testing.assert_array_equal(curve.random, again.random)


def test_contributions_that_are_turned_around_lose_against_chance(estimator):
    graph = GRAPHS[1]
    (explanation,) = estimator.explain([graph])
    wrong = replace(
        explanation,
        edge_parts=-explanation.edge_parts,
        attributes=-explanation.attributes,
        structure=-explanation.structure,
    )
    assert deletion_curve(estimator, graph, wrong, output=1).gain < 0


def test_an_explanation_of_another_graph_is_refused(estimator):
    (explanation,) = estimator.explain(GRAPHS[:1])
    with pytest.raises(ValueError, match="a graph with 9 vertices; this one has 14"):
        deletion_curve(estimator, GRAPHS[1], explanation)
    with pytest.raises(ValueError, match="parts must be one of edges, vertices"):
        deletion_curve(estimator, GRAPHS[0], explanation, parts="labels")


def test_edge_totals_share_out_the_contributions_of_vertices(estimator):
    (explanation,) = estimator.explain(GRAPHS[1:2])
    whole = explanation.vertices.sum(0) + explanation.edges.sum(0)
    np.testing.assert_allclose(explanation.edge_totals.sum(0), whole, atol=1e-12)
    np.testing.assert_allclose(explanation.vertex_totals.sum(0), whole, atol=1e-12)


@pytest.mark.parametrize("kind", ["edge", "node"])
def test_pyg_s_metrics_take_our_explanations(estimator, kind):
    model = ExplainedModel(estimator, GRAPHS[1])
    torch.testing.assert_close(model(model.x, model.edge_index), estimator._outputs(GRAPHS[1:2]))
    explainer = PyGExplainer(
        model,
        PiGNNExplainer(),
        explanation_type="model",
        model_config={"mode": "multiclass_classification", "task_level": "graph",
                      "return_type": "raw"},
        **{f"{kind}_mask_type": "object"},
        threshold_config=("topk_hard", 20 if kind == "edge" else 5),
    )  # fmt: skip
    explanation = explainer(model.x, model.edge_index)
    mask = explanation[f"{kind}_mask"].flatten()
    clique = model.edge_index.min(0).values >= 9 if kind == "edge" else torch.arange(14) >= 9
    assert mask[clique].mean() > 0.7  # the planted part is what is kept
    positive, negative = metric.fidelity(explainer, explanation)
    assert (positive, negative) == (1.0, 0.0)  # without it the class changes, with it alone not
    assert 0 <= metric.unfaithfulness(explainer, explanation) < 0.5


def test_an_edge_is_kept_whole_or_not_at_all(estimator):
    """PyG's threshold may keep one of two directions, which have equal scores."""
    model = ExplainedModel(estimator, GRAPHS[1])
    row, column = model.edge_index
    outputs = []
    for mask in ((row < column).float(), (row > column).float(), torch.ones(len(row))):
        model.masks._edge_mask = mask
        outputs.append(model(model.x, model.edge_index))
    torch.testing.assert_close(outputs[0], outputs[2], rtol=0, atol=0)
    assert not torch.equal(outputs[1], outputs[2])  # no edge is left


def test_soft_masks_and_foreign_models_are_refused(estimator):
    model = ExplainedModel(estimator, GRAPHS[1])
    with pytest.raises(ValueError, match=r"mask of vertices has values other than 0 and 1.*topk"):
        model(0.5 * model.x, model.edge_index)
    with pytest.raises(ValueError, match=r"pass model\.edge_index"):
        model(model.x, model.edge_index[:, :2])
    algorithm = PiGNNExplainer()
    with pytest.raises(ValueError, match="explains an ExplainedModel"):
        algorithm(torch.nn.Linear(1, 1), model.x, model.edge_index, target=torch.tensor([0]))


CASES = {
    "classes": (PiGNNClassifier, Y[:12], {}),
    "probabilities": (PiGNNClassifier, Y[:12], {"probabilities": True}),
    "answers": (PiGNNClassifier, np.stack([Y, 1 - Y], 1)[:12], {"probabilities": True}),
    "numbers": (PiGNNRegressor, np.arange(12.0), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_ensemble_is_explained_by_the_mean_of_its_networks(case):
    kind, y, options = CASES[case]
    made = kind(**{**QUICK, "head_hidden": (8,), "ensemble": 3}).fit(GRAPHS[:12], y)
    (explanation,) = made.explain(GRAPHS[1:2], **options)
    parts = []
    for network in made.models_:
        one = kind(**{**QUICK, "head_hidden": (8,)}).fit(GRAPHS[:12], y)
        one.models_, one.model_, one.task_ = (network,), network, made.task_
        parts += one.explain(GRAPHS[1:2], **options)
    np.testing.assert_allclose(explanation.edges, np.mean([p.edges for p in parts], 0), atol=1e-12)
    assert explanation.relative_error < 1e-4
    if case == "classes":
        assert explanation.explains == "means of the networks' logits of classes, centred"
        return
    predicted = made.predict(GRAPHS[1:2]) if case == "numbers" else made.predict_proba(GRAPHS[1:2])
    np.testing.assert_allclose(explanation.outputs, predicted.ravel(), rtol=1e-5)  # exactly those


def test_beside_a_forest_the_network_is_explained_and_a_forest_alone_is_refused():
    settings = {**QUICK, "head_hidden": (8,), "head": "mlp+forest"}
    made = PiGNNClassifier(**settings).fit(GRAPHS[:12], Y[:12])
    (explanation,) = made.explain(GRAPHS[1:2])
    assert explanation.explains.endswith(
        "the network's part of the prediction, without the forest's"
    )
    assert explanation.relative_error < 1e-4
    made.head = "forest"
    with pytest.raises(ValueError, match="the head forest predicts by trees alone"):
        made.explain(GRAPHS[1:2])


def test_features_have_the_names_of_the_settings(estimator):
    (explanation,) = estimator.explain(GRAPHS[1:2], tolerance=1e-3)
    assert explanation.structure.shape[1] == len(explanation.structure_names) == 5
    assert explanation.structure_names[-1] == "return after 4 steps"
    (held,) = estimator.explain(GRAPHS[1:2], through_network=False)
    assert held.attribute_names == ("encoded vertex",)
    words = ["ab", "ba", "abab", "aab", "bb", "aa"]
    made = PiGNNClassifier(**QUICK, colours=1, categories="embedding").fit(
        [labelled_path(word) for word in words], [0, 1] * 3
    )
    (explanation,) = made.explain([labelled_path("aab")])
    assert explanation.attributes.shape[1] == len(explanation.attribute_names) == 2


def test_pictures_show_the_contributions(estimator, tmp_path):
    graph = as_graph(GRAPHS[1])
    (explanation,) = estimator.explain([graph])
    save(draw_explanation(graph, explanation, 1, "with a clique, $x"), tmp_path / "graph.png")
    pixels = matplotlib.image.imread(tmp_path / "graph.png")[..., :3]
    assert (pixels[..., 2] - pixels[..., 0]).max() > 0.3  # blue
    pytest.importorskip("rdkit")
    molecules = ["CCO", "CCN", "CCCO", "CN", "CO", "CCC"]
    settings = {**QUICK, "head_hidden": (8,)}
    made = PiGNNClassifier(**settings).fit(molecules, ["O" in m for m in molecules])
    picture = draw_molecule("CCO", made.explain(["CCO"])[0])
    assert picture.count("atom-2")
    assert picture.rstrip().endswith("</svg>")
    with pytest.raises(ValueError, match="'CCCO' has 4 atoms; the explanation"):
        draw_molecule("CCCO", made.explain(["CCO"])[0])
