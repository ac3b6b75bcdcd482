"""Data for training: graphs with targets, the split, and mini-batches on a device.

One model is trained on mini-batches of their own size, which :class:`BatchLoader` puts on the
device. A collection that fits there is copied once, and mini-batches are cut from it on the device.
A larger one stays in memory or in a mapped file; a thread then assembles the next mini-batches in
pinned memory and copies them while the device computes.

CUDA graphs and stacks of models need arrays of fixed shape: :func:`gather` cuts the mini-batches of
M models from a collection on the device, each padded to a :class:`BatchShape`.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import pad

from softperm.data.collection import Collection, GraphBatch
from softperm.data.datasets.splits import Split
from softperm.data.vocabulary import Vocabulary
from softperm.nn.permutation import SoftPermutation
from softperm.ops.equal_rows import EqualRows, equal_rows
from softperm.ops.layers import SHARE
from softperm.pyg import Data
from softperm.settings import ModelConfig, Settings, TrainingConfig, defaults
from softperm.training.tasks import Task

RESIDENT_SHARE = 0.25  # of the device's free memory for the collection; the rest for activations
PREFETCHED = 3  # mini-batches that a thread prepares
CUTS = 64  # candidate positions when steps are divided among shapes


@dataclass(frozen=True)
class TrainingData:
    """Graphs with targets, divided into training, validation and test graphs.

    Attributes:
        graphs: all graphs.
        y: their targets: codes of classes (B,), or numbers (B, T) with NaN where unknown.
        task: what the targets mean.
        split: training, validation and test graphs; the last two may be empty.
        vocabulary: labels and attribute sizes of the training graphs.
        name: of the file or dataset.
        ids: the name of each graph in the input, for messages and pictures.
        target_names: names of the targets, where the input has names.
        classes: the class of each code, for a classification.
        target_shape: shape of one graph's target as users see it: ``()``, or ``(T,)``.
        molecules: ``ogb`` or ``qm9`` if atoms and bonds carry the features of these datasets.
        unit: of the targets, where known.
        content: SHA-256 of graphs and targets, if known.
        weight: of each graph in the loss; 1 by default.
    """

    graphs: Collection
    y: Shaped[Tensor, "B ..."]
    task: Task
    split: Split
    vocabulary: Vocabulary
    name: str = "graphs"
    ids: Sequence[str] = ()
    target_names: tuple[str, ...] = ()
    classes: np.ndarray | None = None
    target_shape: tuple[int, ...] = ()
    molecules: str | None = None
    unit: str | None = None
    content: str | None = None
    weight: Float[Tensor, " B"] | None = None

    def examples(self, part: Int[Tensor, " b"], codes: bool = False) -> Examples:
        """Some of the graphs with their targets.

        Args:
            part: which graphs.
            codes: whether batches carry labels as codes, for a network that embeds them.
        """
        return Examples(replace(self.graphs, codes=codes), self.y, part, self.weight)

    def fingerprint(self, config: ModelConfig, settings: TrainingConfig) -> str:
        """Identifies a training: a change of settings or data changes it.

        More epochs or more time do not change it, nor does a setting at its default, so that a
        setting added later leaves older checkpoints valid. The cosine schedule depends on the
        number of epochs, which then counts.
        """
        trained = changed_settings(settings)
        free = ("max_time",) if settings.schedule == "cosine" else ("epochs", "max_time")
        unchanging = {k: v for k, v in trained.items() if k not in free}
        text = [changed_settings(config), unchanging, repr(self.task), list(self.target_names)]
        digest = hashlib.sha256(json.dumps(text).encode())
        digest.update((self.content or self.graphs.digest(y=self.y)).encode())
        digest.update(self.split.tobytes())
        if self.weight is not None:
            digest.update(self.weight.double().numpy().tobytes())
        return digest.hexdigest()


def changed_settings(settings: Settings) -> dict[str, Any]:
    """The settings that differ from their defaults, and all values that are not settings."""
    usual = defaults(type(settings))
    values = asdict(settings)  # type: ignore[call-overload]
    return {k: v for k, v in values.items() if k not in usual or v != usual[k]}


def hold_out(groups: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Divides graphs at random, with the same share of every group held out.

    The number held out of a group is rounded; at least one graph of every group stays.

    Returns:
        Indices that stay and indices held out, each ascending.
    """
    generator = np.random.default_rng(seed)
    held = []
    for group in np.unique(groups):
        members = generator.permutation(np.flatnonzero(groups == group))
        held.append(members[: min(round(fraction * len(members)), len(members) - 1)])
    chosen = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(groups)), chosen), chosen


