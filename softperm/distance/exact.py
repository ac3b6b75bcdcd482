"""The distance of two graphs, with the permutation that attains it and its proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Real
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment, quadratic_assignment

from softperm.data.graphs import as_graph
from softperm.distance.branch_and_bound import (
    GLANCE,
    SMALL,
    Tree,
    advance,
    cost_of,
    descend,
    improve,
    open_bound,
    plant,
    round_down,
    round_up,
    search_briefly,
    value_above,
)
from softperm.distance.costs import EditCosts, Frobenius, Metric, Model
from softperm.distance.pairs import Packed, Pair, pack, pair_of, unpack
from softperm.distance.symmetry import with_orbits

EFFORT = 2_000_000  # node bounds times squared vertices, about a twentieth of a second
LARGEST = 192  # vertices up to which there is a search; its memory grows with the cube
RESTARTS = 4_000_000  # restarts of a descent times cubed vertices, about a hundredth of a second
POLISHED = 400  # vertices up to which an upper bound is improved; a sweep grows with the cube


@dataclass(frozen=True, eq=False)
class DistanceResult:
    """A distance and what is proven about it.

    Args:
        distance: the least distance found; the distance itself if ``exact``.
        permutation: (N,) the permutation p that attains it: vertex i of the first graph is matched
            with vertex p[i] of the second. Numbers past a graph's own vertices are padding
            vertices, which stand for deletion and insertion. For the Frobenius distance
            ``‖A1 − A2[p][:, p]‖_F == distance`` with both matrices in single precision, as they
            were read, and zero-padded to N.
        lower_bound: a proven lower bound of the distance.
        exact: whether the distance is proven, that is ``lower_bound == distance``.
    """

    distance: float
    permutation: Int[np.ndarray, " N"]
    lower_bound: float
    exact: bool


def frobenius_distance(
    g1: Any,
    g2: Any,
    *,
    labels: bool = False,
    edge_labels: bool = False,
    at_most: float | int | None = None,
    time_limit: float | None = None,
) -> DistanceResult:
    r"""The Frobenius distance (Equation 1 of the paper), by branch and bound.

    .. math:: d(G_1, G_2) = \min_{P \in \Pi} \| A_1 - P A_2 P^\top \|_F

    Graphs of different sizes are padded with isolated vertices to the larger size N. Weights may
    be any finite numbers and are read in single precision. For graphs without weights
    :math:`d^2` is twice the number of edges on which the best alignment disagrees. Isolated
    vertices are free: the distance is zero exactly for graphs that are isomorphic up to them.

    With ``labels`` a vertex is matched with a vertex of equal label or with a padding vertex, which
    stands for its deletion. Both graphs are then padded to the least size at which that is
    possible: for each label the larger of its two counts, summed over labels. With ``edge_labels``
    the squared distance is the sum of the squared distances of the adjacency matrices of all edge
    labels, so an edge that is matched with one of another label counts as two.

    The distance is a metric (up to isolated vertices) on graphs of non-negative weights, and on
    graphs of any weights and one size.

    Args:
        g1: a graph in any form that :func:`softperm.data.graphs.as_graph` accepts.
        g2: another.
        labels: whether only vertices of equal label may be matched.
        edge_labels: whether edges of different label disagree.
        at_most: the search stops as soon as the distance is proven to exceed this number; the
            result is then not exact and its ``lower_bound`` is greater than ``at_most``.
        time_limit: seconds after which the best permutation so far is returned with a lower bound;
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
    return _distance(g1, g2, Frobenius(labels, edge_labels), at_most, time_limit)


def edit_distance(
    g1: Any,
    g2: Any,
    *,
    costs: EditCosts | None = None,
    at_most: float | int | None = None,
    time_limit: float | None = None,
) -> DistanceResult:
    """The graph edit distance, by the same branch and bound.

    Labels of vertices and edges are compared if the graphs have them; a substitution that costs
    nothing ignores them. Weights are compared by the absolute value of their difference.

    Args:
        g1: a graph in any form that :func:`softperm.data.graphs.as_graph` accepts.
        g2: another.
        costs: the costs of edits; 1 each by default. :meth:`EditCosts.edges` counts the edges
            outside the maximum common edge subgraph.
        at_most: as for :func:`frobenius_distance`.
        time_limit: as for :func:`frobenius_distance`.

    Returns:
        The distance, a permutation that attains it, a lower bound, and whether it is proven.

    >>> import networkx as nx
    >>> edit_distance(nx.cycle_graph(4), nx.path_graph(5)).distance  # one vertex, two edges
    3.0
    """
    return _distance(g1, g2, costs or EditCosts(), at_most, time_limit)


