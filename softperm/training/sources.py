"""From a file or the name of a dataset to training data, and to graphs for a trained model."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from softperm.data.canonical import warn_empty
from softperm.data.collection import Collection, spacious
from softperm.data.datasets import Dataset, load_dataset
from softperm.data.datasets.catalogue import catalogue_spelling
from softperm.data.datasets.molecules import QM9_UNITS
from softperm.data.datasets.splits import Split
from softperm.data.formats import GraphFile, read_graphs
from softperm.data.formats.mapped import MappedFile, input_size, is_piecewise, prepare_file
from softperm.data.formats.tables import as_number, shortened
from softperm.data.vocabulary import Label, Vocabulary, molecule_collection
from softperm.errors import GraphError, counted
from softperm.progress import Report, silent
from softperm.settings import STANDARD_FIELDS, FieldNames
from softperm.training.data import TrainingData, divide
from softperm.training.tasks import (
    METRICS,
    Classification,
    MultiLabel,
    Regression,
    Task,
    encode_answers,
    encode_classes,
    encode_numbers,
    find_classes,
)

TASKS = ("classification", "multilabel", "regression")
IN_MEMORY = 1 << 22  # bytes of a file that is read into memory as a whole
ENCODED = 1 << 22  # targets that are encoded at once
MAX_CLASSES = 20  # whole numbers with more distinct values than this are taken for measurements

_MOLECULES = {"ogbg-molhiv": "ogb", "ogbg-molpcba": "ogb", "QM9": "qm9"}


def is_dataset(source: str) -> bool:
    """Whether a source is the name of a dataset rather than a path: no such path, and no suffix."""
    path = Path(source)
    if path.exists():
        return False
    return catalogue_spelling(source) is not None or (path.name == source and not path.suffix)


def read_file(
    path: Path,
    targets: Sequence[str] | None,
    smiles_column: str | None,
    symmetrise: bool,
    skip_empty: bool = False,
    fields: FieldNames = STANDARD_FIELDS,
    progress: Report = silent,
    strict: bool = False,
    in_memory: int | None = None,
) -> GraphFile | MappedFile:
    """The graphs of a file with the targets to learn: those named, or the only one there is.

    A file of at most ``in_memory`` bytes, 4 MiB by default, is read into memory by
    :func:`softperm.data.formats.read_graphs`. A larger one in a format that is read piece by piece
    becomes mapped arrays, see :func:`softperm.data.formats.mapped.prepare_file`.
    """
    in_memory = IN_MEMORY if in_memory is None else in_memory
    options: dict[str, Any] = {
        "target": targets,
        "smiles_column": smiles_column,
        "symmetrise": symmetrise,
        "skip_empty": skip_empty,
        "fields": fields,
    }
    mapped = path.exists() and input_size(path) > in_memory and is_piecewise(path)
    if mapped and not fields.positions:  # mapped arrays have no positions
        file: GraphFile | MappedFile = prepare_file(
            path, **options, strict=strict, progress=progress
        )
    else:
        problems: list[str] | None = None if strict else []

        def count(done: int, total: int | None) -> None:
            progress("reading graphs", done, total or 0)

        file = read_graphs(path, **options, progress=count, problems=problems)
        file = replace(file, problems=tuple(problems or ()))
    if not file.targets:
        raise ValueError(
            f"{path} has no targets to learn from: expected another column of a table, an attribute"
            " of the graph in JSON Lines and GraphML, or a file of graph labels or graph attributes"
        )
    if targets is None and len(file.targets) > 1:
        names = shortened(list(file.targets))
        raise ValueError(f"{path} has these targets: {names}; set target to what to learn")
    return file


def from_file(
    file: GraphFile | MappedFile,
    task: str,
    *,
    test_fraction: float,
    validation_fraction: float,
    seed: int,
) -> TrainingData:
    """Training data from the graphs of a file.

    Args:
        file: graphs and the targets to learn.
        task: ``classification``, ``multilabel`` or ``regression``; see :func:`choose_task`.
        test_fraction: share of the graphs to test on.
        validation_fraction: share of the others to validate on.
        seed: of the random split.
    """
    columns = list(file.targets.values())
    classes = None
    if task == "classification":
        classes = find_classes(columns[0])
        y = encode_classes(columns[0], classes)
    else:
        y = _encode_columns(columns, encode_answers if task == "multilabel" else encode_numbers)
    split = divide(y, classes, test_fraction, validation_fraction, seed)
    vocabulary, graphs = _encode_file(file, split.test)
    return TrainingData(
        graphs,
        y,
        _task(task, y, split.train, classes, "roc_auc"),
        split,
        vocabulary,
        content=_content(file.content, y) if isinstance(file, MappedFile) else None,
        name=file.name,
        ids=file.ids,
        target_names=tuple(file.targets),
        classes=classes,
        target_shape=() if len(columns) == 1 else (len(columns),),
    )


def _encode_columns(
    columns: Sequence[np.ndarray], encode: Callable[[np.ndarray], Tensor]
) -> Float[Tensor, "B T"]:
    """Several columns as one matrix of encoded targets, encoded some rows at a time."""
    count, rows = len(columns[0]), max(1, ENCODED // len(columns))
    y: Tensor | None = None
    for first in range(0, count, rows):
        part = encode(np.stack([c[first : first + rows] for c in columns], axis=1))
        if y is None:
            kind = torch.zeros(0, dtype=part.dtype).numpy().dtype
            y = torch.from_numpy(spacious((count, len(columns)), kind))
        y[first : first + rows] = part
    assert y is not None, "a file has at least one graph"
    return y


def _content(graphs: str, y: Tensor) -> str:
    """Identifies mapped graphs with their encoded targets."""
    digest = hashlib.sha256(graphs.encode())
    for part in y.split(max(1, ENCODED // max(1, y[:1].numel()))):
        digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _encode_mapped(file: MappedFile, test: Tensor) -> tuple[Vocabulary, Collection]:
    """The same as :func:`_encode_file` for mapped graphs, some graphs at a time."""
    graphs, tested = file.graphs, torch.zeros(len(file.graphs), dtype=torch.bool)
    tested[test] = True
    known: dict[str, tuple[tuple[Label, ...], ...]] = {}
    for name, columns in (
        ("label", file.vocabulary.labels),
        ("edge_label", file.vocabulary.edge_labels),
    ):
        seen = [torch.zeros(len(column), dtype=torch.bool) for column in columns]
        for first, last, part in graphs.spans():
            codes, ptr = getattr(part, name), part.edge_ptr if "edge" in name else part.ptr
            if codes is not None:
                there = torch.repeat_interleave(~tested[first:last], ptr.diff())
                for c, of in enumerate(seen):
                    of[codes[there, c].long().unique()] = True
        pairs = [
            zip(column, of.tolist(), strict=True) for column, of in zip(columns, seen, strict=True)
        ]
        known[name] = tuple(tuple(v for v, there in pair if there) for pair in pairs)
    vocabulary = replace(file.vocabulary, labels=known["label"], edge_labels=known["edge_label"])
    if vocabulary == file.vocabulary:
        return vocabulary, graphs
    return vocabulary, vocabulary.recode(graphs, file.vocabulary)


def _encode_file(file: GraphFile | MappedFile, test: Tensor) -> tuple[Vocabulary, Collection]:
    """The vocabulary of all graphs but the test graphs, and all graphs encoded by it."""
    if isinstance(file, MappedFile):
        return _encode_mapped(file, test)
    tested = set(test.tolist())
    vocabulary = Vocabulary.learn(
        [g for i, g in enumerate(file.graphs) if i not in tested], file.columns
    )
    try:
        vocabulary.check(file.graphs)
    except GraphError as error:
        hint = "this graph was held out for testing, and no training graph has the same fields"
        remedy = "choose another seed, or a test fraction of 0"
        raise GraphError(error.index, f"{error.problem}; {hint}: {remedy}") from None
    return vocabulary, vocabulary.encode(file.graphs)


def from_dataset(
    dataset: Dataset,
    targets: Sequence[str] | None,
    *,
    test_fraction: float | None,
    validation_fraction: float | None,
    seed: int,
    skip_empty: bool = False,
    positions: bool = False,
) -> TrainingData:
    """Training data from a dataset.

    Args:
        dataset: the dataset.
        targets: the targets to learn; all by default, except that QM9's must be named.
        test_fraction: share of the graphs to test on; None for the official split if the dataset
            has one, else 0.1.
        validation_fraction: share of the others to validate on; None likewise.
        seed: of a random split.
        skip_empty: whether no part of the split has graphs without vertices.
        positions: whether the graphs have the positions of their vertices.

    Raises:
        ValueError: the dataset has no such target, or no positions.
    """
    columns = _columns(dataset, targets)
    names = tuple(dataset.target_names[c] for c in columns)
    classes = None
    y = dataset.y
    if dataset.task == "classification":
        classes = np.array(_labels(dataset.class_names))
    elif columns != list(range(len(dataset.target_names))):
        y = y[:, columns]
    split = dataset.official_split
    if split is None or test_fraction is not None or validation_fraction is not None:
        test = 0.1 if test_fraction is None else test_fraction
        validation = 0.0 if validation_fraction is None else validation_fraction
        split = divide(y, classes, test, validation, seed)
    sizes = dataset.collection.sizes
    if skip_empty:
        split = Split(*(part[sizes[part] > 0] for part in split.parts))
    else:
        warn_empty(sizes.tolist())
    metric = METRICS.get(dataset.name, "roc_auc")
    return TrainingData(
        dataset.collection_with_positions if positions else dataset.collection,
        y,
        _task(dataset.task, y, split.train, classes, metric),
        split,
        vocabulary_of(dataset, positions),
        name=dataset.name,
        ids=tuple(map(str, range(len(dataset)))),
        target_names=names,
        classes=classes,
        target_shape=() if len(names) == 1 and dataset.task != "multilabel" else (len(names),),
        molecules=_MOLECULES.get(dataset.name),
        unit=QM9_UNITS.get(names[0]) if dataset.name == "QM9" and len(names) == 1 else None,
        content=dataset.fingerprint,
    )


def _task(kind: str, y: Tensor, train: Tensor, classes: np.ndarray | None, metric: str) -> Task:
    if kind == "classification":
        assert classes is not None
        return Classification(len(classes))
    if kind == "multilabel":
        return MultiLabel(y.shape[1], metric)
    return Regression.of(y[train])


def _columns(dataset: Dataset, targets: Sequence[str] | None) -> list[int]:
    """The columns of the named targets, in the order given."""
    names = dataset.target_names
    if targets is None and dataset.name != "QM9":
        return list(range(len(names)))
    column_of = {name.lower(): c for c, name in enumerate(names)}
    for name in targets or [""]:
        if name.lower() not in column_of:
            raise ValueError(
                f"{dataset.name} has the targets {', '.join(names)}; set target to those to learn"
                + (f", not {name!r}" if name else "")
            )
    return list(dict.fromkeys(column_of[name.lower()] for name in targets or []))


def vocabulary_of(dataset: Dataset, positions: bool = False) -> Vocabulary:
    """The labels of a dataset in the order of their codes, and its attribute sizes."""
    position = dataset.position if positions else None
    graphs = dataset.collection
    return Vocabulary(
        labels=tuple(map(_labels, dataset.schema.label_values)),
        edge_labels=tuple(map(_labels, dataset.schema.edge_label_values)),
        x_size=0 if graphs.x is None else graphs.x.shape[1],
        edge_attr_size=0 if graphs.edge_attr is None else graphs.edge_attr.shape[1],
        weighted=graphs.edge_weight is not None,
        pos_size=0 if position is None else position.shape[1],
    )


def _labels(names: Sequence[str]) -> tuple[Label, ...]:
    """Whole numbers if all names are, as a file's labels would be; else the names."""
    numbers = [as_number(name) for name in names]
    return tuple(numbers) if all(isinstance(n, int) for n in numbers) else tuple(names)  # type: ignore[arg-type]


