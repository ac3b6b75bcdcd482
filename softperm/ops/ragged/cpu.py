"""The ragged products on the CPU, in numba: graphs or rows are divided among threads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from softperm.jit import kernel
from softperm.ops.operators import check_offsets
from softperm.parallel import over_ranges

FAST = {"contract", "reassoc", "nsz"}


@kernel(fastmath=FAST)
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


@kernel(fastmath=FAST)
def _spread(small, right, begin, end, out, first, last):
    for g in range(first, last):
        for v in range(begin[g], end[g]):
            for f in range(right.shape[1]):
                scale = right[v, f]
                for p in range(out.shape[1]):
                    out[v, p] += scale * small[g, f, p]


@kernel(fastmath=FAST)
def _propagate(x, row_ptr, col, weight, out, vertices, edges, first, last):
    held = np.empty(x.shape[1])
    for v in range(first, last):
        m = v // vertices  # the model; it has one offset more than vertices
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
    """First vertex of each graph m · B + b, and the end of its vertices."""
    check_offsets(ptr, vertices)
    if len(ptr) > 1:
        ptr = ptr + vertices * torch.arange(len(ptr))[:, None]
    return _array(ptr[:, :-1].flatten()), _array(ptr[:, 1:].flatten())


def pool(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """See :data:`softperm.ops.ragged.pool_op`."""
    (m, b1), (_, v, p), f = ptr.shape, left.shape, right.shape[2]
    out = left.new_zeros(m * (b1 - 1), p, f)
    rows = [_array(t.flatten(0, 1)) for t in (left, right)]
    over_ranges(_pool, len(out), left.numel() * f, *rows, *_spans(ptr, v), out.numpy())
    return out.unflatten(0, (m, b1 - 1))


def spread(small: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """See :data:`softperm.ops.ragged.spread_op`."""
    m, v, f = right.shape
    out = right.new_zeros(m * v, small.shape[2])
    transposed = _array(small.flatten(0, 1).mT)  # (MB, F, P)
    rows = _array(right.flatten(0, 1))
    over_ranges(
        _spread, len(transposed), out.numel() * f, transposed, rows, *_spans(ptr, v), out.numpy()
    )
    return out.unflatten(0, (m, v))


def row_offsets(edge_index: Tensor, vertices: int, valid: bool) -> Tensor:
    """See :data:`softperm.ops.ragged.row_offsets_op`."""
    if not valid and edge_index.numel():
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
    """See :data:`softperm.ops.ragged.propagate_op`."""
    m, v, f = x.shape
    out = x.new_empty(m * v, f)
    weight = x.new_empty(0) if weight is None else weight
    given = (x.flatten(0, 1), row_ptr.flatten(), col.flatten(), weight.flatten(), out)
    arrays = [_array(t) for t in given]
    over_ranges(_propagate, len(out), col.numel() * f, *arrays, v, col.shape[1])
    return out.unflatten(0, (m, v))
