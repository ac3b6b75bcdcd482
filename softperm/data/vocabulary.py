"""The labels and fields of training graphs, and the encoding of graphs by them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from softperm.data.canonical import check_same_fields, count_edges, describe_field, has_rows, width
from softperm.data.collection import Collection
from softperm.data.features import check_keys
from softperm.data.molecules import Molecules, bond_names, element_symbols
from softperm.errors import GraphError, GraphWarning, by_count, counted
from softperm.pyg import Data

Label = int | str


@dataclass(frozen=True)
class Vocabulary:
    """The labels, attribute sizes and weights of the graphs a model was trained on.

    Args:
        labels: for each column of vertex labels, the labels seen in training, in order of their
            codes. The integer 1 and the string ``"1"`` are two labels.
        edge_labels: the same for edge labels.
        x_size: number of continuous attributes of a vertex; 0 means none.
        edge_attr_size: number of continuous attributes of an edge; 0 means none.
        weighted: whether any graph had edge weights.
        pos_size: number of coordinates of a vertex's position; 0 where positions are not read.
        columns: the user's names of the columns of ``label``, ``x``, ``edge_label`` and
            ``edge_attr``, where they were chosen by name.
    """

    labels: tuple[tuple[Label, ...], ...] = ()
    edge_labels: tuple[tuple[Label, ...], ...] = ()
    x_size: int = 0
    edge_attr_size: int = 0
    weighted: bool = False
    pos_size: int = 0
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @classmethod
    def learn(
        cls, graphs: Sequence[Data], columns: Mapping[str, tuple[str, ...]] | None = None
    ) -> Vocabulary:
        """The vocabulary of canonical training graphs; it does not depend on their order.

        Args:
            graphs: the result of :func:`softperm.data.graphs.as_graphs`.
            columns: names of the columns of fields, where they were chosen by name.

        Returns:
            The vocabulary, with integer labels in ascending order before strings.

        Raises:
            GraphError: a graph has other fields than most.
        """
        check_same_fields(graphs)
        return cls(
            labels=_seen(graphs, "label"),
            edge_labels=_seen(graphs, "edge_label"),
            x_size=max((width(graph, "x") for graph in graphs), default=0),
            edge_attr_size=max((width(graph, "edge_attr") for graph in graphs), default=0),
            weighted=any("edge_weight" in graph for graph in graphs),
            pos_size=max((width(graph, "pos") for graph in graphs), default=0),
            columns=columns or {},
        )

    def encode(self, graphs: Sequence[Data]) -> Collection:
        """Lay graphs end to end, with labels as codes and the counts of degree and triangles.

        The graphs must have the fields of the training graphs, no more and no fewer. A label that
        did not occur in training gets code −1, with one warning for all graphs. A graph without
        weights has weights of 1.

        Raises:
            GraphError: a graph has other fields, or fields of other sizes, than in training.
        """
        self.check(graphs)
        positions = _stack(graphs, "pos", self.pos_size)
        label = _encode(graphs, "label", self.labels)
        edge_label = _encode(graphs, "edge_label", self.edge_labels)
        collection = Collection.from_counts(
            [graph.num_nodes or 0 for graph in graphs],
            [count_edges(graph) for graph in graphs],
            torch.cat([graph["edge_index"] for graph in graphs], dim=1),  # (2, E)
            label=label,
            label_sizes=tuple(map(len, self.labels)),
            x=_stack(graphs, "x", self.x_size),
            edge_label=edge_label,
            edge_label_sizes=tuple(map(len, self.edge_labels)),
            edge_attr=_stack(graphs, "edge_attr", self.edge_attr_size),
            edge_weight=_weights(graphs) if self.weighted else None,
            extra={} if positions is None else {"pos": positions},
        )
        _warn_unseen(
            _unseen(label, collection.ptr, partial(_values, graphs, "label")),
            _unseen(edge_label, collection.edge_ptr, partial(_values, graphs, "edge_label")),
        )
        return collection

    @property
    def of_symbols(self) -> bool:
        """Whether training graphs had one label for each vertex and edge, and nothing else.

        Molecules from SMILES have: the element of an atom, the type of a bond.
        """
        columns = (len(self.labels), len(self.edge_labels))
        return columns == (1, 1) and not (self.x_size or self.edge_attr_size or self.weighted)

    def encode_molecules(self, molecules: Molecules) -> Collection:
        """Molecules from :func:`softperm.data.molecules.read_symbols`, as :meth:`encode` does.

        The result is that of the molecules' graphs, without a Python object for each of them.
        """
        symbols = Vocabulary((element_symbols(),), (bond_names(),))
        sizes = tuple((len(names),) for names in (element_symbols(), bond_names()))
        return self.recode(molecule_collection(molecules, *sizes), symbols)

    def recode(self, graphs: Collection, other: Vocabulary) -> Collection:
        """Graphs that another vocabulary of the same fields encoded, with the codes of this one.

        A label outside this vocabulary gets code −1, with one warning for all graphs.
        """
        label, unseen = _recode(graphs.label, other.labels, self.labels, graphs.ptr)
        edge_label, unseen_edges = _recode(
            graphs.edge_label, other.edge_labels, self.edge_labels, graphs.edge_ptr
        )
        _warn_unseen(unseen, unseen_edges)
        return replace(
            graphs,
            label=label,
            label_sizes=tuple(map(len, self.labels)),
            edge_label=edge_label,
            edge_label_sizes=tuple(map(len, self.edge_labels)),
        )

    def to_config(self) -> dict[str, Any]:
        """The vocabulary as plain values that survive JSON unchanged."""
        config = asdict(self)
        for key in ("labels", "edge_labels"):
            config[key] = [list(column) for column in config[key]]
        config["columns"] = {key: list(names) for key, names in self.columns.items()}
        return config

    @classmethod
    def from_config(cls, config: Any) -> Vocabulary:
        """The vocabulary from the values of :meth:`to_config`.

        Args:
            config: parsed JSON, possibly from a damaged or foreign file.

        Raises:
            ValueError: if a key is unknown or missing, or a value has the wrong type.
        """
        if isinstance(config, Mapping):  # of version 0.3, and before positions were read
            config = {"columns": {}, "pos_size": 0, **config}
        check_keys("vocabulary", config, [each.name for each in fields(cls)])
        for key in ("labels", "edge_labels"):
            _check_columns(key, config[key])
        for key in ("x_size", "edge_attr_size", "pos_size"):
            if type(config[key]) is not int or config[key] < 0:
                raise ValueError(
                    f"vocabulary: {key} is {config[key]!r}; expected a size, 0 or more"
                )
        if type(config["weighted"]) is not bool:
            raise ValueError(
                f"vocabulary: weighted is {config['weighted']!r}; expected true or false"
            )
        labels = {k: tuple(map(tuple, config[k])) for k in ("labels", "edge_labels")}
        columns = {key: tuple(map(str, names)) for key, names in dict(config["columns"]).items()}
        vocabulary = cls(**{**config, **labels, "columns": columns})
        sizes = vocabulary._sizes()
        if wrong := [k for k, names in columns.items() if sizes.get(k) != len(names)]:
            raise ValueError(f"vocabulary: columns does not name each column of {wrong[0]}")
        return vocabulary

    def _sizes(self) -> dict[str, int]:
        """Number of columns of each field."""
        return {
            "x": self.x_size,
            "label": len(self.labels),
            "pos": self.pos_size,
            "edge_attr": self.edge_attr_size,
            "edge_label": len(self.edge_labels),
        }

    def check(self, graphs: Sequence[Data]) -> None:
        """Raise GraphError unless every graph has the fields of the training graphs."""
        if not graphs:
            raise ValueError("expected at least one graph, got none")
        trained = self._sizes()
        for i, graph in enumerate(graphs):
            for field, size in trained.items():
                found = width(graph, field)
                if found == size or not has_rows(graph, field):
                    continue
                raise GraphError(
                    i,
                    f"it has {describe_field(field, found)}, but the model was trained on graphs "
                    f"with {describe_field(field, size)}; give the same fields as in training",
                )
            if "edge_weight" in graph and not self.weighted:
                raise GraphError(
                    i,
                    "it has edge weights, but the model was trained on graphs without; remove "
                    "them, or train with weights",
                )


def _check_columns(key: str, columns: Any) -> None:
    """Raise unless these are lists of distinct integers and strings."""
    wrong = not isinstance(columns, list) or any(
        not isinstance(column, list)
        or any(type(value) not in (int, str) for value in column)
        or len(set(column)) != len(column)
        for column in columns
    )
    if wrong:
        raise ValueError(
            f"vocabulary: {key} is {str(columns)[:60]}; expected lists of distinct integers or "
            f"strings"
        )


def molecule_collection(
    molecules: Molecules, atom_sizes: tuple[int, ...], bond_sizes: tuple[int, ...]
) -> Collection:
    """A collection of molecules whose labels are the codes of atoms and bonds."""
    return Collection.from_counts(
        molecules.sizes,
        molecules.edge_counts,
        torch.from_numpy(molecules.edge_index).long(),
        label=torch.from_numpy(molecules.atom).long(),
        label_sizes=atom_sizes,
        edge_label=torch.from_numpy(molecules.bond).long(),
        edge_label_sizes=bond_sizes,
    )


def _seen(graphs: Sequence[Data], field: str) -> tuple[tuple[Label, ...], ...]:
    """The distinct labels of each column, integers in order and then strings in order."""
    columns = max((width(graph, field) for graph in graphs), default=0)
    seen = []
    for c in range(columns):
        values = _values(graphs, field, c)
        distinct = set(values) if isinstance(values, list) else np.unique(values).tolist()
        seen.append(tuple(sorted(distinct, key=lambda value: (isinstance(value, str), value))))
    return tuple(seen)


def _values(graphs: Sequence[Data], field: str, column: int) -> np.ndarray | list[Label]:
    """One column of all graphs end to end: an array if all labels are integers, else a list."""
    chunks = _chunks(graphs, field)
    if any(isinstance(chunk, list) for chunk in chunks):
        values = chain.from_iterable(c if isinstance(c, list) else c.tolist() for c in chunks)
        return [v[column] if isinstance(v, (tuple, list)) else v for v in values]
    if not chunks:
        return []
    return torch.cat([c if c.ndim == 1 else c[:, column] for c in chunks]).numpy()


def _chunks(graphs: Sequence[Data], field: str) -> list[Any]:
    """A field of each graph that has vertices, or edges, for it to describe."""
    return [getattr(graph, field) for graph in graphs if has_rows(graph, field)]


def _encode(
    graphs: Sequence[Data], field: str, columns: tuple[tuple[Label, ...], ...]
) -> Tensor | None:
    """Codes of a field's labels, one column each; −1 for labels outside the vocabulary."""
    if not columns:
        return None
    codes = []
    for c, known in enumerate(columns):
        values = _values(graphs, field, c)
        if isinstance(values, list):
            codes.append(codes_of(values, known))
            continue
        distinct, inverse = np.unique(values, return_inverse=True)
        codes.append(codes_of(distinct.tolist(), known)[torch.from_numpy(inverse)])
    return torch.stack(codes, dim=1)  # (V, L)


