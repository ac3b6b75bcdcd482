"""Bad input, each with its sentence: what is wrong, with which graph, and what was expected."""

import re

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Batch, Data, HeteroData

from softperm.data.graphs import as_graph, as_graphs


def graph_with(field: str, value, at: int = 1) -> nx.Graph:
    """A path of three vertices whose vertices, but for one, have ``x`` or ``label`` of 1."""
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, {v: value if v == at else 1 for v in graph}, field)
    return graph


def edges_with(field: str, value) -> nx.Graph:
    graph = nx.path_graph(3)
    nx.set_edge_attributes(graph, {(0, 1): 1, (1, 2): value}, field)
    return graph


def data_with(**fields) -> Data:
    base = {"edge_index": torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), "num_nodes": 3}
    return Data(**(base | fields))


def incomplete() -> nx.Graph:
    graph = graph_with("x", 1.0)
    del graph.nodes[2]["x"]
    return graph


BAD = {
    "edge too far": (
        ([(0, 1), (3, 12)], 9),
        "edge (3, 12) names vertex 12, but the graph has 9 vertices; vertices are numbered from 0",
    ),
    "negative vertex": (
        ([(0, -1)], 3),
        "edge (0, -1) names vertex -1, but the graph has 3 vertices",
    ),
    "fewer than none": (([], -1), "graph 17: it has -1 vertices"),
    "NaN attribute": (graph_with("x", np.nan), "x of vertex 1 is nan"),
    "infinite attribute": (
        data_with(x=torch.tensor([0.0, 0.0, torch.inf])),
        "x of vertex 2 is inf",
    ),
    "float32 overflow": (graph_with("x", 1e300), "x of vertex 1 is inf in float32"),
    "NaN weight": (edges_with("weight", np.nan), "edge_weight of edge (1, 2) is nan"),
    "NaN in a matrix": (np.array([[0, np.nan], [np.nan, 0]]), "edge_weight of edge (0, 1) is nan"),
    "infinite edge attribute": (edges_with("x", -np.inf), "edge_attr of edge (1, 2) is -inf"),
    "two small weights on one edge": (
        np.array([[0, 1e-9], [3e-9, 0]]),
        "edge (0, 1) has edge_weight 9.999999717180685e-10 in this direction and 3.0000",
    ),
    "rows of two lengths": (data_with(x=[[1, 2], [3], [4]]), "x has rows of several lengths"),
    "a label too large": (
        data_with(label=np.array([1, 2, 2**63 + 5], dtype=np.uint64)),
        "label holds 9223372036854775813; expected less than 2**63",
    ),
    "vectors of two sizes": (
        graph_with("x", [1, 2, 3]),
        "x of vertex 1 has 3 values, but that of vertex 0 has 1",
    ),
    "text for a number": (
        graph_with("x", "C"),
        "x of vertex 1 is 'C'; expected a number or a vector",
    ),
    "missing on a vertex": (incomplete(), "vertex 2 has no x, but 2 others have"),
    "missing on an edge": (
        edges_with("weight", None),
        "edge (1, 2) has no weight, but 2 others have",
    ),
    "fractional label": (
        graph_with("label", 0.5),
        "label of vertex 1 is 0.5; expected an integer or a string",
    ),
    "float labels": (data_with(label=torch.rand(3)), "label is an array of float32"),
    "x too short": (data_with(x=torch.ones(2, 4)), "x has 2 rows, but the graph lists 3 vertices"),
    "edge_attr too short": (
        data_with(edge_attr=torch.ones(3, 4)),
        "edge_attr has 3 rows, but the graph lists 4 edges",
    ),
    "x of three dimensions": (
        data_with(x=torch.ones(3, 2, 2)),
        "x is an array of float32 with 3 dimensions",
    ),
    "complex x": (data_with(x=torch.ones(3, dtype=torch.complex64)), "x is an array of complex64"),
    "vector weights": (data_with(edge_weight=torch.ones(4, 2)), "edge_weight has 2 values an edge"),
    "float edge_index": (
        data_with(edge_index=torch.rand(2, 4)),
        "edge_index holds values of type float32; expected integers of shape (2, E)",
    ),
    "transposed edge_index": (
        data_with(edge_index=torch.ones(4, 2).long()),
        "edge_index has shape (4, 2)",
    ),
    "no edge_index": (Data(num_nodes=3), "edge_index is missing"),
    "unknown size": (
        Data(edge_index=torch.tensor([[0, 1], [1, 0]])),
        "graph 17: it does not say how many vertices it has; set data.num_nodes",
    ),
    "a batch": (
        Batch.from_data_list([data_with(), data_with()]),
        "graph 17: it is a Batch of 2 graphs; pass batch.to_data_list()",
    ),
    "ragged edge list": (([(0, 1), (1, 2, 3)], 4), "the edge list has rows of several lengths"),
    "rows of four": (
        ([(0, 1, 2, 3)], 4),
        "the edge list has shape (1, 4); expected integers of shape (E, 2)",
    ),
    "named vertices in a pair": (([("a", "b")], 2), "the edge list holds values of type <U1"),
    "rectangular matrix": (
        np.ones((2, 3)),
        "graph 17: it is a matrix of shape (2, 3); expected a square",
    ),
    "rectangular sparse": (
        scipy.sparse.csr_array((2, 3)),
        "graph 17: it is a matrix of shape (2, 3)",
    ),
    "a vector": (np.ones(3), "graph 17: it is a matrix of shape (3,)"),
    "complex matrix": (np.ones((2, 2), dtype=complex), "graph 17: it is a matrix of complex128"),
    "matrix of objects": (np.array([[None, 1], [1, None]]), "graph 17: it is a matrix of object"),
    "not SMILES": ("hello world", "'hello world' is not valid SMILES"),
    "empty SMILES": ("", "'' is not valid SMILES"),
    "unknown type": (3.5, "graph 17: it is a float; expected one of: a networkx graph, a PyG Data"),
    "HeteroData": (
        HeteroData(),
        "graph 17: it is a HeteroData of torch_geometric; pass",
    ),
    "None": (None, "graph 17: it is a NoneType"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_graph_is_named_with_what_is_wrong(case):
    obj, message = BAD[case]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        as_graph(obj, 17)
    assert str(caught.value).startswith("graph 17")
    assert "\n" not in str(caught.value)


def test_vertices_are_named_as_the_user_names_them():
    graph = nx.relabel_nodes(graph_with("x", np.nan), {0: "a", 1: "b", 2: "c"})
    with pytest.raises(ValueError, match="the graph: x of vertex 'b' is nan"):
        as_graph(graph)


def path(x=None) -> nx.Graph:
    graph = nx.path_graph(3)
    if x is not None:
        nx.set_node_attributes(graph, x, "x")
    return graph


BAD_LISTS = {
    "nothing": ([], "expected a list of graphs, got an empty list"),
    "one Data": (data_with(), "expected a list of graphs, got a PyG Data by itself"),
    "one graph": (path(), "expected a list of graphs, got a networkx graph by itself"),
    "one pair": (([(0, 1)], 2), "got an (edge list, number of vertices) pair by itself"),
    "one string": ("CCO", "got a SMILES string by itself"),
    "one matrix": (np.eye(2), "got a dense matrix by itself"),
    "a batch": (Batch.from_data_list([data_with()]), "got a PyG Batch; pass batch.to_data_list()"),
    "a dict": ({"a": path()}, "expected a list of graphs, got a dict"),
    "a number": (3, "expected a list of graphs, got an int"),
    "two kinds": (
        [path(), path(), data_with()],
        "graph 2: it is a PyG Data, but graph 0 is a networkx graph",
    ),
    "two sizes": (
        [path([1.0, 2.0]), path(1.0), path([3.0, 4.0])],
        "graph 1: it has x of 1 value a vertex, but 2 other graphs have x of 2 values a vertex",
    ),
    "odd one first": (
        [path(), path(1.0), path(1.0)],
        "graph 0: it has no x, but 2 other graphs have x of 1 value",
    ),
    "one without": (
        [path(1.0), path()],
        "graph 1: it has no x, but 1 other graph has x of 1 value",
    ),
    "edges alike": (
        [edges_with("x", 1), edges_with("x", 2), path()],
        "graph 2: it has no edge_attr, but 2 other",
    ),
    "second is bad": ([path(), nx.DiGraph([(0, 1)])], "graph 1: edge (0, 1) is listed in one"),
}


@pytest.mark.parametrize("case", BAD_LISTS)
def test_a_bad_list_is_refused_with_what_is_wrong(case):
    objs, message = BAD_LISTS[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        as_graphs(objs)
