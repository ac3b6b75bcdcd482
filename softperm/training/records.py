"""What goes into a training and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from softperm.data.collection import Collection


@dataclass(frozen=True)
class Epoch:
    """One row of the training curve; validation figures are NaN without validation graphs."""

    number: int
    train_loss: float
    validation_loss: float
    validation_score: float
    seconds: float


@dataclass(frozen=True)
class FitResult:
    """What a training gave.

    Attributes:
        curve: one row per epoch.
        best_epoch: number of the epoch whose parameters were kept.
        interrupted: whether it stopped before its end, by a signal or by its time limit.
    """

    curve: tuple[Epoch, ...]
    best_epoch: int
    interrupted: bool


@dataclass(frozen=True)
class Examples:
    """Graphs with their targets.

    Attributes:
        graphs: the whole collection.
        y: targets of all its graphs.
        index: which of them are meant.
    """

    graphs: Collection
    y: Tensor
    index: Int[Tensor, " b"]

    def __len__(self) -> int:
        return len(self.index)


def epoch_order(index: Int[Tensor, " b"], seed: int, epoch: int) -> Int[Tensor, " b"]:
    """The graphs of an epoch in random order: a function of seed and epoch alone."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return index[torch.randperm(len(index), generator=generator)]
