"""Soft permutations: any comparison function, dustbins, normalisers, and the mixture of two."""

import math
from functools import partial

import pytest
import torch
from samples import collect, double, random_graph
from torch import nn
from torch.testing import assert_close

from softperm.data.collection import prepare
from softperm.nn import permutation as perm
from softperm.nn.encoders import LinearEncoder
from softperm.ops.transport import sinkhorn, softmax

SIZES = (5, 1, 9, 4)
BATCH = double(collect([random_graph(n, seed=n) for n in SIZES])).batch(torch.arange(4))
P, HIDDEN = 4, 6


def permutation(seed: int = 0, **choices) -> perm.SoftPermutation:
    torch.manual_seed(seed)
    return perm.SoftPermutation(LinearEncoder(2, HIDDEN), P, HIDDEN, **choices).double()


def scores(made: perm.SoftPermutation, compare=perm.relu_inner_product) -> torch.Tensor:
    """Scores of the real vertices, and those of the padding vertex last."""
    x = nn.functional.pad(BATCH.structure, (0, 0, 0, 1))
    return compare(made.encoder(x, BATCH.edge_index, BATCH.ptr), made.latent)


def distance(q, latent):
    """Another comparison: the negative squared distance."""
    return -torch.cdist(q, latent).square()


def cosine(q, latent):
    return nn.functional.normalize(q, dim=1) @ nn.functional.normalize(latent, dim=1).mT


def test_the_default_comparison_is_the_papers():
    q, latent = torch.randn(3, 2), torch.randn(4, 2)
    expected = torch.tensor([[max(0.0, float(a @ b)) for b in latent] for a in q])
    assert_close(perm.relu_inner_product(q, latent), expected)


@pytest.mark.parametrize("compare", [distance, cosine, perm.relu_inner_product])
def test_any_comparison_function_makes_the_scores(compare):
    made = permutation(compare=compare)
    d = made(BATCH)
    assert_close(d, sinkhorn(scores(made, compare)[:-1], BATCH.ptr))
    assert_close(d.sum(1), torch.ones(len(d), dtype=d.dtype))
    d.square().sum().backward()
    assert bool((made.latent.grad != 0).any())


def cosines(**choices) -> perm.CosineComparison:
    return perm.CosineComparison(**choices).double()


def test_the_cosine_comparison_is_its_definition():
    q, latent = torch.randn(5, 3).double(), torch.randn(4, 3).double()
    expected = torch.cosine_similarity(q[:, None], latent[None], dim=2).clamp(min=0) / 0.2
    assert_close(cosines(temperature=0.2)(q, latent), expected, rtol=1e-7, atol=1e-7)


def test_the_scale_of_vectors_does_not_change_a_cosine():
    q, latent = torch.randn(5, 3).double(), torch.randn(4, 3).double()
    found = cosines()
    assert_close(found(1000 * q, 0.1 * latent), found(q, latent), rtol=1e-5, atol=1e-5)


def test_a_zero_vector_has_zero_scores_and_finite_gradients():
    q = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    found = cosines()(q, torch.randn(4, 3).double())
    assert_close(found, torch.zeros(2, 4, dtype=torch.float64))
    found.sum().backward()
    assert bool(q.grad.isfinite().all())


def test_the_temperature_is_learnt_or_constant():
    learnt, constant = cosines(temperature=0.3), cosines(temperature=0.3, learnt=False)
    q, latent = torch.rand(5, 3).double(), torch.rand(4, 3).double()
    assert_close(learnt(q, latent), constant(q, latent))
    assert not list(constant.parameters())
    learnt(q, latent).sum().backward()
    assert learnt.log_change.grad < 0  # a smaller temperature has larger scores
    learnt.log_change.data.fill_(-1.0)
    assert learnt.temperature.item() == pytest.approx(0.3 / math.e)


def test_a_lower_temperature_makes_sharper_permutations():
    entropies = []
    for temperature in (1.0, 0.3, 0.1, 0.03):
        torch.manual_seed(0)
        choices = {"features": perm.attributes, "compare": cosines(temperature=temperature)}
        d = perm.SoftPermutation(LinearEncoder(3, HIDDEN), P, HIDDEN, **choices).double()(BATCH)
        entropies.append(torch.special.entr(d).sum(1).mean().item())
    assert entropies == sorted(entropies, reverse=True)
    assert entropies[-1] < 0.5 * entropies[0]


def test_the_bound_is_the_range_of_the_initial_latent_vertices():
    for bound in (0.5, 1.0, 20.0):
        largest = permutation(bound=bound).latent.abs().max()
        assert 0.7 * bound < largest < bound
    assert permutation().latent.abs().max() < HIDDEN**-0.5


