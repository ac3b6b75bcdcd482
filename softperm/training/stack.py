"""Many models in one computation: folds, seeds and configurations of one shape, side by side.

Parameters carry a leading model axis, each model draws its own mini-batches, and the transport
runs over all (model, graph) problems in one call. The network is the same :class:`PiGNN`, mapped
over the model axis by ``torch.func``; each model's numbers are those it would get alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import stack_module_state

from softperm.data.collection import Collection
from softperm.training.adam import StackedAdam
from softperm.training.capture import Captured, on_device
from softperm.training.checkpoint import read_checkpoint, write_checkpoint
from softperm.training.fit import SAVE_EVERY_SECONDS, Epoch, FitResult
from softperm.training.flat import rows_apart, side_by_side
from softperm.training.interrupt import interruptible
from softperm.training.scoreboard import Scoreboard
from softperm.training.settings import ONE_MODEL_ONLY, TrainingConfig
from softperm.training.stacked_batch import Room
from softperm.training.stacked_epochs import StackedEpochs, orders_of
from softperm.training.stacked_outputs import batches, stacked_outputs, take
from softperm.training.tasks import StackedScore, Task, mean_loss

SAVING_SHARE = 0.05  # of the time at most is spent on checkpoints, which a large stack makes large


def fit_stack(
    models: Sequence[nn.Module],
    tasks: Sequence[Task],
    graphs: Collection,
    y: Tensor | Sequence[Tensor],
    train: Sequence[Int[Tensor, " _"]],
    validation: Sequence[Int[Tensor, " _"]],
    seeds: Sequence[int],
    config: TrainingConfig,
    *,
    learning_rates: Sequence[float] | None = None,
    criteria: Sequence[str] | None = None,
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
        y: targets of all graphs, (B,) or (B, T); a list of them if each model has its own.
        train: each model's training graphs.
        validation: each model's held-out graphs, which choose its best epoch.
        seeds: each model's order of mini-batches; ``config.seed`` is not used.
        config: how to train.
        learning_rates: of each model; ``config.learning_rate`` by default.
        criteria: what chooses each model's best epoch; ``config.criterion`` by default.
        device: where to train; the dataset is moved there whole.
        checkpoint: file from which training resumes if it is there; see :func:`fit`. The end of
            the training is not kept in it: what comes of the models is the caller's to keep.
        fingerprint: identifies models, data and settings; another one is refused.
        on_epoch: called with the number of each finished epoch.

    Returns:
        The training curve and best epoch of each model.
    """
    with interruptible(saves=checkpoint is not None) as interrupted:
        stack = Stack(
            models, tasks, graphs, y, train, validation, seeds, config,
            learning_rates=learning_rates, criteria=criteria, device=device,
        )  # fmt: skip
        for epoch in stack.epochs(checkpoint, fingerprint, interrupted):
            on_epoch(epoch)
    return stack.results()


