"""What a training learns from: encoded graphs, their targets, the task and the split."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from softperm.data.collection import Collection
from softperm.data.datasets.splits import Split
from softperm.data.vocabulary import Vocabulary
from softperm.settings import ModelConfig, Settings, TrainingConfig, defaults
from softperm.training.batching import Examples
from softperm.training.tasks import Task


@dataclass(frozen=True)
class TrainingData:
    """Graphs with targets, divided into training, validation and test graphs.

    Attributes:
        graphs: all graphs.
        y: their targets: codes of classes (B,), or numbers (B, T) with NaN where unknown.
        task: what the targets mean.
        split: training, validation and test graphs; the last two may be empty.
        vocabulary: labels and attribute sizes of the training graphs.
        name: of the file or dataset.
        ids: the name of each graph in the input, for messages and pictures.
        target_names: names of the targets, where the input has names.
        classes: the class of each code, for a classification.
        target_shape: shape of one graph's target as users see it: ``()``, or ``(T,)``.
        molecules: ``ogb`` or ``qm9`` if atoms and bonds carry the features of these datasets.
        unit: of the targets, where known.
        content: SHA-256 of graphs and targets, where the source knows it.
        weight: of each graph in the loss; 1 by default.
    """

    graphs: Collection
    y: Shaped[Tensor, "B ..."]
    task: Task
    split: Split
    vocabulary: Vocabulary
    name: str = "graphs"
    ids: Sequence[str] = ()
    target_names: tuple[str, ...] = ()
    classes: np.ndarray | None = None
    target_shape: tuple[int, ...] = ()
    molecules: str | None = None
    unit: str | None = None
    content: str | None = None
    weight: Float[Tensor, " B"] | None = None

    def examples(self, part: Int[Tensor, " b"], codes: bool = False) -> Examples:
        """Some of the graphs with their targets.

        Args:
            part: which graphs.
            codes: whether batches carry labels as codes, for a network that embeds them.
        """
        return Examples(replace(self.graphs, codes=codes), self.y, part, self.weight)

    def fingerprint(self, config: ModelConfig, settings: TrainingConfig) -> str:
        """Identifies a training: a change of settings or data changes it.

        More epochs or more time do not change it, nor does a setting at its default, so that a
        setting added later leaves older checkpoints valid. The cosine schedule depends on the
        number of epochs, which then counts.
        """
        trained = changed_settings(settings)
        free = ("max_time",) if settings.schedule == "cosine" else ("epochs", "max_time")
        unchanging = {k: v for k, v in trained.items() if k not in free}
        text = [changed_settings(config), unchanging, repr(self.task), list(self.target_names)]
        digest = hashlib.sha256(json.dumps(text).encode())
        digest.update((self.content or self._hash_content()).encode())
        for part in (self.split.train, self.split.validation, self.split.test):
            digest.update(part.to(torch.int64).numpy().tobytes() + b";")
        if self.weight is not None:
            digest.update(self.weight.double().numpy().tobytes())
        return digest.hexdigest()

    def _hash_content(self) -> str:
        digest = hashlib.sha256()
        tensors = {f.name: getattr(self.graphs, f.name) for f in fields(self.graphs)}
        for name, tensor in {**tensors, "y": self.y}.items():
            if isinstance(tensor, Tensor):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def changed_settings(settings: Settings) -> dict[str, Any]:
    """The settings that are not at their default, and what is no setting."""
    usual = defaults(type(settings))
    values = asdict(settings)  # type: ignore[call-overload]
    return {k: v for k, v in values.items() if k not in usual or v != usual[k]}


def hold_out(groups: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Divides graphs at random, with the same share of every group held out.

    The number held out of a group is rounded; at least one graph of every group stays.

    Returns:
        Indices that stay and indices held out, each ascending.
    """
    generator = np.random.default_rng(seed)
    held = []
    for group in np.unique(groups):
        members = generator.permutation(np.flatnonzero(groups == group))
        held.append(members[: min(round(fraction * len(members)), len(members) - 1)])
    chosen = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(groups)), chosen), chosen


def divide(
    y: Tensor,
    classes: np.ndarray | None,
    test_fraction: float,
    validation_fraction: float,
    seed: int,
) -> Split:
    """Divides graphs at random, every class alike: first the test graphs, then the validation ones.

    Warns if a class is too small for a graph of it to be held out.

    Args:
        y: targets; codes of classes (B,) are divided class by class.
        classes: the class of each code, for the warning.
        test_fraction: share of all graphs to test on.
        validation_fraction: share of the other graphs to validate on.
        seed: of the random choice.
    """
    groups = y.numpy() if y.ndim == 1 else np.zeros(len(y))
    classes = classes if y.ndim == 1 else None
    rest, test = hold_out(groups, test_fraction, seed)
    kept, held = hold_out(groups[rest], validation_fraction, seed)
    _warn_too_few(groups, test, test_fraction, "testing", classes)
    _warn_too_few(groups[rest], held, validation_fraction, "validation", classes)
    return Split(*map(torch.from_numpy, (rest[kept], rest[held], test)))


def _warn_too_few(
    groups: np.ndarray,
    held: np.ndarray,
    fraction: float,
    purpose: str,
    classes: np.ndarray | None,
) -> None:
    """Warns of classes of which no graph is held out though a fraction should be."""
    if not fraction:
        return
    sizes = {int(g): int((groups == g).sum()) for g in np.setdiff1d(groups, groups[held])}
    if not sizes:
        return
    listed = [
        f"{size} graphs" if classes is None else f"{size} of class {classes[group].item()!r}"
        for group, size in sizes.items()
    ]
    more = f" and {len(listed) - 3} more classes" if len(listed) > 3 else ""
    effects = {
        ("validation", True): "the best epoch is selected without them",
        ("validation", False): "the last epoch is kept",
        ("testing", True): "the test score does not cover them",
        ("testing", False): "there is no test score",
    }
    warnings.warn(
        f"too few graphs to hold out {fraction:g} of them for {purpose}: "
        f"{', '.join(listed[:3])}{more}; {effects[purpose, len(held) > 0]}",
        stacklevel=4,
    )
