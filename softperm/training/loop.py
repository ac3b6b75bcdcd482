"""The training loop: epochs, best epoch, early stop, checkpoints and exact resume.

There is one loop, :meth:`Training.epochs`, and there are two kinds of training that it runs. Both
share the order of mini-batches, the policy for the best epoch (:class:`EpochTracker`), checkpoints,
interruption and time limits; they differ in how a step is computed:

- :class:`OneModel` trains a network on mini-batches of their own size, on one device or, through
  Lightning Fabric, on several. It can be stopped and saved between any two mini-batches.
- :class:`softperm.training.stack.Stack` trains many networks of one shape in one computation.

One network is not a stack of one: batched operations on padded mini-batches round differently, so
results of earlier versions would change, and padding costs time on the CPU.

Ctrl-C always leaves the loop as a KeyboardInterrupt, so that a search over many trainings ends too.
Without a checkpoint it does so at once. With a checkpoint the loop first finishes the mini-batch (a
stack: the epoch) and writes the checkpoint, and a second Ctrl-C does not wait for that; SIGTERM,
which schedulers send, acts as Ctrl-C. See :class:`TrainingInterrupted`.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from softperm.data.collection import Collection
from softperm.errors import one_line
from softperm.nn.model import evaluating
from softperm.parallel import one_torch_thread
from softperm.settings import ModelConfig, TrainingConfig, defaults
from softperm.training.checkpoints import CheckpointError, read_checkpoint, write_checkpoint
from softperm.training.cuda_graphs import CapturedGradients, CapturedOutputs
from softperm.training.data import BatchLoader, Examples, MiniBatch, epoch_order
from softperm.training.devices import (
    Fabric,
    OneDevice,
    from_first,
    gather_all,
    gather_rows,
    lost_peers_reported,
    shared_statistics,
    shares,
)
from softperm.training.tasks import (
    Task,
    class_factors,
    count_targets,
    mean_loss,
    positive,
    total_loss,
    weigh,
    with_smoothing,
)

CURVES = ("train_loss", "validation_loss", "validation_score")
COSINE_FLOOR = 0.02  # share of the initial learning rate to which the cosine schedule falls
SAVE_EVERY_SECONDS = 10.0
SAVING_SHARE = 0.05  # maximum share of the time that is spent on writing checkpoints
ONE_THREAD_VERTICES = 1 << 13  # of a step; with fewer, torch's operators use one thread
CHECK_EVERY = 16  # mini-batches on a GPU between two checks of losses, which wait for the GPU
_NO_MEMORY = ("out of memory", "can't allocate memory")  # in torch's errors


@dataclass(frozen=True)
class Epoch:
    """One row of a training curve; validation figures are NaN without validation graphs."""

    number: int
    train_loss: float
    validation_loss: float
    validation_score: float
    seconds: float


class EpochTracker:
    """The policy for best epochs, early stopping and learning rates, of M models trained together.

    The loop updates a tracker after each epoch. Its state are tensors that are updated in place
    without waiting for the host, so that an update can be part of a CUDA graph.
    :meth:`best_epoch_of` applies the same policy to a recorded curve.

    The best epoch is the one with the lowest validation loss or the best validation score, the
    first of equally good ones, or the last with the criterion ``late-score``; NaN is never better.
    With the criterion ``last`` it is the last epoch.
    Once a model had ``patience`` epochs without a better one, its best epoch is final. Without
    validation graphs the last epoch is the best.

    Args:
        config: number of epochs, criterion, patience and decay.
        higher_is_better: direction of the score.
        models: number M of models.
        validated: whether there are validation graphs.
        criteria: each model's criterion; ``config.criterion`` by default.
        learning_rates: each model's initial rate; ``config.learning_rate`` by default.
        device: where losses and scores are computed.
    """

    def __init__(
        self,
        config: TrainingConfig,
        higher_is_better: bool,
        *,
        models: int = 1,
        validated: bool = True,
        criteria: Sequence[str] | None = None,
        learning_rates: Sequence[float] | Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config, self.higher_is_better, self.validated = config, higher_is_better, validated
        criteria = criteria or [config.criterion] * models
        criteria = [replace(config, criterion=criterion).criterion for criterion in criteria]
        by_score = [criterion in ("score", "late-score") for criterion in criteria]
        self.by_score = torch.tensor(by_score, device=device)  # (M,)
        self.late = torch.tensor([c == "late-score" for c in criteria], device=device)  # (M,)
        self.last = torch.tensor([c == "last" for c in criteria], device=device)  # (M,)
        if learning_rates is None:
            learning_rates = [config.learning_rate] * models
        self.rates = torch.as_tensor(learning_rates, dtype=torch.float64, device=device).clone()
        self.curves = {
            name: torch.full((models, config.epochs), torch.nan, dtype=torch.float64, device=device)
            for name in CURVES
        }
        self.loss_sum = torch.zeros_like(self.rates)  # over the graphs of the current epoch
        self.graphs = torch.zeros_like(self.rates)  # number of graphs in the sum
        self.epoch = torch.zeros(1, dtype=torch.long, device=device)  # finished epochs
        self.best_value = torch.full_like(self.rates, torch.inf)  # lower is better
        self.best_epoch = torch.zeros(models, dtype=torch.long, device=device)
        self.bad_epochs = torch.zeros_like(self.best_epoch)  # since the last better one or decay

    @torch.no_grad()
    def add(self, losses: Float[Tensor, " M"], graphs: Int[Tensor, " M"]) -> None:
        """Adds a mini-batch: each model's mean training loss, and its number of graphs."""
        self.loss_sum += losses.double() * graphs
        self.graphs += graphs

    @torch.no_grad()
    def end_epoch(
        self, losses: Float[Tensor, " M"], scores: Float[Tensor, " M"]
    ) -> Bool[Tensor, " M"]:
        """Ends an epoch with its validation losses and scores.

        Returns:
            Which models improved: their parameters are now the best.
        """
        figures = (self.loss_sum / self.graphs, losses.double(), scores.double())
        for curve, figure in zip(self.curves.values(), figures, strict=True):
            curve.index_copy_(1, self.epoch, figure[:, None])
        self.epoch += 1
        self.loss_sum.zero_()
        self.graphs.zero_()
        if not self.validated:
            self.best_epoch.copy_(self.epoch.expand_as(self.best_epoch))
            return torch.ones_like(self.by_score)
        score = -figures[2] if self.higher_is_better else figures[2]
        value = torch.where(self.by_score, score, figures[1])
        value = torch.where(value.isnan(), torch.inf, value)
        lower = value < self.best_value
        equal = (value == self.best_value) & value.isfinite()
        better = lower | (self.late & equal) | self.last | (self.best_epoch == 0)
        if self.config.patience is not None:
            better &= self.epoch - self.best_epoch <= self.config.patience
        self._decay(lower)
        self.best_value.copy_(torch.where(better, value, self.best_value))
        self.best_epoch.copy_(torch.where(better, self.epoch, self.best_epoch))
        return better

    def _decay(self, better: Bool[Tensor, " M"]) -> None:
        """Lowers learning rates as torch's ``ReduceLROnPlateau`` does with threshold 0."""
        if self.config.decay is None:
            return
        bad = torch.where(better, 0, self.bad_epochs + 1)
        plateau = bad > self.config.decay_patience
        self.bad_epochs.copy_(torch.where(plateau, 0, bad))
        lower = (self.rates * self.config.decay).clamp(min=self.config.decay_floor)
        self.rates.copy_(torch.where(plateau, torch.minimum(lower, self.rates), self.rates))

    def learning_rates(self, epoch: int) -> Float[Tensor, " M"]:
        """The learning rates of the epoch that follows ``epoch`` finished ones."""
        if self.config.schedule == "cosine":
            fallen = (1 - math.cos(math.pi * epoch / self.config.epochs)) / 2
            return self.rates * (1 - (1 - COSINE_FLOOR) * fallen)
        every = self.config.halve_every
        return self.rates if every is None else self.rates / 2 ** (epoch // every)

    def is_over(self, epoch: int) -> bool:
        """Whether training ends after ``epoch`` epochs: all are done, or no model may improve.

        Waits for the device only where patience can have ended.
        """
        patience = self.config.patience
        if epoch >= self.config.epochs:
            return True
        if patience is None or epoch < patience:
            return False
        return bool((epoch - self.best_epoch >= patience).all())

    def check_scores(self, epoch: int, metric: str) -> None:
        """Raises ValueError if a score that should select the best epoch was undefined in one."""
        loss, score = (self.curves[name][:, epoch - 1] for name in CURVES[1:])
        undefined = self.by_score & score.isnan() & loss.isfinite()
        if self.validated and bool(undefined.any()):
            owner = f" of model {int(undefined.int().argmax())}" if len(undefined) > 1 else ""
            raise ValueError(
                f"the validation graphs{owner} do not define a {metric} (too few targets of each "
                "class): hold out more graphs, or choose criterion loss"
            )

    def curve(self, model: int, seconds: Sequence[float]) -> tuple[Epoch, ...]:
        """The curve of one model, as long as ``seconds``, the times of its epochs."""
        rows = (curve[model, : len(seconds)].tolist() for curve in self.curves.values())
        return tuple(Epoch(k, *row) for k, row in enumerate(zip(*rows, seconds, strict=True), 1))

    def tensors(self) -> dict[str, Tensor]:
        """The whole state by name."""
        names = ("loss_sum", "graphs", "epoch", "best_value", "best_epoch", "bad_epochs", "rates")
        return {**{name: getattr(self, name) for name in names}, **self.curves}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restores a state, in place; the number of epochs may have changed since."""
        finished = int(tensors["epoch"])
        for name, tensor in self.tensors().items():
            saved = tensors[name]
            if name in CURVES:
                tensor, saved = tensor[:, :finished], saved[:, :finished]
            tensor.copy_(saved)

    @classmethod
    def best_epoch_of(
        cls, curve: Sequence[Epoch], config: TrainingConfig, higher_is_better: bool
    ) -> int:
        """The number of the epoch that a training with this criterion and patience would select.

        Args:
            curve: the epochs of a training that was at least as long.
            config: criterion and patience.
            higher_is_better: direction of the score.

        >>> losses = enumerate((3.0, 2.0, 4.0, 4.0, 1.0), start=1)
        >>> curve = [Epoch(k, 0.0, loss, 0.0, 0.0) for k, loss in losses]
        >>> configs = [TrainingConfig(patience=patience) for patience in (2, 3)]
        >>> [EpochTracker.best_epoch_of(curve, config, True) for config in configs]
        [2, 5]
        """
        tracker = cls(replace(config, epochs=max(len(curve), 1)), higher_is_better)
        figures = torch.tensor(
            [[e.validation_loss, e.validation_score] for e in curve], dtype=torch.float64
        )
        for loss, score in figures.view(-1, 2, 1):
            tracker.end_epoch(loss, score)
        return int(tracker.best_epoch)


@dataclass(frozen=True)
class FitResult:
    """The result of a training.

    Attributes:
        curve: one row per epoch.
        best_epoch: number of the epoch whose parameters the network has.
        interrupted: whether training stopped before its end, by a signal or by its time limit.
    """

    curve: tuple[Epoch, ...]
    best_epoch: int
    interrupted: bool


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended a training after its checkpoint was written.

    The networks have the parameters of their best epochs so far.
    """

    def __init__(self, results: Sequence[FitResult]) -> None:
        super().__init__("training was interrupted; its checkpoint was written")
        self.results = tuple(results)


def fit(
    model: nn.Module,
    task: Task,
    train: Examples,
    config: TrainingConfig,
    *,
    validation: Examples | None = None,
    device: torch.device | str | Fabric | OneDevice = "cpu",
    checkpoint: Path | None = None,
    fingerprint: str = "",
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    interrupted: Callable[[], bool] | None = None,
) -> FitResult:
    """Trains a network in place; it ends with the parameters of its best epoch.

    The best epoch is selected by validation graphs; without them it is the last. With several
    processes each computes its share of every mini-batch, and all end with the same parameters,
    which are those of one process except for rounding.

    Args:
        model: the network; the same in all processes.
        task: loss and score.
        train: training graphs.
        config: settings.
        validation: held-out graphs that select the epoch.
        device: a device, or the processes that :func:`softperm.training.devices.connect` returned.
        checkpoint: file that holds the state while training runs; if it exists, training resumes
            from it and gives the numbers of an uninterrupted training. The first process reads and
            writes it.
        fingerprint: identifies model, data and settings; a checkpoint with another one is refused.
        on_epoch: called in the first process with each finished epoch, resumed ones first.
        interrupted: returns whether to stop; by default Ctrl-C and SIGTERM stop the training.

    Raises:
        KeyboardInterrupt: training was stopped; a :class:`TrainingInterrupted` if it can resume.
    """
    if validation is not None and not len(validation):
        validation = None
    check_validation(validation, config)
    train, validation = _with_class_weights(config.class_weight, task, train, validation)
    processes = OneDevice(device) if isinstance(device, torch.device | str) else device
    with (
        lost_peers_reported(processes),
        shared_statistics(model, processes),
        stop_requests(checkpoint, interrupted) as stop,
    ):
        training = OneModel(processes, model, task, train, validation, config)
        reported = 0

        def report() -> None:
            nonlocal reported
            while processes.is_global_zero and reported < training.epoch:
                reported += 1
                on_epoch(training.tracker.curve(0, training.seconds[:reported])[-1])

        for _ in training.epochs(checkpoint, fingerprint, stop):
            report()
        report()  # of a finished training that was resumed
    return training.results()[0]


@torch.no_grad()
def predict(
    model: nn.Module,
    graphs: Collection,
    index: Int[Tensor, " b"],
    batch_size: int,
    device: torch.device,
) -> Float[Tensor, "b C"]:
    """The network's outputs for the selected graphs, on the CPU."""
    with evaluating(model):
        parts = [model(graphs.batch(part).to(device)).float() for part in index.split(batch_size)]
    return torch.cat(parts).cpu()


def check_validation(validation: Examples | None, config: TrainingConfig) -> None:
    """Raises ValueError where validation graphs are missing or have no targets."""
    if validation is None:
        for name in ("patience", "decay"):
            if getattr(config, name) is not None:
                raise ValueError(
                    f"{name} needs validation graphs, and there are none: hold some out, or set "
                    f"{name} to None"
                )
        return
    y = validation.y[validation.index]
    if y.is_floating_point() and bool(y.isnan().all()):
        raise ValueError("no validation graph has a target: hold out more graphs, or others")


def _with_class_weights(
    class_weight: object, task: Task, train: Examples, validation: Examples | None
) -> tuple[Examples, Examples | None]:
    """Multiplies the graphs' weights in the loss by class weights, from the training graphs."""
    if class_weight is None:
        return train, validation
    index = train.index.cpu()
    own = None if train.weight is None else train.weight[index]
    factors = class_factors(class_weight, task, train.y[index], own)
    train = replace(train, weight=weigh(train.y, train.weight, factors))
    if validation is not None:
        validation = replace(validation, weight=weigh(validation.y, validation.weight, factors))
    return train, validation


def stop_requests(
    checkpoint: Path | None, interrupted: Callable[[], bool] | None = None
) -> AbstractContextManager[Callable[[], bool]]:
    """The function that returns whether a loop must stop; see the module's docstring.

    Args:
        checkpoint: file in which the training can be saved, if any.
        interrupted: the function, if the caller handles signals itself.
    """
    if interrupted is not None:
        return nullcontext(interrupted)
    return nullcontext(lambda: False) if checkpoint is None else interruptible()


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within the block the first Ctrl-C, or SIGTERM, sets a flag; a second Ctrl-C interrupts.

    Outside the main thread, which alone receives signals, the flag is never set.

    Yields:
        A function that returns the flag.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return

    def on_signal(number, frame):
        if requested.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        requested.set()

    before = {kind: signal.signal(kind, on_signal) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requested.is_set
    finally:
        for kind, handler in before.items():
            signal.signal(kind, signal.SIG_DFL if handler is None else handler)


class Control:
    """Decides when to stop and when to save, at the same moments in all processes.

    Args:
        processes: the processes.
        interrupted: returns whether this process received a stop request.
        max_time: seconds after which training stops; None for no limit.

    Attributes:
        interrupted: whether any process received a stop request.
        stop: whether to stop, because of an interruption or the time limit.
        save_due: whether the last checkpoint is old.
    """

    def __init__(
        self,
        processes: Fabric | OneDevice,
        interrupted: Callable[[], bool],
        max_time: float | None,
    ) -> None:
        self.processes, self.stop_requested = processes, interrupted
        self.end = math.inf if max_time is None else time.monotonic() + max_time
        self.interrupted = self.stop = self.save_due = False
        self.next_save = time.monotonic() + SAVE_EVERY_SECONDS
        self.period = 1 if processes.device.type == "cpu" else CHECK_EVERY

    def check(self, losses: Sequence[Tensor] = ()) -> list[float]:
        """Updates the attributes, by the clock of the first process.

        Args:
            losses: this process's shares of the losses of some mini-batches.

        Returns:
            The losses, summed over all processes.
        """
        now = time.monotonic()
        clock = self.processes.is_global_zero
        flags = [self.stop_requested(), clock and now > self.end, clock and now > self.next_save]
        if self.processes.world_size == 1:
            values = torch.stack(list(losses)).tolist() if losses else []
        else:
            device = self.processes.device
            sums = torch.tensor(flags, dtype=torch.float64, device=device)
            sums = torch.cat([*(loss.double().view(1) for loss in losses), sums])
            torch.distributed.all_reduce(sums)
            *values, interrupted, over, save = sums.tolist()
            flags = [interrupted > 0, over > 0, save > 0]
        self.interrupted, over, self.save_due = flags
        self.stop = self.interrupted or over
        return values

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Surrounds the writing of a checkpoint, and schedules the next one."""
        started = time.monotonic()
        yield
        now = time.monotonic()
        self.next_save = now + max(SAVE_EVERY_SECONDS, (now - started) / SAVING_SHARE)
        self.save_due = False


class Training(ABC):
    """A training that the loop runs, saves and resumes.

    Attributes:
        processes: the processes of the training.
        config: settings.
        tracker: selects best epochs and learning rates.
        epoch: number of finished epochs.
        step_vertices: number of vertices in a step's mini-batches, on average.
        saves_end: whether the checkpoint of a finished training is written.
    """

    processes: Fabric | OneDevice
    config: TrainingConfig
    tracker: EpochTracker
    step_vertices: float
    epoch: int = 0
    saves_end: bool = True

    def epochs(
        self,
        checkpoint: Path | None = None,
        fingerprint: str = "",
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Iterator[int]:
        """Trains to the end, or until stopped; see :func:`fit` for the arguments.

        Yields:
            The number of each epoch as it ends.
        """
        if checkpoint is not None:
            state = from_first(self.processes, lambda: read_checkpoint(checkpoint, fingerprint))
            if state is not None:
                try:
                    self.restore(state)
                except (
                    LookupError,
                    TypeError,
                    ValueError,
                    AttributeError,
                    RuntimeError,
                ) as problem:
                    detail = one_line(problem)[:200]
                    raise CheckpointError(
                        f"{checkpoint} holds another kind of state ({type(problem).__name__}: "
                        f"{detail}): delete it to start again"
                    ) from problem
        self.control = Control(self.processes, interrupted, self.config.max_time)
        self.resumable = checkpoint is not None

        def save() -> None:
            with self.control.saving():
                if checkpoint is not None:
                    state = self.state()
                    if self.processes.is_global_zero:
                        write_checkpoint(checkpoint, fingerprint, state)

        self.control.check()
        while not self.finished and not self.control.stop:
            with one_torch_thread() if self._is_small() else nullcontext():
                ended = self.train_epoch(save)
            if ended:
                yield self.epoch
            self.control.check()
            if self.control.save_due:
                save()
        if self.saves_end or not self.finished:
            save()
        self.release()

    def _is_small(self) -> bool:
        """Whether one thread of a CPU is enough for the operators of a step."""
        return self.processes.device.type == "cpu" and self.step_vertices <= ONE_THREAD_VERTICES

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or patience has ended for every model."""
        return self.tracker.is_over(self.epoch)

    def results(self) -> list[FitResult]:
        """Gives each network the parameters of its best epoch, and returns its result.

        Raises:
            KeyboardInterrupt: the training was interrupted. A finished stack, of which there is no
                checkpoint, returns its results all the same.
        """
        results = self.best_models()
        if self.control.interrupted and (self.saves_end or not self.finished):
            raise TrainingInterrupted(results) if self.resumable else KeyboardInterrupt
        return results

    @abstractmethod
    def train_epoch(self, save: Callable[[], None]) -> bool:
        """Trains to the end of the current epoch; False if stopped before it."""

    @abstractmethod
    def best_models(self) -> list[FitResult]:
        """Gives each network the parameters of its best epoch so far."""

    @abstractmethod
    def state(self) -> dict:
        """Everything that resuming needs, as plain types and tensors; a collective operation."""

    @abstractmethod
    def restore(self, state: dict) -> None:
        """Restores a state."""

    @abstractmethod
    def release(self) -> None:
        """Frees what only further epochs would need."""


def mean_batch_vertices(graphs: Collection, index: Int[Tensor, " b"], batch_size: int) -> float:
    """The average number of vertices in the mini-batches of the selected graphs."""
    vertices = graphs.sizes[index].sum().item()
    return vertices / max(1, math.ceil(len(index) / batch_size))


class OneModel(Training):
    """The training of one network, in one process or in several."""

    def __init__(
        self,
        processes: Fabric | OneDevice,
        model: nn.Module,
        task: Task,
        train: Examples,
        validation: Examples | None,
        config: TrainingConfig,
    ) -> None:
        self.processes, self.model, self.task = processes, model.to(processes.device), task
        self.train, self.validation, self.config = train, validation, config
        self.training_task = with_smoothing(task, config.label_smoothing)
        optimiser = torch.optim.AdamW if config.decoupled_decay else torch.optim.Adam
        self.adam = optimiser(
            model.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True if processes.device.type == "cuda" and config.clip is None else None,
        )
        self.network, self.optimiser = processes.setup(model, self.adam)
        self.average = None if config.ema is None else WeightAverage(model, config.ema)
        self.loader = BatchLoader(train, task, processes.device)
        self.step_vertices = mean_batch_vertices(train.graphs, train.index, config.batch_size)
        self.gradients: CapturedGradients | None = None
        self.validation_outputs: CapturedOutputs | None = None
        self.tracker = EpochTracker(config, task.higher_is_better, validated=validation is not None)
        self.best_state: dict[str, Tensor] | None = None
        self.step = 0  # finished mini-batches of the current epoch
        self.spent = 0.0  # seconds spent on them
        self.seconds: list[float] = []  # of each finished epoch

    @property
    def place(self) -> str:
        """The current position, for messages."""
        return f"epoch {self.epoch + 1}, step {self.step + 1}"

    def _capturable(self) -> bool:
        """Whether steps can be replayed as CUDA graphs."""
        return (
            self.loader.resident
            and self.processes.world_size * self.config.accumulate == 1
            and (
                isinstance(self.processes, OneDevice)
                or self.processes.strategy.precision.precision == "32-true"
            )
            and getattr(self.model, "capturable", False)
            and getattr(self.task, "capturable", True)  # unless its losses compare graphs
        )

    def _capture(self) -> None:
        """Captures a training step, and validation if its graphs are on the device."""
        source, graphs, size = self.loader.source, self.loader.graphs, self.config.batch_size
        batches = epoch_order(self.train.index, self.config.seed, 1).split(size)
        y = self.loader.targets(torch.arange(len(self.loader.y)))
        self.gradients = CapturedGradients(
            self.model, self.training_task, source, graphs, y, batches, self.loader.weight
        )
        held = self.validation
        if held is not None and held.graphs is source:
            self.validation_outputs = CapturedOutputs(self.model, source, graphs, held.index, size)

    def train_epoch(self, save: Callable[[], None]) -> bool:
        """Trains to the end of the current epoch; False if stopped before it."""
        try:
            return self._train_epoch(save)
        except (RuntimeError, MemoryError) as problem:
            words = str(problem).lower()
            if isinstance(problem, RuntimeError) and not any(w in words for w in _NO_MEMORY):
                raise
            raise MemoryError(f"out of memory in {self.place}: {self._memory_advice()}") from None

    def _memory_advice(self) -> str:
        """Which setting to change: the one that is the furthest above its default."""
        batch = f"batch_size (now {self.config.batch_size})"
        values = {"batch_size": self.config.batch_size}
        usual = defaults(TrainingConfig)
        if isinstance(config := getattr(self.model, "config", None), ModelConfig):
            sizes = ("iterations", "latent_vertices", "hidden", "permutation_heads", "powers")
            values |= {name: getattr(config, name) for name in sizes}
            usual |= defaults(ModelConfig)
        blamed = max(values, key=lambda name: values[name] / usual[name])
        if blamed == "batch_size" or values[blamed] <= usual[blamed]:
            return f"lower {batch} or raise accumulate (now {self.config.accumulate})"
        return f"lower {blamed} (now {values[blamed]}, {usual[blamed]} by default) or {batch}"

    def _train_epoch(self, save: Callable[[], None]) -> bool:
        if self.gradients is None and self._capturable():
            self._capture()
        self.started = time.perf_counter()
        for group in self.adam.param_groups:
            group["lr"] = self.tracker.learning_rates(self.epoch).item()
        order = epoch_order(self.train.index, self.config.seed, self.epoch + 1)
        parts = order.split(self.config.batch_size)
        remaining = parts[self.step :]
        sizes, pieces = self.train.graphs.sizes.cpu(), self.config.accumulate
        mine = (
            share for part in remaining for share in shares(part, sizes, self.processes, pieces)
        )
        mini_batches = self.loader.load(mine)
        self.network.train()
        unchecked: list[tuple[Tensor, int]] = []  # losses, and their numbers of graphs
        for part in remaining:
            unchecked.append((self._train_step(part, mini_batches), len(part)))
            last = self.step + len(unchecked) == len(parts)
            if last or len(unchecked) == self.control.period:
                self._check(unchecked)
                unchecked = []
                if not last and self.control.save_due:
                    self._count_time()
                    save()
                if not last and self.control.stop:
                    self._count_time()
                    return False
        self._end_epoch()
        return True

    def _train_step(self, part: Tensor, mini_batches: Iterator[MiniBatch]) -> Tensor:
        """One step of the optimiser; returns this process's share of the mean loss."""
        loss = None
        if self.gradients is not None:
            loss, mini_batches = self.gradients(part), self.loader.load([part])
        if loss is None:
            loss = self._backward(part, mini_batches)
        if self.config.clip is not None:
            self.processes.clip_gradients(
                self.network, self.optimiser, max_norm=self.config.clip, error_if_nonfinite=False
            )
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update()
        return loss

    def _backward(self, part: Tensor, mini_batches: Iterator[MiniBatch]) -> Tensor:
        """Computes gradients of the mean loss; returns this process's share of the loss."""
        world, pieces = self.processes.world_size, self.config.accumulate
        whole = None
        if world * pieces > 1:
            weights = self.loader.weights(part)
            whole = count_targets(self.task, self.loader.targets(part), weights)
        share = torch.zeros((), device=self.processes.device)
        for piece in range(pieces):
            mini_batch = next(mini_batches)
            wait = piece < pieces - 1
            with self.processes.no_backward_sync(self.network, enabled=wait):  # type: ignore[arg-type]
                outputs = self.network(mini_batch.batch)
                targets = (mini_batch.y, mini_batch.keep, mini_batch.weight)
                total, count = total_loss(self.training_task, outputs, *targets)
                loss = total / positive(count if whole is None else whole)
                # DDP averages the gradients of the processes.
                self.processes.backward(loss * world if world > 1 else loss)
            share = share + loss.detach()
        return share

    def _check(self, unchecked: Sequence[tuple[Tensor, int]]) -> None:
        """Adds losses to the epoch; raises FloatingPointError if one is not finite."""
        losses = self.control.check([loss for loss, _ in unchecked])
        for value, (_, graphs) in zip(losses, unchecked, strict=True):
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"the training loss became {value} in {self.place}: lower learning_rate (now "
                    f"{self.config.learning_rate}) or scale attributes and weights; the last "
                    "checkpoint, if any, is from before that"
                )
            loss = torch.tensor([value], dtype=torch.float64)
            self.tracker.add(loss, torch.tensor([graphs]))
            self.step += 1

    def _count_time(self) -> None:
        """Adds the time since the last call to that of the epoch."""
        now = time.perf_counter()
        self.spent, self.started = self.spent + now - self.started, now

    def _end_epoch(self) -> None:
        with nullcontext() if self.average is None else self.average.applied():
            loss, score = self._validate()
            self._count_time()
            figures = torch.tensor([[loss], [score]], dtype=torch.float64)
            improved = bool(self.tracker.end_epoch(*figures))
            self.epoch += 1
            self.tracker.check_scores(self.epoch, self.task.metric)
            self.seconds.append(self.spent)
            self.step, self.spent = 0, 0.0
            # The last parameters need no copy, unless they are an average.
            if improved and (self.validation is not None or self.average is not None):
                state = self.model.state_dict()
                self.best_state = {k: v.detach().clone() for k, v in state.items()}

    def _validate(self) -> tuple[float, float]:
        """Loss and score of the validation graphs; NaN without any."""
        if self.validation is None:
            return math.nan, math.nan
        held, world = self.validation, self.processes.world_size
        graphs = self.loader.graphs if held.graphs is self.train.graphs else held.graphs
        mine = held.index[self.processes.global_rank :: world]
        rows = torch.zeros(0, self.task.outputs)
        if self.validation_outputs is not None:
            rows = self.validation_outputs()
        elif len(mine):
            size = -(-self.config.batch_size // world)
            rows = predict(self.model, graphs, mine, size, self.processes.device)
        outputs = gather_rows(self.processes, rows, len(held.index))
        y = held.y[held.index]
        weight = None if held.weight is None else held.weight[held.index]

        def figures() -> tuple[float, float]:
            loss = mean_loss(self.task, outputs, self.task.encode(y), weight=weight).item()
            return loss, self.task.score(outputs, y)

        return from_first(self.processes, figures)  # processes may round differently

    def best_models(self) -> list[FitResult]:
        """Gives the network the parameters of its best epoch so far."""
        if self.best_state is not None:
            self.model.load_state_dict(self.best_state)
        self.model.eval()
        curve = self.tracker.curve(0, self.seconds)
        return [FitResult(curve, int(self.tracker.best_epoch), not self.finished)]

    def release(self) -> None:
        """Frees the captured steps and their memory."""
        self.gradients = self.validation_outputs = None

    def state(self) -> dict:
        """Everything that resuming needs, as plain types and tensors; a collective operation."""
        device = self.processes.device
        random = {"cpu": gather_all(self.processes, torch.get_rng_state())}
        if device.type == "cuda":
            random["cuda"] = gather_all(self.processes, torch.cuda.get_rng_state(device))
        return {
            "epoch": self.epoch,
            "step": self.step,
            "spent": self.spent,
            "seconds": self.seconds,
            "tracker": self.tracker.tensors(),
            "model": self.model.state_dict(),
            "optimiser": self.adam.state_dict(),
            "average": None if self.average is None else self.average.state(),
            "precision": {}  # otherwise the state of the gradient scaler of 16-bit training
            if isinstance(self.processes, OneDevice)
            else self.processes.strategy.precision.state_dict(),
            "best": self.best_state,
            "random": random,
        }

    def restore(self, state: dict) -> None:
        """Restores a state."""
        self.epoch, self.step = state["epoch"], state["step"]
        self.spent, self.seconds = state["spent"], state["seconds"]
        self.tracker.load(state["tracker"])
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["optimiser"])
        if self.average is not None:
            self.average.load(state["average"])
        if state["precision"] and not isinstance(self.processes, OneDevice):
            self.processes.strategy.precision.load_state_dict(state["precision"])
        self.best_state = state["best"]
        random, rank = state["random"], self.processes.global_rank
        if len(random["cpu"]) == self.processes.world_size:
            torch.set_rng_state(random["cpu"][rank])
            if "cuda" in random and self.processes.device.type == "cuda":
                torch.cuda.set_rng_state(random["cuda"][rank], self.processes.device)


class WeightAverage:
    r"""The moving average :math:`m \leftarrow \beta_t m + (1 - \beta_t) \theta` after step t.

    The weight of the past grows, :math:`\beta_t = \min(\beta, (1 + t) / (10 + t))`, so that the
    initial parameters are soon forgotten, also in a training of few steps.

    Args:
        model: the network whose parameters θ are averaged; m starts with their present values.
        decay: the limit β.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay, self.steps = model, decay, 0
        self.mean = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """Adds the current parameters to the average."""
        parameters = [p.detach() for p in self.model.parameters()]
        self.steps += 1
        past = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(list(self.mean.values()), parameters, 1 - past)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the block the network has the average as its parameters."""
        parameters = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self._write(self.mean)
        try:
            yield
        finally:
            self._write(parameters)

    def state(self) -> dict[str, Any]:
        """The average and its number of steps, for a checkpoint."""
        return {"mean": self.mean, "steps": self.steps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores an earlier average."""
        self.steps = state["steps"]
        for name, tensor in self.mean.items():
            tensor.copy_(state["mean"][name])

    @torch.no_grad()
    def _write(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(values[name])
