"""Sums, means and maxima over neighbours and over graphs, for one model or many side by side.

Shapes never depend on values, so that all of them can be mapped over models by ``torch.vmap``.
Vertices after ``ptr[-1]`` are empty places: they reach no graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softperm.ops.ragged import graph_maximum, neighbour_maximum, pool, propagate

Neighbours = Callable[[Float[Tensor, "V F"], Int[Tensor, "2 E"]], Float[Tensor, "V F"]]
"""What a vertex learns from its neighbours; edges are canonical."""

Readout = Callable[[Float[Tensor, "V F"], Int[Tensor, " B1"]], Float[Tensor, "B F"]]
"""What a graph learns from its vertices."""


def sum_neighbours(x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]) -> Float[Tensor, "V F"]:
    """The sum over each vertex's neighbours."""
    return propagate(x, edge_index, canonical=True)


def mean_neighbours(
    x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]
) -> Float[Tensor, "V F"]:
    """The mean over each vertex's neighbours; 0 for a vertex without any."""
    return propagate(x, edge_index, canonical=True) / degree(x, edge_index).clamp(min=1)


def max_neighbours(x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]) -> Float[Tensor, "V F"]:
    """The largest value of each feature over each vertex's neighbours; 0 without any."""
    return neighbour_maximum(x, edge_index)


def degree(x: Float[Tensor, "V F"], edge_index: Int[Tensor, "2 E"]) -> Float[Tensor, "V 1"]:
    """Number of neighbours of each vertex, of the type of ``x``."""
    return propagate(torch.ones_like(x[:, :1]), edge_index, canonical=True)


def sum_readout(x: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B F"]:
    """The sum over each graph's vertices."""
    return pool(torch.ones_like(x[:, :1]), x, ptr)[:, 0]


def mean_readout(x: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B F"]:
    """The mean over each graph's vertices."""
    return sum_readout(x, ptr) / ptr.diff().clamp(min=1)[:, None]


def max_readout(x: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B F"]:
    """The largest value of each feature over each graph's vertices."""
    return graph_maximum(x, ptr)
