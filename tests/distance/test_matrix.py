"""All pairs: right, parallel, computed once, resumable, with intervals where not proven."""

import logging
from threading import Event

import networkx as nx
import numpy as np
import pytest
from distance.oracle import labelled_graph, random_matrix, shuffled

from softperm.distance import frobenius_distance, frobenius_intervals, frobenius_matrix, matrix


@pytest.fixture
def collection() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [random_matrix(rng, int(rng.integers(1, 9))) for _ in range(24)]


@pytest.fixture
def counted(monkeypatch) -> list[tuple[int, int]]:
    """The pairs that were computed, in the order of their computation."""
    seen: list[tuple[int, int]] = []
    original = matrix.solve_pairs

    def count(model, packed, first, second, *others):
        seen.extend(zip(first.tolist(), second.tolist(), strict=True))
        original(model, packed, first, second, *others)

    monkeypatch.setattr(matrix, "solve_pairs", count)
    return seen


@pytest.fixture
def interrupted(monkeypatch):
    """Interrupts the computation as by Ctrl-C after a number of tasks."""
    monkeypatch.setattr(matrix, "TASK_WORK", 256)

    def after(tasks: int) -> None:
        original = matrix.solve_pairs
        calls = iter(range(10**9))

        def stop(model, packed, first, second, *others):
            if first.size and next(calls) == tasks:
                monkeypatch.setattr(matrix, "solve_pairs", original)
                raise KeyboardInterrupt
            original(model, packed, first, second, *others)

        monkeypatch.setattr(matrix, "solve_pairs", stop)

    return after


def test_every_entry_is_the_distance_of_its_pair(collection):
    found = frobenius_intervals(collection)
    for i in range(0, 24, 3):
        for k in range(24):
            pair = frobenius_distance(collection[i], collection[k])
            np.testing.assert_allclose(found.distance[i, k], pair.distance)
    np.testing.assert_array_equal(found.distance, found.distance.T)
    np.testing.assert_array_equal(found.lower_bound, found.distance)
    assert found.exact.all()


def test_labels_are_matched_across_the_whole_collection():
    rng = np.random.default_rng(1)
    graphs = [
        labelled_graph(random_matrix(rng, n), rng.choice(list("CNO"), size=n).tolist())
        for n in rng.integers(2, 6, size=8)
    ]
    found = frobenius_matrix(graphs, labels=True)
    for i in range(8):
        for k in range(8):
            pair = frobenius_distance(graphs[i], graphs[k], labels=True)
            np.testing.assert_allclose(found[i, k], pair.distance)
    assert (found >= frobenius_matrix(graphs) - 1e-9).all()
    assert (found > frobenius_matrix(graphs) + 1e-9).any()


def test_the_number_of_workers_changes_nothing(collection):
    one, four = (frobenius_matrix(collection, workers=k) for k in (1, 4))
    np.testing.assert_array_equal(one, four)


def test_isomorphic_graphs_are_computed_once(counted):
    rng = np.random.default_rng(2)
    shapes = [nx.to_numpy_array(g) for g in (nx.path_graph(5), nx.cycle_graph(6), nx.star_graph(4))]
    copies = [shuffled(rng, shapes[k]) for k in (0, 1, 0, 2, 1, 0, 2, 2)]
    found = frobenius_matrix(copies)
    assert sorted(counted) == [(0, 1), (0, 3), (1, 3)]
    np.testing.assert_allclose(found[2, 4], frobenius_distance(copies[2], copies[4]).distance)
    assert found[0, 2] == found[1, 4] == found[3, 7] == 0


def test_one_graph_has_distance_zero_to_itself():
    np.testing.assert_array_equal(frobenius_matrix([nx.path_graph(4)]), [[0.0]])


