"""Shared by the tests of the transport."""

import jaxtyping
import pytest


@pytest.fixture
def without_shape_checks():
    """Lets calls through as they are when the shape checks of the test run are off."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
