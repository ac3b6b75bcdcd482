"""Faster start of a command: modules that few commands use are loaded on first use.

PyTorch Geometric imports PyTorch's compiler, all its datasets and its language models: more than
half of the start-up time of ``softperm predict``. This concerns the process of the command alone;
a program that imports softperm is left as it is.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

DEFERRED = {
    "torch._dynamo",
    "torch_geometric.datasets",
    "torch_geometric.explain",
    "torch_geometric.llm",
    "torch_geometric.loader",
    "torch_geometric.nn",
    "torch_geometric.transforms",
}


class _Deferring(MetaPathFinder):
    """Finds the deferred modules, with a loader that runs them at the first use of an attribute."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in DEFERRED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def defer_imports() -> None:
    """Makes later imports of the deferred modules wait for their first use."""
    if not any(isinstance(finder, _Deferring) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Deferring())
