"""Trainings that share work: which they are, and that sharing changes no number."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from lab.evaluations import DATA, FOLDS, PROTOCOL, TRAINING, final_jobs, selection_jobs, train
from samples import collect, labelled_path

from softperm.data.datasets import Split
from softperm.data.features import StructuralFeatures, VertexFeatures
from softperm.lab.baselines.classification import DiffPool
from softperm.lab.configurations import configuration_key
from softperm.lab.evaluation_data import from_graphs
from softperm.lab.jobs import _Networks, group_into_jobs, plan_networks
from softperm.lab.protocol import Contender, final_runs, make_contender, select, selection_runs
from softperm.lab.recipes import grid_points, read_recipe
from softperm.lab.systems import SYSTEMS, DataShape
from softperm.training.forest import GraphForest
from softperm.training.tasks import Classification

ONE_FOLD = replace(DATA, splits=DATA.splits[:1])
GRID = {
    "widths": [(4,)],
    "dropout": [0.0, 0.5],
    "learning_rate": [1e-2, 1e-3],
    "criterion": ["score", "late-score", "loss"],
}
BASE = {**TRAINING, "epochs": 8, "patience": 2}
GIN = Contender("gin", tuple({**BASE, **point} for point in grid_points(GRID)))


@pytest.fixture(scope="module")
def together():
    (job,) = selection_jobs(ONE_FOLD, GIN, PROTOCOL)
    return {configuration_key(r.run.configuration): r for r in train(job, ONE_FOLD)}


def test_criteria_by_which_learning_rates_fall_are_trainings_of_their_own():
    some = [c for c in GIN.configurations if c["dropout"] == 0.5]
    falling = tuple({**c, "decay": 0.1, "decay_patience": 1} for c in some)
    (job,) = selection_jobs(ONE_FOLD, Contender("gin", falling), PROTOCOL)
    together = {configuration_key(r.run.configuration): r for r in train(job, ONE_FOLD)}
    assert len(together) == 6
    for job in selection_jobs(ONE_FOLD, Contender("gin", falling), replace(PROTOCOL, stack=1)):
        (alone,) = train(job, ONE_FOLD)
        shared = together[configuration_key(alone.run.configuration)]
        assert alone.best_epoch == shared.best_epoch
        expected = pytest.approx(alone.curve["train_loss"], rel=1e-3)
        assert shared.curve["train_loss"] == expected


@pytest.mark.parametrize("criterion", ["score", "late-score", "loss"])
def test_one_training_gives_what_each_criterion_would_give_alone(criterion, together):
    assert len(together) == 12
    half = Contender("gin", tuple(c for c in GIN.configurations if c["criterion"] == criterion))
    for job in selection_jobs(ONE_FOLD, half, replace(PROTOCOL, stack=1)):
        (alone,) = train(job, ONE_FOLD)
        shared = together[configuration_key(alone.run.configuration)]
        assert alone.best_epoch == shared.best_epoch
        assert len(alone.curve["train_loss"]) <= len(shared.curve["train_loss"]) == 8
        for name in ("validation_loss", "validation_score"):
            expected = pytest.approx(getattr(alone, name), rel=1e-4, abs=1e-5)
            assert getattr(shared, name) == expected


def test_soft_and_hard_starts_share_a_stack():
    grid = {"latent_vertices": [3], "hidden": [4], "latent_scale": [1.0, 10.0]}
    starts = Contender("pi-gnn", tuple({**BASE, **point} for point in grid_points(grid)))
    (job,) = selection_jobs(ONE_FOLD, starts, PROTOCOL)
    together = {configuration_key(r.run.configuration): r for r in train(job, ONE_FOLD)}
    first = [record.curve["train_loss"][0] for record in together.values()]
    assert first[0] != pytest.approx(first[1], rel=1e-3)
    for job in selection_jobs(ONE_FOLD, starts, replace(PROTOCOL, stack=1)):
        (alone,) = train(job, ONE_FOLD)
        losses = together[configuration_key(alone.run.configuration)].curve["train_loss"]
        expected = pytest.approx(alone.curve["train_loss"], rel=1e-3)
        assert losses == expected


def test_folds_with_networks_of_unlike_shapes_train_as_each_alone():
    """DiffPool has a quarter as many clusters as the largest training graph has vertices."""
    graphs = [nx.path_graph(5 + i % 3) if i % 2 else nx.star_graph(6) for i in range(12)]
    graphs += [nx.path_graph(30), nx.star_graph(29)]
    few, all_of_them = torch.arange(8), torch.tensor([*range(6), 12, 13])
    held, test = torch.tensor([8, 9]), torch.tensor([10, 11])
    splits = tuple(Split(train, held, test) for train in (few, all_of_them, few))
    content = "unlike", collect(graphs), torch.tensor([0, 1] * 7), "classification"
    data = from_graphs(read_recipe("own"), *content, seed=0, folds=FOLDS)
    data = replace(data, splits=splits)
    chosen = {("unlike", fold): {**BASE, "hidden": 4, "embedding": 4} for fold in range(FOLDS)}
    rules = replace(PROTOCOL, final_runs=1)
    (job,) = final_jobs(data, "diffpool", chosen, rules)
    together = {r.run.fold: r for r in train(job, data)}
    for job in final_jobs(data, "diffpool", chosen, replace(rules, stack=1)):
        (alone,) = train(job, data)
        other = together[alone.run.fold]
        assert other.curve["train_loss"] == pytest.approx(alone.curve["train_loss"], rel=1e-3)
        assert other.test_score == pytest.approx(alone.test_score, abs=1e-6)


def test_a_stack_is_divided_if_its_mini_batches_need_too_much_memory(monkeypatch):
    chosen = {("rings", fold): {**BASE, "hidden": 4, "embedding": 4} for fold in range(FOLDS)}
    (job,) = final_jobs(DATA, "diffpool", chosen, replace(PROTOCOL, final_runs=1))
    whole = _Networks(job, DATA, torch.device("cpu"))
    assert whole.stacks == [[0, 1, 2]]
    expected = train(job, DATA)
    largest = DATA.graphs.sizes.argsort(descending=True)[: BASE["batch_size"]]
    needed = whole.models[0].needed(DATA.graphs.batch(largest))
    monkeypatch.setattr(DiffPool, "memory_limit", 2 * needed)
    assert _Networks(job, DATA, torch.device("cpu")).stacks == [[0, 1], [2]]
    for one, other in zip(train(job, DATA), expected, strict=True):
        assert one.test_score == pytest.approx(other.test_score, abs=1e-6)
        assert one.curve["train_loss"] == pytest.approx(other.curve["train_loss"], rel=1e-3)


def test_the_last_of_equal_scores_is_another_epoch_than_the_first(together):
    kept = {
        c: [r.best_epoch for r in together.values() if r.run.configuration["criterion"] == c]
        for c in ("score", "late-score")
    }
    assert all(a <= b for a, b in zip(*kept.values(), strict=True))
    assert kept["score"] != kept["late-score"]


def test_final_networks_side_by_side_are_each_judged_by_their_own_criterion():
    chosen = {("rings", fold): GIN.configurations[fold] for fold in range(FOLDS)}
    assert {c["criterion"] for c in chosen.values()} == {"score", "late-score", "loss"}
    (job,) = final_jobs(DATA, "gin", chosen, PROTOCOL)
    shared = {(r.run.fold, r.run.seed): r for r in train(job)}
    for job in final_jobs(DATA, "gin", chosen, replace(PROTOCOL, stack=1)):
        (alone,) = train(job)
        other = shared[alone.run.fold, alone.run.seed]
        assert alone.best_epoch == other.best_epoch
        assert alone.test_score == pytest.approx(other.test_score, abs=1e-6)


def test_a_stack_holds_all_configurations_of_one_shape():
    jobs = selection_jobs(DATA, GIN, PROTOCOL)
    assert [len(job.runs) for job in jobs] == [FOLDS * 12]
    jobs = selection_jobs(DATA, GIN, replace(PROTOCOL, stack=5))
    assert [len(job.runs) for job in jobs] == [12, 12, 12], "all criteria are one training"
    assert len({job.name for job in jobs}) == 3


def test_the_grids_of_the_fair_comparison_take_few_stacks():
    ten = replace(DATA, splits=DATA.splits[:1] * 10)
    recipe, rules = read_recipe("baselines-table"), replace(PROTOCOL, stack=80)
    for model, stacks, models in (("gin", 8, 80), ("graphsage", 12, 30)):
        jobs = selection_jobs(ten, make_contender(recipe, model), rules)
        assert [len(job.runs) for job in jobs] == [2 * models] * stacks


def test_between_criteria_the_score_decides(together):
    record = next(iter(together.values()))
    by_loss, by_score = ({**TRAINING, "criterion": c} for c in ("loss", "score"))
    records = [
        replace(record, run=replace(record.run, configuration=c), validation_score=s)
        for c, s in ((by_loss, 0.7), (by_score, 0.8))
    ]
    records[0] = replace(records[0], validation_loss=0.01)
    assert select(ONE_FOLD, Contender("gin", (by_loss, by_score)), records)["rings", 0] == by_score


def test_what_is_alike_changes_no_shape():
    shape = DataShape.of(DATA.graphs, 2)
    for system in SYSTEMS.values():
        if system.shape_free:
            grid = {name: system.grid[name] for name in system.shape_free}
            built = [system.build(shape, point, 0).state_dict() for point in grid_points(grid)]
            shapes = [{k: v.shape for k, v in state.items()} for state in built]
            assert all(s == shapes[0] for s in shapes)


RICH = {"walks": 4, "clustering": True, "neighbours": True, "compare": "cosine", "encoded": "both"}
NETWORK = {**TRAINING, "latent_vertices": 3, "hidden": 4, "head_hidden": [8], "encoded_size": 4}


def test_features_of_vertices_are_settings_of_a_recipe(monkeypatch):
    built = []
    real = DataShape.of

    def watched(graphs, outputs, index):
        built.append(graphs)
        return real(graphs, outputs, index)

    monkeypatch.setattr(DataShape, "of", watched)
    rich = Contender("pi-gnn", ({**NETWORK, **RICH}, {**NETWORK, **RICH, "colours": 1}))
    found = selection_jobs(DATA, rich, PROTOCOL)
    assert [len(job.runs) for job in found] == [FOLDS, *[1] * FOLDS], "colours are a fold's own"
    for job in found[:2]:
        assert all(0 <= record.validation_score <= 1 for record in train(job))
    settings = StructuralFeatures(walks=4, clustering=True, neighbours=True)
    expected = VertexFeatures(settings).extend(DATA.graphs).structure
    assert torch.equal(built[0].structure, expected)
    assert torch.equal(built[-1].structure, expected)
    assert built[0].structure is built[1].structure, "computed once"
    assert built[-1].label is not None, "colours are labels"


def test_every_new_setting_works_in_the_grid_of_a_stack():
    grid = {
        "decoupled_decay": [True], "schedule": ["cosine"], "ema": [0.9, "none"],
        "label_smoothing": [0.1], "class_weight": ["balanced"], "attribute_scaling": ["standard"],
        "permutation_heads": [2], "weight_decay": [0.01], "capacity": ["none"], "heat": [[1, 4]],
    }  # fmt: skip
    points = tuple({**NETWORK, **RICH, **point} for point in grid_points(grid))
    recipe = replace(read_recipe("own"), grid=grid, training=TRAINING, settings=NETWORK | RICH)
    assert len(make_contender(recipe, "pi-gnn").configurations) == len(points) == 2
    for job in selection_jobs(ONE_FOLD, Contender("pi-gnn", points), PROTOCOL):
        (record,) = train(job, ONE_FOLD)
        assert record.curve["train_loss"][-1] > 0


def test_a_mean_of_networks_has_the_networks_of_single_runs():
    mean = {**NETWORK, "ensemble": 2}
    runs = [
        *final_runs(ONE_FOLD, "pi-gnn", {("rings", 0): NETWORK}, PROTOCOL),
        *final_runs(ONE_FOLD, "pi-gnn+mean", {("rings", 0): mean}, replace(PROTOCOL, final_runs=1)),
    ]
    networks, members = plan_networks(runs)
    assert (len(networks), members) == (2, [(0,), (1,), (0, 1)])
    (job,) = group_into_jobs(runs, 64)
    one, other, both = train(job, ONE_FOLD)
    assert {one.run.model, other.run.model} == {"pi-gnn"}
    assert both.circumstances.stacked == 2
    low, high = sorted([one.validation_loss, other.validation_loss])
    assert both.validation_loss < high, "cross-entropy is convex: the mean is below the mean loss"
    assert both.validation_loss != pytest.approx(low)


def test_networks_of_the_selection_are_not_those_of_final_runs():
    mean = {**NETWORK, "ensemble": 3}
    runs = selection_runs(ONE_FOLD, Contender("pi-gnn", (mean,)), PROTOCOL)
    runs += final_runs(ONE_FOLD, "pi-gnn", {("rings", 0): mean}, replace(PROTOCOL, final_runs=6))
    networks, _ = plan_networks(runs)
    assert len({network.seed for network in networks}) == len(networks) == 9


def test_test_graphs_change_no_figure_of_the_selection():
    """Neither scalers nor vocabularies, colours, forests or choices know test graphs."""
    words = [a + b + c + d for a in "ab" for b in "ab" for c in "ab" for d in "ab"] * 2
    graphs = [labelled_path(word) for word in words]
    for k, graph in enumerate(graphs):
        nx.set_node_attributes(graph, {v: [float(v * k % 7)] for v in graph}, "x")
    y = torch.tensor([word.count("ab") % 2 for word in words])
    sound = from_graphs(
        read_recipe("own"), "words", collect(graphs), y, "classification", seed=0, folds=4
    )
    test = sound.splits[0].test.tolist()
    for i in test:
        graphs[i] = dense = nx.complete_graph(6)
        nx.set_node_attributes(dense, {v: "ab"[v % 2] for v in dense}, "label")
        nx.set_node_attributes(dense, {v: [1000.0 + v] for v in dense}, "x")
    changed = replace(sound, graphs=collect(graphs), splits=sound.splits[:1])
    others = torch.ones(len(y), dtype=torch.bool)
    others[test] = False
    target = replace(changed.targets["words"], y=torch.where(others, y, 1 - y))
    changed = replace(changed, targets={"words": target})
    sound = replace(sound, splits=sound.splits[:1])
    everything = {
        **NETWORK, **RICH, "colours": 2, "colour_degree": True, "attribute_scaling": "standard",
        "scaling": "log-standard", "ensemble": 2, "class_weight": "balanced",
        "head": "mlp+forest", "trees": 10, "forest_vectors": True,
    }  # fmt: skip
    contenders = [
        Contender("pi-gnn", (everything,)),
        Contender("pi-gnn", ({**NETWORK, "head": "forest", "trees": 10},)),
        Contender("wl-forest", ({"trees": 10, "rounds": 2, "min_graphs": 1},)),
        Contender("forest", ({"trees": 10},)),
        Contender("wl-kernel", ({},)),
    ]
    for each in contenders:
        found = [
            train(job, data)
            for data in (sound, changed)
            for job in selection_jobs(data, each, PROTOCOL)
        ]
        (one,), (other,) = found
        assert one.curve == other.curve
        assert one.validation_score == other.validation_score
        assert one.sharpness == other.sharpness


HEADS = [{**NETWORK, **RICH, "head": head, "trees": 10} for head in ("mlp", "forest", "mlp+forest")]


def test_runs_that_differ_in_how_they_predict_share_one_network():
    tried = Contender("pi-gnn", tuple(HEADS))
    (job,) = selection_jobs(DATA, tried, PROTOCOL)
    networks, members = plan_networks(job.runs)
    assert (len(job.runs), len(networks)) == (3 * FOLDS, FOLDS)
    assert len({(run.fold, own) for run, own in zip(job.runs, members, strict=True)}) == FOLDS
    found = {(r.run.fold, r.run.configuration["head"]): r for r in train(job)}
    (alone,) = selection_jobs(DATA, Contender("pi-gnn", (HEADS[0],)), PROTOCOL)
    for record in train(alone):
        shared = found[record.run.fold, "mlp"]
        assert shared.curve == record.curve
        assert shared.validation_loss == record.validation_loss
    for (fold, head), record in found.items():
        if head == "forest":
            outputs, y = forest_outputs(fold)
            assert record.validation_score == Classification(2).score(outputs, y)
            both = found[fold, "mlp+forest"].validation_loss
            assert both < max(record.validation_loss, found[fold, "mlp"].validation_loss)


def forest_outputs(fold: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a forest of the run's seed predicts for validation graphs."""
    split, y = DATA.splits[fold], DATA.targets["rings"].y
    settings = StructuralFeatures(walks=4, clustering=True, neighbours=True)
    graphs = VertexFeatures(settings).extend(DATA.graphs)
    forest = GraphForest.fit(graphs, split.train, y, Classification(2), trees=10, seed=fold)
    return forest.outputs(graphs, split.validation, Classification(2)), y[split.validation]