def class_values(dataset: Dataset) -> np.ndarray:
    """The class of each graph of a dataset, as a file of it would give it."""
    return np.array(_labels(dataset.class_names))[dataset.y.numpy()]


def encode_dataset(
    name: str, root: Path | None, vocabulary: Vocabulary, positions: bool = False
) -> tuple[Dataset, Collection]:
    """A dataset, and its graphs encoded for a model trained with another vocabulary.

    Labels outside the vocabulary get the code −1, with one warning. ``positions`` says whether the
    graphs have the positions of their vertices.

    Raises:
        ValueError: its graphs do not carry what the training graphs did.
    """
    attributes = vocabulary.x_size > 0
    dataset = load_dataset(name, root, attributes=attributes, progress=True)
    graphs = dataset.collection_with_positions if positions else dataset.collection
    own = vocabulary_of(dataset)
    for what, of, ours, theirs in (
        ("column", " of vertex labels", len(own.labels), len(vocabulary.labels)),
        ("column", " of edge labels", len(own.edge_labels), len(vocabulary.edge_labels)),
        ("vertex attribute", "", own.x_size, vocabulary.x_size),
        ("edge attribute", "", own.edge_attr_size, vocabulary.edge_attr_size),
    ):
        if ours != theirs:
            raise ValueError(
                f"{dataset.name} has {counted(ours, what)}{of}, but the model was trained on "
                f"graphs with {theirs}; predict for graphs with the same fields as in training"
            )
    weight = torch.ones(graphs.edge_index.shape[1]) if vocabulary.weighted else None
    return dataset, replace(vocabulary.recode(graphs, own), edge_weight=weight)


