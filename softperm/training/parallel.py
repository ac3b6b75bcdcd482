"""What the processes of a data-parallel training share: batches, statistics, outputs, answers.

Each process computes its share of every mini-batch. Because losses are divided by the targets of
the whole mini-batch, and batch normalisation takes its statistics from all of it, the gradient is
that of one process with the whole mini-batch, however the shares come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.ops.normalisation import VertexBatchNorm
from softperm.training.devices import Fabric


def shares(
    part: Int[Tensor, " b"], sizes: Int[Tensor, " B"], fabric: Fabric, pieces: int
) -> list[Int[Tensor, " _"]]:
    """This process's share of a mini-batch, in pieces; some are empty if graphs are few.

    Graphs are dealt by size, to and fro, so that all processes have about as many vertices and
    none waits for another; the mini-batch as a whole stays the same.

    Args:
        part: the mini-batch.
        sizes: vertices of every graph of the collection.
        fabric: the processes.
        pieces: into how many pieces the share is cut.
    """
    piles = fabric.world_size * pieces
    if piles == 1:
        return [part]
    dealt = part[sizes[part].argsort(descending=True, stable=True)]
    place = torch.arange(-(-len(part) // piles) * piles).view(-1, piles)  # (rounds, piles)
    place[1::2] = place[1::2].flip(1)
    mine = place.T[fabric.global_rank * pieces :][:pieces]
    return [dealt[pile[pile < len(part)]] for pile in mine]


def gather_rows(fabric: Fabric, rows: Float[Tensor, "_ C"], count: int) -> Float[Tensor, "b C"]:
    """All rows, where each process holds every ``world_size``-th; on the CPU.

    Args:
        fabric: the processes.
        rows: those of this process.
        count: how many there are in all.
    """
    world = fabric.world_size
    if world == 1:
        return rows
    most = -(-count // world)
    padded = rows.new_zeros(most, rows.shape[1])
    padded[: len(rows)] = rows
    every = torch.stack(gather_all(fabric, padded), dim=1)  # (most, world, C)
    return every.flatten(0, 1)[:count]


def gather_all(fabric: Fabric, tensor: Tensor) -> list[Tensor]:
    """The tensors of all processes, which have one shape; on the CPU."""
    mine = tensor.to(fabric.device)
    every = [torch.empty_like(mine) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(every, mine)
    return [one.cpu() for one in every]


def ask_first(fabric: Fabric, question: Callable[[], Any]) -> Any:
    """The answer of the first process, in all of them; also if the answer is a ValueError."""
    answer: Any = None
    if fabric.is_global_zero:
        try:
            answer = question()
        except ValueError as problem:
            answer = problem
    answer = fabric.broadcast(answer)
    if isinstance(answer, ValueError):
        raise answer
    return answer


@contextmanager
def shared_statistics(model: nn.Module, fabric: Fabric) -> Iterator[None]:
    """Within the block the model's batch normalisation sees the vertices of all processes."""
    if fabric.world_size == 1:
        yield
        return
    replaced = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, VertexBatchNorm)
    ]
    for parent, name, child in replaced:
        parent.add_module(name, _SharedBatchNorm(child))
    try:
        yield
    finally:
        for parent, name, child in replaced:
            shared = parent.get_submodule(name)
            child.load_state_dict(shared.state_dict())
            parent.add_module(name, child.train(shared.training).to(fabric.device))


class _SharedBatchNorm(VertexBatchNorm):
    """Batch normalisation over the vertices of all processes.

    Args:
        alone: whose parameters and statistics it takes over.
    """

    def __init__(self, alone: VertexBatchNorm) -> None:
        super().__init__(len(alone.weight), alone.momentum, alone.eps, relu=alone.relu)
        self.weight, self.bias = alone.weight, alone.bias
        self.running_mean, self.running_var = alone.running_mean, alone.running_var

    def forward(self, x: Float[Tensor, "V H"], count: Int[Tensor, ""]) -> Float[Tensor, "V H"]:
        """Normalises all rows with the statistics of the first ``count`` of each process."""
        if not self.training:
            return super().forward(x, count)
        real = (torch.arange(len(x), device=x.device) < count).to(x.dtype)[:, None]  # (V, 1)
        sums = _Sum.apply(torch.cat([(x * real).sum(0), count[None].to(x.dtype)]))  # (H + 1,)
        everywhere = sums[-1].detach()
        total = everywhere.clamp(min=1)
        mean = sums[:-1] / total
        centred = x - mean  # (V, H)
        var = _Sum.apply((centred.square() * real).sum(0)) / total
        self._learn(mean, var, everywhere)
        return self._scaled(centred, var)


class _Sum(torch.autograd.Function):
    """The sum over all processes; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone()
        torch.distributed.all_reduce(total)
        return total
