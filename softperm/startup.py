"""Faster start of processes: large modules that few commands use are loaded on first use.

PyTorch Geometric imports PyTorch's compiler, all its datasets and its language models, and
scikit-learn imports pandas and SciPy's statistics: more than half of the start-up time of
``softperm predict``. This concerns the process of a command and worker processes; a program that
imports softperm is left as it is.

Imports create hundreds of thousands of objects that live until the end. Python's garbage collector
visits them again and again, and once more when the process ends: a fifth of the start-up time.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

DEFERRED = {
    "fsspec",
    "networkx",
    "numpy.f2py",
    "pandas",
    "scipy.stats",
    "torch._dynamo",
    "torch.distributions",
    "torch.export",
    "torch.profiler",
    "torch_geometric.datasets",
    "torch_geometric.explain",
    "torch_geometric.llm",
    "torch_geometric.loader",
    "torch_geometric.nn",
    "torch_geometric.transforms",
}
COLLECTION_THRESHOLDS = (50_000, 20, 100)
"""New objects until a garbage collection, and young collections until an older generation's."""
METADATA = {
    "__cached__", "__class__", "__dict__", "__doc__", "__file__", "__loader__", "__name__",
    "__package__", "__spec__", "__warningregistry__",
}  # fmt: skip
"""Attributes that ``inspect`` and ``warnings`` read from all modules: no reason to load one."""


class _DeferredModule(ModuleType):
    """A module that runs its code when an attribute other than metadata is first read."""

    def __getattribute__(self, name: str) -> Any:
        if name in METADATA:
            return super().__getattribute__(name)
        loader = self.__spec__.loader
        self.__class__ = ModuleType  # type: ignore[assignment]
        loader.inner.exec_module(self)  # type: ignore[attr-defined]
        return getattr(self, name)


class _DeferringLoader(Loader):
    """Leaves a module unexecuted; ``inner`` is the loader that executes it later."""

    def __init__(self, inner: Loader) -> None:
        self.inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _DeferredModule


class _DeferringFinder(MetaPathFinder):
    """Finds the deferred modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferringLoader(spec.loader)
        return spec


def defer_imports() -> None:
    """Makes later imports of the deferred modules wait for their first use."""
    if not any(isinstance(finder, _DeferringFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DeferringFinder())


def collect_rarely() -> None:
    """Runs the garbage collector less often, and not over all objects when the process ends."""
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    atexit.register(_leave_garbage)


def _leave_garbage() -> None:
    """Spares the last garbage collection, unless Triton would report all its objects as leaked."""
    if "triton" not in sys.modules:
        gc.freeze()
