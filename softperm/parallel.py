"""All parallelism: cores, threads around compiled kernels, worker processes and Ray clusters."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from typing import Any, TypeVar

from softperm.errors import one_line
from softperm.startup import collect_rarely, defer_imports

T = TypeVar("T")
R = TypeVar("R")

MIN_OPERATIONS = 1 << 18  # fewer are done before a second thread would have started
POLL_SECONDS = 5.0  # between two checks whether a cluster is still there


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads() -> int:
    """Number of threads for one operation: the smaller of numba's and torch's settings."""
    import numba
    import torch

    of_torch = torch.get_num_threads() if _threads_before is None else _threads_before
    # numba.get_num_threads() would also set torch's number of threads.
    return min(numba.config.NUMBA_NUM_THREADS, of_torch)  # type: ignore[attr-defined]


_threads_before: int | None = None  # torch's number of threads outside of one_torch_thread


@contextmanager
def one_torch_thread(kernels: bool = False) -> Iterator[None]:
    """Torch's own operators use one thread within the block.

    For small tensors more threads gain little. If other programs use the cores, they cost a lot:
    OpenMP's threads spin where they wait for one that has no core. Sums are rounded alike whatever
    the number of threads is.

    Args:
        kernels: whether the compiled kernels of this package, which wait without spinning and round
            alike with any number of threads, also use one.
    """
    import torch

    global _threads_before
    outside, before = _threads_before, torch.get_num_threads()
    _threads_before = 1 if kernels else threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _threads_before = outside


def thread_pool() -> ThreadPoolExecutor:
    """The threads of this process, shared by all operations.

    Kernels release the interpreter and run on these threads instead of numba's own parallel loops:
    OpenMP's threads die in a forked process, numba's fallback aborts when two threads of the caller
    enter it, and both wait for a core on which a thread of torch may be spinning.
    """
    return _pool(os.getpid())


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The pool of one process: threads do not survive a fork."""
    return ThreadPoolExecutor(cores(), thread_name_prefix="softperm")


def in_threads(work: Callable[[], object], workers: int) -> None:
    """Calls ``work()`` in this thread and in ``workers - 1`` others at the same time.

    Each call takes items from a common list until none is left. When the list is empty, calls that
    have not started are cancelled: on a busy machine this thread does all the work, and nested
    calls cannot wait for each other.
    """
    helpers = [thread_pool().submit(work) for _ in range(workers - 1)]
    work()
    for helper in helpers:
        if not helper.cancel():
            helper.result()


