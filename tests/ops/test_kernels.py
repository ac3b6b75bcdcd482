"""Tests of the Triton kernels, in a separate process: on a GPU or under Triton's interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kernels import APART, DEVICE, FILES


@pytest.mark.skipif(APART, reason="this is that process")
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_pass_their_tests_in_a_separate_process(which):
    pytest.importorskip("triton")
    tests = Path(__file__).resolve().parents[1]
    environment = os.environ | {"SOFTPERM_KERNEL_TESTS": "1"}
    if DEVICE == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "pytest", *map(str, FILES), "-q", "-m", which]
    command += ["-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    done = subprocess.run(
        command, cwd=tests.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    if DEVICE == "cpu":  # one of them is for the interpreter only
        assert "skipped" not in done.stdout, done.stdout[-2000:]


@pytest.mark.skipif(APART or DEVICE == "cuda", reason="a GPU's tests compile what they run")
def test_every_kernel_compiles_for_a_gpu():
    pytest.importorskip("triton")
    tests = Path(__file__).resolve().parents[1]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = f"{tests}{os.pathsep}{tests.parent}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(tests / "compile_kernels.py")],
        cwd=tests.parent, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    source = "".join(path.read_text() for path in (tests.parent / "softperm").rglob("gpu*.py"))
    launched = set(re.findall(r"(_\w+_kernel)\[", source))
    launched |= {
        f"{way}_{place}" for way in ("forward", "backward") for place in ("chip", "stream")
    }
    assert len(launched) > 15
    assert launched == set(done.stdout.split())