class Stack:
    """M trainings in step with each other; see :func:`fit_stack`, which runs one to its end.

    Several stacks of one device can take turns, an epoch of each: on a GPU each on a stream of its
    own, where they then run side by side.
    """

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
        device: torch.device | str = "cpu",
    ) -> None:
        plain = TrainingConfig()
        for name in ONE_MODEL_ONLY:
            if getattr(config, name) != getattr(plain, name):
                raise ValueError(f"{name} is not supported when models are trained in a stack")
        self.models, self.tasks, self.device = models, tasks, torch.device(device)
        self.config = config
        with on_device(self.device):
            self._set_up(graphs, y, train, validation, seeds)
        rates = learning_rates or [config.learning_rate] * len(models)
        self.first_rates = self.rates.new_tensor(rates)
        criteria = criteria or [config.criterion] * len(models)
        checked = [replace(config, criterion=c).criterion for c in criteria]
        self.board.by_score.copy_(torch.tensor([c != "loss" for c in checked]))
        self.board.late.copy_(torch.tensor([c == "late-score" for c in checked]))

    def _set_up(
        self,
        graphs: Collection,
        y: Tensor | Sequence[Tensor],
        train: Sequence[Tensor],
        validation: Sequence[Tensor],
        seeds: Sequence[int],
    ) -> None:
        models, tasks, config, device = self.models, self.tasks, self.config, self.device
        for model in models:
            model.to(device).train()
        params, buffers = stack_module_state(list(models))
        params = dict(
            sorted(params.items(), key=lambda item: -item[1].numel())
        )  # small ones joined
        self.flat = side_by_side(params.values())
        self.params = rows_apart(self.flat, params)
        self.buffers: dict[str, Tensor] = dict(buffers)
        self.graphs = graphs.to(device)
        targets = [y] * len(tasks) if isinstance(y, Tensor) else y
        for m, (held, t) in enumerate(zip(validation, targets, strict=True)):
            if not len(held) or (t.is_floating_point() and bool(t[held.cpu()].isnan().all())):
                lack = "no validation graph has a target" if len(held) else "no validation graphs"
                raise ValueError(f"model {m}: {lack}: hold out more graphs, or others")
        encoded = [task.encode(t) for task, t in zip(tasks, targets, strict=True)]
        self.y = torch.stack(encoded).to(device)  # (M, B, …)
        self.rates = self.flat.new_zeros(len(models))  # (M,), in place: a recorded step reads it
        self.adam = StackedAdam(self.flat, self.rates, config.weight_decay)
        self.scores = StackedScore(tasks, device)
        better = tasks[0].higher_is_better
        self.board = Scoreboard(self._trained(), config, better)
        self.epoch = 0
        self.seconds = 0.0
        self.in_flight: deque[torch.cuda.Event] = deque()
        self._record_steps(graphs, train, validation, seeds)

    def _set_rates(self) -> None:
        every = self.config.halve_every
        halvings = self.epoch // every if every else 0
        floor = self.first_rates.clamp(max=self.config.decay_floor)
        decayed = torch.maximum(self.first_rates * self.board.decayed, floor)
        self.rates.copy_(decayed / 2**halvings)

    def _trained(self) -> dict[str, Tensor]:
        """What training changes of the models: all parameters as one matrix, and each buffer."""
        return {"": self.flat, **self.buffers}

    def _record_steps(
        self,
        graphs: Collection,
        train: Sequence[Tensor],
        held: Sequence[Tensor],
        seeds: Sequence[int],
    ) -> None:
        """Records what an epoch consists of, with room for every mini-batch that will come."""
        board = [*self.board.tensors().values()]
        orders = orders_of(train, seeds, self.config, self.device)
        kept = [*self._trained().values(), *self.adam.tensors().values(), *board]
        self.train_epochs = StackedEpochs(self._train_step, orders, graphs, self.device, kept)
        rows = batches(list(held), self.config.batch_size)  # (steps, M, b)
        room = Room.for_batches(graphs, rows)
        self.held = rows.to(self.device)
        examine = self._examine if self.scores.on_device else self._evaluate
        studio = self.train_epochs.studio if self.scores.on_device else None
        self.examine = Captured(partial(examine, room=room), self.held, board, studio)

    def _outputs(self, index: Tensor, room: Room) -> tuple[Tensor, Tensor]:
        return stacked_outputs(self.models[0], self.params, self.buffers, self.graphs, index, room)

    def _losses(self, outputs: Tensor, index: Tensor, there: Tensor) -> Float[Tensor, " M"]:
        """Each model's mean loss over its graphs."""
        y = take(self.y, index)  # (M, b, …)
        return torch.vmap(lambda o, t, k: mean_loss(self.tasks[0], o, t, k))(outputs, y, there)

    def _train_step(self, index: Int[Tensor, "M b"], room: Room) -> None:
        outputs, there = self._outputs(index, room)
        losses = self._losses(outputs, index, there)
        params = list(self.params.values())
        found = torch.autograd.grad(losses.sum(), params, materialize_grads=True)
        self.adam.step([grad.detach().reshape(len(grad), -1) for grad in found], there.any(1))
        self.board.add(losses.detach(), there.sum(1))

    @torch.no_grad()
    def _evaluate(self, held: Int[Tensor, "steps M b"], room: Room) -> tuple[Tensor, Tensor]:
        """Each model's outputs for its held-out graphs, and which places hold one."""
        self.models[0].eval()
        outputs, there = zip(*(self._outputs(index, room) for index in held), strict=True)
        self.models[0].train()
        return torch.cat(outputs, dim=1), torch.cat(there, dim=1)

    def _examine(self, held: Int[Tensor, "steps M b"], room: Room) -> None:
        self._judge(*self._evaluate(held, room))

    @torch.no_grad()
    def _judge(self, outputs: Float[Tensor, "M b C"], there: Bool[Tensor, "M b"]) -> None:
        """Puts an epoch's figures on the board."""
        index = self.held.movedim(0, 1).flatten(1)  # (M, steps · b)
        losses = self._losses(outputs, index, there)
        self.board.close(losses, self.scores(outputs, take(self.y, index), there))

    def epochs(
        self,
        checkpoint: Path | None = None,
        fingerprint: str = "",
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Iterator[int]:
        """Trains to the end, or until interrupted, and gives the number of each finished epoch.

        Args:
            checkpoint: file from which training resumes if it is there, and which keeps it.
            fingerprint: identifies models, data and settings; another one is refused.
            interrupted: asked before each epoch whether to stop.
        """
        if checkpoint is not None:
            self.restore(read_checkpoint(checkpoint, fingerprint))
        due = time.monotonic() + SAVE_EVERY_SECONDS
        while not self.finished and not interrupted():
            with on_device(self.device):
                self.train_epoch()
            yield self.epoch
            if checkpoint is not None and time.monotonic() > due:
                started = time.monotonic()
                write_checkpoint(checkpoint, fingerprint, self.state())
                took = time.monotonic() - started
                due = time.monotonic() + max(SAVE_EVERY_SECONDS, took / SAVING_SHARE)
        if checkpoint is not None and not self.finished:
            write_checkpoint(checkpoint, fingerprint, self.state())
        self.train_epochs.release()
        self.examine.release()

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or every model's patience is at its end."""
        return self.epoch >= self.config.epochs or self.board.patience_is_over(self.epoch)

    def train_epoch(self) -> None:
        """One pass of every model over its training graphs, then a look at the held-out ones."""
        started = time.perf_counter()
        self._set_rates()
        self.train_epochs.run(self.epoch)
        outputs = self.examine(self.held)
        if not self.scores.on_device:
            self._judge(*outputs)
        self.epoch += 1
        if self.epoch == 1:
            self._refuse_undefined_scores()
        self._keep_pace()
        self.seconds += time.perf_counter() - started

    def _keep_pace(self) -> None:
        """Waits for a GPU until it is at most an epoch behind: it never idles, clocks stay true."""
        if self.device.type == "cuda":
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self.device))
            self.in_flight.append(done)
            while len(self.in_flight) > (self.epoch < self.config.epochs):
                self.in_flight.popleft().synchronize()

    def _refuse_undefined_scores(self) -> None:
        """Says at once when the scores that should choose the best epoch do not exist."""
        model = self.board.undefined()
        if model is not None:
            raise ValueError(
                f"the validation graphs of model {model} do not define a {self.tasks[0].metric} "
                "(too few answers of each kind): hold out more, or choose by criterion loss"
            )

    def results(self) -> list[FitResult]:
        """Gives each model the parameters of its best epoch; returns what training gave.

        The curve of a model whose patience ended before the others' ends there, as if alone.
        """
        curves = {name: values.cpu() for name, values in self.board.curves.items()}
        best = {**rows_apart(self.board.best[""], self.params), **self.board.best}
        best_epoch = self.board.best_epoch.tolist()
        last = [min(self.epoch, k + (self.config.patience or self.epoch)) for k in best_epoch]
        seconds = self.seconds / max(sum(last), 1)
        stopped = not self.finished
        made = []
        for m, model in enumerate(self.models):
            model.load_state_dict({name: best[name][m] for name in model.state_dict()})
            model.eval()
            columns = zip(*(row[m, : last[m]].tolist() for row in curves.values()), strict=True)
            curve = tuple(
                Epoch(number, train, loss, score, seconds)
                for number, (train, loss, score) in enumerate(columns, start=1)
            )
            made.append(FitResult(curve, best_epoch[m], stopped))
        return made

    def _resumable(self) -> dict[str, Tensor]:
        """Everything that training changes, by name."""
        groups = {"trained": self._trained(), "best": self.board.best, "curve": self.board.curves}
        groups |= {"adam": self.adam.tensors()}
        named = {f"{group}.{k}": t for group, members in groups.items() for k, t in members.items()}
        board = ("best_value", "best_epoch", "waited", "decayed")
        return named | {name: getattr(self.board, name) for name in board}

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
        self.board.epoch.fill_(self.epoch)
