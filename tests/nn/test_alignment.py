"""Aligned matrices: the sparse products equal the dense formulas of the paper."""

import re

import pytest
import torch
from samples import collect, random_graph
from torch.testing import assert_close

from softperm.nn.permutation import align_adjacency, align_attributes, align_edge_attributes

SIZES = (5, 1, 8, 3)
BATCH = collect([random_graph(n, seed=n) for n in SIZES]).batch(torch.arange(4))
P = 4


def plans(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(sum(SIZES), P, generator=generator, dtype=torch.float64)


def dense(weight: torch.Tensor) -> list[torch.Tensor]:
    """The adjacency matrix of each graph, with these entries."""
    v = sum(SIZES)
    whole = torch.zeros(v, v, dtype=torch.float64)
    whole[BATCH.edge_index[0], BATCH.edge_index[1]] = weight.double()
    spans = zip(BATCH.ptr[:-1].tolist(), BATCH.ptr[1:].tolist(), strict=True)
    return [whole[a:b, a:b] for a, b in spans]


@pytest.mark.parametrize("canonical", [False, True])
def test_the_aligned_adjacency_is_the_dense_product(canonical):
    d = plans()
    for weight in (None, BATCH.edge_weight):
        entries = torch.ones(BATCH.edge_index.shape[1]) if weight is None else weight
        ours = align_adjacency(d, BATCH.edge_index, BATCH.ptr, weight, canonical=canonical)
        parts = zip(d.split(list(SIZES)), dense(entries), strict=True)
        assert_close(ours, torch.stack([dg.T @ a @ dg for dg, a in parts]))


@pytest.mark.parametrize("power", [2, 3, 4])
@pytest.mark.parametrize("canonical", [False, True])
def test_an_aligned_power_is_the_dense_product(power, canonical):
    d, weight = plans(), BATCH.edge_weight
    ours = align_adjacency(d, BATCH.edge_index, BATCH.ptr, weight, power=power, canonical=canonical)
    parts = zip(d.split(list(SIZES)), dense(weight), strict=True)
    expected = [dg.T @ torch.linalg.matrix_power(a, power) @ dg for dg, a in parts]
    assert_close(ours, torch.stack(expected))


def test_the_aligned_adjacency_of_an_undirected_graph_is_symmetric():
    ours = align_adjacency(plans(), BATCH.edge_index, BATCH.ptr, BATCH.edge_weight)
    assert_close(ours, ours.mT)


def test_a_directed_adjacency_is_taken_in_its_direction():
    edges, ptr = torch.tensor([[0, 2], [1, 0]]), torch.tensor([0, 3])
    d = plans()[:3]
    a = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 0, 0]], dtype=torch.float64)
    assert_close(align_adjacency(d, edges, ptr)[0], d.T @ a @ d)
    assert_close(align_adjacency(d, edges, ptr, power=2)[0], d.T @ a @ a @ d)


def test_the_aligned_attributes_are_the_dense_product():
    d = plans()
    ours = align_attributes(d, BATCH.x, BATCH.ptr)
    parts = zip(d.split(list(SIZES)), BATCH.x.double().split(list(SIZES)), strict=True)
    assert_close(ours, torch.stack([dg.T @ x for dg, x in parts]))


def test_the_aligned_edge_attributes_are_one_product_a_channel():
    d = plans()
    ours = align_edge_attributes(d, BATCH.edge_index, BATCH.edge_attr, BATCH.ptr, canonical=True)
    assert ours.shape == (4, P, P, 2)
    for channel in range(2):
        expected = align_adjacency(d, BATCH.edge_index, BATCH.ptr, BATCH.edge_attr[:, channel])
        assert_close(ours[..., channel], expected)
    none = align_edge_attributes(d, BATCH.edge_index, BATCH.edge_attr[:, :0], BATCH.ptr)
    assert none.shape == (4, P, P, 0)


def test_a_hard_permutation_only_renumbers():
    graph = random_graph(6, seed=3)
    batch = collect([graph]).batch(torch.tensor([0]))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    d = torch.eye(6, dtype=torch.float64)[order]
    a = torch.zeros(6, 6, dtype=torch.float64)
    a[batch.edge_index[0], batch.edge_index[1]] = 1
    inverse = order.argsort()
    assert_close(align_adjacency(d, batch.edge_index, batch.ptr)[0], a[inverse][:, inverse])
    assert_close(align_attributes(d, batch.x, batch.ptr)[0], batch.x.double()[inverse])


def test_uniform_plans_give_all_graphs_with_as_many_edges_the_same_matrix():
    """Soft plans collapse classes of graphs: here every entry is 2 |E| / P²."""
    d = torch.full((sum(SIZES), P), 1 / P, dtype=torch.float64)
    ours = align_adjacency(d, BATCH.edge_index, BATCH.ptr)
    directed = torch.bincount(BATCH.batch[BATCH.edge_index[0]], minlength=4).double()
    assert_close(ours, (directed / P**2)[:, None, None].expand(4, P, P))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda d, e, p: align_attributes(d, torch.ones(3, 2), p),
            "a row for each vertex; got left",
        ),
        (lambda d, e, p: align_attributes(d, torch.ones(17), p), "a row for each vertex; got left"),
        (
            lambda d, e, p: align_attributes(d, d, p.float()),
            "ptr must be a vector of whole numbers",
        ),
        (lambda d, e, p: align_adjacency(d, e.T, p), "edge_index must be (2, E) whole numbers"),
        (lambda d, e, p: align_adjacency(d, e.float(), p), "got torch.float32 of shape (2,"),
        (lambda d, e, p: align_adjacency(d, e, p, torch.ones(3)), "but edge_weight has shape (3,)"),
        (lambda d, e, p: align_adjacency(d, e, p, torch.ones(999)), "edge_weight has shape (999,)"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")  # which would answer in our place
def test_what_does_not_fit_together_is_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(plans(), BATCH.edge_index, BATCH.ptr)


def test_tangents_are_refused_not_forgotten():
    d = plans()
    with pytest.raises(NotImplementedError, match=r"but not torch\.func\.grad"):
        torch.func.jvp(lambda d: align_adjacency(d, BATCH.edge_index, BATCH.ptr), (d,), (d,))


def test_gradients_pass_gradcheck():
    d = plans().requires_grad_()
    weight = BATCH.edge_weight.double()
    assert torch.autograd.gradcheck(
        lambda d: align_adjacency(d, BATCH.edge_index, BATCH.ptr, weight, canonical=True), (d,)
    )
    assert torch.autograd.gradcheck(
        lambda d: align_edge_attributes(d, BATCH.edge_index, BATCH.edge_attr.double(), BATCH.ptr),
        (d,),
    )
    x = BATCH.x.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda d, x: align_attributes(d, x, BATCH.ptr), (d, x))
