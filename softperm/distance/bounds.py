"""Lower and upper bounds of the Frobenius distance, each a function of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import quadratic_assignment

from softperm.data.graphs import as_graph
from softperm.distance.branch_and_bound import bound_node, descend, improve, plant
from softperm.distance.costs import Frobenius
from softperm.distance.pairs import Pair, pack, pair_of


def spectral_lower_bound(g1: Any, g2: Any) -> float:
    r"""The distance of the two spectra (Hoffman and Wielandt).

    .. math:: d(G_1, G_2)^2 \ge \sum_i (\lambda_i(A_1) - \lambda_i(A_2))^2

    with eigenvalues in order and the smaller graph zero-padded. It sees what degrees do not: a
    hexagon and two triangles have the same degrees and different spectra.

    Args:
        g1: a graph, anything :func:`softperm.data.graphs.as_graph` takes.
        g2: another.
    """
    return Frobenius().distance(spectral_bound(read_pair(g1, g2, labels=False)))


def degree_lower_bound(g1: Any, g2: Any) -> float:
    r"""What the two degree sequences cannot avoid.

    .. math:: d(G_1, G_2)^2 \ge \sum_i |\delta_i(G_1) - \delta_i(G_2)|

    with degrees in order and the smaller graph zero-padded. Where weights are not whole numbers
    the degrees give way to the norms of the rows: :math:`\sum_i (\rho_i(G_1) - \rho_i(G_2))^2`.

    Args:
        g1: a graph, anything :func:`softperm.data.graphs.as_graph` takes.
        g2: another.
    """
    return Frobenius().distance(degree_bound(read_pair(g1, g2, labels=False)))


def assignment_lower_bound(g1: Any, g2: Any, *, labels: bool = False) -> float:
    r"""The bound of Gilmore and Lawler: the cheapest assignment of vertices by their own rows.

    .. math:: d(G_1, G_2)^2 \ge \min_\pi \sum_i \min_\sigma \sum_k
              (A_1[i, k] - A_2[\pi(i), \sigma(k)])^2

    It is the bound of the search's root: never below :func:`degree_lower_bound`, equal to it for
    simple graphs without labels.

    Args:
        g1: a graph, anything :func:`softperm.data.graphs.as_graph` takes.
        g2: another.
        labels: whether only vertices of equal label may be matched.
    """
    pair = read_pair(g1, g2, labels=labels)
    return Frobenius().distance(bound_node(pair, plant(pair), 0, np.inf))


def descent_upper_bound(
    g1: Any, g2: Any, *, labels: bool = False, restarts: int = 20
) -> tuple[float, Int[np.ndarray, " N"]]:
    """The best of several descents by exchanges of two images.

    Args:
        g1: a graph, anything :func:`softperm.data.graphs.as_graph` takes.
        g2: another.
        labels: whether only vertices of equal label may be matched.
        restarts: how many shaken starts follow the first, which is the assignment bound's; they
            are the same in every call.

    Returns:
        An upper bound of the distance, and the permutation that attains it (the convention is
        that of :func:`softperm.distance.frobenius_distance`).
    """
    pair = read_pair(g1, g2, labels=labels)
    tree = plant(pair)
    bound = bound_node(pair, tree, 0, np.inf)
    best = tree.match.copy()
    value = improve(pair, best, np.inf, bound, restarts)
    return Frobenius().distance(value), best


def faq_upper_bound(
    g1: Any, g2: Any, *, restarts: int = 4, seed: int = 0
) -> tuple[float, Int[np.ndarray, " N"]]:
    """The best of several runs of SciPy's FAQ, each followed by a descent.

    FAQ (fast approximate quadratic assignment) moves through doubly stochastic matrices and rounds
    at the end. It takes milliseconds where a descent takes microseconds, and pays on graphs too
    large for the search to be short.

    Args:
        g1: a graph, anything :func:`softperm.data.graphs.as_graph` takes.
        g2: another.
        restarts: how many random starts follow the first, which is the barycentre.
        seed: of the random starts.

    Returns:
        An upper bound of the distance without labels, and the permutation that attains it.
    """
    pair = read_pair(g1, g2, labels=False)
    rng = np.random.default_rng(seed)
    matrices = adjacency_matrices(pair)
    assert matrices is not None
    found = [faq(pair, matrices, rng, randomly=r > 0) for r in range(restarts + 1)]
    value, best = min(found, key=lambda one: one[0])
    return Frobenius().distance(value), best


def read_pair(g1: Any, g2: Any, *, labels: bool) -> Pair:
    """Two users' graphs as a pair; errors call them graph 0 and graph 1."""
    graphs, metric = [as_graph(g1, 0), as_graph(g2, 1)], Frobenius(labels)
    codes = metric.codes(graphs)
    packed = pack(graphs, codes)
    return pair_of(metric.model(codes), packed, 0, packed, 1)


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
    found = quadratic_assignment(matrices[0], matrices[1], method="faq", options=options)
    permutation = found.col_ind.astype(np.int64)
    return float(descend(pair, permutation)), permutation


def spectral_bound(pair: Pair) -> float:
    """:func:`spectral_lower_bound` as a cost, less the error of the eigenvalues; 0 if unknown."""
    matrices = adjacency_matrices(pair)
    if matrices is None:
        return 0.0
    spectra = np.linalg.eigvalsh(matrices)  # (2, N)
    error = 1e-10 * float(np.square(spectra).sum())
    return max(0.0, 0.5 * float(np.square(spectra[0] - spectra[1]).sum()) - error)


def degree_bound(pair: Pair) -> float:
    """:func:`degree_lower_bound` as a cost; 0 if unknown."""
    matrices = adjacency_matrices(pair)
    if matrices is None:
        return 0.0
    if (matrices == np.floor(matrices)).all():
        degrees = np.sort(matrices.sum(axis=2), axis=1)  # (2, N)
        return 0.5 * float(np.abs(degrees[0] - degrees[1]).sum())
    norms = np.sort(np.linalg.norm(matrices, axis=2), axis=1)  # (2, N)
    return 0.5 * float(np.square(norms[0] - norms[1]).sum())
