"""Options that commands share, and a trained model with the graphs for it."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from softperm.cli.console import (
    echo,
    hint_at_resuming,
    lines,
    naming_graphs,
    ready_file,
    ready_folder,
)
from softperm.errors import by_count, counted
from softperm.files import write_atomically
from softperm.progress import progress_bars
from softperm.settings import STANDARD_FIELDS, FieldNames, Parameter, parameters

if TYPE_CHECKING:
    import numpy as np

    from softperm.data.collection import Collection
    from softperm.estimators.pignn import PiGNNEstimator
    from softperm.estimators.streaming import Summary

ENGINES = ("local", "ray")
UNREADABLE = "unreadable.txt"  # rows of a file that a run leaves out

data_option = partial(typer.Option, rich_help_panel="Data")
hardware_option = partial(typer.Option, rich_help_panel="Hardware")
output_option = partial(typer.Option, rich_help_panel="Output")

Run = Annotated[
    str,
    typer.Argument(
        help="Run folder of softperm train, a model folder, or hf://owner/name on the Hub."
    ),
]
Source = Annotated[
    str, typer.Argument(help="Graphs in any format that train reads, or the name of a dataset.")
]
Device = Annotated[str, hardware_option(help="auto, cpu, cuda, …")]
SmilesColumn = Annotated[str | None, data_option(help="Column of SMILES in a table.")]
Symmetrise = Annotated[bool, data_option(help="Read directed edges in both directions.")]
SkipEmpty = Annotated[bool, data_option(help="Leave out graphs without vertices.")]
DataRoot = Annotated[Path | None, data_option(help="Folder of raw datasets, searched first.")]
IdColumn = Annotated[
    str | None, data_option(help="Column of names in a table; the SMILES by default.")
]
Strict = Annotated[bool, data_option(help="Stop at the first graph without a result.")]
Engine = Annotated[
    str,
    hardware_option(help="local: processes of this machine; ray: the machines of a Ray cluster."),
]
Processes = Annotated[
    int | None,
    hardware_option(min=1, help="Processes, or actors on Ray; by default one per core or GPU."),
]
Json = Annotated[bool, output_option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True)
class ModelInput:
    """Options of commands that look at some graphs with a trained model."""

    device: Device = "auto"
    smiles_column: SmilesColumn = None
    symmetrise: Symmetrise = False
    strict: Strict = False
    data_root: DataRoot = None


@dataclass(frozen=True)
class TableInput:
    """Options of commands that compute a table with a trained model."""

    device: Device = "auto"
    smiles_column: SmilesColumn = None
    id_column: IdColumn = None
    symmetrise: Symmetrise = False
    skip_empty: SkipEmpty = False
    strict: Strict = False
    data_root: DataRoot = None
    engine: Engine = "local"
    processes: Processes = None


@dataclass(frozen=True)
class Input:
    """Graphs to use a model on.

    Attributes:
        graphs: as the estimator takes them: graphs, SMILES, or an encoded collection.
        ids: the name of each graph in its file, or its number in the dataset.
        targets: the targets of the source by name.
    """

    graphs: list[Any] | Collection
    ids: tuple[str, ...]
    targets: dict[str, np.ndarray]


def model_folder(run: str) -> str:
    """The model folder of a run, or on the Hub; other folders are themselves models.

    Warns if the run is not finished.
    """
    from softperm.cli.run_folder import CHECKPOINT
    from softperm.nn.model_folder import local_folder

    inner = Path(run) / "model"
    finished = (Path(run) / "result.json").exists()
    if inner.is_dir() and not finished and (Path(run) / CHECKPOINT).exists():
        warnings.warn(
            f"the training in {run} is not finished: the same softperm train command resumes it",
            stacklevel=2,
        )
    return str(local_folder(inner if inner.is_dir() else run))


def load_model(run: str, device: str) -> PiGNNEstimator:
    """The π-GNN of a run folder, of a model folder, or of the Hub."""
    from softperm.estimators.pignn import load_estimator

    return load_estimator(model_folder(run), device)


def compute_table(
    run: str,
    data: str,
    out: Path,
    endings: Sequence[str],
    options: TableInput,
    nearest: tuple[int, float | None] | None = None,
    **computed: Any,
) -> tuple[Summary, Any]:
    """Writes a table of a trained model's results for a file or a dataset, shard by shard.

    ``endings`` are those of the formats that may be written, ``nearest`` is the number of training
    graphs to name with the seconds for each graph, and ``computed`` says what a
    :class:`softperm.estimators.streaming.ShardWorker` computes.

    Returns:
        The summary of all graphs; and the score of predictions, or the length of vectors.
    """
    from softperm.data.result_files import find_format
    from softperm.training.sources import is_dataset

    check_engine(options.engine)
    if options.engine == "ray" and is_dataset(data):
        raise ValueError("--engine ray reads files, not datasets by name: name a file or a folder")
    ending, is_folder = find_format(out, endings), not out.suffix
    ready_folder(out) if is_folder else ready_file(out, data)
    with lines(), progress_bars() as report:
        from softperm.estimators import streaming
        from softperm.lab import estimators
        from softperm.training.devices import find_device

        worker = streaming.ShardWorker(
            model_folder(run), str(find_device(options.device)),
            folder=out.with_name(f"{out.name}.parts") if out.suffix else out, ending=ending,
            skip_empty=options.skip_empty, strict=options.strict, load=estimators.load_model,
            **computed,
        )  # fmt: skip
        symmetrise = options.symmetrise or worker.estimator.symmetrise  # as in training
        worker = replace(worker, symmetrise=symmetrise)
        if nearest is not None:
            from softperm.search.training_index import NearestTrainingGraphs

            labels = len(worker.estimator.vocabulary_.labels)
            columns_of_nearest = NearestTrainingGraphs(run, nearest[0], labels, nearest[1])
            columns_of_nearest.check()
            worker = replace(worker, columns=columns_of_nearest)
        columns = {"smiles_column": options.smiles_column, "id_column": options.id_column}
        rows, root = streaming.rows_of_part(worker), options.data_root
        shards, content = _shards(worker.estimator, data, root, columns, symmetrise, rows)
        identity = {"data": data, "content": content, **columns, "rows": rows, **worker.identity}
        compute: Any = partial(streaming.run_shards, processes=options.processes)
        if options.engine == "ray":
            from softperm.estimators.cluster import run_on_ray

            compute = partial(run_on_ray, workers=options.processes)
        with hint_at_resuming(out):
            summary, score = streaming.write_table(worker, shards, out, identity, compute, report)
        if summary.problems:
            echo(
                f"{summary.problems:,} of {counted(summary.rows, 'graph')} "
                f"{by_count(summary.problems, 'has', 'have')} no result, the column problem says "
                f"why; the first: {summary.first_problem}"
            )
        return summary, len(worker.names) if worker.vectors else score


def _shards(
    estimator: PiGNNEstimator,
    source: str,
    data_root: Path | None,
    columns: Mapping[str, str | None],
    symmetrise: bool,
    rows: int,
) -> tuple[Callable[[], Generator[Any]], object]:
    """Opens the graphs of a file or a dataset in shards; and an identity of their content."""
    from softperm.data.formats.shards import input_files, read_shards
    from softperm.estimators.streaming import collection_shards
    from softperm.training.sources import is_dataset

    if not is_dataset(source):
        path = Path(source)
        stats = [(file.name, file.stat()) for file in input_files(path)]
        content = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
        return partial(read_shards, path, **columns, symmetrise=symmetrise, rows=rows), content
    graphs, ids, targets, fingerprint = _read_dataset(estimator, source, data_root)
    return partial(collection_shards, graphs, ids, targets, rows), fingerprint


def check_engine(engine: str) -> None:
    """Raises ValueError if there is no such engine."""
    if engine not in ENGINES:
        raise ValueError(f"--engine must be {' or '.join(ENGINES)}; got {engine!r}")


def read_for(estimator: PiGNNEstimator, source: str, options: ModelInput) -> Input:
    """The graphs of a file or a dataset, all in memory, for a trained estimator."""
    from softperm.training.sources import is_dataset

    if is_dataset(source):
        return Input(*_read_dataset(estimator, source, options.data_root)[:3])
    symmetrise = options.symmetrise or estimator.symmetrise  # as in training
    file = read_file(
        source,
        options.smiles_column,
        symmetrise,
        strict=options.strict,
        fields=estimator.field_names,
    )
    if estimator.molecules_:  # features of OGB and QM9 are computed from SMILES, the names
        return Input(list(file.ids), file.ids, file.targets)
    with naming_graphs(file.ids):
        graphs = estimator.vocabulary_.encode(file.graphs)
    return Input(graphs, file.ids, file.targets)


def _read_dataset(
    estimator: PiGNNEstimator, name: str, data_root: Path | None
) -> tuple[Collection, tuple[str, ...], dict[str, np.ndarray], str]:
    """A dataset encoded for an estimator: graphs, names, targets, fingerprint of the content."""
    from softperm.training.sources import class_values, encode_dataset

    positions = estimator.field_names.positions
    dataset, collection = encode_dataset(name, data_root, estimator.vocabulary_, positions)
    if dataset.task == "classification":
        targets = {dataset.target_names[0]: class_values(dataset)}
    else:
        values = dataset.y.double().numpy()
        targets = dict(zip(dataset.target_names, values.T, strict=True))
    ids = tuple(map(str, range(len(dataset))))
    return collection, ids, targets, dataset.fingerprint


def read_file(
    source: str,
    smiles_column: str | None,
    symmetrise: bool,
    skip_empty: bool = False,
    strict: bool = False,
    fields: FieldNames = STANDARD_FIELDS,
    id_column: str | None = None,
) -> Any:
    """The graphs of a file with all its targets; unreadable rows are left out unless strict."""
    from softperm.data.formats import read_graphs

    problems: list[str] = []
    with progress_bars() as report:
        file = read_graphs(
            source,
            smiles_column=smiles_column,
            symmetrise=symmetrise,
            skip_empty=skip_empty,
            fields=fields,
            progress=lambda done, total: report("reading graphs", done, total or 0),
            id_column=id_column,
            problems=None if strict else problems,
        )
    say_unreadable(problems)
    return file


def graphs_file(source: str, data_root: Path | None) -> str:
    """The path of a file of graphs, or of the file of the dataset with this name."""
    from softperm.training.sources import is_dataset

    if not is_dataset(source):
        return source
    from softperm.data.datasets.dataset import dataset_file

    return str(dataset_file(source, data_root))


def say_unreadable(
    problems: Sequence[str], log: Callable[[str], None] = echo, folder: Path | None = None
) -> None:
    """Counts the rows that were left out, and names the first, if there are some.

    All of them are listed in ``unreadable.txt`` of the run folder, where there is one.
    """
    if not problems:
        return
    listed = ""
    if folder is not None:
        write_atomically(folder / UNREADABLE, "".join(f"{line}\n" for line in problems))
        listed = f", {UNREADABLE} in the run folder lists them"
    rows = counted(len(problems), "row")
    log(f"left out {rows} that cannot be read{listed}; the first: {problems[0]}")


# Options derived from the declared settings, and options that several commands share.


Command = TypeVar("Command", bound=Callable[..., None])

HIDDEN = ("checkpoint",)  # the run folder has its own
TEXT = ("max_time", "device")  # written otherwise than as a plain number

NAMES = ("vertex_labels", "vertex_attributes", "edge_labels", "edge_attributes")
METAVARS = dict.fromkeys(NAMES, "name,…") | {
    "max_time": "90s|2h30m|…",
    "head_hidden": "256,128,…",
    "heat": "1,4,…",
}


def with_settings(command: Command) -> Command:
    """Replaces the ``**settings`` of a command by an option for every setting of an estimator."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    names = {p.name for p in own}
    derived = [_option(p) for p in parameters() if p.name not in names and p.name not in HIDDEN]
    command.__signature__ = signature.replace(parameters=own + derived)  # type: ignore[attr-defined]
    return command


