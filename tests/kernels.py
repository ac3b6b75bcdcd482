"""Tests of the Triton kernels run in a separate process, which ``test_kernels.py`` starts.

Triton chooses between compiler and interpreter when it is imported, and only the tests of kernels
need the interpreter. One process for all of them imports torch once.
"""

import os
from pathlib import Path

import pytest
import torch

APART = os.environ.get("SOFTPERM_KERNEL_TESTS") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
law = pytest.mark.skipif(not APART, reason="runs in a separate process")
FILES = sorted(Path(__file__).parent.rglob("test_gpu*.py"))
