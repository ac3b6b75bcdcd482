"""Heads: position matters, scale does not, and convolutions are those of the paper."""

import pytest
import torch
from torch.testing import assert_close

from softperm.nn.encoders import Dropout
from softperm.nn.model import ConvHead, MLPHead

B, P, F = 3, 5, 2


def views(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.rand(B, P, P, generator=generator),
        torch.rand(B, P, F, generator=generator),
        torch.rand(B, P, P, 3, generator=generator),
    ]


def mlp(**more) -> MLPHead:
    torch.manual_seed(0)
    return MLPHead([P * P, P * F, P * P * 3], outputs=4, hidden=(6, 7), final=8, **more)


def conv(**more) -> ConvHead:
    torch.manual_seed(0)
    return ConvHead([P, F, P * 3], P, outputs=4, final=8, **more)


@pytest.mark.parametrize("head", [mlp, conv])
def test_a_head_gives_each_graph_its_outputs(head):
    made, given = head(), views()
    outputs = made(given)
    assert outputs.shape == (B, 4)
    assert_close(made([view[1:2] for view in given]), outputs[1:2])


@pytest.mark.parametrize("head", [mlp, conv])
def test_layer_norm_makes_the_scale_of_a_matrix_irrelevant(head):
    made, given = head(), views()
    scaled = [view * 1000 for view in given]
    assert_close(made(scaled), made(given), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("head", [mlp, conv])
def test_without_layer_norm_the_scale_is_seen(head):
    made, given = head(normalise=False), views()
    outputs = made(given)
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in made.modules())
    assert not torch.allclose(made([2 * view for view in given]), outputs, rtol=0.1, atol=0.01)
    assert_close(made([view[1:2] for view in given]), outputs[1:2])


@pytest.mark.parametrize("head", [mlp, conv])
def test_the_order_of_latent_vertices_matters(head):
    made, given = head(), views()
    turned = [view.flip(1) for view in given]
    assert not torch.allclose(made(turned), made(given), atol=1e-4)


@pytest.mark.parametrize("head", [mlp, conv])
def test_the_number_of_matrices_is_fixed(head):
    with pytest.raises(ValueError, match="zip"):
        head()(views()[:2])


def test_the_mlp_head_has_the_papers_layers_by_default():
    made = MLPHead([P * P], outputs=2)
    shapes = [tuple(p.shape) for n, p in made.named_parameters() if p.ndim == 2]
    assert shapes == [(256, 25), (128, 256), (64, 128), (2, 64)]


def test_the_mlp_head_reads_each_matrix_by_its_own_network():
    made, given = mlp(), views()
    vectors = [branch(view.flatten(1)) for branch, view in zip(made.branches, given, strict=True)]
    assert_close(made(given), made.final(torch.cat(vectors, dim=1)))
    assert [vector.shape for vector in vectors] == [(B, 7)] * 3


def test_a_filter_covers_runs_of_consecutive_latent_vertices():
    """Feature maps of length P − h + 1, each entry a run of h latent vertices with all entries."""
    made = ConvHead([P], P, outputs=1, filters=2, height=3)
    view = views()[0]
    weight, bias = made.convolutions[0].weight, made.convolutions[0].bias  # (2, P, 3), (2,)
    image = made.norms[0](view)  # (B, P, P)
    maps = torch.empty(B, 2, P - 2)
    for start in range(P - 2):
        run = image[:, start : start + 3]  # (B, 3, P)
        maps[:, :, start] = torch.einsum("bhc,fch->bf", run, weight) + bias
    expected = made.final(torch.relu(maps).amax(dim=2))
    assert_close(made([view]), expected)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_few_latent_vertices_have_filters_of_their_own_height(p):
    made = ConvHead([p], p, outputs=2)
    assert made.convolutions[0].kernel_size == (min(3, p),)
    assert made([torch.rand(2, p, p)]).shape == (2, 2)


@pytest.mark.parametrize("head", [mlp, conv])
def test_dropout_is_before_every_hidden_layer_and_acts_in_training_alone(head):
    made, plain = head(drop=0.5), head()
    drops = [module for module in made.modules() if isinstance(module, Dropout)]
    assert len(drops) == (7 if head is mlp else 1)
    for mine, theirs in zip(made.parameters(), plain.parameters(), strict=True):
        mine.data = theirs.data
    assert not torch.allclose(made(views()), plain(views()))
    assert_close(made.eval()(views()), plain(views()))


@pytest.mark.parametrize("head", [mlp, conv])
def test_gradients_reach_every_parameter(head):
    made = head()
    made(views()).square().sum().backward()
    assert all(bool((p.grad != 0).any()) for p in made.parameters())
