"""Devices and processes of a training.

One network on one device needs no communication: :class:`OneDevice`. Several devices or machines
are an explicit request, :func:`connect`, which uses Lightning Fabric; only this request reads the
environment of a launcher (``torchrun``, ``fabric run``, Slurm). Without a launcher the program is
started once more for each further device.

In data-parallel training each process computes its share of every mini-batch. Losses are divided by
the number of targets of the whole mini-batch, and batch normalisation uses the statistics of the
whole mini-batch, so the gradient equals that of one process with the whole mini-batch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.errors import one_line
from softperm.ops.layers import VertexBatchNorm

if TYPE_CHECKING:
    from lightning_fabric import Fabric
else:
    Fabric = Any  # importing it takes as long as a small training

PRECISIONS = ("32", "bf16-mixed", "16-mixed")
TIMEOUT = timedelta(minutes=10)  # longer than any process makes the others wait
_LOST = ("gloo", "nccl", "connection", "peer", "timed out")  # in errors about a lost process


def find_device(name: str | torch.device) -> torch.device:
    """The device of that name; ``auto`` is a GPU if there is one.

    Raises:
        ValueError: there is no such device.
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
        if reason.startswith("Expected one of"):  # a list of twenty kinds of device
            reason = "there is no such kind of device"
        raise ValueError(
            f"device {str(name)!r} cannot be used here ({reason}): choose 'cpu' or 'auto'"
        ) from None
    return device


