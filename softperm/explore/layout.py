"""Places for the vertices of graphs in a drawing, the same in every run."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from softperm.jit import inner, kernel
from softperm.parallel import over_ranges

EPOCHS = 30
PIVOTS = 128
"""Vertices whose distances to all others are drawn; smaller graphs draw all distances."""
APART = 1
"""Distance between two components, in addition to the longest path within one."""


def lay_out(
    ptr: Int[np.ndarray, " B1"],
    edge_ptr: Int[np.ndarray, " B1"],
    edge_index: Int[np.ndarray, "2 E"],
) -> Float[np.ndarray, "V 2"]:
    r"""Draws each graph so that distances on the paper follow distances in the graph.

    Minimises the stress :math:`\sum_{u < v} d_{uv}^{-2} (\|x_u - x_v\| - d_{uv})^2`, where d is the
    number of edges on a shortest path, by stochastic gradient descent with a fixed order of pairs
    (Zheng, Pawar and Goodman, 2019). The longer side of a drawing is horizontal.

    Args:
        ptr: where each graph's vertices begin, with the total at the end.
        edge_ptr: where each graph's directed edges begin, with the total at the end.
        edge_index: both directions of every edge, sorted, vertices numbered within their graph.

    Returns:
        Places of vertices. Each graph is centred, and its larger coordinate lies within −1 and 1.
    """
    places = np.zeros((int(ptr[-1]), 2))
    sizes = np.diff(ptr)
    work = int((sizes * np.minimum(sizes, PIVOTS)).sum()) * EPOCHS
    arguments = (np.asarray(ptr), np.asarray(edge_ptr), np.ascontiguousarray(edge_index), places)
    over_ranges(_lay_out_range, len(sizes), work, *arguments)
    return places


@kernel
def _lay_out_range(ptr, edge_ptr, edge_index, places, first, last):
    for g in range(first, last):
        begin, end = ptr[g], ptr[g + 1]
        rows = edge_index[0, edge_ptr[g] : edge_ptr[g + 1]]
        columns = edge_index[1, edge_ptr[g] : edge_ptr[g + 1]]
        n = end - begin
        if n > 1:
            starts = np.searchsorted(rows, np.arange(n + 1))
            _lay_out_one(n, starts, columns, places[begin:end])


@inner
def _lay_out_one(n, starts, columns, place):
    """Places the vertices of one graph, whose neighbours are in compressed rows."""
    count = min(n, PIVOTS)
    pivots = np.zeros(count, np.int64)
    distance = np.empty((count, n), np.float64)
    nearest = np.full(n, np.inf)
    for k in range(count):  # each pivot is a vertex far from those before it
        pivots[k] = k if n <= PIVOTS else np.argmax(nearest) if k else 0
        _breadth_first(n, starts, columns, pivots[k], distance[k])
        nearest = np.minimum(nearest, distance[k])
    largest = 0.0
    for value in distance.ravel():
        if np.isfinite(value):
            largest = max(largest, value)
    for k in range(count):
        for v in range(n):
            if not np.isfinite(distance[k, v]):
                distance[k, v] = largest + APART
    _descend(n, pivots, distance, starts, columns, largest + APART, place)
    _normalise(n, place)


@inner
def _breadth_first(n, starts, columns, source, distance):
    distance[:] = np.inf
    queue = np.empty(n, np.int64)
    queue[0], distance[source] = source, 0.0
    head, tail = 0, 1
    while head < tail:
        u = queue[head]
        head += 1
        for e in range(starts[u], starts[u + 1]):
            v = columns[e]
            if not np.isfinite(distance[v]):
                distance[v] = distance[u] + 1
                queue[tail] = v
                tail += 1


@inner
def _descend(n, pivots, distance, starts, columns, largest, place):
    """Stochastic gradient descent on the stress; a linear congruence replaces random numbers."""
    state = np.int64(12345)
    for v in range(n):
        for axis in range(2):
            state = (1103515245 * state + 12345) % 2147483648
            place[v, axis] = (state / 2147483648 - 0.5) * largest
    count = len(pivots) * n
    stride = np.int64(count * 0.618) + 1
    while _greatest_divisor(stride, count) != 1:
        stride += 1
    decay = np.log(0.1 / largest**2) / max(EPOCHS - 1, 1)
    for epoch in range(EPOCHS):
        rate = largest**2 * np.exp(decay * epoch)
        at = epoch % count
        for _ in range(count):  # all pairs, in an order that jumps between vertices
            k, v = at // n, at % n
            _move(place, pivots[k], v, distance[k, v], rate)
            at = (at + stride) % count
        if len(pivots) < n:
            for u in range(n):
                for e in range(starts[u], starts[u + 1]):
                    _move(place, u, columns[e], 1.0, rate)


@inner
def _greatest_divisor(a, b):
    while b:
        a, b = b, a % b
    return a


@inner
def _move(place, u, v, wanted, rate):
    """Moves two vertices towards their wanted distance."""
    if wanted == 0:
        return
    x, y = place[u, 0] - place[v, 0], place[u, 1] - place[v, 1]
    length = max(np.sqrt(x * x + y * y), 1e-9)
    step = min(rate / wanted**2, 1.0) * (length - wanted) / (2 * length)
    place[u, 0] -= step * x
    place[u, 1] -= step * y
    place[v, 0] += step * x
    place[v, 1] += step * y


@inner
def _normalise(n, place):
    """Centres a drawing, turns its longer side to the horizontal, and scales it to −1 … 1."""
    cx, cy = place[:, 0].mean(), place[:, 1].mean()
    xx = xy = yy = 0.0
    for v in range(n):
        place[v, 0] -= cx
        place[v, 1] -= cy
        xx += place[v, 0] ** 2
        xy += place[v, 0] * place[v, 1]
        yy += place[v, 1] ** 2
    angle = 0.5 * np.arctan2(2 * xy, xx - yy)
    cosine, sine = np.cos(angle), np.sin(angle)
    low = np.full(2, np.inf)
    high = np.full(2, -np.inf)
    for v in range(n):
        x, y = place[v, 0], place[v, 1]
        place[v, 0], place[v, 1] = cosine * x + sine * y, cosine * y - sine * x
        for axis in range(2):
            low[axis] = min(low[axis], place[v, axis])
            high[axis] = max(high[axis], place[v, axis])
    scale = max((high - low).max() / 2, 1e-9)
    for v in range(n):
        for axis in range(2):
            place[v, axis] = (place[v, axis] - (low[axis] + high[axis]) / 2) / scale
