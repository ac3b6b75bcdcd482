"""Triton kernels of stacked training: Adam's update, and mini-batches cut from a collection.

Each number is read and written once. ``data.py`` and ``stack.py`` hold the definitions that
these kernels are tested against.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from softperm.data.collection import Collection
from softperm.jit import gpu_kernel
from softperm.ops.equal_rows import EqualRows
from softperm.training.data import Layout

BLOCK = 1024  # parameters that one program updates
LARGE = 4096  # gradients of at least this many columns are not copied together with others
GRAPHS = 64  # a block of a mini-batch's graphs has at least as many places, so most share a kernel
PLACES = 256  # places for vertices or edges that one program fills
NUMBERS = 1024  # numbers that one program copies


@gpu_kernel(do_not_specialize=["K"])
def _adam_kernel(
    parameter, mean, square, gradient, active, size, root, keep, stride, K,
    BETA1: tl.constexpr, BETA2: tl.constexpr, DECAY: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (m, j): the j-th block of model m's parameters."""
    m = tl.program_id(0)
    if tl.load(active + m):
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = k < K
        place = m.to(tl.int64) * stride + k
        p = tl.load(parameter + place, inside)
        g = tl.load(gradient + m.to(tl.int64) * K + k, inside) + DECAY * p
        average = tl.load(mean + place, inside)
        average += (1 - BETA1) * (g - average)
        power = BETA2 * tl.load(square + place, inside) + (1 - BETA2) * g * g
        change = tl.load(size + m) * average / (tl.sqrt(power) / tl.load(root + m) + EPS)
        tl.store(mean + place, average, inside)
        tl.store(square + place, power, inside)
        tl.store(parameter + place, tl.load(keep + m) * p - change, inside)


def adam_update(
    parameter: Tensor,
    mean: Tensor,
    square: Tensor,
    gradients: Iterable[Tensor],
    active: Tensor,
    size: Tensor,
    root: Tensor,
    keep: Tensor,
    beta1: float,
    beta2: float,
    decay: float,
    eps: float,
) -> None:
    """Updates parameters and moments (M, K) in place, given blocks of the gradient's columns."""
    begin = 0
    for gradient in _joined(gradients):
        models, count = gradient.shape
        _adam_kernel[(models, triton.cdiv(count, BLOCK))](
            *(t[:, begin:] for t in (parameter, mean, square)), gradient.contiguous(),
            active, size, root, keep, parameter.stride(0), count,
            BETA1=beta1, BETA2=beta2, DECAY=decay, EPS=eps, BLOCK=BLOCK,
        )  # fmt: skip
        begin += count


def _joined(blocks: Iterable[Tensor]) -> Iterator[Tensor]:
    """The same columns in fewer blocks: adjacent small ones are joined."""
    small: list[Tensor] = []
    for block in blocks:
        if block.shape[1] < LARGE:
            small.append(block)
            continue
        if small:
            yield torch.cat(small, dim=1)
            small = []
        yield block
    if small:
        yield torch.cat(small, dim=1)


@gpu_kernel(do_not_specialize=["b"], do_not_specialize_on_alignment=["starts"])
def _starts_kernel(index, ptr, starts, b, B: tl.constexpr):
    """Program m: the first place of each of model m's graphs, and the end of the last."""
    m = tl.program_id(0)
    k = tl.arange(0, B)
    graph = tl.load(index + m * b + k, k < b, other=-1)
    size = tl.load(ptr + graph + 1, graph >= 0, other=0) - tl.load(ptr + graph, graph >= 0, other=0)
    tl.store(starts + m * (b + 1), 0)
    tl.store(starts + m * (b + 1) + 1 + k, tl.cumsum(size, 0), k < b)


@gpu_kernel
def _owner(starts, place, b, halvings):
    """Which of the b consecutive graphs a place belongs to; b behind the last."""
    low = tl.zeros_like(place)
    high = low + b
    for _ in range(halvings):
        middle = (low + high) // 2
        behind = (low < high) & (tl.load(starts + 1 + middle, low < high, other=0) <= place)
        high = tl.where(behind, high, middle)
        low = tl.where(behind, middle + 1, low)
    return low


