"""What many trainings in step have shown so far, kept where they run."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softperm.training.settings import TrainingConfig

CURVES = ("train_loss", "validation_loss", "validation_score")


class Scoreboard:
    """The curves of M models, the parameters of each one's best epoch, and what its rate became.

    All of it lies on the models' device and is updated there in place; nothing waits for the host,
    so that a step that writes on the board can be captured in a CUDA graph.

    Args:
        trained: what training changes, each tensor with leading axis M; read when an epoch closes.
        config: how many epochs there can be, and what makes one the best; ``by_score`` may then be
            changed, in place, for models that are judged otherwise, and so may ``late``.
        higher_is_better: direction of the score.
    """

    def __init__(
        self,
        trained: dict[str, Tensor],
        config: TrainingConfig,
        higher_is_better: bool,
    ) -> None:
        self.trained, self.config = trained, config
        self.higher_is_better = higher_is_better
        first = next(iter(trained.values()))
        models, device = len(first), first.device
        self.curves = {
            name: torch.full((models, config.epochs), torch.nan, dtype=torch.float64, device=device)
            for name in CURVES
        }
        self.by_score = torch.full((models,), config.criterion != "loss", device=device)
        self.late = torch.full((models,), config.criterion == "late-score", device=device)
        self.total = torch.zeros(models, dtype=torch.float64, device=device)
        self.count = torch.zeros_like(self.total)
        self.epoch = torch.zeros(1, dtype=torch.long, device=device)  # those that are closed
        self.best_value = torch.full_like(self.total, torch.inf)
        self.best_epoch = torch.zeros(models, dtype=torch.long, device=device)
        self.waited = torch.zeros_like(self.best_epoch)  # epochs since a better one, or a decay
        self.decayed = torch.ones_like(self.total)  # factor on the learning rate
        self.best = {name: tensor.detach().clone() for name, tensor in trained.items()}

    def tensors(self) -> dict[str, Tensor]:
        """All that is written on, by name."""
        return {
            "total": self.total, "count": self.count, "epoch": self.epoch,
            "best_value": self.best_value, "best_epoch": self.best_epoch,
            "waited": self.waited, "decayed": self.decayed,
            **{f"curve.{k}": t for k, t in self.curves.items()},
            **{f"best.{k}": t for k, t in self.best.items()},
        }  # fmt: skip

    @torch.no_grad()
    def add(self, losses: Float[Tensor, " M"], graphs: Int[Tensor, " M"]) -> None:
        """Counts a step: each model's mean loss over its graphs."""
        self.total += losses.double() * graphs
        self.count += graphs

    @torch.no_grad()
    def close(self, losses: Float[Tensor, " M"], scores: Float[Tensor, " M"]) -> None:
        """Writes an epoch down, with its validation losses and scores; keeps what got better."""
        losses = losses.double()
        figures = (self.total / self.count, losses, scores)
        for curve, figure in zip(self.curves.values(), figures, strict=True):
            curve.index_copy_(1, self.epoch, figure[:, None])
        self.epoch += 1
        self.total.zero_()
        self.count.zero_()
        value = torch.where(self.by_score, -scores if self.higher_is_better else scores, losses)
        value = torch.where(value.isnan(), torch.inf, value)
        equal = (value == self.best_value) & value.isfinite()
        better = (value < self.best_value) | (self.late & equal) | (self.best_epoch == 0)
        if self.config.patience is not None:
            better &= self.epoch - self.best_epoch <= self.config.patience
        self._decay(value < self.best_value)
        self.best_value.copy_(torch.where(better, value, self.best_value))
        self.best_epoch.copy_(torch.where(better, self.epoch, self.best_epoch))
        for name, tensor in self.trained.items():
            chosen = better.view(-1, *[1] * (tensor.ndim - 1))
            self.best[name].copy_(torch.where(chosen, tensor, self.best[name]))

    def _decay(self, better: Bool[Tensor, " M"]) -> None:
        """Lowers the learning rate of models that have waited too long for a better epoch."""
        if self.config.decay is None:
            return
        waited = torch.where(better, 0, self.waited + 1)
        tired = waited > self.config.decay_patience
        self.waited.copy_(torch.where(tired, 0, waited))
        self.decayed.copy_(torch.where(tired, self.config.decay * self.decayed, self.decayed))

    def patience_is_over(self, epoch: int) -> bool:
        """Whether no model will get better any more; asks the device once that is possible."""
        patience = self.config.patience
        if patience is None or epoch <= patience:
            return False
        return bool((epoch - self.best_epoch >= patience).all())

    def undefined(self) -> int | None:
        """The first model whose score should choose its best epoch but did not exist in epoch 1."""
        loss, score = (self.curves[name][:, 0] for name in CURVES[1:])
        missing = self.by_score & score.isnan() & loss.isfinite()
        return int(missing.int().argmax()) if bool(missing.any()) else None
