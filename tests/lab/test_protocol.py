"""The fair comparison: no peeking, validation decides, the same numbers again."""

import math
from dataclasses import replace

import pytest
import torch
from lab.evaluations import (
    DATA,
    FOLDS,
    PLACES,
    PROTOCOL,
    TRAINING,
    Forbidden,
    contender,
    digests,
    final_jobs,
    regression,
    selection_jobs,
    train,
)

from softperm.lab import jobs
from softperm.lab.evaluation_data import from_graphs
from softperm.lab.protocol import Contender, EvaluationError, evaluate, make_contender, select
from softperm.lab.recipes import read_recipe
from softperm.lab.records import Run, find_records
from softperm.lab.report import write_report
from softperm.lab.scheduler import LocalExecutor
from softperm.lab.tables import cells_of


def test_every_fold_is_tested_as_often_as_asked(finished):
    records, _ = finished
    tested = sorted((r.run.fold, r.run.seed) for r in records)
    assert tested == [(fold, seed) for fold in range(FOLDS) for seed in (1, 2)]
    assert all(0 <= r.test_score <= 1 for r in records)


def test_records_of_the_selection_have_no_test_score(finished):
    _, folder = finished
    chosen = [r for r in find_records(folder) if r.run.stage == "selection"]
    assert len(chosen) == FOLDS * 2
    assert all(r.test_score is None for r in chosen)


def test_test_graphs_reach_neither_training_nor_selection(tmp_path, monkeypatch):
    seen = []
    real = jobs.Stack

    def watched(models, tasks, graphs, y, train, validation, *rest, **options):
        seen.append((train, validation))
        return real(models, tasks, graphs, y, train, validation, *rest, **options)

    monkeypatch.setattr(jobs, "Stack", watched)
    evaluate(DATA, [contender()], PROTOCOL, LocalExecutor(), tmp_path)
    for trained, validation in seen:
        for t, v in zip(trained, validation, strict=True):
            owners = [s for s in DATA.splits if torch.equal(s.train, t)]
            assert len(owners) == 1
            assert torch.equal(owners[0].validation, v)
            assert not set(owners[0].test.tolist()) & set(torch.cat([t, v]).tolist())


@pytest.mark.parametrize("model", ["pi-gnn", "wl-forest"])
def test_refitted_final_runs_learn_from_training_and_validation_graphs(model, tmp_path):
    data = replace(DATA, refit=True)
    points = contender().configurations if model == "pi-gnn" else ({"rounds": 1},)
    last = {"criterion": "last"} if model == "pi-gnn" else {}
    rival = Contender(model, tuple({**point, **last} for point in points))
    split = DATA.splits[1]
    chosen = Run("rings", model, "selection", 1, FOLDS, {}, 0)
    assert torch.equal(data.split_of(chosen).train, split.train)
    assert torch.equal(data.split_of(chosen).validation, split.validation)
    final = data.split_of(replace(chosen, stage="final"))
    assert torch.equal(final.train, torch.cat([split.train, split.validation]))
    assert not len(final.validation)
    records = evaluate(data, [rival], PROTOCOL, LocalExecutor(), tmp_path)
    assert all(math.isnan(r.validation_score) and 0 <= r.test_score <= 1 for r in records)
    assert cells_of(records)[0].validation_rank == -math.inf
    paths = write_report(records, tmp_path / "report", "Rings")
    assert not list((tmp_path / "report").glob("curves*"))  # there are no validation graphs
    assert paths["html"].exists()


def test_refitting_is_refused_where_validation_graphs_select_the_epoch():
    recipe = replace(read_recipe("tu-table"), refit=True)
    with pytest.raises(ValueError, match="leaves no validation graphs"):
        make_contender(recipe, "pi-gnn")
    make_contender(replace(read_recipe("best"), refit=True), "pi-gnn")


def test_records_of_refitted_runs_are_told_from_others():
    graphs = DATA.graphs, DATA.targets["rings"].y, "classification"
    prints = {
        from_graphs(replace(read_recipe("own"), refit=refit), "rings", *graphs, seed=0, folds=3)
        .targets["rings"]
        .fingerprint
        for refit in (False, True)
    }
    assert len(prints) == 2