def check_time_limit(seconds: float | None, name: str = "time_limit") -> None:
    """Raises ValueError unless a time limit is None or a number of seconds."""
    if seconds is not None and not (isinstance(seconds, Real) and seconds >= 0):
        raise ValueError(
            f"{name} is {seconds}; expected seconds, zero or more, or None for no limit"
        )


def _distance(
    g1: Any, g2: Any, metric: Metric, at_most: float | int | None, time_limit: float | None
) -> DistanceResult:
    check_time_limit(time_limit)
    if at_most is not None and not (isinstance(at_most, Real) and at_most >= 0):
        raise ValueError(f"at_most is {at_most}; expected a distance, zero or more, or None")
    packed, model = read(g1, g2, metric)
    shift = surplus(model, packed, 0, packed, 1)
    limit = np.inf if at_most is None else metric.cost(float(at_most)) - shift + 1e-9
    solution = solve(pair_of(model, packed, 0, packed, 1), time_limit, limit=limit)
    return as_result(solution, metric, shift)


def read(g1: Any, g2: Any, metric: Metric) -> tuple[Packed, Model]:
    """Two users' graphs, which errors call graph 0 and graph 1, and the costs."""
    graphs = [as_graph(g1, 0), as_graph(g2, 1)]
    codes = metric.codes(graphs)
    packed = pack(graphs, codes)
    return packed, metric.model(codes)


def surplus(model: Model, packed_a: Packed, first: int, packed_b: Packed, second: int) -> float:
    """The constant cost of a pair if insertion and deletion have different costs."""
    if not model.surplus.any():
        return 0.0
    sizes, weights = [], []
    for packed, g in ((packed_a, first), (packed_b, second)):
        sizes.append(packed.ptr[g + 1] - packed.ptr[g])
        kinds = packed.kind[packed.edge_ptr[g] : packed.edge_ptr[g + 1]]
        weights.append(np.abs(model.value[kinds]).sum())
    return float(model.surplus @ [sizes[0] - sizes[1], weights[0] - weights[1]])


class Solution(NamedTuple):
    """A permutation, its cost, and a lower bound of all costs; ``exact`` if the two meet."""

    permutation: Int[np.ndarray, " N"]
    cost: float
    lower: float
    exact: bool


def as_result(solution: Solution, metric: Metric, shift: float = 0.0) -> DistanceResult:
    """A solution in terms of distances."""
    distance = metric.distance(solution.cost + shift)
    lower = distance if solution.exact else metric.distance(solution.lower + shift)
    return DistanceResult(distance, solution.permutation, lower, solution.exact)


def solve(
    pair: Pair, time_limit: float | None, stop: Event | None = None, limit: float = np.inf
) -> Solution:
    """The least cost of a pair: a short search first, then a long one if that is not enough.

    Args:
        pair: the two graphs.
        time_limit: seconds, or None.
        stop: ends the search early when another thread sets it.
        limit: the search stops when the cost is proven to exceed this number.
    """
    n = pair.label_a.size
    if n > LARGEST:
        return _estimate(pair)
    compile_search()
    deadline = np.inf if time_limit is None else perf_counter() + time_limit

    def over() -> bool:
        return perf_counter() >= deadline or (stop is not None and stop.is_set())

    tree, lower, complete = search_briefly(pair, limit, GLANCE, EFFORT)
    allowed = round_down(pair, limit)
    improved = tree.value[0] < value_above(pair, allowed)
    if complete and not improved and limit < np.inf:
        lower = max(lower, allowed + (pair.model.step or pair.gap))
        return _solution(pair, _any_permutation(pair), lower)
    best = tree.best.copy() if improved else _any_permutation(pair)
    if complete:
        return _solution(pair, best, float(tree.value[0]))
    lower = max(lower, spectral_bound(pair), open_bound(tree))
    return _search_long(pair, best, lower, limit, over)


