"""Kernels without gradients equal the operators that training uses."""

import numpy as np
import pytest
import torch
from samples import collect, random_graph
from torch import nn
from torch.autograd import forward_ad
from torch.testing import assert_close

from softperm.nn.permutation import align_adjacency, align_edge_attributes
from softperm.ops import inference
from softperm.ops.inference import align_edges, forward_only, normalised_linear

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
DTYPES = list(TOLERANCE)
SIZES = (5, 0, 1, 8, 3)
PTR = torch.tensor([0, *SIZES]).cumsum(0)


def close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[ours.dtype]
    assert ours.dtype == expected.dtype
    assert_close(ours, expected, rtol=tolerance, atol=tolerance)


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_the_kernels_serve_the_cpu_without_gradients_only():
    x = drawn(3, 2)
    assert not forward_only(x)
    with torch.no_grad():
        assert forward_only(x)
        assert not forward_only(x.half())
        assert not forward_only(x.to("meta"))
        answers = []
        torch.vmap(lambda row: answers.append(forward_only(row)) or row)(x)
        assert answers == [False]
    with torch.inference_mode():
        assert forward_only(x)
    with torch.no_grad(), forward_ad.dual_level():
        assert forward_only(x)
        assert not forward_only(forward_ad.make_dual(x, x))  # its tangent would be lost


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [1, 4, 20])
def test_aligned_edges_are_the_products_of_training(dtype, p):
    batch = collect([random_graph(n, seed=n) for n in (5, 1, 8, 3)]).batch(torch.arange(4))
    weight = batch.edge_attr.to(dtype)
    weight[:, 1] = 0  # a channel without edges
    d = drawn(int(batch.ptr[-1]), p, dtype=dtype)
    edges = batch.edge_index
    ours = align_edges(d, edges, weight, batch.ptr)
    close(ours, align_edge_attributes(d, edges, weight, batch.ptr))
    assert torch.equal(ours, ours.transpose(1, 2))
    with torch.no_grad():
        alone = align_adjacency(d, edges, batch.ptr, weight[:, 0], canonical=True)
    close(alone, ours[..., 0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_edges_may_be_of_half_precision(dtype):
    batch = collect([random_graph(n, seed=n) for n in (5, 8)]).batch(torch.arange(2))
    d, weight = drawn(int(batch.ptr[-1]), 3), torch.ones(batch.edge_index.shape[1]).to(dtype)
    plain = align_adjacency(d, batch.edge_index, batch.ptr, canonical=True)
    with torch.no_grad():
        close(align_adjacency(d, batch.edge_index, batch.ptr, weight, canonical=True), plain)


def test_graphs_without_edges_and_without_vertices_are_aligned_to_zeros():
    d = drawn(3, 2)
    nothing = align_edges(d, torch.empty(2, 0, dtype=torch.long), d[:0], torch.tensor([0, 0, 3]))
    assert torch.equal(nothing, torch.zeros(2, 2, 2, 2, dtype=d.dtype))
    assert align_edges(d, torch.empty(2, 0, dtype=torch.long), d[:0], PTR[:1]).shape == (0, 2, 2, 2)


def symmetric(graphs: int, p: int, channels: int, dtype: torch.dtype) -> torch.Tensor:
    x = drawn(graphs, p, p, channels, dtype=dtype).abs()
    return (x + x.transpose(1, 2)).flatten(1)


def entries(p: int, channels: int) -> np.ndarray:
    place = np.arange(p * p * channels).reshape(p, p, channels)
    i, j = np.triu_indices(p)
    return np.stack([place[i, j].T.ravel(), place[j, i].T.ravel()])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("graphs", "p", "channels"), [(1, 1, 1), (37, 5, 3), (16, 4, 1), (0, 2, 2)]
)
def test_the_joined_layer_is_layer_norm_and_a_linear_layer(
    dtype, normalise, bias, graphs, p, channels
):
    torch.manual_seed(0)
    x = symmetric(graphs, p, channels, dtype)
    for missing in range(channels):  # a channel that some graphs do not have
        x[missing::4].view(-1, p * p, channels)[..., missing] = 0
    norm = nn.LayerNorm(x.shape[1], dtype=dtype) if normalise else None
    linear = nn.Linear(x.shape[1], 7, bias=bias, dtype=dtype)
    with torch.no_grad():
        if norm is not None:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
        expected = linear(x if norm is None else norm(x))
        close(normalised_linear(x, norm, linear, entries(p, channels)), expected)


@pytest.mark.parametrize("distance", [1.0, 1e-2, 1e-4])
def test_entries_that_hardly_differ_do_not_cancel(distance):
    """Against float64, the joined layer is as exact as the two layers."""
    torch.manual_seed(0)
    x = 1 + distance * symmetric(20, 20, 2, torch.float32)
    norm, linear = nn.LayerNorm(x.shape[1]), nn.Linear(x.shape[1], 9)
    with torch.no_grad():
        ours, plain = normalised_linear(x, norm, linear, entries(20, 2)), linear(norm(x))
        exact = linear.double()(norm.double()(x.double()))
    assert (ours - exact).abs().max() <= 1e-5 + 2 * (plain - exact).abs().max()


def test_a_graphs_result_does_not_depend_on_the_others():
    x = symmetric(3 * inference.TILE + 5, 4, 2, torch.float32)
    norm, linear = nn.LayerNorm(x.shape[1]), nn.Linear(x.shape[1], 9)
    with torch.no_grad():
        whole = normalised_linear(x, norm, linear, entries(4, 2))
        part = normalised_linear(x[20:23], norm, linear, entries(4, 2))
    assert torch.equal(part, whole[20:23])