def test_the_same_seed_gives_the_same_records_bit_for_bit(finished, tmp_path):
    records, folder = finished
    again = evaluate(DATA, [contender()], PROTOCOL, LocalExecutor(), tmp_path)
    assert [r.digest for r in again] == [r.digest for r in records]
    assert digests(find_records(tmp_path)) == digests(find_records(folder))


def test_another_seed_gives_other_numbers(finished, tmp_path):
    records, _ = finished
    other = evaluate(DATA, [contender()], replace(PROTOCOL, seed=7), LocalExecutor(), tmp_path)
    assert not digests(other) & digests(records)


def test_a_single_configuration_needs_no_selection(tmp_path):
    evaluate(DATA, [contender(sizes=(3,))], PROTOCOL, LocalExecutor(), tmp_path)
    assert {r.run.stage for r in find_records(tmp_path)} == {"final"}


@pytest.mark.parametrize("curve", [{}, {"train_loss": [1.0]}], ids=["gathered", "fresh"])
def test_validation_decides_by_score_then_loss_then_order(curve, finished):
    _, folder = finished
    tried = [r for r in find_records(folder) if r.run.stage == "selection" and r.run.fold == 0]
    first = replace(tried[0], curve=curve)

    def chosen(a: tuple[float, float], b: tuple[float, float], criterion: str = "score") -> int:
        made, sizes = [], (3, 4)
        for size, (score, loss) in zip(sizes, (a, b), strict=True):
            settings = {**TRAINING, "latent_vertices": size, "criterion": criterion}
            run = replace(first.run, configuration=settings, fold=0)
            made.append(replace(first, run=run, validation_score=score, validation_loss=loss))
        one_fold = replace(DATA, splits=DATA.splits[:1])
        listed = Contender("pi-gnn", tuple(r.run.configuration for r in made))
        return select(one_fold, listed, reversed(made))["rings", 0]["latent_vertices"]

    assert chosen((0.8, 9.0), (0.7, 0.1)) == 3
    assert chosen((0.7, 0.1), (0.8, 9.0)) == 4
    assert chosen((0.8, 0.2), (0.8, 0.1)) == 4
    assert chosen((0.8, 0.1), (0.8, 0.1)) == 3
    assert chosen((0.8, 9.0), (0.7, 0.1), criterion="loss") == 4


def test_a_configuration_that_diverged_is_never_chosen(finished):
    _, folder = finished
    tried = [r for r in find_records(folder) if r.run.stage == "selection" and r.run.fold == 0]
    for criterion in ("loss", "score"):
        good, bad = ({**r.run.configuration, "criterion": criterion} for r in tried)
        made = [
            replace(tried[0], run=replace(tried[0].run, configuration=good), validation_score=0.3),
            replace(
                tried[1],
                run=replace(tried[1].run, configuration=bad),
                validation_loss=math.nan,
                validation_score=0.9 if criterion == "loss" else math.nan,
            ),
        ]
        one_fold = replace(DATA, splits=DATA.splits[:1])
        assert select(one_fold, Contender("pi-gnn", (bad, good)), made)["rings", 0] == good


def test_seeds_of_two_evaluations_do_not_meet():
    chosen = {("rings", fold): contender().configurations[0] for fold in range(FOLDS)}
    seeds = []
    for seed in (0, 1):
        rules = replace(PROTOCOL, seed=seed)
        made = [*selection_jobs(DATA, contender(sizes=(3,)), rules)]
        made += final_jobs(DATA, "pi-gnn", chosen, rules)
        seeds += [jobs.seed_of(run) for job in made for run in job.runs]
    assert len(set(seeds)) == len(seeds)


def test_a_fold_without_all_configurations_is_named(finished):
    _, folder = finished
    some = [r for r in find_records(folder) if r.run.stage == "selection" and r.run.fold != 1]
    with pytest.raises(ValueError, match="fold 1 has records of 0 of 2 configurations"):
        select(DATA, contender(), some)


