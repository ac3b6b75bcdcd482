"""What long trainings need: accumulation, decay, means, time limits, precision, exact resume."""

import math
import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from samples import collect, random_graph, same_weights
from torch import nn
from torch.testing import assert_close

from softperm.nn.model import ModelConfig, build
from softperm.ops.transport import sinkhorn
from softperm.settings import TrainingConfig
from softperm.training import loop
from softperm.training.checkpoints import read_checkpoint
from softperm.training.data import Examples
from softperm.training.devices import connect
from softperm.training.loop import OneModel, TrainingInterrupted, fit
from softperm.training.tasks import MultiLabel

pytestmark = pytest.mark.usefixtures("shapes_unchecked")  # long trainings

COLLECTION = collect([random_graph(n, seed=n) for n in (3, 9, 5, 7, 4, 12, 6, 8, 2, 10, 11, 1)])
ANSWERS = (torch.arange(24) % 3 % 2).view(12, 2).float()
Y = torch.where(torch.arange(24).view(12, 2) % 5 == 1, torch.nan, ANSWERS)
TRAIN = Examples(COLLECTION, Y, torch.arange(9))
HELD = Examples(COLLECTION, Y, torch.arange(9, 12))
SETTINGS = TrainingConfig(epochs=4, batch_size=4, learning_rate=1e-2)
TASK = MultiLabel(2)


def network(encoder: str = "linear") -> nn.Module:
    config = ModelConfig(2, latent_vertices=4, hidden=6, layers=2, encoder=encoder, dustbin=True)
    return build(config, seed=0)


def trained(settings: TrainingConfig = SETTINGS, **more) -> tuple:
    model = more.pop("model", None) or network()
    result = fit(model, TASK, TRAIN, settings, validation=HELD, **more)
    return model, result


def close(one: nn.Module, other: nn.Module, tolerance: float) -> None:
    for name, value in one.state_dict().items():
        assert_close(value, other.state_dict()[name], rtol=tolerance, atol=tolerance)


def save_always(monkeypatch) -> None:
    """Writes a checkpoint after every mini-batch."""
    monkeypatch.setattr(loop, "SAVE_EVERY_SECONDS", -1.0)
    monkeypatch.setattr(loop, "SAVING_SHARE", math.inf)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_accumulated_gradients_are_those_of_the_whole_mini_batch(parts):
    """Also where a mini-batch has fewer graphs than parts, and answers are missing."""
    whole, _ = trained(model=network().double())
    split, _ = trained(replace(SETTINGS, accumulate=parts), model=network().double())
    close(whole, split, 1e-9)


def test_a_clipped_gradient_is_no_longer_than_asked(monkeypatch):
    norms = []
    step = torch.optim.Adam.step

    def noting(self, *args, **kwargs):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(torch.cat([g.flatten() for g in grads]).norm().item())
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", noting)
    trained()
    free, norms[:] = list(norms), []
    trained(replace(SETTINGS, clip=0.05))
    assert max(free) > 0.06
    assert max(norms) == pytest.approx(0.05, rel=1e-3)


class Scripted(MultiLabel):
    """A task whose validation scores are given beforehand."""

    def score(self, outputs, y):
        return SCORES.pop(0)


SCORES: list[float] = []


def rates_of(monkeypatch) -> list[float]:
    """Notes the learning rate of every epoch's end."""
    rates, end = [], OneModel._end_epoch

    def noting(self):
        rates.append(self.adam.param_groups[0]["lr"])
        end(self)

    monkeypatch.setattr(OneModel, "_end_epoch", noting)
    return rates


def test_the_learning_rate_decays_when_the_criterion_has_not_improved_for_a_while(monkeypatch):
    SCORES[:] = [0.5, 0.6, 0.6, 0.4, 0.5, 0.7, 0.7, 0.7]
    rates = rates_of(monkeypatch)
    settings = TrainingConfig(
        epochs=8, batch_size=4, learning_rate=0.1, criterion="score", decay=0.5, decay_patience=1
    )
    fit(network(), Scripted(2), TRAIN, settings, validation=HELD)
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05])


@pytest.mark.parametrize(("floor", "last"), [(0.03, 0.03), (0.2, 0.1)])
def test_the_learning_rate_decays_to_a_floor_and_never_rises(monkeypatch, floor, last):
    SCORES[:] = [0.5] * 8
    rates = rates_of(monkeypatch)
    settings = TrainingConfig(
        epochs=8,
        batch_size=4,
        learning_rate=0.1,
        criterion="score",
        decay=0.5,
        decay_patience=1,
        decay_floor=floor,
    )
    fit(network(), Scripted(2), TRAIN, settings, validation=HELD)
    assert rates == pytest.approx([0.1] * 3 + [max(0.05, last)] * 2 + [last] * 3)


