"""PyTorch Geometric is imported without torch's compiler, which stays available."""

import subprocess
import sys

FIRST = """
from softperm.pyg import Batch, Data
assert "torch._dynamo" not in sys.modules
import torch_geometric
graph = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 0]]))
assert Batch.from_data_list([graph, graph]).num_graphs == 2
assert torch_geometric.data.Data is Data
assert torch_geometric.is_torch_instance(torch.nn.ReLU(), torch.nn.ReLU)  # loads the compiler
assert torch._dynamo.is_compiling() is False
"""
# The compiler is stood in for by an empty module: loading it takes seconds.
LATER = """
import types
compiler = sys.modules["torch._dynamo"] = types.ModuleType("torch._dynamo")
from softperm.pyg import Data
assert sys.modules["torch._dynamo"] is compiler
"""


def test_importing_graphs_does_not_load_the_compiler_and_does_not_hide_it():
    code = f"""
import os, sys, torch
child = os.fork()  # torch is imported once for both
if child == 0:
    exec({LATER!r})
else:
    exec({FIRST!r})
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