@gpu_kernel
def _item(index, ptr, starts, place, b, halvings):
    """The collection's vertex or edge at each place of a model, −1 for none, and its graph."""
    owner = _owner(starts, place, b, halvings)
    real = owner < b
    graph = tl.load(index + owner, real, other=0)
    begin = tl.load(starts + owner, real, other=0)
    return tl.where(real, tl.load(ptr + graph, real, other=0) + place - begin, -1), owner


@gpu_kernel(do_not_specialize=["b", "room", "halvings"])
def _vertices_kernel(index, ptr, starts, vertex, b, room, halvings, PLACES: tl.constexpr):
    """Program (j, m): the j-th block of model m's places for vertices."""
    m = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    item, _ = _item(index + m * b, ptr, starts + m * (b + 1), place, b, halvings)
    tl.store(vertex + m * room + place, item, place < room)


@gpu_kernel(
    do_not_specialize=["b", "room", "vertices", "total", "models", "halvings"],
    do_not_specialize_on_alignment=["edge_starts"],
)
def _edges_kernel(
    index, edge_ptr, starts, edge_starts, edge_index, edge, ends, b, room, vertices, total, models,
    halvings, PLACES: tl.constexpr,
):  # fmt: skip
    """Program (j, m): the j-th block of model m's places for edges, with both ends."""
    m = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    item, owner = _item(index + m * b, edge_ptr, edge_starts + m * (b + 1), place, b, halvings)
    real, inside = item >= 0, place < room
    tl.store(edge + m * room + place, item, inside)
    shift = tl.load(starts + m * (b + 1) + owner, real, other=0)
    used = tl.load(starts + m * (b + 1) + b)
    before = tl.load(edge_starts + m * (b + 1) + b)
    loop = used + (place - before) * (vertices - used) // tl.maximum(room - before, 1)
    for side in range(2):
        end = tl.load(edge_index + side * total + item, real, other=0).to(tl.int64) + shift
        out = ends + (side * models + m) * room + place
        tl.store(out, tl.where(real, end, loop), inside)