def with_shared(command: Command) -> Command:
    """Replaces each parameter of a command that is a dataclass by an option for every field."""
    signature = inspect.signature(command, eval_str=True)
    shared: dict[str, Any] = {}
    own: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if is_dataclass(parameter.annotation):
            kind = shared[parameter.name] = parameter.annotation
            own += inspect.signature(kind, eval_str=True).parameters.values()  # type: ignore[arg-type]
        else:
            own.append(parameter)

    @wraps(command)
    def run(**values: Any) -> None:
        for name, kind in shared.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = signature.replace(parameters=[p.replace(kind=keyword) for p in own])  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


def _option(each: Parameter) -> inspect.Parameter:
    """The option of a setting; numbers are checked by the setting's own rule, not by Typer."""
    rule = each.rule
    as_text = rule.kind in (tuple, list, object) or rule.choices or each.name in TEXT
    as_text = as_text or (rule.optional and each.default is not None)  # none is a value
    kind: Any = str if as_text else rule.kind
    default = ",".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
    annotation = kind | None if each.default is None else kind
    words = METAVARS.get(each.name) or ("|".join(rule.choices) if rule.kind is str else None)
    help = rule.help.replace("None", "unset" if each.default is None else "none")
    option = typer.Option(help=help, metavar=words or None, rich_help_panel=rule.group)
    return inspect.Parameter(
        each.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, option],
    )