def over_items(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """``[function(item) for item in items]``, computed by :func:`threads` threads."""
    results: dict[int, R] = {}
    remaining = iter(enumerate(items))

    def work() -> None:
        for place, item in remaining:
            results[place] = function(item)

    in_threads(work, min(threads(), len(items)))
    return [results[place] for place in range(len(items))]


def over_ranges(
    kernel: Callable[..., object], count: int, operations: int, *arguments: object
) -> None:
    """Calls ``kernel(*arguments, first, last)`` on ranges that cover 0 … count, in parallel.

    Args:
        kernel: compiled with ``nogil``; ranges must be independent of each other.
        count: number of items.
        operations: rough number of operations for all items; few are done by the caller alone.
        arguments: passed before the range.
    """
    workers = 1 if operations < MIN_OPERATIONS else min(threads(), count)
    pieces = 1 if workers <= 1 else min(count, 4 * workers)  # more than threads, for balance
    cuts = [count * i // pieces for i in range(pieces + 1)]
    over_items(lambda i: kernel(*arguments, cuts[i], cuts[i + 1]), range(pieces))


def map_in_processes(
    function: Callable[[T], R],
    items: Iterable[T],
    processes: int | None = None,
    *,
    helping: bool = False,
) -> Iterator[R]:
    """The results of ``function`` for all items, in order, computed by several processes.

    At most two items per process (four with ``helping``) are computed or wait to be consumed, and
    no further items are read, so memory stays bounded. Works in notebooks and in scripts without
    ``if __name__ == "__main__"``. The processes end with this one, also after ``kill -9``.

    Args:
        function: any function, or a partial of one.
        items: its arguments.
        processes: number of processes; by default one for each core.
        helping: whether this process is one of them. It computes while the others start, and
            whenever they have enough to do.

    Yields:
        The results.

    Raises:
        OSError: a process was killed, for example for lack of memory.
        Exception: any exception that ``function`` raises.
    """
    items = iter(items)
    first = tuple(islice(items, 2))
    processes = cores() if processes is None else processes
    if processes == 1 or len(first) < 2:  # not worth a process
        yield from map(function, chain(first, items))
        return
    from joblib.externals.loky import ProcessPoolExecutor

    others, most = processes - helping, (4 if helping else 2) * processes
    pool = ProcessPoolExecutor(others, initializer=_begin_worker, initargs=(os.getpid(),))
    waiting: deque[Future] = deque()
    try:
        for item in chain(first, items):
            busy = sum(not future.done() for future in waiting)
            alone = helping and busy > others
            waiting.append(_computed(function, item) if alone else pool.submit(function, item))
            while waiting and (waiting[0].done() or len(waiting) >= most):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise OSError(
            "a worker process was killed, probably for lack of memory; free some memory and run "
            "again"
        ) from error
    finally:  # also after an error, and when the caller stops early
        for future in waiting:
            future.cancel()
        pool.shutdown(wait=True)  # kill_workers=True would race with loky's queue of items


def _computed(function: Callable[[T], R], item: T) -> Future[R]:
    """A result that is there already, or an error that waits for its turn."""
    future: Future[R] = Future()
    try:
        future.set_result(function(item))
    except Exception as error:  # raised by result()
        future.set_exception(error)
    return future


def _in_order(futures: Iterable[T], most: int) -> Iterator[T]:
    """Futures in order, of which at most so many are submitted and wait."""
    waiting: deque[T] = deque()
    for future in futures:
        waiting.append(future)
        if len(waiting) == most:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def batches(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Consecutive items, ``size`` at a time.

    >>> list(batches("abcde", 2))
    [('a', 'b'), ('c', 'd'), ('e',)]
    """
    items = iter(items)
    while batch := tuple(islice(items, size)):
        yield batch


@contextmanager
def ray_cluster(address: str | None = None) -> Iterator[tuple[Any, str]]:
    """Connects to a Ray cluster.

    Ray ends a process at once, without a message, if it loses its cluster. Within the block another
    process waits for that and reports it on standard error.

    Args:
        address: of the cluster; None for ``RAY_ADDRESS``, or else a cluster of its own on this
            machine, whatever other cluster runs here.

    Yields:
        The package ``ray``, and the address of the cluster.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: no cluster answers.
    """
    ray = _import_ray()
    if not ray.is_initialized():
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        try:
            ray.init(address=address, log_to_driver=False)
        except (ray.exceptions.RayError, ConnectionError, ValueError, RuntimeError) as error:
            reason = one_line(error)[:200]
            raise ConnectionError(f"no Ray cluster answers at {address}: {reason}") from None
    cluster = ray.get_runtime_context().gcs_address
    logging.getLogger("softperm").info("computing on the Ray cluster at %s", cluster)
    with _last_words(cluster):
        yield ray, cluster


def map_on_ray(
    function: Callable[[T], R], items: Iterable[T], workers: int | None = None
) -> Iterator[R]:
    """The results of ``function`` for all items, in order, computed by tasks on a Ray cluster.

    The cluster is that of the environment (``RAY_ADDRESS``), else a new one on this machine. At
    most two items per worker are computed or wait to be consumed, and no further items are read. A
    task whose machine is lost runs again on another one.

    Args:
        function: any function that can be pickled.
        items: its arguments.
        workers: number of tasks at the same time; by default one for each core of the cluster.

    Yields:
        The results.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: the cluster is gone.
        ValueError: ``function`` raises it.
    """
    with ray_cluster() as (ray, cluster):
        workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        task, shared = ray.remote(num_cpus=1)(_result_or_error), ray.put(function)
        submitted = (task.remote(shared, item) for item in items)
        try:
            for future in _in_order(submitted, 2 * workers):
                result, error = ray.get(future)
                if error is not None:
                    raise error
                yield result
        except ray.exceptions.RayError:
            check_reachable(cluster)
            raise


def _result_or_error(function: Callable[[T], R], item: T) -> tuple[R | None, ValueError | None]:
    """Ray would wrap the error in one of its own with a traceback in the message."""
    try:
        return function(item), None
    except ValueError as error:
        return None, error


def check_reachable(cluster: str) -> None:
    """Raises ConnectionError if a Ray cluster is gone."""
    host, _, port = cluster.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=POLL_SECONDS):
            return
    except OSError as error:
        raise ConnectionError(
            f"the Ray cluster at {cluster} is gone ({error.strerror or error}): the same command "
            "resumes on another one"
        ) from None


_WATCH = """
import sys, time
from softperm.parallel import check_reachable
sys.stdin.read()  # until the other process has ended
for _ in range(10):
    try:
        check_reachable(sys.argv[1])
    except ConnectionError as error:
        sys.exit(f"error: {error}")
    time.sleep(1)
"""


@contextmanager
def _last_words(cluster: str) -> Iterator[None]:
    """Says that a cluster is gone if this process ends within the block for that reason."""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _WATCH, cluster]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | path) as watcher:
        try:
            yield
        finally:
            watcher.kill()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError(
            "the engine ray needs the package ray: pip install 'softperm[cluster]'"
        ) from None
    return ray


def _begin_worker(parent: int) -> None:
    """Speeds up the imports of this worker, and ends it when its parent ends.

    loky's workers would keep running.
    """
    defer_imports()
    collect_rarely()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
