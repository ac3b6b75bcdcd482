"""The Frobenius distance of two graphs, with the permutation that attains it and its proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Real
from threading import Event
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from scipy.optimize import linear_sum_assignment

from softperm.distance.bounds import (
    as_distance,
    degree_bound,
    faq,
    read_pair,
    round_up,
    spectral_bound,
)
from softperm.distance.branch_and_bound import (
    GLANCE,
    SMALL,
    Tree,
    advance,
    open_bound,
    plant,
    search_briefly,
)
from softperm.distance.local_search import cost_of, descend
from softperm.distance.pairs import Pair, pack, pair_of, unpack
from softperm.distance.symmetry import with_orbits
from softperm.pyg import Data

EFFORT = 2_000_000  # relaxations times squared vertices, about a twentieth of a second
LARGEST = 192  # vertices up to which there is a search; its memory grows with the cube
POLISHED = 400  # vertices up to which an upper bound is descended; a sweep grows with the cube


@dataclass(frozen=True, eq=False)
class FrobeniusResult:
    """A distance and what is known about it.

    Args:
        distance: the least distance found; the distance itself where ``exact``.
        permutation: (N,) the permutation p that attains it: vertex i of the first graph is matched
            with vertex p[i] of the second, so ``‖A1 − A2[p][:, p]‖_F == distance`` with both
            matrices in single precision, as they were read, and zero-padded to N. Numbers past a
            graph's own vertices are padding vertices.
        lower_bound: a number the distance is proven not to fall below.
        exact: whether the distance is proven, that is ``lower_bound == distance``.
    """

    distance: float
    permutation: Int[np.ndarray, " N"]
    lower_bound: float
    exact: bool


def frobenius_distance(
    g1: Any, g2: Any, *, labels: bool = False, time_limit: float | None = None
) -> FrobeniusResult:
    r"""The Frobenius distance (Equation 1 of the paper), by branch and bound.

    .. math:: d(G_1, G_2) = \min_{P \in \Pi} \| A_1 - P A_2 P^\top \|_F

    Graphs of different sizes are padded with isolated vertices to the larger size N. Weights may
    be any finite numbers and are read in single precision. For graphs without weights
    :math:`d^2` is twice the number of edges on which the best alignment disagrees. Isolated
    vertices are free: the distance is zero exactly for graphs that are isomorphic up to them.

    With ``labels`` a vertex is matched with a vertex of equal label or with a padding vertex, which
    stands for its deletion. Both graphs are then padded to the least size at which that is
    possible: for each label the larger of its two counts, summed over labels.

    The distance is a metric (up to isolated vertices) on graphs of non-negative weights, and on
    graphs of any weights and one size.

    Args:
        g1: a graph in any form that :func:`softperm.data.graphs.as_graph` accepts.
        g2: another.
        labels: whether only vertices of equal label may be matched.
        time_limit: seconds after which the best so far is returned with the interval it lies in;
            no limit by default. The first bounds are computed in any case, and graphs of more than
            192 vertices get these bounds alone.

    Returns:
        The distance, a permutation that attains it, a lower bound, and whether it is proven (for
        weights that are not whole numbers up to a billionth of the graphs' own squared norm).

    >>> import networkx as nx
    >>> result = frobenius_distance(nx.cycle_graph(4), nx.path_graph(4))
    >>> round(result.distance**2), result.exact
    (2, True)
    """
    check_time_limit(time_limit)
    return solve(read_pair(g1, g2, labels=labels), time_limit)


def check_time_limit(time_limit: float | None) -> None:
    """Raise unless the time limit is None or a number of seconds."""
    if time_limit is not None and not (isinstance(time_limit, Real) and time_limit >= 0):
        raise ValueError(
            f"time_limit is {time_limit}; expected seconds, zero or more, or None for no limit"
        )


def solve(pair: Pair, time_limit: float | None, stop: Event | None = None) -> FrobeniusResult:
    """The distance of a pair: a short search first, and the whole apparatus if that is not enough.

    Args:
        pair: the two graphs.
        time_limit: seconds, or None.
        stop: ends the search early when another thread sets it.
    """
    n = pair.a.shape[0]
    if n > LARGEST:
        return _estimate(pair)
    _compile()
    deadline = np.inf if time_limit is None else perf_counter() + time_limit

    def over() -> bool:
        return perf_counter() >= deadline or (stop is not None and stop.is_set())

    tree, lower, exhausted = search_briefly(pair, GLANCE, EFFORT)
    if exhausted:
        return _result(pair, tree.best, tree.value[0])
    return _search_long(pair, tree, max(lower, spectral_bound(pair)), over)


def _search_long(pair: Pair, tree: Tree, lower: float, over: Callable[[], bool]) -> FrobeniusResult:
    """Begin anew with FAQ's upper bound and both graphs' orbits, and raise the lower bound to it.

    Each round asks for permutations up to a target only, which is a much shorter search than the
    one for anything better than the best; a round that finds none has proven a lower bound. The
    last round is the full proof, and takes as long as all others together or longer.
    """
    best, value = tree.best.copy(), float(tree.value[0])
    lower = round_up(pair, max(lower, open_bound(tree)))
    if unpack(pair.allowed).all():
        rng = np.random.default_rng(0)
        for attempt in range(8):
            if not over() and lower <= value - pair.gap:
                found, p = faq(pair, rng, randomly=attempt > 0)
                if found < value:
                    best, value = p, found
    small = best.size <= SMALL
    if small and not over():
        pair = with_orbits(pair, over)
    floor, span = lower, value - lower
    for part in (0, 1 / 32, 1 / 16, *np.arange(1, 9) / 8):
        target = _target(pair, floor + span * part, value)
        if lower <= min(target, value - pair.gap) and not over():
            tree = plant(pair)
            tree.probed[0] = 3 if small else 0
            raised, found = _raise(pair, tree, target, over)
            lower = max(lower, raised)
            if found < value:
                best, value = tree.best.copy(), found
    return _result(pair, best, lower)


def _target(pair: Pair, cost: float, value: float) -> float:
    """The cost to search up to: about the given one, but not so much as the best."""
    if not pair.whole:
        return min(cost, value - pair.gap / 2)
    return min(cost - (cost - value) % 2, value - 2)


def _raise(pair: Pair, tree: Tree, target: float, over: Callable[[], bool]) -> tuple[float, float]:
    """Search for permutations that cost no more than the target.

    Returns:
        A lower bound of the optimum, and the least cost found, infinite if there is none.
    """
    tree.value[0] = target + pair.gap + (2**-5 if pair.whole else 0.0)
    pretended = tree.value[0]
    exhausted = False
    while not exhausted and not over():
        exhausted = advance(pair, tree, EFFORT // pair.a.shape[0] ** 2)
    found = float(tree.value[0]) if tree.value[0] < pretended else np.inf
    if exhausted and np.isinf(found):
        return target + (2 if pair.whole else 0), found
    return round_up(pair, min(open_bound(tree), found, target)), found


def _estimate(pair: Pair) -> FrobeniusResult:
    """The bounds of graphs that are too large to search."""
    degrees = [matrix.sum(axis=1) for matrix in (pair.a, pair.b)]
    n = pair.a.shape[0]
    forbidden = ~unpack(pair.allowed)
    cost = np.abs(degrees[0][:, None] - degrees[1])
    cost[forbidden] = 2 * n * (cost.max() + 1)
    best = linear_sum_assignment(cost)[1].astype(np.int64)
    value = cost_of(pair, best)
    if n <= POLISHED:
        value = descend(pair, best)
        if not forbidden.any():
            found, p = faq(pair, np.random.default_rng(0), randomly=False)
            best = p if found < value else best
    return _result(pair, best, max(spectral_bound(pair), degree_bound(pair)))


def _result(pair: Pair, permutation: np.ndarray, lower: float) -> FrobeniusResult:
    """The result of a permutation and a lower bound of the cost, which prove each other or not."""
    value = cost_of(pair, permutation)
    lower = round_up(pair, lower)
    exact = bool(lower > value - pair.gap)
    distance = as_distance(value)
    return FrobeniusResult(
        distance, permutation.copy(), distance if exact else as_distance(lower), exact
    )


@cache
def _compile() -> None:
    """Compile the search before the clock runs."""
    vertex = Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=1)
    pair = pair_of(pack([vertex, vertex], labels=False), 0, 1)
    search_briefly(pair, 1, 0)