def test_targets_are_trained_side_by_side_and_give_what_each_gives_alone(tmp_path):
    both = regression("vertices", "edges")
    made = selection_jobs(both, contender(), PROTOCOL)
    assert [len(job.runs) for job in made] == [2 * FOLDS] * 2
    assert len({job.name for job in made}) == 2
    together = evaluate(both, [contender()], PROTOCOL, LocalExecutor(), tmp_path / "both")
    assert {cell.dataset for cell in cells_of(together)} == {"rings-vertices", "rings-edges"}
    for name in ("vertices", "edges"):
        one = regression(name)
        alone = evaluate(one, [contender()], PROTOCOL, LocalExecutor(), tmp_path / name)
        mine = [r for r in together if r.run.dataset == f"rings-{name}"]
        assert [r.run for r in mine] == [r.run for r in alone]
        for a, b in zip(mine, alone, strict=True):
            assert (a.fingerprint, a.best_epoch) == (f"print of {name}", b.best_epoch)
            assert a.test_score == pytest.approx(b.test_score, rel=1e-4)
            assert a.curve["train_loss"] == pytest.approx(b.curve["train_loss"], rel=1e-3)


def test_a_target_that_cannot_be_learnt_is_named_and_the_others_go_through_everything(tmp_path):
    both = regression("vertices", "edges")
    nothing = replace(both.targets["rings-edges"], y=both.targets["rings-edges"].y * math.nan)
    bad = replace(both, targets={**both.targets, "rings-edges": nothing})
    with pytest.raises(EvaluationError, match=r"rings: rings-edges, pi-gnn, folds \[") as told:
        evaluate(bad, [contender()], PROTOCOL, LocalExecutor(), tmp_path)
    assert "rings-vertices" not in str(told.value)
    (cell,) = cells_of(told.value.records)
    assert (cell.dataset, len(cell.scores)) == ("rings-vertices", FOLDS)


def test_a_system_that_fails_is_named_at_the_end_and_the_others_go_through_everything(tmp_path):
    bad = contender()
    bad = Contender("pi-gnn", tuple({**c, "encoder": "none such"} for c in bad.configurations))
    with pytest.raises(
        EvaluationError, match=r"pi-gnn, folds \[0, 1, 2\]: encoder must be one of"
    ) as told:
        evaluate(DATA, [bad, contender("pi-gnn-d")], PROTOCOL, LocalExecutor(), tmp_path)
    assert {r.run.model for r in find_records(tmp_path)} == {"pi-gnn-d"}
    assert {r.run.model for r in told.value.records} == {"pi-gnn-d"}
    assert len(cells_of(told.value.records)[0].scores) == FOLDS, "selection did not stop there"


def test_a_kernel_is_refused_on_a_regression_before_anything_is_trained(tmp_path):
    numbers = regression("vertices")
    kernel = Contender("wl-kernel", ({"iterations": 1, "C": 1.0},))
    with pytest.raises(ValueError, match="wl-kernel classifies, but rings is a regression"):
        evaluate(numbers, [contender(), kernel], PROTOCOL, Forbidden(), tmp_path)
    assert not list(find_records(tmp_path))


def test_time_before_an_interruption_counts(monkeypatch):
    (one,) = contender(sizes=(3,)).configurations
    (job,) = final_jobs(DATA, "pi-gnn", dict.fromkeys(PLACES, one), PROTOCOL)
    results = jobs.Stack.results

    def resumed(stack):
        """As if each epoch had taken a minute, most of them in another process."""
        minutes = [tuple(replace(e, seconds=60.0) for e in r.curve) for r in results(stack)]
        return [replace(r, curve=c) for r, c in zip(results(stack), minutes, strict=True)]

    monkeypatch.setattr(jobs.Stack, "results", resumed)
    epochs = len(job.runs) * one["epochs"]
    spent = sum(record.circumstances.seconds for record in train(job))
    assert spent == pytest.approx(60.0 * epochs)
