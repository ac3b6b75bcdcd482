import pytest
from lab.problems import PROBLEM, RULES, contender

from softperm.lab.engines import LocalEngine
from softperm.lab.protocol import evaluate


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An evaluation that ran from beginning to end, and where its records are."""
    folder = tmp_path_factory.mktemp("whole")
    return evaluate(PROBLEM, [contender()], RULES, LocalEngine(), folder), folder
