"""Trainings that share work: which they are, and that sharing changes no number."""

from dataclasses import replace

import pytest
from lab.evaluations import DATA, FOLDS, PROTOCOL, TRAINING, final_jobs, selection_jobs, train

from softperm.lab.jobs import configuration_key
from softperm.lab.protocol import Contender, make_contender, select
from softperm.lab.recipes import grid_points, read_recipe
from softperm.lab.systems import SYSTEMS, DataShape

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
