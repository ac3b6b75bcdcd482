"""Users' graphs of any supported type, validated and converted to canonical PyG ``Data``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from numbers import Integral
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse
import torch

from softperm.data.canonical import (
    RawGraph,
    Removed,
    as_rows,
    canonicalise,
    check_same_fields,
    choose_fields,
    graph_from_lists,
    warn_empty,
    warn_removed,
)
from softperm.data.molecules import raw_graph_from_mol, raw_graph_from_smiles
from softperm.errors import GraphError, counted, errors_about_graph
from softperm.pyg import Batch, Data
from softperm.settings import STANDARD_FIELDS, FieldNames


def as_graph(
    obj: Any,
    index: int | None = None,
    *,
    symmetrise: bool = False,
    fields: FieldNames = STANDARD_FIELDS,
) -> Data:
    """Bring one graph into canonical form (see :func:`softperm.data.canonical.canonicalise`).

    Supported types and the fields they may have:

    - ``networkx.Graph``: vertex attributes ``label`` (integer or string) and ``x`` (number or
      vector), edge attributes ``label``, ``x`` and ``weight``;
    - PyG ``Data``: ``edge_index``, ``x``, ``label``, ``edge_attr``, ``edge_label``,
      ``edge_weight``;
    - a pair ``(edges, number of vertices)``: every edge listed once, or in both directions, as
      pairs or as triples with a weight; or an array (2, E);
    - an adjacency matrix (NumPy, SciPy sparse, torch or a pandas DataFrame) whose non-zero entries
      are weights; entries that a SciPy matrix stores twice are added, as SciPy does;
    - a SMILES string, or a molecule of RDKit.

    Attributes of other names are read if ``fields`` names them; otherwise a warning says that they
    are not. Vertices keep the order in which the object lists them, and the object itself is never
    changed. Weights of 1 throughout mean an unweighted graph.

    Args:
        obj: the graph.
        index: its position in the user's list, for error messages.
        symmetrise: whether to treat directed edges as undirected; if the two directions of an
            edge have different values, the first listed direction counts.
        fields: names of the attributes to read.

    Raises:
        GraphError: the graph cannot be used; the message says what is wrong and what to do.

    >>> as_graph(([(0, 1), (1, 2)], 3)).edge_index
    tensor([[0, 1, 1, 2],
            [1, 0, 2, 1]])
    """
    with errors_about_graph(index or 0, "the graph" if index is None else None):
        graph, removed = canonicalise(choose_fields(_kind(obj).read(obj), fields), symmetrise)
    warn_removed(removed)
    return graph


def as_graphs(
    objs: Any, *, symmetrise: bool = False, fields: FieldNames = STANDARD_FIELDS
) -> list[Data]:
    """Bring a list of graphs, all of one type, into canonical form.

    Args:
        objs: the graphs: a list or other iterable of objects that :func:`as_graph` accepts.
        symmetrise: whether to treat directed edges as undirected.
        fields: names of the attributes of vertices and edges to read.

    Returns:
        The canonical graphs, all with the same fields. Self-loops and duplicate edges are removed
        with one warning for the whole list; another one counts the graphs without vertices.

    Raises:
        GraphError: a graph cannot be used, or its fields differ from those of most graphs.
        ValueError: no graphs at all, or graphs of several types.
    """
    return read_list(objs, symmetrise, fields)[0]


def read_list(
    objs: Any, symmetrise: bool, fields: FieldNames, again: bool = False
) -> tuple[list[Data], dict[str, tuple[str, ...]]]:
    """The graphs of :func:`as_graphs`, and the names of the columns of fields chosen by name.

    ``again`` says whether other graphs of the collection have had the warnings about attributes.
    """
    objs = _as_list(objs)
    kinds = []
    for i, obj in enumerate(objs):
        with errors_about_graph(i):
            kinds.append(_kind(obj))
        if kinds[i] is not kinds[0]:
            raise GraphError(
                i,
                f"it is {kinds[i].name}, but graph 0 is {kinds[0].name}; pass graphs of one type",
            )
    pairs = []
    for i, (obj, kind) in enumerate(zip(objs, kinds, strict=True)):
        with errors_about_graph(i):
            pairs.append(canonicalise(choose_fields(kind.read(obj), fields), symmetrise))
    graphs = [graph for graph, _ in pairs]
    check_same_fields(graphs)
    removed = Removed.total(removed for _, removed in pairs)
    warn_removed(removed, 4, again)
    warn_empty([int(graph.num_nodes or 0) for graph in graphs])
    return graphs, dict(removed.columns)


def graph_array(objs: Any, *, symmetrise: bool = False) -> np.ndarray:
    """Graphs as an array (B, 1) of objects, for tools that index ``X`` with arrays.

    scikit-learn's ``BaggingClassifier``, ``permutation_importance`` and others need ``X`` to be a
    matrix: here each graph is one row with one column. The estimators accept such arrays.

    Args:
        objs: as for :func:`as_graphs`.
        symmetrise: whether to treat directed edges as undirected.

    >>> graph_array([([(0, 1)], 2), ([(0, 1), (1, 2)], 3)])[[1, 0, 1]].shape
    (3, 1)
    """
    graphs = as_graphs(objs, symmetrise=symmetrise)
    array = np.empty((len(graphs), 1), dtype=object)
    for i, graph in enumerate(graphs):
        array[i, 0] = graph
    return array


def _as_list(objs: Any) -> list[Any]:
    """The user's graphs as a list, or an error if the argument is not a list of graphs."""
    expected = "expected a list of graphs"
    if isinstance(objs, np.ndarray) and objs.dtype.kind in "OU" and objs.shape[1:] in ((), (1,)):
        objs = objs.ravel().tolist()  # as scikit-learn and pandas pass graphs or SMILES
    if isinstance(objs, Batch):
        raise ValueError(f"{expected}, got a PyG Batch; pass batch.to_data_list()")
    if _is_frame(objs):
        columns = ", ".join(map(str, list(getattr(objs, "columns", ()))[:5]))
        raise ValueError(
            f"{expected}, got a DataFrame with the columns {columns};"
            " pass one of its columns, such as frame['smiles'], or adjacency matrices in a list"
        )
    for kind in _KINDS:
        if kind.matches(objs) and not (kind is _DENSE and objs.ndim == 3):
            raise ValueError(f"{expected}, got {kind.name} by itself; put it in a list: [graph]")
    if hasattr(objs, "__getitem__") and hasattr(objs, "__len__") and not isinstance(objs, Iterable):
        objs = [objs[i] for i in range(len(objs))]  # a dataset of torch
    if isinstance(objs, Mapping) or not isinstance(objs, Iterable):
        raise ValueError(f"{expected}, got {_article(type(objs).__name__)}; pass a list")
    objs = list(objs)
    if not objs:
        raise ValueError(f"{expected}, got an empty list; pass at least one graph")
    return objs


