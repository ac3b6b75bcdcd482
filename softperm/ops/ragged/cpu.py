"""The ragged products on the CPU: numba, graphs or rows shared out among threads."""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np
import torch
from torch import Tensor

from softperm.ops.offsets import check_offsets
from softperm.parallel import over_ranges

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
def _propagate(x, row_ptr, col, weight, out, vertices, edges, first, last):
    held = np.empty(x.shape[1])
    for v in range(first, last):
        m = v // vertices  # of which model; its rows have one offset more than vertices
        held[:] = 0.0
        for e in range(m * edges + row_ptr[v + m], m * edges + row_ptr[v + m + 1]):
            scale = np.float64(weight[e]) if weight.size else 1.0
            source = m * vertices + col[e]
            for f in range(x.shape[1]):
                held[f] += scale * x[source, f]
        for f in range(x.shape[1]):
            out[v, f] = held[f]


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _spans(ptr: Tensor, vertices: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each graph m · B + b begins and ends."""
    check_offsets(ptr, vertices)
    if len(ptr) > 1:
        ptr = ptr + vertices * torch.arange(len(ptr))[:, None]
    return _array(ptr[:, :-1].flatten()), _array(ptr[:, 1:].flatten())


def pool(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """See :func:`softperm.ops.ragged.operators.pool_op`."""
    (m, b1), (_, v, p), f = ptr.shape, left.shape, right.shape[2]
    out = left.new_zeros(m * (b1 - 1), p, f)
    rows = [_array(t.flatten(0, 1)) for t in (left, right)]
    over_ranges(_pool, len(out), left.numel() * f, *rows, *_spans(ptr, v), out.numpy())
    return out.unflatten(0, (m, b1 - 1))


def spread(small: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """See :func:`softperm.ops.ragged.operators.spread_op`."""
    m, v, f = right.shape
    out = right.new_zeros(m * v, small.shape[2])
    turned = _array(small.flatten(0, 1).mT)  # (MB, F, P)
    rows = _array(right.flatten(0, 1))
    over_ranges(_spread, len(turned), out.numel() * f, turned, rows, *_spans(ptr, v), out.numpy())
    return out.unflatten(0, (m, v))


def row_offsets(edge_index: Tensor, vertices: int, sound: bool) -> Tensor:
    """See :func:`softperm.ops.ragged.operators.row_offsets_op`."""
    if not sound and edge_index.numel():
        low, high = (int(end) for end in edge_index.aminmax())
        if low < 0 or high >= vertices:
            raise ValueError(
                f"edge_index must name vertices from 0 to {vertices - 1}; got {low} to {high}"
            )
    vertex = torch.arange(vertices + 1).expand(len(edge_index), -1)
    return torch.searchsorted(edge_index[:, 0].contiguous(), vertex.contiguous())


def propagate(
    x: Tensor, row_ptr: Tensor, col: Tensor, weight: Tensor | None, symmetric: bool
) -> Tensor:
    """See :func:`softperm.ops.ragged.operators.propagate_op`."""
    m, v, f = x.shape
    out = x.new_empty(m * v, f)
    weight = x.new_empty(0) if weight is None else weight
    given = (x.flatten(0, 1), row_ptr.flatten(), col.flatten(), weight.flatten(), out)
    arrays = [_array(t) for t in given]
    over_ranges(_propagate, len(out), col.numel() * f, *arrays, v, col.shape[1])
    return out.unflatten(0, (m, v))
