"""A run's configuration: settings of network, training, features, forest and prediction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

from softperm.lab.records import Record, Run
from softperm.lab.systems import PiGNNSystem, find_system
from softperm.settings import (
    TRAINING,
    ForestConfig,
    ModelConfig,
    PiGNNConfig,
    Settings,
    StructuralFeatures,
    TrainingConfig,
    choose,
    defaults,
    parameters,
    rules,
)

Kind = TypeVar("Kind", bound=Settings)
FEATURES = tuple(name for name, _ in rules(StructuralFeatures))
FOREST = tuple(name for name, _ in rules(ForestConfig))
FORESTS = ("forest", "mlp+forest")
PREDICTORS = ("mlp", *FORESTS)
"""Heads that share the training of a network."""
ENSEMBLE = dict(rules(PiGNNConfig))["ensemble"]


def configuration_key(configuration: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """A text that is equal for equal configurations, also after JSON made lists of tuples."""
    counted = {k: v for k, v in configuration.items() if k not in without}
    return json.dumps(counted, sort_keys=True)


def predicts_by(run: Run) -> str:
    """The head of a run's networks, or what predicts in its place."""
    return run.configuration.get("head", "mlp")


def reads_curve(run: Run) -> bool:
    """Whether the figures of a run are those of one network's training curve."""
    return ensemble_size(run) == 1 and predicts_by(run) not in FORESTS


def ensemble_size(run: Run) -> int:
    """Number of networks whose predictions a run averages."""
    return run.configuration.get("ensemble", 1)


def final_runs_of(model: str, configuration: Mapping[str, Any], networks: int) -> int:
    """How often a configuration is trained and tested.

    Args:
        model: name of the system; one without random choices needs a single run.
        configuration: its settings; a mean of k networks is one run of k networks.
        networks: requested number of networks in all.
    """
    if not find_system(model).random:
        return 1
    return max(1, networks // configuration.get("ensemble", 1))


def epochs_of(run: Run) -> int:
    """Maximum number of epochs of a run; 1 for a system without epochs."""
    return run.configuration.get("epochs", 1)


def model_settings(run: Run) -> dict[str, Any]:
    """The settings of the network in a run's configuration."""
    others = (*TRAINING, *FEATURES, *FOREST, "ensemble")
    settings = {k: v for k, v in run.configuration.items() if k not in others}
    return {**settings, "head": "mlp"} if settings.get("head") in FORESTS else settings


def settings_of(run: Run, kind: type[Kind]) -> Kind:
    """The settings of training, features or forests in a run's configuration.

    The word none means None, which TOML does not have.
    """
    optional = {name for name, rule in rules(kind) if rule.optional}
    return kind(
        **{
            name: None if name in optional and value == "none" else value
            for name, value in choose(kind, run.configuration).items()
        }
    )


def check_configuration(model: str, configuration: Mapping[str, Any]) -> None:
    """Raises ValueError if a system does not have these settings or a value is out of range."""
    system = find_system(model)
    known = (*TRAINING, *system.settings)
    if isinstance(system, PiGNNSystem):
        known += (*FEATURES, *FOREST, "ensemble")
    if unknown := sorted(set(configuration) - set(known)):
        raise ValueError(f"{model} has no setting {', '.join(unknown)}: it has {', '.join(known)}")
    if configuration.get("epochs") == "auto":
        configuration = {**configuration, "epochs": 1}
    run = Run("", model, "final", 0, 1, configuration, 0)
    if isinstance(system, PiGNNSystem):
        system.check(model_settings(run))
        settings_of(run, StructuralFeatures)
        settings_of(run, ForestConfig)
        ENSEMBLE.check("ensemble", ensemble_size(run))
    settings_of(run, TrainingConfig)


def recommended(names: Sequence[str]) -> dict[str, Any]:
    """Defaults of the estimators that differ from the paper's, as a recipe writes them.

    Args:
        names: settings of the network; those of training, features and forests are always there.
    """
    known = {*names, *TRAINING, *FEATURES, *FOREST, "ensemble"}
    sources = (ModelConfig, StructuralFeatures, TrainingConfig, ForestConfig)
    paper = {"capacity": "auto", "ensemble": 1}
    for source in sources:
        paper |= defaults(source)
    different = {
        each.name: each.default
        for each in parameters()
        if each.name in known and each.default != paper[each.name]
    }
    return {k: "none" if v is None else v for k, v in different.items()}


def estimator_settings(records: Sequence[Record], *, categories: str, seed: int) -> dict[str, Any]:
    """The settings of an estimator with the configuration that most folds selected.

    The estimator learns from all of its graphs and keeps its last epoch. Where the learning rate
    does not follow the number of epochs, it trains for the median of the best epochs of the
    final runs.
    """
    counts = Counter(configuration_key(record.run.configuration) for record in records)
    key, _ = counts.most_common(1)[0]
    chosen = [r for r in records if configuration_key(r.run.configuration) == key]
    run, system = chosen[0].run, find_system(chosen[0].run.model)
    assert isinstance(system, PiGNNSystem)
    training = settings_of(run, TrainingConfig)
    settings = {**defaults(ModelConfig), **system.fixed, **model_settings(run)}
    settings["head"] = predicts_by(run)
    for kind in (StructuralFeatures, TrainingConfig, ForestConfig):
        settings |= vars(settings_of(run, kind))
    capacity = run.configuration.get("capacity", "auto")
    settings |= {"capacity": None if capacity == "none" else capacity, "categories": categories}
    settings |= {"ensemble": ensemble_size(run), "seed": seed, "validation_fraction": 0.0}
    if training.decay is not None:  # the rate decays by validation losses
        return settings | {"validation_fraction": 0.1}
    if training.schedule == "constant" and training.criterion != "last":
        settings["epochs"] = max(1, round(median(record.best_epoch for record in chosen)))
    return settings | {"patience": None}
