"""Work that is finished or half done: nothing is lost, nothing is done twice."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from lab.evaluations import (
    DATA,
    FOLDS,
    PROTOCOL,
    TRAINING,
    DiesAfter,
    Forbidden,
    contender,
    digests,
    final_jobs,
    regression,
    selection_jobs,
    small_data,
)

from softperm.lab.jobs import group_into_jobs
from softperm.lab.protocol import Contender, evaluate, selection_runs
from softperm.lab.scheduler import LocalExecutor
from softperm.lab.tables import cells_of


def test_finished_work_is_not_done_again(finished):
    records, folder = finished
    again = evaluate(DATA, [contender()], PROTOCOL, Forbidden(), folder)
    assert digests(again) == digests(records)


def wait_for(happens: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits, but not for ever."""
    until = time.monotonic() + seconds
    while not happens() and time.monotonic() < until:
        time.sleep(0.01)


def test_two_at_once_in_one_folder_do_the_work_once(finished, tmp_path):
    records, _ = finished
    said, found = [], []

    class Slow:
        """Begins when the other one waits."""

        def run(self, *arguments):
            wait_for(lambda: said)
            return LocalExecutor().run(*arguments)

    def first() -> None:
        found.append(evaluate(DATA, [contender()], PROTOCOL, Slow(), tmp_path))

    def second() -> None:
        wait_for((tmp_path / "locks").exists)
        time.sleep(0.1)
        tell = lambda activity, done, total=0, note="": said.append(note)  # noqa: E731
        found.append(evaluate(DATA, [contender()], PROTOCOL, Forbidden(), tmp_path, tell))

    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: one(), (first, second)))
    assert said == ["waiting for another process that evaluates pi-gnn"]
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
    evaluate(DATA, [contender()], PROTOCOL, LocalExecutor(), tmp_path)
    assert {path.name for path in saved.iterdir()} == set(others)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_killed_evaluation_goes_on_to_the_same_records(done, finished, tmp_path):
    records, _ = finished
    with pytest.raises(RuntimeError, match="killed"):
        evaluate(DATA, [contender()], PROTOCOL, DiesAfter(done), tmp_path)
    again = evaluate(DATA, [contender()], PROTOCOL, LocalExecutor(), tmp_path)
    assert digests(again) == digests(records)


def test_jobs_that_take_turns_give_the_same_records(finished, tmp_path):
    shares = []
    turns = LocalExecutor(concurrent=3)
    together = evaluate(
        DATA,
        [contender()],
        PROTOCOL,
        turns,
        tmp_path,
        lambda a, done, total, note: shares.append(done / total),
    )
    assert digests(together) == digests(finished[0])
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize("abreast", [1, 2])
def test_ctrl_c_saves_all_that_take_turns_and_goes_on_to_the_same_records(
    abreast, finished, tmp_path
):
    def press(activity: str, done: float, total: float = 0, note: str = "") -> None:
        if "epoch 2" in note:
            os.kill(os.getpid(), signal.SIGINT)

    engine = LocalExecutor(concurrent=abreast)
    with pytest.raises(KeyboardInterrupt):
        evaluate(DATA, [contender()], PROTOCOL, engine, tmp_path, press)
    assert len(list((tmp_path / "checkpoints").iterdir())) == abreast
    seen = []
    again = evaluate(DATA, [contender()], PROTOCOL, engine, tmp_path, lambda *a: seen.append(a[3]))
    assert digests(again) == digests(finished[0])
    assert "epoch 3" in seen[0], "the first goes on where it was"


def _evaluate_in_a_child(folder) -> None:
    torch.set_num_threads(1)
    evaluate(DATA, [contender()], PROTOCOL, LocalExecutor(), folder)


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
    again = evaluate(DATA, [contender()], PROTOCOL, LocalExecutor(), tmp_path)
    assert digests(again) == digests(records)
    assert cells_of(again)[0].scores == cells_of(records)[0].scores


def test_settings_that_are_tuples_survive_the_disk(tmp_path):
    settings = {"train_eps": False, **TRAINING}
    gin = Contender("gin", tuple({**settings, "widths": w} for w in ((4, 4), (4,))))
    first = evaluate(DATA, [gin], PROTOCOL, LocalExecutor(), tmp_path)
    again = evaluate(DATA, [gin], PROTOCOL, Forbidden(), tmp_path)
    assert digests(again) == digests(first)


def test_records_of_other_graphs_are_refused(finished, tmp_path):
    _, folder = finished
    with pytest.raises(ValueError, match="other graphs or splits of rings"):
        evaluate(small_data(30), [contender()], PROTOCOL, Forbidden(), folder)


def test_a_record_that_was_lost_is_made_again_and_no_other(tmp_path):
    first = evaluate(DATA, [contender()], PROTOCOL, LocalExecutor(), tmp_path)
    before = set((tmp_path / "records").iterdir())
    file = next((tmp_path / "records").glob("*.final.*"))
    _, *kept = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(kept))
    again = evaluate(DATA, [contender()], PROTOCOL, LocalExecutor(), tmp_path)
    assert [r.run for r in again] == [r.run for r in first]
    (new,) = set((tmp_path / "records").iterdir()) - before
    assert len(new.read_bytes().splitlines()) == 1


@pytest.mark.parametrize("stack", [1, 2, 3, 4, 5, 7])
def test_what_is_left_makes_the_same_jobs_again(stack):
    whole = group_into_jobs(selection_runs(DATA, contender(), PROTOCOL), stack)
    for done in range(2 ** len(whole)):
        left = [job for k, job in enumerate(whole) if not done >> k & 1]
        runs = [run for job in left for run in job.runs]
        assert [job.name for job in group_into_jobs(runs, stack)] == [job.name for job in left]


def test_a_target_that_is_finished_is_not_trained_again_beside_another(tmp_path):
    first = evaluate(regression("edges"), [contender()], PROTOCOL, LocalExecutor(), tmp_path)
    seen = []
    both = regression("vertices", "edges")
    records = evaluate(
        both, [contender()], PROTOCOL, LocalExecutor(), tmp_path, lambda *a: seen.append(a[3])
    )
    sizes = {text.split(", ")[2] for text in seen if "selection" in text}
    assert sizes == {f"{FOLDS} models"}
    kept = [r for r in records if r.run.dataset == "rings-edges"]
    assert digests(kept) == digests(first)
    assert len(records) == 2 * len(first)
    for asked in (("vertices", "edges"), ("edges", "vertices"), ("vertices",), ("edges",)):
        again = evaluate(regression(*asked), [contender()], PROTOCOL, Forbidden(), tmp_path)
        assert len(again) == len(asked) * len(first)
        assert digests(again) <= digests(records)


def test_stacks_are_no_larger_than_asked():
    rules = replace(PROTOCOL, stack=2)
    made = selection_jobs(DATA, contender(), rules)
    assert [len(job.runs) for job in made] == [2, 1, 2, 1]
    chosen = {("rings", fold): contender().configurations[0] for fold in range(FOLDS)}
    assert [len(job.runs) for job in final_jobs(DATA, "pi-gnn", chosen, rules)] == [2, 2, 2]


def test_progress_ends_at_the_end(tmp_path):
    said = []
    evaluate(
        DATA,
        [contender()],
        PROTOCOL,
        LocalExecutor(),
        tmp_path,
        lambda a, done, total, note: said.append(done / total),
    )
    assert said == sorted(said)
    assert said[-1] == pytest.approx(1.0)
