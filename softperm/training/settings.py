"""The settings of a training, declared once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from softperm.settings import Rule, Settings, rules, setting

CRITERIA = ("loss", "score", "late-score", "last")
SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True)
class TrainingConfig(Settings):
    """How a network is trained."""

    epochs: int = setting(300, "Passes over the training graphs.", at_least=1, group="Training")
    batch_size: int = setting(
        64,
        "Graphs in a mini-batch; several devices share a mini-batch.",
        at_least=1,
        group="Training",
    )
    learning_rate: float = setting(1e-3, "Learning rate of Adam.", above=0, group="Training")
    weight_decay: float = setting(
        0.0, "L2 penalty, added to the gradient.", at_least=0, group="Training"
    )
    decoupled_decay: bool = setting(
        False,
        "Shrink the weights by weight_decay times the learning rate in every step, as AdamW does, "
        "in place of adding the penalty to the gradient.",
        group="Training",
    )
    schedule: str = setting(
        "constant",
        "Learning rate over the epochs: constant, or cosine, which falls along half a cosine to "
        "2 % of the initial rate.",
        choices=SCHEDULES,
        group="Training",
    )
    class_weight: object = setting(
        None,
        "Weights of classes in the loss, as in scikit-learn: balanced for weights inversely "
        "proportional to the numbers of training graphs, or a dict from class to weight; None for "
        "equal weights.",
        kind=object,
        group="Training",
    )
    label_smoothing: float = setting(
        0.0,
        "Share of a target's probability that the training loss spreads evenly over all classes; "
        "no effect in regression.",
        at_least=0,
        below=1,
        group="Training",
    )
    criterion: str = setting(
        "loss",
        "Validation figure that selects the best epoch: loss, score, or late-score. Among "
        "equally good epochs, late-score selects the last and the others select the first. "
        "last always selects the last epoch.",
        choices=CRITERIA,
        group="Training",
    )
    patience: int | None = setting(
        None,
        "Stop after this many epochs without a better one; None to train all epochs.",
        kind=int,
        at_least=1,
        group="Training",
    )
    seed: int = setting(
        0, "Seed of parameters and mini-batches: same seed and number of threads, same numbers.",
        at_least=0,
        group="Training",
    )  # fmt: skip
    accumulate: int = setting(
        1,
        "Number of parts in which a mini-batch is computed, one after the other, to save memory. "
        "The gradient is that of the whole mini-batch; batch normalisation sees the parts.",
        at_least=1,
        group="Training",
    )
    clip: float | None = setting(
        None, "Maximum norm of the gradient; None for no limit.", kind=float, above=0,
        group="Training",
    )  # fmt: skip
    decay: float | None = setting(
        None,
        "Factor on the learning rate after more than decay_patience epochs without a better one; "
        "None for a constant rate.",
        kind=float,
        above=0,
        below=1,
        group="Training",
    )
    decay_patience: int = setting(
        10,
        "Epochs without a better one before decay, counted as ReduceLROnPlateau does.",
        at_least=1,
        group="Training",
    )
    ema: float | None = setting(
        None,
        "Decay of an exponential moving average of the weights, which is then validated and "
        "returned in place of the weights; None for no average.",
        kind=float,
        above=0,
        below=1,
        group="Training",
    )
    max_time: float | None = setting(
        None,
        "Seconds after which training stops, to be resumed from its checkpoint; None for no limit.",
        kind=float,
        above=0,
        group="Training",
    )
    halve_every: int | None = setting(
        None,
        "Halve the learning rate every so many epochs; None for never.",
        kind=int,
        at_least=1,
        group="Training",
    )
    decay_floor: float = setting(
        0.0, "Learning rate at which decay ends.", at_least=0, group="Training"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay_floor and self.decay is None:
            raise ValueError("decay_floor needs decay: it is the learning rate at which decay ends")
        if self.decay_floor and self.halve_every is not None:
            raise ValueError("decay_floor works with decay alone, not with halve_every")
        check_class_weight(self.class_weight)
        if self.schedule == "cosine" and (self.decay or self.halve_every):
            other = "decay" if self.decay else "halve_every"
            raise ValueError(f"schedule cosine works alone, not with {other}: set {other} to None")


@dataclass(frozen=True)
class ForestConfig(Settings):
    """The random forest of a head ``forest`` or ``mlp+forest``."""

    trees: int = setting(300, "Number of trees of a random forest.", at_least=1, group="Forest")
    forest_colours: int = setting(
        3,
        "Rounds of Weisfeiler-Leman colours that a random forest counts.",
        at_least=0,
        below=17,
        group="Forest",
    )
    forest_vectors: bool = setting(
        True,
        "Let a random forest read aligned vectors beside counts and quantiles.",
        group="Forest",
    )


def check_class_weight(class_weight: object) -> None:
    """Raises ValueError unless it is None, ``balanced``, or a dict of weights."""
    if isinstance(class_weight, Mapping):
        for each, weight in class_weight.items():
            Rule("", float, at_least=0).check(f"class_weight of class {each!r}", weight)
    elif class_weight is not None and class_weight != "balanced":
        raise ValueError(
            "class_weight must be 'balanced', a dict from class to weight, or None; "
            f"got {class_weight!r}"
        )


ONE_MODEL_ONLY = ("accumulate", "clip")
"""Settings that a stack of models does not support."""

TRAINING = tuple(name for name, _ in rules(TrainingConfig) if name not in ("seed", *ONE_MODEL_ONLY))
"""Settings that a recipe may choose for any system."""
