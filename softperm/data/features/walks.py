"""Random walks: the probability to be back after so many steps, and the heat kernel."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma, log

import numpy as np
from jaxtyping import Float

from softperm.data.features.adjacency import Adjacency, twins
from softperm.jit import kernel

HEAT_TOLERANCE = 1e-7  # about what float32 resolves
_BLOCK = 64  # vertices whose walks are followed together, in vector registers


def return_probabilities(graphs: Adjacency, steps: int) -> Float[np.ndarray, "V steps"]:
    r"""Probability that a random walk from a vertex is there again after 1, 2, …, k steps.

    .. math:: p_k(v) = \left[(D^{-1} A)^k\right]_{vv}

    with the diagonal matrix D of degrees; 0 for a vertex without neighbours. Column 0 (one step) is
    0 for every vertex of a simple graph.

    A walk from v has the distribution :math:`x_k = e_v (D^{-1} A)^k`, and
    :math:`x_k(u) / d_u = x_k^{(u)}(v) / d_v`. So half the steps are enough:

    .. math::
        p_{2k}(v) = d_v \sum_u \frac{x_k(u)^2}{d_u}, \quad
        p_{2k-1}(v) = d_v \sum_u \frac{x_{k-1}(u) \, x_k(u)}{d_u}

    Distributions are kept where a walk can be by then, for blocks of vertices at once, and for one
    vertex of each set of twins. Exact but for rounding in float64.

    Args:
        graphs: the collection.
        steps: greatest number k of steps.
    """
    found = np.zeros((graphs.vertices, steps))
    twin = twins(graphs, smallest=_BLOCK)
    work = np.minimum(graphs.sizes, 1 << 20) * graphs.edge_counts * (1 + steps // 2)
    graphs.over_graphs(_walks, work, twin, found)
    return found[twin]


def heat_kernel(
    returns: Float[np.ndarray, "V steps"], times: Sequence[int | float]
) -> Float[np.ndarray, "V times"]:
    r"""Heat-kernel signature: heat left at a vertex after a time, beyond what never moved.

    .. math:: h_t(v) = \left[e^{-t L}\right]_{vv} - e^{-t}, \quad L = I - D^{-1/2} A D^{-1/2}

    The kernel is a random walk that steps at random times, so that

    .. math:: h_t(v) = \sum_{k \ge 1} e^{-t} \frac{t^k}{k!} \, p_k(v)

    with the return probabilities :math:`p_k`; :math:`e^{-t}` is the same for every vertex, and
    without it a vertex without neighbours has 0. The sum ends after the steps given; what is left
    out is less than :data:`HEAT_TOLERANCE` if there are :func:`heat_steps` of them.

    Args:
        returns: return probabilities after 1, 2, … steps; see :func:`return_probabilities`.
        times: times t.
    """
    k = np.arange(1, returns.shape[1] + 1)
    logs = np.array([lgamma(step + 1) for step in k])
    weights = np.exp([k * log(t) - t - logs for t in times]).reshape(len(times), len(k))
    return returns @ weights.T


def heat_steps(time: int | float) -> int:
    """Number of steps after which a walk at random times has stopped, but for the tolerance.

    >>> heat_steps(1.0)
    10
    """
    share = exp(-time)
    left, steps = 1 - share, 0
    while left > HEAT_TOLERANCE:
        steps += 1
        share *= time / steps
        left -= share
    return steps


@kernel
def _walks(ptr, row_ptr, column, twin, found, cuts, first, last):
    """Return probabilities of a range of graphs, a block of vertices at a time."""
    begin, end = cuts[first], cuts[last]
    vertices = np.diff(ptr[begin : end + 1]).max()
    now = np.zeros((vertices, _BLOCK))  # distributions, divided by degrees
    after = np.zeros((vertices, _BLOCK))
    reached = np.zeros(vertices, dtype=np.bool_)
    order = np.empty(vertices, dtype=np.int32)  # vertices by their distance from the block
    block = np.empty(_BLOCK, dtype=np.int32)
    odd, even = np.empty(_BLOCK), np.empty(_BLOCK)  # returns after odd and even numbers of steps
    for graph in range(begin, end):
        low, high = ptr[graph], ptr[graph + 1]
        rows = row_ptr[low : high + 1]
        filled = 0
        for v in range(high - low):
            if twin[low + v] == low + v and rows[v + 1] > rows[v]:
                block[filled] = v
                filled += 1
            if filled == _BLOCK or (v == high - low - 1 and filled):
                scratch = now, after, reached, order, odd, even
                _block_walks(rows, column, block[:filled], scratch, found[low:high])
                filled = 0


@kernel(fastmath={"contract"})
def _block_walks(rows, column, block, scratch, found):
    """Follows the walks of a block; leaves ``now``, ``after`` and ``reached`` as zeros."""
    now, after, reached, order, odd, even = scratch
    steps, width, count = found.shape[1], block.size, block.size
    for b in range(count):
        order[b] = block[b]
        reached[block[b]] = True
        now[block[b], b] = 1.0 / (rows[block[b] + 1] - rows[block[b]])
    previous = 0  # vertices before this place have all their neighbours in the order
    for k in range(1, (steps + 1) // 2 + 1):
        seen = count
        for i in range(previous, seen):
            u = order[i]
            for e in range(rows[u], rows[u + 1]):
                if not reached[column[e]]:
                    reached[column[e]] = True
                    order[count] = column[e]
                    count += 1
        previous = seen
        odd[:] = 0.0
        even[:] = 0.0
        for i in range(count):
            u = order[i]
            _sum_neighbours(column[rows[u] : rows[u + 1]], now, after, u, width)
            share = 1.0 / (rows[u + 1] - rows[u])
            for b in range(width):
                x = after[u, b]
                odd[b] += now[u, b] * x
                even[b] += x * x * share
                after[u, b] = x * share
        for b in range(width):
            v = block[b]
            found[v, 2 * k - 2] = odd[b] * (rows[v + 1] - rows[v])
            if 2 * k <= steps:
                found[v, 2 * k - 1] = even[b] * (rows[v + 1] - rows[v])
        now, after = after, now
    for i in range(count):
        now[order[i], :] = 0.0
        after[order[i], :] = 0.0
        reached[order[i]] = False


@kernel(inline="always")
def _sum_neighbours(neighbours, now, after, u, width):
    """Writes Σ now[v] over the neighbours v of u to after[u], two at a time: half the stores."""
    k = neighbours.size & 1
    if k:
        v = neighbours[0]
        for b in range(width):
            after[u, b] = now[v, b]
    else:
        after[u, :width] = 0.0
    while k < neighbours.size:
        v, w = neighbours[k], neighbours[k + 1]
        for b in range(width):
            after[u, b] += now[v, b] + now[w, b]
        k += 2
