"""Laws of the ragged products."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from softperm.ops import ragged
from softperm.ops.ragged import graph_maximum, owners, pool, propagate, spread

PTR = torch.tensor([0, 4, 4, 9])


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def edges(v: int, count: int, seed: int = 0) -> Tensor:
    return torch.randint(v, (2, count), generator=torch.Generator().manual_seed(seed))


def dense(edge_index: Tensor, weight: Tensor, v: int) -> Tensor:
    matrix = torch.zeros(v, v, dtype=weight.dtype)
    return matrix.index_put((edge_index[0], edge_index[1]), weight, accumulate=True)


def test_propagate_multiplies_by_the_adjacency_matrix():
    """Of any graph: unsorted, directed, with loops and repeated edges."""
    x, e, w = random(9, 4), edges(9, 30), random(30)
    torch.testing.assert_close(propagate(x, e, w), dense(e, w, 9) @ x)
    torch.testing.assert_close(propagate(x, e), dense(e, torch.ones(30).double(), 9) @ x)


def test_pool_multiplies_each_graphs_rows():
    left, right = random(9, 4), random(9, 3, seed=1)
    out = pool(left, right, PTR)
    for g, (a, b) in enumerate([(0, 4), (4, 4), (4, 9)]):
        torch.testing.assert_close(out[g], left[a:b].T @ right[a:b])


def test_spread_is_the_adjoint_of_pool():
    left, right, small = random(9, 4), random(9, 3, seed=1), random(3, 4, 3, seed=2)
    inner = (pool(left, right, PTR) * small).sum()
    torch.testing.assert_close(inner, (left * spread(small, right, PTR)).sum())


def test_gradients_equal_finite_differences():
    left, right, small = random(9, 4), random(9, 3, seed=1), random(3, 4, 3, seed=2)
    e, w = edges(9, 30), random(30)
    for tensor in (left, right, small):
        tensor.requires_grad_()
    assert gradcheck(lambda a, b: pool(a, b, PTR), (left, right))
    assert gradcheck(lambda a, b: spread(a, b, PTR), (small, right))
    assert gradcheck(lambda a: propagate(a, e, w), (left,))


def test_vertices_outside_every_graph_stay_out():
    left, right, small = random(12, 4), random(12, 3, seed=1), random(3, 4, 3, seed=2)
    torch.testing.assert_close(pool(left, right, PTR), pool(left[:9], right[:9], PTR))
    out = spread(small, right, PTR)
    assert bool((out[9:] == 0).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(dtype):
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    edges, ptr = torch.tensor([[0, 1, 4], [1, 2, 0]]), torch.tensor([0, 2, 5])
    for half, single in (
        (propagate(x, edges), propagate(x.float(), edges)),
        (pool(x, x, ptr), pool(x.float(), x.float(), ptr)),
        (
            spread(torch.ones(2, 4, 3).to(dtype), x, ptr),
            spread(torch.ones(2, 4, 3), x.float(), ptr),
        ),
    ):
        assert half.dtype == dtype
        assert torch.equal(half, single.to(dtype))


def test_edges_and_offsets_outside_the_vertices_are_refused():
    x = torch.rand(5, 3)
    with pytest.raises(ValueError, match="edge_index must name vertices from 0 to 4; got 0 to 50"):
        propagate(x, torch.tensor([[0], [50]]))
    for ptr in ([0, 6], [-1, 3]):
        with pytest.raises(ValueError, match="ptr must rise from 0 to at most 5"):
            pool(x, x, torch.tensor(ptr))


@pytest.mark.parametrize("shape", [(5, 2, 3), (1, 2, 3), (2, 2, 1), (2, 3)])
def test_matrices_that_do_not_fit_graphs_and_vectors_are_refused(shape, without_shape_checks):
    with pytest.raises(ValueError, match="a matrix with 3 columns for each of 2 graphs; got"):
        spread(torch.ones(shape), torch.ones(4, 3), torch.tensor([0, 2, 4]))


@pytest.mark.parametrize("v", [0, 1])
def test_empty_graphs_give_empty_results(v):
    ptr = torch.tensor([0, v])
    assert pool(random(v, 4), random(v, 3), ptr).shape == (1, 4, 3)
    assert spread(random(1, 4, 3), random(v, 3), ptr).shape == (v, 4)
    none = torch.empty(2, 0, dtype=torch.long)
    assert bool((propagate(random(v, 4), none) == 0).all())


def of_two_models() -> tuple[tuple, tuple, tuple, tuple]:
    """Arguments of each operator, with gaps between graphs and edges that are not symmetric."""
    left, right, small = random(2, 6, 4), random(2, 6, 3, seed=1), random(2, 2, 4, 3, seed=2)
    ptr = torch.tensor([[0, 2, 5], [1, 1, 6]])
    e = torch.stack([edges(6, 15, seed) for seed in range(2)])
    e = e.gather(2, e[:, :1].argsort(dim=2, stable=True).expand_as(e))
    offsets = ragged.row_offsets_op(e, 6, False)
    for tensor in (left, right, small):
        tensor.requires_grad_()
    return (
        (left, right, ptr),
        (small, right, ptr),
        (e, 6, False),
        (left, offsets, e[:, 1], random(2, 15), False),
        (left, *LISTS),
    )


# Of two models: the rows of five places, with a place without rows and items of no place; and the
# places of six rows.
LISTS = (
    torch.tensor([[0, 2, 2, 3, 6, 7], [0, 0, 1, 4, 5, 5]]),
    torch.tensor([[5, 0, 0, 1, 2, 5, 3, 0], [4, 1, 1, 0, 5, 0, 0, 0]]),
    torch.tensor([[0, 2, 3, 4, 5, 5, 7], [0, 1, 3, 3, 3, 4, 5]]),
    torch.tensor([[0, 2, 3, 3, 4, 0, 3, 0], [2, 2, 2, 1, 3, 0, 0, 0]]),
)

OPERATORS = ["pool", "spread", "row_offsets", "propagate", "transfer"]


def test_offsets_of_edges_that_are_not_sorted_stay_inside():
    """Edges that a caller wrongly promised to be canonical write nowhere else."""
    edges = torch.tensor([[[7, -3, 1, 9], [0, 1, 0, 2]]])
    assert ragged.row_offsets_op(edges, 3, True).tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_follow_torchs_rules(name):
    torch.library.opcheck(getattr(ragged, f"{name}_op"), of_two_models()[OPERATORS.index(name)])


@pytest.mark.parametrize("name", OPERATORS)
def test_reference_implementations_equal_the_kernels(name):
    """They run on devices without kernels of their own."""
    operator, reference = getattr(ragged, f"{name}_op"), getattr(ragged, f"_{name}_reference")
    arguments = of_two_models()[OPERATORS.index(name)]
    torch.testing.assert_close(reference(*arguments), operator(*arguments))
    if name == "propagate":
        unweighted = (*arguments[:3], None, False)
        torch.testing.assert_close(reference(*unweighted), operator(*unweighted))


def test_transfer_sums_the_rows_that_a_place_lists():
    x = random(2, 6, 3)
    found = ragged.transfer_op(x, *LISTS)
    assert torch.equal(found[0, 0], x[0, 5] + x[0, 0])
    assert torch.equal(found[0, 1], torch.zeros(3, dtype=x.dtype))
    torch.testing.assert_close(found[1, 2], 2 * x[1, 1] + x[1, 0])
    back = ragged.transfer_op(random(2, 5, 3, seed=1), *LISTS[2:], *LISTS[:2])
    torch.testing.assert_close((back * x).sum(), (found * random(2, 5, 3, seed=1)).sum())


def test_stacked_models_are_one_call_with_the_same_numbers():
    left, right = random(3, 9, 4), random(3, 9, 3, seed=1)
    ptr = torch.tensor([[0, 4, 4, 9], [0, 3, 5, 7], [1, 2, 6, 9]])
    e = torch.stack([edges(9, 20, seed) for seed in range(3)])

    def both(left, right, ptr, e):
        return pool(left, propagate(right, e), ptr)

    stacked = torch.vmap(both)(left, right, ptr, e)
    alone = [both(*parts) for parts in zip(left, right, ptr, e, strict=True)]
    torch.testing.assert_close(stacked, torch.stack(alone))


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_stacked_models_are_their_own(weighted):
    """Edges differ between models; weights are shared by all."""
    x, grad, ptr = random(3, 9, 4), random(3, 9, 4, seed=1), torch.tensor([0, 4, 4, 9])
    e = torch.stack([edges(9, 20, seed) for seed in range(3)])
    w = random(20, seed=3) if weighted else None

    def aligned(x, e):
        return spread(pool(x, propagate(x, e, w), ptr), x, ptr)

    x.requires_grad_()
    (gradient,) = torch.autograd.grad(torch.vmap(aligned)(x, e), x, grad)
    alone = [torch.autograd.grad(aligned(x[k], e[k]), x, grad[k])[0][k] for k in range(3)]
    torch.testing.assert_close(gradient, torch.stack(alone))


@pytest.mark.parametrize("models", [0, 3])
def test_models_without_vertices_and_edges_are_stacked(models):
    none, ptr = torch.empty(models, 2, 0).long(), torch.zeros(models, 2).long()
    out = torch.vmap(lambda x, e, p: pool(x, propagate(x, e), p))(random(models, 0, 4), none, ptr)
    assert out.shape == (models, 1, 4, 4)
    assert bool((out == 0).all())


def test_stacked_models_take_no_operations_besides_the_products():
    """On a GPU each is a launch, and launches dominate the time of many small networks."""
    x, ptr = random(3, 9, 4).requires_grad_(), torch.tensor([[0, 4, 9]] * 3)
    e = torch.stack([torch.arange(9), torch.arange(9)]).expand(3, 2, 9)
    names = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if not func.is_view:
                names.append(func.name())
            return func(*args, **(kwargs or {}))

    def aligned(x, e, ptr):
        return pool(x, propagate(x, e, canonical=True), ptr)

    with Recorder():
        out = torch.vmap(aligned)(x, e, ptr)
        out.backward(torch.ones_like(out))
    products = ["row_offsets", "propagate", "pool", "spread", "spread", "propagate"]
    names = [name for name in names if name != "aten::promote_types"]
    assert names == [*(f"softperm::{p}" for p in products[:3]), "aten::ones_like",
                    *(f"softperm::{p}" for p in products[3:]), "aten::add.Tensor"]  # fmt: skip


def test_vertices_outside_every_graph_do_not_count_for_the_maximum():
    x, ptr = torch.tensor([[9.0], [1.0], [3.0], [2.0], [9.0]]), torch.tensor([1, 2, 2, 4])
    assert owners(ptr, 5).tolist() == [3, 0, 2, 2, 3]
    assert graph_maximum(x, ptr).tolist() == [[1.0], [0.0], [3.0]]
