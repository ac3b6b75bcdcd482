"""How many threads work: what the user said, or fewer where they would not help."""

import os
import subprocess
import sys

import networkx as nx
import pytest
import torch

from softperm import PiGNN, PiGNNClassifier
from softperm.parallel import one_torch_thread, threads
from softperm.training import loop

SCRIPT = """
import torch
from softperm.parallel import over_ranges
met = []
over_ranges(lambda first, last: met.append((first, last)), 8, 1 << 30)
print(torch.get_num_threads(), met)
"""


def test_a_single_thread_that_was_asked_for_stays_the_only_one():
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1 [(0, 8)]"


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_kernels_keep_their_threads_where_torch_has_one(restored_threads, monkeypatch):
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 4)
    torch.set_num_threads(3)
    with one_torch_thread():
        assert (torch.get_num_threads(), threads()) == (1, 3)
        with one_torch_thread(kernels=True):
            assert (torch.get_num_threads(), threads()) == (1, 1)
        assert (torch.get_num_threads(), threads()) == (1, 3)
    with pytest.raises(KeyError), one_torch_thread():
        raise KeyError
    assert (torch.get_num_threads(), threads()) == (3, 3)


@pytest.mark.parametrize(("most", "expected"), [(loop.ONE_THREAD_VERTICES, 1), (1, 2)])
@pytest.mark.parametrize("ensemble", [1, 2])
def test_small_mini_batches_are_trained_with_one_thread_of_torch(
    ensemble, most, expected, restored_threads, monkeypatch
):
    monkeypatch.setattr(loop, "ONE_THREAD_VERTICES", most)
    torch.set_num_threads(2)
    met, forward = set(), PiGNN.forward

    def watched(self, batch):
        if self.training:
            met.add(torch.get_num_threads())
        return forward(self, batch)

    monkeypatch.setattr(PiGNN, "forward", watched)
    graphs = [nx.cycle_graph(n) for n in range(3, 9)] + [nx.path_graph(n) for n in range(3, 9)]
    settings = {"epochs": 2, "latent_vertices": 3, "hidden": 4, "head": "mlp", "progress": False}
    PiGNNClassifier(**settings, ensemble=ensemble).fit(graphs, [0, 1] * 6)
    assert met == {expected}
    assert torch.get_num_threads() == 2
