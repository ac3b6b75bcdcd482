"""Stackable systems trained side by side get the numbers that each gets alone."""

from dataclasses import replace

import pytest
import torch
from lab.baselines.cases import SMALL, network
from samples import collect, random_graph
from torch.testing import assert_close

from softperm.lab.baselines.layers import Dropout
from softperm.lab.evaluation_data import with_positions
from softperm.lab.systems import SYSTEMS, DataShape
from softperm.settings import TrainingConfig
from softperm.training.data import Examples, epoch_order
from softperm.training.loop import fit
from softperm.training.stack import Stack
from softperm.training.tasks import Classification

GRAPHS = collect([random_graph(n, seed=n) for n in (1, 3, 9, 5, 7, 4, 12, 6, 8, 2, 10, 11)])
PLACED = with_positions(GRAPHS, torch.randn(int(GRAPHS.ptr[-1]), 3))
TRAIN = [torch.tensor([0, 1, 2, 3, 4, 5, 6]), torch.arange(2, 11)]
HELD = [torch.tensor([7, 8, 9]), torch.tensor([0, 11])]
SEEDS = [3, 4]
Y = torch.tensor([0, 1, 2] * 4)
SETTINGS = TrainingConfig(epochs=4, batch_size=4, learning_rate=1e-2)

pytestmark = pytest.mark.usefixtures("shapes_unchecked")


CASES = [(name, SMALL[name]) for name, s in SYSTEMS.items() if s.stackable]
CASES += [
    ("gin", {"widths": (8,), "readout": "mean", "dropout": 0.5}),
    ("graphsage", {"hidden": 8, "layers": 2, "aggregation": "add"}),
    ("graphsage", {"hidden": 8, "layers": 2, "aggregation": "max"}),
]


def test_what_the_protocol_trains_is_stackable():
    assert {name for name, _ in CASES} >= {"gin", "graphsage", "gcn", "structure-free"}
    assert {name for name, _ in CASES} >= {"dtnn", "mpnn", "ppgn"}
    assert {name for name, _ in CASES} >= {"dgcnn", "diffpool", "ecc"}
    assert {name for name, _ in CASES} >= {"gcn-edges", "gin-edges", "pna", "dgn", "phc-gnn"}


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_a_stack_gives_each_system_the_numbers_it_gets_alone(name, settings, stack_device):
    graphs = SYSTEMS[name].extended(PLACED if "qm9" in SYSTEMS[name].tables else GRAPHS)
    shape = DataShape.of(graphs, 3)
    alone, stacked = (
        [SYSTEMS[name].build(shape, settings, seed).double() for seed in SEEDS] for _ in range(2)
    )
    tasks = [Classification(3)] * 2
    one_by_one = [
        fit(
            model,
            tasks[m],
            Examples(graphs, Y, TRAIN[m]),
            replace(SETTINGS, seed=SEEDS[m]),
            validation=Examples(graphs, Y, HELD[m]),
        )
        for m, model in enumerate(alone)
    ]
    rest = (tasks, graphs, Y, TRAIN, HELD, SEEDS, SETTINGS)
    together = Stack(stacked, *rest, device=stack_device).fit()
    for a, b, one, other in zip(alone, stacked, one_by_one, together, strict=True):
        assert one.best_epoch == other.best_epoch
        for left, right in zip(one.curve, other.curve, strict=True):
            assert_close(left.train_loss, right.train_loss, rtol=1e-8, atol=1e-8)
        for key, tensor in a.state_dict().items():
            assert_close(tensor, b.state_dict()[key].cpu(), rtol=1e-8, atol=1e-8)


UNLIKE = [
    {"widths": (8, 8), "train_eps": True, "readout": "mean", "dropout": 0.5},
    {"widths": (8, 8), "train_eps": False, "readout": "sum", "dropout": 0.0},
]
RATES = [1e-2, 3e-3]


def gins() -> list:
    shape = DataShape.of(GRAPHS, 3)
    pairs = zip(UNLIKE, SEEDS, strict=True)
    return [SYSTEMS["gin"].build(shape, settings, seed).double() for settings, seed in pairs]


EPOCHS = 20
FALLING = [
    {"halve_every": 2},
    {"decay": 0.3, "decay_patience": 1},
    {"decay": 0.3, "decay_patience": 1, "decay_floor": 2e-3},
]
every_schedule = pytest.mark.parametrize(
    "schedule",
    [FALLING[0], *(pytest.param(other, marks=pytest.mark.slow) for other in FALLING[1:])],
)


