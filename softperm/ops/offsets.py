"""Where graphs begin and end in arrays that hold them end to end."""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor


def check_offsets(ptr: Int[Tensor, "M B1"], vertices: int) -> None:
    """Raises ValueError for offsets with which a kernel would leave its arrays.

    For the CPU only: a GPU would have to be waited for.

    Args:
        ptr: where each graph begins and ends, for each model.
        vertices: how many there are.
    """
    if ptr.numel() == 0:
        return
    ptr = ptr.long()  # differences of unsigned numbers are never below zero
    if int(ptr.min()) < 0 or int(ptr.max()) > vertices or bool((ptr.diff() < 0).any()):
        raise ValueError(
            f"ptr must rise from 0 to at most {vertices}, the number of vertices; got "
            f"{ptr.tolist()}"
        )