def divide(
    y: Tensor,
    classes: np.ndarray | None,
    test_fraction: float,
    validation_fraction: float,
    seed: int,
) -> Split:
    """Divides graphs at random, every class alike: first the test graphs, then the validation ones.

    Warns if a class is too small for a graph of it to be held out.

    Args:
        y: targets; codes of classes (B,) are divided class by class.
        classes: the class of each code, for the warning.
        test_fraction: share of all graphs to test on.
        validation_fraction: share of the other graphs to validate on.
        seed: of the random choice.
    """
    groups = y.numpy() if y.ndim == 1 else np.zeros(len(y))
    classes = classes if y.ndim == 1 else None
    rest, test = hold_out(groups, test_fraction, seed)
    kept, held = hold_out(groups[rest], validation_fraction, seed)
    _warn_too_few(groups, test, test_fraction, "testing", classes)
    _warn_too_few(groups[rest], held, validation_fraction, "validation", classes)
    return Split(*map(torch.from_numpy, (rest[kept], rest[held], test)))


def _warn_too_few(
    groups: np.ndarray,
    held: np.ndarray,
    fraction: float,
    purpose: str,
    classes: np.ndarray | None,
) -> None:
    """Warns of classes of which no graph is held out though a fraction should be."""
    if not fraction:
        return
    sizes = {int(g): int((groups == g).sum()) for g in np.setdiff1d(groups, groups[held])}
    if not sizes:
        return
    listed = [
        f"{size} graphs" if classes is None else f"{size} of class {classes[group].item()!r}"
        for group, size in sizes.items()
    ]
    more = f" and {len(listed) - 3} more classes" if len(listed) > 3 else ""
    effects = {
        ("validation", True): "the best epoch is selected without them",
        ("validation", False): "the last epoch is kept",
        ("testing", True): "the test score does not cover them",
        ("testing", False): "there is no test score",
    }
    warnings.warn(
        f"too few graphs to hold out {fraction:g} of them for {purpose}: "
        f"{', '.join(listed[:3])}{more}; {effects[purpose, len(held) > 0]}",
        stacklevel=4,
    )


@dataclass(frozen=True)
class Examples:
    """Some graphs of a collection with their targets.

    Attributes:
        graphs: the whole collection.
        y: targets of all its graphs.
        index: the selected graphs.
        weight: of each graph of the collection in the loss; 1 by default.
    """

    graphs: Collection
    y: Tensor
    index: Int[Tensor, " b"]
    weight: Float[Tensor, " B"] | None = None

    def __len__(self) -> int:
        return len(self.index)


