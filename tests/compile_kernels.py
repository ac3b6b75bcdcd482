"""Compiles every Triton kernel for an H100 or H200, on a machine that may have no GPU.

Triton's interpreter accepts kernels that its compiler refuses. Here kernels are called as in
training, but a launch only compiles. Prints the name of each compiled kernel; ``test_kernels.py``
runs this in a separate process.
"""

import torch
import triton
from ops.transport.cases import draw
from training.test_gpu_kernels import collection
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import jit

from softperm.ops import gpu_normalisation as normalisation
from softperm.ops.equal_rows import equal_rows
from softperm.ops.ragged import gpu as ragged
from softperm.ops.transport import Problem, pose
from softperm.ops.transport import gpu as transport
from softperm.training import gpu_kernels

TARGET = GPUTarget("cuda", 90, 32)
BACKEND = make_backend(TARGET)
compiled: set[str] = set()


def compile_only(self: jit.JITFunction, *args, grid, warmup, **kwargs) -> None:
    """Replaces a launch."""
    binder = jit.create_function_from_signature(self.signature, self.params, BACKEND)
    bound, specialisation, options = binder(*args, debug=False, **kwargs)
    form = f"{self.__name__} {specialisation} {options}"
    if form not in compiled:
        compiled.add(form)
        options, signature, constants, attributes = self._pack_args(
            BACKEND, kwargs, bound, specialisation, options
        )
        source = ASTSource(self, signature, constants, attributes)
        triton.compile(source, target=TARGET, options=options.__dict__)
        print(self.__name__, flush=True)


def ragged_products(vertices: int, count: int) -> None:
    """Products over graphs and maxima over neighbours."""
    ptr = torch.tensor([[0, 10, 20], [20, 30, 40]])
    edges = torch.randint(40, (2, 2, count))
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(2, vertices, 20, dtype=dtype)
        small = torch.randn(2, 2, 20, 20, dtype=dtype)
        ragged.pool(x, x, ptr)
        ragged.spread(small, x, ptr)
        for e in (edges, edges.repeat(1, 1, 4)):  # few and many edges at a vertex
            offsets = ragged.row_offsets(e, vertices, True)
            for weight in (None, torch.randn(e.shape[::2], dtype=dtype)):
                ragged.propagate(x, offsets, e[:, 1], weight, True)
        begin, end = torch.arange(vertices), torch.arange(1, vertices + 1)
        out, _ = ragged.maximum(x[0], begin, end, edges[0, 1])
        ragged.maximum_backward(x[0], x[0], out, begin, end, edges[0, 0])
    many = 2**31 + 8  # edges: their indices need 64 bits
    ragged._row_offsets_kernel[(1,)](edges, edges, 3, many, 32, 1, BV=128, num_warps=4)
    one = edges[:1, :, :1]
    ragged.propagate(x[:1, :1], ragged.row_offsets(one, 1, True), one[:, 1], None, True)


def mini_batches(index: list[list[int]], vertices: int, edges: int) -> None:
    """The arrays of the mini-batches of one or more models."""
    graphs = collection()
    at = gpu_kernels.lay_out(graphs, torch.tensor(index), vertices, edges)
    item = torch.zeros_like(at.vertex)
    gpu_kernels.rows(graphs.structure, item)
    gpu_kernels.rows(graphs.label, item, -1)
    gpu_kernels.attributes(graphs.label, graphs.label_sizes, graphs.x, item)
    equal = equal_rows(graphs.structure, graphs.ptr)
    gpu_kernels.lay_out_equal(graphs.ptr, equal, torch.tensor(index), at.ptr, vertices, vertices)


def stacked_training() -> None:
    """Batch normalisation and Adam of many models."""
    x, weight, count = torch.randn(2, 300, 20), torch.randn(2, 20), torch.tensor([300, 7])
    made = normalisation.normalise(x, *[weight] * 2, count, *[weight] * 2, 1e-5, True, 0.1)
    normalisation.normalise_backward(x, x, weight, weight, count, *made[1:3], 1e-5, True)
    flat, rates = torch.randn(2, 50), torch.ones(2)
    active = rates > 0
    gpu_kernels.adam_update(flat, flat, flat, [flat], active, *[rates] * 3, 0.9, 0.999, 0.0, 1e-8)


def transports() -> None:
    """Problems on the chip and problems that are streamed, forward and backward."""
    case = draw([30, 3000], 20, padding=True, dustbin=True)
    problem = pose(case.scores.float(), case.ptr, **case.arguments())
    problem = Problem(*(tensor.detach() for tensor in vars(problem).values()))
    _, history, used, _ = transport.forward(problem, 100, 1e-6)
    transport.backward(problem, case.grad, history, used, 1e-6, 1)


if __name__ == "__main__":
    jit.JITFunction.run = compile_only
    ragged_products(vertices=40, count=100)
    mini_batches([[0, 2], [4, -1]], 40, 60)
    stacked_training()
    transports()
    kernels = len(compiled)
    for vertices, count in ((304, 704), (301, 703)):
        ragged_products(vertices, count)
    for index in ([[0]], [[0, 1, 2, 3]], [[2, 1]] * 16):
        mini_batches(index, 41, 61)
    assert len(compiled) == kernels, "other numbers of graphs, vertices and edges compiled anew"
