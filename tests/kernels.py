"""Tests of Triton's kernels run in a process of their own.

Triton decides when it is imported whether it interprets, and the shape checks of the test run would
wrap its kernels. One process for all of them, which ``test_kernels.py`` starts, imports torch once.
"""

import os

import pytest
import torch

APART = os.environ.get("SOFTPERM_KERNEL_TESTS") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
law = pytest.mark.skipif(not APART, reason="runs in a process of its own")
FILES = [
    "ops/transport/test_gpu.py",
    "ops/ragged/test_gpu.py",
    "ops/test_gpu_normalisation.py",
    "lab/baselines/test_gpu_stack.py",
    "training/test_gpu_adam.py",
    "training/test_gpu_batch_layout.py",
]