def test_an_interrupted_matrix_resumes_without_recomputing(
    collection, counted, interrupted, tmp_path
):
    whole = frobenius_matrix(collection)
    pairs = len(counted)
    counted.clear()
    interrupted(10)
    file = tmp_path / "new folder" / "pairs.npz"
    with pytest.raises(KeyboardInterrupt):
        frobenius_matrix(collection, checkpoint=file, workers=1)
    before = set(counted)
    assert 20 < len(before) < pairs
    counted.clear()
    resumed = frobenius_matrix(collection, checkpoint=file)
    np.testing.assert_array_equal(resumed, whole)
    assert before.isdisjoint(counted)
    assert len(before) + len(counted) == pairs
    counted.clear()
    np.testing.assert_array_equal(frobenius_matrix(collection, checkpoint=file), whole)
    assert not counted
    assert [path.name for path in file.parent.iterdir()] == ["pairs.npz"]


def test_the_file_is_written_while_the_work_goes_on(collection, monkeypatch, tmp_path):
    monkeypatch.setattr(matrix, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(matrix, "TASK_WORK", 1024)
    written = []
    original = matrix.save

    def record(path, table, digest):
        written.append(int(table.exact.sum()))
        original(path, table, digest)

    monkeypatch.setattr(matrix, "save", record)
    frobenius_matrix(collection, checkpoint=tmp_path / "pairs.npz", workers=1)
    assert len(written) > 3
    assert written == sorted(written)


@pytest.mark.parametrize(
    "changed",
    [
        lambda graphs: [*graphs[1:], graphs[0]],
        lambda graphs: [*graphs[:-1], 2 * graphs[-1]],
        lambda graphs: graphs[:-1],
    ],
    ids=["order", "weights", "fewer"],
)
def test_a_file_of_other_graphs_is_refused_and_left_alone(collection, changed, tmp_path):
    file = tmp_path / "pairs.npz"
    frobenius_matrix(collection, checkpoint=file)
    content = file.read_bytes()
    with pytest.raises(ValueError, match="belongs to other graphs or options; remove it"):
        frobenius_matrix(changed(collection), checkpoint=file)
    assert file.read_bytes() == content


def test_a_file_of_something_else_is_refused_and_left_alone(collection, tmp_path):
    file = tmp_path / "pairs.npz"
    for content in (b"not an archive", b""):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is not a file of distances"):
            frobenius_matrix(collection, checkpoint=file)
        assert file.read_bytes() == content
    np.savez(file, something=np.zeros(3))
    with pytest.raises(ValueError, match="is not a file of distances"):
        frobenius_matrix(collection, checkpoint=file)


@pytest.fixture
def hard() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [random_matrix(rng, n, 0.5) for n in (5, 15, 15, 6)]


def test_pairs_that_are_not_proven_are_marked_and_their_interval_holds(hard):
    found = frobenius_intervals(hard, time_limit=0.0)
    unproven = ~found.exact
    assert unproven.any()
    np.testing.assert_array_equal(unproven, unproven.T)
    assert not unproven[0, 3]
    assert (found.lower_bound[unproven] < found.distance[unproven]).all()
    np.testing.assert_array_equal(found.lower_bound[found.exact], found.distance[found.exact])
    whole = frobenius_matrix(hard)
    assert (found.lower_bound <= whole + 1e-9).all()
    assert (whole <= found.distance + 1e-9).all()


def test_a_total_time_is_divided_among_the_difficult_pairs(monkeypatch):
    rng = np.random.default_rng(3)
    hard = [random_matrix(rng, 15, 0.5) for _ in range(4)]
    seconds, original = [], matrix.solve

    def solve(pair, limit, stop):
        seconds.append(limit)
        return original(pair, limit, stop)

    monkeypatch.setattr(matrix, "solve", solve)
    unproven = frobenius_intervals(hard, total_time=1e-6, workers=2)
    difficult = len(seconds)
    assert difficult >= int((~unproven.exact).sum()) // 2 > 1
    assert seconds == [2e-6 / difficult] * difficult
    seconds.clear()
    frobenius_intervals(hard, total_time=1e-6, time_limit=1e-9)
    assert seconds == [1e-9] * difficult


def test_only_a_larger_time_limit_computes_unproven_pairs_again(hard, counted, tmp_path):
    file = tmp_path / "pairs.npz"
    first = frobenius_intervals(hard, time_limit=0.0, checkpoint=file)
    unproven = int((~first.exact).sum()) // 2
    counted.clear()
    again = frobenius_intervals(hard, time_limit=0.0, checkpoint=file)
    assert not counted
    np.testing.assert_array_equal(again.distance, first.distance)
    np.testing.assert_array_equal(again.exact, first.exact)
    last = frobenius_intervals(hard, checkpoint=file)
    assert len(counted) == unproven
    assert last.exact.all()


def test_an_interruption_ends_a_search_without_a_time_limit(monkeypatch):
    rng = np.random.default_rng(4)
    endless = [random_matrix(rng, 30, 0.5) for _ in range(2)]
    begun, ended = Event(), Event()
    search, wait = matrix.solve, matrix.wait

    def watched(pair, time_limit, stop):
        begun.set()
        result = search(pair, time_limit, stop)
        ended.set()
        return result

    def interrupt_once_begun(pending, timeout=None, return_when="ALL_COMPLETED"):
        if timeout is not None and begun.wait(timeout=0.05):
            raise KeyboardInterrupt
        return wait(pending, timeout=0.05 if timeout else None, return_when=return_when)

    monkeypatch.setattr(matrix, "solve", watched)
    monkeypatch.setattr(matrix, "wait", interrupt_once_begun)
    with pytest.raises(KeyboardInterrupt):
        frobenius_matrix(endless)
    assert ended.is_set()


def test_a_function_receives_the_progress_of_quick_and_of_difficult_pairs(hard):
    reports = []
    frobenius_intervals(hard, time_limit=0.0, progress=lambda *state: reports.append(state))
    quick = [state[1:3] for state in reports if state[0] == "distances"]
    difficult = [state[1:3] for state in reports if state[0] == "difficult pairs"]
    unproven = int((~frobenius_intervals(hard, time_limit=0.0).exact).sum()) // 2
    assert quick == sorted(quick)
    assert quick[-1] == (6, 6)
    assert difficult[-1] == (unproven, unproven)


def test_progress_is_reported_while_a_long_search_runs(monkeypatch):
    monkeypatch.setattr(matrix, "REPORT_SECONDS", 0.01)
    rng = np.random.default_rng(4)
    pair = [random_matrix(rng, 30, 0.5) for _ in range(2)]
    reports = []
    frobenius_intervals(pair, time_limit=0.5, progress=lambda *state: reports.append(state))
    assert sum(state[:3] == ("difficult pairs", 0, 1) for state in reports) > 3


def test_progress_is_logged_without_a_terminal(collection, caplog, capsys, monkeypatch):
    monkeypatch.setattr("softperm.progress.LOG_EVERY_SECONDS", 0.0)
    with caplog.at_level(logging.INFO, logger="softperm"):
        frobenius_matrix(collection, progress=True)
    assert caplog.messages[-1] == "distances: 171 of 171 (100%)"  # pairs that are not isomorphic
    caplog.clear()
    frobenius_matrix(collection)
    assert not caplog.messages
    assert capsys.readouterr() == ("", "")


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="expected a list of graphs, got an empty list"):
        frobenius_matrix([])
    with pytest.raises(ValueError, match=r"graph 1: edge \(0, 1\) .* directed"):
        frobenius_matrix([np.zeros((2, 2)), np.triu(np.ones((3, 3)), k=1)])
    with pytest.raises(ValueError, match=r"graph 1: edge_weight .* nan"):
        frobenius_matrix([np.zeros((2, 2)), np.full((2, 2), np.nan)])
    with pytest.raises(ValueError, match="workers is 0; expected at least 1"):
        frobenius_matrix([nx.path_graph(2)], workers=0)
    with pytest.raises(ValueError, match=r"time_limit is -1\.0; expected seconds"):
        frobenius_matrix([nx.path_graph(2)], time_limit=-1.0)
    with pytest.raises(ValueError, match="total_time and checkpoint exclude each other"):
        frobenius_intervals([nx.path_graph(2)], total_time=1.0, checkpoint="c.npz")
    with pytest.raises(ValueError, match=r"total_time is -1\.0; expected seconds"):
        frobenius_intervals([nx.path_graph(2)], total_time=-1.0)
    with pytest.raises(ValueError, match="graph 0: it has no vertex labels"):
        frobenius_matrix([nx.path_graph(2)], labels=True)
