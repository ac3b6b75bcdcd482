"""The mini-batches of many models in step, and for each of them a step with room enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from softperm.data.collection import Collection
from softperm.training.capture import Captured, Studio
from softperm.training.fit import TrainingConfig, epoch_order
from softperm.training.stacked_batch import Room, needs, rooms
from softperm.training.stacked_outputs import batches

ROOMS = 8  # sizes of mini-batches for which there is a room, at most
RECORDING = 1.0  # seconds that a recording takes
PACE = 1e8  # places for vertices and edges that a GPU trains on in a second


class StackedEpochs:
    """All epochs of a training; on a GPU a step is recorded for each room and replayed.

    Args:
        step: trains on the mini-batches of all models, given (M, b) and the room for them.
        orders: the mini-batches of all epochs; see :func:`orders_of`.
        graphs: the whole dataset, on the host.
        device: where the step runs.
        kept: tensors that the step changes in place; recording leaves them as they were.
    """

    def __init__(
        self,
        step: Callable[[Int[Tensor, "M b"], Room], None],
        orders: Int[Tensor, "epochs steps M b"],
        graphs: Collection,
        device: torch.device,
        kept: Sequence[Tensor],
    ) -> None:
        self.orders, self.device = orders, device
        each = [needs(graphs, order) for order in orders]  # by epochs: all at once would be large
        vertices, edges, graph = (
            torch.cat([need.amax(-1) for need in kind]) for kind in zip(*each, strict=True)
        )  # (epochs · steps,)
        places = float(vertices.max() + edges.max()) * orders.shape[2] * len(vertices)
        made, which = rooms(vertices, edges, graph, ROOMS, worth(places, device))
        self.room_of: list[list[int]] = which.view(orders.shape[:2]).tolist()
        first = [int((which == level).nonzero()[0]) for level in range(len(made))]
        examples = orders.flatten(0, 1)[first].to(device).long()
        self.studio = Studio.on(device)
        pairs = [*zip(made, examples, strict=True)]
        self.steps = [  # the largest first, whose memory is enough for the others
            Captured(lambda index, room=room: step(index, room), example, kept, self.studio)
            for room, example in pairs[::-1]
        ][::-1]

    def run(self, epoch: int) -> None:
        """All steps of an epoch, counted from 0."""
        order = self.orders[epoch].to(self.device, non_blocking=True).long()
        for index, room in zip(order, self.room_of[epoch], strict=True):
            self.steps[room](index)

    def release(self) -> None:
        """Gives the recordings and their memory back; no epoch can be run any more."""
        for step in self.steps:
            step.release()


def worth(places: float, device: torch.device) -> float:
    """The share of a training's time, of so many places in all steps, that a room must save."""
    return RECORDING * PACE / max(places, 1.0) if device.type == "cuda" else 0.0


def orders_of(
    train: Sequence[Int[Tensor, " _"]],
    seeds: Sequence[int],
    config: TrainingConfig,
    device: torch.device,
) -> Int[Tensor, "epochs steps M b"]:
    """The mini-batches of all epochs, each model in its own order; where a GPU can fetch them."""
    orders = []
    for epoch in range(1, config.epochs + 1):
        pairs = zip(train, seeds, strict=True)
        shuffled = [epoch_order(index, seed, epoch) for index, seed in pairs]
        orders.append(batches(shuffled, config.batch_size).int())
    made = torch.stack(orders)
    return made.pin_memory() if device.type == "cuda" else made
