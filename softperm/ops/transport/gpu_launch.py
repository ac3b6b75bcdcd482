"""Launches of kernels that do not depend on each other: compiled at once, run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import torch

SIDE_STREAMS = 3
"""Streams beside the current one; further launches share them."""


@dataclass(frozen=True)
class Launch:
    """One launch of a Triton kernel.

    Attributes:
        kernel: the kernel.
        programs: how many programs run it.
        arguments: what it is given.
        constants: what it is compiled for, given after the arguments.
        options: how it is compiled.
    """

    kernel: Any
    programs: int
    arguments: tuple
    constants: tuple
    options: dict[str, int | bool]

    @property
    def form(self) -> tuple:
        """What it is compiled for: the kernel, the types of its arrays, its constants."""
        types = tuple(a.dtype for a in self.arguments if isinstance(a, torch.Tensor))
        return self.kernel, types, self.constants

    def run(self) -> None:
        """Launches on the current stream."""
        self.kernel[(self.programs,)](*self.arguments, *self.constants, **self.options)

    def compile(self) -> None:
        """Compiles without launching."""
        grid = (self.programs,)
        self.kernel.warmup(*self.arguments, *self.constants, grid=grid, **self.options)


def run_side_by_side(launches: Sequence[Launch], device: torch.device) -> None:
    """Runs independent launches at once; what follows on the current stream waits for all.

    The first, which should be the longest, stays on the current stream. The others are branches
    beside it, also in a CUDA graph that is being captured.
    """
    if device.type != "cuda":
        for launch in launches:
            launch.run()
        return
    with torch.cuda.device(device):
        _compile(launches)
        current = torch.cuda.current_stream()
        fork = current.record_event()
        launches[0].run()
        for launch, stream in zip(launches[1:], cycle(_side_streams(device)), strict=False):
            with torch.cuda.stream(stream):
                stream.wait_event(fork)
                launch.run()
                current.wait_event(stream.record_event())


@cache
def _side_streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    """Streams of a device that are ours."""
    return tuple(torch.cuda.Stream(device) for _ in range(SIDE_STREAMS))


_compiled: set[tuple] = set()


def _compile(launches: Sequence[Launch]) -> None:
    """Compiles what may be new, each kernel in a thread of its own: the compiler is not Python."""
    forms = {(torch.cuda.current_device(), *launch.form) for launch in launches}
    if forms <= _compiled:
        return
    from triton import AsyncCompileMode

    with ThreadPoolExecutor(len(launches)) as threads, AsyncCompileMode(threads):
        for launch in launches:
            launch.compile()
    _compiled.update(forms)