def test_a_shared_dustbin_is_one_score_of_both_permutations():
    torch.manual_seed(0)
    encoder = LinearEncoder(3, HIDDEN)
    parts = permutation(), perm.SoftPermutation(encoder, P, HIDDEN, features=perm.attributes)
    mixed = perm.MixedPermutation(*parts, share=0.6, dustbin=True).double()
    names = [name for name, _ in mixed.named_parameters() if "dustbin" in name]
    assert names == ["dustbin"]
    assert_close(mixed.dustbin, torch.ones_like(mixed.dustbin))
    share = torch.sigmoid(mixed.alpha)
    assert share.item() == pytest.approx(0.6)
    one, other = (part(BATCH, mixed.dustbin) for part in (mixed.adjacency, mixed.attributes))
    assert_close(mixed(BATCH), share * one + (1 - share) * other)
    assert bool((mixed(BATCH).sum(1) < 1).all())


def test_permutations_side_by_side_are_those_of_each():
    parts = [permutation(seed) for seed in (0, 1)]
    found = perm.SideBySide(parts)(BATCH)
    assert_close(found, torch.stack([part(BATCH) for part in parts]))
    assert not torch.allclose(found[0], found[1])


def test_comparisons_differ():
    plans = [permutation(compare=f)(BATCH) for f in (distance, cosine, perm.relu_inner_product)]
    assert not torch.allclose(plans[0], plans[1])
    assert not torch.allclose(plans[0], plans[2])


def test_capacity_pads_each_graph_by_what_it_lacks():
    made = permutation(capacity=7)
    s = scores(made)
    mass = torch.tensor([2.0, 6.0, 0.0, 3.0], dtype=torch.float64)
    expected = sinkhorn(s[:-1], BATCH.ptr, padding=s[-1], padding_mass=mass)
    assert_close(made(BATCH), expected)
    assert not torch.allclose(made(BATCH), permutation()(BATCH))


def test_a_capacity_below_every_size_is_no_padding():
    assert_close(permutation(capacity=1)(BATCH), permutation()(BATCH))


def test_a_dustbin_is_one_learnt_score_that_lets_vertices_stay_unmatched():
    made = permutation(dustbin=True)
    assert made.dustbin.shape == ()
    assert made.dustbin.requires_grad
    d = made(BATCH)
    assert_close(d, sinkhorn(scores(made)[:-1], BATCH.ptr, dustbin=made.dustbin))
    assert bool((d.sum(1) < 1).all())
    d.square().sum().backward()
    assert made.dustbin.grad != 0


def test_the_score_of_the_dustbin_decides_how_much_stays_unmatched():
    made = permutation(dustbin=True, normaliser=partial(sinkhorn, iterations=20_000, tolerance=0.0))
    matched = []
    for score in (-30.0, 0.0, 30.0):
        made.dustbin.data.fill_(score)
        matched.append(made(BATCH).sum().item())
    assert matched[0] > matched[1] > matched[2]
    assert matched[2] < 1e-4
    # all that can be matched is: min(N, P) vertices of each graph
    assert matched[0] == pytest.approx(sum(min(n, P) for n in SIZES), rel=1e-3)


@pytest.mark.parametrize("dustbin", [False, True])
@pytest.mark.parametrize("capacity", [None, 12])
def test_the_softmax_normaliser_lets_each_vertex_choose_by_itself(capacity, dustbin):
    made = permutation(normaliser=softmax, capacity=capacity, dustbin=dustbin)
    s = scores(made)[:-1]
    if dustbin:
        choices = torch.cat([s, made.dustbin.expand(len(s), 1)], dim=1)
        assert_close(made(BATCH), choices.softmax(dim=1)[:, :-1])
    else:
        assert_close(made(BATCH), s.softmax(dim=1))
        assert_close(made(BATCH), softmax(s, BATCH.ptr))


