"""Steps in fixed shapes, as CUDA graphs replay them, give what steps of their own size give."""

from dataclasses import replace

import pytest
import torch
from samples import collect, random_graph

from softperm.nn.model import ModelConfig, PiGNN, build
from softperm.settings import TrainingConfig
from softperm.training import cuda_graphs
from softperm.training.data import Examples
from softperm.training.loop import OneModel, fit
from softperm.training.tasks import Classification

pytestmark = pytest.mark.usefixtures("shapes_unchecked")  # long trainings

COLLECTION = collect([random_graph(n, seed=n) for n in (3, 9, 5, 7, 4, 12, 6, 8, 2, 10, 11, 1)])
Y = torch.tensor([0, 1] * 6)
TRAIN = Examples(COLLECTION, Y, torch.arange(9))
HELD = Examples(COLLECTION, Y, torch.arange(9, 12))
# The third mini-batch is short.
SETTINGS = TrainingConfig(epochs=4, batch_size=4, learning_rate=1e-2)


def network(encoder: str) -> PiGNN:
    sizes = {"attribute_size": 3, "edge_attribute_size": 2}
    config = ModelConfig(
        2,
        latent_vertices=4,
        hidden=6,
        layers=2,
        encoder=encoder,
        dustbin=True,
        capacity=12,
        **sizes,
    )
    return build(config, seed=0).double()


def trained(encoder: str, settings: TrainingConfig = SETTINGS):
    model = network(encoder)
    result = fit(model, Classification(2), TRAIN, settings, validation=HELD)
    return model, result


def assert_same(found, wanted):
    for a, b in zip(found[0].state_dict().values(), wanted[0].state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    for a, b in zip(found[1].curve, wanted[1].curve, strict=True):
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-8)
        assert a.validation_loss == pytest.approx(b.validation_loss, rel=1e-8)


@pytest.mark.parametrize(
    ("encoder", "more"),
    [("linear", {}), ("gcn", {}), ("gin", {}), ("gin", {"clip": 0.1, "ema": 0.9})],
)
def test_training_in_fixed_shapes_is_training(encoder, more, monkeypatch):
    settings = replace(SETTINGS, **more)
    wanted = trained(encoder, settings)
    monkeypatch.setattr(OneModel, "_capturable", lambda self: True)
    monkeypatch.setattr(cuda_graphs, "MARGIN", 3.0)
    monkeypatch.setattr(OneModel, "_backward", lambda *_: pytest.fail("a step was not captured"))
    assert_same(trained(encoder, settings), wanted)


def test_a_mini_batch_that_is_too_large_for_the_shape_is_trained_all_the_same(monkeypatch):
    wanted, calls, backward = trained("gin"), [], OneModel._backward
    monkeypatch.setattr(OneModel, "_capturable", lambda self: True)
    monkeypatch.setattr(cuda_graphs, "MARGIN", 0.1)  # little for edges
    monkeypatch.setattr(OneModel, "_backward", lambda *a: calls.append(1) or backward(*a))
    assert_same(trained("gin"), wanted)
    assert calls


def test_networks_put_together_by_hand_are_not_captured():
    model = network("gin")
    assert model.capturable
    assert not PiGNN(model.permutation, model.views, model.head).capturable
