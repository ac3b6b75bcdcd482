"""The training loop of one network: mini-batches, best epoch, early stop, exact resume."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.collection import Collection
from softperm.training.checkpoint import read_checkpoint, write_checkpoint
from softperm.training.interrupt import interruptible
from softperm.training.tasks import Task, mean_loss


@dataclass(frozen=True)
class FitConfig:
    """How a network is trained.

    Attributes:
        epochs: passes over the training graphs.
        batch_size: graphs in a mini-batch.
        learning_rate: of Adam.
        weight_decay: of Adam.
        criterion: which validation figure decides the best epoch: ``loss`` or ``score``.
        patience: stop after so many epochs without a better one; None for never.
        seed: of the order of mini-batches.
    """

    epochs: int = 300
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    criterion: str = "loss"
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"epochs": 1, "batch_size": 1, "patience": 1, "seed": 0}
        if self.patience is None:
            del least["patience"]
        for name, value in least.items():
            given = getattr(self, name)
            if not isinstance(given, int) or isinstance(given, bool) or given < value:
                raise ValueError(f"{name} must be a whole number of at least {value}; got {given}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be a number above 0; got {self.learning_rate}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be 0 or more; got {self.weight_decay}")
        if self.criterion not in ("loss", "score"):
            raise ValueError(f"criterion must be 'loss' or 'score'; got {self.criterion!r}")


@dataclass(frozen=True)
class Epoch:
    """One row of the training curve; validation figures are NaN without validation graphs."""

    number: int
    train_loss: float
    validation_loss: float
    validation_score: float
    seconds: float


@dataclass(frozen=True)
class FitResult:
    """What a training gave.

    Attributes:
        curve: one row per epoch.
        best_epoch: number of the epoch whose parameters were kept.
        interrupted: whether it was stopped by Ctrl-C.
    """

    curve: tuple[Epoch, ...]
    best_epoch: int
    interrupted: bool


@dataclass(frozen=True)
class Examples:
    """Graphs with their targets.

    Attributes:
        graphs: the whole collection.
        y: targets of all its graphs.
        index: which of them are meant.
    """

    graphs: Collection
    y: Tensor
    index: Int[Tensor, " b"]

    def __len__(self) -> int:
        return len(self.index)


def epoch_order(index: Int[Tensor, " b"], seed: int, epoch: int) -> Int[Tensor, " b"]:
    """The graphs of an epoch in random order: a function of seed and epoch alone."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return index[torch.randperm(len(index), generator=generator)]


@torch.no_grad()
def predict(
    model: nn.Module,
    graphs: Collection,
    index: Int[Tensor, " b"],
    batch_size: int,
    device: torch.device,
) -> Float[Tensor, "b C"]:
    """The network's outputs for the chosen graphs, on the CPU."""
    was_training = model.training
    model.eval()
    parts = [model(graphs.batch(part).to(device)).float().cpu() for part in index.split(batch_size)]
    model.train(was_training)
    return torch.cat(parts)


