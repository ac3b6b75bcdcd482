"""Tests of the Triton kernels run in a separate process, which ``test_kernels.py`` starts.

Triton chooses between compiler and interpreter when it is imported, and only the tests of kernels
need the interpreter. One process for all of them imports torch once.
"""

import os

import pytest
import torch

APART = os.environ.get("SOFTPERM_KERNEL_TESTS") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
law = pytest.mark.skipif(not APART, reason="runs in a separate process")
FILES = [
    "ops/transport/test_gpu.py",
    "ops/ragged/test_gpu.py",
    "ops/test_gpu_normalisation.py",
    "lab/baselines/test_gpu_stack.py",
    "training/test_gpu_kernels.py",
]
