"""The settings of the estimators: those of the network, of the training, and a few of their own.

The defaults of :class:`ModelConfig` and :class:`TrainingConfig` are the paper's network. Those of
the estimators, :data:`RECOMMENDED`, were chosen by cross-validation on many collections; see
``docs/results.md``. Nothing here loads torch, so that the command line can derive its options and
help from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softperm.data.feature_settings import StructuralFeatures
from softperm.data.field_settings import FieldNames
from softperm.nn.settings import ModelConfig
from softperm.settings import Rule, Settings, defaults, rules, setting
from softperm.training.settings import ForestConfig, TrainingConfig


@dataclass(frozen=True)
class EstimatorConfig(Settings):
    """The settings of an estimator besides those of its network and its training."""

    epochs: int | str = setting(
        "auto",
        "Passes over the training graphs; auto for 30 to 150, fewer the more graphs there are.",
        kind=int,
        at_least=1,
        choices=("auto",),
        group="Training",
    )
    categories: str = setting(
        "one-hot",
        "Turns discrete labels into one-hot vectors or into learnt embeddings.",
        choices=("one-hot", "embedding"),
    )
    capacity: int | str | None = setting(
        None,
        "Number of vertices to which the paper pads every graph, at no cost; auto for the size of "
        "the largest training graph, None for no padding.",
        kind=int,
        at_least=1,
        choices=("auto",),
        optional=True,
    )
    ensemble: int = setting(
        1,
        "Number of networks, trained together from different seeds; their predictions are "
        "averaged. Vectors and permutations are those of the first.",
        at_least=1,
        group="Training",
    )
    validation_fraction: float = setting(
        0.0,
        "Share of the graphs held out to select the best epoch; 0 keeps the last epoch.",
        at_least=0,
        below=1,
        group="Training",
    )
    device: object = setting(
        "auto", "Torch device; auto is a GPU if there is one.", kind=object, group="Hardware"
    )
    symmetrise: bool = setting(False, "Read directed edges in both directions.", group="Data")
    checkpoint: object = setting(
        None,
        "File that training writes every ten seconds and from which it resumes.",
        kind=object,
        group="Output",
    )
    progress: bool = setting(
        True,
        "Show a progress bar; without a terminal, log a line every ten seconds.",
        group="Output",
    )


@dataclass(frozen=True)
class AlignerConfig(Settings):
    """The settings that only an aligner has."""

    dimensions: int = setting(64, "Length of the vectors.", at_least=1)
    sample: int = setting(
        400, "Number of graphs whose exact distances are learnt, all pairs of them.",
        at_least=2, group="Training",
    )  # fmt: skip
    pair_seconds: float = setting(
        0.1, "Seconds for the distance of a pair; the middle of its interval if it takes longer.",
        above=0, group="Training",
    )  # fmt: skip


SOURCES = (
    ModelConfig, StructuralFeatures, TrainingConfig, ForestConfig, FieldNames, EstimatorConfig,
)  # fmt: skip
"""The dataclasses whose settings are the parameters of an estimator; the last one has priority."""

RECOMMENDED: dict[str, Any] = {
    "latent_vertices": 16,
    "hidden": 64,
    "scaling": "log-standard",
    "attribute_scaling": "standard",
    "permute_by": "encoded",
    "compare": "cosine",
    "temperature": 0.05,
    "latent_init": "uniform",
    "iterations": 10,
    "encoded": "both",
    "encoded_rounds": 1,
    "head": "mlp+forest",
    "head_hidden": (256,),
    "dropout": 0.5,
    "clustering": True,
    "neighbours": True,
    "walks": 8,
    "weight_decay": 1e-2,
    "decoupled_decay": True,
    "schedule": "cosine",
    "label_smoothing": 0.1,
    "ema": 0.99,
    "criterion": "late-score",
}
"""Defaults of estimators, ``train`` and ``evaluate --data`` that differ from the paper's."""

PAPER: dict[str, Any] = {
    **{
        name: value
        for source in (ModelConfig, StructuralFeatures, TrainingConfig)
        for name, value in defaults(source).items()
        if name in RECOMMENDED
    },
    "scaling": "raw",
    "capacity": "auto",
    "epochs": 300,
    "validation_fraction": 0.1,
}
"""Settings that make an estimator the paper's π-GNN: ``PiGNNClassifier(**PAPER)``."""

STEPS = 4000  # of training with epochs="auto"
FEWEST_EPOCHS, MOST_EPOCHS = 30, 150


@dataclass(frozen=True)
class Parameter:
    """A parameter of the estimators and an option of ``softperm train``."""

    name: str
    default: Any
    rule: Rule


def parameters(
    sources: Sequence[type] = SOURCES, changed: Mapping[str, Any] | None = None
) -> Iterator[Parameter]:
    """All parameters of the estimators, in the order of their declaration.

    Args:
        sources: the dataclasses that declare them.
        changed: defaults that differ from the recommended ones.
    """
    own = {name for name, _ in rules(EstimatorConfig)}
    for source in sources:
        values = {**defaults(source), **RECOMMENDED, **(changed or {})}
        for name, rule in rules(source):
            if source is EstimatorConfig or name not in own:
                yield Parameter(name, values[name], rule)


def training_config(values: Mapping[str, Any], graphs: int) -> TrainingConfig:
    """The settings of a training; ``graphs`` training graphs decide what is ``auto``."""
    chosen = choose(TrainingConfig, values)
    if chosen["epochs"] == "auto":
        dict(rules(TrainingConfig))["batch_size"].check("batch_size", chosen["batch_size"])
        batches = -(-graphs // chosen["batch_size"])
        chosen["epochs"] = min(max(STEPS // max(batches, 1), FEWEST_EPOCHS), MOST_EPOCHS)
    return TrainingConfig(**chosen)


def check_settings(values: Mapping[str, Any]) -> None:
    """Raises ValueError for the first setting that is out of range or does not fit another."""
    EstimatorConfig(**choose(EstimatorConfig, values))
    training_config(values, graphs=1)
    for source in (ModelConfig, StructuralFeatures, ForestConfig, FieldNames):
        outputs = {"outputs": 1} if source is ModelConfig else {}
        source(**outputs, **choose(source, values))


def choose(source: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are settings of a dataclass."""
    return {name: values[name] for name, _ in rules(source) if name in values}
