"""The systems that the paper compares with π-GNN: one module each, and a registry by name."""

from __future__ import annotations

from softperm.lab.baselines.registry import KERNELS, SYSTEMS, system
from softperm.lab.baselines.system import DataShape, Kernel, System, TooLarge

__all__ = ["KERNELS", "SYSTEMS", "DataShape", "Kernel", "System", "TooLarge", "system"]