def test_the_cosine_schedule_is_torchs(monkeypatch):
    rates = rates_of(monkeypatch)
    settings = replace(SETTINGS, epochs=6, learning_rate=0.1, schedule="cosine")
    fit(network(), TASK, TRAIN, settings)
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 6, eta_min=0.02 * 0.1)
    expected = []
    for _ in range(6):
        expected.append(schedule.get_last_lr()[0])
        optimiser.step()
        schedule.step()
    assert rates == pytest.approx(expected)


def test_decoupled_decay_without_gradient_shrinks_the_weights_alone():
    """With equal gradients a step of AdamW is a step of Adam from smaller weights."""
    settings = replace(SETTINGS, epochs=1, batch_size=9, learning_rate=0.1)
    free, _ = trained(settings)
    decayed, _ = trained(replace(settings, weight_decay=0.5, decoupled_decay=True))
    start = dict(network().named_parameters())
    for (name, a), b in zip(free.named_parameters(), decayed.parameters(), strict=True):
        assert_close(b, a - 0.1 * 0.5 * start[name], rtol=1e-5, atol=1e-6)


def test_the_running_mean_is_that_of_the_parameters_after_each_step(monkeypatch):
    seen, step = [], OneModel._train_step

    def noting(self, part, mini_batches):
        shown = step(self, part, mini_batches)
        seen.append({k: v.clone() for k, v in self.model.state_dict().items()})
        return shown

    monkeypatch.setattr(OneModel, "_train_step", noting)
    settings = TrainingConfig(epochs=1, batch_size=4, learning_rate=1e-2, ema=0.8)
    mean = network().state_dict()
    model = network()
    fit(model, TASK, TRAIN, settings)
    for step, state in enumerate(seen, start=1):
        past = min(0.8, (1 + step) / (10 + step))
        mean = {k: past * mean[k] + (1 - past) * v for k, v in state.items()}
    for name, value in model.state_dict().items():
        assert_close(value, mean[name])


def test_the_running_mean_does_not_touch_the_training_itself():
    _, kept = trained(replace(SETTINGS, ema=0.9, epochs=3))
    _, result = trained(replace(SETTINGS, epochs=3))
    assert [e.train_loss for e in kept.curve] == [e.train_loss for e in result.curve]
    assert [e.validation_loss for e in kept.curve] != [e.validation_loss for e in result.curve]


EVERYTHING = replace(SETTINGS, accumulate=2, clip=0.5, decay=0.5, decay_patience=1, ema=0.7)


