"""Registration of operators with torch, and the checks of arguments that operators share.

A registered operator can be compiled, captured in a CUDA graph, and mapped over models with
``torch.vmap``. Operators are defined by a schema rather than with ``torch.library.custom_op``,
whose first call imports torch's compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd import forward_ad

_LIBRARY = torch.library.Library("softperm", "FRAGMENT")

Function = Callable[..., Any]


def register(
    schema: str,
    *,
    fake: Function,
    reference: Function | None = None,
    cpu: Function | None = None,
    gpu: Function | None = None,
    save: Function | None = None,
    backward: Function | None = None,
    vmap: Function | None = None,
) -> OpOverload:
    """Defines ``torch.ops.softperm.<name>``, which selects the implementation by device.

    Args:
        schema: name, arguments and results, in torch's notation.
        fake: returns empty results of the right shapes, for the compiler.
        reference: implementation for devices without one of their own.
        cpu: implementation for the CPU.
        gpu: implementation for CUDA devices; see :func:`deferred`.
        save: ``save(ctx, inputs, output)`` stores what ``backward`` needs.
        backward: ``backward(ctx, *gradients)`` returns the gradients of all inputs; without it,
            differentiating the operator is an error.
        vmap: ``vmap(operator, info, in_dims, *inputs)`` is the rule of ``torch.vmap``; see
            :func:`over_models`.
    """
    name = schema.partition("(")[0]
    qualified = f"softperm::{name}"
    _LIBRARY.define(schema, tags=torch.Tag.pt2_compliant_tag)
    implementations = {"CompositeExplicitAutograd": reference, "CPU": cpu, "CUDA": gpu}
    for key, function in implementations.items():
        if function is not None:
            _LIBRARY.impl(name, function, key)
    torch.library.register_fake(qualified, fake, lib=_LIBRARY)
    backward = partial(_refuse, name) if backward is None else backward
    torch.library.register_autograd(qualified, backward, setup_context=save, lib=_LIBRARY)
    operator = getattr(torch.ops.softperm, name).default
    if vmap is not None:
        torch.library.register_vmap(qualified, partial(vmap, operator), lib=_LIBRARY)
    return operator


def _refuse(name: str, ctx: Any, *gradients: Tensor) -> None:
    raise NotImplementedError(f"softperm::{name} has no derivative")


def deferred(module: str, function: str) -> Function:
    """A function whose module is imported at the first call: Triton needs a GPU to be there."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(module), function)(*arguments)

    return call


def over_models(operator: OpOverload, info: Any, in_dims: tuple, *inputs: Any) -> tuple:
    """The rule of ``torch.vmap`` for operators whose tensors all have models as their first axis.

    The mapped axis is merged into the axis of models, so that mapping takes a single call.
    """
    tensors = [k for k, value in enumerate(inputs) if isinstance(value, Tensor)]
    merged = list(inputs)
    front = mapped_axis_first(info, [in_dims[k] for k in tensors], [inputs[k] for k in tensors])
    for k, tensor in zip(tensors, front, strict=True):
        size = tensor.shape[:2]  # the same for all of them
        merged[k] = tensor.flatten(0, 1)
    results = operator(*merged)
    if isinstance(results, Tensor):
        return results.unflatten(0, size), 0
    return tuple(t.unflatten(0, size) for t in results), (0,) * len(results)


def mapped_axis_first(
    info: Any, in_dims: Sequence[int | None], tensors: Sequence[Tensor]
) -> Iterator[Tensor]:
    """Each tensor with the mapped axis first; expanded where it is not mapped."""
    return (
        t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip(tensors, in_dims, strict=True)
    )


def check_offsets(ptr: Int[Tensor, "M B1"], vertices: int) -> None:
    """Raises ValueError for offsets with which a kernel would read outside its arrays.

    For the CPU only: on a GPU the check would have to wait for the device.

    Args:
        ptr: first vertex of each graph, with the end of the last one, for each model.
        vertices: number of vertices.
    """
    if ptr.numel() == 0:
        return
    ptr = ptr.long()  # differences of unsigned integers are never negative
    if int(ptr.min()) < 0 or int(ptr.max()) > vertices or bool((ptr.diff() < 0).any()):
        raise ValueError(
            f"ptr must rise from 0 to at most {vertices}, the number of vertices; got "
            f"{ptr.tolist()}"
        )


def refuse_function_transforms(*tensors: Tensor, remedy: str = "") -> None:
    """Raises an error if ``torch.func`` or forward mode differentiates one of the tensors.

    The operators implement reverse mode only, and torch would drop tangents without an error.

    Args:
        tensors: arguments of an operator.
        remedy: end of the message: how to get these derivatives.

    Raises:
        NotImplementedError: a derivative is requested that the operators do not have.
    """
    if not torch.compiler.is_compiling() and any(map(is_tracked, tensors)):
        raise NotImplementedError(
            "the kernels support loss.backward() and torch.autograd.grad, but not torch.func.grad, "
            f"jvp, jacrev and similar functions{remedy}"
        )


def has_values(*tensors: Tensor) -> bool:
    """Whether the tensors' values can be read: not while compiling, nor inside ``torch.vmap``."""
    func = torch._C._functorch  # type: ignore[attr-defined]  # torch has no public function for it
    return not (
        torch.compiler.is_compiling() or any(map(func.is_functorch_wrapped_tensor, tensors))
    )


def is_tracked(tensor: Tensor) -> bool:
    """Whether ``torch.func`` or forward mode differentiates a tensor."""
    func = torch._C._functorch  # type: ignore[attr-defined]  # torch has no public function for it
    while func.is_batchedtensor(tensor):
        tensor = func.get_unwrapped(tensor)
    if func.is_gradtrackingtensor(tensor):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None
