"""What the kernels' derivatives are for: loss.backward() and torch.autograd.grad."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def only_backward(*tensors: Tensor, remedy: str = "") -> None:
    """Refuses tensors of which ``torch.func``, or forward mode, wants derivatives.

    A registered operator would let go of tangents without a word.

    Args:
        tensors: what a kernel is about to be given.
        remedy: how to get them nevertheless.

    Raises:
        NotImplementedError: derivatives are wanted that are not there.
    """
    if not torch.compiler.is_compiling() and any(map(_is_tracked, tensors)):
        raise NotImplementedError(
            "the kernels know loss.backward() and torch.autograd.grad, but not torch.func.grad, "
            f"jvp, jacrev and their like{remedy}"
        )


def is_transformed(*tensors: Tensor) -> bool:
    """Whether tensors stand for others, whose values cannot be asked for: compiled, or in vmap."""
    func = torch._C._functorch  # type: ignore[attr-defined]  # there is no public way to ask
    return torch.compiler.is_compiling() or any(map(func.is_functorch_wrapped_tensor, tensors))


def _is_tracked(tensor: Tensor) -> bool:
    """Whether ``torch.func`` or forward mode follows a tensor."""
    func = torch._C._functorch  # type: ignore[attr-defined]  # there is no public way to ask
    while func.is_batchedtensor(tensor):
        tensor = func.get_unwrapped(tensor)
    if func.is_gradtrackingtensor(tensor):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None
