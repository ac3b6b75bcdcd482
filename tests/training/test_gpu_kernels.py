"""Triton kernels equal the CPU's definitions; ``kernels.py`` says where they run."""

import networkx as nx
import pytest
import torch
from kernels import DEVICE, law

from softperm.data.collection import Collection
from softperm.data.graphs import as_graphs
from softperm.data.vocabulary import Vocabulary
from softperm.errors import GraphWarning
from softperm.ops.equal_rows import equal_rows
from softperm.training import data as batching
from softperm.training.stack import StackedAdam

GRAPHS = [
    nx.path_graph(5),
    nx.empty_graph(1),
    nx.star_graph(6),
    nx.empty_graph(3),
    nx.complete_graph(4),
]
BATCHES = [
    [[0, 1, 2, 3, 4], [4, -1, 0, 0, -1], [-1, -1, -1, -1, -1]],
    [[2]],
    [[1, 1, 3], [-1, 3, 1]],
    [[0, 2, 4] * 30],
]
SPARE = [(1, 0), (40, 29), (700, 400)]
"""Places beyond what a model's graphs need: for vertices, for edges."""


def collection(graphs: list[nx.Graph] = GRAPHS) -> Collection:
    """Graphs with labels of two kinds, attributes and weights, in the types of real datasets."""
    generator = torch.Generator().manual_seed(0)
    made = Vocabulary.learn(as_graphs(graphs)).encode(as_graphs(graphs))
    v, e = int(made.ptr[-1]), int(made.edge_ptr[-1])

    def codes(count: int, *sizes: int) -> torch.Tensor:
        columns = [torch.randint(-1, size, (count,), generator=generator) for size in sizes]
        return torch.stack(columns, dim=1)

    return Collection(
        made.ptr, made.edge_ptr, made.edge_index.int(), made.structure,
        label=codes(v, 3, 7).short(), label_sizes=(3, 7), x=torch.randn(v, 2, generator=generator),
        edge_label=codes(e, 4).to(torch.int8), edge_label_sizes=(4,),
        edge_attr=torch.randn(e, 3, generator=generator),
        edge_weight=torch.randn(e, generator=generator),
    )  # fmt: skip


def same_places(graphs: Collection, index: torch.Tensor, beyond: tuple[int, int]) -> None:
    """Raises unless both ways lay graphs out alike and carry the same there."""
    from softperm.training import gpu_kernels  # Triton may be absent where there is no GPU

    vertices, edges, _ = batching.batch_sizes(graphs, index)
    shape = [int(vertices.max()) + beyond[0], int(edges.max()) + beyond[1]]
    theirs = batching.lay_out(graphs, index, *shape)
    there = graphs.to(DEVICE)
    ours = gpu_kernels.lay_out(there, index.to(DEVICE), *shape)
    for name in ("ptr", "vertex", "edge", "ends"):
        assert torch.equal(getattr(ours, name).cpu(), getattr(theirs, name)), name
    merged = equal_rows(graphs.structure, graphs.ptr)
    distinct = int(batching.batch_sizes(graphs, index, {"structure": merged})[3].max()) + beyond[0]
    wanted = batching.lay_out_equal(graphs.ptr, merged, index, theirs.ptr, shape[0], distinct)
    made = gpu_kernels.lay_out_equal(
        there.ptr, merged.to(DEVICE), index.to(DEVICE), ours.ptr, shape[0], distinct
    )
    for name, array in wanted.items():
        assert torch.equal(made[name].cpu(), array), name
    for table, item, fill in (
        ("structure", "vertex", 0), ("label", "vertex", -1), ("x", "vertex", 0),
        ("edge_weight", "edge", 0), ("edge_label", "edge", -1),
    ):  # fmt: skip
        made = gpu_kernels.rows(getattr(there, table), getattr(ours, item), fill)
        wanted = batching.rows(getattr(graphs, table), getattr(theirs, item), fill)
        assert made.dtype == wanted.dtype
        assert torch.equal(made.cpu(), wanted), table
    for kind, label, x in (
        ("vertex", "label", "x"), ("vertex", "label", None), ("vertex", None, "x"),
        ("vertex", None, None), ("edge", "edge_label", "edge_attr"),
    ):  # fmt: skip
        sizes = graphs.edge_label_sizes if kind == "edge" else graphs.label_sizes
        made, wanted = (
            way.attributes(
                label and getattr(where, label), sizes, x and getattr(where, x), getattr(at, kind)
            )
            for way, where, at in ((gpu_kernels, there, ours), (batching, graphs, theirs))
        )
        assert (made is None) == (wanted is None)
        assert made is None or torch.equal(made.cpu(), wanted)


@law
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("beyond", SPARE)
def test_every_place_holds_the_same(batches, beyond):
    same_places(collection(), torch.tensor(batches), beyond)


@law
def test_a_dataset_without_edges():
    same_places(collection([nx.empty_graph(2)] * 3), torch.tensor([[0, 2], [1, -1]]), (5, 0))


@law
def test_graphs_without_vertices_take_no_place():
    graphs = [nx.empty_graph(0), nx.path_graph(3), nx.empty_graph(0), nx.cycle_graph(4)]
    with pytest.warns(GraphWarning, match="2 of 4 graphs have no vertices"):
        made = collection(graphs)
    same_places(made, torch.tensor([[0, 1, 2], [3, 2, -1], [2, 0, 0]]), (1, 2))


BLOCKS = [30, 5000, 70, 20]
"""Columns of gradients: small ones beside each other, and one that is launched by itself."""


@law
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_on_the_gpu_equals_adam_on_the_cpu(decoupled):
    from softperm.training.gpu_kernels import LARGE, adam_update  # needs Triton

    assert sorted(BLOCKS)[-2] < LARGE < max(BLOCKS)
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(3, sum(BLOCKS), generator=generator)
    ours = flat.clone().to(DEVICE)
    theirs = StackedAdam(flat.clone(), 1e-2, 0.1, decoupled_decay=decoupled)
    penalty, keep = (0.0, torch.full((3,), 1 - 1e-3)) if decoupled else (0.1, torch.ones(3))
    mean, square, steps = torch.zeros_like(ours), torch.zeros_like(ours), torch.zeros(3)
    for step in range(3):
        gradient = torch.randn(3, sum(BLOCKS), generator=generator)
        active = torch.tensor([True, step % 2 == 0, False])
        theirs.step(gradient.split(BLOCKS, dim=1), active)
        steps += active
        count = steps.clamp(min=1)
        size, root = 1e-2 / (1 - 0.9**count), (1 - 0.999**count).sqrt()
        blocks = gradient.to(DEVICE).split(BLOCKS, dim=1)
        rates = [t.to(DEVICE) for t in (active, size, root, keep)]
        adam_update(ours, mean, square, blocks, *rates, 0.9, 0.999, penalty, 1e-8)
        torch.testing.assert_close(ours.cpu(), theirs.parameters)
        torch.testing.assert_close(square.cpu(), theirs.square)
