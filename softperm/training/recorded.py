"""Steps on mini-batches of fixed room: on a GPU recorded once as a CUDA graph and replayed.

Launched one by one from Python, the small kernels of a step leave a GPU idle most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from softperm.data.collection import Collection, GraphBatch
from softperm.pyg import Data
from softperm.training.capture import Captured
from softperm.training.stacked_batch import Room, gather
from softperm.training.tasks import Task, mean_loss

MARGIN = 1.1
"""Room beyond what the first epoch's mini-batches need; one that needs more is not replayed."""

Step = Callable[[GraphBatch, Int[Tensor, " b"], Bool[Tensor, " b"]], tuple[Tensor, ...]]
"""A step: of the batch, which graphs it holds, and which places hold one."""


class Recorded:
    """A step that is given the numbers of graphs.

    Args:
        step: reads nothing on the host.
        source: the dataset, on the host.
        graphs: the same on the device.
        batches: mini-batches like those that will come, the first one the largest in number.
        margin: room beyond what they need.
        kept: tensors that the step changes in place; recording leaves them as they were.
    """

    def __init__(
        self,
        step: Step,
        source: Collection,
        graphs: Collection,
        batches: Sequence[Int[Tensor, " _"]],
        margin: float = 1.0,
        kept: Sequence[Tensor] = (),
    ) -> None:
        self.source, self.size = source, len(batches[0])
        most = Room.largest(Room.for_batches(source, part) for part in batches)
        self.room = Room.of(
            int(most.vertices * margin), int(most.edges * margin), int(source.sizes.max())
        )

        def run(index: Int[Tensor, "1 b"]) -> tuple[Tensor, ...]:
            tensors, there = gather(graphs, index, self.room)
            arrays = {name: tensor[0] for name, tensor in tensors.items()}
            batch = Data(**arrays, canonical=True, largest=self.room.graph)
            return step(cast(GraphBatch, batch), index[0].clamp(min=0), there[0])

        self.captured = Captured(run, self._index(batches[0]).to(graphs.ptr.device), kept)

    def __call__(self, part: Int[Tensor, " _"]) -> tuple[Tensor, ...] | None:
        """What the step gives; the next call overwrites it. None if the graphs need more room."""
        need = Room.for_batches(self.source, part)
        if need.vertices > self.room.vertices or need.edges > self.room.edges:
            return None
        return self.captured(self._index(part))

    def _index(self, part: Int[Tensor, " _"]) -> Int[Tensor, "1 b"]:
        """The mini-batch with −1 in the places that it leaves empty."""
        index = torch.full((1, self.size), -1)
        index[0, : len(part)] = part
        return index.pin_memory() if torch.cuda.is_available() else index


class RecordedTraining:
    """The gradient of a network's mean loss over a mini-batch.

    Args:
        model: the network; its parameters get the gradients.
        task: gives the loss.
        source: the dataset, on the host.
        graphs: the same on the device.
        y: encoded targets of all graphs, on the device.
        batches: the mini-batches of an epoch, the last one perhaps smaller.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        source: Collection,
        graphs: Collection,
        y: Tensor,
        batches: Sequence[Int[Tensor, " _"]],
    ) -> None:
        self.params = [p for p in model.parameters() if p.requires_grad]

        def step(batch: GraphBatch, index: Tensor, there: Tensor) -> tuple[Tensor, ...]:
            loss = mean_loss(task, model(batch), y[index], there)
            return loss.detach(), *torch.autograd.grad(loss, self.params, materialize_grads=True)

        model.train()
        kept = list(model.buffers())
        self.recorded = Recorded(step, source, graphs, batches, MARGIN, kept)

    def __call__(self, part: Int[Tensor, " _"]) -> Tensor | None:
        """Leaves the gradients in the parameters; the loss, or None if nothing was done."""
        found = self.recorded(part)
        if found is None:
            return None
        loss, *gradients = found
        for parameter, gradient in zip(self.params, gradients, strict=True):
            parameter.grad = gradient
        return loss.clone()


class RecordedOutputs:
    """A network's outputs, in evaluation mode, for the same graphs again and again.

    Args:
        model: the network.
        source: the dataset, on the host.
        graphs: the same on the device.
        index: which graphs.
        batch_size: how many at once.
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
        was_training = model.training
        model.eval()
        self.recorded = Recorded(
            torch.no_grad()(lambda batch, index, there: (model(batch).float(),)),
            source, graphs, self.parts,
        )  # fmt: skip
        model.train(was_training)

    def __call__(self) -> Tensor:
        """The outputs (b, C), on the CPU."""
        was_training = self.model.training
        self.model.eval()
        rows = []
        for part in self.parts:
            found = self.recorded(part)
            assert found is not None  # room was made for each
            rows.append(found[0][: len(part)].clone())
        self.model.train(was_training)
        return torch.cat(rows).cpu()
