"""The one policy for the best epoch, early stopping and learning-rate decay.

The loop updates a tracker after each epoch, for one model or for a stack of M models. Its state are
tensors that are updated in place without waiting for the host, so that an update can be part of a
CUDA graph. :meth:`EpochTracker.best_epoch_of` applies the same policy to a recorded curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softperm.settings import TrainingConfig

CURVES = ("train_loss", "validation_loss", "validation_score")
COSINE_FLOOR = 0.02  # share of the initial learning rate to which the cosine schedule falls


@dataclass(frozen=True)
class Epoch:
    """One row of a training curve; validation figures are NaN without validation graphs."""

    number: int
    train_loss: float
    validation_loss: float
    validation_score: float
    seconds: float


class EpochTracker:
    """Curves, best epochs and learning rates of M models that are trained in step.

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
        value = torch.where(self.by_score, self._lower_is_better(figures[2]), figures[1])
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

    def _lower_is_better(self, scores: Float[Tensor, " M"]) -> Float[Tensor, " M"]:
        return -scores if self.higher_is_better else scores

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
                f"the validation graphs{owner} do not define a {metric} (too few answers of each "
                "kind): hold out more graphs, or choose criterion loss"
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
