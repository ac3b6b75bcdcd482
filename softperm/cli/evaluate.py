"""``softperm evaluate``: a fair comparison, from graphs to a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softperm.cli.console import (
    hint_at_resuming,
    lines,
    logging_to,
    print_result,
    ready_folder,
)
from softperm.cli.evaluation_folder import add_classes, claimed_folder, classes_in
from softperm.cli.inputs import (
    DataRoot,
    Device,
    Json,
    Symmetrise,
    output_option,
    say_unreadable,
)
from softperm.errors import counted
from softperm.progress import progress_bars
from softperm.settings import FieldNames, names_in

if TYPE_CHECKING:
    from softperm.lab.evaluation_data import EvaluationData
    from softperm.lab.recipes import Recipe
    from softperm.lab.records import Record
    from softperm.lab.scheduler import Executor
    from softperm.lab.tables import Cell
    from softperm.training.data import TrainingData

Option = typer.Option


def evaluate(
    recipe: Annotated[
        str | None, Option(help="tu-table, mpnn-table, ogb-table, …, or your own TOML file.")
    ] = None,
    dataset: Annotated[
        str | None, Option(help="Datasets of the recipe, separated by commas; all by default.")
    ] = None,
    data: Annotated[
        Path | None, Option(help="File of your own graphs, instead of a dataset.")
    ] = None,
    model: Annotated[
        str | None,
        Option(
            "--model",
            "--models",
            help="Systems, separated by commas, pi-gnn+NAME for a variant; those of the recipe by "
            "default.",
        ),
    ] = None,
    out: Annotated[
        Path, output_option(help="Run folder; finished runs in it are not repeated.")
    ] = Path("evaluation"),
    target: Annotated[
        str | None, Option(help="Targets, separated by commas; all of the recipe by default.")
    ] = None,
    task: Annotated[
        str, Option(help="With --data: auto, classification, multilabel or regression.")
    ] = "auto",
    folds: Annotated[int, Option(min=2, help="With --data: number of outer folds.")] = 10,
    smiles_column: Annotated[
        str | None, Option(help="With --data: column of SMILES in a table.")
    ] = None,
    epochs: Annotated[
        int | None, Option(min=1, help="Replaces the recipe's epochs; variants keep their own.")
    ] = None,
    final_runs: Annotated[
        int | None, Option(min=1, help="Replaces the recipe's number of final runs.")
    ] = None,
    configurations: Annotated[
        int | None,
        Option(min=1, help="Maximum number of grid points of each system; own graphs: 4."),
    ] = None,
    criterion: Annotated[
        str | None,
        Option(
            help="Validation figure that selects epochs and configurations: score, late-score (the "
            "last of equally good epochs) or loss. Replaces the recipe's; variants keep their own."
        ),
    ] = None,
    stack: Annotated[int, Option(min=1, help="Maximum number of models in a stack.")] = 64,
    abreast: Annotated[
        int | None,
        Option(min=1, help="Stacks that are trained in turns, an epoch each; 4 on a GPU, else 1."),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of all random numbers.")] = 0,
    device: Device = "auto",
    engine: Annotated[str, Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[
        str | None, Option(help="With --engine ray: address of the cluster.")
    ] = None,
    data_root: DataRoot = None,
    symmetrise: Symmetrise = False,
    strict: Annotated[
        bool,
        Option(
            help="With --data: stop at the first row that cannot be read; by default it is left "
            "out."
        ),
    ] = False,
    keep_best: Annotated[
        bool,
        Option(
            "--keep-best",
            help="Train the configuration that most folds chose on all graphs, into the folder "
            "best, ready for softperm predict.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare systems fairly: select on validation graphs, retrain, test once, report."""
    if data is None and recipe is None and dataset is None:
        raise ValueError("no graphs to compare on: use --recipe (and --dataset), or --data FILE")
    if data is not None and dataset is not None:
        raise ValueError("--data is for graphs of your own, --dataset for known ones: give one")
    from softperm.lab.recipes import read_recipe

    plan = read_recipe(recipe or ("own" if data is not None else "tu-table"))
    from dataclasses import asdict, replace  # after a misspelt recipe could be refused

    from softperm.lab.protocol import EvaluationError, ProtocolSettings, make_contender
    from softperm.lab.protocol import evaluate as run_protocol
    from softperm.lab.records import find_records
    from softperm.lab.report import numbers, shown, write_report
    from softperm.lab.systems import PI_GNN
    from softperm.lab.tables import cells_of

    changes = {"epochs": epochs, "criterion": criterion}
    plan = replace(
        plan,
        epochs={} if epochs is not None else plan.epochs,
        training={**plan.training, **{k: v for k, v in changes.items() if v is not None}},
        final_runs=final_runs or plan.final_runs,
        configurations=configurations or plan.configurations,
    )
    models = _listed(model) or plan.models
    if not models:
        raise ValueError(f"recipe {plan.name} names no models: name some with --models")
    tried = [make_contender(plan, name) for name in models]  # errors before anything is loaded
    targets: list[str] = []
    if data is None:
        wanted = replace(plan, targets=_targets(plan, _listed(target)))
        names = _datasets(plan, _listed(dataset))
        for name in names:
            targets += [f"{name}-{t}" for t in wanted.targets] or [name]
        loaders = [_loader(wanted, name, data_root, seed) for name in names]
    else:
        configurations_tried = chain.from_iterable(each.configurations for each in tried)
        fields = FieldNames(positions=any(c.get("distance_bins") for c in configurations_tried))
        with lines():
            own = _own(
                plan, data, target, task, smiles_column, symmetrise, strict, seed, folds, fields
            )
        loaders = [lambda: own]
    if keep_best and not any(name.partition("+")[0] in PI_GNN for name in models):
        raise ValueError("--keep-best trains a π-GNN: name one with --models, such as pi-gnn")
    ready_folder(out)
    settings = ProtocolSettings(final_runs=plan.final_runs, seed=seed, stack=stack)
    content = {
        k: v for k, v in asdict(plan).items() if k not in ("variants", "epochs", "baselines") or v
    }
    choices = {"recipe": content, "seed": seed}
    if data is not None:
        choices |= {"data": str(data), "target": target, "task": task, "folds": folds}
        choices |= {} if smiles_column is None else {"smiles_column": smiles_column}
    executor = _executor(engine, device, address, abreast)
    records: list[Record] = []
    errors: list[str] = []
    problems: list[str] = []
    trained: dict[str, str] = {}
    with claimed_folder(out, choices, models, targets), logging_to(out / "log.txt") as log:
        for load in loaders:
            try:
                source = load()
                graphs = source.data
                say_unreadable(source.problems, log, out)
                problems += source.problems
                many = f", {len(graphs.targets)} targets" if len(graphs.targets) > 1 else ""
                log(f"{graphs.name}: {counted(len(graphs.graphs), 'graph')}, {graphs.kind}{many}")
                add_classes(out, dict.fromkeys(graphs.targets, source.classes))
                recipe_here = plan.for_dataset(graphs.name)
                contenders = [make_contender(recipe_here, name) for name in models]
                with hint_at_resuming(out, log), progress_bars() as progress:
                    new = run_protocol(graphs, contenders, settings, executor, out, progress)
            except EvaluationError as error:
                new = error.records
                _note(str(error), errors, log)
            except ValueError as error:
                _note(str(error), errors, log)
                continue
            complete, incomplete = _complete(new, {})
            records += complete
            for sentence in incomplete:
                _note(sentence, errors, log)
            for cell in cells_of(complete):
                log(f"{cell.dataset}, {cell.model}: {cell.metric_name}: {shown(cell)}")
            if keep_best:
                try:
                    trained |= _keep_best(cells_of(complete), source, plan, out, device, seed, log)
                except ValueError as error:
                    _note(str(error), errors, log)
        if records:
            fingerprints = {record.run.dataset: record.fingerprint for record in records}
            done, left = _complete(find_records(out / "records"), fingerprints)
            missing = list(dict.fromkeys([*errors, *left]))
            paths = write_report(done, out, plan.title, missing, classes_in(out))
            log(f"open {paths['html']} in a browser")
            cells = cells_of(records)
            summary = {f"{c.dataset} {c.model}": shown(c) for c in cells}
            result = {"cells": numbers(cells)} if as_json else summary
            if problems:
                result |= {"unreadable_rows": len(problems)}
            print_result({**result, "report": str(paths["html"]), **trained}, as_json)
    if errors:
        raise ValueError("; ".join(errors))