class Noisy(nn.Module):
    """A network that draws from torch's random state while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network("gin")

    def forward(self, batch):
        return nn.functional.dropout(self.inner(batch), 0.5, self.training)


@pytest.mark.parametrize("batches", [2, 3, 7])
def test_resuming_restores_decay_mean_and_random_state(batches, tmp_path, monkeypatch):
    torch.manual_seed(5)
    whole, one = trained(EVERYTHING, model=Noisy())
    step, done = OneModel._train_step, []

    def pressing(self, part, mini_batches):
        done.append(None)
        if len(done) == batches:
            os.kill(os.getpid(), signal.SIGTERM)  # as a scheduler ends a process
        return step(self, part, mini_batches)

    monkeypatch.setattr(OneModel, "_train_step", pressing)
    torch.manual_seed(5)
    with pytest.raises(TrainingInterrupted):
        trained(EVERYTHING, model=Noisy(), checkpoint=tmp_path / "c")
    monkeypatch.undo()
    torch.manual_seed(6)
    model, two = trained(EVERYTHING, model=Noisy(), checkpoint=tmp_path / "c")
    same_weights(model, whole)
    assert [e.train_loss for e in two.curve] == [e.train_loss for e in one.curve]


def test_a_crash_inside_a_long_epoch_loses_only_what_came_after_the_last_save(
    tmp_path, monkeypatch
):
    whole, _ = trained()
    save_always(monkeypatch)
    step, done = OneModel._train_step, []

    def crashing(self, part, mini_batches):
        done.append(None)
        if len(done) == 6:
            raise SystemError
        return step(self, part, mini_batches)

    monkeypatch.setattr(OneModel, "_train_step", crashing)
    with pytest.raises(SystemError):
        trained(checkpoint=tmp_path / "c")
    kept = read_checkpoint(tmp_path / "c", "")
    assert (kept["epoch"], kept["step"]) == (1, 2)
    monkeypatch.undo()
    model, _ = trained(checkpoint=tmp_path / "c")
    same_weights(model, whole)


def test_time_that_is_up_stops_training_which_goes_on_later(tmp_path, monkeypatch):
    whole, _ = trained()
    now = time.monotonic
    steps: list[None] = []
    step = OneModel._train_step

    def ticking(self, part, mini_batches):
        steps.append(None)
        return step(self, part, mini_batches)

    monkeypatch.setattr(OneModel, "_train_step", ticking)
    monkeypatch.setattr("softperm.training.loop.time.monotonic", lambda: now() + 100 * len(steps))
    settings = replace(SETTINGS, max_time=450.0)
    _, result = trained(settings, checkpoint=tmp_path / "c")
    assert result.interrupted
    assert len(steps) == 5
    _, result = trained(settings, checkpoint=tmp_path / "c")
    assert result.interrupted
    assert len(steps) == 10
    model, result = trained(settings, checkpoint=tmp_path / "c")
    assert not result.interrupted
    same_weights(model, whole)


@pytest.mark.parametrize("at", [1, 5])
def test_a_loss_that_is_not_a_number_names_the_step_and_keeps_the_checkpoint(
    at, tmp_path, monkeypatch
):
    save_always(monkeypatch)
    step, done = OneModel._train_step, []

    def poisoned(self, part, mini_batches):
        done.append(None)
        return step(self, part, mini_batches) * (math.nan if len(done) == at else 1)

    monkeypatch.setattr(OneModel, "_train_step", poisoned)
    place = f"epoch {(at - 1) // 3 + 1}, step {(at - 1) % 3 + 1}"
    with pytest.raises(FloatingPointError, match=f"loss became nan in {place}: lower") as caught:
        trained(checkpoint=tmp_path / "c")
    assert "\n" not in str(caught.value)
    kept = read_checkpoint(tmp_path / "c", "")
    assert (kept is None) == (at == 1)
    if kept is not None:
        assert all(bool(v.isfinite().all()) for v in kept["model"].values())


@pytest.mark.parametrize(
    "problem",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_running_out_of_memory_says_what_to_lower(problem, monkeypatch):
    def full(self, part, mini_batches):
        raise problem

    monkeypatch.setattr(OneModel, "_train_step", full)
    with pytest.raises(
        MemoryError, match="out of memory in epoch 1, step 1: lower batch_size"
    ) as e:
        trained()
    assert "(now 4) or raise accumulate (now 1)" in str(e.value)


def test_running_out_of_memory_names_the_setting_to_blame(monkeypatch):
    def full(self, part, mini_batches):
        raise MemoryError

    monkeypatch.setattr(OneModel, "_train_step", full)
    model = network()
    model.config = replace(model.config, iterations=100_000)
    with pytest.raises(MemoryError, match=r"lower iterations \(now 100000, 100 by default\) or"):
        trained(model=model)


def test_another_runtime_error_passes(monkeypatch):
    def wrong(self, part, mini_batches):
        raise RuntimeError("a shape is wrong")

    monkeypatch.setattr(OneModel, "_train_step", wrong)
    with pytest.raises(RuntimeError, match="a shape is wrong"):
        trained()


@pytest.mark.parametrize("encoder", ["linear", "gcn", "gin"])
def test_in_mixed_precision_the_head_has_16_bits_and_the_transport_32(encoder, monkeypatch):
    kinds: dict[str, set] = {"scores": set(), "head": set()}

    def noting(scores, *args, **kwargs):
        kinds["scores"].add(scores.dtype)
        return sinkhorn(scores, *args, **kwargs)

    monkeypatch.setattr("softperm.nn.model.sinkhorn", noting)
    model = network(encoder)
    last = model.head.final[-1]
    last.register_forward_hook(lambda *seen: kinds["head"].add((model.training, seen[2].dtype)))
    fabric = connect("cpu", precision="bf16-mixed")
    settings = replace(SETTINGS, learning_rate=1e-3)
    _, mixed = trained(settings=settings, model=model, device=fabric)
    assert kinds["scores"] == {torch.float32}
    assert kinds["head"] == {(True, torch.bfloat16), (False, torch.float32)}
    assert all(p.dtype == torch.float32 for p in model.parameters())
    _, exact = trained(settings=settings, model=network(encoder))
    for ours, theirs in zip(mixed.curve, exact.curve, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=0.02)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"accumulate": 0}, "accumulate must be a whole number of at least 1; got 0"),
        ({"clip": 0.0}, "clip must be a number above 0, or None; got 0.0"),
        ({"decay": 1.0}, "decay must be a number between 0 and 1, or None; got 1.0"),
        ({"decay_patience": 0}, "decay_patience must be a whole number of at least 1"),
        ({"decay_floor": -1e-5}, "decay_floor must be a number of at least 0; got -1e-05"),
        ({"decay_floor": 1e-5}, "decay_floor needs decay: it is the learning rate"),
        ({"decay_floor": 1e-5, "decay": 0.5, "halve_every": 3}, "not with halve_every"),
        ({"schedule": "linear"}, "schedule must be one of constant, cosine; got 'linear'"),
        ({"schedule": "cosine", "decay": 0.5}, "schedule cosine works alone, not with decay"),
        ({"schedule": "cosine", "halve_every": 5}, "works alone, not with halve_every"),
        ({"label_smoothing": 1.0}, "label_smoothing must be a number of at least 0 and below 1"),
        ({"ema": -0.1}, "ema must be a number between 0 and 1"),
        ({"max_time": -1.0}, "max_time must be a number above 0"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**wrong)


def test_decay_needs_graphs_that_are_held_out():
    with pytest.raises(ValueError, match="decay needs validation graphs, and there are none"):
        fit(network(), TASK, TRAIN, replace(SETTINGS, decay=0.5))
