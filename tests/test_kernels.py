"""The laws of Triton's kernels: on a GPU, or else under Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernels import APART, DEVICE, FILES


@pytest.mark.skipif(APART, reason="this is that process")
def test_the_laws_of_kernels_hold_in_a_process_of_their_own():
    pytest.importorskip("triton")
    tests = Path(__file__).resolve().parent
    environment = os.environ | {"SOFTPERM_KERNEL_TESTS": "1"}
    if DEVICE == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "pytest", *(str(tests / file) for file in FILES), "-q"]
    command += ["-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    done = subprocess.run(
        command, cwd=tests.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    if DEVICE == "cpu":  # a GPU has no need of one of them
        assert "skipped" not in done.stdout, done.stdout[-2000:]
