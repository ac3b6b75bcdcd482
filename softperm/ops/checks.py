"""Checks of arguments that the operators share."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor
from torch.autograd import forward_ad


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
    if not torch.compiler.is_compiling() and any(map(_is_tracked, tensors)):
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


def _is_tracked(tensor: Tensor) -> bool:
    """Whether ``torch.func`` or forward mode differentiates a tensor."""
    func = torch._C._functorch  # type: ignore[attr-defined]  # torch has no public function for it
    while func.is_batchedtensor(tensor):
        tensor = func.get_unwrapped(tensor)
    if func.is_gradtrackingtensor(tensor):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None
