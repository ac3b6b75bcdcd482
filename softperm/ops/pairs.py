"""Weighted sums over the pairs of vertices of a graph, with gradients that scatter nothing.

If (u, v) is a pair, so is (v, u). So on a GPU the gradient of a row is a sum over its own pairs:
every product gathers rows, and no sum depends on the order in which threads arrive. The operators
are closed under differentiation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.ops.operators import over_models, refuse_function_transforms, register

PAIRS_AT_ONCE = 1 << 17
"""Pairs of vertices that a CPU computes together."""


def pair_sums(
    weight: Float[Tensor, "v N K"],
    x: Float[Tensor, "V P"],
    other: Int[Tensor, "v N"],
    place: Int[Tensor, " v"],
) -> Float[Tensor, "v K P"]:
    r"""For each vertex u and each k the sum :math:`\sum_j w_{ujk} \, x_{v_{uj}}`.

    Gradients of ``x`` need the pairs of all vertices, ``v = V``.

    Args:
        weight: weights of the pairs of each vertex; 0 in a place without a pair.
        x: a vector of each vertex.
        other: the second vertex of each pair; the vertex itself in a place without a pair.
        place: the place of each vertex in the rows of the others: ``other[v, place[u]]`` is u for
            every pair (u, v).

    >>> other, place = torch.tensor([[0, 1], [0, 1]]), torch.tensor([0, 1])  # the pair (0, 1)
    >>> weight = torch.tensor([[[0.0], [2.0]], [[2.0], [0.0]]])
    >>> pair_sums(weight, torch.tensor([[1.0], [10.0]]), other, place).flatten().tolist()
    [20.0, 2.0]
    """
    refuse_function_transforms(weight, x)
    return pair_sums_op(weight[None], x[None], other[None], place[None]).squeeze(0)


def _rows(x: Tensor, other: Tensor) -> Tensor:
    """(M, V, P), (M, v, N) -> (M, v, N, P): the rows of the second vertices."""
    model = torch.arange(len(x), device=x.device)[:, None, None]
    return x[model, other]


def _pair_sums(weight: Tensor, x: Tensor, other: Tensor, place: Tensor) -> Tensor:
    return weight.mT @ _rows(x, other)


def _sums_of_gradients(weight: Tensor, grad: Tensor, other: Tensor, place: Tensor) -> Tensor:
    given = weight @ grad  # (M, V, N, P), by the first vertex of each pair to the second
    model = torch.arange(len(grad), device=grad.device)[:, None, None]
    return given[model, other, place[:, :, None]].sum(2)


def _pair_products(grad: Tensor, x: Tensor, other: Tensor, place: Tensor) -> Tensor:
    return _rows(x, other) @ grad.mT


# On the CPU, for some vertices at a time.


def _pair_sums_cpu(weight: Tensor, x: Tensor, other: Tensor, place: Tensor) -> Tensor:
    parts = (_pair_sums(w, x, v, place) for w, v in _in_parts(other, weight))
    return torch.cat([*parts], dim=1)


def _pair_products_cpu(grad: Tensor, x: Tensor, other: Tensor, place: Tensor) -> Tensor:
    return torch.cat([_pair_products(g, x, v, place) for g, v in _in_parts(other, grad)], dim=1)


def _sums_of_gradients_cpu(weight: Tensor, grad: Tensor, other: Tensor, place: Tensor) -> Tensor:
    """Adds what each vertex gives to the others, in the order of the vertices."""
    out = torch.zeros_like(grad[:, :, 0])
    for w, g, v in _in_parts(other, weight, grad):
        given = (w @ g).flatten(1, 2)
        for model, target in enumerate(v.flatten(1)):
            out[model].index_add_(0, target, given[model])
    return out


def _in_parts(other: Tensor, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Rows of some vertices at a time, and their pairs; at least one part."""
    step = max(1, PAIRS_AT_ONCE // max(1, len(other) * other.shape[2]))
    return zip(*(t.split(step, dim=1) for t in (*rows, other)), strict=True)


def _save(ctx: Any, inputs: tuple, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple:
    weight, x, other, place = ctx.saved_tensors
    d_weight = pair_products_op(grad, x, other, place) if ctx.needs_input_grad[0] else None
    d_x = sums_of_gradients_op(weight, grad, other, place) if ctx.needs_input_grad[1] else None
    return d_weight, d_x, None, None


def _sums_backward(ctx: Any, grad: Tensor) -> tuple:
    weight, given, other, place = ctx.saved_tensors
    d_weight = pair_products_op(given, grad, other, place) if ctx.needs_input_grad[0] else None
    d_given = pair_sums_op(weight, grad, other, place) if ctx.needs_input_grad[1] else None
    return d_weight, d_given, None, None


def _products_backward(ctx: Any, grad: Tensor) -> tuple:
    given, x, other, place = ctx.saved_tensors
    d_given = pair_sums_op(grad, x, other, place) if ctx.needs_input_grad[0] else None
    d_x = sums_of_gradients_op(grad, given, other, place) if ctx.needs_input_grad[1] else None
    return d_given, d_x, None, None


pair_products_op = register(
    "pair_products(Tensor grad, Tensor x, Tensor other, Tensor place) -> Tensor",
    fake=lambda grad, x, other, place: grad.new_empty(*other.shape, grad.shape[2]),
    reference=_pair_products,
    cpu=_pair_products_cpu,
    save=_save,
    backward=_products_backward,
    vmap=over_models,
)
"""(M, v, K, P), (M, V, P), (M, v, N), (M, v) -> (M, v, N, K): gradients of the weights."""

sums_of_gradients_op = register(
    "sums_of_gradients(Tensor weight, Tensor grad, Tensor other, Tensor place) -> Tensor",
    fake=lambda weight, grad, other, place: grad.new_empty(*grad.shape[:2], grad.shape[3]),
    reference=_sums_of_gradients,
    cpu=_sums_of_gradients_cpu,
    save=_save,
    backward=_sums_backward,
    vmap=over_models,
)
"""(M, V, N, K), (M, V, K, P), (M, V, N), (M, V) -> (M, V, P): gradients of the vectors."""

pair_sums_op = register(
    "pair_sums(Tensor weight, Tensor x, Tensor other, Tensor place) -> Tensor",
    fake=lambda weight, x, other, place: x.new_empty(
        *weight.shape[:2], weight.shape[3], x.shape[2]
    ),
    reference=_pair_sums,
    cpu=_pair_sums_cpu,
    save=_save,
    backward=_backward,
    vmap=over_models,
)
"""(M, v, N, K), (M, V, P), (M, v, N), (M, v) -> (M, v, K, P): sums over pairs."""