def test_iterations_and_tolerance_reach_the_transport():
    one = permutation(normaliser=partial(sinkhorn, iterations=1, tolerance=0.0))
    assert_close(one(BATCH), sinkhorn(scores(one)[:-1], BATCH.ptr, iterations=1, tolerance=0.0))
    many = permutation(normaliser=partial(sinkhorn, iterations=500, tolerance=0.0))
    columns = torch.stack([d.sum(0) for d in many(BATCH).split(list(SIZES))])
    share = torch.tensor(SIZES, dtype=torch.float64)[:, None] / P
    assert_close(columns, share.expand(4, P), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(one(BATCH), many(BATCH), atol=1e-9)


def test_features_say_what_the_encoder_reads():
    assert_close(perm.structure(BATCH), BATCH.structure)
    assert_close(perm.attributes(BATCH), BATCH.x)
    both = perm.structure_and_attributes(BATCH)
    assert_close(both, torch.cat([BATCH.structure, BATCH.x], dim=1))


def test_the_mixture_is_a_weighted_mean_of_two_permutations():
    adjacency = permutation(0)
    torch.manual_seed(1)
    encoder = LinearEncoder(3, HIDDEN)
    attributes = perm.SoftPermutation(encoder, P, HIDDEN, features=perm.attributes).double()
    mixed = perm.MixedPermutation(adjacency, attributes).double()
    one, other = adjacency(BATCH), attributes(BATCH)
    assert_close(mixed(BATCH), (one + other) / 2)  # σ(0) = 1/2 at the beginning
    for alpha in (-2.0, 0.5, 40.0):
        mixed.alpha.data.fill_(alpha)
        share = torch.sigmoid(torch.tensor(alpha, dtype=torch.float64))
        assert_close(mixed(BATCH), share * one + (1 - share) * other)
    mixed.alpha.data.fill_(0.3)
    mixed(BATCH).square().sum().backward()
    assert mixed.alpha.grad != 0


def test_half_precision_scores_are_transported_in_single_precision():
    made = permutation(compare=lambda q, latent: perm.relu_inner_product(q, latent).bfloat16())
    d = made(BATCH)
    assert d.dtype == torch.float32
    assert_close(d.sum(1), torch.ones(len(d)))


@pytest.mark.parametrize("dustbin", [False, True])
@pytest.mark.parametrize("capacity", [None, 12])
@pytest.mark.parametrize("iterations", [1, 2, 100])
def test_merged_vertices_have_the_plan_of_single_ones_after_any_number_of_iterations(
    iterations, capacity, dustbin, monkeypatch
):
    """Also before the iteration has converged, where the plan depends on its start."""
    normaliser = partial(sinkhorn, iterations=iterations, tolerance=0.0)
    compare = perm.CosineComparison(temperature=0.02).double()  # converges slowly
    made = permutation(normaliser=normaliser, compare=compare, capacity=capacity, dustbin=dustbin)
    batch = BATCH.clone()
    batch.structure = torch.tensor([[1.0, 0.0], [2.0, 1.0], [0.0, 1.0]]).to(BATCH.structure)
    batch.structure = batch.structure[torch.arange(sum(SIZES)) % 3 * (torch.arange(19) % 2)]
    weight = torch.randn(19, made.latent.shape[0], generator=torch.Generator().manual_seed(0))

    def differentiated() -> tuple[torch.Tensor, ...]:
        plan = made(batch)
        return plan.detach(), *torch.autograd.grad((plan * weight).sum(), list(made.parameters()))

    ours = differentiated()
    monkeypatch.setattr(perm, "equal_rows", lambda x, ptr: pytest.fail("vertices were merged"))
    monkeypatch.setattr(perm.SoftPermutation, "merges", False)
    for merged, single in zip(ours, differentiated(), strict=True):
        assert_close(merged, single, rtol=1e-9, atol=1e-10)


def test_vertices_are_merged_only_where_nothing_depends_on_their_number():
    assert permutation().merges
    assert not permutation(compare=lambda q, latent: perm.relu_inner_product(q, latent)).merges
    assert not permutation(normaliser=partial(sinkhorn, row_mass=torch.ones(19))).merges
    normalised = LinearEncoder(2, HIDDEN, scale=torch.nn.BatchNorm1d(2))
    assert not perm.SoftPermutation(normalised, 3, HIDDEN).merges


def test_a_field_of_the_users_own_is_no_list_of_equal_vertices():
    batch = BATCH.clone()
    batch.canonical, batch.equal_vertices = False, torch.ones(3)
    assert prepare(batch).get("equal_vertices") is None


def test_vertices_whose_gradient_is_wanted_are_not_merged():
    """Each vertex has its own gradient, though equal ones have equal rows."""
    batch = BATCH.clone()
    batch.structure = torch.zeros_like(BATCH.structure)
    batch.structure[: SIZES[0] - 1] = 1
    plan = permutation()(batch)
    batch.structure.requires_grad_()
    assert_close(permutation()(batch).detach(), plan.detach())
    (gradient,) = torch.autograd.grad(permutation()(batch)[0, 0], batch.structure)
    assert bool((gradient[: SIZES[0]].abs().sum(1) > 0).all())


def test_there_must_be_a_latent_vertex():
    with pytest.raises(ValueError, match="at least 1 latent vertex; got 0"):
        perm.SoftPermutation(LinearEncoder(2, HIDDEN), 0, HIDDEN)
