"""Options that commands share, and a trained model with the graphs for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softperm.cli.console import (
    counting,
    echo,
    hint_at_resuming,
    lines,
    naming_graphs,
    ready_file,
    ready_folder,
)
from softperm.progress import progress_bars
from softperm.settings import STANDARD_FIELDS, FieldNames

if TYPE_CHECKING:
    import numpy as np

    from softperm.data.collection import Collection
    from softperm.estimators.pignn import PiGNNEstimator
    from softperm.estimators.streaming import Summary

ENGINES = ("local", "ray")

Run = Annotated[
    str,
    typer.Argument(
        help="Run folder of softperm train, a model folder, or hf://owner/name on the Hub."
    ),
]
Source = Annotated[
    str, typer.Argument(help="Graphs in any format that train reads, or the name of a dataset.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, …", rich_help_panel="Hardware")]
SmilesColumn = Annotated[
    str | None, typer.Option(help="Column of SMILES in a table.", rich_help_panel="Data")
]
Symmetrise = Annotated[
    bool, typer.Option(help="Read directed edges in both directions.", rich_help_panel="Data")
]
SkipEmpty = Annotated[
    bool, typer.Option(help="Leave out graphs without vertices.", rich_help_panel="Data")
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Folder of raw datasets, searched first.", rich_help_panel="Data"),
]
IdColumn = Annotated[
    str | None,
    typer.Option(help="Column of names in a table; the SMILES by default.", rich_help_panel="Data"),
]
Strict = Annotated[
    bool, typer.Option(help="Stop at the first graph without a result.", rich_help_panel="Data")
]
Engine = Annotated[
    str,
    typer.Option(
        help="local: processes of this machine; ray: the machines of a Ray cluster.",
        rich_help_panel="Hardware",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes, or actors on Ray; by default one per core or GPU.",
        rich_help_panel="Hardware",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel="Output")
]


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
    *,
    device: str,
    smiles_column: str | None,
    id_column: str | None,
    symmetrise: bool,
    skip_empty: bool,
    strict: bool,
    data_root: Path | None,
    engine: str,
    processes: int | None,
    options: Mapping[str, bool],
    nearest: tuple[int, float | None] | None = None,
) -> tuple[Summary, Any]:
    """Writes a table of a trained model's results for a file or a dataset, shard by shard.

    Most arguments are options of the commands. ``endings`` are those of the formats that may be
    written, ``options`` say what a :class:`softperm.estimators.streaming.ShardWorker` computes, and
    ``nearest`` is the number of training graphs to name with the seconds for each graph.

    Returns:
        The summary of all graphs; and the score of predictions, or the length of vectors.
    """
    from softperm.data.result_files import find_format
    from softperm.training.sources import is_dataset

    check_engine(engine)
    if engine == "ray" and is_dataset(data):
        raise ValueError("--engine ray reads files, not datasets by name: name a file or a folder")
    ending, is_folder = find_format(out, endings), not out.suffix
    (ready_folder if is_folder else ready_file)(out)
    with lines(), progress_bars() as report:
        from softperm.estimators import streaming
        from softperm.lab import estimators
        from softperm.training.devices import find_device

        worker = streaming.ShardWorker(
            model_folder(run), str(find_device(device)), folder=_parts_folder(out), ending=ending,
            skip_empty=skip_empty, strict=strict, load=estimators.load_model,
            vectors=options["vectors"], compact=options.get("compact", False),
            half=options.get("half", False),
        )  # fmt: skip
        symmetrise = symmetrise or worker.estimator.symmetrise  # as in training
        worker = replace(worker, symmetrise=symmetrise)
        if nearest is not None:
            from softperm.search.training_index import NearestTrainingGraphs

            labels = len(worker.estimator.vocabulary_.labels)
            columns_of_nearest = NearestTrainingGraphs(run, nearest[0], labels, nearest[1])
            columns_of_nearest.check()
            worker = replace(worker, columns=columns_of_nearest)
        columns = {"smiles_column": smiles_column, "id_column": id_column}
        rows = streaming.rows_of_part(worker)
        shards, content = _shards(worker.estimator, data, data_root, columns, symmetrise, rows)
        identity = {"data": data, "content": content, **columns, "rows": rows, **worker.identity}
        compute: Any = partial(streaming.run_shards, processes=processes)
        if engine == "ray":
            from softperm.estimators.cluster import run_on_ray

            compute = partial(run_on_ray, workers=processes)
        with hint_at_resuming(out):
            summary, score = streaming.write_table(worker, shards, out, identity, compute, report)
        if summary.problems:
            echo(
                f"{summary.problems:,} of {summary.rows:,} graphs have no result, the column "
                f"problem says why; the first: {summary.first_problem}"
            )
        return summary, len(worker.names) if options["vectors"] else score


def _parts_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.parts") if out.suffix else out


def _shards(
    estimator: PiGNNEstimator,
    source: str,
    data_root: Path | None,
    columns: Mapping[str, str | None],
    symmetrise: bool,
    rows: int,
) -> tuple[Callable[[], Generator[Any]], object]:
    """Opens the graphs of a file or a dataset in shards; and an identity of their content."""
    from softperm.data.formats.shards import read_shards
    from softperm.estimators.streaming import collection_shards
    from softperm.training.sources import is_dataset

    if not is_dataset(source):
        path = Path(source)
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        stats = [(file.name, file.stat()) for file in files if file.is_file()]
        content = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
        return partial(read_shards, path, **columns, symmetrise=symmetrise, rows=rows), content
    graphs, ids, targets, fingerprint = _read_dataset(estimator, source, data_root)
    return partial(collection_shards, graphs, ids, targets, rows), fingerprint


def mapping(engine: str, processes: int | None) -> Callable[..., Any]:
    """The function of :mod:`softperm.parallel` that maps over items, by the name of an engine."""
    from softperm.parallel import map_in_processes, map_on_ray

    check_engine(engine)
    if engine == "ray":
        return partial(map_on_ray, workers=processes)
    return partial(map_in_processes, processes=processes)


def check_engine(engine: str) -> None:
    """Raises ValueError if there is no such engine."""
    if engine not in ENGINES:
        raise ValueError(f"--engine must be {' or '.join(ENGINES)}; got {engine!r}")


def read_for(
    estimator: PiGNNEstimator,
    source: str,
    data_root: Path | None,
    smiles_column: str | None,
    symmetrise: bool,
) -> Input:
    """The graphs of a file or a dataset, all in memory, for a trained estimator."""
    from softperm.training.sources import is_dataset

    if is_dataset(source):
        return Input(*_read_dataset(estimator, source, data_root)[:3])
    symmetrise = symmetrise or estimator.symmetrise  # as in training
    file = read_file(source, smiles_column, symmetrise, fields=estimator.field_names)
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

    dataset, collection = encode_dataset(name, data_root, estimator.vocabulary_)
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
    fields: FieldNames = STANDARD_FIELDS,
    id_column: str | None = None,
) -> Any:
    """The graphs of a file with all its targets."""
    from softperm.data.formats import read_graphs

    with counting("reading graphs") as count:
        return read_graphs(
            source,
            smiles_column=smiles_column,
            symmetrise=symmetrise,
            skip_empty=skip_empty,
            fields=fields,
            progress=count,
            id_column=id_column,
        )
