"""One network with many sets of parameters, each on its own graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from softperm.data.collection import Collection
from softperm.pyg import Data
from softperm.training.capture import on_device
from softperm.training.stacked_batch import Room, gather


def batches(index: Sequence[Int[Tensor, " _"]], size: int) -> Int[Tensor, "steps M b"]:
    """Each model's graphs cut into mini-batches of ``size``; −1 where a model has run out."""
    longest = max(len(i) for i in index)
    steps = max(1, -(-longest // size))
    padded = torch.full((len(index), steps * size), -1)
    for row, values in zip(padded, index, strict=True):
        row[: len(values)] = values
    return padded.view(len(index), steps, size).movedim(1, 0).contiguous()


def take(y: Tensor, index: Int[Tensor, "M b"]) -> Tensor:
    """Each model's targets of its own graphs, (M, b, …); those of graph 0 where there is none."""
    models = torch.arange(len(y), device=y.device)[:, None]
    return y[models, index.clamp(min=0)]


def predict_stack(
    models: Sequence[nn.Module],
    graphs: Collection,
    index: Sequence[Int[Tensor, " _"]],
    batch_size: int,
) -> list[Float[Tensor, "_ C"]]:
    """Each model's outputs for its own graphs, on the CPU; models and graphs share a device."""
    device = graphs.ptr.device
    params, buffers = stack_module_state(list(models))
    rows = batches(list(index), batch_size).to(device)
    room = Room.for_batches(graphs, rows)
    was_training = models[0].training
    models[0].eval()
    with torch.no_grad(), on_device(device):
        parts = [stacked_outputs(models[0], params, buffers, graphs, i, room)[0] for i in rows]
    models[0].train(was_training)
    outputs = torch.cat(parts, dim=1).float().cpu()
    return [o[: len(i)] for o, i in zip(outputs, index, strict=True)]


def stacked_outputs(
    model: nn.Module,
    params: dict[str, Tensor],
    buffers: dict[str, Tensor],
    graphs: Collection,
    index: Int[Tensor, "M b"],
    room: Room,
) -> tuple[Float[Tensor, "M b C"], Bool[Tensor, "M b"]]:
    """One network with M sets of parameters, each on its own graphs; and which places hold one."""
    tensors, there = gather(graphs, index, room)

    def one(params, buffers, tensors):
        batch = Data(**tensors, canonical=True, largest=room.graph)
        return functional_call(model, (params, buffers), (batch,))

    return torch.vmap(one)(params, buffers, tensors), there
