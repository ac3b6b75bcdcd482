"""Files of the ogb package, without the downloads and readers that its packages import."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def ogb_module(place: str) -> ModuleType:
    """The module in a file of the ogb package; skips the test where ogb is not installed."""
    home = importlib.util.find_spec("ogb")
    if home is None:
        pytest.skip("the ogb package is not installed")
    path = Path(home.origin).parent / place
    spec = importlib.util.spec_from_file_location(f"ogb_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
