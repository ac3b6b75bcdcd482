"""The ragged products on the CPU: numba, graphs or rows shared out among threads."""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np
import torch
from torch import Tensor

from softperm.offsets import check_offsets
from softperm.threads import over_ranges

FAST = {"contract", "reassoc", "nsz"}

# The kernels are compiled, so shape checks must not wrap them: hence no_type_check.


@numba.njit(nogil=True, cache=True, fastmath=FAST)
@no_type_check
def _pool(left, right, begin, end, out, first, last):
    held, row = np.empty(out.shape[1:]), np.empty(right.shape[1])
    for g in range(first, last):
        held[:] = 0.0
        for v in range(begin[g], end[g]):
            for f in range(right.shape[1]):
                row[f] = right[v, f]
            for p in range(left.shape[1]):
                scale = np.float64(left[v, p])
                for f in range(right.shape[1]):
                    held[p, f] += scale * row[f]
        for p in range(left.shape[1]):
            for f in range(right.shape[1]):
                out[g, p, f] = held[p, f]


@numba.njit(nogil=True, cache=True, fastmath=FAST)
@no_type_check
def _spread(small, right, begin, end, out, first, last):
    for g in range(first, last):
        for v in range(begin[g], end[g]):
            for f in range(right.shape[1]):
                scale = right[v, f]
                for p in range(out.shape[1]):
                    out[v, p] += scale * small[g, f, p]


@numba.njit(nogil=True, cache=True, fastmath=FAST)
@no_type_check
def _propagate(x, row_ptr, col, weight, out, first, last):
    held = np.empty(x.shape[1])
    for v in range(first, last):
        held[:] = 0.0
        for e in range(row_ptr[v], row_ptr[v + 1]):
            scale = np.float64(weight[e])
            for f in range(x.shape[1]):
                held[f] += scale * x[col[e], f]
        for f in range(x.shape[1]):
            out[v, f] = held[f]


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _spans(ptr: Tensor, vertices: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each graph m · B + b begins and ends."""
    check_offsets(ptr, vertices)
    return _array(ptr[:, :-1].flatten()), _array(ptr[:, 1:].flatten())


def pool(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """See :func:`softperm.ragged.pool`; ``ptr`` is (M, B + 1)."""
    m, b1 = ptr.shape
    out = left.new_zeros(m * (b1 - 1), left.shape[1], right.shape[1])
    work = left.numel() * right.shape[1]
    over_ranges(
        _pool, len(out), work, _array(left), _array(right), *_spans(ptr, len(left)), out.numpy()
    )
    return out.unflatten(0, (m, b1 - 1))


def spread(small: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """See :func:`softperm.ragged.spread`; ``small`` is (M, B, P, F), ``ptr`` is (M, B + 1)."""
    out = right.new_zeros(len(right), small.shape[2])
    turned = _array(small.flatten(0, 1).mT)  # (MB, F, P)
    work = out.numel() * right.shape[1]
    spans = _spans(ptr, len(right))
    over_ranges(_spread, len(turned), work, turned, _array(right), *spans, out.numpy())
    return out


def propagate(x: Tensor, edge_index: Tensor, edge_weight: Tensor, symmetric: bool) -> Tensor:
    """See :func:`softperm.ragged.propagate`; edges are sorted by row."""
    if not symmetric and edge_index.numel():  # edges that are not known to be sound
        low, high = (int(end) for end in edge_index.aminmax())
        if low < 0 or high >= len(x):
            raise ValueError(
                f"edge_index must name vertices from 0 to {len(x) - 1}; got {low} to {high}"
            )
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    vertices = torch.arange(len(x) + 1, device=x.device)
    row_ptr = torch.searchsorted(edge_index[0].contiguous(), vertices)
    arrays = [_array(t) for t in (x, row_ptr, edge_index[1], edge_weight, out)]
    over_ranges(_propagate, len(x), edge_index.shape[1] * x.shape[1], *arrays)
    return out