class OneDevice:
    """One process on one device in 32 bits: the part of Fabric's interface that the loop uses.

    Args:
        device: the device; the environment is not read.
    """

    world_size, global_rank, is_global_zero = 1, 0, True

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)

    def setup(
        self, model: nn.Module, optimiser: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Nothing needs to be wrapped."""
        return model, optimiser

    def backward(self, loss: Tensor) -> None:
        """Adds gradients to the parameters."""
        loss.backward()

    def no_backward_sync(self, model: nn.Module, enabled: bool) -> AbstractContextManager:
        """There is no other process with which to add up gradients."""
        return nullcontext()

    def clip_gradients(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        max_norm: float,
        error_if_nonfinite: bool,
    ) -> None:
        """Scales the gradient down to ``max_norm`` if it is longer."""
        torch.nn.utils.clip_grad_norm_(
            model.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite
        )


class PeerLost(ConnectionError):
    """Another process of the training ended unexpectedly."""


def connect(
    device: torch.device | str = "cpu", *, devices: int = 1, nodes: int = 1, precision: str = "32"
) -> Fabric | OneDevice:
    """Connects the processes that train together, of which this is one.

    A launcher's environment overrides the arguments: ``torchrun`` sets the number of processes and
    machines, ``fabric run`` sets everything. Without a launcher, one device in 32 bits needs no
    Fabric.

    Args:
        device: the device; of several devices, their kind.
        devices: number of devices per machine.
        nodes: number of machines.
        precision: ``32``; or ``bf16-mixed`` or ``16-mixed``, in which the head computes with 16
            bits, and permutations, transport and alignment still with 32.

    Raises:
        ValueError: there are no such devices.
    """
    device = torch.device(device)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")
    if precision == "16-mixed" and device.type == "cpu":
        raise ValueError("precision 16-mixed needs a GPU: on the CPU choose 32 or bf16-mixed")
    launched = _started_by_fabric_run() or "TORCHELASTIC_RUN_ID" in os.environ
    if not launched and (devices, nodes, precision) == (1, 1, "32"):
        return OneDevice(device)
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # the library prints nothing
    try:
        fabric = _fabric(device, devices, nodes, precision)
        if not _started_by_fabric_run():  # which has already launched it
            fabric.launch()
    except (RuntimeError, ValueError, MisconfigurationException) as problem:
        reason = one_line(problem)
        raise ValueError(
            f"cannot train on {devices} {device.type} device(s) of {nodes} machine(s): {reason}"
        ) from None
    return fabric


def _fabric(device: torch.device, devices: int, nodes: int, precision: str) -> Fabric:
    import lightning_fabric
    from lightning_fabric.strategies import DDPStrategy

    if _started_by_fabric_run():
        return lightning_fabric.Fabric()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    options = {"accelerator": device.type, "num_nodes": nodes, "precision": precision}
    if devices * nodes == 1:
        one = [device.index or 0] if device.type == "cuda" else 1
        return lightning_fabric.Fabric(devices=one, **options)
    strategy = DDPStrategy(timeout=TIMEOUT, gradient_as_bucket_view=True)
    return lightning_fabric.Fabric(devices=devices, strategy=strategy, **options)


def _started_by_fabric_run() -> bool:
    return "LT_CLI_USED" in os.environ


def disconnect(fabric: Fabric | OneDevice) -> None:
    """Waits until all processes have finished, and closes their connection."""
    if fabric.world_size > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


@contextmanager
def lost_peers_reported(fabric: Fabric | OneDevice) -> Iterator[None]:
    """Within the block the loss of another process is reported in one sentence.

    Raises:
        PeerLost: another process ended.
    """
    try:
        yield
    except RuntimeError as problem:
        words = str(problem).lower()
        lost = isinstance(problem, torch.distributed.DistError) or any(w in words for w in _LOST)
        if fabric.world_size == 1 or not lost:
            raise
        raise PeerLost(
            f"another of the {fabric.world_size} processes of this training has ended, so process "
            f"{fabric.global_rank} ends too: run the same command again to resume from the last "
            "checkpoint"
        ) from None


def shares(
    part: Int[Tensor, " b"], sizes: Int[Tensor, " B"], fabric: Fabric | OneDevice, pieces: int
) -> list[Int[Tensor, " _"]]:
    """This process's share of a mini-batch in ``pieces`` pieces, of which some may be empty.

    Graphs are dealt by size, forwards and backwards in turn, so that all processes have about the
    same number of vertices.
    """
    piles = fabric.world_size * pieces
    if piles == 1:
        return [part]
    dealt = part[sizes[part].argsort(descending=True, stable=True)]
    place = torch.arange(-(-len(part) // piles) * piles).view(-1, piles)  # (rounds, piles)
    place[1::2] = place[1::2].flip(1)
    mine = place.T[fabric.global_rank * pieces :][:pieces]
    return [dealt[pile[pile < len(part)]] for pile in mine]


def gather_rows(
    fabric: Fabric | OneDevice, rows: Float[Tensor, "_ C"], count: int
) -> Float[Tensor, "b C"]:
    """All rows, of which each process has every ``world_size``-th; on the CPU."""
    world = fabric.world_size
    if world == 1:
        return rows
    most = -(-count // world)
    padded = rows.new_zeros(most, rows.shape[1])
    padded[: len(rows)] = rows
    every = torch.stack(gather_all(fabric, padded), dim=1)  # (most, world, C)
    return every.flatten(0, 1)[:count]


def gather_all(fabric: Fabric | OneDevice, tensor: Tensor) -> list[Tensor]:
    """The tensors of all processes, which have the same shape; on the CPU."""
    if fabric.world_size == 1:
        return [tensor]
    mine = tensor.to(fabric.device)
    every = [torch.empty_like(mine) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(every, mine)
    return [one.cpu() for one in every]


def from_first(fabric: Fabric | OneDevice, function: Callable[[], Any]) -> Any:
    """Calls a function in the first process; all processes return its value or raise its error."""
    if fabric.world_size == 1:
        return function()
    value: Any = None
    if fabric.is_global_zero:
        try:
            value = function()
        except ValueError as problem:
            value = problem
    value = fabric.broadcast(value)  # type: ignore[union-attr]
    if isinstance(value, ValueError):
        raise value
    return value


@contextmanager
def shared_statistics(model: nn.Module, fabric: Fabric | OneDevice) -> Iterator[None]:
    """Within the block batch normalisation uses the vertices of all processes."""
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
    """Batch normalisation over the vertices of all processes."""

    def __init__(self, local: VertexBatchNorm) -> None:
        super().__init__(len(local.weight), local.momentum, local.eps, relu=local.relu)
        self.weight, self.bias = local.weight, local.bias
        self.running_mean, self.running_var = local.running_mean, local.running_var

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
        self._update_running(mean, var, everywhere)
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
