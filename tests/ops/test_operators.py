"""Registered operators: cheap at the first call, honest about derivatives that they do not have."""

import subprocess
import sys

import pytest
import torch

from softperm.ops.operators import register

FIRST_CALLS = """
import sys, torch
from softperm.ops.layers import VertexBatchNorm
from softperm.ops.ragged import pool, propagate, spread
from softperm.ops.transport import sinkhorn

def loss(x):
    plan = sinkhorn(x, torch.tensor([0, 2, 5]))
    edges = torch.tensor([[0, 1], [1, 0]])
    aligned = pool(plan, propagate(plan, edges), torch.tensor([0, 2, 5]))
    return spread(aligned, x, torch.tensor([0, 2, 5])).square().sum()

loss(torch.rand(5, 3, requires_grad=True)).backward()
x = torch.rand(2, 5, 3, requires_grad=True)
torch.vmap(loss)(x).sum().backward()
compiler = {"torch._dynamo", "torch._inductor", "sympy"} & set(sys.modules)
assert not compiler, compiler
"""


def test_first_calls_do_not_load_the_compiler():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST_CALLS], check=True)


def test_an_operator_without_a_derivative_refuses_one():
    double = register(
        "double_of_a_test(Tensor x) -> Tensor", fake=torch.empty_like, cpu=lambda x: 2 * x
    )
    x = torch.ones(3, requires_grad=True)
    assert double(x).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(NotImplementedError, match="softperm::double_of_a_test has no derivative"):
        double(x).sum().backward()
