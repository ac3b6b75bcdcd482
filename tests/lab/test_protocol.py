"""The fair comparison: no peeking, nothing lost, nothing done twice, the same numbers again."""

import math
import multiprocessing
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from lab.problems import (
    FOLDS,
    RULES,
    TRAINING,
    DiesAfter,
    Forbidden,
    contender,
    final_jobs,
    problem,
    selection_jobs,
)

from softperm.lab import jobs
from softperm.lab.desk import stacks
from softperm.lab.engines import LocalEngine
from softperm.lab.problem import Question
from softperm.lab.protocol import Contender, Failed, choose, evaluate, selection_runs
from softperm.lab.records import find_records
from softperm.lab.tables import cells_of

PROBLEM = problem()
PLACES = [("rings", fold) for fold in range(FOLDS)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An evaluation that ran from beginning to end, and where its records are."""
    folder = tmp_path_factory.mktemp("whole")
    return evaluate(PROBLEM, [contender()], RULES, LocalEngine(), folder), folder


def digests(records) -> set[str]:
    return {record.digest for record in records}


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
    evaluate(PROBLEM, [contender()], RULES, LocalEngine(), tmp_path)
    for train, validation in seen:
        for t, v in zip(train, validation, strict=True):
            owners = [s for s in PROBLEM.splits if torch.equal(s.train, t)]
            assert len(owners) == 1
            assert torch.equal(owners[0].validation, v)
            assert not set(owners[0].test.tolist()) & set(torch.cat([t, v]).tolist())


def test_the_same_seed_gives_the_same_records_bit_for_bit(finished, tmp_path):
    records, folder = finished
    again = evaluate(PROBLEM, [contender()], RULES, LocalEngine(), tmp_path)
    assert [r.digest for r in again] == [r.digest for r in records]
    assert digests(find_records(tmp_path)) == digests(find_records(folder))


def test_another_seed_gives_other_numbers(finished, tmp_path):
    records, _ = finished
    other = evaluate(PROBLEM, [contender()], replace(RULES, seed=7), LocalEngine(), tmp_path)
    assert not digests(other) & digests(records)


def test_finished_work_is_not_done_again(finished):
    records, folder = finished
    again = evaluate(PROBLEM, [contender()], RULES, Forbidden(), folder)
    assert digests(again) == digests(records)


def test_two_at_once_in_one_folder_do_the_work_once(finished, tmp_path):
    records, _ = finished
    said, found = [], []

    class Slow:
        """Begins when the other one waits."""

        def run(self, *arguments):
            while not said:
                time.sleep(0.01)
            return LocalEngine().run(*arguments)

    def first() -> None:
        found.append(evaluate(PROBLEM, [contender()], RULES, Slow(), tmp_path))

    def second() -> None:
        while not (tmp_path / "locks").exists():
            time.sleep(0.01)
        time.sleep(0.1)
        tell = lambda what, share: said.append(what)  # noqa: E731
        found.append(evaluate(PROBLEM, [contender()], RULES, Forbidden(), tmp_path, tell))

    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: one(), (first, second)))
    assert said == ["waits for pi-gnn elsewhere"]
    assert [digests(f) for f in found] == [digests(records)] * 2


def test_what_a_stack_of_another_size_had_saved_is_swept_away(tmp_path):
    saved = tmp_path / "checkpoints"
    saved.mkdir()
    mine, others = (
        saved / "rings.pi-gnn.final.0.bin",
        ["rings.pi-gnn-d.final.0.bin", "x.pi-gnn.1.bin"],
    )
    for path in (mine, *(saved / name for name in others)):
        path.touch()
    evaluate(PROBLEM, [contender()], RULES, LocalEngine(), tmp_path)
    assert {path.name for path in saved.iterdir()} == set(others)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_killed_evaluation_goes_on_to_the_same_records(done, finished, tmp_path):
    records, _ = finished
    with pytest.raises(RuntimeError, match="killed"):
        evaluate(PROBLEM, [contender()], RULES, DiesAfter(done), tmp_path)
    again = evaluate(PROBLEM, [contender()], RULES, LocalEngine(), tmp_path)
    assert digests(again) == digests(records)


def test_jobs_that_take_turns_give_the_same_records(finished, tmp_path):
    shares = []
    turns = LocalEngine(abreast=3)
    together = evaluate(
        PROBLEM, [contender()], RULES, turns, tmp_path, lambda what, share: shares.append(share)
    )
    assert digests(together) == digests(finished[0])
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize("abreast", [1, 2])
def test_ctrl_c_saves_all_that_take_turns_and_goes_on_to_the_same_records(
    abreast, finished, tmp_path
):
    def press(what: str, share: float) -> None:
        if "epoch 2" in what:
            os.kill(os.getpid(), signal.SIGINT)

    engine = LocalEngine(abreast=abreast)
    with pytest.raises(KeyboardInterrupt):
        evaluate(PROBLEM, [contender()], RULES, engine, tmp_path, press)
    assert len(list((tmp_path / "checkpoints").iterdir())) == abreast
    seen = []
    again = evaluate(PROBLEM, [contender()], RULES, engine, tmp_path, lambda *a: seen.append(a[0]))
    assert digests(again) == digests(finished[0])
    assert "epoch 3" in seen[0], "the first goes on where it was"


def _evaluate_in_a_child(folder) -> None:
    torch.set_num_threads(1)
    evaluate(PROBLEM, [contender()], RULES, LocalEngine(), folder)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked to save time")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_kill_at_ten_random_moments_changes_nothing(finished, tmp_path):
    records, _ = finished
    moments = random.Random(0)
    context = multiprocessing.get_context("fork")
    for _ in range(10):
        child = context.Process(target=_evaluate_in_a_child, args=(tmp_path,))
        child.start()
        time.sleep(moments.uniform(0.0, 0.5))
        if child.pid is not None and child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
        child.join()
    again = evaluate(PROBLEM, [contender()], RULES, LocalEngine(), tmp_path)
    assert digests(again) == digests(records)
    assert cells_of(again)[0].scores == cells_of(records)[0].scores


def test_a_single_configuration_needs_no_selection(tmp_path):
    evaluate(PROBLEM, [contender(sizes=(3,))], RULES, LocalEngine(), tmp_path)
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
        one_fold = replace(PROBLEM, splits=PROBLEM.splits[:1])
        listed = Contender("pi-gnn", tuple(r.run.configuration for r in made))
        return choose(one_fold, listed, reversed(made))["rings", 0]["latent_vertices"]

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
        one_fold = replace(PROBLEM, splits=PROBLEM.splits[:1])
        assert choose(one_fold, Contender("pi-gnn", (bad, good)), made)["rings", 0] == good


def test_settings_that_are_tuples_survive_the_disk(tmp_path):
    settings = {"train_eps": False, **TRAINING}
    gin = Contender("gin", tuple({**settings, "widths": w} for w in ((4, 4), (4,))))
    first = evaluate(PROBLEM, [gin], RULES, LocalEngine(), tmp_path)
    again = evaluate(PROBLEM, [gin], RULES, Forbidden(), tmp_path)
    assert digests(again) == digests(first)


def test_seeds_of_two_evaluations_do_not_meet():
    chosen = {("rings", fold): contender().configurations[0] for fold in range(FOLDS)}
    seeds = []
    for seed in (0, 1):
        rules = replace(RULES, seed=seed)
        made = [*selection_jobs(PROBLEM, contender(sizes=(3,)), rules)]
        made += final_jobs(PROBLEM, "pi-gnn", chosen, rules)
        seeds += [jobs.seed_of(run) for job in made for run in job.runs]
    assert len(set(seeds)) == len(seeds)


def test_a_fold_without_all_configurations_is_named(finished):
    _, folder = finished
    some = [r for r in find_records(folder) if r.run.stage == "selection" and r.run.fold != 1]
    with pytest.raises(ValueError, match="fold 1 has records of 0 of 2 configurations"):
        choose(PROBLEM, contender(), some)


def test_records_of_other_graphs_are_refused(finished, tmp_path):
    _, folder = finished
    with pytest.raises(ValueError, match="other graphs or splits of rings"):
        evaluate(problem(30), [contender()], RULES, Forbidden(), folder)


def test_a_record_that_was_lost_is_made_again_and_no_other(tmp_path):
    first = evaluate(PROBLEM, [contender()], RULES, LocalEngine(), tmp_path)
    before = set((tmp_path / "records").iterdir())
    file = next((tmp_path / "records").glob("*.final.*"))
    _, *kept = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(kept))
    again = evaluate(PROBLEM, [contender()], RULES, LocalEngine(), tmp_path)
    assert [r.run for r in again] == [r.run for r in first]
    (new,) = set((tmp_path / "records").iterdir()) - before
    assert len(new.read_bytes().splitlines()) == 1


@pytest.mark.parametrize("stack", [1, 2, 3, 4, 5, 7])
def test_what_is_left_makes_the_same_jobs_again(stack):
    whole = stacks(selection_runs(PROBLEM, contender(), RULES), stack)
    for done in range(2 ** len(whole)):
        left = [job for k, job in enumerate(whole) if not done >> k & 1]
        runs = [run for job in left for run in job.runs]
        assert [job.name for job in stacks(runs, stack)] == [job.name for job in left]


def regression(*names: str):
    """How many vertices and edges a graph has, as questions about the same graphs."""
    graphs = PROBLEM.graphs
    values = {"vertices": graphs.sizes, "edges": graphs.edge_ptr.diff()}
    asked = [Question(f"rings-{n}", values[n][:, None].double(), f"print of {n}") for n in names]
    return replace(PROBLEM, kind="regression", questions={q.name: q for q in asked})


def test_targets_are_trained_side_by_side_and_give_what_each_gives_alone(tmp_path):
    both = regression("vertices", "edges")
    made = selection_jobs(both, contender(), RULES)
    assert [len(job.runs) for job in made] == [2 * FOLDS] * 2
    assert len({job.name for job in made}) == 2
    together = evaluate(both, [contender()], RULES, LocalEngine(), tmp_path / "both")
    assert {cell.dataset for cell in cells_of(together)} == {"rings-vertices", "rings-edges"}
    for name in ("vertices", "edges"):
        one = regression(name)
        alone = evaluate(one, [contender()], RULES, LocalEngine(), tmp_path / name)
        mine = [r for r in together if r.run.dataset == f"rings-{name}"]
        assert [r.run for r in mine] == [r.run for r in alone]
        for a, b in zip(mine, alone, strict=True):
            assert (a.fingerprint, a.best_epoch) == (f"print of {name}", b.best_epoch)
            assert a.test_score == pytest.approx(b.test_score, rel=1e-4)
            assert a.curve["train_loss"] == pytest.approx(b.curve["train_loss"], rel=1e-3)


def test_a_target_that_is_finished_is_not_trained_again_beside_another(tmp_path):
    first = evaluate(regression("edges"), [contender()], RULES, LocalEngine(), tmp_path)
    seen = []
    both = regression("vertices", "edges")
    records = evaluate(
        both, [contender()], RULES, LocalEngine(), tmp_path, lambda *a: seen.append(a[0])
    )
    sizes = {text.split(", ")[2] for text in seen if "selection" in text}
    assert sizes == {f"{FOLDS} models"}
    kept = [r for r in records if r.run.dataset == "rings-edges"]
    assert digests(kept) == digests(first)
    assert len(records) == 2 * len(first)
    for asked in (("vertices", "edges"), ("edges", "vertices"), ("vertices",), ("edges",)):
        again = evaluate(regression(*asked), [contender()], RULES, Forbidden(), tmp_path)
        assert len(again) == len(asked) * len(first)
        assert digests(again) <= digests(records)


def test_a_target_that_cannot_be_learnt_is_named_and_the_others_go_through_everything(tmp_path):
    both = regression("vertices", "edges")
    nothing = replace(both.questions["rings-edges"], y=both.questions["rings-edges"].y * math.nan)
    bad = replace(both, questions={**both.questions, "rings-edges": nothing})
    with pytest.raises(Failed, match=r"rings: rings-edges, pi-gnn, folds \[") as told:
        evaluate(bad, [contender()], RULES, LocalEngine(), tmp_path)
    assert "rings-vertices" not in str(told.value)
    (cell,) = cells_of(told.value.records)
    assert (cell.dataset, len(cell.scores)) == ("rings-vertices", FOLDS)


def test_a_system_that_fails_is_named_at_the_end_and_the_others_go_through_everything(tmp_path):
    bad = contender()
    bad = Contender("pi-gnn", tuple({**c, "encoder": "none such"} for c in bad.configurations))
    with pytest.raises(Failed, match=r"pi-gnn, folds \[0, 1, 2\]: encoder must be one of") as told:
        evaluate(PROBLEM, [bad, contender("pi-gnn-d")], RULES, LocalEngine(), tmp_path)
    assert {r.run.model for r in find_records(tmp_path)} == {"pi-gnn-d"}
    assert {r.run.model for r in told.value.records} == {"pi-gnn-d"}
    assert len(cells_of(told.value.records)[0].scores) == FOLDS, "selection did not stop there"


def test_a_kernel_is_refused_on_a_regression_before_anything_is_trained(tmp_path):
    numbers = regression("vertices")
    kernel = Contender("wl-kernel", ({"iterations": 1, "C": 1.0},))
    with pytest.raises(ValueError, match="wl-kernel classifies, but rings is a regression"):
        evaluate(numbers, [contender(), kernel], RULES, Forbidden(), tmp_path)
    assert not list(find_records(tmp_path))


def test_stacks_are_no_larger_than_asked():
    rules = replace(RULES, stack=2)
    made = selection_jobs(PROBLEM, contender(), rules)
    assert [len(job.runs) for job in made] == [2, 1, 2, 1]
    chosen = {("rings", fold): contender().configurations[0] for fold in range(FOLDS)}
    assert [len(job.runs) for job in final_jobs(PROBLEM, "pi-gnn", chosen, rules)] == [2, 2, 2]


def test_progress_ends_at_the_end(tmp_path):
    said = []
    evaluate(
        PROBLEM,
        [contender()],
        RULES,
        LocalEngine(),
        tmp_path,
        lambda what, share: said.append(share),
    )
    assert said == sorted(said)
    assert said[-1] == pytest.approx(1.0)


def test_time_before_an_interruption_counts(monkeypatch):
    (one,) = contender(sizes=(3,)).configurations
    (job,) = final_jobs(PROBLEM, "pi-gnn", dict.fromkeys(PLACES, one), RULES)
    results = jobs.Stack.results

    def resumed(stack):
        """As if each epoch had taken a minute, most of them in another process."""
        minutes = [tuple(replace(e, seconds=60.0) for e in r.curve) for r in results(stack)]
        return [replace(r, curve=c) for r, c in zip(results(stack), minutes, strict=True)]

    monkeypatch.setattr(jobs.Stack, "results", resumed)
    epochs = len(job.runs) * one["epochs"]
    spent = sum(
        record.circumstances.seconds for record in jobs.ended(jobs.working(job, PROBLEM, "cpu"))
    )
    assert spent == pytest.approx(60.0 * epochs)
