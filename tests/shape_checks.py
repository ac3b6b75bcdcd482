"""What checks shapes and types of every call into the library while its tests run.

jaxtyping binds the arguments of every call to names, which takes longer than many of our functions.
Three of four calls are to functions that mention no shape: there beartype alone checks the types.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from types import FunctionType
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.door import die_if_unbearable

_CHECKERS: dict[tuple, Callable] = {}
_HINTS: dict[Any, dict[str, Any]] = {}
_TYPE_ERRORS = BeartypeConf(violation_type=TypeError)  # as jaxtyping's errors are
_with_shapes = jaxtyping.jaxtyped


def check(function: Any) -> Any:
    """Does what beartype does, but once for each inner function instead of on each of its births.

    What jaxtyping hands over is never the function itself, only an empty one with its signature.
    So inner functions of one name and signature share their checker, where they have no defaults.
    """
    inner = "<locals>" in getattr(function, "__qualname__", "")
    if not inner or function.__defaults__ or function.__kwdefaults__:
        return _at_first_call(partial(beartype, function))
    names = function.__code__.co_varnames
    hints = repr(function.__annotations__)
    key = (function.__module__, function.__qualname__, names, hints)
    if key not in _CHECKERS:
        _CHECKERS[key] = beartype(function)
    return _CHECKERS[key]


def jaxtyped(function: Any = None, *, typechecker: Any) -> Any:
    """Replaces the decorator that jaxtyping's import hook puts on functions and classes."""
    if function is None:
        return partial(jaxtyped, typechecker=typechecker)
    if not isinstance(function, FunctionType) or inspect.iscoroutinefunction(function):
        return _with_shapes(function, typechecker=typechecker)
    if not function.__annotations__ or getattr(function, "__no_type_check__", False):
        return function
    if function.__code__ not in _HINTS:
        hints = {k: _resolved(v, function) for k, v in function.__annotations__.items()}
        _HINTS[function.__code__] = hints
    hints = _HINTS[function.__code__]
    if any(map(_mentions_shapes, hints.values())):
        return _with_shapes(function, typechecker=typechecker)
    inner = "<locals>" in function.__qualname__
    checked = _bound(function, hints) if inner else _at_first_call(partial(_typed, function, hints))

    @wraps(function)
    def wrapper(*args, **kwargs):
        disabled = jaxtyping.config.jaxtyping_disable or hasattr(wrapper, "__no_type_check__")
        return (function if disabled else checked)(*args, **kwargs)

    return wrapper


def _resolved(hint: Any, function: FunctionType) -> Any:
    """The object that a hint names; Any if it is imported for type checkers only."""
    try:
        return eval(hint, function.__globals__) if isinstance(hint, str) else hint
    except Exception:
        return Any


def _mentions_shapes(hint: Any) -> bool:
    """Whether an array of jaxtyping occurs anywhere in a hint."""
    if isinstance(hint, list | tuple):  # the arguments of a callable
        return any(map(_mentions_shapes, hint))
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_mentions_shapes, get_args(hint)))


def _at_first_call(decorate: Callable[[], Callable]) -> Callable:
    """A function that is decorated when it is first called: most of them never are."""
    decorated: list[Callable] = []

    def call(*args, **kwargs):
        if not decorated:
            decorated.append(decorate())
        return decorated[0](*args, **kwargs)

    return call


def _typed(function: FunctionType, hints: dict[str, Any]) -> Callable:
    """The function under beartype."""
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, hints
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return beartype(conf=_TYPE_ERRORS)(copy)


def _bound(function: FunctionType, hints: dict[str, Any]) -> Callable:
    """An inner function whose arguments are checked one by one, which compiles nothing."""
    signature = inspect.signature(function)

    def call(*args, **kwargs):
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            kind = signature.parameters[name].kind
            values = value if kind is kind.VAR_POSITIONAL else [value]
            for each in value.values() if kind is kind.VAR_KEYWORD else values:
                die_if_unbearable(each, hints.get(name, Any), conf=_TYPE_ERRORS)
        result = function(*args, **kwargs)
        if not inspect.isgenerator(result):
            die_if_unbearable(result, hints.get("return", Any), conf=_TYPE_ERRORS)
        return result

    return call
