"""Shared by all tests: the real data, where it is."""

import os
from pathlib import Path

import pytest


def find_data_root() -> Path | None:
    """The folder of real datasets: ``SOFTPERM_DATA``, else ``shared/data`` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("SOFTPERM_DATA", beside))
    return root if (root / "tu").is_dir() else None


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = find_data_root()
    if root is None:
        pytest.skip("the real datasets are not here: set SOFTPERM_DATA to their folder")
    return root