def reads_smiles(estimator: Any) -> bool:
    """Whether SMILES can be encoded for a fitted estimator without a graph object for each."""
    if estimator.field_names.positions:  # SMILES have none: graph by graph, errors say so
        return False
    return estimator.molecules_ is not None or estimator.vocabulary_.of_symbols


def encode_smiles(
    kind: str | None, smiles: Sequence[str], vocabulary: Vocabulary
) -> tuple[Collection | None, dict[int, str]]:
    """Concatenated molecules, and the problem of each unreadable one, by position.

    Args:
        kind: ``ogb`` or ``qm9`` for the features of these datasets; None for the labels of SMILES.
        smiles: the molecules.
        vocabulary: that of the training graphs, for labels.

    Returns:
        The molecules that can be read, None if there are none; and the problems.
    """
    from softperm.data.molecules import OGB, read_each, read_ogb, read_symbols

    if kind is None:
        molecules, problems = read_symbols(smiles)
        return (molecules and vocabulary.encode_molecules(molecules)), problems
    encoding, read = OGB, read_ogb
    if kind == "qm9":
        from softperm.data.datasets.molecules import QM9, read_qm9

        encoding, read = QM9, read_qm9
    molecules, problems = read_each(smiles, read)
    if molecules is None:
        return None, problems
    features = (encoding.atom_features, encoding.bond_features)
    sizes = (tuple(map(len, names.values())) for names in features)
    return molecule_collection(molecules, *sizes), problems


