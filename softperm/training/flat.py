"""The parameters of many models as one matrix, a row for each model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

ROW = 32  # rows are a multiple of so many numbers long, which suits wide loads


def side_by_side(tensors: Iterable[Float[Tensor, "M ..."]]) -> Float[Tensor, "M K"]:
    """All numbers of each model in one row, and zeros behind them."""
    flat = torch.cat([t.detach().reshape(len(t), -1) for t in tensors], dim=1)
    return pad(flat, (0, -flat.shape[1] % ROW))


def rows_apart(flat: Float[Tensor, "M K"], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters (M, …) by name that share the memory of one matrix, a row of it each model's."""
    sizes = [tensor[0].numel() for tensor in like.values()]
    parts = flat[:, : sum(sizes)].split(sizes, dim=1)
    pairs = zip(like.items(), parts, strict=True)
    return {
        k: part.unflatten(1, t.shape[1:] or (1,)).view(t.shape).detach().requires_grad_()
        for (k, t), part in pairs
    }
