"""Compiled kernels: every change of their sources takes effect, and the cache finds a place."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numba.core.caching import CompileResultCacheImpl

from softperm import jit
from softperm.jit import PACKAGE, kernel, source_hash

MODULES = {
    "__init__.py": "",
    "constants.py": "STEP = 1\n",
    "inner.py": (
        "from softperm.constants import STEP\n"
        "from softperm.jit import inner\n\n"
        "@inner\ndef grow(x):\n    return 2 * x + STEP\n"
    ),
    "outer.py": (
        "from softperm.jit import kernel\n"
        "from softperm.inner import (\n    grow,\n)\n\n"
        "@kernel\ndef apply(x):\n    return grow(x)\n"
    ),
}
RUN = "from softperm.outer import apply; print(apply(10), sum(apply.stats.cache_hits.values()))"


@pytest.fixture
def package(tmp_path) -> Path:
    """A small package with this package's name and its own copy of ``jit.py``."""
    folder = tmp_path / "softperm"
    folder.mkdir()
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    shutil.copy(PACKAGE / "jit.py", folder)
    return folder


def run(package: Path, **environment: str) -> tuple[int, int]:
    """Result of the kernel in a new process, and how often it came from the cache."""
    (result,) = run_code(package, RUN, **environment)
    return result


def run_code(package: Path, code: str, **environment: str) -> list[tuple[int, int]]:
    """The results that a new process prints."""
    paths = {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | paths | environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=package.parent,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return [(int(result), int(hits)) for result, hits in lines]


def test_processes_that_start_at_once_compile_a_kernel_once(package):
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(run, [package] * 3))
    assert sorted(results) == [(21, 0), (21, 1), (21, 1)]


def test_a_forked_process_compiles_a_kernel_that_its_parent_imported(package):
    forked = f"import os; from softperm import outer\nif os.fork():\n    os.wait()\n{RUN}"
    assert run_code(package, forked) == [(21, 0), (21, 1)]


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_change_of_an_imported_kernel_or_constant_takes_effect(package):
    assert run(package) == (21, 0)
    assert run(package) == (21, 1)
    edit(package / "inner.py", "2 * x", "3 * x")
    assert run(package) == (31, 0)
    edit(package / "constants.py", "STEP = 1", "STEP = 5")
    assert run(package) == (35, 0)
    assert run(package) == (35, 1)


def test_the_users_cache_serves_a_package_that_cannot_be_written_to(package, tmp_path):
    (package / "__pycache__").write_text("not a folder")
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home/.cache")}
    assert run(package, **home) == (21, 0)
    assert run(package, **home) == (21, 1)
    assert list((tmp_path / "home").rglob("*.nbi"))


def test_functions_compile_where_no_folder_can_be_written(monkeypatch):
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    double = kernel(lambda x: 2 * x)
    assert double(4) == 8
    assert double._cache.cache_path is None


def test_kernels_release_the_gil_and_take_numbas_options():
    divide = kernel(lambda x: 1 / x, error_model="numpy")
    assert divide(0.0) == np.inf
    assert divide.targetoptions["nogil"]


def test_the_hash_covers_files_that_are_imported_by_imported_files(monkeypatch):
    file = PACKAGE / "ops" / "transport" / "cpu.py"
    before = source_hash(file)
    changed = PACKAGE / "vectors.py"
    unrelated = PACKAGE / "data" / "features.py"
    read = jit._read
    monkeypatch.setattr(jit, "_read", lambda path: read(path) + "#" * (path == unrelated))
    assert source_hash(file) == before
    monkeypatch.setattr(jit, "_read", lambda path: read(path) + "#" * (path == changed))
    assert source_hash(file) != before


def test_all_kernels_of_the_package_are_compiled_by_these_decorators():
    direct = re.compile(r"\bnjit\b|\btriton\.jit\b")
    files = [path for path in PACKAGE.rglob("*.py") if direct.search(path.read_text())]
    assert files == [PACKAGE / "jit.py"]
