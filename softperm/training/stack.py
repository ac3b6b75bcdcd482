"""Many models in one computation: folds, seeds and configurations of one shape, side by side.

Parameters carry a leading model axis, each model draws its own mini-batches, and the transport
runs over all (model, graph) problems in one call. The network is the same :class:`PiGNN`, mapped
over the model axis by ``torch.func``; each model's numbers are those it would get alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch_geometric.data import Data

from softperm.collection import Collection
from softperm.training.adam import StackedAdam
from softperm.training.capture import Captured
from softperm.training.checkpoint import read_checkpoint, write_checkpoint
from softperm.training.fit import SAVE_EVERY_SECONDS, Epoch, FitConfig, FitResult, epoch_order
from softperm.training.interrupt import interruptible
from softperm.training.stacked_batch import Room, gather
from softperm.training.tasks import Task, mean_loss, stacked_scores

SAVING_SHARE = 0.05  # of the time at most is spent on checkpoints, which a large stack makes large


def fit_stack(
    models: Sequence[nn.Module],
    tasks: Sequence[Task],
    graphs: Collection,
    y: Tensor,
    train: Sequence[Int[Tensor, " _"]],
    validation: Sequence[Int[Tensor, " _"]],
    seeds: Sequence[int],
    config: FitConfig,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    fingerprint: str = "",
    on_epoch: Callable[[int], None] = lambda epoch: None,
) -> list[FitResult]:
    """Trains M models of one shape in place; each ends with the parameters of its best epoch.

    Args:
        models: freshly initialised networks whose parameters have the same shapes.
        tasks: each model's loss and score; all of one kind.
        graphs: the whole dataset.
        y: targets of all graphs, (B,) or (B, T).
        train: each model's training graphs.
        validation: each model's held-out graphs, which choose its best epoch.
        seeds: each model's order of mini-batches; ``config.seed`` is not used.
        config: how to train.
        device: where to train; the dataset is moved there whole.
        checkpoint: file from which training resumes if it is there; see :func:`fit`. The end of
            the training is not kept in it: what comes of the models is the caller's to keep.
        fingerprint: identifies models, data and settings; another one is refused.
        on_epoch: called with the number of each finished epoch.

    Returns:
        The training curve and best epoch of each model.
    """
    stack = _Stack(models, tasks, graphs, y, train, validation, seeds, config, torch.device(device))
    if checkpoint is not None:
        stack.restore(read_checkpoint(checkpoint, fingerprint))
    due = time.monotonic() + SAVE_EVERY_SECONDS
    with interruptible() as interrupted:
        while not stack.finished and not interrupted():
            stack.train_epoch()
            on_epoch(stack.epoch)
            if checkpoint is not None and time.monotonic() > due:
                started = time.monotonic()
                write_checkpoint(checkpoint, fingerprint, stack.state())
                took = time.monotonic() - started
                due = time.monotonic() + max(SAVE_EVERY_SECONDS, took / SAVING_SHARE)
    if checkpoint is not None and not stack.finished:
        write_checkpoint(checkpoint, fingerprint, stack.state())
    stack.release()
    return stack.results()


class _Stack:
    """The state of M trainings in step with each other."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        tasks: Sequence[Task],
        graphs: Collection,
        y: Tensor,
        train: Sequence[Tensor],
        validation: Sequence[Tensor],
        seeds: Sequence[int],
        config: FitConfig,
        device: torch.device,
    ) -> None:
        self.models, self.tasks, self.config, self.device = models, tasks, config, device
        self.train, self.seeds = train, seeds
        for model in models:
            model.to(device).train()
        params, buffers = stack_module_state(list(models))
        self.flat = _side_by_side(params.values())
        self.params = _rows_apart(self.flat, params)
        self.buffers: dict[str, Tensor] = dict(buffers)
        self.graphs = graphs.to(device)
        self.y = torch.stack([task.encode(y) for task in tasks]).to(device)  # (M, B, …)
        self.adam = StackedAdam(self.flat, config.learning_rate, config.weight_decay)
        self.epoch = 0
        self.seconds = 0.0
        count = (len(models), config.epochs)
        self.curves = {
            name: torch.full(count, torch.nan, dtype=torch.float64, device=device)
            for name in ("train_loss", "validation_loss", "validation_score")
        }
        self.best_value = torch.full((len(models),), torch.inf, dtype=torch.float64, device=device)
        self.best_epoch = torch.zeros(len(models), dtype=torch.long, device=device)
        self.best = {name: tensor.clone() for name, tensor in self._trained().items()}
        self._plan(graphs, validation)

    def _trained(self) -> dict[str, Tensor]:
        """What training changes of the models: all parameters as one matrix, and each buffer."""
        return {"": self.flat, **self.buffers}

    def _plan(self, graphs: Collection, validation: Sequence[Tensor]) -> None:
        """Room for every mini-batch that will come, and the steps recorded for it."""
        size = self.config.batch_size
        rooms = [
            Room.for_batches(graphs, self._order(epoch))
            for epoch in range(1, self.config.epochs + 1)
        ]
        room = Room(max(r.vertices for r in rooms), max(r.edges for r in rooms))
        self.held = batches(list(validation), size).to(self.device)  # (steps, M, b)
        held_room = Room.for_batches(graphs, self.held)
        self.train_step = Captured(
            lambda index: self._train_step(index, room),
            self._order(1)[0].to(self.device),
            kept=[*self._trained().values(), *self.adam.tensors().values()],
        )
        self.evaluate = Captured(lambda held: self._evaluate(held, held_room), self.held)

    def _order(self, epoch: int) -> Int[Tensor, "steps M b"]:
        """The mini-batches of an epoch, each model in its own order."""
        pairs = zip(self.train, self.seeds, strict=True)
        orders = [epoch_order(index, seed, epoch) for index, seed in pairs]
        return batches(orders, self.config.batch_size)

    def _outputs(self, index: Tensor, room: Room) -> tuple[Tensor, Tensor]:
        return stacked_outputs(self.models[0], self.params, self.buffers, self.graphs, index, room)

    def _losses(self, outputs: Tensor, index: Tensor, there: Tensor) -> Float[Tensor, " M"]:
        """Each model's mean loss over its graphs."""
        y = take(self.y, index)  # (M, b, …)
        return torch.vmap(lambda o, t, k: mean_loss(self.tasks[0], o, t, k))(outputs, y, there)

    def _train_step(self, index: Int[Tensor, "M b"], room: Room) -> tuple[Tensor, Tensor]:
        outputs, there = self._outputs(index, room)
        losses = self._losses(outputs, index, there)
        params = list(self.params.values())
        found = torch.autograd.grad(losses.sum(), params, materialize_grads=True)
        self.adam.step(_side_by_side(found), there.any(1))
        return losses.detach(), there.sum(1)

    @torch.no_grad()
    def _evaluate(self, held: Int[Tensor, "steps M b"], room: Room) -> tuple[Tensor, Tensor]:
        """Each model's outputs for its held-out graphs, and which places hold one."""
        self.models[0].eval()
        outputs, there = zip(*(self._outputs(index, room) for index in held), strict=True)
        self.models[0].train()
        return torch.cat(outputs, dim=1), torch.cat(there, dim=1)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or every model's patience is at its end."""
        if self.epoch >= self.config.epochs:
            return True
        if self.config.patience is None:
            return False
        return bool((self.epoch - self.best_epoch >= self.config.patience).all())

    def train_epoch(self) -> None:
        """One pass of every model over its training graphs, then a look at the held-out ones."""
        started = time.perf_counter()
        self.epoch += 1
        total, count = torch.zeros_like(self.best_value), torch.zeros_like(self.best_value)
        for index in self._order(self.epoch).to(self.device):
            losses, graphs = self.train_step(index)
            total, count = total + losses.double() * graphs, count + graphs
        self._record(total / count, *self.evaluate(self.held))
        self.seconds += time.perf_counter() - started

    def _record(self, train_loss: Tensor, outputs: Tensor, there: Tensor) -> None:
        """Writes an epoch's figures down and keeps the models that got better."""
        index = self.held.movedim(0, 1).flatten(1)  # (M, steps · b)
        loss = self._losses(outputs, index, there).double()
        score = stacked_scores(self.tasks, outputs, take(self.y, index), there)
        column = self.epoch - 1
        for name, value in zip(self.curves, (train_loss, loss, score), strict=True):
            self.curves[name][:, column] = value
        value = loss
        if self.config.criterion == "score":
            value = -score if self.tasks[0].higher_is_better else score
            undefined = score.isnan() & loss.isfinite()
            if self.epoch == 1 and bool(undefined.any()):  # asked once: it waits for the device
                raise ValueError(
                    f"the validation graphs of model {int(undefined.int().argmax())} do not define "
                    f"a {self.tasks[0].metric} (too few answers of each kind): hold out more, or "
                    "let criterion be 'loss'"
                )
        value = torch.where(value.isnan(), torch.inf, value)
        patience = self.config.patience
        alive = torch.ones_like(self.best_epoch, dtype=torch.bool)
        if patience is not None:
            alive = self.epoch - self.best_epoch <= patience
        better = alive & ((value < self.best_value) | (self.best_epoch == 0))
        self.best_value.copy_(torch.where(better, value, self.best_value))
        self.best_epoch.copy_(torch.where(better, self.epoch, self.best_epoch))
        for name, tensor in self._trained().items():
            chosen = better.view(-1, *[1] * (tensor.ndim - 1))
            self.best[name].copy_(torch.where(chosen, tensor, self.best[name]))

    def release(self) -> None:
        """Gives back what only training needs."""
        self.train_step.release()
        self.evaluate.release()

    def results(self) -> list[FitResult]:
        """Gives each model the parameters of its best epoch; returns what training gave."""
        curves = {name: values[:, : self.epoch].cpu() for name, values in self.curves.items()}
        best = {**_rows_apart(self.best[""], self.params), **self.best}
        stopped = not self.finished
        made = []
        for m, model in enumerate(self.models):
            model.load_state_dict({name: best[name][m] for name in model.state_dict()})
            model.eval()
            seconds = self.seconds / max(self.epoch, 1) / len(self.models)
            names = ("train_loss", "validation_loss", "validation_score")
            columns = zip(*(curves[name][m].tolist() for name in names), strict=True)
            curve = tuple(
                Epoch(number, train, loss, score, seconds)
                for number, (train, loss, score) in enumerate(columns, start=1)
            )
            made.append(FitResult(curve, int(self.best_epoch[m]), stopped))
        return made

    def _resumable(self) -> dict[str, Tensor]:
        """Everything that training changes, by name."""
        groups = {"trained": self._trained(), "best": self.best, "curve": self.curves}
        groups |= {"adam": self.adam.tensors()}
        named = {f"{group}.{k}": t for group, members in groups.items() for k, t in members.items()}
        return named | {"value": self.best_value, "epoch": self.best_epoch}

    def state(self) -> dict:
        """Everything that resuming needs, of plain types and tensors."""
        tensors = {name: tensor.detach() for name, tensor in self._resumable().items()}
        return {"tensors": tensors, "epoch": self.epoch, "seconds": self.seconds}

    @torch.no_grad()
    def restore(self, state: dict | None) -> None:
        """Goes back to a state, in place; None leaves the beginning."""
        if state is None:
            return
        for name, tensor in self._resumable().items():
            saved = state["tensors"][name]
            if name.startswith("curve."):  # as long as the number of epochs then asked for
                tensor, saved = tensor[:, : state["epoch"]], saved[:, : state["epoch"]]
            tensor.copy_(saved)
        self.epoch, self.seconds = state["epoch"], state["seconds"]


def _side_by_side(tensors: Iterable[Float[Tensor, "M ..."]]) -> Float[Tensor, "M K"]:
    """All numbers of each model in one row."""
    return torch.cat([t.detach().reshape(len(t), -1) for t in tensors], dim=1)


def _rows_apart(flat: Float[Tensor, "M K"], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters (M, …) by name that share the memory of one matrix, a row of it each model's."""
    sizes = [tensor[0].numel() for tensor in like.values()]
    parts = flat.split(sizes, dim=1)
    pairs = zip(like.items(), parts, strict=True)
    return {
        k: part.unflatten(1, t.shape[1:] or (1,)).view(t.shape).detach().requires_grad_()
        for (k, t), part in pairs
    }


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
    with torch.no_grad():
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
        return functional_call(model, (params, buffers), (Data(**tensors, canonical=True),))

    return torch.vmap(one)(params, buffers, tensors), there