def _any_permutation(pair: Pair) -> Int[np.ndarray, " N"]:
    """A permutation that is allowed, cheap by its vertices' degrees, and locally optimal."""
    weights = [np.abs(pair.model.value)[kind].sum(axis=1) for kind in (pair.kind_a, pair.kind_b)]
    cost = np.abs(weights[0][:, None] - weights[1])
    if pair.vertex.size:
        cost = cost + pair.vertex
    cost[~unpack(pair.allowed)] = 2 * (cost.sum() + 1)
    permutation = linear_sum_assignment(cost)[1].astype(np.int64)
    if permutation.size <= POLISHED:
        descend(pair, permutation)
    return permutation


def _search_long(
    pair: Pair,
    best: Int[np.ndarray, " N"],
    lower: float,
    limit: float,
    over: Callable[[], bool],
) -> Solution:
    """Improves the upper bound by FAQ, finds orbits, then raises the lower bound round by round.

    Each round searches for permutations up to a target cost only, which is much shorter than a
    search for any improvement on the best. A round that finds none proves a lower bound. The
    last round is the full proof, and takes as long as all others together or longer. Without a
    limit, descents from random permutations meanwhile improve the upper bound: without the optimum,
    a round more would be needed to find it, which takes as long as the proof.
    """
    value = float(cost_of(pair, best))
    lower = round_up(pair, lower)
    matrices = adjacency_matrices(pair)
    if matrices is not None and unpack(pair.allowed).all() and limit == np.inf:
        rng = np.random.default_rng(0)
        for attempt in range(8):
            if not over() and lower <= value - pair.gap:
                cost, permutation = faq(pair, matrices, rng, randomly=attempt > 0)
                if cost < value:
                    best, value = permutation, cost
    small = best.size <= SMALL
    if small and not over():
        pair = with_orbits(pair, over)
    rng = np.random.default_rng(0)

    def stop() -> bool:
        nonlocal best, value
        if limit == np.inf and lower <= value - pair.gap and not over():
            best, value = restart(pair, best, value, lower, rng)
        return lower > value - pair.gap or over()

    floor, span = lower, min(value, limit) - lower
    for part in (0, 1 / 32, 1 / 16, *np.arange(1, 9) / 8):
        target = _target(pair, floor + span * part, min(value, limit + pair.gap))
        if lower <= min(target, value - pair.gap, limit) and not over():
            tree = plant(pair)
            tree.probed[0] = 3 if small else 0
            raised, cost = _raise_lower_bound(pair, tree, target, stop)
            lower = max(lower, raised)
            if cost < value:
                best, value = tree.best.copy(), cost
    return _solution(pair, best, lower)