@dataclass(frozen=True)
class _Kind:
    """A supported type of graph: its name in messages, how to recognise it, how to read it."""

    name: str
    matches: Callable[[Any], bool]
    read: Callable[[Any], RawGraph]


def _kind(obj: Any) -> _Kind:
    for kind in _KINDS:
        if kind.matches(obj):
            return kind
    known = ", ".join(kind.name for kind in _KINDS)
    library, name = type(obj).__module__.partition(".")[0], type(obj).__name__
    remedy = _CONVERSIONS.get((library, name)) or _CONVERSIONS.get((library, ""))
    if remedy:
        raise ValueError(f"it is {_article(name)} of {library}; {remedy}")
    raise ValueError(f"it is {_article(type(obj).__name__)}; expected one of: {known}")


def _article(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def _read_networkx(graph: nx.Graph) -> RawGraph:
    names = list(graph)
    plain = names == list(range(len(names)))
    index = {name: i for i, name in enumerate(names)}
    vertices = [attributes for _, attributes in graph.nodes(data=True)]
    if graph.is_multigraph():
        pairs = [(u, v) for u, v, _ in graph.edges(data=True)]
        listed = [attributes for _, _, attributes in graph.edges(data=True)]
        return graph_from_lists(names, vertices, pairs, listed, once=not graph.is_directed())
    # The adjacency lists both directions, and is read without a Python loop over edges.
    rows = [neighbours for _, neighbours in graph.adjacency()]
    columns = chain.from_iterable(rows)
    columns = np.fromiter(columns if plain else map(index.__getitem__, columns), dtype=np.int64)
    edges = np.stack([np.repeat(np.arange(len(rows)), list(map(len, rows))), columns])
    listed = list(chain.from_iterable(neighbours.values() for neighbours in rows))
    return RawGraph(
        len(names),
        edges,
        once=False,
        names=None if plain else names,
        vertices=vertices,
        listed=listed,
    )


def read_data(data: Data) -> RawGraph:
    """A PyG graph before validation, with its attributes by their names."""
    if isinstance(data, Batch):
        raise ValueError(
            f"it is a Batch of {counted(data.num_graphs, 'graph')}; pass batch.to_data_list() "
            "instead"
        )

    count, known = _count_vertices(data), (*_PYG_VERTICES, *_PYG_EDGES, *_PYG_OTHERS)
    others = [key for key in data.keys() if key not in known]  # noqa: SIM118, an object of PyG
    of_vertices = (key for key in others if key == "pos" or data.is_node_attr(key))
    vertices = [*_PYG_VERTICES, *of_vertices]
    edges = [*_PYG_EDGES, *(key for key in others if data.is_edge_attr(key))]
    return RawGraph(
        num_nodes=count,
        edges=_ends(data.edge_index, (2, -1), "edge_index"),
        once=False,
        vertices={key: data[key] for key in vertices if key in data},
        listed={key: data[key] for key in edges if key in data},
        edge_names=_PYG_EDGES,
    )


_PYG_VERTICES = ("label", "x")
_PYG_EDGES = ("edge_label", "edge_attr", "edge_weight")
_PYG_OTHERS = ("edge_index", "num_nodes", "y", "batch", "ptr")


def _count_vertices(data: Data) -> int:
    """Number of vertices, never guessed from the edges: the last vertices may be isolated."""
    for key in ("num_nodes", "x", "label", "pos"):
        value = getattr(data, key) if key in data else None
        if value is not None:
            return int(value) if key == "num_nodes" else len(value)
    raise ValueError("it does not say how many vertices it has; set data.num_nodes")


def _read_pair(pair: Sequence) -> RawGraph:
    edges, num_nodes = pair
    if num_nodes < 0:
        raise ValueError(f"it has {num_nodes} vertices; expected 0 or more")
    shape = getattr(edges, "shape", None)
    if shape is not None and len(shape) == 2 and shape[0] == 2:
        if shape[1] == 2 and edges[0][1] != edges[1][0]:
            raise ValueError(
                "its edges are a 2 × 2 array, whose rows or columns may be edges; pass a list of "
                "pairs: [(u, v), …]"
            )
        return RawGraph(int(num_nodes), _ends(edges, (2, -1), "the edge list"), once=True)
    if edges is not None and shape is None:
        edges = list(edges)
        if edges and all(isinstance(edge, (tuple, list)) and len(edge) == 3 for edge in edges):
            ends = _ends([edge[:2] for edge in edges], (-1, 2), "the edge list").T
            weights = as_rows([edge[2] for edge in edges], "edge_weight")
            assert weights is not None, "one number an edge"
            return RawGraph(int(num_nodes), ends, once=True, edge_weight=weights[:, 0])
    return RawGraph(int(num_nodes), _ends(edges, (-1, 2), "the edge list").T, once=True)


def _ends(edges: Any, shape: tuple[int, int], what: str) -> np.ndarray:
    """Vertex numbers in the given shape, of which one side is −1 for any number of edges."""
    expected = f"expected integers of shape {str(shape).replace('-1', 'E')}"
    if edges is None:
        raise ValueError(f"{what} is missing; {expected}")
    try:
        array = edges.detach().cpu().numpy() if isinstance(edges, torch.Tensor) else np.array(edges)
    except ValueError:
        raise ValueError(f"{what} has rows of several lengths; {expected}") from None
    if array.size == 0:
        return np.empty((2, 0) if shape[0] == 2 else (0, 2), dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{what} holds values of type {array.dtype}; {expected}")
    if array.ndim != 2 or array.shape[shape.index(2)] != 2:
        raise ValueError(f"{what} has shape {array.shape}; {expected}")
    return array.astype(np.int64)


def _read_sparse(matrix: Any) -> RawGraph:
    if isinstance(matrix, torch.Tensor):
        matrix = _plain(matrix).to_sparse_coo().coalesce()
        _check_matrix(matrix.shape, matrix.values().numpy().dtype)
        row, column = matrix.indices().numpy()
        values = matrix.values().numpy()
    else:
        _check_matrix(matrix.shape, matrix.dtype)
        entries = scipy.sparse.csr_array(matrix, copy=True).tocoo()
        entries.sum_duplicates()
        row, column, values = entries.row, entries.col, entries.data
    return _from_entries(row, column, values, matrix.shape[0])


def _read_dense(matrix: Any) -> RawGraph:
    array = _plain(matrix).numpy() if isinstance(matrix, torch.Tensor) else np.asarray(matrix)
    _check_matrix(array.shape, array.dtype)
    if array.shape == (2, 2) and array.dtype.kind in "iu" and array.tolist() not in _TWO_VERTICES:
        raise ValueError(
            f"it is a 2 × 2 array of whole numbers, {array.tolist()}, which may be an adjacency "
            "matrix or two edges; pass (list of edges, number of vertices), or a matrix of floats"
        )
    row, column = np.nonzero(array)
    return _from_entries(row, column, array[row, column], len(array))


def _plain(matrix: torch.Tensor) -> torch.Tensor:
    """On the CPU, in a type that NumPy has."""
    matrix = matrix.detach().cpu()
    return matrix.float() if matrix.dtype == torch.bfloat16 else matrix


def _from_entries(
    row: np.ndarray, column: np.ndarray, values: np.ndarray, num_nodes: int
) -> RawGraph:
    """A graph from the stored entries of its adjacency matrix; zeros are no edges."""
    filled = np.flatnonzero(values)
    edges = np.stack([row[filled], column[filled]]).astype(np.int64)
    with np.errstate(over="ignore"):
        weight = values[filled].astype(np.float32)
    return RawGraph(num_nodes, edges, once=False, edge_weight=weight)


def _check_matrix(shape: Sequence[int], dtype: np.dtype) -> None:
    expected = "expected a square adjacency matrix of real numbers"
    if len(shape) != 2 or shape[0] != shape[1]:
        edges = ", or edges with the number of vertices: (edges, n)" if 2 in shape else ""
        raise ValueError(f"it is a matrix of shape {tuple(shape)}; {expected}{edges}")
    if dtype.kind not in "biuf":
        raise ValueError(f"it is a matrix of {dtype}; {expected}")


def _is_pair(obj: Any) -> bool:
    return (
        isinstance(obj, (tuple, list))
        and len(obj) == 2
        and isinstance(obj[1], Integral)
        and not isinstance(obj[0], (str, Integral))
    )


def _is_frame(obj: Any) -> bool:
    """Whether an object is a DataFrame of pandas, which is not imported for it."""
    return type(obj).__name__ == "DataFrame" and hasattr(obj, "columns")


def _is_mol(obj: Any) -> bool:
    """Whether an object is a molecule of RDKit, which is not imported for it."""
    return hasattr(obj, "GetAtoms") and hasattr(obj, "GetBonds")


def _read_frame(frame: Any) -> RawGraph:
    """An adjacency matrix whose rows and columns are named alike."""
    names = list(frame.index)
    if list(frame.columns) != names:
        raise ValueError(
            f"it is a DataFrame of {counted(frame.shape[0], 'row')} and "
            f"{counted(frame.shape[1], 'column')} whose names differ; expected an adjacency matrix "
            "with the same names for rows and columns"
        )
    plain = names == list(range(len(names)))
    return replace(_read_dense(frame.to_numpy().astype(float)), names=None if plain else names)


def _is_sparse(obj: Any) -> bool:
    torch_sparse = isinstance(obj, torch.Tensor) and obj.layout is not torch.strided
    return torch_sparse or scipy.sparse.issparse(obj)


_DENSE = _Kind(
    "a dense matrix", lambda obj: isinstance(obj, (np.ndarray, torch.Tensor)), _read_dense
)
_KINDS = (
    _Kind("a networkx graph", lambda obj: isinstance(obj, nx.Graph), _read_networkx),
    _Kind("a PyG Data", lambda obj: isinstance(obj, Data), read_data),
    _Kind("an (edge list, number of vertices) pair", _is_pair, _read_pair),
    _Kind("a sparse matrix", _is_sparse, _read_sparse),
    _DENSE,
    _Kind("a SMILES string", lambda obj: isinstance(obj, str), raw_graph_from_smiles),
    _Kind("a molecule of RDKit", _is_mol, raw_graph_from_mol),
    _Kind("an adjacency matrix in a DataFrame", _is_frame, _read_frame),
)
_TWO_VERTICES = ([[0, 0], [0, 0]], [[0, 1], [1, 0]])  # adjacency matrices that are clear
_CONVERSIONS = {
    ("igraph", ""): "pass graph.to_networkx() instead",
    ("dgl", ""): "pass dgl.to_networkx(graph) instead",
    ("torch_geometric", "HeteroData"): "pass data.to_homogeneous() instead",
    ("torch_sparse", ""): "pass a PyG Data with edge_index, or graph.to_scipy(), instead",
}
