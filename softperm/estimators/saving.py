"""Fitted estimators to and from model folders."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from softperm.estimators.preparation import find_device, plain
from softperm.folder import FolderError, read_folder, write_folder
from softperm.model import ModelConfig, rebuild
from softperm.vocabulary import Vocabulary

if TYPE_CHECKING:
    from softperm.estimators.base import PiGNNEstimator

Estimator = TypeVar("Estimator", bound="PiGNNEstimator")
KEYS = {"kind", "params", "model", "vocabulary", "targets", "best_epoch"}


def save(estimator: PiGNNEstimator, folder: str | Path) -> None:
    """Writes a fitted estimator; where its training was kept is not part of it."""
    params = {name: plain(value) for name, value in estimator.get_params().items()}
    config = {
        "kind": type(estimator).__name__,
        "params": {**params, "checkpoint": None},
        "model": asdict(estimator.model_.config),
        "vocabulary": estimator.vocabulary_.to_config(),
        "targets": estimator._targets_config(),
        "best_epoch": estimator.best_epoch_,
    }
    write_folder(folder, config, estimator.model_.state_dict())


def load(kind: type[Estimator], folder: str | Path, device: str | torch.device | None) -> Estimator:
    """Reads a fitted estimator of the given class.

    Raises:
        FolderError: the folder does not hold one.
    """
    config, tensors = read_folder(folder, kind=kind.__name__)
    model = rebuild(config.get("model"), tensors, str(folder))
    assert model.config is not None, "a network made from a configuration has it"
    try:
        made = _restore(kind, config)
        _check_fits(made, model.config)
    except KeyError as problem:
        raise FolderError(f"{folder}: config.json lacks {problem}") from None
    except (TypeError, ValueError, AttributeError) as problem:
        detail = " ".join(str(problem).split())
        raise FolderError(f"{folder}: config.json is damaged: {detail}") from None
    made.device = device or made.device
    made.model_ = model.to(find_device(made.device))
    made.curve_, made.interrupted_ = (), False
    return made


def _restore(kind: type[Estimator], config: dict[str, Any]) -> Estimator:
    """An estimator with all that a configuration says, but for the network."""
    unknown = set(config) - KEYS
    if unknown:
        raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
    made = kind(**config["params"])
    made._check_settings()
    made.vocabulary_ = Vocabulary.from_config(config["vocabulary"])
    made._set_targets(config["targets"])
    made.best_epoch_ = int(config["best_epoch"])
    return made


def _check_fits(estimator: PiGNNEstimator, config: ModelConfig) -> None:
    """Raises ValueError unless targets and vocabulary are those of the network."""
    vocabulary = estimator.vocabulary_
    expected = {
        "outputs": estimator.task_.outputs,
        "attribute_size": sum(map(len, vocabulary.labels)) + vocabulary.x_size,
        "edge_attribute_size": sum(map(len, vocabulary.edge_labels)) + vocabulary.edge_attr_size,
        "weighted": vocabulary.weighted,
    }
    for name, value in expected.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"its model has {name} {getattr(config, name)}, its targets and vocabulary {value}"
            )
