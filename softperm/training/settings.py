"""How a network is trained: the settings of every training, and those of long ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real

CRITERIA = ("loss", "score", "late-score")
"""What can choose the best epoch. ``late-score`` takes the last of equally good ones, not the
first, as Errica et al. do: where few validation graphs give many equal scores, the first of them
comes before there is much learnt."""


@dataclass(frozen=True)
class FitConfig:
    """How a network is trained.

    Attributes:
        epochs: passes over the training graphs.
        batch_size: graphs in a mini-batch, those of all devices together.
        learning_rate: of Adam.
        weight_decay: of Adam.
        criterion: which validation figure decides the best epoch, the first of equally good ones:
            ``loss`` or ``score``; or the last of them: ``late-score``.
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
            _check_count(name, getattr(self, name), value)
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2**63; got {self.seed}")
        if not isinstance(self.learning_rate, Real) or not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be a number above 0; got {self.learning_rate!r}")
        if not isinstance(self.weight_decay, Real) or not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be 0 or more; got {self.weight_decay!r}")
        if self.criterion not in CRITERIA:
            known = ", ".join(CRITERIA)
            raise ValueError(f"criterion must be one of {known}; got {self.criterion!r}")


@dataclass(frozen=True)
class Schedule:
    """What a long training may want besides; by default nothing.

    Attributes:
        accumulate: parts in which a device computes its share of a mini-batch, one after the
            other. The gradient stays that of the whole mini-batch, the memory is that of a part;
            only batch normalisation sees the parts.
        clip: largest norm of the gradient; None for any.
        decay: factor on the learning rate after more than ``decay_patience`` epochs without a
            better validation figure; None for a constant rate.
        decay_patience: how many epochs are borne, as torch's ``ReduceLROnPlateau`` counts them.
        ema: decay of a running mean of the parameters, which then takes the place of the
            parameters wherever the network is judged or kept; None for no mean.
        max_time: seconds after which training stops as Ctrl-C stops it; None for no limit.
        halve_every: epochs after which the learning rate is halved, again and again; None for
            never.
        decay_floor: learning rate below which ``decay`` does not take it.
    """

    accumulate: int = 1
    clip: float | None = None
    decay: float | None = None
    decay_patience: int = 10
    ema: float | None = None
    max_time: float | None = None
    halve_every: int | None = None
    decay_floor: float = 0.0

    def __post_init__(self) -> None:
        _check_count("accumulate", self.accumulate, 1)
        _check_count("decay_patience", self.decay_patience, 1)
        if self.halve_every is not None:
            _check_count("halve_every", self.halve_every, 1)
        if not isinstance(self.decay_floor, Real) or not 0 <= self.decay_floor < math.inf:
            raise ValueError(f"decay_floor must be 0 or more; got {self.decay_floor!r}")
        if self.decay_floor and self.decay is None:
            raise ValueError("decay_floor goes with decay: it is the rate at which decay ends")
        if self.decay_floor and self.halve_every is not None:
            raise ValueError("decay_floor goes with decay alone, not with halve_every")
        for name in ("clip", "max_time"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be a number above 0, or None; got {value}")
        for name in ("decay", "ema"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise ValueError(f"{name} must lie between 0 and 1, or be None; got {value}")


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {value}")


PLAIN = Schedule()
FALLING = ("decay", "decay_patience", "decay_floor", "halve_every")
"""What a schedule says of learning rates, which trainings side by side have too."""

CONFIG = tuple(f.name for f in fields(FitConfig) if f.name != "seed")
TRAINING = (*CONFIG, *FALLING)
"""The names in a configuration that say how to train; all others are the model's."""
