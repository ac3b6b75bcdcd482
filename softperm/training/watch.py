"""What all processes of a training must see alike: losses, a wish to stop, a time to save."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softperm.training.devices import Fabric

LOOK_EVERY = 16  # mini-batches between two looks at a GPU, each of which waits for it


@dataclass(frozen=True)
class Sight:
    """What a look showed.

    Attributes:
        losses: of the mini-batches since the last look, each summed over all processes.
        stop: whether a process was asked to stop, or time is up.
        save: whether the last checkpoint is old.
    """

    losses: tuple[float, ...]
    stop: bool
    save: bool


class Watch:
    """Looks at a training now and then; every process looks at the same moments.

    Args:
        fabric: the processes.
        interrupted: whether this process was asked to stop.
        save_every: seconds between two checkpoints.
        max_time: seconds until time is up; None for never.
    """

    def __init__(
        self,
        fabric: Fabric,
        interrupted: Callable[[], bool],
        save_every: float,
        max_time: float | None,
    ) -> None:
        self.fabric, self.interrupted, self.save_every = fabric, interrupted, save_every
        self.end = float("inf") if max_time is None else time.monotonic() + max_time
        self.saved_at = time.monotonic()
        self.stop = False
        self.period = 1 if fabric.device.type == "cpu" else LOOK_EVERY

    def look(self, losses: Sequence[Tensor] = ()) -> Sight:
        """Waits for the device and for the other processes; the clock is the first process's."""
        now = time.monotonic()
        first = self.fabric.is_global_zero
        wishes = [self.interrupted(), first and now > self.end]
        flags = [any(wishes), first and now - self.saved_at > self.save_every]
        if self.fabric.world_size == 1:
            seen = torch.stack(list(losses)).tolist() if losses else []
        else:
            device = self.fabric.device
            said = torch.tensor(flags, dtype=torch.float64, device=device)
            said = torch.cat([*(loss.double().view(1) for loss in losses), said])
            torch.distributed.all_reduce(said)
            *seen, stop, save = said.tolist()
            flags = [stop > 0, save > 0]
        self.stop = flags[0]
        return Sight(tuple(seen), *flags)

    def saved(self) -> None:
        """Notes that a checkpoint was written."""
        self.saved_at = time.monotonic()
