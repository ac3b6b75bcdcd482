"""All systems by name: π-GNN, its variants, and the baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import nn

from softperm.lab.baselines import KERNELS, SYSTEMS, DataShape, Kernel, System
from softperm.nn.model import ModelConfig, PiGNN, build

_FROM_DATA = (
    "outputs", "structure_size", "attribute_size", "edge_attribute_size", "weighted",
    "label_sizes", "edge_label_sizes",
)  # fmt: skip


@dataclass(frozen=True)
class PiGNNSystem(System):
    """π-GNN as a system; its settings are those of ``ModelConfig``.

    Attributes:
        fixed: the settings of the variant.
    """

    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings of a recipe; the data and the variant determine all others."""
        determined = (*_FROM_DATA, *self.fixed)
        return tuple(f.name for f in fields(ModelConfig) if f.name not in determined)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raises ValueError if a setting is out of range."""
        self._config(settings, {"outputs": 1}, largest=1)

    def build(self, shape: DataShape, settings: Mapping[str, Any], seed: int) -> nn.Module:
        """A freshly initialised network.

        Args:
            shape: sizes and statistics of the training graphs.
            settings: settings of the model. The default of ``capacity`` is ``auto``, the size of
                the largest training graph; ``none`` stands for no padding.
            seed: seed of the initial parameters.
        """
        if unknown := sorted(set(settings) - set(self.settings)):
            raise ValueError(f"{self.title} has no setting {', '.join(unknown)}")
        from_data = {name: getattr(shape, name) for name in _FROM_DATA}
        config = self._config(settings, from_data, largest=int(shape.size_percentiles[-1]))
        return build(config, seed, shape.statistics)

    def _config(
        self, settings: Mapping[str, Any], from_data: Mapping[str, Any], largest: int
    ) -> ModelConfig:
        words = {"auto": largest, "none": None}
        capacity = settings.get("capacity", "auto")
        capacity = words[capacity] if isinstance(capacity, str) and capacity in words else capacity
        return ModelConfig.from_dict({**settings, "capacity": capacity, **self.fixed, **from_data})


def find_system(name: str) -> System | Kernel:
    """The system of a name; ``NAME+VARIANT`` is a variant, whose settings a recipe has.

    Raises:
        ValueError: no system has this name; the message lists all names.
    """
    known = _known()
    base, plus, variant = name.partition("+")
    if base not in known:
        raise ValueError(f"no system is called {base}: there are {', '.join(known)}")
    if not plus:
        return known[base]
    return replace(known[base], name=name, title=f"{known[base].title}, {variant}")


def system_names() -> list[str]:
    """All names; those of π-GNN come first."""
    return list(_known())


def _known() -> dict[str, System | Kernel]:
    return {**PI_GNN, **SYSTEMS, **KERNELS}


def _variant(name: str, title: str, **fixed: Any) -> PiGNNSystem:
    grid: dict[str, tuple] = {"latent_vertices": (20, 30), "hidden": (32, 64)}
    if "encoder" in fixed:
        grid["layers"] = (2, 3, 4)
    tables = ("classification", "ogb", "qm9")
    shape_free = ("latent_scale",)  # changes the initial parameters alone
    return PiGNNSystem(
        name, title, tables, PiGNN, grid, stackable=True, shape_free=shape_free, fixed=fixed
    )


PI_GNN = {
    system.name: system
    for system in (
        _variant("pi-gnn", "π-GNN"),
        _variant("pi-gnn-d", "π-GNN-d", dustbin=True),
        _variant("pi-gnn-gcn", "π-GNN (GCN)", encoder="gcn"),
        _variant("pi-gnn-d-gcn", "π-GNN-d (GCN)", encoder="gcn", dustbin=True),
        _variant("pi-gnn-gin", "π-GNN (GIN)", encoder="gin"),
        _variant("pi-gnn-d-gin", "π-GNN-d (GIN)", encoder="gin", dustbin=True),
    )
}
"""The paper's own systems."""
