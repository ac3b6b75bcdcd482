"""PyTorch Geometric's containers of graphs, imported without torch's compiler.

``torch_geometric`` imports ``torch._dynamo`` for a check of compiled models that is not used here,
which costs more than a second of processor time in every process. During the import an empty module
takes its place; afterwards torch loads the compiler as usual if a program needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch  # noqa: F401  # before the empty module is there


@contextmanager
def _without_compiler() -> Iterator[None]:
    name = "torch._dynamo"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]


with _without_compiler():
    from torch_geometric.data import Batch, Data

__all__ = ["Batch", "Data"]
