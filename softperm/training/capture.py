"""A step recorded once as a CUDA graph and replayed; on the CPU simply called."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

Memory = tuple[int, int]
"""A pool of a GPU's memory, as torch names it."""

WARM_UP = 1  # lets kernels compile and libraries settle before recording


class Captured:
    """Calls ``function(index)``; on a GPU without the host's part in it.

    Args:
        function: a step that reads nothing on the host and whose shapes never change.
        example: an input of the shape that all will have.
        kept: tensors that the step changes in place; recording leaves them as they were.
        memory: where a GPU's recording has its memory; its own by default. Steps that are called
            one after the other, and whose outputs are none, can share it.
    """

    def __init__(
        self,
        function: Callable[[Tensor], tuple[Tensor, ...] | None],
        example: Tensor,
        kept: Sequence[Tensor] = (),
        memory: Memory | None = None,
    ) -> None:
        self.function = function
        self.graph: torch.cuda.CUDAGraph | None = None
        if example.is_cuda:
            self._record(example.clone(), kept, memory)

    def _record(self, index: Tensor, kept: Sequence[Tensor], memory: Memory | None) -> None:
        before = [tensor.detach().clone() for tensor in kept]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.function(index)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(self.graph, pool=memory):
            self.outputs = self.function(index) or ()
        self.index = index
        with torch.no_grad():
            for tensor, value in zip(kept, before, strict=True):
                tensor.copy_(value)

    def __call__(self, index: Tensor) -> tuple[Tensor, ...]:
        """The step's outputs; on a GPU the next call overwrites them."""
        if self.graph is None:
            return self.function(index) or ()
        self.index.copy_(index)
        self.graph.replay()
        return self.outputs

    def release(self) -> None:
        """Gives the recording and its memory back; the step cannot be called any more."""
        self.graph, self.outputs = None, ()


def memory_of_recordings(device: torch.device) -> Memory | None:
    """Memory that recordings can share; none off the GPU."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def on_device(device: torch.device) -> AbstractContextManager:
    """Makes a GPU the current one, where kernels are launched and steps recorded."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected meanwhile: freeing an older recording would spoil the new one."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
