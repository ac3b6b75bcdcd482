"""The fair comparison of Errica et al.: choose on validation graphs, retrain, test once.

Choosing gets :class:`Selection` objects, which hold no test graph; only models of the final stage,
whose configuration has been chosen by then, are given one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softperm.files import exclusive
from softperm.lab.alike import key_of
from softperm.lab.baselines import Kernel
from softperm.lab.desk import Desk, Engine, Say
from softperm.lab.jobs import check_configuration
from softperm.lab.problem import Problem
from softperm.lab.recipes import Recipe, points
from softperm.lab.records import Record, Run
from softperm.lab.systems import PiGNNSystem, find_system

RUNS = 1000  # seeds of one evaluation: the next one's are others
Chosen = Mapping[tuple[str, int], Mapping[str, Any]]
"""The configuration for each question in each fold."""


@dataclass(frozen=True)
class Contender:
    """A system with the configurations to choose from.

    Attributes:
        model: its name.
        configurations: hyper-parameters of model and training, at least one set.
    """

    model: str
    configurations: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Rules:
    """The numbers of the protocol.

    Attributes:
        final_runs: how often the chosen configuration is trained and tested.
        seed: of everything drawn at random.
        stack: how many models at most are trained side by side.
    """

    final_runs: int = 3
    seed: int = 0
    stack: int = 64


class Failed(ValueError):
    """Some systems could not be trained; all others went through the whole protocol.

    Attributes:
        records: the final ones of the others.
    """

    def __init__(self, message: str, records: list[Record]) -> None:
        super().__init__(message)
        self.records = records


def contender_of(recipe: Recipe, model: str) -> Contender:
    """A system with the configurations that a recipe, or the system itself, has for it.

    Raises:
        ValueError: there is no such system or variant, or a setting is unknown or out of range.
    """
    system, changes = find_system(model), recipe.changes(model)
    training = {k: v for k, v in recipe.training.items() if k not in changes}
    choices = {k: v for k, v in training.items() if isinstance(v, list)}
    fixed = {k: v for k, v in training.items() if k not in choices}
    if isinstance(system, PiGNNSystem):
        grid = dict(recipe.grid)
        if "encoder" not in system.fixed:
            grid.pop("layers", None)  # of message passing, which a linear encoder has none of
        elif "layers" not in {**grid, **recipe.settings}:
            grid["layers"] = system.grid["layers"]
        fixed |= recipe.settings
    else:
        grid = dict(system.grid)
    if not isinstance(system, Kernel):  # which is not trained
        grid |= {k: v for k, v in choices.items() if k not in grid}
    grid = {k: v for k, v in grid.items() if k not in changes}
    for point in points(grid):  # also those that are not tried
        check_configuration(model, {**fixed, **changes, **point})
    chosen = points(grid, recipe.configurations)
    return Contender(model, tuple({**fixed, **changes, **point} for point in chosen))


def evaluate(
    problem: Problem,
    contenders: Sequence[Contender],
    rules: Rules,
    engine: Engine,
    folder: Path,
    say: Say = lambda what, share: None,
) -> list[Record]:
    """The whole protocol on one problem; finished trainings are read, not repeated.

    Args:
        problem: graphs, targets and splits.
        contenders: what is compared.
        rules: numbers of the protocol.
        engine: where to work.
        folder: keeps the records; several processes may share it. One that comes to a system and
            dataset on which another is at work waits for it, and then has its records.
        say: told what is being done.

    Returns:
        The records of the final stage.

    Raises:
        ValueError: a system cannot do what the problem asks for; nothing was trained.
        Failed: some jobs failed; the sentence names their systems and folds, and of several
            questions the question. All else was trained and tested as if those had not been asked
            for.
    """
    for contender in contenders:
        _check_able(contender, problem)
    with ExitStack() as held:
        for model in sorted({contender.model for contender in contenders}):
            place = folder / "locks" / f"{problem.name}.{model}"
            held.enter_context(
                exclusive(place, lambda m=model: say(f"waits for {m} elsewhere", 0.0))
            )
        return _evaluate(problem, contenders, rules, engine, folder, say)


def _evaluate(
    problem: Problem,
    contenders: Sequence[Contender],
    rules: Rules,
    engine: Engine,
    folder: Path,
    say: Say,
) -> list[Record]:
    """What :func:`evaluate` does once nobody else is at the same."""
    size = _size(problem, contenders, rules)
    desk = Desk(problem, engine, folder, say, rules.stack, size)
    several = [c for c in contenders if len(c.configurations) > 1]
    records = desk.finish([run for c in several for run in selection_runs(problem, c, rules)])
    runs: list[Run] = []
    for contender in contenders:
        able = _without(problem, [name for name, model in desk.failed if model == contender.model])
        chosen = dict.fromkeys(_places(able), contender.configurations[0])
        if len(contender.configurations) > 1:
            chosen = choose(able, contender, records)
        runs += final_runs(problem, contender.model, chosen, rules)
    final = desk.finish(runs)
    if desk.failed:
        sentences = [s for found in desk.failed.values() for s in found]
        whole = [r for r in final if (r.run.dataset, r.run.model) not in desk.failed]
        raise Failed(f"{problem.name}: {'; '.join(sentences)}", whole)
    desk.sweep([contender.model for contender in contenders])
    return final


def _check_able(contender: Contender, problem: Problem) -> None:
    """Raises ValueError if a system is of no use for the kind of problem."""
    system = find_system(contender.model)
    if isinstance(system, Kernel) and problem.kind != "classification":
        raise ValueError(
            f"{contender.model} classifies, but {problem.name} is a {problem.kind}: leave it out"
        )


def _without(problem: Problem, questions: Sequence[str]) -> Problem:
    """The problem without some of its questions."""
    left = {name: q for name, q in problem.questions.items() if name not in questions}
    return replace(problem, questions=left)


def _places(problem: Problem) -> list[tuple[str, int]]:
    """Every question in every fold."""
    return [(question, k) for question in problem.questions for k in range(len(problem.splits))]


def selection_runs(problem: Problem, contender: Contender, rules: Rules) -> list[Run]:
    """One model for each configuration, for each question in each fold."""
    folds, seed = len(problem.splits), RUNS * rules.seed
    return [
        Run(question, contender.model, "selection", fold, folds, configuration, seed)
        for configuration in contender.configurations
        for question, fold in _places(problem)
    ]


def choose(problem: Problem, contender: Contender, records: Iterable[Record]) -> Chosen:
    """The configuration that did best on validation graphs, for each question in each fold.

    What decides is what decided between epochs: score or loss; the score where configurations
    differ in that. Ties go to the other of the two, then to the configuration that is listed first.

    Raises:
        ValueError: a fold has not been tried with every configuration.
    """
    by_loss = all(c.get("criterion", "loss") == "loss" for c in contender.configurations)
    order = {key_of(c): k for k, c in enumerate(contender.configurations)}
    tried: dict[tuple[str, int], list[Record]] = {place: [] for place in _places(problem)}
    for record in records:
        place = (record.run.dataset, record.run.fold)
        if record.run.model == contender.model and place in tried:
            tried[place].append(record)
    chosen = {}
    for (question, fold), found in tried.items():
        if len(found) != len(contender.configurations):
            raise ValueError(
                f"{question}, {contender.model}: fold {fold} has records of {len(found)} of "
                f"{len(contender.configurations)} configurations"
            )
        best = min(found, key=lambda r: (*_merit(r, by_loss), order[key_of(r.run.configuration)]))
        chosen[question, fold] = contender.configurations[order[key_of(best.run.configuration)]]
    return chosen


def final_runs(problem: Problem, model: str, chosen: Chosen, rules: Rules) -> list[Run]:
    """The chosen configuration of each question in each fold, several times."""
    kernel = isinstance(find_system(model), Kernel)
    repeats = 1 if kernel else rules.final_runs  # a kernel gives the same every time
    folds = len(problem.splits)
    return [
        Run(question, model, "final", fold, folds, configuration, RUNS * rules.seed + repeat)
        for (question, fold), configuration in chosen.items()
        for repeat in range(1, 1 + repeats)
    ]


def _merit(record: Record, by_loss: bool) -> tuple[float, float]:
    """What to minimise: loss or score first; a run that diverged comes last."""
    score = -record.validation_score if record.higher_is_better else record.validation_score
    loss, score = (math.inf if math.isnan(v) else v for v in (record.validation_loss, score))
    return (loss, score) if by_loss else (score, loss)


def _size(problem: Problem, contenders: Sequence[Contender], rules: Rules) -> int:
    """How many epochs of single models the whole comparison takes, at most."""
    total = 0
    for contender in contenders:
        for k, configuration in enumerate(contender.configurations):
            tries = len(contender.configurations) > 1
            total += configuration.get("epochs", 1) * tries
            if k == 0:
                total += rules.final_runs * configuration.get("epochs", 1)
    return max(total * len(_places(problem)), 1)