def restart(
    pair: Pair,
    best: Int[np.ndarray, " N"],
    value: float,
    lower: float,
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, " N"], float]:
    """Descends from random permutations for a while; the best permutation and its cost.

    Args:
        pair: the two graphs.
        best: the best permutation known.
        value: its cost.
        lower: a lower bound, at which the descents end.
        rng: chooses the permutations.
    """
    allowed, trial = unpack(pair.allowed), best.copy()
    for i in range(trial.size - 1, 0, -1):
        k = int(rng.integers(i + 1))
        if allowed[i, trial[k]] and allowed[k, trial[i]]:
            trial[i], trial[k] = trial[k], trial[i]
    cost = improve(pair, trial, np.inf, lower, RESTARTS // trial.size**3)
    return (trial, float(cost)) if cost < value else (best, value)


def _target(pair: Pair, cost: float, value: float) -> float:
    """The cost to search up to: about the given one, but below the value to improve on."""
    step = pair.model.step
    if step == 0.0:
        return min(cost, value - pair.gap / 2)
    return min(round_down(pair, cost), round_up(pair, value) - step)


def _raise_lower_bound(
    pair: Pair, tree: Tree, target: float, stop: Callable[[], bool]
) -> tuple[float, float]:
    """A lower bound of the optimum, and the least cost found, infinite if there is none.

    Searches for permutations that cost no more than the target, until ``stop`` returns True.
    """
    tree.value[0] = value_above(pair, target)
    pretended = tree.value[0]
    complete = False
    while not complete and not stop():
        complete = advance(pair, tree, EFFORT // pair.label_a.size**2)
    cost = float(tree.value[0]) if tree.value[0] < pretended else np.inf
    if complete and np.isinf(cost):
        return target + pair.model.step, cost
    return round_up(pair, min(open_bound(tree), cost, target)), cost


def _estimate(pair: Pair) -> Solution:
    """The bounds of graphs that are too large to search."""
    best = _any_permutation(pair)
    matrices = adjacency_matrices(pair)
    if best.size <= POLISHED and matrices is not None and unpack(pair.allowed).all():
        cost, permutation = faq(pair, matrices, np.random.default_rng(0), randomly=False)
        best = permutation if cost < cost_of(pair, best) else best
    return _solution(pair, best, max(spectral_bound(pair), degree_bound(pair)))


def _solution(pair: Pair, permutation: Int[np.ndarray, " N"], lower: float) -> Solution:
    """The solution of a permutation and a lower bound of the cost."""
    cost = float(cost_of(pair, permutation))
    lower = float(round_up(pair, lower))
    return Solution(permutation.copy(), cost, lower, bool(lower > cost - pair.gap))


def adjacency_matrices(pair: Pair) -> Float[np.ndarray, "2 N N"] | None:
    """The two matrices whose squared distance is the cost, half of it; None if there are none."""
    simple = pair.model.table.size and np.array_equal(
        pair.model.table, np.square(pair.model.value[:, None] - pair.model.value)
    )
    if pair.vertex.size or not (simple or (not pair.model.table.size and pair.model.power == 2)):
        return None
    return pair.model.value[np.stack([pair.kind_a, pair.kind_b])]


def faq(
    pair: Pair, matrices: Float[np.ndarray, "2 N N"], rng: np.random.Generator, *, randomly: bool
) -> tuple[float, Int[np.ndarray, " N"]]:
    """Cost and permutation of one run of FAQ and a descent; every match must be allowed."""
    options = {"maximize": True, "rng": rng, "P0": "randomized" if randomly else "barycenter"}
    result = quadratic_assignment(matrices[0], matrices[1], method="faq", options=options)
    permutation = result.col_ind.astype(np.int64)
    return float(descend(pair, permutation)), permutation


def spectral_bound(pair: Pair) -> float:
    r"""A lower bound of the cost by the two spectra (Hoffman and Wielandt); 0 if unknown.

    .. math:: d(G_1, G_2)^2 \ge \sum_i (\lambda_i(A_1) - \lambda_i(A_2))^2

    with eigenvalues in order, less their rounding error. It sees what degrees do not: a hexagon
    and two triangles have the same degrees and different spectra.
    """
    matrices = adjacency_matrices(pair)
    if matrices is None:
        return 0.0
    spectra = np.linalg.eigvalsh(matrices)  # (2, N)
    error = 1e-10 * float(np.square(spectra).sum())
    return max(0.0, 0.5 * float(np.square(spectra[0] - spectra[1]).sum()) - error)


def degree_bound(pair: Pair) -> float:
    r"""A lower bound of the cost by the two degree sequences; 0 if unknown.

    .. math:: d(G_1, G_2)^2 \ge \sum_i |\delta_i(G_1) - \delta_i(G_2)|

    with degrees in order. Where weights are not whole numbers, norms of rows take the place of
    degrees: :math:`\sum_i (\rho_i(G_1) - \rho_i(G_2))^2`.
    """
    matrices = adjacency_matrices(pair)
    if matrices is None:
        return 0.0
    if (matrices == np.floor(matrices)).all():
        degrees = np.sort(matrices.sum(axis=2), axis=1)  # (2, N)
        return 0.5 * float(np.abs(degrees[0] - degrees[1]).sum())
    norms = np.sort(np.linalg.norm(matrices, axis=2), axis=1)  # (2, N)
    return 0.5 * float(np.square(norms[0] - norms[1]).sum())


@cache
def compile_search() -> None:
    """Compiles the search, so that no time limit counts the compilation."""
    packed, model = read(nx.path_graph(2), nx.path_graph(2), Frobenius())
    search_briefly(pair_of(model, packed, 0, packed, 1), np.inf, 1, 0)
