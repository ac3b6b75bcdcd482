"""Steps of fixed shape, captured once as CUDA graphs and replayed; on the CPU called directly.

Launched one by one from Python, the small kernels of a step leave a GPU idle most of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from softperm.data.collection import Collection, GraphBatch
from softperm.nn.model import evaluating
from softperm.training.data import BatchShape, Equal, equal_features, fixed_batch, gather
from softperm.training.precompile import compile_kernels
from softperm.training.tasks import Task, mean_loss

WARM_UP = 1  # calls before the capture, in which kernels compile and libraries initialise
MARGIN = 1.1  # of what the first epoch's mini-batches need; larger mini-batches are not replayed


class CapturePool:
    """Stream and memory shared by CUDA graphs that are replayed one after the other.

    Libraries keep scratch memory for each stream on which they were captured, so graphs that run at
    the same time need pools of their own.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.memory = torch.cuda.graph_pool_handle()

    @classmethod
    def on(cls, device: torch.device) -> CapturePool | None:
        """A new pool on a GPU; None on other devices, where nothing is captured."""
        return cls() if device.type == "cuda" else None


class CapturedStep:
    """Calls ``function(index)``, on a GPU by replaying its CUDA graph.

    Args:
        function: a step in which the host reads no tensor and whose shapes are constant.
        example: an input of the shape of all inputs.
        restored: tensors that the step changes in place; the capture restores their values.
        pool: shared with other steps; by default a pool of its own. A step with outputs needs its
            own pool, as other steps of a pool overwrite its memory.
    """

    def __init__(
        self,
        function: Callable[[Tensor], tuple[Tensor, ...] | None],
        example: Tensor,
        restored: Sequence[Tensor] = (),
        pool: CapturePool | None = None,
    ) -> None:
        self.function = function
        self.graph: torch.cuda.CUDAGraph | None = None
        if example.is_cuda:
            self._capture(example.clone(), restored, pool or CapturePool())
            assert pool is None or not self.outputs, "other steps of the pool overwrite outputs"

    def _capture(self, index: Tensor, restored: Sequence[Tensor], pool: CapturePool) -> None:
        before = [tensor.detach().clone() for tensor in restored]
        pool.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(pool.stream):
            for _ in range(WARM_UP):
                self.function(index)
        torch.cuda.current_stream().wait_stream(pool.stream)
        self.graph = torch.cuda.CUDAGraph()
        with (
            _no_garbage_collection(),
            torch.cuda.graph(self.graph, pool=pool.memory, stream=pool.stream),
        ):
            self.outputs = self.function(index) or ()
        self.index = index
        with torch.no_grad():
            for tensor, value in zip(restored, before, strict=True):
                tensor.copy_(value)

    def __call__(self, index: Tensor) -> tuple[Tensor, ...]:
        """The step's outputs; on a GPU the next call overwrites them."""
        if self.graph is None:
            return self.function(index) or ()
        self.index.copy_(index)
        self.graph.replay()
        return self.outputs

    def release(self) -> None:
        """Frees the CUDA graph and its memory; the step must not be called again."""
        self.graph, self.outputs = None, ()


def on_device(device: torch.device) -> AbstractContextManager:
    """Makes a GPU the current device, on which kernels are launched and captured."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Suspends garbage collection: freeing an older CUDA graph would break the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


Step = Callable[[GraphBatch, Int[Tensor, " b"], Bool[Tensor, " b"]], tuple[Tensor, ...]]
"""A step of one model: given the batch, its graphs' numbers, and which of them are graphs."""


