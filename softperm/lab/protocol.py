"""The fair comparison of Errica et al.: select on validation graphs, retrain, test once.

Selection receives :class:`SelectionSplit` objects, which hold no test graphs. Only models of the
final stage, whose configuration has been selected by then, are tested.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softperm.errors import counted
from softperm.files import exclusive
from softperm.lab.configurations import (
    check_configuration,
    configuration_key,
    final_runs_of,
    recommended,
)
from softperm.lab.evaluation_data import EvaluationData
from softperm.lab.jobs import SEEDS
from softperm.lab.recipes import Recipe, grid_points, spread
from softperm.lab.records import Record, Run
from softperm.lab.scheduler import Executor, Scheduler
from softperm.lab.systems import ClassicalSystem, PiGNNSystem, find_system
from softperm.progress import Report, silent
from softperm.settings import TrainingConfig, defaults, training_config

BUDGET = ("epochs", "batch_size", "criterion")  # settings of training that all networks share
Selected = Mapping[tuple[str, int], Mapping[str, Any]]
"""The selected configuration of each target and fold."""


@dataclass(frozen=True)
class Contender:
    """A system and the configurations to select from.

    Attributes:
        model: name of the system.
        configurations: settings of model and training; at least one configuration.
    """

    model: str
    configurations: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class ProtocolSettings:
    """The numbers of the protocol.

    Attributes:
        final_runs: number of trainings and tests of the selected configuration.
        seed: seed of all random numbers.
        stack: maximum number of models in a stack.
    """

    final_runs: int = 3
    seed: int = 0
    stack: int = 64


class EvaluationError(ValueError):
    """Some systems could not be trained; all others are finished."""

    def __init__(self, message: str, records: list[Record]) -> None:
        super().__init__(message)
        self.records = records


def make_contender(recipe: Recipe, model: str) -> Contender:
    """A system with the grid of a recipe, or with its own.

    Raises:
        ValueError: the system or variant does not exist, or a setting is unknown or out of range.
    """
    system, changes = find_system(model), recipe.variant_settings(model)
    for name, grid in recipe.baselines.items():
        _check_baseline(name, grid)
    training = {k: v for k, v in recipe.training.items() if k not in changes}
    choices = {k: v for k, v in training.items() if isinstance(v, list)}
    fixed = {k: v for k, v in training.items() if k not in choices}
    if isinstance(system, PiGNNSystem):
        grids = [_pi_gnn_grid(recipe, system, grid) for grid in recipe.grids]
        usual = recommended(system.settings) if recipe.defaults == "estimators" else {}
        fixed = {**usual, **fixed, **recipe.settings}
    else:
        grids = [{**system.grid, **recipe.baselines.get(system.name.partition("+")[0], {})}]
        if recipe.defaults == "estimators":
            usual = recommended(())
            fixed = {**{name: usual[name] for name in BUDGET if name in usual}, **fixed}
    if isinstance(system, ClassicalSystem):
        fixed = {}  # it has no settings of training
    else:
        grids = [grid | {k: v for k, v in choices.items() if k not in grid} for grid in grids]
    grids = [{k: v for k, v in grid.items() if k not in changes} for grid in grids]
    for grid in grids:  # every value, also where recipe.configurations leaves it out
        (first,) = grid_points(grid, 1)
        for name, values in grid.items():
            for value in values:
                check_configuration(model, {**fixed, **changes, **first, name: value})
    points = [{**fixed, **changes, **point} for point in spread(grids, recipe.configurations)]
    for point in points:
        check_configuration(model, point)
        if recipe.refit and not isinstance(system, ClassicalSystem):
            _check_refit(recipe, point)
    return Contender(model, tuple(points))


def _check_baseline(name: str, grid: Mapping[str, Sequence[Any]]) -> None:
    """Raises ValueError unless a recipe may replace these values of a system's grid."""
    if isinstance(find_system(name), PiGNNSystem) or "+" in name:
        raise ValueError(
            f"baselines.{name}: expected the name of a baseline; the values of π-GNN are in grid, "
            "settings and variants"
        )
    for setting, values in grid.items():
        for value in values:
            check_configuration(name, {setting: value})


def _check_refit(recipe: Recipe, configuration: Mapping[str, Any]) -> None:
    """Raises ValueError if the final runs would need validation graphs."""
    waits = any(configuration.get(name, "none") != "none" for name in ("patience", "decay"))
    if waits or configuration.get("criterion") != "last":
        raise ValueError(
            f"recipe {recipe.name}: refit leaves no validation graphs to the final runs: set "
            "training.criterion to 'last', without patience and decay"
        )


def fit_to(contender: Contender, data: EvaluationData) -> Contender:
    """The contender with the configurations that make a difference for some data.

    The word auto becomes a number of epochs. Where vertices have neither labels nor attributes,
    dropout of attributes changes nothing: configurations that differ in it alone are one.
    """
    graphs = max(len(split.train) for split in data.splits)
    bare = data.graphs.label is None and data.graphs.x is None
    configurations: dict[str, dict[str, Any]] = {}
    for each in contender.configurations:
        each = dict(each)
        if each.get("epochs") == "auto":
            values = {**defaults(TrainingConfig), **each}
            each["epochs"] = training_config(values, graphs).epochs
        if bare and not each.get("colours"):
            each.pop("attribute_dropout", None)
        configurations.setdefault(configuration_key(each), each)
    return Contender(contender.model, tuple(configurations.values()))


