"""What a system says it needs is what a training step takes; more than that it refuses."""

import weakref

import networkx as nx
import pytest
import torch
from samples import collect
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from softperm.lab.baselines.classification import DiffPool
from softperm.lab.baselines.qm9 import DTNN, MPNN, PPGN, HierarchicalGNN
from softperm.lab.systems import SYSTEMS, DataShape

pytestmark = pytest.mark.usefixtures("shapes_unchecked")


class Counted(TorchDispatchMode):
    """Counts the bytes of all tensors alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.now, self.peak = set(), 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage())
        return made

    def count(self, storage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.seen:
            self.seen.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.freed, key, size)

    def freed(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


def taken(model, batch) -> int:
    """Bytes that one training step adds to what was there."""
    with Counted() as counted:
        model(batch).square().mean().backward()
    return counted.peak


CASES = {
    "DiffPool of few large graphs": (lambda: DiffPool(1, 2000, 2), 2000, 2),
    "DiffPool of many small graphs": (lambda: DiffPool(1, 100, 2), 100, 32),
    "narrow DiffPool": (lambda: DiffPool(1, 400, 2, hidden=16, embedding=32), 400, 8),
    "PPGN of many small graphs": (lambda: PPGN(1, 1, 1), 20, 32),
    "PPGN of one large graph": (lambda: PPGN(1, 1, 1, hidden=32, blocks=2), 160, 1),
    "1-2-GNN": (lambda: HierarchicalGNN(1, 1, 1, set_size=2), 60, 4),
    "1-2-3-GNN": (lambda: HierarchicalGNN(1, 1, 1, set_size=3), 20, 4),
    "DTNN": (lambda: DTNN(1, 1), 29, 8),
    "MPNN of bonds": (lambda: MPNN(1, 1, 1), 60, 8),
}


@pytest.mark.parametrize("case", CASES)
def test_the_estimate_covers_what_a_step_takes_and_not_twice_that(case):
    make, n, graphs = CASES[case]
    collection = collect([nx.gnm_random_graph(n, 2 * n, seed=s) for s in range(graphs)])
    batch = collection.batch(torch.arange(graphs))
    model = make()
    said, real = model.needed(batch), taken(model, batch)
    assert real <= said <= 2 * real, f"says {said / 2**20:.1f} MiB, takes {real / 2**20:.1f} MiB"


def test_sizes_of_test_graphs_shape_no_system_and_a_larger_one_is_no_error():
    collection = collect([nx.cycle_graph(n) for n in (5, 8, 40)])
    shape = DataShape.of(collection, 2, torch.tensor([0, 1]))
    assert shape.largest == 8
    model = SYSTEMS["diffpool"].build(shape, {"hidden": 8, "embedding": 8}, seed=0)
    assert model.clusters == (2, 1)
    y = model.eval()(collection.batch(torch.tensor([2])))
    assert y.shape == (1, 2)
    assert y.isfinite().all()
