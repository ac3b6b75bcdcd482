"""``softperm evaluate``: a fair comparison, from graphs to a report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softperm.cli.claims import claim
from softperm.cli.console import (
    counting,
    give,
    goes_on,
    logging_to,
    names_in,
    ready_folder,
    staged,
)

if TYPE_CHECKING:
    from softperm.lab.desk import Engine, Say
    from softperm.lab.problem import Problem
    from softperm.lab.protocol import Contender, Rules
    from softperm.lab.recipes import Recipe
    from softperm.lab.records import Record

Option = typer.Option


def evaluate(
    recipe: Annotated[
        str | None, Option(help="tu-table, mpnn-table, ogb-table, …, or a TOML file of yours.")
    ] = None,
    dataset: Annotated[
        str | None, Option(help="Datasets of the recipe, commas between; all by default.")
    ] = None,
    data: Annotated[
        Path | None, Option(help="Instead of a dataset: a file of your graphs.")
    ] = None,
    model: Annotated[
        str | None,
        Option(
            "--model",
            "--models",
            help="Systems, commas between, pi-gnn+NAME for a variant; the recipe's by default.",
        ),
    ] = None,
    out: Annotated[
        Path, Option(help="Run folder; what is finished there is not done again.")
    ] = Path("evaluation"),
    target: Annotated[
        str | None, Option(help="What to predict, commas between; all the recipe's by default.")
    ] = None,
    task: Annotated[
        str, Option(help="With --data: auto, classification, multilabel or regression.")
    ] = "auto",
    folds: Annotated[int, Option(min=2, help="With --data: outer folds.")] = 10,
    smiles_column: Annotated[
        str | None, Option(help="With --data: column of SMILES in a table.")
    ] = None,
    epochs: Annotated[
        int | None, Option(min=1, help="Other than the recipe's, but for variants that say theirs.")
    ] = None,
    final_runs: Annotated[int | None, Option(min=1, help="Other than the recipe's.")] = None,
    configurations: Annotated[
        int | None,
        Option(min=1, help="Tried of each system's grid, at most; own graphs: 4 by default."),
    ] = None,
    criterion: Annotated[
        str | None,
        Option(
            help="What chooses on validation graphs: score, late-score (the last of equally good "
            "epochs) or loss; the recipe's by default, and for variants that say theirs."
        ),
    ] = None,
    stack: Annotated[int, Option(min=1, help="Models trained side by side, at most.")] = 64,
    abreast: Annotated[
        int | None,
        Option(min=1, help="Stacks that take turns, an epoch of each; 4 by default on a GPU."),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Same seed, same numbers.")] = 0,
    device: Annotated[str, Option(help="auto, cpu, cuda, …")] = "auto",
    engine: Annotated[str, Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[str | None, Option(help="With --engine ray: of the cluster.")] = None,
    data_root: Annotated[Path | None, Option(help="Your folder of raw datasets.")] = None,
    symmetrise: Annotated[bool, Option(help="Read directed edges in both directions.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare systems fairly: choose on validation graphs, retrain, test once, report."""
    if data is None and recipe is None and dataset is None:
        raise ValueError("say what to compare on: --recipe (and --dataset), or --data with a file")
    if data is not None and dataset is not None:
        raise ValueError("--data is for graphs of your own, --dataset for known ones: give one")
    from softperm.lab.recipes import read_recipe

    chosen = read_recipe(recipe or ("own" if data is not None else "tu-table"))
    from dataclasses import asdict, replace  # a misspelt recipe has not waited for torch

    from softperm.lab.protocol import Rules, contender_of
    from softperm.lab.report import numbers, shown, write_report
    from softperm.lab.tables import cells_of

    changes = {"epochs": epochs, "criterion": criterion}
    training = {**chosen.training, **{k: v for k, v in changes.items() if v is not None}}
    chosen = replace(
        chosen,
        training=training,
        final_runs=final_runs or chosen.final_runs,
        configurations=configurations or chosen.configurations,
    )
    names = _listed(model) or chosen.models
    named: list[str] = []
    if not names:
        raise ValueError(f"recipe {chosen.name} names no models: name some with --models")
    contenders = [contender_of(chosen, name) for name in names]
    if data is None:
        wanted = replace(chosen, targets=_targets(chosen, _listed(target)))
        problems = _posed(wanted, _listed_names(dataset), data_root, seed)
        for name in _listed_names(dataset) or chosen.datasets:
            named += [f"{name}-{t}" for t in wanted.targets] or [name]
    else:
        problems = iter([_own(chosen, data, target, task, smiles_column, symmetrise, seed, folds)])
    ready_folder(out)
    rules = Rules(final_runs=chosen.final_runs, seed=seed, stack=stack)
    content = {k: v for k, v in asdict(chosen).items() if k != "variants" or v}
    choices = {"recipe": content, "seed": seed}
    own = {"data": str(data), "target": target, "task": task, "folds": folds}
    own |= {} if smiles_column is None else {"smiles_column": smiles_column}
    claim(out, choices if data is None else {**choices, **own}, names, named)
    where = _engine(engine, device, address, abreast)
    records: list[Record] = []
    failed: list[str] = []
    with logging_to(out / "log.txt") as log:
        for problem in problems:
            if isinstance(problem, str):  # why a dataset could not be loaded
                log(problem)
                failed.append(problem)
                continue
            asked = f", {len(problem.questions)} targets" if len(problem.questions) > 1 else ""
            log(f"{problem.name}: {len(problem.graphs)} graphs, {problem.kind}{asked}")
            with goes_on(out, log), staged(problem.name) as stage:
                found, sentences = _run(problem, contenders, rules, where, out, stage)
            records, failed = records + found, failed + sentences
            for sentence in sentences:
                log(sentence)
            for cell in cells_of(found):
                log(f"{cell.dataset}, {cell.model}: {cell.metric_name}: {shown(cell)}")
        if records:
            done, left = _finished(out, records)
            made = write_report(done, out, chosen.title, list(dict.fromkeys([*failed, *left])))
            log(f"open {made['html']} in a browser")
            cells = cells_of(records)
            told = {f"{c.dataset} {c.model}": shown(c) for c in cells}
            result = {"cells": numbers(cells)} if as_json else told
            give({**result, "report": str(made["html"])}, as_json)
    if failed:
        raise ValueError("; ".join(failed))