def codes_of(values: Sequence[Label], known: Sequence[Label]) -> Int[Tensor, " K"]:
    """The position of each value among the known labels; −1 for other values."""
    code_of = {value: code for code, value in enumerate(known)}
    return torch.tensor([code_of.get(value, -1) for value in values], dtype=torch.long)


def _recode(
    codes: Tensor | None,
    before: tuple[tuple[Label, ...], ...],
    after: tuple[tuple[Label, ...], ...],
    ptr: Tensor,
) -> tuple[Tensor | None, _Unseen]:
    """Codes of labels by another vocabulary, and the labels that it does not have."""
    if codes is None or before == after:
        return codes, _Unseen()
    kind = codes.dtype if max(map(len, after)) <= torch.iinfo(codes.dtype).max else torch.long
    recoded = [
        codes_of(known, wanted).to(kind)[column.long()]
        for column, known, wanted in zip(codes.T, before, after, strict=True)
    ]
    table = torch.stack(recoded, dim=1)  # (V, L)
    names = [np.array(known, dtype=object) for known in before]
    return table, _unseen(table, ptr, lambda c: [*names[c][codes[:, c].numpy()]])


def _stack(graphs: Sequence[Data], field: str, size: int) -> Tensor | None:
    """A field of all graphs end to end; None if there is none."""
    if size == 0:
        return None
    chunks = _chunks(graphs, field)
    return torch.cat(chunks) if chunks else torch.empty(0, size)