@every_schedule
def test_networks_side_by_side_may_differ_in_what_is_alike_and_in_learning_rates_that_fall(
    schedule,
):
    assert {k for k in UNLIKE[0] if UNLIKE[0][k] != UNLIKE[1][k]} == set(SYSTEMS["gin"].shape_free)
    alone, stacked, tasks = gins(), gins(), [Classification(3)] * 2
    settings = TrainingConfig(epochs=EPOCHS, batch_size=4, **schedule)
    for m, model in enumerate(alone):
        fit(
            model,
            tasks[m],
            Examples(GRAPHS, Y, TRAIN[m]),
            replace(settings, learning_rate=RATES[m], seed=SEEDS[m]),
            validation=Examples(GRAPHS, Y, HELD[m]),
        )
    rest = (tasks, GRAPHS, Y, TRAIN, HELD, SEEDS)
    Stack(stacked, *rest, settings, learning_rates=RATES).fit()
    for a, b in zip(alone, stacked, strict=True):
        for key, tensor in a.state_dict().items():
            assert_close(tensor, b.state_dict()[key], rtol=1e-8, atol=1e-8)
    constant = gins()
    plain = TrainingConfig(epochs=EPOCHS, batch_size=4)
    Stack(constant, *rest, plain, learning_rates=RATES).fit()
    pairs = [
        (a.linears[0].weight, b.linears[0].weight) for a, b in zip(constant, stacked, strict=True)
    ]
    assert not all(torch.equal(a, b) for a, b in pairs), "a rate fell before a best epoch"
    assert stacked[0].eps.abs().min() > 0, "the first learns ε"
    assert stacked[1].eps.abs().max() == 0, "the second does not"


def test_a_stack_refuses_what_only_a_training_alone_can_do():
    rest = (gins(), [Classification(3)] * 2, GRAPHS, Y, TRAIN, HELD, SEEDS)
    for name, value in (("clip", 1.0), ("accumulate", 2)):
        with pytest.raises(ValueError, match=f"{name} is not supported when models are trained in"):
            Stack(*rest, TrainingConfig(epochs=1, **{name: value})).fit()
    with pytest.raises(
        ValueError, match="criterion must be one of loss, score, late-score, last; got 'scor'"
    ):
        Stack(*rest, TrainingConfig(epochs=1), criteria=["loss", "scor"]).fit()


def test_halving_is_the_step_schedule_of_torch():
    ours, theirs = (gins()[0].train() for _ in range(2))
    task, train = Classification(3), Examples(GRAPHS, Y, TRAIN[0])
    config = TrainingConfig(epochs=5, batch_size=4, learning_rate=1e-2, halve_every=2)
    fit(ours, task, train, config)
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    steps = torch.optim.lr_scheduler.StepLR(adam, step_size=2, gamma=0.5)
    for epoch in range(1, 6):
        for part in epoch_order(train.index, config.seed, epoch).split(4):
            adam.zero_grad()
            torch.nn.functional.cross_entropy(theirs(GRAPHS.batch(part)), Y[part]).backward()
            adam.step()
        steps.step()
    assert adam.param_groups[0]["lr"] == 2.5e-3
    for key, tensor in theirs.state_dict().items():
        assert_close(ours.state_dict()[key], tensor, rtol=1e-8, atol=1e-8)


@every_schedule
def test_a_resumed_stack_goes_on_with_the_learning_rates_it_had(schedule, tmp_path, monkeypatch):
    whole, broken, again = gins(), gins(), gins()
    settings = TrainingConfig(epochs=EPOCHS, batch_size=4, **schedule)
    rest = ([Classification(3)] * 2, GRAPHS, Y, TRAIN, HELD, SEEDS, settings)
    options = {"learning_rates": RATES}
    expected = Stack(whole, *rest, **options).fit()
    monkeypatch.setattr("softperm.training.loop.SAVE_EVERY_SECONDS", 0.0)
    monkeypatch.setattr("softperm.training.loop.SAVING_SHARE", float("inf"))

    def killed(epoch: int) -> None:
        if epoch == EPOCHS - 4:  # both rates have fallen by then
            raise RuntimeError("killed")

    file = tmp_path / "stack.bin"
    with pytest.raises(RuntimeError, match="killed"):
        Stack(broken, *rest, **options).fit(checkpoint=file, on_epoch=killed)
    found = Stack(again, *rest, **options).fit(checkpoint=file)
    for one, other in zip(expected, found, strict=True):
        losses = [[epoch.train_loss for epoch in result.curve] for result in (one, other)]
        assert losses[0] == losses[1]
    for a, b in zip(whole, again, strict=True):
        for key, tensor in a.state_dict().items():
            assert torch.equal(tensor, b.state_dict()[key]), key


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
