"""Collections of graphs laid end to end, and mini-batches taken from them by indexing."""

from __future__ import annotations

import hashlib
import math
import mmap
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from softperm.data.features import structural_features
from softperm.errors import counted
from softperm.files import note_mapping
from softperm.pyg import Batch, Data

SPAN_VERTICES = 1 << 20  # of graphs that are worked on at once
MAPPED_BYTES = 1 << 26  # of an array, above which it is in a file

if TYPE_CHECKING:

    class GraphBatch(Data):
        """A PyG batch of canonical graphs laid end to end.

        Only type checkers see this class, because they cannot know the fields of PyG's objects. At
        run time a batch is any PyG ``Data`` with these fields; a missing one is None.
        """

        num_nodes: int  # type: ignore[assignment]
        ptr: Int[Tensor, " B1"]
        batch: Int[Tensor, " V"]
        edge_index: Int[Tensor, "2 E"]
        structure: Float[Tensor, "V S"]
        x: Float[Tensor, "V F"]
        edge_attr: Float[Tensor, "E Fe"]
        edge_weight: Float[Tensor, " E"]
        label: Int[Tensor, "V L"]
        edge_label: Int[Tensor, "E Le"]
        pos: Float[Tensor, "V _"]
        largest: int
        canonical: bool
else:
    GraphBatch = Data