def _note(sentence: str, errors: list[str], log: Callable[[str], None]) -> None:
    """Logs an error, once, and adds it to those that end the command."""
    if sentence not in errors:
        errors.append(sentence)
        log(sentence)


def _complete(
    records: Iterable[Record], fingerprints: Mapping[str, str]
) -> tuple[list[Record], list[str]]:
    """Records of systems that have a score in every fold, and a sentence for each other system.

    Args:
        records: records of any datasets and systems.
        fingerprints: fingerprints by dataset; systems measured on other graphs are left out.
    """
    from softperm.lab.tables import by_pair, cells_of

    complete: list[Record] = []
    errors: list[str] = []
    for pair, group in by_pair(records).items():
        try:
            cells_of(group)
            fingerprint = group[0].fingerprint
            if fingerprints.get(pair[0], fingerprint) != fingerprint:
                raise ValueError(f"{', '.join(pair)}: was measured on other graphs or splits")
            complete += group
        except ValueError as error:
            errors.append(str(error))
    return complete, errors


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names_in(text or "") if name))


def _targets(recipe: Recipe, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The requested targets of a recipe, all by default."""
    for name in wanted:
        if name not in recipe.targets:
            known = ", ".join(recipe.targets) or "none: --target is for QM9, and for --data"
            raise ValueError(f"recipe {recipe.name} has no target {name}: it has {known}")
    return wanted or recipe.targets


def _datasets(recipe: Recipe, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The requested datasets of a recipe in the catalogue's spelling, all by default."""
    from softperm.data.datasets.catalogue import catalogue_spelling, find_entry

    names = tuple(catalogue_spelling(name) or name for name in wanted)
    for name in names:
        recipe.check_dataset(name)
    for name in names or recipe.datasets:
        find_entry(name)
    return names or recipe.datasets


@dataclass(frozen=True)
class _Source:
    """Graphs to compare systems on.

    Attributes:
        data: graphs, targets and splits.
        classes: names of the classes of a classification, by code.
        training: all graphs with a target, to train a model on; the settings of the model say
            which share is held out to validate on, and whether positions are read.
        problems: rows of the file that cannot be read and were left out.
    """

    data: EvaluationData
    classes: tuple[str, ...]
    training: Callable[[str, Mapping[str, Any]], TrainingData]
    problems: tuple[str, ...] = ()


def _loader(recipe: Recipe, name: str, root: Path | None, seed: int) -> Callable[[], _Source]:
    """A function that loads a dataset of a recipe; each one is loaded when its turn comes."""

    def load() -> _Source:
        from softperm.data.datasets import load_dataset
        from softperm.lab.evaluation_data import from_dataset
        from softperm.training import sources

        attributes = recipe.attributes.get(name)
        try:
            dataset = load_dataset(name, root, attributes=attributes, progress=True)
            data = from_dataset(recipe, dataset, seed)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

        def training(target: str, settings: Mapping[str, Any]) -> TrainingData:
            chosen = [t for t in recipe.targets if f"{dataset.name}-{t}" == target] or None
            return sources.from_dataset(
                dataset, chosen, test_fraction=0.0, seed=seed,
                validation_fraction=settings["validation_fraction"],
                positions=FieldNames.of(settings).positions,
            )  # fmt: skip

        return _Source(data, tuple(dataset.class_names), training)

    return load


def _keep_best(
    cells: Sequence[Cell],
    source: _Source,
    recipe: Recipe,
    out: Path,
    device: str,
    seed: int,
    log: Callable[[str], None],
) -> dict[str, str]:
    """Trains the π-GNN with the best validation score on all graphs, for each target.

    Returns:
        The folder of each model, by the label with which it is printed.
    """
    from softperm.cli.run_folder import train_run
    from softperm.estimators import PiGNNClassifier, PiGNNRegressor
    from softperm.lab.configurations import estimator_settings
    from softperm.lab.systems import PI_GNN
    from softperm.training.devices import connect, find_device
    from softperm.training.tasks import Regression

    folders = {}
    for target in dict.fromkeys(cell.dataset for cell in cells):
        own = [cell for cell in cells if cell.dataset == target]
        rivals = [cell for cell in own if cell.model.partition("+")[0] in PI_GNN]
        if not rivals:
            continue
        best = max(rivals, key=lambda cell: cell.validation_rank)
        settings = estimator_settings(best.records, categories=recipe.categories, seed=seed)
        examples = source.training(target, settings)
        if not recipe.edges and examples.graphs.edge_attribute_size:
            raise ValueError(
                f"--keep-best: recipe {recipe.name} leaves edge labels of {target} out, which "
                "predict would read: use a recipe with edges = true"
            )
        folder = out / "best" / target
        folder.mkdir(parents=True, exist_ok=True)
        held_out = len(examples.split.validation)
        rest = f"all {len(examples.y):,} graphs"
        if held_out:
            train = len(examples.split.train)
            rest = f"{counted(train, 'graph')}, {held_out:,} held out to decay the learning rate"
        log(f"{target}: training {best.model} on {rest}")
        kind = PiGNNRegressor if isinstance(examples.task, Regression) else PiGNNClassifier
        fabric = connect(find_device(device))
        train_run(kind(**settings), examples, fabric, folder, {"data": target, **settings}, log)
        folders[f"{target} best model"] = str(folder / "model")
    return folders


def _executor(name: str, device: str, address: str | None, abreast: int | None) -> Executor:
    from softperm.lab.scheduler import LocalExecutor, RayExecutor
    from softperm.training.devices import find_device

    device = str(find_device(device))
    if name == "ray":
        return RayExecutor(device, address)
    if name != "local":
        raise ValueError(f"--engine must be local or ray; got {name!r}")
    return LocalExecutor(device, abreast or default_abreast(device))


def default_abreast(device: str) -> int:
    """Default number of stacks in turns: on a GPU several, since one uses a part of it."""
    return 4 if device.startswith("cuda") else 1


def _own(
    recipe: Recipe,
    data: Path,
    target: str | None,
    task: str,
    smiles_column: str | None,
    symmetrise: bool,
    strict: bool,
    seed: int,
    folds: int,
    fields: FieldNames,
) -> _Source:
    """The user's own graphs with the splits of a recipe."""
    from softperm.data.datasets.catalogue import catalogue_spelling
    from softperm.lab.evaluation_data import from_graphs
    from softperm.training.sources import choose_task, from_file, read_file

    columns = (list(_listed(target)) or None, smiles_column, symmetrise)

    def read(fields: FieldNames) -> Any:
        with progress_bars() as report:
            return read_file(data, *columns, fields=fields, progress=report, strict=strict)

    file = read(fields)
    kind = choose_task(task, file)
    examples = from_file(file, kind, test_fraction=0.0, validation_fraction=0.0, seed=seed)

    def training(_: str, settings: Mapping[str, Any]) -> TrainingData:
        own = FieldNames.of(settings)
        chosen, share = file if own == fields else read(own), settings["validation_fraction"]
        return from_file(chosen, kind, test_fraction=0.0, validation_fraction=share, seed=seed)

    y = examples.y if kind == "classification" else examples.y.double()
    known = catalogue_spelling(file.name) is not None
    name = f"{file.name}-file" if known else file.name  # not the paper's
    return _Source(
        from_graphs(recipe, name, examples.graphs, y, kind, seed, folds),
        () if examples.classes is None else tuple(map(str, examples.classes)),
        training,
        tuple(file.problems),
    )