def test_a_forest_without_aligned_vectors_is_grown_once_for_all_networks(monkeypatch):
    grown = []
    real = GraphForest.fit
    monkeypatch.setattr(
        GraphForest, "fit", lambda *a, **k: (grown.append(k["seed"]), real(*a, **k))[1]
    )
    fresh = replace(DATA, cache={})
    heads = [{**HEADS[1], "latent_vertices": p} for p in (2, 3)] + [HEADS[2]]
    sizes = [{**head, "forest_vectors": False} for head in heads]
    for job in selection_jobs(fresh, Contender("pi-gnn", tuple(sizes)), PROTOCOL):
        train(job, fresh)
    assert sorted(grown) == [*range(FOLDS)]


def test_final_runs_with_different_heads_are_one_stack_and_are_tested():
    chosen = {("rings", fold): HEADS[fold] for fold in range(FOLDS)}
    (job,) = final_jobs(DATA, "pi-gnn", chosen, replace(PROTOCOL, final_runs=1))
    for record in train(job):
        assert np.sum(record.confusion) == len(DATA.splits[record.run.fold].test)
        assert np.trace(record.confusion) / np.sum(record.confusion) == record.test_score
        assert 0 <= record.roc_auc <= 1
        assert 0 < record.sharpness["row_entropy"] <= 1
