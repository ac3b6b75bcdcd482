"""Joint alignment: what it promises, and how near to the optimum it comes."""

from itertools import permutations, product

import networkx as nx
import numpy as np
import pytest
from distance.oracle import pad, random_matrix, shuffled, weigh

from softperm.data.datasets.synthetic import distance_study
from softperm.distance import frobenius_matrix, joint_alignment


def aligned(graphs: list[np.ndarray], places: np.ndarray) -> np.ndarray:
    return np.stack(
        [
            pad(matrix, places.shape[1])[p][:, p].ravel()
            for matrix, p in zip(graphs, places, strict=True)
        ]
    )


def total(vectors: np.ndarray) -> float:
    return float(np.linalg.norm(vectors[:, None] - vectors, axis=2).sum())


@pytest.fixture
def mixed() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    weights = np.array([0.5, 1.0, 2.0])
    return [weigh(rng, random_matrix(rng, n), weights) for n in rng.integers(3, 8, size=12)]


def test_permutations_attain_the_distances_and_these_sum_to_the_objective(mixed):
    joint = joint_alignment(mixed)
    for p in joint.permutations:
        assert sorted(p) == list(range(7))
    vectors = aligned(mixed, joint.permutations)
    attained = np.linalg.norm(vectors[:, None] - vectors, axis=2)
    np.testing.assert_allclose(joint.distances, attained, atol=1e-9)
    np.testing.assert_allclose(joint.objective, attained.sum())


def test_aligned_distances_are_never_below_the_frobenius_distances(mixed):
    distances = frobenius_matrix(mixed)
    joint = joint_alignment(mixed)
    assert (joint.distances >= distances - 1e-9).all()
    np.testing.assert_allclose(joint.lower_bound, distances.sum())
    given = joint_alignment(mixed, distances=distances)
    assert given.lower_bound == distances.sum()
    assert given.objective == joint.objective


def below_the_distance(graphs: list[np.ndarray], plans: list[np.ndarray]) -> np.ndarray:
    """Pairs whose vectors vec(DᵀAD) are nearer to each other than the graphs."""
    vectors = np.stack([(d.T @ a @ d).ravel() for a, d in zip(graphs, plans, strict=True)])
    aligned_distances = np.linalg.norm(vectors[:, None] - vectors, axis=2)
    return aligned_distances < frobenius_matrix(graphs) - 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_no_alignment_by_permutations_is_below_the_true_distance(seed, mixed):
    rng = np.random.default_rng(seed)
    plans = [np.eye(7)[rng.permutation(7)][: len(matrix)] for matrix in mixed]
    assert not below_the_distance(mixed, plans).any()


def test_soft_alignments_can_be_below_the_true_distance(mixed):
    """The inequality needs permutations: uniform plans map graphs of equal weight to one point."""
    plans = [np.full((len(matrix), 7), 1 / 7) for matrix in mixed]
    below = below_the_distance(mixed, plans)
    assert below[~np.eye(len(mixed), dtype=bool)].mean() > 0.5


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_holds_for_weights_of_both_signs_and_graphs_of_all_sizes(seed):
    rng = np.random.default_rng(seed)
    weights = np.array([-2.0, -1.0, 1.0, 2.0])
    graphs = [weigh(rng, random_matrix(rng, n, 0.8), weights) for n in (2, 2, 3, 3, 5)]
    joint = joint_alignment([*graphs, -graphs[0]])
    assert joint.lower_bound <= joint.objective + 1e-9
    edge = np.array([[0.0, 1.0], [1.0, 0.0]])
    pair = joint_alignment([edge, -edge, np.zeros((4, 4))])
    assert pair.objective == pytest.approx(pair.lower_bound)
    assert pair.distances[0, 1] == pytest.approx(2.0), "side by side, not on each other: 8 ** 0.5"


@pytest.mark.parametrize("seed", range(6))
def test_three_small_graphs_reach_the_optimum_of_all_placements(seed):
    rng = np.random.default_rng(seed)
    graphs = [random_matrix(rng, 4, 0.5) for _ in range(3)]
    every = [np.array(p) for p in permutations(range(4))]
    first = graphs[0].ravel()
    second, third = (np.stack([g[p][:, p].ravel() for p in every]) for g in graphs[1:])
    best = min(
        total(np.stack([first, second[k], third[m]])) for k, m in product(range(24), repeat=2)
    )
    np.testing.assert_allclose(joint_alignment(graphs).objective, best)


def test_two_graphs_are_aligned_at_their_distance():
    rng = np.random.default_rng(3)
    for _ in range(10):
        graphs = [random_matrix(rng, int(n)) for n in rng.integers(2, 8, size=2)]
        joint = joint_alignment(graphs)
        np.testing.assert_allclose(joint.objective, joint.lower_bound)


def test_copies_of_one_graph_are_all_brought_together():
    rng = np.random.default_rng(4)
    matrix = random_matrix(rng, 9, 0.4)
    joint = joint_alignment([shuffled(rng, matrix) for _ in range(10)])
    np.testing.assert_allclose(joint.objective, 0, atol=1e-9)


def test_the_study_comes_within_seven_percent_of_its_lower_bound():
    graphs = distance_study()
    distances = frobenius_matrix(graphs)
    joint = joint_alignment(graphs, distances=distances, restarts=0)
    assert (joint.distances >= distances - 1e-9).all()
    assert joint.lower_bound < joint.objective < 1.07 * joint.lower_bound
    assert np.corrcoef(joint.distances.ravel(), distances.ravel())[0, 1] > 0.9


def test_the_same_seed_gives_the_same_alignment_and_more_starts_none_worse(mixed):
    one, other = joint_alignment(mixed, seed=5), joint_alignment(mixed, seed=5)
    np.testing.assert_array_equal(one.permutations, other.permutations)
    few, many = (joint_alignment(mixed, seed=5, restarts=r).objective for r in (0, 20))
    assert many <= few


def test_one_graph_is_aligned_with_itself():
    joint = joint_alignment([nx.path_graph(3)])
    assert joint.objective == joint.lower_bound == 0


@pytest.mark.filterwarnings("ignore:.*no vertices")
def test_graphs_without_vertices_are_aligned():
    joint = joint_alignment([nx.Graph(), nx.Graph()])
    assert joint.permutations.shape == (2, 0)
    assert joint.objective == joint.lower_bound == 0


def test_bad_input_is_named():
    graphs = [nx.path_graph(3), nx.path_graph(4)]
    with pytest.raises(ValueError, match=r"distances has shape \(3, 3\); expected \(2, 2\)"):
        joint_alignment(graphs, distances=np.zeros((3, 3)))
    with pytest.raises(ValueError, match="distances holds NaN or infinite numbers"):
        joint_alignment(graphs, distances=np.full((2, 2), np.nan))
    with pytest.raises(ValueError, match="restarts is -1; expected zero or more"):
        joint_alignment(graphs, restarts=-1)
    with pytest.raises(ValueError, match="expected a list of graphs"):
        joint_alignment([])
