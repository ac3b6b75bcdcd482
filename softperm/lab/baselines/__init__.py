"""Every system the paper compares with: a registry by name, one file for each."""

from __future__ import annotations

from softperm.lab.baselines import classification, ogb, qm9
from softperm.lab.baselines.shape import DataShape, TooLarge
from softperm.lab.baselines.system import Kernel, System

__all__ = ["KERNELS", "SYSTEMS", "DataShape", "Kernel", "System", "TooLarge", "system"]

SYSTEMS: dict[str, System] = {
    s.name: s for s in (*classification.SYSTEMS, *ogb.SYSTEMS, *qm9.SYSTEMS)
}
"""The networks, by name."""

KERNELS: dict[str, Kernel] = {k.name: k for k in classification.KERNELS}
"""The kernel methods, by name."""


def system(name: str) -> System:
    """The network of a name.

    Raises:
        ValueError: there is none; kernels are no networks, and π-GNN is ``softperm.PiGNN``.

    Example:
        >>> system("gin").title
        'GIN'
    """
    if name in KERNELS:
        raise ValueError(f"{name} is a kernel, not a network: KERNELS[{name!r}].build(settings)")
    if name not in SYSTEMS:
        raise ValueError(f"expected a system, one of {', '.join(SYSTEMS)}; got {name!r}")
    return SYSTEMS[name]
