"""Mini-batches on the device that trains, ready before they are asked for.

A dataset that fits lies on the device whole, and a mini-batch is cut there by index arithmetic.
One that does not fit stays where it is, in memory or in a mapped file; a thread then assembles
the next mini-batches, in pinned memory, and sends them while the device computes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from softperm.data.collection import Collection, GraphBatch
from softperm.training.records import Examples
from softperm.training.tasks import Task

RESIDENT_SHARE = 0.25  # of the device's free memory: the rest is for activations
AHEAD = 3  # mini-batches that a thread prepares


@dataclass(frozen=True)
class Portion:
    """Graphs for one forward pass.

    Attributes:
        batch: the graphs.
        y: their targets as the task encodes them.
        keep: which graphs count; None for all.
    """

    batch: GraphBatch
    y: Tensor
    keep: Bool[Tensor, " b"] | None


class Feed:
    """Hands out a collection's graphs on a device.

    Args:
        examples: graphs and targets.
        task: encodes the targets.
        device: where the portions are wanted.
    """

    def __init__(self, examples: Examples, task: Task, device: torch.device) -> None:
        self.task, self.device = task, device
        self.source, self.y = examples.graphs, examples.y
        self.graphs = examples.graphs
        self.resident = device.type == "cuda" and fits(self.source, self.y, device)
        if self.resident:
            self.graphs, self.y = self.graphs.to(device), task.encode(self.y).to(device)

    def targets(self, part: Int[Tensor, " b"]) -> Tensor:
        """The encoded targets of some graphs, on the device."""
        if self.resident:
            return self.y[part.to(self.device)]
        return self.task.encode(self.y[part]).to(self.device)

    def portions(self, parts: Iterable[Int[Tensor, " _"]]) -> Iterator[Portion]:
        """The given graphs, part by part; an empty part is a portion in which nothing counts."""
        if self.resident or self.device.type != "cuda":
            return map(self._portion, parts)
        stream = torch.cuda.Stream(self.device)
        return map(self._arrived, ahead((self._send(part, stream) for part in parts), AHEAD))

    def _portion(self, part: Tensor) -> Portion:
        if len(part) == 0:
            return self._idle()
        totals = None
        if self.resident:  # counted on the host, so that it need not wait for the device
            totals = _total(self.source.ptr, part), _total(self.source.edge_ptr, part)
            part = part.pin_memory().to(self.device, non_blocking=True)
        batch = self.graphs.batch(part, totals).to(self.device)
        return Portion(batch, self.targets(part), None)

    def _idle(self) -> Portion:
        """One graph without vertices: the vertices of graph 0 are there, but belong to none."""
        first = torch.zeros(1, dtype=torch.long)
        batch = self.graphs.batch(first).to(self.device)
        batch.ptr = torch.zeros_like(batch.ptr)
        return Portion(batch, self.targets(first), torch.zeros(1, dtype=torch.bool).to(self.device))

    def _send(self, part: Tensor, stream: torch.cuda.Stream) -> tuple[Portion, Any]:
        """A portion on its way to the device, and what happens when it is there."""
        with torch.cuda.stream(stream):
            if len(part) == 0:
                return self._idle(), stream.record_event()
            batch = self.graphs.batch(part).pin_memory().to(self.device, non_blocking=True)
            y = self.task.encode(self.y[part]).pin_memory().to(self.device, non_blocking=True)
            return Portion(batch, y, None), stream.record_event()

    def _arrived(self, sent: tuple[Portion, Any]) -> Portion:
        """A portion that the device will find there when it comes to it."""
        portion, there = sent
        current = torch.cuda.current_stream(self.device)
        current.wait_event(there)
        portion.batch.record_stream(current)  # else its memory is given away too early
        portion.y.record_stream(current)
        return portion


def _total(ptr: Tensor, part: Tensor) -> int:
    """How many vertices, or edges, some graphs have together."""
    return int((ptr[part + 1] - ptr[part]).sum())


def fits(graphs: Collection, y: Tensor, device: torch.device) -> bool:
    """Whether a dataset takes at most a quarter of the device's free memory."""
    tensors = [getattr(graphs, f.name) for f in fields(graphs)] + [y]
    size = sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
    return size <= RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]


def ahead(items: Iterator[Any], depth: int) -> Iterator[Any]:
    """The same items, made by a thread before they are asked for.

    Args:
        items: made in the thread; an error there is raised where its item would have come.
        depth: how many wait at most.
    """
    ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)
    over = threading.Event()
    thread = threading.Thread(target=_make, args=(items, ready, over), daemon=True)
    thread.start()
    try:
        while True:
            item, problem = ready.get()
            if isinstance(problem, StopIteration):
                return
            if problem is not None:
                raise problem
            yield item
    finally:
        over.set()
        while thread.is_alive():  # it may wait for room
            _drain(ready)
            thread.join(0.01)


def _make(items: Iterator[Any], ready: queue.Queue, over: threading.Event) -> None:
    problem: BaseException | None = None
    while problem is None and not over.is_set():
        item = None
        try:
            item = next(items)
        except BaseException as raised:
            problem = raised
        ready.put((item, problem))


def _drain(ready: queue.Queue) -> None:
    try:
        while True:
            ready.get_nowait()
    except queue.Empty:
        return