def _pi_gnn_grid(
    recipe: Recipe, system: PiGNNSystem, grid: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    """A grid of a recipe with the layers of message passing where the encoder has some."""
    grid = dict(grid)
    if "encoder" not in system.fixed:
        grid.pop("layers", None)  # a linear encoder has none
    elif "layers" not in {**grid, **recipe.settings}:
        grid["layers"] = system.grid["layers"]
    return grid


def evaluate(
    data: EvaluationData,
    contenders: Sequence[Contender],
    settings: ProtocolSettings,
    executor: Executor,
    folder: Path,
    progress: Report = silent,
) -> list[Record]:
    """Runs the whole protocol on one dataset; finished trainings are loaded, not repeated.

    Several processes may share the folder of records and checkpoints: a process waits while another
    one evaluates the same system on the same dataset, then loads its records.

    Raises:
        ValueError: a system does not support this kind of task; nothing was trained.
        EvaluationError: some jobs failed; the message names their systems, folds and targets. All
            other systems are finished.
    """
    contenders = [fit_to(contender, data) for contender in contenders]
    for contender in contenders:
        _check_kind(contender, data)
    with ExitStack() as locks:
        for model in sorted({contender.model for contender in contenders}):

            def report_waiting(model: str = model) -> None:
                progress(data.name, 0, 0, f"waiting for another process that evaluates {model}")

            locks.enter_context(
                exclusive(folder / "locks" / f"{data.name}.{model}", report_waiting)
            )
        total = _count_epochs(data, contenders, settings)
        scheduler = Scheduler(data, executor, folder, progress, settings.stack, total)
        return _select_and_test(data, contenders, settings, scheduler)


def _select_and_test(
    data: EvaluationData,
    contenders: Sequence[Contender],
    settings: ProtocolSettings,
    scheduler: Scheduler,
) -> list[Record]:
    with_choice = [c for c in contenders if len(c.configurations) > 1]
    records = scheduler.run([r for c in with_choice for r in selection_runs(data, c, settings)])
    runs: list[Run] = []
    for contender in contenders:
        failed = [target for target, model in scheduler.errors if model == contender.model]
        sound = replace(data, targets={k: v for k, v in data.targets.items() if k not in failed})
        selected = dict.fromkeys(sound.places, contender.configurations[0])
        if len(contender.configurations) > 1:
            selected = select(sound, contender, records)
        runs += final_runs(data, contender.model, selected, settings)
    final = scheduler.run(runs)
    if scheduler.errors:
        sentences = [s for errors in scheduler.errors.values() for s in errors]
        sound = [r for r in final if (r.run.dataset, r.run.model) not in scheduler.errors]
        raise EvaluationError(f"{data.name}: {'; '.join(sentences)}", sound)
    scheduler.remove_checkpoints([contender.model for contender in contenders])
    return final


def _check_kind(contender: Contender, data: EvaluationData) -> None:
    """Raises ValueError if a system does not support the kind of task."""
    system = find_system(contender.model)
    if isinstance(system, ClassicalSystem) and data.kind not in system.kinds:
        raise ValueError(
            f"{contender.model} classifies, but {data.name} is a {data.kind}: leave it out"
        )


def selection_runs(
    data: EvaluationData, contender: Contender, settings: ProtocolSettings
) -> list[Run]:
    """One run for each configuration, target and fold."""
    folds, seed = len(data.splits), SEEDS * settings.seed
    return [
        Run(target, contender.model, "selection", fold, folds, configuration, seed)
        for configuration in contender.configurations
        for target, fold in data.places
    ]


def select(data: EvaluationData, contender: Contender, records: Iterable[Record]) -> Selected:
    """The best configuration on validation graphs, for each target and fold.

    Score or loss decides, whichever is the criterion of the configurations; the score if they
    differ in it. The other one breaks ties, then the order of the configurations.

    Raises:
        ValueError: some configuration has no record in a fold.
    """
    by_loss = all(c.get("criterion", "loss") == "loss" for c in contender.configurations)
    order = {configuration_key(c): k for k, c in enumerate(contender.configurations)}
    tried: dict[tuple[str, int], list[Record]] = {place: [] for place in data.places}
    for record in records:
        place = (record.run.dataset, record.run.fold)
        if record.run.model == contender.model and place in tried:
            tried[place].append(record)
    selected = {}
    for (target, fold), candidates in tried.items():
        if len(candidates) != len(contender.configurations):
            raise ValueError(
                f"{target}, {contender.model}: fold {fold} has records of {len(candidates)} of "
                + counted(len(contender.configurations), "configuration")
            )
        _, best = min(
            (_rank(record, by_loss), order[configuration_key(record.run.configuration)])
            for record in candidates
        )
        selected[target, fold] = contender.configurations[best]
    return selected


def _rank(record: Record, by_loss: bool) -> tuple[float, float]:
    """Loss and score as a key to minimise; a run that diverged comes last."""
    score = -record.validation_score if record.higher_is_better else record.validation_score
    loss, score = (math.inf if math.isnan(v) else v for v in (record.validation_loss, score))
    return (loss, score) if by_loss else (score, loss)


def final_runs(
    data: EvaluationData, model: str, selected: Selected, settings: ProtocolSettings
) -> list[Run]:
    """The runs of the selected configuration of each target and fold."""
    folds, first = len(data.splits), SEEDS * settings.seed
    return [
        Run(target, model, "final", fold, folds, configuration, first + repeat)
        for (target, fold), configuration in selected.items()
        for repeat in range(1, 1 + final_runs_of(model, configuration, settings.final_runs))
    ]


def _count_epochs(
    data: EvaluationData, contenders: Sequence[Contender], settings: ProtocolSettings
) -> int:
    """Maximum number of epochs of the whole evaluation, summed over models."""
    total = 0
    for contender in contenders:
        epochs = [c.get("epochs", 1) for c in contender.configurations]
        repeats = final_runs_of(contender.model, contender.configurations[0], settings.final_runs)
        total += repeats * epochs[0] + (sum(epochs) if len(epochs) > 1 else 0)
    return max(total * len(data.places), 1)