def epoch_order(index: Int[Tensor, " b"], seed: int, epoch: int) -> Int[Tensor, " b"]:
    """The graphs in the random order of an epoch, which depends on seed and epoch alone."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return index[torch.randperm(len(index), generator=generator)]


@dataclass(frozen=True)
class MiniBatch:
    """Graphs for one forward pass.

    Attributes:
        batch: the graphs.
        y: their encoded targets.
        keep: which graphs count in the loss; None for all.
        weight: of each graph in the loss; None for 1.
    """

    batch: GraphBatch
    y: Tensor
    keep: Bool[Tensor, " b"] | None
    weight: Float[Tensor, " b"] | None = None


class BatchLoader:
    """Puts mini-batches of a collection on a device."""

    def __init__(self, examples: Examples, task: Task, device: torch.device) -> None:
        self.task, self.device = task, device
        self.source, self.y = examples.graphs, examples.y
        self.graphs = examples.graphs
        self.weight = None if examples.weight is None else examples.weight.to(device)
        self.resident = device.type == "cuda" and fits(self.source, self.y, device)
        if self.resident:
            self.graphs, self.y = self.graphs.to(device), task.encode(self.y).to(device)

    def targets(self, part: Int[Tensor, " b"]) -> Tensor:
        """The encoded targets of some graphs, on the device."""
        if self.resident:
            return self.y[part.to(self.device)]
        return self.task.encode(self.y[part]).to(self.device)

    def weights(self, part: Int[Tensor, " b"]) -> Tensor | None:
        """The weights of some graphs, on the device; None where all are 1."""
        return None if self.weight is None else self.weight[part.to(self.device)]

    def load(self, parts: Iterable[Int[Tensor, " _"]]) -> Iterator[MiniBatch]:
        """A mini-batch for each part; for an empty part one in which no graph counts."""
        if self.resident or self.device.type != "cuda":
            return map(self._load, parts)
        stream = torch.cuda.Stream(self.device)
        return map(self._wait, prefetch((self._send(part, stream) for part in parts), PREFETCHED))

    def _load(self, part: Tensor) -> MiniBatch:
        if len(part) == 0:
            return self._empty()
        totals = None
        if self.resident:  # counted on the host, which then need not wait for the device
            sizes, edges = (p[part + 1] - p[part] for p in (self.source.ptr, self.source.edge_ptr))
            totals = int(sizes.sum()), int(edges.sum()), int(sizes.max())
            part = part.pin_memory().to(self.device, non_blocking=True)
        batch = self.graphs.batch(part, totals).to(self.device)
        return MiniBatch(batch, self.targets(part), None, self.weights(part))

    def _empty(self) -> MiniBatch:
        """One graph without vertices: the vertices of graph 0 are present, but belong to none."""
        first = torch.zeros(1, dtype=torch.long)
        batch = self.graphs.batch(first).to(self.device)
        batch.ptr = torch.zeros_like(batch.ptr)
        keep = torch.zeros(1, dtype=torch.bool).to(self.device)
        return MiniBatch(batch, self.targets(first), keep)

    def _send(self, part: Tensor, stream: torch.cuda.Stream) -> tuple[MiniBatch, Any]:
        """Starts copying a mini-batch; returns it with the event that ends the copy."""
        with torch.cuda.stream(stream):
            if len(part) == 0:
                return self._empty(), stream.record_event()
            batch = self.graphs.batch(part).pin_memory().to(self.device, non_blocking=True)
            y = self.task.encode(self.y[part]).pin_memory().to(self.device, non_blocking=True)
            return MiniBatch(batch, y, None, self.weights(part)), stream.record_event()

    def _wait(self, sent: tuple[MiniBatch, Any]) -> MiniBatch:
        """Makes the device wait for the copy of a mini-batch before it computes on it."""
        mini_batch, copied = sent
        current = torch.cuda.current_stream(self.device)
        current.wait_event(copied)
        mini_batch.batch.record_stream(current)  # else its memory is reused too early
        mini_batch.y.record_stream(current)
        if mini_batch.weight is not None:
            mini_batch.weight.record_stream(current)
        return mini_batch


def fits(graphs: Collection, y: Tensor, device: torch.device) -> bool:
    """Whether a collection takes at most a quarter of the device's free memory."""
    tensors = [*(getattr(graphs, f.name) for f in fields(graphs)), *graphs.extra.values(), y]
    size = sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
    return size <= RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]


def prefetch(items: Iterator[Any], depth: int) -> Iterator[Any]:
    """Iterates over ``items`` in a thread, at most ``depth`` items ahead of the caller.

    An error in the thread is raised where its item would have come.
    """
    end = object()
    thread = ThreadPoolExecutor(1, thread_name_prefix="softperm-prefetch")
    try:
        coming = deque(thread.submit(next, items, end) for _ in range(depth))
        while (item := coming.popleft().result()) is not end:
            yield item
            coming.append(thread.submit(next, items, end))
    finally:
        thread.shutdown(cancel_futures=True)


