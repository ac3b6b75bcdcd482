"""Kernels for the CPU where no gradient is needed: nothing equal or zero is computed again.

:func:`align_edges` aligns all channels of the edges in one pass, and reads each undirected
edge once. :func:`normalised_linear` reads aligned matrices, which are symmetric and zero for the
labels that a graph does not have. All give the numbers of the operators that training uses, up to
rounding.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.jit import inner, kernel
from softperm.ops.operators import check_offsets, has_values, is_tracked
from softperm.ops.ragged import FAST
from softperm.parallel import over_ranges

_HALF = (torch.float16, torch.bfloat16)


def forward_only(*tensors: Tensor) -> bool:
    """Whether these kernels may compute with the tensors: values on the CPU, without gradients."""
    return (
        not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and all(t.device.type == "cpu" and t.dtype not in _HALF for t in tensors)
        and has_values(*tensors)
        and not any(map(is_tracked, tensors))  # forward mode has gradients within no_grad
    )


def align_edges(
    d: Float[Tensor, "V P"],
    edge_index: Int[Tensor, "2 E"],
    weight: Float[Tensor, "E C"],
    ptr: Int[Tensor, " B1"],
) -> Float[Tensor, "B P P C"]:
    r"""The aligned matrices :math:`D^\top A_c D` of each graph and each channel c.

    With one direction of every edge in :math:`U_c`, this is :math:`M + M^\top` for
    :math:`M = D^\top U_c D`. A vertex costs P · P only in the channels in which it has edges.

    Args:
        d: soft permutations, vertices laid end to end.
        edge_index: both directions of every edge, sorted by row, without self-loops.
        weight: entries of :math:`A_c`, the same for both directions.
        ptr: where each graph's vertices begin, with the total at the end.
    """
    check_offsets(ptr[None], len(d))
    out = d.new_empty(ptr.numel() - 1, d.shape[1], d.shape[1], weight.shape[1])
    given = (d, edge_index, weight, ptr, out)
    arrays = [t.detach().contiguous().numpy() for t in given]
    operations = (len(d) * d.shape[1] + edge_index.shape[1]) * d.shape[1] * weight.shape[1]
    over_ranges(_align_edges, len(out), operations, *arrays)
    return out


@kernel(fastmath=FAST)
def _align_edges(d, edge_index, weight, ptr, out, first, last):
    width, channels = d.shape[1], weight.shape[1]
    held, reached = np.empty((channels, width, width)), np.empty((channels, width))
    used = np.empty(channels, np.bool_)
    row, column = edge_index[0], edge_index[1]
    e = np.searchsorted(row, ptr[first])
    for g in range(first, last):
        held[:] = 0.0
        for v in range(ptr[g], ptr[g + 1]):
            used[:] = False
            while e < len(row) and row[e] == v:
                u = column[e]
                if u > v:
                    for c in range(channels):
                        if weight[e, c] != 0:
                            scale = np.float64(weight[e, c])
                            if used[c]:
                                for p in range(width):
                                    reached[c, p] += scale * d[u, p]
                            else:
                                used[c] = True
                                for p in range(width):
                                    reached[c, p] = scale * d[u, p]
                e += 1
            for c in range(channels):
                if used[c]:
                    for p in range(width):
                        scale = np.float64(d[v, p])
                        for q in range(width):
                            held[c, p, q] += scale * reached[c, q]
        for c in range(channels):
            for p in range(width):
                for q in range(p, width):
                    both = held[c, p, q] + held[c, q, p]
                    out[g, p, q, c] = both
                    out[g, q, p, c] = both


TILE = 16  # graphs whose outputs stay in the nearest cache while weights are read
STEP = 8  # entries that are multiplied together, or skipped together where they are all zero
DENSE = 8  # a graph is dense if less than one in so many of its entries is zero


def normalised_linear(
    x: Float[Tensor, "B K"],
    norm: nn.LayerNorm | None,
    linear: nn.Linear,
    entries: Int[np.ndarray, "2 T"],
) -> Float[Tensor, "B O"]:
    r"""LayerNorm and a linear layer, of rows whose entries come in equal pairs, with many zeros.

    With mean :math:`\mu` and standard deviation :math:`\sigma` of a row, the scale
    :math:`\gamma` and the shift :math:`\beta` of LayerNorm,

    .. math::
        y = \frac{1}{\sigma} \Big(\sum_k (x_k - m) W_k \gamma_k
            - (\mu - m) \sum_k W_k \gamma_k\Big) + W \beta + b

    for any m. It is 0, so that zeros cost nothing; or :math:`\mu` for rows without many zeros,
    whose entries may differ so little that the two sums would cancel.

    Args:
        x: the rows.
        norm: LayerNorm over a row; None for none.
        linear: the linear layer.
        entries: the positions in a row in the order in which they are read, and the position of an
            equal entry, such as its mirror image in a symmetric matrix; the same position twice for
            an entry that has none. Each position occurs in one column.
    """
    weight = linear.weight
    offset = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias
    if norm is not None:
        offset = torch.addmv(offset, weight, norm.bias)
        weight = weight * norm.weight
    size = entries.shape[1]
    rows = weight.new_zeros(-(-size // STEP) * STEP, len(weight))  # (T, O), filled up with zeros
    _pair_weights(weight.detach().numpy(), entries, rows.numpy())
    y = x.new_empty(len(x), len(weight))
    arrays = [t.detach().contiguous().numpy() for t in (x, rows, rows.sum(0), offset, y)]
    pairs = 1.0 + (entries[0] != entries[1])  # (T,), positions that each entry stands for
    eps = -1.0 if norm is None else norm.eps
    operations = 2 * size * y.numel()
    over_ranges(_centred_products, len(x), operations, *arrays, entries[0], pairs, eps)
    return y


@kernel
def _pair_weights(weight, entries, rows):
    """The transposed weights of the entries, those of two equal entries added."""
    for first in range(0, len(weight), STEP):  # a few columns at a time, for the cache's sake
        for k in range(entries.shape[1]):
            one, other = entries[0, k], entries[1, k]
            for o in range(first, min(first + STEP, len(weight))):
                rows[k, o] = weight[o, one] + (weight[o, other] if other != one else 0)


@kernel(fastmath=FAST)
def _centred_products(x, weight, total, offset, y, entries, pairs, eps, first, last):
    size = len(entries)
    held = np.zeros((TILE, len(weight)), x.dtype)
    scale = np.ones(TILE, x.dtype)
    for begin in range(first, last, TILE):
        end = min(begin + TILE, last)
        for g in range(begin, end):
            row = held[g - begin, :size]
            zeros = 0
            for k in range(size):
                row[k] = x[g, entries[k]]
                zeros += row[k] == 0
            y[g] = 0.0
            if eps >= 0:
                mean, variance = _moments(row, pairs)
                scale[g - begin] = 1 / np.sqrt(variance + eps)
                if DENSE * zeros < size:
                    row -= x.dtype.type(mean)
                else:
                    y[g] -= x.dtype.type(mean) * total
        for k in range(0, len(weight), STEP):
            for g in range(begin, end):
                _add_products(held[g - begin, k : k + STEP], weight[k : k + STEP], y[g])
        for g in range(begin, end):
            y[g] = y[g] * scale[g - begin] + offset


@inner(fastmath=FAST)
def _moments(x, weight):
    """The weighted mean and variance of numbers, in float64."""
    count = mean = variance = 0.0
    for k in range(len(x)):
        count += weight[k]
        mean += weight[k] * x[k]
    mean /= count
    for k in range(len(x)):
        variance += weight[k] * (x[k] - mean) ** 2
    return mean, variance / count


@inner(inline="always")
def _add_products(x, weight, y):
    """Adds eight products, written out so that each sum is loaded and stored once."""
    a, b, c, d, e, f, g, h = x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]
    if a != 0 or b != 0 or c != 0 or d != 0 or e != 0 or f != 0 or g != 0 or h != 0:
        for o in range(len(y)):
            front = a * weight[0, o] + b * weight[1, o] + c * weight[2, o] + d * weight[3, o]
            back = e * weight[4, o] + f * weight[5, o] + g * weight[6, o] + h * weight[7, o]
            y[o] += front + back
