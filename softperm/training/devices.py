"""Where a training runs: one device, several, or several machines, through Lightning Fabric.

Processes come from ``torchrun``, from ``fabric run``, from a scheduler such as Slurm, or, when
several devices of one machine are asked for, from the program itself, which is started once more
for each of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lightning_fabric import Fabric
else:
    Fabric = Any  # only who trains pays for importing it

PRECISIONS = ("32", "bf16-mixed", "16-mixed")
TIMEOUT = timedelta(minutes=10)  # longer than any process lets the others wait
_LOST = ("gloo", "nccl", "connection", "peer", "timed out")  # how backends say that one is gone


class PeerLost(ConnectionError):
    """Another process of the training ended before its time."""


def find_device(name: str | torch.device) -> torch.device:
    """The device of that name; ``auto`` is a GPU if there is one.

    Raises:
        ValueError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not isinstance(name, str | int | torch.device):
        raise ValueError(f"device must be 'auto' or a device such as 'cpu'; got {name!r}")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).partition("\n")[0].rstrip(".")
        if reason.startswith("Expected one of"):  # twenty kinds of device
            reason = "there is no such kind of device"
        raise ValueError(
            f"device {str(name)!r} cannot be used here ({reason}): choose 'cpu' or 'auto'"
        ) from None
    return device


def connect(
    device: torch.device | str = "cpu", *, devices: int = 1, nodes: int = 1, precision: str = "32"
) -> Fabric:
    """The processes that train together, of which this is one, with their devices.

    Where a launcher started the processes, its numbers hold: ``torchrun`` says how many processes
    and machines there are, ``fabric run`` says everything.

    Args:
        device: what to train on; of several devices, the kind.
        devices: how many of each machine.
        nodes: how many machines.
        precision: ``32``; or ``bf16-mixed`` or ``16-mixed``, in which the head computes with 16
            bits, and permutations, transport and alignment still with 32.

    Raises:
        ValueError: there are no such devices here.
    """
    device = torch.device(device)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")
    if precision == "16-mixed" and device.type == "cpu":
        raise ValueError("precision 16-mixed needs a GPU: on the CPU choose 32 or bf16-mixed")
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # the library prints nothing
    try:
        fabric = _fabric(device, devices, nodes, precision)
        if not _by_fabric_run():  # which has connected it by now
            fabric.launch()
    except (RuntimeError, ValueError, MisconfigurationException) as problem:
        reason = " ".join(str(problem).split())
        raise ValueError(
            f"cannot train on {devices} {device.type} device(s) of {nodes} machine(s): {reason}"
        ) from None
    return fabric


def _fabric(device: torch.device, devices: int, nodes: int, precision: str) -> Fabric:
    import lightning_fabric
    from lightning_fabric.strategies import DDPStrategy

    if _by_fabric_run():
        return lightning_fabric.Fabric()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    which = {"accelerator": device.type, "num_nodes": nodes, "precision": precision}
    if devices * nodes == 1:
        one = [device.index or 0] if device.type == "cuda" else 1
        return lightning_fabric.Fabric(devices=one, **which)
    strategy = DDPStrategy(timeout=TIMEOUT, gradient_as_bucket_view=True)
    return lightning_fabric.Fabric(devices=devices, strategy=strategy, **which)


def _by_fabric_run() -> bool:
    return "LT_CLI_USED" in os.environ


def disconnect(fabric: Fabric) -> None:
    """Parts from the other processes, all of which have finished."""
    if fabric.world_size > 1:
        fabric.barrier()
        torch.distributed.destroy_process_group()


@contextmanager
def together(fabric: Fabric) -> Iterator[None]:
    """Within the block the loss of another process is one sentence.

    Raises:
        PeerLost: another process ended.
    """
    try:
        yield
    except RuntimeError as problem:
        if fabric.world_size == 1:
            raise
        said = str(problem).lower()
        if not isinstance(problem, torch.distributed.DistError) and not any(
            word in said for word in _LOST
        ):
            raise
        raise PeerLost(
            f"another of the {fabric.world_size} processes of this training has ended, so process "
            f"{fabric.global_rank} ends too: the same command goes on from the last checkpoint"
        ) from None