@dataclass(frozen=True)
class Collection:
    """All graphs of a dataset as ragged arrays: graph ``i`` owns vertices ``ptr[i]:ptr[i + 1]``.

    A batch costs a few tensor operations, whatever its number of graphs, because there are no
    Python objects per graph. The arrays may be on any device, or memory-mapped.

    Discrete labels are stored as codes. A batch has them as one-hot vectors or, for a network that
    embeds labels, as codes. Each of the ``L`` label columns has its own vocabulary size in
    ``label_sizes``; code −1 is an unknown label and becomes the zero vector.

    Args:
        ptr: where each graph's vertices begin, with the total at the end.
        edge_ptr: where each graph's directed edges begin, with the total at the end.
        edge_index: both directions of every edge, vertices numbered within their graph, sorted.
        structure: features that do not depend on the numbering of vertices (degree, triangles).
        label: codes of discrete vertex labels.
        label_sizes: vocabulary size of each column of ``label``.
        x: continuous vertex attributes.
        edge_label: codes of discrete edge labels.
        edge_label_sizes: vocabulary size of each column of ``edge_label``.
        edge_attr: continuous edge attributes.
        edge_weight: edge weights; None means 1.
        codes: whether batches have labels as codes, in place of one-hot vectors.
        extra: further tensors that batches have by name, such as ``pos``, the positions of atoms:
            a row for each vertex or, if the name begins with ``edge``, for each directed edge.
    """

    ptr: Int[Tensor, " B1"]
    edge_ptr: Int[Tensor, " B1"]
    edge_index: Int[Tensor, "2 E"]
    structure: Float[Tensor, "V S"]
    label: Int[Tensor, "V L"] | None = None
    label_sizes: tuple[int, ...] = ()
    x: Float[Tensor, "V F"] | None = None
    edge_label: Int[Tensor, "E Le"] | None = None
    edge_label_sizes: tuple[int, ...] = ()
    edge_attr: Float[Tensor, "E Fe"] | None = None
    edge_weight: Float[Tensor, " E"] | None = None
    codes: bool = False
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def from_counts(
        cls,
        sizes: Sequence[int] | np.ndarray,
        edge_counts: Sequence[int] | np.ndarray,
        edge_index: Int[Tensor, "2 E"],
        **others: Any,
    ) -> Collection:
        """Graphs with degree and triangles as their structure.

        Args:
            sizes: number of vertices of each graph.
            edge_counts: number of directed edges of each graph.
            edge_index: see :class:`Collection`.
            others: the other fields.
        """
        ptr, edge_ptr = (
            torch.from_numpy(np.append(0, np.cumsum(counts, dtype=np.int64)))
            for counts in (sizes, edge_counts)
        )
        graphs = cls(ptr, edge_ptr, edge_index, torch.empty(int(ptr[-1]), 0), **others)
        return replace(graphs, structure=structural_features(graphs.edges, ptr))

    @classmethod
    def of_arrays(
        cls,
        arrays: Mapping[str, np.ndarray],
        label_sizes: tuple[int, ...],
        edge_label_sizes: tuple[int, ...],
    ) -> Collection:
        """The collection in arrays by name, such as those of a prepared folder, without copying."""
        names = [f.name for f in fields(cls) if f.name in arrays]
        present: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in names}
        return cls(**present, label_sizes=label_sizes, edge_label_sizes=edge_label_sizes)

    def __len__(self) -> int:
        return self.ptr.numel() - 1

    def __repr__(self) -> str:
        """Sizes only: the arrays of a large collection would fill the screen."""
        vertices, edges = int(self.ptr[-1]), int(self.edge_ptr[-1])
        sizes = f"{counted(len(self), 'graph')}, {counted(vertices, 'vertex')}, "
        sizes += counted(edges, "directed edge")
        kinds = [f.name for f in fields(self)[4:] if isinstance(getattr(self, f.name), Tensor)]
        return f"{type(self).__name__}({', '.join([sizes, *kinds, *self.extra])})"

    @property
    def sizes(self) -> Int[Tensor, " B"]:
        """Number of vertices of each graph."""
        return self.ptr.diff()

    @property
    def owner(self) -> Int[Tensor, " V"]:
        """The graph of each vertex."""
        return torch.repeat_interleave(self.ptr.diff())

    @property
    def edge_owner(self) -> Int[Tensor, " E"]:
        """The graph of each directed edge."""
        return torch.repeat_interleave(self.edge_ptr.diff())

    @property
    def edges(self) -> Int[Tensor, "2 E"]:
        """Both ends of each directed edge, vertices numbered through the whole collection."""
        return self.edge_index.long() + self.ptr[self.edge_owner]

    @property
    def attribute_size(self) -> int:
        """Length F of a vertex's ``x`` in a batch: one-hot labels, then attributes."""
        labels = 0 if self.codes else sum(self.label_sizes)
        return labels + (0 if self.x is None else self.x.shape[1])

    @property
    def edge_attribute_size(self) -> int:
        """Length d_e of an edge's ``edge_attr`` in a batch."""
        labels = 0 if self.codes else sum(self.edge_label_sizes)
        return labels + (0 if self.edge_attr is None else self.edge_attr.shape[1])

    def to(self, device: torch.device | str) -> Collection:
        """The same collection on another device."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in moved.items()}
        moved["extra"] = {name: tensor.to(device) for name, tensor in self.extra.items()}
        return replace(self, **moved)

    def digest(self, **more: Tensor) -> str:
        """SHA-256 of all arrays, and of further ones by name."""
        digest = hashlib.sha256()
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, tensor in {**arrays, **self.extra, **more}.items():
            if isinstance(tensor, Tensor):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def select(self, index: Int[Tensor, " b"]) -> Collection:
        """The collection of the chosen graphs, in the given order."""
        vertices, ptr = _spans(self.ptr, index.to(self.ptr.device), None)
        edges, edge_ptr = _spans(self.edge_ptr, index.to(self.ptr.device), None)
        return replace(self, ptr=ptr, edge_ptr=edge_ptr, **self._rows(vertices, edges))

    def _rows(self, vertices: Tensor | slice, edges: Tensor | slice) -> dict[str, Any]:
        """The fields of the given vertices and edges, by name."""
        rows: dict[str, Any] = {
            name: value[edges if name.startswith("edge") else vertices]
            for name in ("structure", "label", "x", "edge_label", "edge_attr", "edge_weight")
            if (value := getattr(self, name)) is not None
        }
        rows["extra"] = self._extra(vertices, edges)
        return {"edge_index": self.edge_index[:, edges], **rows}

    def _extra(self, vertices: Tensor | slice, edges: Tensor | slice) -> dict[str, Tensor]:
        """The further tensors of the given vertices and edges."""
        return {
            name: value[edges if name.startswith("edge") else vertices]
            for name, value in self.extra.items()
        }

    def spans(self) -> Iterator[tuple[int, int, Collection]]:
        """Consecutive graphs of about a million vertices, or one larger graph, without copying.

        Yields:
            The first graph, the one after the last, and the collection of these.
        """
        first, count = 0, len(self)
        while first < count:
            end = int(torch.searchsorted(self.ptr, self.ptr[first] + SPAN_VERTICES, right=True)) - 1
            last = max(first + 1, min(end, count))
            yield first, last, self.span(first, last)
            first = last

    def span(self, first: int, last: int) -> Collection:
        """The graphs from ``first`` to before ``last``; its arrays are views."""
        v, e = (slice(*ptr[[first, last]].tolist()) for ptr in (self.ptr, self.edge_ptr))
        return replace(
            self,
            ptr=self.ptr[first : last + 1] - self.ptr[first],
            edge_ptr=self.edge_ptr[first : last + 1] - self.edge_ptr[first],
            **self._rows(v, e),
        )

    def map_vertices(
        self, compute: Callable[[Collection], Shaped[Tensor, "v ..."]]
    ) -> Shaped[Tensor, "V ..."]:
        """Rows of all vertices, computed for some graphs at a time; see :func:`spacious`.

        Args:
            compute: gives the rows of the vertices of some graphs, which may not depend on others.
        """
        rows: Tensor | None = None
        for first, last, part in self.spans():
            if last - first == len(self):
                return compute(self)
            block = compute(part).cpu()
            if rows is None:
                shape = (int(self.ptr[-1]), *block.shape[1:])
                rows = torch.from_numpy(spacious(shape, block[:0].numpy().dtype))
            rows[int(self.ptr[first]) : int(self.ptr[last])] = block
        return compute(self) if rows is None else rows.to(self.ptr.device)

    def split(self, index: Int[Tensor, " b"], vertices: int) -> list[Int[Tensor, " _"]]:
        """Splits an index into consecutive parts of at most ``vertices`` vertices.

        Batches of equal cost need equal numbers of vertices, not of graphs. A larger graph is a
        part of its own.
        """
        cuts, total = [0], 0
        for k, size in enumerate(self.sizes[index.to(self.ptr.device)].tolist()):
            if total + size > vertices and k > cuts[-1]:
                cuts.append(k)
                total = 0
            total += size
        ends = [*cuts[1:], len(index)]
        return [index[first:last] for first, last in zip(cuts, ends, strict=True)]

    def batch(
        self, index: Int[Tensor, " b"], totals: tuple[int, int, int] | None = None
    ) -> GraphBatch:
        """The chosen graphs as one PyG batch, ready for the model.

        Args:
            index: the graphs' positions, in the order of the batch; repeats are allowed.
            totals: their number of vertices and of directed edges, and the vertices of the largest
                one, if the caller knows them: reading the numbers from a GPU would wait for it.

        Returns:
            A batch with ``structure`` (V, S), ``edge_index`` (2, E), ``ptr`` and ``batch``; and
            ``x`` (V, F), ``edge_attr`` (E, d_e), ``edge_weight`` (E,), and with ``codes`` also
            ``label`` (V, L) and ``edge_label`` (E, L_e), where the collection has them; what is
            ``extra``; and ``largest``, the vertices of the largest graph, if the host knows it.
        """
        index = index.to(self.ptr.device)
        v, e, largest = totals or (None, None, None)
        vertices, ptr = _spans(self.ptr, index, v)  # (V,), (b + 1,)
        edges, edge_ptr = _spans(self.edge_ptr, index, e)  # (E,), (b + 1,)
        shift = torch.repeat_interleave(ptr[:-1], edge_ptr.diff(), output_size=edges.numel())
        owner = torch.arange(index.numel(), device=ptr.device)
        batch = Batch(
            structure=self.structure[vertices],
            edge_index=self.edge_index[:, edges].long() + shift,
            ptr=ptr,
            batch=torch.repeat_interleave(owner, ptr.diff(), output_size=vertices.numel()),
            canonical=True,
        )
        batch.num_nodes = vertices.numel()
        if largest is None and index.numel() and not ptr.is_cuda:
            largest = int(ptr.diff().max())
        if largest is not None:  # a GPU then omits, and need not compile, what larger graphs need
            batch.largest = largest
        for name, value in self._fields(vertices, edges).items():
            batch[name] = value
        return cast("GraphBatch", batch)

    def _fields(self, vertices: Tensor, edges: Tensor) -> dict[str, Tensor]:
        """The fields of the given vertices and edges besides structure, by name."""
        label, edge_label = (None, None) if self.codes else (self.label, self.edge_label)
        values = {
            "x": _attributes(label, self.label_sizes, self.x, vertices),
            "edge_attr": _attributes(edge_label, self.edge_label_sizes, self.edge_attr, edges),
            "edge_weight": None if self.edge_weight is None else self.edge_weight[edges],
        }
        if self.codes:
            values["label"] = None if self.label is None else self.label[vertices].long()
            values["edge_label"] = (
                None if self.edge_label is None else self.edge_label[edges].long()
            )
        values |= self._extra(vertices, edges)
        return {name: value for name, value in values.items() if value is not None}


def spacious(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of zeros: in memory, or if it is large in a temporary file that is mapped into it.

    The file has no name and ends with the array. The folder of temporary files (``TMPDIR``) should
    be on a disk.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= MAPPED_BYTES:
        return np.zeros(shape, dtype)
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        mapping = mmap.mmap(file.fileno(), size)
    array = np.frombuffer(mapping, dtype).reshape(shape)
    note_mapping(array.ctypes.data, mapping)
    return array


def prepare(batch: GraphBatch) -> GraphBatch:
    """Check a user's own PyG batch and bring it into the form of :meth:`Collection.batch`.

    Edges are sorted, and degree and triangles counted if ``structure`` is missing. A batch from a
    collection is returned unchanged.

    Args:
        batch: simple undirected graphs, both directions of every edge, in any order.

    Raises:
        ValueError: the argument is not a batch, or its edges are directed, repeated, self-loops,
            between two graphs, or have different values in their two directions.
    """
    if getattr(batch, "canonical", False):
        return batch
    if getattr(batch, "ptr", None) is None:
        raise ValueError("expected a PyG Batch, got one graph: Batch.from_data_list([graph])")
    order, reverse = _check_edges(batch.edge_index.long(), batch.ptr)
    batch = batch.clone()
    for name in ("largest", "equal_vertices"):  # which only a collection may state
        if name in batch:
            del batch[name]
    batch.edge_index = batch.edge_index.long()[:, order]
    for key in ("edge_attr", "edge_label", "edge_weight"):
        if isinstance(getattr(batch, key, None), Tensor):
            value = batch[key][order]
            if not _equal_but_rounding(value, batch[key][reverse]):
                raise ValueError(f"the two directions of an edge must have the same {key}")
            batch[key] = value
    if getattr(batch, "structure", None) is None:
        batch.structure = structural_features(batch.edge_index, batch.ptr)
    elif batch.structure.shape[:1] != (int(batch.ptr[-1]),):
        raise ValueError(
            f"structure has shape {tuple(batch.structure.shape)}; expected one row for each of "
            f"{int(batch.ptr[-1])} vertices, or leave it out to count degree and triangles"
        )
    batch.canonical = True
    return batch


def _check_edges(
    edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
) -> tuple[Int[Tensor, " E"], Int[Tensor, " E"]]:
    """The order that sorts the edges, and for each sorted edge the place of its reverse."""
    v, (row, column) = int(ptr[-1]), edge_index
    if row.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < v:
        raise ValueError(f"the batch has edges at vertices outside 0 to {v - 1}")
    keys, order = (row * v + column).sort()
    reversed_keys, reverse = (column * v + row).sort()
    owner = torch.searchsorted(ptr, edge_index.contiguous(), right=True)  # (2, E), the graphs
    simple = (
        torch.equal(keys, reversed_keys)
        and bool((keys[1:] != keys[:-1]).all())
        and bool((row != column).all())
        and torch.equal(owner[0], owner[1])
    )
    if not simple:
        raise ValueError(
            "the batch must hold simple undirected graphs: both directions of every edge, no "
            "duplicates, no self-loops, no edge between two graphs; "
            "softperm.data.graphs.as_graphs converts graphs to this form"
        )
    return order, reverse


def _equal_but_rounding(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    one, other = one.double(), other.double()
    noise = 1e-7 * float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-5, atol=noise, equal_nan=True)


def _spans(ptr: Tensor, index: Tensor, total: int | None) -> tuple[Tensor, Tensor]:
    """Positions covered by the chosen spans of ``ptr``, end to end, and the new ``ptr``."""
    starts, lengths = ptr[index], ptr[index + 1] - ptr[index]
    new_ptr = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    total = int(new_ptr[-1]) if total is None else total
    offset = torch.repeat_interleave(starts - new_ptr[:-1], lengths, output_size=total)
    return torch.arange(total, device=ptr.device) + offset, new_ptr


def _attributes(
    label: Tensor | None, sizes: tuple[int, ...], x: Tensor | None, rows: Tensor
) -> Tensor | None:
    """One-hot labels concatenated with continuous attributes, for the given rows."""
    parts: list[Tensor] = []
    if label is not None:
        for codes, size in zip(label[rows].T, sizes, strict=True):
            parts.append((codes[:, None] == torch.arange(size, device=codes.device)).float())
    if x is not None:
        parts.append(x[rows].float())
    return torch.cat(parts, dim=1) if parts else None


def slice_graph(
    i: int,
    ptr: Int[Tensor, " B1"],
    edge_ptr: Int[Tensor, " B1"],
    edge_index: Int[Tensor, "2 E"],
    fields: Mapping[str, Tensor],
) -> Data:
    """One graph of ragged arrays as a PyG ``Data`` of its own.

    Args:
        i: which graph.
        ptr: where each graph's vertices begin, with the total at the end.
        edge_ptr: where each graph's edges begin, with the total at the end.
        edge_index: both directions of every edge, vertices numbered within their graph.
        fields: rows for all vertices or, if the name begins with ``edge``, for all edges. Labels of
            one column become vectors.

    Returns:
        The graph, which shares no memory with the arrays.
    """
    v, e = slice(*ptr[i : i + 2].tolist()), slice(*edge_ptr[i : i + 2].tolist())
    graph = Data(edge_index=edge_index[:, e].to(torch.long, copy=True))
    graph.num_nodes = v.stop - v.start
    for name, values in fields.items():
        rows = values[e if name.startswith("edge") else v]
        if name.endswith("label"):
            rows = rows.long()[:, 0] if rows.shape[1] == 1 else rows.long()
        graph[name] = rows.clone()
    return graph