def settings_from(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of settings out of the options of a command.

    Raises:
        ValueError: an option is not written as its setting needs it.
    """
    read = {each.name: each for each in parameters() if each.name in options}
    return {name: _value(each, options[name]) for name, each in read.items()}


def _value(each: Parameter, given: Any) -> Any:
    name = f"--{each.name.replace('_', '-')}"
    if not isinstance(given, str):
        return given
    if each.name == "max_time":
        return seconds_of(given)
    if each.rule.kind is tuple:
        sizes = given.split(",")
        if not all(size.strip().isdecimal() for size in sizes):
            raise ValueError(f"{name} must be whole numbers separated by commas; got {given!r}")
        return tuple(map(int, sizes))
    if each.rule.kind is int:
        return None if given == "none" else int(given) if given.isdecimal() else given
    if each.rule.kind is float and each.rule.optional:
        return None if given == "none" else _number(name, given)
    return given


def _number(name: str, given: str) -> float:
    try:
        return float(given)
    except ValueError:
        raise ValueError(f"{name} must be a number, or none; got {given!r}") from None


def seconds_of(text: str) -> float:
    """A time span such as ``2h30m`` in seconds; a plain number counts seconds.

    Example:
        >>> seconds_of("2h30m"), seconds_of("90")
        (9000.0, 90.0)
    """
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1, "": 1}
    if not re.fullmatch(r"(?:\d+(?:\.\d+)?[dhms])+|\d+(?:\.\d+)?", text.strip()):
        raise ValueError(f"--max-time must be a time span such as 90s or 2h30m; got {text!r}")
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms]?)", text)
    return float(sum(float(number) * units[unit] for number, unit in parts))
