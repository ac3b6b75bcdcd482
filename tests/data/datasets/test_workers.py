"""Work in several processes: in order, bounded, and gone when it is over."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from softperm.data.datasets.workers import batches, in_parallel


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "serve" in " ".join(p.cmdline())]


def test_results_come_in_the_order_of_the_work() -> None:
    words = ["c", "bb", "a" * 1000, "", "x"] * 5
    assert list(in_parallel(len, words, processes=2)) == [len(w) for w in words]
    assert children() == []


def test_one_process_or_little_work_stays_in_this_process() -> None:
    assert list(in_parallel(os.getpgid, [0, 0, 0], processes=1)) == [os.getpgid(0)] * 3
    assert list(in_parallel(len, ["one"], processes=2)) == [3]
    assert list(in_parallel(len, [], processes=2)) == []


def test_work_is_read_only_a_little_ahead() -> None:
    read = []

    def work():
        for i in range(100):
            read.append(i)
            yield str(i)

    results = in_parallel(len, work(), processes=2)
    next(results)
    assert len(read) <= 5
    results.close()
    assert children() == []


def test_an_error_reaches_the_caller_and_ends_the_processes() -> None:
    with pytest.raises(ValueError, match="invalid literal for int"):
        list(in_parallel(int, ["1", "2", "three", "4"] * 3, processes=2))
    assert children() == []


def test_a_process_ended_from_outside_is_said() -> None:
    with pytest.raises(OSError, match=r"was ended from outside \(exit code 7\); free some memory"):
        list(in_parallel(os._exit, [7] * 6, processes=2))
    assert children() == []


def test_a_script_without_a_main_guard_works_and_a_killed_one_leaves_no_process(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "from softperm.data.datasets.workers import in_parallel\n"
        "results = in_parallel(len, ['a'] * 50, processes=2)\n"
        "print(next(results), next(results), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "MARK": str(tmp_path)}
    done = subprocess.run([sys.executable, script], env=env, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "1 1\n"
    until = time.monotonic() + 20
    while (left := _marked(str(tmp_path))) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == mark and process.status() != "zombie":
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_batches_hold_everything_once() -> None:
    assert [list(b) for b in batches(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
