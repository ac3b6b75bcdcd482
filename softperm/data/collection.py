"""A collection of graphs laid end to end, and mini-batches cut from it by index arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import Batch, Data

from softperm.data.features import structural_features

if TYPE_CHECKING:
    from typing import Any as GraphBatch  # a type checker cannot know the fields of PyG's objects
else:
    GraphBatch = Data


@dataclass(frozen=True)
class Collection:
    """All graphs of a dataset as ragged arrays: graph ``i`` owns vertices ``ptr[i]:ptr[i + 1]``.

    A batch costs a few tensor operations, whatever the number of graphs in it, because nothing
    here is a Python object per graph. The arrays may live on any device, or be memory-mapped.

    Discrete labels are kept as codes and become one-hot vectors only in a batch, or stay codes
    there for a network that embeds them. Each of the ``L`` label columns has its own vocabulary
    size in ``label_sizes``; code −1 is an unknown label and becomes the zero vector.

    Args:
        ptr: where each graph's vertices begin, with the total at the end.
        edge_ptr: where each graph's directed edges begin, with the total at the end.
        edge_index: both directions of every edge, vertices numbered within their graph, sorted.
        structure: features that survive renumbering (degree, triangles).
        label: codes of discrete vertex labels.
        label_sizes: vocabulary size of each column of ``label``.
        x: continuous vertex attributes.
        edge_label: codes of discrete edge labels.
        edge_label_sizes: vocabulary size of each column of ``edge_label``.
        edge_attr: continuous edge attributes.
        edge_weight: edge weights; None means 1.
        codes: whether batches carry labels as codes, in place of one-hot vectors.
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

    def __len__(self) -> int:
        return self.ptr.numel() - 1

    @property
    def sizes(self) -> Int[Tensor, " B"]:
        """Number of vertices of each graph."""
        return self.ptr.diff()

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
        return replace(self, **moved)

    def batch(self, index: Int[Tensor, " b"], totals: tuple[int, int] | None = None) -> GraphBatch:
        """The chosen graphs as one PyG batch, ready for the model.

        Args:
            index: which graphs, in the order wanted; repeats are allowed.
            totals: how many vertices and directed edges they have, where the caller knows: asking
                a GPU means waiting for it.

        Returns:
            A batch with ``structure`` (V, S), ``edge_index`` (2, E), ``ptr`` and ``batch``; and
            ``x`` (V, F), ``edge_attr`` (E, d_e), ``edge_weight`` (E,), and with ``codes`` also
            ``label`` (V, L) and ``edge_label`` (E, L_e), where there are such.
        """
        index = index.to(self.ptr.device)
        v, e = totals or (None, None)
        vertices, ptr = _spans(self.ptr, index, v)  # (V,), (b + 1,)
        edges, edge_ptr = _spans(self.edge_ptr, index, e)  # (E,), (b + 1,)
        shift = torch.repeat_interleave(ptr[:-1], edge_ptr.diff(), output_size=edges.numel())
        owner = torch.arange(index.numel(), device=ptr.device)
        made = Batch(
            structure=self.structure[vertices],
            edge_index=self.edge_index[:, edges].long() + shift,
            ptr=ptr,
            batch=torch.repeat_interleave(owner, ptr.diff(), output_size=vertices.numel()),
            canonical=True,
        )
        made.num_nodes = vertices.numel()
        for name, value in self._carried(vertices, edges).items():
            made[name] = value
        return made

    def _carried(self, vertices: Tensor, edges: Tensor) -> dict[str, Tensor]:
        """What the given vertices and edges carry besides structure, by name."""
        label, edge_label = (None, None) if self.codes else (self.label, self.edge_label)
        found = {
            "x": _attributes(label, self.label_sizes, self.x, vertices),
            "edge_attr": _attributes(edge_label, self.edge_label_sizes, self.edge_attr, edges),
            "edge_weight": None if self.edge_weight is None else self.edge_weight[edges],
        }
        if self.codes:
            found["label"] = None if self.label is None else self.label[vertices].long()
            found["edge_label"] = None if self.edge_label is None else self.edge_label[edges].long()
        return {name: value for name, value in found.items() if value is not None}


def prepare(batch: GraphBatch) -> GraphBatch:
    """A user's own PyG batch as :meth:`Collection.batch` makes them; those pass unchanged.

    Edges are sorted, and degree and triangles computed where ``structure`` is missing.
    """
    if getattr(batch, "canonical", False):
        return batch
    if getattr(batch, "ptr", None) is None:
        raise ValueError("expected a PyG Batch, got one graph: Batch.from_data_list([graph])")
    v, (row, col) = int(batch.ptr[-1]), batch.edge_index.long()
    if row.numel() and not 0 <= int(batch.edge_index.min()) <= int(batch.edge_index.max()) < v:
        raise ValueError(f"the batch has edges at vertices outside 0 to {v - 1}")
    codes, order = (row * v + col).sort()
    if not torch.equal(codes, (col * v + row).sort().values) or bool((row == col).any()):
        raise ValueError(
            "the batch must hold simple undirected graphs, both directions of every edge and no "
            "self-loops; softperm.data.graphs.as_graphs makes such graphs of yours"
        )
    back = (col * v + row).argsort()  # each edge's other direction
    batch = batch.clone()
    if "largest" in batch:  # a promise that only a collection can make
        del batch["largest"]
    batch.edge_index = torch.stack([row[order], col[order]])
    for key in ("edge_attr", "edge_label", "edge_weight"):
        if isinstance(getattr(batch, key, None), Tensor):
            there, value = batch[key][back], batch[key][order]
            alike = torch.equal(value, there)
            if value.is_floating_point():
                one, other = value.double(), there.double()
                noise = 1e-7 * float(one.abs().max()) if one.numel() else 0.0
                alike = torch.allclose(one, other, rtol=1e-5, atol=noise, equal_nan=True)
            if not alike:
                raise ValueError(f"the two directions of an edge must have the same {key}")
            batch[key] = value
    if getattr(batch, "structure", None) is None:
        batch.structure = structural_features(batch.edge_index, batch.ptr)
    batch.canonical = True
    return batch


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
    """One-hot labels beside continuous attributes, for the given rows."""
    parts: list[Tensor] = []
    if label is not None:
        for codes, size in zip(label[rows].T, sizes, strict=True):
            parts.append((codes[:, None] == torch.arange(size, device=codes.device)).float())
    if x is not None:
        parts.append(x[rows].float())
    return torch.cat(parts, dim=1) if parts else None