class FixedShapeStep:
    """A captured step of one model that is called with the numbers of graphs.

    Args:
        step: the step; must not read tensors on the host.
        source: the collection on the host.
        graphs: the same collection on the device.
        batches: typical mini-batches, of which none is larger than the first.
        margin: factor on the numbers of vertices and edges of the largest mini-batch.
        restored: tensors that the step changes in place; the capture restores their values.
        equal: the equal vertices of the collection, on the host.
    """

    def __init__(
        self,
        step: Step,
        source: Collection,
        graphs: Collection,
        batches: Sequence[Int[Tensor, " _"]],
        margin: float = 1.0,
        restored: Sequence[Tensor] = (),
        equal: Equal | None = None,
    ) -> None:
        self.source, self.size = source, len(batches[0])
        self.equal = equal or {}
        most = BatchShape.largest(self._shape_of(part) for part in batches)
        self.shape = most.grown(margin, int(source.sizes.max()))
        rows = {name: merged.to(graphs.ptr.device) for name, merged in self.equal.items()}

        def run(index: Int[Tensor, "1 b"]) -> tuple[Tensor, ...]:
            tensors, present = gather(graphs, index, self.shape, rows)
            arrays = {name: tensor[0] for name, tensor in tensors.items()}
            batch = fixed_batch(arrays, self.shape, rows)
            return step(batch, index[0].clamp(min=0), present[0])

        self.captured = CapturedStep(run, self._index(batches[0]).to(graphs.ptr.device), restored)

    def __call__(self, part: Int[Tensor, " _"]) -> tuple[Tensor, ...] | None:
        """The step's outputs, overwritten by the next call; None if the graphs are too large."""
        return self.captured(self._index(part)) if self.shape.holds(self._shape_of(part)) else None

    def _shape_of(self, part: Int[Tensor, " _"]) -> BatchShape:
        return BatchShape.for_batches(self.source, part, self.equal)

    def _index(self, part: Int[Tensor, " _"]) -> Int[Tensor, "1 b"]:
        """The mini-batch, filled up with −1."""
        index = torch.full((1, self.size), -1)
        index[0, : len(part)] = part
        return index.pin_memory() if torch.cuda.is_available() else index


class CapturedGradients:
    """The gradients of a network's mean loss over a mini-batch.

    Args:
        model: the network, whose parameters receive the gradients.
        task: defines the loss.
        source: the collection on the host.
        graphs: the same collection on the device.
        y: encoded targets of all graphs, on the device.
        batches: the mini-batches of an epoch, of which the last may be smaller.
        weight: of all graphs in the loss, on the device; 1 by default.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        source: Collection,
        graphs: Collection,
        y: Tensor,
        batches: Sequence[Int[Tensor, " _"]],
        weight: Tensor | None = None,
    ) -> None:
        self.params = [p for p in model.parameters() if p.requires_grad]

        def step(batch: GraphBatch, index: Tensor, present: Tensor) -> tuple[Tensor, ...]:
            weights = None if weight is None else weight[index]
            loss = mean_loss(task, model(batch), y[index], present, weights)
            return loss.detach(), *torch.autograd.grad(loss, self.params, materialize_grads=True)

        model.train()
        equal = equal_features(source, model)
        compile_kernels(model, source, graphs, batches[0], equal=equal)
        buffers = list(model.buffers())
        self.step = FixedShapeStep(step, source, graphs, batches, MARGIN, buffers, equal)

    def __call__(self, part: Int[Tensor, " _"]) -> Tensor | None:
        """Stores the gradients in the parameters; returns the loss, or None if not captured."""
        outputs = self.step(part)
        if outputs is None:
            return None
        loss, *gradients = outputs
        for parameter, gradient in zip(self.params, gradients, strict=True):
            parameter.grad = gradient
        return loss.clone()


class CapturedOutputs:
    """A network's outputs for the same graphs, whenever its parameters have changed.

    Args:
        model: the network, called in evaluation mode.
        source: the collection on the host.
        graphs: the same collection on the device.
        index: the graphs.
        batch_size: graphs in a mini-batch.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Collection,
        graphs: Collection,
        index: Int[Tensor, " b"],
        batch_size: int,
    ) -> None:
        self.model, self.parts = model, index.split(batch_size)
        with evaluating(model):
            self.step = FixedShapeStep(
                torch.no_grad()(lambda batch, index, present: (model(batch).float(),)),
                source,
                graphs,
                self.parts,
                equal=equal_features(source, model),
            )

    def __call__(self) -> Tensor:
        """The outputs (b, C), on the CPU."""
        rows = []
        with evaluating(self.model):
            for part in self.parts:
                outputs = self.step(part)
                assert outputs is not None, "the shape holds each of these mini-batches"
                rows.append(outputs[0][: len(part)].clone())
        return torch.cat(rows).cpu()
