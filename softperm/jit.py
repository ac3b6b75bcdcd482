"""Compiled kernels: the one decorator for numba, with a cache that sees every change of a kernel.

numba keys the cache of a compiled function by the source of the function's own file. A function
that calls another file's function, or reads another file's constant, therefore keeps running with
the old one after an edit. Here the key is a hash of the kernel's file and of all files of this
package that it imports, directly or through others.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

PACKAGE = Path(__file__).parent
COMPILATION_SECONDS = 120  # how long a process waits for another one that compiles the same kernel
_PARSING = Lock()
_IMPORTS = re.compile(rf"^(?:from|import) ({PACKAGE.name}[\w.]*)(?: import (\([^)]*\)|.*))?", re.M)


def kernel(function: Callable | None = None, **options: Any) -> Any:
    """Compiles a function with numba: without the GIL, cached on disk.

    Where neither the package's folder nor the user's cache can be written, the function is compiled
    anew in each process.

    Args:
        function: the function; left out when there are options, as in ``@kernel(fastmath=True)``.
        options: further options of ``numba.njit``.
    """
    if function is None:
        return lambda function: kernel(function, **options)
    import numba

    plain: Any = inspect.unwrap(function)  # the shape checks of a test run cannot be compiled
    options = {"nogil": True, "no_cfunc_wrapper": True, **options}
    dispatcher: Any = numba.njit(**options)(plain)
    with suppress(RuntimeError):  # numba found no folder that it may write to
        dispatcher._cache = _source_cache()(plain)
    return dispatcher


def inner(function: Callable | None = None, **options: Any) -> Any:
    """Compiles a function that only kernels call: part of their code, so not cached by itself."""
    if function is None:
        return lambda function: inner(function, **options)
    import numba

    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    return numba.njit(**options)(inspect.unwrap(function))


def gpu_kernel(function: Callable | None = None, **options: Any) -> Any:
    """Compiles a function with Triton, for CUDA devices; options are those of ``triton.jit``.

    Triton compiles a kernel once more for each combination of integer arguments that are 1 or
    multiples of 16, and of arrays that begin at multiples of 16 bytes. Numbers that vary from batch
    to batch belong in ``do_not_specialize``, and arrays that are parts of others and read in any
    order in ``do_not_specialize_on_alignment``.
    """
    import triton  # absent where there is no GPU

    if function is None:
        return lambda function: gpu_kernel(function, **options)
    compiled: Any = triton.jit(inspect.unwrap(function), **options)
    if hasattr(compiled, "parse"):  # not under Triton's interpreter
        compiled.parse = partial(_parse, compiled.parse)
    return compiled


def _parse(parse: Callable[[], Any]) -> Any:
    """Parses a kernel while no other thread does.

    Kernels compile in parallel, and up to Python 3.11.7 parsing in two threads can fail with
    "SystemError: AST constructor recursion depth mismatch" (python/cpython#106905).
    """
    with _PARSING:
        return parse()


def source_hash(file: Path) -> str:
    """Hash of a file and of the files of this package that it imports, directly or not."""
    digest = hashlib.sha256()
    for path in sorted(_with_imports(file)):
        digest.update(path.name.encode() + _read(path).encode())
    return digest.hexdigest()


@cache
def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def _imported(file: Path) -> frozenset[Path]:
    """Files of this package that a file imports at its top level."""
    return frozenset(path for name in _names(_read(file)) for path in _files(name))


def _names(source: str) -> Iterator[str]:
    """Dotted names that may be modules: ``from a import b`` names a and a.b."""
    for module, names in _IMPORTS.findall(source):
        yield module
        for name in re.findall(r"\w+", names):
            yield f"{module}.{name}"


def _files(name: str) -> list[Path]:
    """The file of a module of this package, if the name is one."""
    place = PACKAGE.joinpath(*name.split(".")[1:])
    return [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]


def _with_imports(file: Path) -> set[Path]:
    """A file and all files of this package that it needs."""
    needed, waiting = set(), [file]
    while waiting:
        path = waiting.pop()
        if path not in needed:
            needed.add(path)
            waiting.extend(_imported(path))
    return needed


@cache
def _source_cache() -> type:
    """Numba's cache of functions, with :func:`source_hash` in place of the hash of one file."""
    from filelock import FileLock, Timeout
    from numba.core.caching import CompileResultCacheImpl, FunctionCache
    from numba.core.runtime import rtsys

    class SourceCacheImpl(CompileResultCacheImpl):
        def __init__(self, function: Callable) -> None:
            super().__init__(function)
            stamp = source_hash(Path(inspect.getfile(function)))
            self._locator.get_source_stamp = lambda: stamp

    class SourceCache(FunctionCache):
        """Processes that need the same function at once wait for the first to compile it."""

        _impl_class = SourceCacheImpl

        def __init__(self, function: Callable) -> None:
            super().__init__(function)
            self._lock: FileLock | None = None  # made when needed: a forked process needs its own

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            found = self._load_compiled(sig, target_context)
            if found is None:
                lock = FileLock(Path(self.cache_path, f"{self._impl.filename_base}.lock"))
                with suppress(OSError, NotImplementedError, Timeout):  # then it is compiled here
                    self._impl.locator.ensure_cache_path()
                    lock.acquire(timeout=COMPILATION_SECONDS)
                    found = self._load_compiled(sig, target_context)
                self._lock = lock
                if found is not None:
                    lock.release(force=True)
            return found

        def _load_compiled(self, sig: Any, target_context: Any) -> Any:
            """Numba's load_overload without loading what only compilation needs: 0.4 s less."""
            rtsys.initialize(target_context)
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)

        def save_overload(self, sig: Any, data: Any) -> None:
            super().save_overload(sig, data)
            if self._lock is not None:
                self._lock.release(force=True)

    return SourceCache
