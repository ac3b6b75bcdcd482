"""Dropout: the share it drops, and that only seed, step and place decide which units."""

from dataclasses import replace

import pytest
import torch
from samples import collect, double, random_graph, same_weights
from torch.testing import assert_close

from softperm.nn.encoders import Dropout, count_step, dropout
from softperm.nn.model import ModelConfig, build
from softperm.ops.dropout import drop
from softperm.settings import TrainingConfig
from softperm.training.data import Examples
from softperm.training.loop import fit
from softperm.training.stack import Stack
from softperm.training.tasks import Classification

SHAPE = torch.Size([400, 250])
GRAPHS = collect([random_graph(n, seed=n) for n in (5, 9, 4, 7, 6, 8, 5, 10, 3, 6)])
Y = torch.arange(10) % 2
CONFIG = ModelConfig(
    2, latent_vertices=4, hidden=6, attribute_size=3, compare="cosine", encoded="both",
    encoded_size=6, encoded_rounds=1, attribute_dropout=0.3, dropout=0.5, permutation_heads=2,
)  # fmt: skip
FIT = TrainingConfig(epochs=3, batch_size=4, learning_rate=0.01)


def seeded(p: float, seed: int = 0) -> Dropout:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Dropout(p)


def mask(seed: int, step: int, p: float = 0.5, shape: torch.Size = SHAPE) -> torch.Tensor:
    return drop(torch.ones(shape), p, torch.tensor(seed), torch.tensor(step)) > 0


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_is_dropped_and_the_mean_stays(p):
    x = torch.ones(SHAPE)
    found = seeded(p)(x)
    noise = (p * (1 - p) / x.numel()) ** 0.5
    assert abs(float((found == 0).float().mean()) - p) < 5 * noise
    assert_close(found[found != 0], torch.full_like(found[found != 0], 1 / (1 - p)))
    rows, columns = (found == 0).float().mean(1), (found == 0).float().mean(0)
    assert rows.std() < 1.5 * (p * (1 - p) / SHAPE[1]) ** 0.5
    assert columns.std() < 1.5 * (p * (1 - p) / SHAPE[0]) ** 0.5


def test_masks_of_other_steps_and_seeds_are_independent():
    first = mask(3, 0).float() - 0.5
    for other in (mask(3, 1), mask(4, 0), mask(3, 2**31), mask(3, 0).roll(1, 1)):
        correlation = 4 * (first * (other.float() - 0.5)).mean()
        assert abs(float(correlation)) < 5 / SHAPE.numel() ** 0.5


def test_a_mask_does_not_depend_on_the_rows_behind():
    assert_close(mask(1, 2)[:100], mask(1, 2, shape=torch.Size([100, 250])))


def test_every_training_step_drops_other_units_and_none_outside_training():
    module, x = seeded(0.5), torch.ones(SHAPE)
    one = module(x)
    assert_close(module(x), one, rtol=0, atol=0)
    count_step([module], torch.tensor(0))
    assert_close(module(x), one, rtol=0, atol=0)
    count_step([module], torch.tensor(7))
    assert not torch.equal(module(x), one)
    assert_close(module.eval()(x), x)


def test_a_network_counts_its_training_steps_and_nothing_else():
    model, batch = build(CONFIG, 0), GRAPHS.batch(torch.arange(10))
    steps = [module.step for module in model.modules() if isinstance(module, Dropout)]
    assert len(steps) > 3
    first, second = model(batch), model(batch)
    assert not torch.equal(first, second)
    model.eval()(batch)
    model.transform(batch)
    assert all(int(step) == 2 for step in steps)


def test_the_random_state_of_torch_plays_no_part():
    module, x = seeded(0.5), torch.ones(SHAPE)
    state = torch.random.get_rng_state()
    first = module(x)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(3)
    assert_close(module(x), first, rtol=0, atol=0)


def test_no_dropout_is_no_module_with_state():
    assert not list(dropout(0.0).buffers())
    assert isinstance(dropout(0.1), Dropout)


def test_a_network_drops_the_same_units_in_a_stack_as_alone(stack_device):
    """Cosine, encoded vertices and two permutations at once, trained both ways."""
    train, held = [torch.arange(3), torch.arange(7)], torch.arange(7, 10)
    task, graphs = Classification(2), double(GRAPHS)
    stacked = [build(CONFIG, seed).double() for seed in (0, 1)]
    rest = ([task] * 2, graphs, Y, train, [held] * 2, [5, 6], FIT)
    Stack(stacked, *rest, criteria=["late-score"] * 2, device=stack_device).fit()
    for seed, model in enumerate(stacked):
        alone = build(CONFIG, seed).double()
        settings = replace(FIT, seed=5 + seed, criterion="late-score")
        examples = Examples(graphs, Y, train[seed])
        fit(alone, task, examples, settings, validation=replace(examples, index=held))
        assert int(alone.head.final[0][0].step) > seed
        for name, tensor in alone.state_dict().items():
            assert_close(model.state_dict()[name].cpu(), tensor, rtol=1e-6, atol=1e-8)


def test_the_same_seed_trains_the_same_network():
    examples = Examples(GRAPHS, Y, torch.arange(10))
    one, other = build(CONFIG, 3), build(CONFIG, 3)
    for model in (one, other):
        torch.rand(int(torch.randint(9, ())))  # the shared state differs
        fit(model, Classification(2), examples, FIT)
    same_weights(one, other)