def fit(
    model: nn.Module,
    task: Task,
    train: Examples,
    config: FitConfig,
    *,
    validation: Examples | None = None,
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    fingerprint: str = "",
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> FitResult:
    """Trains a network in place and leaves it with the parameters of its best epoch.

    The best epoch is that of the best validation figure, or the last without validation graphs.
    Ctrl-C ends training after the current mini-batch; what was trained is kept.

    Args:
        model: the network.
        task: loss and score.
        train: training graphs.
        config: how to train.
        validation: held-out graphs that choose the epoch.
        device: where to train.
        checkpoint: file from which training resumes if it is there, and in which it is kept while
            it runs; resumed training gives the same numbers as uninterrupted training.
        fingerprint: identifies model, data and settings; a checkpoint with another one is refused.
        on_epoch: called with each finished epoch, the resumed ones first.
    """
    _check_held_out(validation, config)
    device = torch.device(device)
    model.to(device)
    optimiser = torch.optim.Adam(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    run = _Run(model, optimiser, task, train, validation, config, device)
    if checkpoint is not None:
        run.restore(read_checkpoint(checkpoint, fingerprint))
    for epoch in run.curve:
        on_epoch(epoch)
    saved_at = time.monotonic()
    with interruptible() as interrupted:
        while not run.finished and not interrupted():
            epoch = run.train_epoch(interrupted)
            if epoch is not None:
                on_epoch(epoch)
            if checkpoint is not None and time.monotonic() - saved_at > SAVE_EVERY_SECONDS:
                write_checkpoint(checkpoint, fingerprint, run.state())
                saved_at = time.monotonic()
        stopped = not run.finished
    if checkpoint is not None:
        write_checkpoint(checkpoint, fingerprint, run.state())
    if run.best_state is not None:
        model.load_state_dict(run.best_state)
    model.eval()
    return FitResult(tuple(run.curve), run.best_epoch, stopped)


SAVE_EVERY_SECONDS = 10.0


def _check_held_out(validation: Examples | None, config: FitConfig) -> None:
    """Raises ValueError where held-out graphs are needed and cannot do their work."""
    if validation is None:
        if config.patience is not None:
            raise ValueError(
                "patience counts epochs by the figures of validation graphs, of which there are "
                "none: hold some out, or set patience to None"
            )
        return
    y = validation.y[validation.index]
    if y.is_floating_point() and bool(y.isnan().all()):
        raise ValueError("no validation graph has a target: hold out more graphs, or others")


class _Run:
    """The state of one training, which a checkpoint can hold."""

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        task: Task,
        train: Examples,
        validation: Examples | None,
        config: FitConfig,
        device: torch.device,
    ) -> None:
        self.model, self.optimiser, self.task = model, optimiser, task
        self.train, self.validation = train, validation
        self.config, self.device = config, device
        self.curve: list[Epoch] = []
        self.step = 0  # mini-batches done of the current epoch
        self.total = 0.0  # sum over them of loss × graphs
        self.spent = 0.0  # seconds spent on them
        self.best_value = math.inf
        self.best_epoch = 0
        self.best_state: dict[str, Tensor] | None = None

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or patience is at its end."""
        done = len(self.curve)
        patience = self.config.patience
        tired = patience is not None and self.validation and done - self.best_epoch >= patience
        return done >= self.config.epochs or bool(tired)

    def train_epoch(self, interrupted: Callable[[], bool]) -> Epoch | None:
        """Trains to the end of the current epoch; None if interrupted before it."""
        started = time.perf_counter()
        number = len(self.curve) + 1
        order = epoch_order(self.train.index, self.config.seed, number)
        parts = order.split(self.config.batch_size)
        self.model.train()
        for part in parts[self.step :]:
            self.total += self._train_step(part) * len(part)
            self.step += 1
            if interrupted() and self.step < len(parts):
                self.spent += time.perf_counter() - started
                return None
        loss, score = self._validate()
        seconds = self.spent + time.perf_counter() - started
        epoch = Epoch(number, self.total / len(order), loss, score, seconds)
        self.curve.append(epoch)
        self.step, self.total, self.spent = 0, 0.0, 0.0
        self._keep_best(epoch)
        return epoch

    def _train_step(self, part: Tensor) -> float:
        batch = self.train.graphs.batch(part).to(self.device)
        y = self.task.encode(self.train.y[part]).to(self.device)
        loss = mean_loss(self.task, self.model(batch), y)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the training loss became {value} in epoch {len(self.curve) + 1}: lower "
                f"learning_rate (now {self.config.learning_rate}) or scale the attributes"
            )
        return value

    def _validate(self) -> tuple[float, float]:
        if not self.validation:
            return math.nan, math.nan
        held = self.validation
        outputs = predict(self.model, held.graphs, held.index, self.config.batch_size, self.device)
        y = held.y[held.index]
        loss = mean_loss(self.task, outputs, self.task.encode(y)).item()
        return loss, self.task.score(outputs, y)

    def _keep_best(self, epoch: Epoch) -> None:
        if not self.validation:
            self.best_epoch = epoch.number
            return
        value = epoch.validation_loss
        if self.config.criterion == "score":
            sign = -1 if self.task.higher_is_better else 1
            value = sign * epoch.validation_score
            if math.isnan(value) and math.isfinite(epoch.validation_loss):
                raise ValueError(
                    f"the validation graphs do not define a {self.task.metric} (too few answers "
                    "of each kind): hold out more, or let criterion be 'loss'"
                )
        value = math.inf if math.isnan(value) else value
        if value < self.best_value or self.best_state is None:
            self.best_value, self.best_epoch = value, epoch.number
            self.best_state = {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def state(self) -> dict:
        """Everything that resuming needs, of plain types and tensors."""
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "curve": [asdict(epoch) for epoch in self.curve],
            "progress": {"step": self.step, "total": self.total, "spent": self.spent},
            "best": {"value": self.best_value, "epoch": self.best_epoch, "state": self.best_state},
        }

    def restore(self, state: dict | None) -> None:
        """Goes back to a state; None leaves the beginning."""
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.curve = [Epoch(**row) for row in state["curve"]]
        self.step, self.total, self.spent = (
            state["progress"][k] for k in ("step", "total", "spent")
        )
        best = state["best"]
        self.best_value, self.best_epoch, self.best_state = (
            best["value"],
            best["epoch"],
            best["state"],
        )
