"""Stackable systems trained side by side get the numbers that each gets alone."""

import pytest
import torch
from samples import collect, random_graph
from torch.testing import assert_close

from baselines.cases import SMALL, network
from softperm.baselines import SYSTEMS, DataShape
from softperm.baselines.layers import Dropout
from softperm.training.fit import Examples, FitConfig, fit
from softperm.training.stack import fit_stack
from softperm.training.tasks import Classification

GRAPHS = collect([random_graph(n, seed=n) for n in (1, 3, 9, 5, 7, 4, 12, 6, 8, 2, 10, 11)])
TRAIN = [torch.tensor([0, 1, 2, 3, 4, 5, 6]), torch.arange(2, 11)]
HELD = [torch.tensor([7, 8, 9]), torch.tensor([0, 11])]
SEEDS = [3, 4]
Y = torch.tensor([0, 1, 2] * 4)
SETTINGS = FitConfig(epochs=4, batch_size=4, learning_rate=1e-2)

CASES = [(name, SMALL[name]) for name, s in SYSTEMS.items() if s.stackable]
CASES += [
    ("gin", {"widths": (8,), "readout": "mean", "dropout": 0.5}),
    ("graphsage", {"hidden": 8, "layers": 2, "aggregation": "add"}),
    ("graphsage", {"hidden": 8, "layers": 2, "aggregation": "max"}),
]


def test_what_the_protocol_trains_is_stackable():
    assert {name for name, _ in CASES} >= {"gin", "graphsage", "gcn", "structure-free"}


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_a_stack_gives_each_system_the_numbers_it_gets_alone(name, settings):
    shape = DataShape.of(GRAPHS, 3)
    alone, stacked = (
        [SYSTEMS[name].build(shape, settings, seed).double() for seed in SEEDS] for _ in range(2)
    )
    tasks = [Classification(3)] * 2
    one_by_one = [
        fit(
            model,
            tasks[m],
            Examples(GRAPHS, Y, TRAIN[m]),
            FitConfig(**{**SETTINGS.__dict__, "seed": SEEDS[m]}),
            validation=Examples(GRAPHS, Y, HELD[m]),
        )
        for m, model in enumerate(alone)
    ]
    together = fit_stack(stacked, tasks, GRAPHS, Y, TRAIN, HELD, SEEDS, SETTINGS)
    for a, b, one, other in zip(alone, stacked, one_by_one, together, strict=True):
        assert one.best_epoch == other.best_epoch
        for left, right in zip(one.curve, other.curve, strict=True):
            assert_close(left.train_loss, right.train_loss, rtol=1e-8, atol=1e-8)
        for key, tensor in a.state_dict().items():
            assert_close(tensor, b.state_dict()[key], rtol=1e-8, atol=1e-8)


def test_dropout_keeps_the_mean_and_drops_the_share_asked_for():
    x, count = torch.ones(2000, 50), torch.tensor(1)
    for rate in (0.1, 0.5):
        layer = Dropout(rate).train()
        first, second = layer(x, count), layer(x, count)
        assert_close((first == 0).float().mean().item(), rate, rtol=0, atol=0.01)
        assert_close(first.mean().item(), 1.0, rtol=0, atol=0.01)
        agree = ((first == 0) == (second == 0)).float().mean().item()
        assert_close(agree, rate**2 + (1 - rate) ** 2, rtol=0, atol=0.01)
        for axis in (0, 1):  # neighbours in rows and columns are independent too
            dropped = (first == 0).float()
            both = (dropped * dropped.roll(1, axis)).mean().item()
            assert_close(both, rate**2, rtol=0, atol=0.01)


def test_dropout_is_a_function_of_its_buffers():
    one = Dropout(0.5).train()
    other = Dropout(0.5).train()
    x = torch.ones(7, 5)
    one(x, torch.tensor(3))
    other.load_state_dict(one.state_dict())
    assert_close(one(x, torch.tensor(3)), other(x, torch.tensor(3)), rtol=0, atol=0)
    assert_close(one.eval()(x, torch.tensor(3)), x, rtol=0, atol=0)
    before = int(one.step)
    one.train()(x, torch.tensor(0))
    assert int(one.step) == before, "an empty batch is no step"


def test_networks_of_one_system_have_the_same_shapes():
    for name, _ in CASES:
        one, other = (network(name, GRAPHS, seed=s).state_dict() for s in (0, 1))
        assert {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in other.items()}
