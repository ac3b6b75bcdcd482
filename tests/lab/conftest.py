import pytest
from lab.evaluations import DATA, PROTOCOL, contender

from softperm.lab.protocol import evaluate
from softperm.lab.scheduler import LocalExecutor


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An evaluation that ran from beginning to end, and where its records are."""
    folder = tmp_path_factory.mktemp("whole")
    return evaluate(DATA, [contender()], PROTOCOL, LocalExecutor(), folder), folder