@gpu_kernel(
    do_not_specialize=["b", "room", "halvings"], do_not_specialize_on_alignment=["starts", "new"]
)
def _moved_kernel(
    index, ptr, starts, table, old, new, out, b, room, halvings,
    END: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Program (j, m): entries of a table for the j-th block of places, counted from a new origin.

    An entry of graph g counts from ``old[g]`` in the table, and from ``new`` of that graph among
    model m's graphs in the result. A place without an item holds 0, or with END the end of ``new``.
    """
    m = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    item, owner = _item(index + m * b, ptr, starts + m * (b + 1), place, b, halvings)
    real = item >= 0
    graph = tl.load(index + m * b + owner, real, other=0)
    value = tl.load(table + item, real, other=0) - tl.load(old + graph, real, other=0)
    value += tl.load(new + m * (b + 1) + owner, real, other=0)
    other = tl.load(new + m * (b + 1) + b) if END else 0
    tl.store(out + m * room + place, tl.where(real, value, other), place < room)


@gpu_kernel(
    do_not_specialize=["fill", "count", "F", "width"], do_not_specialize_on_alignment=["out"]
)
def _rows_kernel(
    table, item, out, fill, count, F, width, NUMBERS: tl.constexpr
):  # fmt: skip
    """Program j copies the j-th block of entries of all rows, F of ``width`` in each row."""
    j = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    place, f = j // F, j % F
    inside = place < count
    row = tl.load(item + place, inside, other=-1)
    value = tl.load(table + row * F + f, row >= 0, other=0).to(out.dtype.element_ty)
    value = tl.where(row >= 0, value, fill.to(out.dtype.element_ty))
    tl.store(out + place * width + f, value, inside)


@gpu_kernel(
    do_not_specialize=["count", "columns", "size", "width"],
    do_not_specialize_on_alignment=["codes", "out"],
)
def _one_hot_kernel(
    codes, item, out, count, columns, size, width, NUMBERS: tl.constexpr
):  # fmt: skip
    """Program j writes the j-th block of entries of the one-hot vectors of one column of codes."""
    j = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    place, f = j // size, j % size
    inside = place < count
    row = tl.load(item + place, inside, other=-1)
    code = tl.load(codes + row * columns, row >= 0, other=-1)
    tl.store(out + place * width + f, tl.where(code == f, 1.0, 0.0), inside)


def lay_out(graphs: Collection, index: Tensor, vertices: int, edges: int) -> Layout:
    """See :func:`softperm.training.data.lay_out`."""
    models, b = index.shape
    index = index.long().contiguous()
    starts, edge_starts = index.new_empty(2, models, b + 1).unbind()
    ends = index.new_empty(2, models, edges)
    vertex, edge = index.new_empty(models, vertices), index.new_empty(models, edges)
    block, halvings = max(GRAPHS, triton.next_power_of_2(b)), b.bit_length()
    for ptr, begin in ((graphs.ptr, starts), (graphs.edge_ptr, edge_starts)):
        _starts_kernel[(models,)](index, ptr, begin, b, B=block)
    if vertex.numel():
        _vertices_kernel[(triton.cdiv(vertices, PLACES), models)](
            index, graphs.ptr, starts, vertex, b, vertices, halvings, PLACES=PLACES
        )
    if edge.numel():
        _edges_kernel[(triton.cdiv(edges, PLACES), models)](
            index, graphs.edge_ptr, starts, edge_starts, graphs.edge_index.contiguous(), edge, ends,
            b, edges, vertices, graphs.edge_index.shape[1], models, halvings, PLACES=PLACES,
        )  # fmt: skip
    return Layout(starts, vertex, edge, ends)


def lay_out_equal(
    ptr: Tensor, equal: EqualRows, index: Tensor, batch_ptr: Tensor, vertices: int, distinct: int
) -> dict[str, Tensor]:
    """See :func:`softperm.training.data.lay_out_equal`."""
    models, b = index.shape
    index = index.long().contiguous()
    row_ptr, halvings = torch.empty_like(batch_ptr), b.bit_length()
    block = max(GRAPHS, triton.next_power_of_2(b))
    _starts_kernel[(models,)](index, equal.ptr, row_ptr, b, B=block)

    def moved(own, begin, table, old, new, room, end):
        out = index.new_empty(models, room)
        _moved_kernel[(triton.cdiv(room, PLACES), models)](
            index, own, begin, table, old, new, out, b, room, halvings, END=end, PLACES=PLACES
        )
        return out

    by_row, by_vertex = (equal.ptr, row_ptr), (ptr, batch_ptr)
    return {
        "ptr": row_ptr,
        "starts": moved(*by_row, equal.starts, *by_vertex, distinct + 1, True),
        "order": moved(*by_vertex, equal.order, *by_vertex, vertices, False),
        "place": moved(*by_vertex, equal.place, *by_row, vertices, False),
    }


def rows(table: Tensor, item: Tensor, fill: int = 0) -> Tensor:
    """See :func:`softperm.training.data.rows`."""
    out = table.new_empty(*item.shape, *table.shape[1:])
    _copy_rows(table, item, out, fill)
    return out


def attributes(
    label: Tensor | None, sizes: tuple[int, ...], x: Tensor | None, item: Tensor
) -> Tensor | None:
    """See :func:`softperm.training.data.attributes`."""
    sizes = () if label is None else sizes
    if not sizes and x is None:
        return None
    width = sum(sizes) + (0 if x is None else x.shape[1])
    out = torch.empty(*item.shape, width, dtype=torch.float32, device=item.device)
    label = None if label is None else label.contiguous()
    begin = 0
    for column, size in enumerate(sizes):
        if item.numel() * size:
            _one_hot_kernel[(triton.cdiv(item.numel() * size, NUMBERS),)](
                label[:, column:], item, out[..., begin:], item.numel(), label.shape[1], size,
                width, NUMBERS=NUMBERS,
            )  # fmt: skip
        begin += size
    if x is not None:
        _copy_rows(x, item, out[..., begin:], 0)
    return out


def _copy_rows(table: Tensor, item: Tensor, out: Tensor, fill: int) -> None:
    """Writes rows of a contiguous table; ``out`` may be a slice of wider rows."""
    features = table[0].numel() if len(table) else out.shape[item.ndim :].numel()
    if item.numel() * features:
        width = out.stride(item.ndim - 1)
        _rows_kernel[(triton.cdiv(item.numel() * features, NUMBERS),)](
            table.contiguous(), item, out, fill, item.numel(), features, width, NUMBERS=NUMBERS,
        )  # fmt: skip