def index_batches(index: Sequence[Int[Tensor, " _"]], size: int) -> Int[Tensor, "steps M b"]:
    """Each model's graphs in mini-batches of ``size``; −1 where a model has no graphs left."""
    longest = max(len(i) for i in index)
    steps = max(1, -(-longest // size))
    padded = torch.full((len(index), steps * size), -1)
    for row, values in zip(padded, index, strict=True):
        row[: len(values)] = values
    return padded.view(len(index), steps, size).movedim(1, 0).contiguous()


@dataclass(frozen=True)
class BatchShape:
    """Fixed size of the arrays that hold a mini-batch of one model.

    Attributes:
        vertices: places for vertices; the last one always stays empty.
        edges: places for directed edges.
        graph: number of vertices of the largest graph.
        distinct: places for the distinct rows of each kind of features; see :func:`equal_features`.
    """

    vertices: int
    edges: int
    graph: int
    distinct: tuple[int, ...] = ()

    @classmethod
    def for_batches(
        cls, graphs: Collection, index: Int[Tensor, "... b"], equal: Equal | None = None
    ) -> BatchShape:
        """The smallest shape for all of these mini-batches; −1 marks no graph."""
        return cls.of(*(int(size.max()) for size in batch_sizes(graphs, index, equal)))

    @classmethod
    def of(cls, vertices: int, edges: int, graph: int, *distinct: int) -> BatchShape:
        """The shape for ``vertices`` vertices, an empty one, and the padding vertex."""
        return cls(_places(vertices), edges, graph, tuple(map(_places, distinct)))

    def grown(self, factor: float, graph: int) -> BatchShape:
        """A larger shape, for graphs of up to ``graph`` vertices."""
        vertices, edges, *distinct = (
            int(size * factor) for size in (self.vertices, self.edges, *self.distinct)
        )
        return BatchShape.of(vertices, edges, graph, *distinct)

    def holds(self, other: BatchShape) -> bool:
        """Whether mini-batches of another shape fit into this one."""
        sizes = ((s.vertices, s.edges, s.graph, *s.distinct) for s in (self, other))
        return all(own >= needed for own, needed in zip(*sizes, strict=True))

    @classmethod
    def largest(cls, shapes: Iterable[BatchShape]) -> BatchShape:
        """The shape that is at least as large as each of the given ones."""
        vertices, edges, graph, distinct = zip(*map(astuple, shapes), strict=True)
        rows = tuple(map(max, zip(*distinct, strict=True)))
        return cls(max(vertices), max(edges), max(graph), rows)


def _places(rows: int) -> int:
    """Places for ``rows`` rows and an empty one, to which a padding row is added."""
    return -(-(rows + 2) // SHARE) * SHARE - 1


Equal = Mapping[str, EqualRows]
"""The equal vertices of all graphs of a collection, by the name of the features."""


def equal_features(graphs: Collection, model: nn.Module) -> Equal:
    """The vertices of each graph that the permutations of a network do not tell apart.

    Args:
        graphs: the collection.
        model: the network, of which the training uses equal copies.

    Returns:
        For ``structure`` and ``attributes`` the distinct rows, where they are few enough and a
        permutation reads them as they are; on the host.
    """
    permutations = [m for m in model.modules() if isinstance(m, SoftPermutation) and m.merges]
    read = {permutation.reads for permutation in permutations}
    tables = {"structure": graphs.structure} if "structure" in read else {}
    if "attributes" in read and not getattr(model, "changes_attributes", True):
        parts = [part.float() for part in (graphs.label, graphs.x) if part is not None]
        tables |= {"attributes": torch.cat(parts, dim=1)} if parts else {}
    ptr = graphs.ptr.cpu()
    rows = {name: equal_rows(table.cpu(), ptr) for name, table in tables.items()}
    return {name: found for name, found in rows.items() if found is not None}


def batch_sizes(
    graphs: Collection, index: Int[Tensor, "*steps b"], equal: Equal | None = None
) -> tuple[Int[Tensor, "*steps"], ...]:
    """Vertices, directed edges, and vertices of the largest graph of each mini-batch.

    They are followed by the distinct rows of each kind of features. −1 marks no graph.
    """
    present = (index >= 0).to(graphs.ptr.device)
    safe = index.clamp(min=0).to(graphs.ptr.device)
    offsets = [graphs.ptr, graphs.edge_ptr, *(rows.ptr for rows in (equal or {}).values())]
    vertices, edges, *distinct = (
        torch.where(present, ptr[safe + 1] - ptr[safe], 0) for ptr in offsets
    )  # (*steps, b)
    return vertices.sum(-1), edges.sum(-1), vertices.amax(-1), *(d.sum(-1) for d in distinct)


def choose_shapes(
    sizes: Sequence[Int[Tensor, " S"]], most: int, worth: float = 0.0
) -> tuple[list[BatchShape], Int[Tensor, " S"]]:
    """Divides steps among a few shapes, from small to large.

    Where the sizes of graphs differ a lot, the shape of the largest mini-batch is twice as large as
    most mini-batches need.

    Args:
        sizes: of each step, as :func:`batch_sizes` gives them; the first two decide.
        most: maximum number of shapes.
        worth: share of the largest shape that a further shape must save the average step.

    Returns:
        The shapes, and which of them each step has.

    >>> steps = torch.tensor([10, 100, 11, 12])
    >>> shapes, which = choose_shapes([steps, 2 * steps, steps // 5], most=2)
    >>> [shape.edges for shape in shapes], which.tolist()
    ([24, 200], [0, 1, 0, 0])
    """
    vertices, edges, *_ = sizes
    share = torch.maximum(
        vertices / vertices.max().clamp(min=1), edges / edges.max().clamp(min=1)
    )  # (S,), of the largest shape
    order = share.argsort()
    which, shapes, begin = torch.zeros_like(order), list[BatchShape](), 0
    for end in _cuts(share[order], most, worth):
        largest = (int(size[order[:end]].max()) for size in sizes)
        shape = BatchShape.of(*largest)
        if not shapes or shape != shapes[-1]:
            shapes.append(shape)
        which[order[begin:end]] = len(shapes) - 1
        begin = end
    return shapes, which


def _cuts(share: Float[Tensor, " S"], most: int, worth: float) -> list[int]:
    """Ends of the parts of ascending shares that minimise the cost, by dynamic programming.

    A step costs the largest share of its part. A further part is used only if it lowers the cost of
    all steps together by ``worth`` each.
    """
    ends = sorted({len(share) * k // CUTS for k in range(1, CUTS + 1)} - {0})
    tops = [float(share[end - 1]) for end in ends]
    costs = [end * top for end, top in zip(ends, tops, strict=True)]  # up to each end, one part
    paths = [[end] for end in ends]
    for _ in range(most - 1):
        lower, longer = list(costs), list(paths)
        for i, (end, top) in enumerate(zip(ends, tops, strict=True)):
            for j in range(i):
                cost = costs[j] + (end - ends[j]) * top
                if cost < lower[i]:
                    lower[i], longer[i] = cost, [*paths[j], end]
        if costs[-1] - lower[-1] <= worth * len(share):
            break
        costs, paths = lower, longer
    return paths[-1]


def gather(
    graphs: Collection, index: Int[Tensor, "M b"], shape: BatchShape, equal: Equal | None = None
) -> tuple[dict[str, Tensor], Bool[Tensor, "M b"]]:
    """The mini-batches of M models: the arrays of :meth:`Collection.batch` with a model axis.

    Shapes depend on ``shape`` alone and the host reads nothing, so that this can be part of a CUDA
    graph. Places without a vertex hold zeros; places without an edge hold loops at empty places,
    which belong to no graph.

    Args:
        graphs: the whole collection, on the device that trains.
        index: each model's graphs; −1 for none.
        shape: size of the arrays of one model.
        equal: equal vertices of all graphs, on the same device.

    Returns:
        Arrays by name, each with leading axis M, and which entries of ``index`` are graphs. Those
        of ``equal`` have names such as ``structure.starts``; see :func:`fixed_batch`.
    """
    if index.is_cuda:
        from softperm.training import gpu_kernels as kernels  # needs Triton

        arrange, take_rows, encode = kernels.lay_out, kernels.rows, kernels.attributes
        merge = kernels.lay_out_equal
    else:
        arrange, take_rows, encode, merge = lay_out, rows, attributes, lay_out_equal
    layout = arrange(graphs, index, shape.vertices, shape.edges)
    arrays = {
        "ptr": layout.ptr,
        "edge_index": layout.ends.movedim(0, 1),  # (M, 2, E)
        "structure": take_rows(graphs.structure, layout.vertex),
    }
    label, edge_label = graphs.label, graphs.edge_label
    if graphs.codes:
        for name, codes, item in (
            ("label", label, layout.vertex),
            ("edge_label", edge_label, layout.edge),
        ):
            if codes is not None:
                arrays[name] = take_rows(codes, item, -1).long()
        label = edge_label = None
    x = encode(label, graphs.label_sizes, graphs.x, layout.vertex)
    edge_attr = encode(edge_label, graphs.edge_label_sizes, graphs.edge_attr, layout.edge)
    if x is not None:
        arrays["x"] = x
    if edge_attr is not None:
        arrays["edge_attr"] = edge_attr
    if graphs.edge_weight is not None:
        arrays["edge_weight"] = take_rows(graphs.edge_weight, layout.edge)
    for name, table in graphs.extra.items():
        arrays[name] = take_rows(table, layout.edge if name.startswith("edge") else layout.vertex)
    for (name, merged), places in zip((equal or {}).items(), shape.distinct, strict=True):
        fields = merge(graphs.ptr, merged, index, layout.ptr, shape.vertices, places)
        arrays |= {f"{name}.{field}": array for field, array in fields.items()}
    return arrays, index >= 0


def fixed_batch(
    arrays: Mapping[str, Tensor], shape: BatchShape, equal: Equal | None = None
) -> GraphBatch:
    """The mini-batch of one model, from its arrays of :func:`gather`."""
    fields = {name: array for name, array in arrays.items() if "." not in name}
    merged = {
        name: EqualRows(**{f: arrays[f"{name}.{f}"] for f in EQUAL_ARRAYS}, largest=rows.largest)
        for name, rows in (equal or {}).items()
    }
    batch = Data(**fields, canonical=True, largest=shape.graph, equal_vertices=merged)
    return cast("GraphBatch", batch)


@dataclass(frozen=True)
class Layout:
    """Positions of the mini-batches of M models, b graphs each, in arrays of V and E places.

    Attributes:
        ptr: position of each graph's first vertex; the last entry is the number of vertices.
        vertex: the collection's vertex at each place; −1 for none.
        edge: the collection's directed edge at each place; −1 for none.
        ends: the two vertices of each edge, as places; for a place without an edge a loop at a
            place without a vertex.
    """

    ptr: Int[Tensor, "M b1"]
    vertex: Int[Tensor, "M V"]
    edge: Int[Tensor, "M E"]
    ends: Int[Tensor, "2 M E"]


def lay_out(graphs: Collection, index: Int[Tensor, "M b"], vertices: int, edges: int) -> Layout:
    """Puts each model's graphs one after the other; on a GPU ``gpu_kernels.lay_out`` does.

    Args:
        graphs: the whole collection.
        index: each model's graphs; −1 for none.
        vertices: places for vertices, more than the graphs have.
        edges: places for directed edges.
    """
    ptr, vertex, _ = _fill(graphs.ptr, index, vertices)
    _, edge, owner = _fill(graphs.edge_ptr, index, edges)
    shift = ptr.gather(1, owner)  # (M, E): first vertex of the edge's graph
    ends = graphs.edge_index[:, edge.clamp(min=0)].long() + shift  # (2, M, E)
    ends = torch.where(edge >= 0, ends, _loops(ptr[:, -1:], edge, vertices))
    return Layout(ptr, vertex, edge, ends)


EQUAL_ARRAYS = ("ptr", "starts", "order", "place")


def lay_out_equal(
    ptr: Int[Tensor, " B1"],
    equal: EqualRows,
    index: Int[Tensor, "M b"],
    batch_ptr: Int[Tensor, "M b1"],
    vertices: int,
    distinct: int,
) -> dict[str, Int[Tensor, "M _"]]:
    """The arrays of :class:`EqualRows` for each model's graphs; ``gpu_kernels`` does it on a GPU.

    Places without a distinct row have no vertices, and those without a vertex hold zeros.

    Args:
        ptr: where the vertices of each graph of the collection begin.
        equal: the equal vertices of all graphs of the collection.
        index: each model's graphs; −1 for none.
        batch_ptr: position of each of these graphs' first vertex.
        vertices: places for vertices.
        distinct: places for distinct rows.
    """
    row_ptr, row, row_owner = _fill(equal.ptr, index, distinct + 1)
    _, vertex, owner = _fill(ptr, index, vertices)
    graph, row_graph = (index.clamp(min=0).gather(1, o) for o in (owner, row_owner))

    def moved(table: Tensor, item: Tensor, change: Tensor, other: Tensor) -> Tensor:
        return torch.where(item >= 0, table[item.clamp(min=0)] + change, other)

    nothing = torch.zeros_like(batch_ptr[:, -1:])
    by_vertex = batch_ptr.gather(1, owner) - ptr[graph]
    by_row = batch_ptr.gather(1, row_owner) - ptr[row_graph]
    place = row_ptr.gather(1, owner) - equal.ptr[graph]
    return {
        "ptr": row_ptr,
        "starts": moved(equal.starts, row, by_row, batch_ptr[:, -1:]),  # (M, U + 1)
        "order": moved(equal.order, vertex, by_vertex, nothing),  # (M, V)
        "place": moved(equal.place, vertex, place, nothing),  # (M, V)
    }


def _fill(
    ptr: Int[Tensor, " B1"], index: Int[Tensor, "M b"], places: int
) -> tuple[Int[Tensor, "M b1"], Int[Tensor, "M K"], Int[Tensor, "M K"]]:
    """Start of each graph; for each place the vertex or edge, and which of the model's graphs."""
    safe = index.clamp(min=0)
    sizes = torch.where(index >= 0, ptr[safe + 1] - ptr[safe], 0)  # (M, b)
    starts = pad(sizes.cumsum(1), (1, 0))  # (M, b + 1)
    place = torch.arange(places, device=ptr.device).expand(len(index), places).contiguous()
    owner = torch.searchsorted(starts[:, 1:].contiguous(), place, right=True)  # (M, K)
    used = owner < index.shape[1]
    owner = owner.clamp(max=index.shape[1] - 1)
    item = ptr[safe].gather(1, owner) + place - starts.gather(1, owner)
    return starts, torch.where(used, item, -1), owner


def _loops(used: Int[Tensor, "M 1"], edge: Int[Tensor, "M E"], vertices: int) -> Int[Tensor, "M E"]:
    """Vertices for absent edges: the empty places in turn, so that none becomes a hub."""
    edges = edge.shape[1]
    present = (edge >= 0).sum(1, keepdim=True)  # (M, 1)
    k = torch.arange(edges, device=used.device) - present  # (M, E)
    share = k * (vertices - used) // (edges - present).clamp(min=1)
    return used + share.clamp(min=0)


def rows(table: Tensor, item: Int[Tensor, "M K"], fill: int = 0) -> Tensor:
    """The rows ``item`` of a table; ``fill`` where ``item`` is −1."""
    if len(table) == 0:
        return table.new_full((*item.shape, *table.shape[1:]), fill)
    present = (item >= 0).view(*item.shape, *[1] * (table.ndim - 1))
    return torch.where(present, table[item.clamp(min=0)], fill)


def attributes(
    label: Tensor | None, sizes: tuple[int, ...], x: Tensor | None, item: Int[Tensor, "M K"]
) -> Tensor | None:
    """One-hot labels beside continuous attributes, (M, K, F); zeros where ``item`` is −1."""
    parts: list[Tensor] = []
    if label is not None:
        one_hot = torch.zeros(*item.shape, sum(sizes), device=item.device)
        columns = one_hot.split(sizes, dim=-1)
        codes = rows(label, item, -1).long()  # (M, K, L)
        for column, code in zip(columns, codes.split(1, dim=-1), strict=True):
            if column.shape[-1]:
                column.scatter_(-1, code.clamp(min=0), (code >= 0).float())
        parts.append(one_hot)
    if x is not None:
        parts.append(rows(x, item).float())
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1) if parts else None
