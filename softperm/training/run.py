"""One training in progress: its steps, its epochs, and the state that a checkpoint holds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import Collection
from softperm.training.average import RunningMean
from softperm.training.devices import Fabric
from softperm.training.feed import Feed, Portion
from softperm.training.parallel import gather_all, gather_rows, shares
from softperm.training.recorded import RecordedOutputs, RecordedTraining
from softperm.training.records import Epoch, Examples, epoch_order
from softperm.training.settings import TrainingConfig
from softperm.training.tasks import Task, count_targets, mean_loss, total_loss
from softperm.training.watch import Watch


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
    parts = [model(graphs.batch(part).to(device)).float() for part in index.split(batch_size)]
    model.train(was_training)
    return torch.cat(parts).cpu()


class Run:
    """The state of one training.

    Args:
        fabric: the processes and devices.
        model: the network.
        task: loss and score.
        train: training graphs.
        validation: held-out graphs, if any.
        config: how to train.
    """

    def __init__(
        self,
        fabric: Fabric,
        model: nn.Module,
        task: Task,
        train: Examples,
        validation: Examples | None,
        config: TrainingConfig,
    ) -> None:
        self.fabric, self.model, self.task = fabric, model.to(fabric.device), task
        self.train, self.validation = train, validation
        self.config = config
        self.adam = torch.optim.Adam(
            model.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True if fabric.device.type == "cuda" and config.clip is None else None,
        )
        self.network, self.optimiser = fabric.setup(model, self.adam)
        self.mean = None if config.ema is None else RunningMean(model, config.ema)
        self.plateau = None
        if config.decay is not None:
            self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                self.adam,
                factor=config.decay,
                patience=config.decay_patience,
                threshold=0.0,
                min_lr=config.decay_floor,
                eps=0.0,
            )
        self.feed = Feed(train, task, fabric.device)
        self.recorded: RecordedTraining | None = None
        self.recorded_outputs: RecordedOutputs | None = None
        self.curve: list[Epoch] = []
        self.step = 0  # mini-batches done of the current epoch
        self.total = 0.0  # sum over them of loss × graphs
        self.spent = 0.0  # seconds spent on them
        self.best_value = math.inf
        self.best_epoch = 0
        self.best_state: dict[str, Tensor] | None = None

    def _recordable(self) -> bool:
        """Whether steps can be replayed on the device without the host's part in them."""
        return (
            self.feed.resident
            and self.fabric.world_size * self.config.accumulate == 1
            and self.fabric.strategy.precision.precision == "32-true"
            and getattr(self.model, "capturable", False)
        )

    def _record(self) -> None:
        """Records a step of training, and one of validation if its graphs lie on the device."""
        source, graphs, size = self.feed.source, self.feed.graphs, self.config.batch_size
        batches = epoch_order(self.train.index, self.config.seed, 1).split(size)
        y = self.feed.targets(torch.arange(len(self.feed.y)))
        self.recorded = RecordedTraining(self.model, self.task, source, graphs, y, batches)
        held = self.validation
        if held and held.graphs is source:
            self.recorded_outputs = RecordedOutputs(self.model, source, graphs, held.index, size)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or patience is at its end."""
        done = len(self.curve)
        patience = self.config.patience
        tired = patience is not None and self.validation and done - self.best_epoch >= patience
        return done >= self.config.epochs or bool(tired)

    @property
    def place(self) -> str:
        """Where training is, for a message."""
        return f"epoch {len(self.curve) + 1}, step {self.step + 1}"

    def train_epoch(self, watch: Watch, save: Callable[[], None]) -> Epoch | None:
        """Trains to the end of the current epoch; None if stopped before it.

        Args:
            watch: says when to stop and when to save.
            save: writes a checkpoint.
        """
        if self.recorded is None and self._recordable():
            self._record()
        self.started = time.perf_counter()
        order = epoch_order(self.train.index, self.config.seed, len(self.curve) + 1)
        parts = order.split(self.config.batch_size)
        todo = parts[self.step :]
        sizes, pieces = self.train.graphs.sizes.cpu(), self.config.accumulate
        mine = (share for part in todo for share in shares(part, sizes, self.fabric, pieces))
        portions = self.feed.portions(mine)
        self.network.train()
        waiting: list[tuple[Tensor, int]] = []  # losses that nobody has looked at, and their graphs
        for part in todo:
            waiting.append((self._train_step(part, portions), len(part)))
            if self.step + len(waiting) == len(parts) or len(waiting) == watch.period:
                self._look(waiting, watch, save, last=self.step + len(waiting) == len(parts))
                waiting = []
                if watch.stop and self.step < len(parts):
                    return None
        return self._end_epoch(len(order))

    def _train_step(self, part: Tensor, portions: Iterator[Portion]) -> Tensor:
        """One step of the optimiser; this process's share of the mini-batch's mean loss."""
        loss = None
        if self.recorded is not None:
            loss, portions = self.recorded(part), self.feed.portions([part])
        if loss is None:
            loss = self._backward(part, portions)
        if self.config.clip is not None:
            self.fabric.clip_gradients(
                self.network, self.optimiser, max_norm=self.config.clip, error_if_nonfinite=False
            )
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.mean is not None:
            self.mean.update()
        return loss

    def _backward(self, part: Tensor, portions: Iterator[Portion]) -> Tensor:
        """Gradients of the mini-batch's mean loss; this process's share of the loss."""
        world, pieces = self.fabric.world_size, self.config.accumulate
        whole = None
        if world * pieces > 1:
            whole = count_targets(self.task, self.feed.targets(part))
        shown = torch.zeros((), device=self.fabric.device)
        for piece in range(pieces):
            portion = next(portions)
            with self.fabric.no_backward_sync(self.network, enabled=piece < pieces - 1):
                outputs = self.network(portion.batch)
                total, count = total_loss(self.task, outputs, portion.y, portion.keep)
                loss = total / (count if whole is None else whole).clamp(min=1)
                self.fabric.backward(loss * world if world > 1 else loss)  # it takes their mean
            shown = shown + loss.detach()
        return shown

    def _look(
        self, waiting: list[tuple[Tensor, int]], watch: Watch, save: Callable[[], None], last: bool
    ) -> None:
        """Counts the losses that came in; raises if one of them is not a number."""
        sight = watch.look([loss for loss, _ in waiting])
        for value, (_, graphs) in zip(sight.losses, waiting, strict=True):
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"the training loss became {value} in {self.place}: lower learning_rate (now "
                    f"{self.config.learning_rate}) or scale the attributes; the last checkpoint, "
                    "if there is one, is from before"
                )
            self.total += value * graphs
            self.step += 1
        if sight.save and not last:
            self._pause()
            save()

    def _pause(self) -> None:
        """Adds the time since the last pause to that of the epoch."""
        now = time.perf_counter()
        self.spent, self.started = self.spent + now - self.started, now

    def _end_epoch(self, graphs: int) -> Epoch:
        with nullcontext() if self.mean is None else self.mean.applied():
            loss, score = self._validate()
            self._pause()
            number = len(self.curve) + 1
            epoch = Epoch(number, self.total / graphs, loss, score, self.spent)
            self.curve.append(epoch)
            self.step, self.total, self.spent = 0, 0.0, 0.0
            self._keep_best(epoch)
        if self.config.halve_every is not None and number % self.config.halve_every == 0:
            for group in self.adam.param_groups:
                group["lr"] /= 2
        return epoch

    def _validate(self) -> tuple[float, float]:
        if not self.validation:
            return math.nan, math.nan
        held, world = self.validation, self.fabric.world_size
        graphs = self.feed.graphs if held.graphs is self.train.graphs else held.graphs
        mine = held.index[self.fabric.global_rank :: world]
        rows = torch.zeros(0, self.task.outputs)
        if self.recorded_outputs is not None:
            rows = self.recorded_outputs()
        elif len(mine):
            size = -(-self.config.batch_size // world)
            rows = predict(self.model, graphs, mine, size, self.fabric.device)
        outputs = gather_rows(self.fabric, rows, len(held.index))
        y = held.y[held.index]
        loss = mean_loss(self.task, outputs, self.task.encode(y)).item()
        figures = loss, self.task.score(outputs, y)
        return self.fabric.broadcast(figures) if world > 1 else figures  # rounding may differ

    def _keep_best(self, epoch: Epoch) -> None:
        if not self.validation:
            self.best_epoch = epoch.number
            if self.mean is not None:  # the mean is what a training gives
                self.best_state = self._copy()
            return
        value = epoch.validation_loss
        if self.config.criterion != "loss":
            sign = -1 if self.task.higher_is_better else 1
            value = sign * epoch.validation_score
            if math.isnan(value) and math.isfinite(epoch.validation_loss):
                raise ValueError(
                    f"the validation graphs do not define a {self.task.metric} (too few answers "
                    "of each kind): hold out more, or choose by criterion loss"
                )
        value = math.inf if math.isnan(value) else value
        if self.plateau is not None:
            self.plateau.step(value)
        late = self.config.criterion == "late-score"
        equal = late and value == self.best_value and math.isfinite(value)
        if value < self.best_value or equal or self.best_state is None:
            self.best_value, self.best_epoch = value, epoch.number
            self.best_state = self._copy()

    def _copy(self) -> dict[str, Tensor]:
        return {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def state(self) -> dict:
        """Everything that resuming needs, of plain types and tensors; all processes must ask."""
        return {
            "model": self.model.state_dict(),
            "optimiser": self.adam.state_dict(),
            "plateau": None if self.plateau is None else self.plateau.state_dict(),
            "mean": None if self.mean is None else self.mean.mean,
            "precision": self.fabric.strategy.precision.state_dict(),
            "curve": [asdict(epoch) for epoch in self.curve],
            "progress": {"step": self.step, "total": self.total, "spent": self.spent},
            "best": {"value": self.best_value, "epoch": self.best_epoch, "state": self.best_state},
            "random": self._random(),
        }

    def _random(self) -> dict[str, list[Tensor]]:
        """Torch's random state in each process: of the CPU, and of the device if it has one."""
        states = {"cpu": torch.get_rng_state()}
        device = self.fabric.device
        if device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(device)
        if self.fabric.world_size == 1:
            return {kind: [state] for kind, state in states.items()}
        return {kind: gather_all(self.fabric, state) for kind, state in states.items()}

    def restore(self, state: dict | None) -> None:
        """Goes back to a state; None leaves the beginning."""
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["optimiser"])
        if self.plateau is not None:
            self.plateau.load_state_dict(state["plateau"])
        if self.mean is not None:
            self.mean.restore(state["mean"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        self.curve = [Epoch(**row) for row in state["curve"]]
        done, best = state["progress"], state["best"]
        self.step, self.total, self.spent = (done[k] for k in ("step", "total", "spent"))
        self.best_value, self.best_epoch = best["value"], best["epoch"]
        self.best_state = best["state"]
        if len(state["random"]["cpu"]) == self.fabric.world_size:
            torch.set_rng_state(state["random"]["cpu"][self.fabric.global_rank])
            if "cuda" in state["random"] and self.fabric.device.type == "cuda":
                mine = state["random"]["cuda"][self.fabric.global_rank]
                torch.cuda.set_rng_state(mine, self.fabric.device)
