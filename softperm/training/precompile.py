"""Compilation of a network's GPU kernels before its first step, all at the same time.

A launch compiles its kernel when a step first reaches it, so the kernels of a step would be
compiled one after the other. Here a step on torch's ``meta`` device, which computes nothing, says
which operators the network needs and for which sizes. Each is then called once on arrays of zeros,
in a thread of its own: Triton's compiler and the C compiler of its launchers run without the GIL.

A kernel that is not found here is compiled at its first launch: that takes time, nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from softperm.data.collection import Collection, GraphBatch
from softperm.training.data import BatchShape, Equal, fixed_batch, gather

Call = tuple[OpOverload, tuple]
"""An operator and its arguments."""

_compiled: set[tuple] = set()  # networks and devices whose kernels this process has


def compile_kernels(
    model: nn.Module,
    source: Collection,
    graphs: Collection,
    index: Int[Tensor, " b"],
    more: Sequence[Callable[[], object]] = (),
    equal: Equal | None = None,
) -> None:
    """Compiles the kernels of a network's training step; on devices without kernels does nothing.

    Args:
        model: the network, in training mode, on the device.
        source: the collection on the host.
        graphs: the same collection on the device.
        index: the graphs of a typical mini-batch.
        more: further functions of the step that launch kernels.
        equal: the equal vertices of the collection, on the host.
    """
    device = graphs.ptr.device
    if device.type != "cuda" or not len(index):
        return
    index, equal = index.cpu()[None], equal or {}
    shape = BatchShape.for_batches(source, index, equal)
    arrays, _ = gather(source, index, shape, equal)
    batch = fixed_batch({name: array[0] for name, array in arrays.items()}, shape, equal)
    batch.largest = int(source.sizes.max())  # as in steps of fixed shape
    key = (device, _form(model, batch))
    if key in _compiled:
        return
    _compiled.add(key)
    one = index[:, source.sizes[index[0]].argmax()][None]
    shape = BatchShape.for_batches(source, one, equal)
    rows = {name: merged.to(device) for name, merged in equal.items()}
    functions = [partial(_call, *call, device) for call in _distinct(operator_calls(model, batch))]
    functions += [partial(gather, graphs, one.to(device), shape, rows), *more]
    _start_triton()
    with ThreadPoolExecutor(len(functions)) as pool:
        list(pool.map(partial(_try, device), functions))


def operator_calls(model: nn.Module, batch: GraphBatch) -> list[Call]:
    """The operators of this package that a training step of a network calls, in their order.

    Args:
        model: the network, in training mode.
        batch: a mini-batch.

    Returns:
        The operators, with tensors on the ``meta`` device; none for a network that cannot run
        there because it reads tensors on the host.
    """
    tensors = {
        name: tensor.detach().to("meta").requires_grad_(tensor.requires_grad)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    learnt = [tensor for tensor in tensors.values() if tensor.requires_grad]
    with _Recorder() as recorder:
        try:
            outputs = functional_call(model, tensors, (copy.copy(batch).to("meta"),))
            torch.autograd.grad(outputs.sum(), learnt, allow_unused=True)
        except Exception:  # of any network: its kernels compile at their first launch
            return []
    return recorder.calls


class _Recorder(TorchDispatchMode):
    """Records the calls of this package's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func.namespace == "softperm":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def _form(model: nn.Module, batch: GraphBatch) -> tuple:
    """What the kernels of a network depend on, except for numbers of vertices and edges."""
    parameters = tuple((name, tuple(tensor.shape)) for name, tensor in model.named_parameters())
    fields = tuple(
        (name, value.dtype, tuple(value.shape[1:]))
        for name, value in batch.to_dict().items()
        if isinstance(value, Tensor)
    )
    equal = batch.get("equal_vertices") or {}
    largest = (batch.largest, *((name, rows.largest) for name, rows in equal.items()))
    return type(model), repr(getattr(model, "config", None)), parameters, fields, largest


def _distinct(calls: Sequence[Call]) -> list[Call]:
    """One of all calls that differ in the values of tensors only."""
    distinct = {}
    for operator, arguments in calls:
        values = (
            (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else value
            for value in arguments
        )
        distinct[operator, *values] = operator, arguments
    return list(distinct.values())


def _call(operator: OpOverload, arguments: tuple, device: torch.device) -> None:
    """Calls an operator on zeros, for graphs without vertices and edges."""
    names = [argument.name for argument in operator._schema.arguments]
    values = []
    for name, value in zip(names, arguments, strict=True):
        if isinstance(value, Tensor):
            fill = int(name == "used")  # the transport has done one iteration at least
            value = torch.full(value.shape, fill, dtype=value.dtype, device=device)
        values.append(value)
    operator(*values)


def _try(device: torch.device, function: Callable[[], object]) -> None:
    """Calls a function. What fails here fails again in the first step, with its message."""
    with suppress(Exception), torch.cuda.device(device):
        function()


def _start_triton() -> None:
    """Loads Triton's driver, which several threads must not do at the same time."""
    from triton.runtime import driver

    driver.active.get_current_target()
