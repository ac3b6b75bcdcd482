"""Shared by all tests: the real datasets, the order of files, checks of shapes."""

import gc
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import jaxtyping
import pytest
import shape_checks

for threads in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # tests run side by side, and Ray's machines have one core
sys.modules["outdated"] = None  # type: ignore[assignment]  # ogb would ask the network for newer versions
jaxtyping.jaxtyped = shape_checks.jaxtyped
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for commands that a shell runs with &
    signal.signal(signal.SIGINT, signal.default_int_handler)


def find_data_root() -> Path | None:
    """The folder of real datasets: ``SOFTPERM_DATA``, else ``shared/data`` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("SOFTPERM_DATA", beside))
    return root if (root / "tu").is_dir() else None


SLOWEST = (
    "test_kernels", "test_kills", "test_devices", "test_ray", "test_packaging", "test_streaming",
    "test_train", "test_model", "test_stack", "test_attribution", "test_worker_processes",
    "test_index", "test_lab", "test_explain", "test_train_dataset", "test_scheduler",
    "test_interrupt", "test_examples", "test_operators", "test_exact", "test_laws", "test_protocol",
)  # fmt: skip
"""The slowest test files run first, so that no worker is left with one of them at the end."""


TRAINING = {"attacks", "cli", "estimators", "lab"}
"""Folders whose tests train models for other purposes; the tests of the parts check shapes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))
    for item in items:
        if isinstance(item, pytest.Function) and TRAINING & set(item.path.parts):
            item.fixturenames.insert(0, "shapes_unchecked")


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and collected tests stay: no garbage collection needs to visit them


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # Triton reports what is not collected as leaked


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = find_data_root()
    if root is None:
        pytest.skip("the real datasets are missing: set SOFTPERM_DATA to their folder")
    return root


@pytest.fixture(scope="module")
def shapes_unchecked():
    """Without shape checks, which take most of the time of a training."""
    with _unchecked():
        yield


@pytest.fixture
def without_shape_checks():
    """For tests of our own error messages, which shape checks would preempt."""
    with _unchecked():
        yield


@contextmanager
def _unchecked():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def stack_device(request) -> str:
    """The device of a stack, whose models must equal those trained alone on the CPU."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return request.param
