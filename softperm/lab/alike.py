"""Which trainings share work: networks of one shape a stack, all criteria one training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from softperm.lab.baselines import Kernel, System
from softperm.lab.records import Run
from softperm.training.fit import Epoch


def key_of(configuration: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """The same for a configuration and for what a file made of it: lists for tuples.

    Args:
        configuration: hyper-parameters by name.
        without: names that do not count.
    """
    counted = {k: v for k, v in configuration.items() if k not in without}
    return json.dumps(counted, sort_keys=True)


def shape_of(run: Run, system: System | Kernel) -> str:
    """The same for runs whose networks can be trained side by side.

    Each may have its own learning rate, its own criterion, and its own values of what the system
    calls alike.
    """
    free = ("learning_rate", "criterion", *system.alike) if isinstance(system, System) else ()
    return key_of(run.configuration, free)


def training_of(run: Run) -> tuple[str, int, int, str]:
    """The same for runs that are one training: the criterion only looks at its curve.

    A run of the final stage keeps the network of its own best epoch, which no two criteria share;
    nor do they where a learning rate falls by what the criterion says.
    """
    looks_only = run.stage == "selection" and run.configuration.get("decay") is None
    without = ("criterion",) if looks_only else ()
    return run.dataset, run.fold, run.seed, key_of(run.configuration, without)


def distinct(runs: Iterable[Run]) -> list[Run]:
    """One run of each training, the first."""
    found: dict[tuple[str, int, int, str], Run] = {}
    for run in runs:
        found.setdefault(training_of(run), run)
    return list(found.values())


def best_epoch(
    curve: Sequence[Epoch], criterion: str, higher_is_better: bool, patience: int | None
) -> int:
    """The epoch that a training by this criterion would have kept.

    Args:
        curve: the epochs of a training that went on at least as long.
        criterion: of :data:`softperm.training.settings.CRITERIA`.
        higher_is_better: direction of the score.
        patience: epochs without a better one after which training ends; None for never.

    Returns:
        Its number, counted from 1.

    >>> losses = enumerate((3.0, 2.0, 4.0, 4.0, 1.0), start=1)
    >>> curve = [Epoch(k, 0.0, loss, 0.0, 0.0) for k, loss in losses]
    >>> [best_epoch(curve, "loss", True, patience) for patience in (2, 3)]
    [2, 5]
    """
    best, least = 0, math.inf
    for epoch in curve:
        if patience is not None and best and epoch.number - best > patience:
            break
        value = epoch.validation_loss
        if criterion != "loss":
            value = -epoch.validation_score if higher_is_better else epoch.validation_score
        equal = criterion == "late-score" and value == least and math.isfinite(value)
        if value < least or equal or best == 0:
            best, least = epoch.number, math.inf if math.isnan(value) else value
    return best
