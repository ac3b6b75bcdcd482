"""What checks shapes and types of every call into the library while its tests run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype

_CHECKERS: dict[tuple, Callable] = {}


def check(function: Any) -> Any:
    """Does what beartype does, but once for each inner function instead of on each of its births.

    What jaxtyping hands over is never the function itself, only an empty one with its signature.
    So inner functions of one name and signature share their checker, where they have no defaults.
    """
    inner = "<locals>" in getattr(function, "__qualname__", "")
    if not inner or function.__defaults__ or function.__kwdefaults__:
        return beartype(function)
    names = function.__code__.co_varnames
    hints = repr(function.__annotations__)
    key = (function.__module__, function.__qualname__, names, hints)
    if key not in _CHECKERS:
        _CHECKERS[key] = beartype(function)
    return _CHECKERS[key]
