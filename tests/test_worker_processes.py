"""Work in several processes: results in order, bounded memory, no processes left over."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from softperm.parallel import batches, map_in_processes


def workers() -> list[psutil.Process]:
    """Living worker processes of this one."""
    children = psutil.Process().children()
    living = [p for p in children if p.status() != psutil.STATUS_ZOMBIE]
    return [p for p in living if "LokyProcess" in " ".join(p.cmdline())]


def test_results_come_in_the_order_of_the_items() -> None:
    words = ["c", "bb", "a" * 1000, "", "x"] * 5
    assert list(map_in_processes(len, words, processes=2)) == [len(w) for w in words]
    assert workers() == []


def test_one_process_or_a_single_item_is_computed_in_this_process() -> None:
    assert list(map_in_processes(os.getpgid, [0, 0, 0], processes=1)) == [os.getpgid(0)] * 3
    assert list(map_in_processes(lambda _: os.getpid(), [0], processes=2)) == [os.getpid()]
    assert list(map_in_processes(len, [], processes=2)) == []


def test_several_processes_compute() -> None:
    pids = set(map_in_processes(lambda _: os.getpid(), range(20), processes=2))
    assert os.getpid() not in pids


def test_a_helping_process_computes_beside_the_others_and_keeps_the_order() -> None:
    def work(item: int) -> tuple[int, int]:
        time.sleep(0.05)
        return item, os.getpid()

    results = list(map_in_processes(work, range(60), processes=2, helping=True))
    assert [item for item, _ in results] == [*range(60)]
    assert len({pid for _, pid in results}) == 2
    assert os.getpid() in {pid for _, pid in results}


def test_a_helping_process_raises_the_error_of_the_first_item() -> None:
    def fail(item: int) -> int:
        time.sleep(0.2 if item == 1 else 0)
        if item:
            raise ValueError(f"item {item}")
        return item

    with pytest.raises(ValueError, match="item 1"):
        list(map_in_processes(fail, range(20), processes=2, helping=True))
    assert workers() == []


def test_items_are_read_only_a_little_ahead() -> None:
    read = []

    def items():
        for i in range(100):
            read.append(i)
            yield str(i)

    results = map_in_processes(len, items(), processes=2)
    next(results)
    assert len(workers()) == 2
    assert len(read) <= 5
    results.close()
    assert workers() == []


def test_an_error_reaches_the_caller_and_ends_the_processes() -> None:
    with pytest.raises(ValueError, match="invalid literal for int"):
        list(map_in_processes(int, ["1", "2", "three", "4"] * 3, processes=2))
    assert workers() == []


def test_a_killed_process_is_an_error_with_advice() -> None:
    with pytest.raises(OSError, match=r"a worker process was killed, .*free some memory"):
        list(map_in_processes(os._exit, [7] * 6, processes=2))
    assert workers() == []


def test_a_script_without_a_main_guard_works_and_a_killed_one_leaves_no_process(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "from softperm.parallel import map_in_processes\n"
        "results = map_in_processes(len, ['a'] * 50, processes=2)\n"
        "print(next(results), next(results), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "MARK": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script], env=env, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.stdout == "1 1\n"
    until = time.monotonic() + 20
    while (left := _marked(str(tmp_path))) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def _marked(mark: str) -> list[psutil.Process]:
    marked = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == mark and process.status() != "zombie":
                marked.append(process)
        except psutil.Error:
            continue
    return marked


def test_batches_hold_every_item_once() -> None:
    assert [list(b) for b in batches(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
