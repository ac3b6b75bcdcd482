"""Trainings that share work: which they are, and that sharing changes no number."""

from dataclasses import replace

import pytest
from lab.problems import FOLDS, RULES, TRAINING, final_jobs, problem, selection_jobs

from softperm.lab.alike import key_of
from softperm.lab.baselines import SYSTEMS, DataShape
from softperm.lab.jobs import ended, working
from softperm.lab.protocol import Contender, choose, contender_of
from softperm.lab.recipes import points, read_recipe

PROBLEM = problem()
ONE_FOLD = replace(PROBLEM, splits=PROBLEM.splits[:1])
GRID = {
    "widths": [(4,)],
    "dropout": [0.0, 0.5],
    "learning_rate": [1e-2, 1e-3],
    "criterion": ["score", "late-score", "loss"],
}
BASE = {**TRAINING, "epochs": 8, "patience": 2}
GIN = Contender("gin", tuple({**BASE, **point} for point in points(GRID)))


@pytest.fixture(scope="module")
def together():
    (job,) = selection_jobs(ONE_FOLD, GIN, RULES)
    return {key_of(r.run.configuration): r for r in ended(working(job, ONE_FOLD, "cpu"))}


def test_criteria_by_which_learning_rates_fall_are_trainings_of_their_own():
    some = [c for c in GIN.configurations if c["dropout"] == 0.5]
    falling = tuple({**c, "decay": 0.1, "decay_patience": 1} for c in some)
    (job,) = selection_jobs(ONE_FOLD, Contender("gin", falling), RULES)
    together = {key_of(r.run.configuration): r for r in ended(working(job, ONE_FOLD, "cpu"))}
    assert len(together) == 6
    for job in selection_jobs(ONE_FOLD, Contender("gin", falling), replace(RULES, stack=1)):
        (alone,) = ended(working(job, ONE_FOLD, "cpu"))
        shared = together[key_of(alone.run.configuration)]
        assert alone.best_epoch == shared.best_epoch
        expected = pytest.approx(alone.curve["train_loss"], rel=1e-3)
        assert shared.curve["train_loss"] == expected


@pytest.mark.parametrize("criterion", ["score", "late-score", "loss"])
def test_one_training_gives_what_each_criterion_would_give_alone(criterion, together):
    assert len(together) == 12
    half = Contender("gin", tuple(c for c in GIN.configurations if c["criterion"] == criterion))
    for job in selection_jobs(ONE_FOLD, half, replace(RULES, stack=1)):
        (alone,) = ended(working(job, ONE_FOLD, "cpu"))
        shared = together[key_of(alone.run.configuration)]
        assert alone.best_epoch == shared.best_epoch
        assert len(alone.curve["train_loss"]) <= len(shared.curve["train_loss"]) == 8
        for name in ("validation_loss", "validation_score"):
            expected = pytest.approx(getattr(alone, name), rel=1e-4, abs=1e-5)
            assert getattr(shared, name) == expected


def test_soft_and_hard_starts_share_a_stack():
    grid = {"latent_vertices": [3], "hidden": [4], "latent_scale": [1.0, 10.0]}
    starts = Contender("pi-gnn", tuple({**BASE, **point} for point in points(grid)))
    (job,) = selection_jobs(ONE_FOLD, starts, RULES)
    together = {key_of(r.run.configuration): r for r in ended(working(job, ONE_FOLD, "cpu"))}
    first = [record.curve["train_loss"][0] for record in together.values()]
    assert first[0] != pytest.approx(first[1], rel=1e-3)
    for job in selection_jobs(ONE_FOLD, starts, replace(RULES, stack=1)):
        (alone,) = ended(working(job, ONE_FOLD, "cpu"))
        losses = together[key_of(alone.run.configuration)].curve["train_loss"]
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
    (job,) = final_jobs(PROBLEM, "gin", chosen, RULES)
    shared = {(r.run.fold, r.run.seed): r for r in ended(working(job, PROBLEM, "cpu"))}
    for job in final_jobs(PROBLEM, "gin", chosen, replace(RULES, stack=1)):
        (alone,) = ended(working(job, PROBLEM, "cpu"))
        other = shared[alone.run.fold, alone.run.seed]
        assert alone.best_epoch == other.best_epoch
        assert alone.test_score == pytest.approx(other.test_score, abs=1e-6)


def test_a_stack_holds_all_configurations_of_one_shape():
    jobs = selection_jobs(PROBLEM, GIN, RULES)
    assert [len(job.runs) for job in jobs] == [FOLDS * 12]
    jobs = selection_jobs(PROBLEM, GIN, replace(RULES, stack=5))
    assert [len(job.runs) for job in jobs] == [12, 12, 12], "all criteria are one training"
    assert len({job.name for job in jobs}) == 3


def test_the_grids_of_the_fair_comparison_take_few_stacks():
    ten = replace(PROBLEM, splits=PROBLEM.splits[:1] * 10)
    recipe, rules = read_recipe("baselines-table"), replace(RULES, stack=80)
    for model, stacks, models in (("gin", 8, 80), ("graphsage", 12, 30)):
        jobs = selection_jobs(ten, contender_of(recipe, model), rules)
        assert [len(job.runs) for job in jobs] == [2 * models] * stacks


def test_between_criteria_the_score_decides(together):
    record = next(iter(together.values()))
    by_loss, by_score = ({**TRAINING, "criterion": c} for c in ("loss", "score"))
    records = [
        replace(record, run=replace(record.run, configuration=c), validation_score=s)
        for c, s in ((by_loss, 0.7), (by_score, 0.8))
    ]
    records[0] = replace(records[0], validation_loss=0.01)
    assert choose(ONE_FOLD, Contender("gin", (by_loss, by_score)), records)["rings", 0] == by_score


def test_what_is_alike_changes_no_shape():
    shape = DataShape.of(PROBLEM.graphs, 2)
    for system in SYSTEMS.values():
        if system.alike:
            grid = {name: system.grid[name] for name in system.alike}
            built = [system.build(shape, point, 0).state_dict() for point in points(grid)]
            shapes = [{k: v.shape for k, v in state.items()} for state in built]
            assert all(s == shapes[0] for s in shapes)