def check_task(task: str) -> None:
    """Raises ValueError unless ``task`` is ``auto`` or a known task."""
    if task not in ("auto", *TASKS):
        raise ValueError(f"task must be auto, {', '.join(TASKS[:-1])} or {TASKS[-1]}; got {task!r}")


def choose_task(task: str, file: GraphFile | MappedFile) -> str:
    """The task to learn from a file's targets.

    ``auto`` takes strings, class labels of TUDataset files and at most 20 distinct whole numbers
    for classes, several columns of 0 and 1 for binary targets, and other numbers for regression.

    Raises:
        ValueError: the targets do not fit the task.
    """
    check_task(task)
    task = _guess(file) if task == "auto" else task
    several = len(file.targets) > 1
    if several != (task == "multilabel") and task != "regression":
        raise ValueError(
            f"task {task} takes {'several targets' if task == 'multilabel' else 'one target'}; "
            f"got {', '.join(file.targets)}"
        )
    for name, column in file.targets.items():
        if task == "regression" and column.dtype.kind == "U":
            graph, word = _first_word(column, file)
            raise ValueError(f"task regression takes numbers; {name} of graph {graph} is {word!r}")
        needed = task == "classification" or column.dtype.kind == "U"
        _refuse(name, "missing", missing_values(column) if needed else None, file)
        _refuse(name, "infinite", np.isinf(column) if column.dtype.kind == "f" else None, file)
    _warn_missing(file)
    for name, column in file.targets.items():
        _warn_words(name, column, file)
    return task


def describe_task(task: str, file: GraphFile | MappedFile) -> str:
    """The targets of a file and how they are learnt, in one line.

    Example:
        ``target mass: regression (312 distinct numbers)``;
        ``target kind: classification (2 classes, the largest: 95% normal)``
    """
    names = ", ".join(file.targets)
    if len(file.targets) > 1:
        return f"targets {names}: {task}"
    (column,) = file.targets.values()
    values, counts = np.unique(column[~missing_values(column)], return_counts=True)
    words = counted(len(values), "distinct number")
    if task == "classification":
        most = f"{counts.max() / counts.sum():.0%} {values[counts.argmax()]}"
        words = f"{counted(len(values), 'class')}, the largest: {most}"
    return f"target {names}: {task} ({words})"


