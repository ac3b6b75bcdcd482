"""A trained model and the graphs for it: what ``predict``, ``embed`` and ``distance`` share."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softperm.cli.console import called, counting
from softperm.data.field_settings import STANDARD, FieldNames

if TYPE_CHECKING:
    import numpy as np

    from softperm.data.collection import Collection
    from softperm.estimators.base import PiGNNEstimator

Run = Annotated[
    str,
    typer.Argument(
        help="Run folder of softperm train, a model folder, or hf://owner/name on the Hub."
    ),
]
Source = Annotated[
    str, typer.Argument(help="Graphs in any format that train reads, or the name of a dataset.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, …")]
SmilesColumn = Annotated[str | None, typer.Option(help="Column of SMILES in a table.")]
Symmetrise = Annotated[bool, typer.Option(help="Read directed edges in both directions.")]
SkipEmpty = Annotated[bool, typer.Option(help="Leave out graphs without vertices.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of raw datasets, searched first.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


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


def load_model(run: str, device: str) -> PiGNNEstimator:
    """The estimator of a run folder, of a model folder, or of the Hub.

    Warns if the run is not finished.
    """
    from softperm.cli.run_folder import CHECKPOINT
    from softperm.estimators.base import load_estimator

    inner = Path(run) / "model"
    if inner.is_dir() and (Path(run) / CHECKPOINT).exists():
        warnings.warn(
            f"the training in {run} is not finished: the same softperm train command resumes it",
            stacklevel=2,
        )
    return load_estimator(inner if inner.is_dir() else run, device)


def read_for(
    estimator: PiGNNEstimator,
    source: str,
    data_root: Path | None,
    smiles_column: str | None,
    symmetrise: bool,
) -> Input:
    """The graphs of a file or a dataset, for a trained estimator."""
    from softperm.training.sources import class_values, encode_dataset, is_dataset

    if not is_dataset(source):
        file = read_file(source, smiles_column, symmetrise, fields=estimator.field_names)
        if estimator.molecules_:  # features of OGB and QM9 are computed from SMILES, the names
            return Input(list(file.ids), file.ids, file.targets)
        with called(file.ids):
            graphs = estimator.vocabulary_.encode(file.graphs)
        return Input(graphs, file.ids, file.targets)
    dataset, collection = encode_dataset(source, data_root, estimator.vocabulary_)
    ids = tuple(map(str, range(len(dataset))))
    if dataset.task == "classification":
        return Input(collection, ids, {dataset.target_names[0]: class_values(dataset)})
    columns = zip(dataset.target_names, dataset.y.double().numpy().T, strict=True)
    return Input(collection, ids, dict(columns))


def read_file(
    source: str,
    smiles_column: str | None,
    symmetrise: bool,
    skip_empty: bool = False,
    fields: FieldNames = STANDARD,
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
        )
