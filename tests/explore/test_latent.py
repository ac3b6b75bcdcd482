"""What latent vertices stand for."""

import networkx as nx
import numpy as np
import pytest
import torch
from samples import collect, labelled_path

from softperm.explore.latent import LatentSummary


def summary_of(graphs, d, names, parts=1):
    laid = collect(graphs)
    label = np.zeros(int(laid.ptr[-1]), int) if laid.label is None else laid.label[:, 0].numpy()
    summary = LatentSummary(label, names)
    ptr = laid.ptr.numpy()
    for chunk in np.array_split(np.arange(len(graphs)), parts):
        batch = laid.batch(torch.from_numpy(chunk))
        rows = slice(ptr[chunk[0]], ptr[chunk[-1] + 1])
        summary.add(d[rows], batch.edge_index.numpy(), int(ptr[chunk[0]]))
    return summary.latent_vertices(ptr)


GRAPHS = [labelled_path("aab"), labelled_path("bab"), labelled_path("aaa")]
HARD = np.eye(2, dtype=np.float32)[[0, 0, 1, 1, 0, 1, 0, 0, 0]]  # a -> 0, b -> 1


def test_a_latent_vertex_that_receives_one_label_stands_for_it():
    first, second = summary_of(GRAPHS, HARD, ("a", "b"))
    assert (first.labels[0].name, first.labels[0].here) == ("a", 1.0)
    assert (second.labels[0].name, second.labels[0].here) == ("b", 1.0)
    assert second.labels[0].overall == pytest.approx(1 / 3)
    assert second.mass == pytest.approx(1 / 3)
    assert {share.name for share in second.neighbourhoods} >= {"b next to a"}
    assert second.neighbourhoods[0].here == 1.0


def test_examples_are_the_strongest_vertices_one_of_each_graph():
    d = np.full((9, 2), 0.5, np.float32)
    d[4], d[8], d[7] = (0.9, 0.1), (0.8, 0.2), (0.7, 0.3)
    first, _ = summary_of(GRAPHS, d, ("a", "b"))
    assert [(e.graph, e.vertex) for e in first.examples[:2]] == [(1, 1), (2, 2)]
    assert len({e.graph for e in first.examples}) == len(first.examples) == 3


def test_a_uniform_permutation_has_shares_as_overall():
    for latent in summary_of(GRAPHS, np.full((9, 2), 0.5, np.float32), ("a", "b")):
        for share in (*latent.labels, *latent.degrees, *latent.neighbourhoods):
            assert share.here == pytest.approx(share.overall)


def test_shares_are_of_the_vertices_that_are_assigned_most_strongly():
    """Assignments that hardly differ tell labels apart; a latent vertex may have no vertices."""
    d = np.where(np.array([0, 0, 1, 1, 0, 1, 0, 0, 0])[:, None], (0.3, 0.4, 0.3), (0.4, 0.3, 0.3))
    first, second, third = summary_of(GRAPHS, d.astype(np.float32), ("a", "b"))
    assert [(s.name, s.here) for s in first.labels] == [("a", 1.0)]
    assert [(s.name, s.here, s.overall) for s in second.labels] == [
        ("b", 1.0, pytest.approx(1 / 3))
    ]
    assert (first.vertices, third.vertices) == (pytest.approx(2 / 3), 0.0)
    assert third.mass == pytest.approx(0.3)
    assert third.labels == third.degrees == third.neighbourhoods == ()


def test_batches_do_not_change_the_summary():
    d = np.random.default_rng(0).dirichlet(np.ones(3), size=9).astype(np.float32)
    one, three = (summary_of(GRAPHS, d, ("a", "b"), parts) for parts in (1, 3))
    for a, b in zip(one, three, strict=True):
        assert a.mass == pytest.approx(b.mass)
        assert [s.name for s in a.neighbourhoods] == [s.name for s in b.neighbourhoods]
        assert a.examples == b.examples


def test_without_labels_neighbourhoods_are_degrees():
    d = np.eye(2, dtype=np.float32)[[0, 1, 1, 1]]
    hub, leaves = summary_of([nx.star_graph(3)], d, ())
    assert hub.neighbourhoods[0].name == "degree 3 next to degree 1, degree 1, degree 1"
    assert leaves.degrees[0].name == "1"
    assert not hub.labels