def _weights(graphs: Sequence[Data]) -> Tensor:
    return torch.cat(
        [g["edge_weight"] if "edge_weight" in g else torch.ones(count_edges(g)) for g in graphs]
    )


@dataclass(frozen=True)
class _Unseen:
    """Labels outside the vocabulary: the number of rows, their graphs, the first few labels."""

    rows: int = 0
    graphs: frozenset[int] = frozenset()
    labels: tuple[Label, ...] = ()


def _unseen(
    codes: Tensor | None, ptr: Tensor, values: Callable[[int], np.ndarray | list[Label]]
) -> _Unseen:
    """The unseen labels of a field."""
    if codes is None or not bool((codes < 0).any()):
        return _Unseen()
    labels: dict[Label, None] = {}  # a set that keeps the order
    for c, column in enumerate((codes < 0).unbind(1)):
        of = values(c)
        for k in column.nonzero()[:, 0][:1000].tolist():
            labels[of[k] if isinstance(of, list) else of[k].item()] = None
    rows = (codes < 0).any(dim=1).nonzero()[:, 0]
    owners = torch.searchsorted(ptr[1:], rows, right=True).unique()
    return _Unseen(len(rows), frozenset(owners.tolist()), tuple(labels)[:3])


class UnseenLabels(GraphWarning):
    """Labels of some graphs that training did not see.

    Args:
        indices: positions of the graphs, at least one.
        vertices: number of vertices with such labels.
        edges: number of edges with such labels.
        labels: the first few of the labels.
        name: the first graph's name in the message; ``graph <index>`` by default.
    """

    def __init__(
        self,
        indices: Sequence[int],
        vertices: int,
        edges: int,
        labels: Sequence[Label],
        name: str | None = None,
    ) -> None:
        examples = ", ".join(map(repr, labels))
        kinds = ((vertices, "vertex"), (edges, "edge"))
        counts = " and ".join(counted(count, kind) for count, kind in kinds if count)
        problem = (
            f"{counts} {by_count(vertices + edges, 'has a label', 'have labels')} that training "
            f"did not see (such as {examples}); these count as no label"
        )
        super().__init__(indices, problem, name)
        self.args = (indices, vertices, edges, labels, name)  # pickle rebuilds it from these
        self.vertices, self.edges, self.labels = vertices, edges, tuple(labels)


def _warn_unseen(vertices: _Unseen, edges: _Unseen) -> None:
    """Warn once about all labels that did not occur in training, if there are any."""
    if not vertices.rows and not edges.rows:
        return
    graphs, labels = sorted(vertices.graphs | edges.graphs), vertices.labels + edges.labels
    warnings.warn(UnseenLabels(graphs, vertices.rows, edges.rows // 2, labels), stacklevel=3)
