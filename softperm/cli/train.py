"""``softperm train``: from graphs to a run folder with model, curves and pictures."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from softperm.cli.console import (
    logging_to,
    naming_graphs,
    only_writer,
    print_result,
    ready_folder,
    refuse_foreign,
)
from softperm.cli.inputs import (
    DataRoot,
    Json,
    SkipEmpty,
    SmilesColumn,
    data_option,
    hardware_option,
    output_option,
    say_unreadable,
    settings_from,
    with_settings,
)
from softperm.errors import counted
from softperm.progress import progress_bars
from softperm.settings import FieldNames, Rule, check_settings, names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from softperm.training.data import TrainingData

model_option = partial(Option, rich_help_panel="Model")
FRACTION = Rule("", float, at_least=0, below=1, optional=True)


@with_settings
def train(
    context: typer.Context,
    out: Annotated[
        Path, output_option(help="Run folder to write; resumes an unfinished run there.")
    ],
    data: Annotated[
        str | None,
        typer.Argument(
            help="Graphs: a TUDataset folder or zip, a CSV with SMILES, JSON Lines, a GraphML "
            "folder; or the name of a dataset, such as MUTAG, ogbg-molhiv or QM9."
        ),
    ] = None,
    dataset: Annotated[
        str | None, data_option(help="Name of a dataset, if a file has the same name.")
    ] = None,
    target: Annotated[
        str | None,
        data_option(
            help="Targets to learn, separated by commas (names with a comma in quotes); not "
            "needed if there is only one."
        ),
    ] = None,
    task: Annotated[
        str, data_option(help="auto, classification, multilabel or regression.")
    ] = "auto",
    test_fraction: Annotated[
        float | None,
        data_option(
            help="Share of the graphs held out for the test score; by default the official split "
            "of a dataset that has one, otherwise 0.1."
        ),
    ] = None,
    validation_fraction: Annotated[
        float | None,
        data_option(
            help="Share of the other graphs held out to select the best epoch; by default the "
            "official split of a dataset that has one, otherwise none."
        ),
    ] = None,
    smiles_column: SmilesColumn = None,
    skip_empty: SkipEmpty = False,
    strict: Annotated[
        bool,
        data_option(help="Stop at the first row that cannot be read; by default it is left out."),
    ] = False,
    data_root: DataRoot = None,
    model: Annotated[
        str,
        model_option(
            help="pi-gnn, gin, graphsage, gcn, ecc, dgcnn, diffpool, structure-free, pna, mpnn, "
            "forest, wl-forest or another system of the comparison; a wrong name lists all."
        ),
    ] = "pi-gnn",
    precision: Annotated[str, hardware_option(help="32, bf16-mixed or 16-mixed.")] = "32",
    devices: Annotated[int, hardware_option(min=1, max=1024, help="Devices of each machine.")] = 1,
    nodes: Annotated[int, hardware_option(min=1, max=1 << 20, help="Machines.")] = 1,
    training_index: Annotated[
        bool,
        output_option(
            help="Keep an index of up to 200,000 training graphs, for predict --nearest."
        ),
    ] = True,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Train on a file of graphs or on a dataset, and write everything into a run folder."""
    if (data is None) == (dataset is None):
        raise ValueError("name one source of graphs: a file, or a dataset")
    settings = settings_from(settings)
    given = {name: value for name, value in settings.items() if _was_given(context, name)}
    fractions: dict[str, Any] = {
        "test_fraction": test_fraction,
        "validation_fraction": validation_fraction,
    }
    for name, fraction in fractions.items():
        FRACTION.check(name, fraction)
    check_settings(settings)
    _refuse_finished(out)
    from softperm.cli.run_folder import FILES, is_run_folder, train_run
    from softperm.lab.estimators import system_estimator
    from softperm.training.devices import connect, disconnect, find_device
    from softperm.training.sources import check_task

    check_task(task)
    settings, make_estimator = system_estimator(model, given)
    refuse_foreign(out, FILES, "run of softperm", is_run_folder(out))
    machine = {"devices": devices, "nodes": nodes, "precision": precision}
    fabric = connect(find_device(settings["device"]), **machine)
    first, new = fabric.is_global_zero, ready_folder(out)
    with (
        only_writer(out, new) if first else nullcontext(),
        logging_to(out / "log.txt") if first else nullcontext(lambda message: None) as log,
    ):
        if first:
            _refuse_finished(out)  # by a process that was running a moment ago
        wanted = None if target is None else list(names_in(target))
        source: dict[str, Any] = {"data": data, "dataset": dataset, "target": wanted, "task": task}
        source |= {"smiles_column": smiles_column, "skip_empty": skip_empty}
        source |= {"data_root": data_root, "strict": strict}
        examples, problems = _read(source, settings, fractions, log, out if first else None)
        estimator, names = make_estimator(examples.task), list(examples.target_names)
        estimator.set_params(progress=settings["progress"] and first)
        shown = {k: v for k, v in settings.items() if k not in ("checkpoint", "system")}
        result = train_run(
            estimator,
            examples,
            fabric,
            out,
            {**source, "target": names, "model": model, **shown, **fractions, **machine},
            log,
            training_index,
        )
        disconnect(fabric)
        if problems:
            result |= {"unreadable_rows": len(problems)}
        if first:
            print_result(result, as_json)
        if result["interrupted"]:
            done = f"stopped after {result['epochs']} of {counted(settings['epochs'], 'epoch')}"
            log(f"{done}; the same command with --out {out} resumes it")
            raise typer.Exit(130)


