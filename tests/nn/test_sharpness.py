"""Sharpness: what uniform, hard and mixed permutations must measure."""

from dataclasses import astuple
from math import exp, log

import networkx as nx
import numpy as np
import pytest
import torch
from samples import collect, random_graph
from sklearn.decomposition import PCA
from torch.testing import assert_close

from softperm.nn.model import ModelConfig, build
from softperm.nn.permutation import first_component, row_entropy, used_latent_vertices

P = 5


def plans(seed: int = 0, rows: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, P, generator=generator, dtype=torch.float64)).softmax(1)


def test_uniform_permutations_have_entropy_1_and_use_one_latent_vertex():
    d = torch.full((30, P), 1 / P)
    assert_close(row_entropy(d), torch.tensor(1.0))
    assert_close(used_latent_vertices(d), torch.tensor(1.0))


def test_hard_permutations_have_entropy_0_and_use_what_they_are_assigned_to():
    d = torch.eye(P)[[0, 1, 3, 3, 1, 0, 0, 1, 3]]
    assert_close(row_entropy(d), torch.tensor(0.0))
    assert_close(used_latent_vertices(d), torch.tensor(3.0))


def test_equal_rows_use_one_latent_vertex_however_sharp_they_are():
    d = plans(rows=1).expand(20, P)
    assert 0 < row_entropy(d) < 1
    assert_close(used_latent_vertices(d), torch.ones((), dtype=torch.float64))


def test_measures_equal_their_definitions():
    d = plans()
    entropies = [-sum(x * log(x) for x in row) for row in d.tolist()]
    assert float(row_entropy(d)) == pytest.approx(np.mean(entropies) / log(P))
    mean = d.mean(0).tolist()
    information = -sum(x * log(x) for x in mean) - np.mean(entropies)
    assert float(used_latent_vertices(d)) == pytest.approx(exp(information))


def test_dustbins_neither_sharpen_nor_blur():
    """Rows count by their shares; a row without mass does not count."""
    d = plans()
    shrunk = torch.cat([d * torch.linspace(0.1, 1, 40).double()[:, None], torch.zeros(6, P)])
    for measure in (row_entropy, used_latent_vertices):
        assert_close(measure(shrunk), measure(d))


def test_one_latent_vertex_is_always_sharp():
    assert row_entropy(torch.ones(4, 1)) == 0
    assert used_latent_vertices(torch.ones(4, 1)) == 1


@pytest.mark.parametrize("shape", [(30, 8), (6, 50)])
def test_the_first_component_is_that_of_scikit_learn(shape):
    vectors = np.random.default_rng(0).normal(size=shape) * np.linspace(1, 4, shape[1]) + 7
    expected = PCA().fit(vectors).explained_variance_ratio_[0]
    assert float(first_component(torch.from_numpy(vectors))) == pytest.approx(expected)


def test_vectors_on_a_line_have_one_component():
    direction = torch.randn(9, generator=torch.Generator().manual_seed(0))
    assert_close(first_component(torch.arange(5.0)[:, None] * direction), torch.tensor(1.0))
    assert first_component(torch.ones(5, 3)) == 1


@pytest.mark.parametrize("heads", [1, 2])
def test_the_sharpness_of_a_network_is_that_of_its_permutations(heads):
    graphs = collect([random_graph(n, n) for n in (5, 9, 12, 7)])
    batch = graphs.batch(torch.arange(4))
    settings = {"attribute_size": 3, "compare": "cosine", "permutation_heads": heads}
    model = build(ModelConfig(2, 6, hidden=8, **settings), seed=0).eval()
    found = model.sharpness(batch)
    d = torch.cat(model.permutations(batch), dim=-2).detach()
    assert found.row_entropy == pytest.approx(float(row_entropy(d)), abs=1e-6)
    adjacency = model.transform(batch)[:, :36].detach()
    assert found.first_component == pytest.approx(float(first_component(adjacency)), abs=1e-6)
    used = [float(used_latent_vertices(plan)) for plan in d.reshape(-1, *d.shape[-2:])]
    assert found.used_latent_vertices == pytest.approx(max(used), abs=1e-5)


def test_uniform_permutations_make_aligned_matrices_the_number_of_edges():
    graphs = collect([nx.gnp_random_graph(12, 0.1 * k, seed=k) for k in range(1, 9)])
    model = build(ModelConfig(2, 6, hidden=8), seed=0)
    with torch.no_grad():
        model.permutation.latent.zero_()
    found = model.sharpness(graphs.batch(torch.arange(8)))
    assert astuple(found) == pytest.approx((1, 1, 1), abs=1e-6)
