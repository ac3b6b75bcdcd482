"""What lies between a user's settings and a training: held-out graphs, device, identity."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from softperm.nn.model import ModelConfig
from softperm.training.fit import Examples, TrainingConfig
from softperm.training.tasks import Task


def plain(value: Any) -> Any:
    """A setting as JSON can hold it: numbers of NumPy, devices and paths become Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, torch.device | Path) else value


def hold_out(groups: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Graphs to keep and graphs to hold out; of each group the same share is held out.

    A group of which the share is less than half a graph is kept whole, and of every group at least
    one graph is kept.

    Args:
        groups: the group of each graph, such as its class.
        fraction: share to hold out.
        seed: of the choice.

    Returns:
        Indices kept and indices held out, each ascending.
    """
    generator = np.random.default_rng(seed)
    held = []
    for group in np.unique(groups):
        members = generator.permutation(np.flatnonzero(groups == group))
        held.append(members[: min(round(fraction * len(members)), len(members) - 1)])
    chosen = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(groups)), chosen), chosen


def feature_statistics(train: Examples) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """Mean and standard deviation of the structural features over the training vertices."""
    owner = torch.repeat_interleave(torch.arange(len(train.graphs)), train.graphs.sizes)
    rows = train.graphs.structure[torch.isin(owner, train.index)].double()
    std, mean = torch.std_mean(rows, dim=0, correction=0)
    return mean.float(), std.float()


LATER = {"head_norm": True, "decay_floor": 0.0}
"""Settings that trainings begun by 0.2.0 do not know, at what they did."""


def identity_of(settings: ModelConfig | TrainingConfig) -> dict[str, Any]:
    """Settings as a fingerprint has them: without those of :data:`LATER` that change nothing."""
    return {k: v for k, v in asdict(settings).items() if k not in LATER or v != LATER[k]}


def fingerprint(
    config: ModelConfig,
    task: Task,
    settings: TrainingConfig,
    train: Examples,
    validation: Examples | None,
) -> str:
    """Identifies a training: a change of settings or data changes it; more epochs do not."""
    text = json.dumps([identity_of(config), repr(task), {**identity_of(settings), "epochs": None}])
    digest = hashlib.sha256(text.encode())
    graphs = train.graphs
    tensors = {f.name: getattr(graphs, f.name) for f in fields(graphs)}
    tensors |= {"y": train.y, "train": train.index}
    tensors["validation"] = None if validation is None else validation.index
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()