def _was_given(context: typer.Context, option: str) -> bool:
    """Whether an option was given on the command line."""
    source = context.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def _refuse_finished(out: Path) -> None:
    if (out / "result.json").exists():
        from softperm.cli.run_folder import CHECKPOINT

        (out / CHECKPOINT).unlink(missing_ok=True)  # a kill may come between the last two steps
        raise ValueError(f"{out} holds a finished run: choose another --out, or delete it")


def _read(
    source: Mapping[str, Any],
    settings: Mapping[str, Any],
    fractions: Mapping[str, float | None],
    log: Callable[[str], None],
    folder: Path | None,
) -> tuple[TrainingData, Sequence[str]]:
    """Training data from a file or a dataset, described in the log; and rows left out of it.

    ``folder`` is the run folder in the process that writes it.
    """
    from softperm.training import sources

    name, problems = source["dataset"] or str(source["data"]), ()
    target, task, smiles_column = (source[k] for k in ("target", "task", "smiles_column"))
    skip_empty, seed, symmetrise = source["skip_empty"], settings["seed"], settings["symmetrise"]
    fields = FieldNames.of(settings)
    if source["dataset"] is not None or sources.is_dataset(name):
        if task != "auto" or smiles_column is not None:
            option = "--smiles-column" if task == "auto" else "--task"
            raise ValueError(f"{option} is for files of graphs: a dataset defines its own")
        if fields.vertices_chosen or fields.edges_chosen:
            raise ValueError(
                "--vertex-labels, --vertex-attributes, --edge-labels and --edge-attributes are for "
                "files of graphs: the fields of a dataset have no names"
            )
        root = source["data_root"]
        opened = sources.load_dataset(name, root, symmetrise=symmetrise, progress=True)
        shares: dict[str, Any] = {**fractions}
        shares |= {"skip_empty": skip_empty, "positions": fields.positions}
        examples = sources.from_dataset(opened, target, **shares, seed=seed)
    else:
        with progress_bars() as report:
            file = sources.read_file(
                Path(name), target, smiles_column, symmetrise, skip_empty, fields, report,
                source["strict"],
            )  # fmt: skip
        problems = file.problems
        say_unreadable(problems, log, folder)
        kind = sources.choose_task(task, file)
        change = "; --task changes this" if task == "auto" else ""
        log(f"{sources.describe_task(kind, file)}{change}")
        usual = {"test_fraction": 0.1, "validation_fraction": 0.0}
        shares = {key: usual[key] if share is None else share for key, share in fractions.items()}
        with naming_graphs(file.ids):
            examples = sources.from_file(file, kind, **shares, seed=seed)
    split = examples.split
    graphs = counted(len(examples.y), "graph")
    sizes = [f"{len(split.train)} to train", f"{len(split.validation)} to validate"]
    log(f"{examples.name}: {graphs}, {', '.join(sizes)}, {len(split.test)} to test")
    log(f"fields of the graphs: {sources.describe_fields(examples.vocabulary)}")
    return examples, problems