def _run(
    problem: Problem,
    contenders: list[Contender],
    rules: Rules,
    engine: Engine,
    out: Path,
    stage: Say,
) -> tuple[list[Record], list[str]]:
    """The final records of one problem, and what went wrong with the systems that have none."""
    from softperm.lab.protocol import Failed, evaluate
    from softperm.lab.tables import by_pair, cells_of

    failed = []
    try:
        records = evaluate(problem, contenders, rules, engine, out, stage)
    except Failed as problem_:
        records, failed = problem_.records, [str(problem_)]
    sound = []
    for mine in by_pair(records).values():
        try:
            cells_of(mine)
            sound += mine
        except ValueError as problem_:
            failed.append(str(problem_))
    return sound, list(dict.fromkeys(failed))


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names_in(text or "") if name))


def _listed_names(text: str | None) -> tuple[str, ...]:
    """Names of datasets, however their letters are written."""
    from softperm.data.datasets.catalogue import as_spelt_here

    return tuple(as_spelt_here(name) or name for name in _listed(text))


def _targets(recipe: Recipe, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Those targets of a recipe that are wanted, all by default."""
    for name in wanted:
        if name not in recipe.targets:
            known = ", ".join(recipe.targets) or "none: --target is for QM9, and for --data"
            raise ValueError(f"recipe {recipe.name} has no target {name}: it has {known}")
    return wanted or recipe.targets


def _engine(name: str, device: str, address: str | None, abreast: int | None) -> Engine:
    from softperm.lab.engines import LocalEngine, RayEngine
    from softperm.training.devices import find_device

    device = str(find_device(device))
    if name == "ray":
        return RayEngine(device, address)
    if name != "local":
        raise ValueError(f"--engine must be local or ray; got {name!r}")
    return LocalEngine(device, abreast or usual_abreast(device))


def usual_abreast(device: str) -> int:
    """How many stacks take turns unless told otherwise: on a GPU one leaves much of it idle."""
    return 4 if device.startswith("cuda") else 1


def _posed(
    recipe: Recipe, wanted: tuple[str, ...], root: Path | None, seed: int
) -> Iterator[Problem | str]:
    """The problems of a recipe, each dataset loaded in its turn, or why it cannot be loaded.

    Raises:
        ValueError: at once, if the recipe has no dataset of a wanted name.
    """
    from softperm.data.datasets.catalogue import find_entry

    for name in wanted:
        recipe.check(name)
    for name in wanted or recipe.datasets:
        find_entry(name)
    return _loaded(recipe, wanted or recipe.datasets, root, seed)


def _loaded(
    recipe: Recipe, names: tuple[str, ...], root: Path | None, seed: int
) -> Iterator[Problem | str]:
    from softperm.data.datasets import load_dataset
    from softperm.lab.problem import problem_of

    for name in names:
        attributes = recipe.attributes.get(name)
        try:
            dataset = load_dataset(name, root, attributes=attributes, progress=True)
            yield problem_of(recipe, dataset, seed)
        except ValueError as problem:
            yield f"{name}: {problem}"


def _own(
    recipe: Recipe,
    data: Path,
    target: str | None,
    task: str,
    smiles_column: str | None,
    symmetrise: bool,
    seed: int,
    folds: int,
) -> Problem:
    """A problem on the user's own graphs."""
    import numpy as np
    import torch

    from softperm.cli.targets import choose_task, read_with_targets
    from softperm.data.datasets.catalogue import as_spelt_here
    from softperm.data.vocabulary import Vocabulary
    from softperm.lab.problem import own_problem

    wanted = list(_listed(target)) or None
    with counting("reading graphs") as count:
        file = read_with_targets(data, wanted, smiles_column, symmetrise, count)
    kind = choose_task(task, file)
    graphs = Vocabulary.learn(file.graphs).encode(file.graphs)
    columns = list(file.targets.values())
    if kind == "classification":
        classes, codes = np.unique(columns[0], return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"{data} has graphs of one class only: there is nothing to compare")
        y = torch.from_numpy(codes)
    else:
        y = torch.from_numpy(np.stack(columns, axis=1).astype(np.float64))
    name = file.name if as_spelt_here(file.name) is None else f"{file.name}-file"  # not the paper's
    return own_problem(recipe, name, graphs, y, kind, seed, folds)


def _finished(out: Path, now: list[Record]) -> tuple[list[Record], list[str]]:
    """All records of the systems and datasets that the folder has finished, now or earlier.

    Earlier ones of a file that has changed since are left out, and sentences say what was begun.
    """
    from softperm.lab.records import find_records
    from softperm.lab.tables import by_pair, cells_of

    graphs = {record.run.dataset: record.fingerprint for record in now}
    done: list[Record] = []
    left: list[str] = []
    for pair, group in by_pair(find_records(out / "records")).items():
        try:
            cells_of(group)
            there = group[0].fingerprint
            if graphs.get(pair[0], there) != there:
                raise ValueError(f"{', '.join(pair)}: was measured on other graphs or splits")
            done += group
        except ValueError as problem:
            left.append(str(problem))
    return done, left
