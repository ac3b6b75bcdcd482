"""Prefetched mini-batches: the same ones, in order, errors in their place, no thread left."""

import threading
import time

import pytest
import torch
from samples import collect, random_graph

from softperm.nn.model import ModelConfig, build
from softperm.training import data as batching
from softperm.training.data import BatchLoader, Examples, fits, prefetch
from softperm.training.tasks import Classification, total_loss

COLLECTION = collect([random_graph(n, seed=n) for n in (3, 9, 5, 7)])
EXAMPLES = Examples(COLLECTION, torch.tensor([0, 1, 1, 0]), torch.arange(4))
CPU = torch.device("cpu")


def test_prefetched_items_are_the_same_in_the_same_order():
    assert list(prefetch(iter(range(100)), 3)) == list(range(100))
    assert list(prefetch(iter(()), 3)) == []
    assert threading.active_count() == 1 or no_thread_remains()


def no_thread_remains() -> bool:
    return not any("softperm-prefetch" in t.name for t in threading.enumerate())


def test_items_are_prepared_ahead_of_the_caller_up_to_the_depth():
    made = []

    def items():
        for i in range(50):
            made.append(i)
            yield i

    running = prefetch(items(), 3)
    assert next(running) == 0
    deadline = time.monotonic() + 5
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(made) == 3  # one taken, two waiting
    running.close()
    assert no_thread_remains()


def test_an_error_is_raised_where_its_item_would_have_come():
    def items():
        yield 1
        raise OSError("the disk is gone")

    running = prefetch(items(), 3)
    assert next(running) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(running)
    assert no_thread_remains()


def test_a_reader_that_leaves_early_leaves_no_thread():
    before = threading.active_count()
    for item in prefetch(iter(range(10_000)), 2):
        if item == 5:
            break
    del item
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_mini_batches_hold_the_graphs_and_encoded_targets_of_their_parts():
    loader = BatchLoader(EXAMPLES, Classification(2), CPU)
    parts = [torch.tensor([2, 0]), torch.tensor([3])]
    for part, mini_batch in zip(parts, loader.load(parts), strict=True):
        assert torch.equal(mini_batch.batch.x, COLLECTION.batch(part).x)
        assert mini_batch.y.tolist() == EXAMPLES.y[part].tolist()
        assert mini_batch.keep is None


@pytest.mark.parametrize("encoder", ["linear", "gcn", "gin"])
def test_an_empty_part_counts_nowhere(encoder):
    """Its loss, its gradients and its part in normalisation are zero; a network runs on it."""
    task, nothing = Classification(2), torch.empty(0, dtype=torch.long)
    (empty,) = BatchLoader(EXAMPLES, task, CPU).load([nothing])
    config = ModelConfig(2, latent_vertices=4, hidden=6, encoder=encoder, dustbin=True, capacity=9)
    model = build(config, seed=0).train()
    before = {k: v.clone() for k, v in model.named_buffers()}
    total, count = total_loss(task, model(empty.batch), empty.y, empty.keep)
    (total / count.clamp(min=1)).backward()
    assert (total.item(), count.item()) == (0, 0)
    assert all(bool((p.grad == 0).all()) for p in model.parameters())
    for name, value in model.named_buffers():
        assert torch.equal(value, before[name])


def test_the_totals_that_a_caller_knows_change_nothing():
    index = torch.tensor([1, 3, 1])
    v = int(COLLECTION.sizes[index].sum())
    e = int(COLLECTION.edge_ptr.diff()[index].sum())
    largest = int(COLLECTION.sizes[index].max())
    ours, theirs = COLLECTION.batch(index, (v, e, largest)), COLLECTION.batch(index)
    assert ours.largest == theirs.largest
    for key in ("ptr", "edge_index", "structure", "x", "edge_attr", "edge_weight", "batch"):
        assert torch.equal(ours[key], theirs[key])


def test_a_dataset_is_resident_if_it_takes_at_most_a_quarter_of_the_free_memory(monkeypatch):
    tensors = [v for v in vars(COLLECTION).values() if isinstance(v, torch.Tensor)]
    size = sum(t.numel() * t.element_size() for t in [*tensors, EXAMPLES.y])
    for free, expected in ((4 * size, True), (4 * size - 1, False)):
        monkeypatch.setattr(batching.torch.cuda, "mem_get_info", lambda device, f=free: (f, 10 * f))
        assert fits(COLLECTION, EXAMPLES.y, torch.device("cuda")) is expected


@pytest.mark.gpu
@pytest.mark.parametrize("share", [0.25, 0.0])
def test_mini_batches_on_a_gpu_are_those_on_the_cpu(share, monkeypatch):
    """Resident or sent piece by piece."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    monkeypatch.setattr(batching, "RESIDENT_SHARE", share)
    device = torch.device("cuda", 0)
    loader = BatchLoader(EXAMPLES, Classification(2), device)
    assert loader.resident is (share > 0)
    parts = [torch.tensor([2, 0]), torch.tensor([], dtype=torch.long), torch.tensor([3])] * 4
    plain = BatchLoader(EXAMPLES, Classification(2), CPU).load(parts)
    for ours, theirs in zip(loader.load(parts), plain, strict=True):
        assert ours.batch.x.device == device
        for key in ("ptr", "edge_index", "structure", "x", "edge_attr"):
            assert torch.equal(ours.batch[key].cpu(), theirs.batch[key])
        assert torch.equal(ours.y.cpu(), theirs.y)
