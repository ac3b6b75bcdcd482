"""Threads around compiled kernels that release the interpreter.

Not numba's own parallel loops: OpenMP's threads die in a forked process, numba's fallback aborts
when two callers meet in it, and both wait for a core on which a thread of torch's may be spinning.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numba
import torch

SMALL = 1 << 18  # operations that are done before a second thread would have begun


def over_ranges(kernel: Callable[..., object], count: int, work: int, *arguments: object) -> None:
    """Calls ``kernel(*arguments, first, last)`` on ranges that cover 0 … count, in parallel.

    Args:
        kernel: compiled with ``nogil``; each range must be independent of the others.
        count: how many items there are.
        work: about how many operations they take in all; few are done by the caller alone.
        arguments: passed before the range.
    """
    # numba.get_num_threads would set torch's number of threads as well.
    most = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    threads = 1 if work < SMALL else min(most, torch.get_num_threads(), count)
    if threads <= 1:
        kernel(*arguments, 0, count)
        return
    pieces = min(count, 4 * threads)  # more than threads, so that uneven ranges balance
    cuts = [count * i // pieces for i in range(pieces + 1)]
    done = [
        _pool(os.getpid()).submit(kernel, *arguments, cuts[i], cuts[i + 1]) for i in range(pieces)
    ]
    for piece in done:
        piece.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process: those of its parent do not survive a fork."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="softperm")
