"""Shared by all tests: the real data, where it is."""

import os
from contextlib import contextmanager
from pathlib import Path

import jaxtyping
import pytest


def find_data_root() -> Path | None:
    """The folder of real datasets: ``SOFTPERM_DATA``, else ``shared/data`` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("SOFTPERM_DATA", beside))
    return root if (root / "tu").is_dir() else None


SLOWEST = (
    "test_distributed", "test_engines", "test_stack", "test_kernels", "test_interrupt",
    "test_model", "test_fit_long", "test_train", "test_lab", "test_protocol", "test_laws",
)  # fmt: skip
"""Files of tests that take longest: begun first, they do not keep one worker busy at the end."""


TRAINING = {"cli", "estimators", "lab"}
"""Folders of tests that train to see something else: the tests of the parts check their shapes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))
    for item in items:
        if isinstance(item, pytest.Function) and TRAINING & set(item.path.parts):
            item.fixturenames.insert(0, "shapes_unchecked")


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = find_data_root()
    if root is None:
        pytest.skip("the real datasets are not here: set SOFTPERM_DATA to their folder")
    return root


@pytest.fixture(scope="module")
def shapes_unchecked():
    """Other tests check the shapes of every variant; in long trainings that takes most time."""
    with _unchecked():
        yield


@pytest.fixture
def without_shape_checks():
    """For a test of our own answers to arguments that shape checks would refuse before."""
    with _unchecked():
        yield


@contextmanager
def _unchecked():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def stack_device(request) -> str:
    """Where a stack is trained that must give what each network gets alone on the CPU."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return request.param
