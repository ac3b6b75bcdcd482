"""Many networks in one computation: folds, seeds and configurations of one shape.

Parameters carry a leading model axis, each model has its own mini-batches, and the transport runs
over all (model, graph) problems in one call. The network is the same module, mapped over the model
axis by ``torch.func``; each model gets the numbers that it would get alone, except for rounding.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.functional import pad

from softperm.data.collection import Collection
from softperm.jit import kernel
from softperm.nn.model import evaluating
from softperm.parallel import over_ranges
from softperm.settings import ONE_MODEL_ONLY, TrainingConfig
from softperm.training.cuda_graphs import CapturedStep, CapturePool, on_device
from softperm.training.data import (
    BatchShape,
    Equal,
    batch_sizes,
    choose_shapes,
    epoch_order,
    equal_features,
    fixed_batch,
    gather,
    index_batches,
)
from softperm.training.devices import OneDevice
from softperm.training.loop import (
    Epoch,
    EpochTracker,
    FitResult,
    Training,
    check_validation,
    mean_batch_vertices,
    stop_requests,
)
from softperm.training.precompile import compile_kernels
from softperm.training.tasks import (
    StackedScore,
    Task,
    class_factors,
    mean_loss,
    weigh,
    with_smoothing,
)

MOST_SHAPES = 8  # for which a step is captured
CAPTURE_SECONDS = 1.0  # that a capture takes
PLACES_PER_SECOND = 1e8  # vertices and edges on which a GPU trains in a second
ROW = 32  # row lengths of parameters are multiples of this, for wide loads


class Stack(Training):
    """The training of M networks in step.

    Several stacks on one device can take turns, an epoch each; on a GPU with a stream for each
    stack they then run at the same time.

    Args:
        models: new networks whose parameters have the same shapes.
        tasks: each model's loss and score; all of one kind.
        graphs: the whole collection, which is copied to the device.
        y: targets of all graphs, (B,) or (B, T); or a list of them, one for each model.
        train: each model's training graphs.
        validation: each model's held-out graphs, which select its best epoch; empty for all models
            to end with their last epoch.
        seeds: each model's order of mini-batches, in place of ``config.seed``.
        config: settings; a stack does not support those in ``ONE_MODEL_ONLY``.
        learning_rates: of each model; ``config.learning_rate`` by default.
        criteria: of each model; ``config.criterion`` by default.
        weight: of each graph in the losses; 1 by default.
        device: where to train.
    """

    saves_end = False

    def __init__(
        self,
        models: Sequence[nn.Module],
        tasks: Sequence[Task],
        graphs: Collection,
        y: Tensor | Sequence[Tensor],
        train: Sequence[Tensor],
        validation: Sequence[Tensor],
        seeds: Sequence[int],
        config: TrainingConfig,
        *,
        learning_rates: Sequence[float] | None = None,
        criteria: Sequence[str] | None = None,
        weight: Float[Tensor, " B"] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        default = TrainingConfig()
        for name in ONE_MODEL_ONLY:
            if getattr(config, name) != getattr(default, name):
                raise ValueError(f"{name} is not supported when models are trained in a stack")
        targets = [y] * len(tasks) if isinstance(y, Tensor) else y
        self.validated = any(len(held) for held in validation)
        if self.validated:
            _check_validation(validation, targets)
        else:
            check_validation(None, config)
        self.models, self.tasks, self.config = models, tasks, config
        self.training_task = with_smoothing(tasks[0], config.label_smoothing)
        self.processes, self.device = OneDevice(device), torch.device(device)
        with on_device(self.device):
            self._stack_parameters()
            self.graphs = graphs.to(self.device)
            encoded = [task.encode(t) for task, t in zip(tasks, targets, strict=True)]
            self.y = torch.stack(encoded).to(self.device)  # (M, B, …)
            self.weight = self._graph_weights(targets, train, weight)  # (M, B)
            self.scores = StackedScore(tasks, self.device)
            self.tracker = EpochTracker(
                config,
                tasks[0].higher_is_better,
                models=len(models),
                validated=self.validated,
                criteria=criteria,
                learning_rates=self.flat.new_tensor(
                    learning_rates or [config.learning_rate] * len(models)
                ),
                device=self.device,
            )
            self.best = {name: tensor.detach().clone() for name, tensor in self._chosen().items()}
            self._capture_steps(graphs, train, validation, seeds)
        of_models = (mean_batch_vertices(graphs, index, config.batch_size) for index in train)
        self.step_vertices = sum(of_models)
        self.seconds = 0.0
        self.running: deque[torch.cuda.Event] = deque()  # ends of epochs that a GPU computes

    def fit(
        self,
        checkpoint: Path | None = None,
        fingerprint: str = "",
        on_epoch: Callable[[int], None] = lambda epoch: None,
        callbacks: Sequence[Callable[[Epoch], object]] = (),
    ) -> list[FitResult]:
        """Trains the networks in place, each to the parameters of its best epoch.

        The state is held in the file ``checkpoint`` while training runs; one with another
        fingerprint is refused. The end of the training is not written: saving the networks is up to
        the caller. After each epoch ``on_epoch`` receives its number, and ``callbacks`` the first
        network's row of the curve, for which they wait for the device.

        Raises:
            KeyboardInterrupt: training was stopped; see :func:`softperm.training.loop.fit`.
        """
        reported = 0
        with stop_requests(checkpoint) as stop:
            for epoch in self.epochs(checkpoint, fingerprint, stop):
                on_epoch(epoch)
                while callbacks and reported < epoch:
                    reported += 1
                    row = self.tracker.curve(0, [self.seconds / epoch] * reported)[-1]
                    for callback in callbacks:
                        callback(row)
        return self.results()

    def _stack_parameters(self) -> None:
        for model in self.models:
            model.to(self.device).train()
        params, buffers = stack_module_state(list(self.models))
        # Large tensors first, so that the gradients of small ones can be joined.
        params = dict(sorted(params.items(), key=lambda item: -item[1].numel()))
        self.flat = as_rows(params.values())
        self.params = from_rows(self.flat, params)
        self.buffers: dict[str, Tensor] = dict(buffers)
        self.rates = self.flat.new_zeros(len(self.models))  # (M,), read by captured steps
        self.adam = StackedAdam(
            self.flat,
            self.rates,
            self.config.weight_decay,
            decoupled_decay=self.config.decoupled_decay,
        )
        averaged = self.config.ema is not None
        self.average = self.flat.clone() if averaged else None  # (M, K)
        self.average_params = (
            self.params if self.average is None else from_rows(self.average, params)
        )

    def _graph_weights(
        self, targets: Sequence[Tensor], train: Sequence[Tensor], weight: Tensor | None
    ) -> Float[Tensor, "M B"] | None:
        """Each model's weights of all graphs, with those of its classes; None where all are 1."""
        rows = []
        for task, y, part in zip(self.tasks, targets, train, strict=True):
            index = part.cpu()
            own = None if weight is None else weight[index]
            factors = class_factors(self.config.class_weight, task, y[index], own)
            rows.append(weigh(y, weight, factors))
        known = [row for row in rows if row is not None]
        return torch.stack(known).to(self.flat) if known else None

    def _chosen(self) -> dict[str, Tensor]:
        """The tensors to validate and return: parameters or their average, and buffers."""
        return {"": self.flat if self.average is None else self.average, **self.buffers}

    def _capture_steps(
        self,
        graphs: Collection,
        train: Sequence[Tensor],
        validation: Sequence[Tensor],
        seeds: Sequence[int],
    ) -> None:
        """Captures the steps of an epoch, with shapes for all mini-batches of the training."""
        equal = equal_features(graphs, self.models[0])
        self._compile(graphs, train, equal)
        self.equal = {name: rows.to(self.device) for name, rows in equal.items()}
        changed = [*self.tracker.tensors().values(), *self.best.values()]
        orders = epoch_orders(train, seeds, self.config, self.device)
        restored = [*self._tensors().values(), *self.tracker.tensors().values()]
        self.train_epochs = StackedEpochs(
            self._train_step, orders, graphs, equal, self.device, restored
        )
        if not self.validated:
            self.held = torch.zeros(0, device=self.device)
            pool = self.train_epochs.pool
            self.validate = CapturedStep(self._end_unvalidated, self.held, changed, pool)
            return
        rows = index_batches(list(validation), self.config.batch_size)  # (steps, M, b)
        shape = BatchShape.for_batches(graphs, rows, equal)
        self.held = rows.to(self.device)
        # A score that needs the host is computed after the captured step.
        function, pool = self._outputs_of_held, None
        if self.scores.on_device:
            function, pool = self._validate, self.train_epochs.pool
        self.validate = CapturedStep(partial(function, shape=shape), self.held, changed, pool)

    def _compile(self, graphs: Collection, train: Sequence[Tensor], equal: Equal) -> None:
        """Compiles the kernels of the steps, if they are for a GPU."""

        def update() -> None:
            flat, config = torch.zeros_like(self.flat[:1]), self.config
            adam = StackedAdam(
                flat, weight_decay=config.weight_decay, decoupled_decay=config.decoupled_decay
            )
            adam.step([flat], flat[:, 0] > 0)

        batch = train[0][: self.config.batch_size]
        compile_kernels(self.models[0], graphs, self.graphs, batch, [update], equal)

    def _outputs(
        self, params: dict[str, Tensor], index: Int[Tensor, "M b"], shape: BatchShape
    ) -> tuple[Tensor, Tensor]:
        return stacked_outputs(
            self.models[0], params, self.buffers, self.graphs, index, shape, self.equal
        )

    def _select(self, table: Shaped[Tensor, "M B ..."], index: Int[Tensor, "M b"]) -> Tensor:
        """Each model's rows of its own graphs, (M, b, …); those of graph 0 where index is −1."""
        models = torch.arange(len(table), device=self.device)[:, None]
        return table[models, index.clamp(min=0)]

    def _losses(
        self, task: Task, outputs: Tensor, index: Int[Tensor, "M b"], present: Tensor
    ) -> Float[Tensor, " M"]:
        """Each model's mean loss over its graphs."""
        y = self._select(self.y, index)  # (M, b, …)
        if self.weight is None:
            return torch.vmap(partial(mean_loss, task))(outputs, y, present)
        weights = self._select(self.weight, index)  # (M, b)
        return torch.vmap(partial(mean_loss, task))(outputs, y, present, weights)

    def _train_step(self, index: Int[Tensor, "M b"], shape: BatchShape) -> None:
        outputs, present = self._outputs(self.params, index, shape)
        losses = self._losses(self.training_task, outputs, index, present)
        params = list(self.params.values())
        gradients = torch.autograd.grad(losses.sum(), params, materialize_grads=True)
        flat = [gradient.detach().reshape(len(gradient), -1) for gradient in gradients]
        active = present.any(1)  # (M,)
        self.adam.step(flat, active)
        if self.average is not None and self.config.ema is not None:
            steps = self.adam.steps  # (M,)
            past = ((1 + steps) / (10 + steps)).clamp(max=self.config.ema)  # see WeightAverage
            self.average.lerp_(self.flat, ((1 - past) * active)[:, None])
        self.tracker.add(losses.detach(), present.sum(1))

    @torch.no_grad()
    def _outputs_of_held(
        self, held: Int[Tensor, "steps M b"], shape: BatchShape
    ) -> tuple[Float[Tensor, "M n C"], Bool[Tensor, "M n"]]:
        """Each model's outputs for its validation graphs, and which of them are graphs."""
        with evaluating(self.models[0]):
            parts = [self._outputs(self.average_params, index, shape) for index in held]
        outputs, present = zip(*parts, strict=True)
        return torch.cat(outputs, dim=1), torch.cat(present, dim=1)

    def _validate(self, held: Int[Tensor, "steps M b"], shape: BatchShape) -> None:
        self._end_epoch(*self._outputs_of_held(held, shape))

    @torch.no_grad()
    def _end_epoch(self, outputs: Float[Tensor, "M n C"], present: Bool[Tensor, "M n"]) -> None:
        """Ends an epoch with the outputs for the validation graphs."""
        index = self.held.movedim(0, 1).flatten(1)  # (M, n)
        losses = self._losses(self.tasks[0], outputs, index, present)
        y = self._select(self.y, index)  # (M, n, …)
        self._record(losses, self.scores(outputs, y, present))

    def _end_unvalidated(self, held: Tensor) -> None:
        undefined = torch.full_like(self.tracker.rates, torch.nan)
        self._record(undefined, undefined)

    @torch.no_grad()
    def _record(self, losses: Float[Tensor, " M"], scores: Float[Tensor, " M"]) -> None:
        """Updates the tracker, and copies the parameters of the models that improved."""
        improved = self.tracker.end_epoch(losses, scores)
        for name, tensor in self._chosen().items():
            chosen = improved.view(-1, *[1] * (tensor.ndim - 1))
            self.best[name].copy_(torch.where(chosen, tensor, self.best[name]))

    def train_epoch(self, save: Callable[[], None]) -> bool:
        """Trains every model for an epoch, and validates it."""
        started = time.perf_counter()
        with on_device(self.device):
            self.rates.copy_(self.tracker.learning_rates(self.epoch))
            self.train_epochs.run(self.epoch)
            outputs = self.validate(self.held)
            if self.validated and not self.scores.on_device:
                self._end_epoch(*outputs)
            self.epoch += 1
            if self.epoch == 1:
                self.tracker.check_scores(1, self.tasks[0].metric)
            self._limit_lead()
        self.seconds += time.perf_counter() - started
        return True

    def _limit_lead(self) -> None:
        """Lets the host be one epoch ahead of a GPU: it never idles, and times stay true."""
        if self.device.type == "cuda":
            end = torch.cuda.Event()
            end.record(torch.cuda.current_stream(self.device))
            self.running.append(end)
            while len(self.running) > (self.epoch < self.config.epochs):
                self.running.popleft().synchronize()

    def best_models(self) -> list[FitResult]:
        """Gives each network the parameters of its best epoch so far.

        The curve of a model whose patience ended before that of the others ends there, as if the
        model had been trained alone.
        """
        best = {**from_rows(self.best[""], self.params), **self.best}
        best_epochs = self.tracker.best_epoch.tolist()
        last = [min(self.epoch, k + (self.config.patience or self.epoch)) for k in best_epochs]
        seconds = self.seconds / max(sum(last), 1)
        results = []
        for m, model in enumerate(self.models):
            model.load_state_dict({name: best[name][m] for name in model.state_dict()})
            model.eval()
            curve = self.tracker.curve(m, [seconds] * last[m])
            results.append(FitResult(curve, best_epochs[m], not self.finished))
        return results

    def release(self) -> None:
        """Frees the captured steps and their memory."""
        self.train_epochs.release()
        self.validate.release()

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors that training changes, except the tracker's, by name."""
        groups = {
            "trained": {"": self.flat, **self.buffers},
            "best": self.best,
            "adam": self.adam.tensors(),
        }
        if self.average is not None:
            groups["average"] = {"": self.average}
        return {f"{group}.{k}": t for group, members in groups.items() for k, t in members.items()}

    def state(self) -> dict:
        """Everything that resuming needs, as plain types and tensors."""
        return {
            "epoch": self.epoch,
            "seconds": self.seconds,
            "tracker": self.tracker.tensors(),
            "tensors": {name: tensor.detach() for name, tensor in self._tensors().items()},
        }

    @torch.no_grad()
    def restore(self, state: dict) -> None:
        """Restores a state, in place."""
        self.epoch, self.seconds = state["epoch"], state["seconds"]
        self.tracker.load(state["tracker"])
        for name, tensor in self._tensors().items():
            tensor.copy_(state["tensors"][name])