def describe_fields(vocabulary: Vocabulary) -> str:
    """The labels, attributes and weights of vertices and edges, in one line.

    Example:
        ``vertex labels op (4 values), edge weights``
    """
    words, named = [], vocabulary.columns
    for what, key, columns in (
        ("vertex labels", "label", vocabulary.labels),
        ("edge labels", "edge_label", vocabulary.edge_labels),
    ):
        names = named.get(key) or [""] * len(columns)
        pairs = zip(names, columns, strict=True)
        words += [
            f"{what} {name}".strip() + f" ({counted(len(values), 'value')})"
            for name, values in pairs
        ]
    for what, key, size in (
        ("vertex attributes", "x", vocabulary.x_size),
        ("edge attributes", "edge_attr", vocabulary.edge_attr_size),
    ):
        if size:
            names = ", ".join(named.get(key, ()))
            words.append(f"{what} {names or '(' + counted(size, 'number') + ')'}")
    if vocabulary.weighted:
        words.append("edge weights")
    if vocabulary.pos_size:
        words.append(f"positions ({counted(vocabulary.pos_size, 'coordinate')})")
    return ", ".join(words) or "none, structure alone"


def missing_values(column: np.ndarray) -> np.ndarray:
    """Where a target is missing: NaN, or an empty string."""
    return np.isnan(column) if column.dtype.kind == "f" else column == ""


def _guess(file: GraphFile | MappedFile) -> str:
    if len(file.targets) > 1:
        columns = (column[~missing_values(column)] for column in file.targets.values())
        answers = all(c.dtype.kind in "if" and np.isin(c, (0, 1)).all() for c in columns)
        return "multilabel" if answers else "regression"
    ((name, column),) = file.targets.items()
    values = column[~missing_values(column)]
    if values.dtype.kind not in "if":
        return "classification"
    few = name in file.class_targets or len(np.unique(values)) <= MAX_CLASSES
    return "classification" if few and (values == values.round()).all() else "regression"


def _warn_missing(file: GraphFile | MappedFile) -> None:
    """Warns, once for all targets, of graphs without a value."""
    gaps = {name: missing_values(column) for name, column in file.targets.items()}
    gaps = {name: missing for name, missing in gaps.items() if missing.any()}
    if gaps:
        target, missing = next(iter(gaps.items()))
        graph = _name(file, int(missing.argmax()))
        others = (
            f" (and {counted(len(gaps) - 1, 'other target')} for some)" if len(gaps) > 1 else ""
        )
        warnings.warn(
            f"target {target} is missing for {missing.sum()} of {counted(len(missing), 'graph')}, "
            f"graph {graph} first{others}: they do not count for it",
            stacklevel=3,
        )


def _warn_words(target: str, column: np.ndarray, file: GraphFile | MappedFile) -> None:
    """Warns of words among numbers, and of decimal commas."""
    if column.dtype.kind != "U":
        return
    total = f"of {counted(len(column), 'graph')}"
    numbers = sum(as_number(value) is not None for value in column)
    commas = [value for value in column if as_number(value) is None and _decimal_comma(value)]
    if len(commas) >= len(column) / 2:
        warnings.warn(
            f"target {target} is {str(commas[0])!r} and similar for {len(commas)} {total}, which "
            "are taken for classes: if they are numbers, write them with a decimal point",
            stacklevel=3,
        )
    if len(column) / 2 <= numbers < len(column):
        graph, word = _first_word(column, file)
        warnings.warn(
            f"target {target} is a number for {numbers} {total}, but {word!r} for graph {graph}: "
            "all are taken for classes",
            stacklevel=3,
        )


def _decimal_comma(word: str) -> bool:
    return word.count(",") == 1 and as_number(word.replace(",", ".")) is not None


def _first_word(column: np.ndarray, file: GraphFile | MappedFile) -> tuple[str, str]:
    """The first graph whose target is not a number, and that target."""
    index = next((k for k, value in enumerate(column) if as_number(value) is None), 0)
    return _name(file, index), str(column[index])


def _name(file: GraphFile | MappedFile, index: int) -> str:
    """The name of a graph, and its place in the file where that says more."""
    name, place = file.ids[index], file.places[index] if file.places else ""
    return f"{name} ({place})" if " line " in place else name


def _refuse(
    target: str, fault: str, where: np.ndarray | None, file: GraphFile | MappedFile
) -> None:
    if where is not None and where.any():
        graph = _name(file, int(where.argmax()))
        raise ValueError(f"target {target} is {fault} for graph {graph}: leave such graphs out")
