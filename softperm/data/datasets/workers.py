"""One function over much work, in several processes, in order and in bounded memory.

Each process is a plain Python that imports the function and nothing else of the caller's program:
so a script needs no ``if __name__ == "__main__"``, a notebook works too, and a process whose
parent dies finds its input closed and ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, TypeVar

import softperm

Work = TypeVar("Work")
Result = TypeVar("Result")

_SERVE = "from softperm.data.datasets.workers import serve; serve()"


def in_parallel(
    function: Callable[[Work], Result], work: Iterable[Work], processes: int | None = None
) -> Iterator[Result]:
    """The results of ``function`` over ``work``, in order.

    Two pieces of work a process are under way or waiting to be taken, and no more are read.

    Args:
        function: something that another process can import (a function, or a partial of one).
        work: its arguments.
        processes: how many processes; by default one for each core.

    Yields:
        The results.

    Raises:
        OSError: if a process was ended from outside, as for want of memory.
        Exception: whatever ``function`` raises.
    """
    pieces = iter(work)
    first = tuple(islice(pieces, 2))
    processes = _cores() if processes is None else processes
    if processes == 1 or len(first) < 2:  # not worth a process
        yield from map(function, chain(first, pieces))
        return
    idle: SimpleQueue[subprocess.Popen] = SimpleQueue()
    started = [_start(function) for _ in range(processes)]
    for process in started:
        idle.put(process)
    pool = ThreadPoolExecutor(processes)
    waiting: deque[Future] = deque()
    try:
        for piece in chain(first, pieces):
            waiting.append(pool.submit(_ask, idle, piece))
            if len(waiting) == 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also when a piece failed, or nobody wants the rest
        pool.shutdown(wait=False, cancel_futures=True)
        for process in started:
            process.terminate()
        pool.shutdown(wait=True)
        for process in started:
            process.communicate()


def batches(items: Iterable[Work], size: int) -> Iterator[Sequence[Work]]:
    """Consecutive items, ``size`` at a time.

    >>> list(batches("abcde", 2))
    [('a', 'b'), ('c', 'd'), ('e',)]
    """
    items = iter(items)
    while batch := tuple(islice(items, size)):
        yield batch


def serve() -> None:
    """What a process does: take the function, then answer every piece of work with its result."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what others print must not mix with the answers
    try:
        function = pickle.load(sys.stdin.buffer)
        while True:
            answers.write(_answer(function, pickle.load(sys.stdin.buffer)))
            answers.flush()
    except (EOFError, BrokenPipeError):  # the parent is done, or gone
        os._exit(0)


def _answer(function: Callable, piece: Any) -> bytes:
    try:
        return pickle.dumps((True, function(piece)), protocol=5)
    except Exception as error:  # the caller raises it
        return pickle.dumps((False, error), protocol=5)


def _start(function: Callable) -> subprocess.Popen:
    home = str(Path(softperm.__file__).parents[1])
    known = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{known}" if known else home}
    command = [sys.executable, "-P", "-c", _SERVE]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe)
    _send(process, function)
    return process


def _ask(idle: SimpleQueue, piece: Any) -> Any:
    process = idle.get()
    try:
        _send(process, piece)
        good, result = pickle.load(_pipe(process.stdout))
    except (EOFError, OSError, pickle.UnpicklingError) as error:
        raise OSError(
            f"a process that reads the data was ended from outside (exit code {process.wait()}); "
            "free some memory and run again"
        ) from error
    finally:
        idle.put(process)  # a dead one too, so that nobody waits for it
    if not good:
        raise result
    return result


def _send(process: subprocess.Popen, thing: Any) -> None:
    pipe = _pipe(process.stdin)
    pickle.dump(thing, pipe, protocol=5)
    pipe.flush()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