def _check_validation(validation: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Raises ValueError for a model without validation graphs that have targets."""
    for m, (held, y) in enumerate(zip(validation, targets, strict=True)):
        if not len(held) or (y.is_floating_point() and bool(y[held.cpu()].isnan().all())):
            lack = "no validation graph has a target" if len(held) else "no validation graphs"
            raise ValueError(f"model {m}: {lack}: hold out more graphs, or others")


class StackedEpochs:
    """All epochs of a training; on a GPU a step is captured for each of a few shapes.

    Args:
        step: trains on the mini-batches of all models, given (M, b) and their shape.
        orders: the mini-batches of all epochs; see :func:`epoch_orders`.
        graphs: the whole collection, on the host.
        equal: its equal vertices, on the host.
        device: where the step runs.
        restored: tensors that the step changes in place; captures restore their values.
    """

    def __init__(
        self,
        step: Callable[[Int[Tensor, "M b"], BatchShape], None],
        orders: Int[Tensor, "epochs steps M b"],
        graphs: Collection,
        equal: Equal,
        device: torch.device,
        restored: Sequence[Tensor],
    ) -> None:
        self.orders, self.device = orders, device
        # All epochs at once are too large.
        of_epochs = [batch_sizes(graphs, order, equal) for order in orders]
        sizes = [
            torch.cat([size.amax(-1) for size in kind]) for kind in zip(*of_epochs, strict=True)
        ]  # (epochs · steps,) each
        vertices, edges, *_ = sizes
        places = float(vertices.max() + edges.max()) * orders.shape[2] * len(vertices)
        shapes, which = choose_shapes(sizes, MOST_SHAPES, capture_worth(places, device))
        self.shape_of: list[list[int]] = which.view(orders.shape[:2]).tolist()
        first = [int((which == k).nonzero()[0]) for k in range(len(shapes))]
        examples = orders.flatten(0, 1)[first].to(device).long()
        self.pool = CapturePool.on(device)
        pairs = [*zip(shapes, examples, strict=True)]
        self.steps = [  # the largest first, whose memory the others can use
            CapturedStep(
                lambda index, shape=shape: step(index, shape), example, restored, self.pool
            )
            for shape, example in pairs[::-1]
        ][::-1]

    def run(self, epoch: int) -> None:
        """All steps of an epoch, counted from 0."""
        order = self.orders[epoch].to(self.device, non_blocking=True).long()
        for index, shape in zip(order, self.shape_of[epoch], strict=True):
            self.steps[shape](index)

    def release(self) -> None:
        """Frees the captured steps and their memory."""
        for step in self.steps:
            step.release()


def capture_worth(places: float, device: torch.device) -> float:
    """The time of a capture as a share of a training with ``places`` places in all steps."""
    if device.type != "cuda":
        return 0.0
    return CAPTURE_SECONDS * PLACES_PER_SECOND / max(places, 1.0)


def epoch_orders(
    train: Sequence[Int[Tensor, " _"]],
    seeds: Sequence[int],
    config: TrainingConfig,
    device: torch.device,
) -> Int[Tensor, "epochs steps M b"]:
    """The mini-batches of all epochs, each model in its own order; pinned for a GPU."""
    orders = []
    for epoch in range(1, config.epochs + 1):
        pairs = zip(train, seeds, strict=True)
        shuffled = [epoch_order(index, seed, epoch) for index, seed in pairs]
        orders.append(index_batches(shuffled, config.batch_size).int())
    stacked = torch.stack(orders)
    return stacked.pin_memory() if device.type == "cuda" else stacked


def predict_stack(
    models: Sequence[nn.Module],
    graphs: Collection,
    index: Sequence[Int[Tensor, " _"]],
    batch_size: int,
) -> list[Float[Tensor, "_ C"]]:
    """Each model's outputs for its own graphs, on the CPU; models and graphs share a device."""
    device = graphs.ptr.device
    params, buffers = stack_module_state(list(models))
    rows = index_batches(list(index), batch_size).to(device)
    found = equal_features(graphs, models[0])
    equal = {name: merged.to(device) for name, merged in found.items()}
    shape = BatchShape.for_batches(graphs, rows, equal)
    arguments = (models[0], params, buffers, graphs)
    with torch.no_grad(), on_device(device), evaluating(models[0]):
        parts = [stacked_outputs(*arguments, index, shape, equal)[0] for index in rows]
    outputs = torch.cat(parts, dim=1).float().cpu()
    return [o[: len(i)] for o, i in zip(outputs, index, strict=True)]


def stacked_outputs(
    model: nn.Module,
    params: dict[str, Tensor],
    buffers: dict[str, Tensor],
    graphs: Collection,
    index: Int[Tensor, "M b"],
    shape: BatchShape,
    equal: Equal | None = None,
) -> tuple[Float[Tensor, "M b C"], Bool[Tensor, "M b"]]:
    """Outputs of a network with M sets of parameters, each for its own graphs.

    Returns:
        The outputs, and which entries of ``index`` are graphs.
    """
    tensors, present = gather(graphs, index, shape, equal)

    def one(params, buffers, tensors):
        return functional_call(model, (params, buffers), (fixed_batch(tensors, shape, equal),))

    return torch.vmap(one)(params, buffers, tensors), present


def as_rows(tensors: Iterable[Float[Tensor, "M ..."]]) -> Float[Tensor, "M K"]:
    """The entries of all tensors of each model in one row, padded with zeros."""
    flat = torch.cat([t.detach().reshape(len(t), -1) for t in tensors], dim=1)
    return pad(flat, (0, -flat.shape[1] % ROW))


def from_rows(flat: Float[Tensor, "M K"], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters (M, …) by name that share the memory of the rows of :func:`as_rows`."""
    sizes = [tensor[0].numel() for tensor in like.values()]
    parts = flat[:, : sum(sizes)].split(sizes, dim=1)
    pairs = zip(like.items(), parts, strict=True)
    return {
        k: part.unflatten(1, t.shape[1:] or (1,)).view(t.shape).detach().requires_grad_()
        for (k, t), part in pairs
    }


class StackedAdam:
    """Adam for M models whose parameters are the rows of one matrix.

    Each model counts its own steps, and a step does not change inactive models, so every model gets
    the numbers of ``torch.optim.Adam`` or ``AdamW``. The host reads no tensor: a step on a GPU can
    be captured.

    Args:
        parameters: all parameters of each model, (M, K); updated in place.
        learning_rate: of all models, or of each.
        weight_decay: added to the gradient, as in ``torch.optim.Adam``.
        decoupled_decay: whether to shrink the parameters by it instead, as ``torch.optim.AdamW``.
    """

    betas, eps = (0.9, 0.999), 1e-8

    def __init__(
        self,
        parameters: Float[Tensor, "M K"],
        learning_rate: float | Float[Tensor, " M"] = 1e-3,
        weight_decay: float = 0.0,
        *,
        decoupled_decay: bool = False,
    ) -> None:
        self.parameters = parameters
        rate = torch.as_tensor(learning_rate, dtype=parameters.dtype, device=parameters.device)
        self.learning_rate = rate.expand(len(parameters))
        self.weight_decay, self.decoupled_decay = weight_decay, decoupled_decay
        self.steps = parameters.new_zeros(len(parameters))  # (M,)
        self.mean, self.square = torch.zeros_like(parameters), torch.zeros_like(parameters)

    @torch.no_grad()
    def step(self, gradients: Sequence[Float[Tensor, "M _"]], active: Bool[Tensor, " M"]) -> None:
        """Updates the active models, given the gradient in blocks of columns."""
        self.steps += active
        count = self.steps.clamp(min=1)
        size = self.learning_rate / (1 - self.betas[0] ** count)  # (M,)
        root = (1 - self.betas[1] ** count).sqrt()  # (M,)
        penalty, shrinkage = self.weight_decay, 0.0
        if self.decoupled_decay:
            penalty, shrinkage = shrinkage, penalty
        keep = 1 - self.learning_rate * shrinkage  # (M,)
        numbers = (self.betas[0], self.betas[1], penalty, self.eps)
        if self.parameters.is_cuda:
            from softperm.training.gpu_kernels import adam_update

            state = (self.parameters, self.mean, self.square)
            adam_update(*state, gradients, active, size, root, keep, *numbers)
            return
        gradient = torch.cat([*gradients], dim=1)
        tensors = (self.parameters, gradient, self.mean, self.square, active, size, root, keep)
        arrays = [tensor.numpy() for tensor in tensors]
        constants = np.array(numbers, dtype=arrays[0].dtype)
        over_ranges(_adam_rows, len(gradient), 16 * gradient.numel(), *arrays, constants)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a step changes, except the parameters, by name."""
        return {"steps": self.steps, "mean": self.mean, "square": self.square}


@kernel(error_model="numpy")
def _adam_rows(parameter, gradient, mean, square, active, size, root, keep, constants, first, last):
    beta1, beta2, decay, eps = constants[0], constants[1], constants[2], constants[3]
    one = constants.dtype.type(1)
    for m in range(first, last):
        if not active[m]:
            continue
        for k in range(parameter.shape[1]):
            g = gradient[m, k] + decay * parameter[m, k]
            average = mean[m, k] + (one - beta1) * (g - mean[m, k])
            power = beta2 * square[m, k] + (one - beta2) * g * g
            mean[m, k], square[m, k] = average, power
            change = size[m] * average / (np.sqrt(power) / root[m] + eps)
            parameter[m, k] = keep[m] * parameter[m, k] - change
