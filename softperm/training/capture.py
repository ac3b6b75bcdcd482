"""A step recorded once as a CUDA graph and replayed; on the CPU simply called."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

WARM_UP = 1  # lets kernels compile and libraries settle before recording


class Studio:
    """Where recordings are made that are replayed one after the other, and have their memory.

    Libraries keep scratch space for each stream on which they were recorded, so recordings that
    run side by side need studios of their own.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.memory = torch.cuda.graph_pool_handle()

    @classmethod
    def on(cls, device: torch.device) -> Studio | None:
        """A studio on a GPU; elsewhere nothing is recorded."""
        return cls() if device.type == "cuda" else None


class Captured:
    """Calls ``function(index)``; on a GPU without the host's part in it.

    Args:
        function: a step that reads nothing on the host and whose shapes never change.
        example: an input of the shape that all will have.
        kept: tensors that the step changes in place; recording leaves them as they were.
        studio: where to record, on a GPU; one of its own by default. A step that has outputs needs
            its own, as the others write over them.
    """

    def __init__(
        self,
        function: Callable[[Tensor], tuple[Tensor, ...] | None],
        example: Tensor,
        kept: Sequence[Tensor] = (),
        studio: Studio | None = None,
    ) -> None:
        self.function = function
        self.graph: torch.cuda.CUDAGraph | None = None
        if example.is_cuda:
            self._record(example.clone(), kept, studio or Studio())
            assert studio is None or not self.outputs, "the studio's other steps overwrite them"

    def _record(self, index: Tensor, kept: Sequence[Tensor], studio: Studio) -> None:
        before = [tensor.detach().clone() for tensor in kept]
        studio.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(studio.stream):
            for _ in range(WARM_UP):
                self.function(index)
        torch.cuda.current_stream().wait_stream(studio.stream)
        self.graph = torch.cuda.CUDAGraph()
        with (
            _no_collection(),
            torch.cuda.graph(self.graph, pool=studio.memory, stream=studio.stream),
        ):
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
