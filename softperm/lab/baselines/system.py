"""The records of the registry: a system that trains by gradient, and a kernel that does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from softperm.data.collection import Collection
from softperm.lab.baselines.shape import DataShape
from softperm.training.settings import TRAINING


@dataclass(frozen=True)
class System:
    """A network of the comparison.

    Attributes:
        name: as commands and records call it.
        title: as tables call it.
        tables: in which of the paper's tables it stands: classification, ogb, qm9.
        network: makes it from a dataset's shape; its keyword arguments are hyper-parameters.
        grid: the values of each hyper-parameter among which validation chooses.
        stackable: whether many of them can be trained side by side.
        alike: hyper-parameters in which networks side by side may differ: they change no shape.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    network: Callable[..., nn.Module]
    grid: Mapping[str, tuple]
    stackable: bool = False
    alike: tuple[str, ...] = ()

    def build(self, shape: DataShape, settings: Mapping[str, Any], seed: int) -> nn.Module:
        """A freshly initialised network; torch's global random state is left as it was.

        Args:
            shape: what the dataset offers.
            settings: hyper-parameters by name; those of training are not looked at.
            seed: of the initial parameters, and of dropout.

        Raises:
            ValueError: a hyper-parameter is unknown.
        """
        known = self.settings
        unknown = set(settings) - set(known) - set(TRAINING)
        if unknown:
            raise ValueError(
                f"{self.name} has the settings {', '.join(known) or 'none'}; got "
                f"{', '.join(sorted(unknown))}"
            )
        own = {key: value for key, value in settings.items() if key in known}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.network(shape, **own)

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the network's own hyper-parameters."""
        return tuple(inspect.signature(self.network).parameters)[1:]


@runtime_checkable
class KernelEstimator(Protocol):
    """What a kernel's machine offers."""

    def fit(
        self, collection: Collection, index: Int[Tensor, " b"], y: Shaped[np.ndarray, " b"]
    ) -> KernelEstimator:
        """Learns from the chosen graphs, whose classes are ``y``."""
        ...

    def predict(self, collection: Collection, index: Int[Tensor, " b"]) -> Shaped[np.ndarray, " b"]:
        """The class of each of the chosen graphs."""
        ...


@dataclass(frozen=True)
class Kernel:
    """A kernel method of the comparison.

    Attributes:
        name: as commands and records call it.
        title: as tables call it.
        tables: in which of the paper's tables it stands.
        machine: makes the estimator; its keyword arguments are hyper-parameters.
        grid: the values of each hyper-parameter among which validation chooses.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    machine: Callable[..., KernelEstimator]
    grid: Mapping[str, tuple]

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of its hyper-parameters."""
        return tuple(inspect.signature(self.machine).parameters)

    def build(self, settings: Mapping[str, Any]) -> KernelEstimator:
        """An estimator that has seen nothing."""
        return self.machine(**settings)
