"""Attributes under the user's names: they are read on request, and unused ones are reported."""

import json
import warnings

import networkx as nx
import numpy as np
import pytest
import torch
from samples import run_command
from torch_geometric.data import Data

from softperm import PiGNNClassifier
from softperm.data.formats import read_graphs
from softperm.data.graphs import as_graph, as_graphs
from softperm.estimators.pignn import UniformPermutationsWarning
from softperm.settings import FieldNames

EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def chain(element: str = "N") -> nx.Graph:
    """Three atoms in a row, with attributes of other names than ours."""
    graph = nx.path_graph(3)
    for v, symbol in enumerate((element, "C", "C")):
        graph.nodes[v].update(element=symbol, charge=0.5 * v, place=[v, 1.5])
    for edge in graph.edges:
        graph.edges[edge].update(bond="single", length=1.25)
    return graph


def test_attributes_that_are_not_used_are_named_with_the_settings_that_use_them():
    with pytest.warns(UserWarning, match="not used") as told:
        as_graphs([chain(), chain("O")])
    vertices, edges = (str(warning.message) for warning in told)
    assert "not used: element (such as 'N'), charge (such as 0.0), place" in vertices
    assert vertices.endswith("set vertex_labels=element and vertex_attributes=charge,place")
    assert edges.endswith("set edge_labels=bond and edge_attributes=length")


def test_the_settings_of_the_warning_read_these_attributes():
    fields = FieldNames("element", "charge,place", ["bond"], "length")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = as_graph(chain(), fields=fields)
    assert graph.label == ["N", "C", "C"]
    assert graph.x.tolist() == [[0, 0, 1.5], [0.5, 1, 1.5], [1, 2, 1.5]]
    assert graph.edge_label == ["single"] * 4
    assert graph.edge_attr.tolist() == [[1.25]] * 4


def test_several_labels_are_columns_of_one_vocabulary_each():
    graph = chain()
    nx.set_node_attributes(graph, {0: 1, 1: 2, 2: 1}, "ring")
    read = as_graph(graph, fields=FieldNames(vertex_labels="element,ring", edge_labels=""))
    assert read.label == [("N", 1), ("C", 2), ("C", 1)]
    model = PiGNNClassifier(latent_vertices=2, epochs=1, progress=False, edge_labels=[])
    model.set_params(vertex_labels=["element", "ring"], validation_fraction=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UniformPermutationsWarning)
        model.fit([graph, graph], [0, 1])
    assert model.vocabulary_.labels == (("C", "N"), (1, 2))


def test_fields_of_pyg_under_other_names_are_named_and_read():
    data = Data(edge_index=EDGES, z=torch.tensor([6, 8, 6]), pos=torch.randn(3, 3), num_nodes=3)
    data.edge_type, data.y = torch.ones(4, dtype=torch.long), torch.tensor([1.0])
    with pytest.warns(UserWarning, match="not used") as told:
        as_graphs([data])
    assert [str(warning.message).split("set ")[1] for warning in told] == [
        "vertex_labels=z and vertex_attributes=pos; distance_bins reads pos as positions",
        "edge_labels=edge_type",
    ]
    graph = as_graph(data, fields=FieldNames("z", "pos", "edge_type"))
    assert graph.label.tolist() == [6, 8, 6]
    assert torch.equal(graph.x, data.pos)
    assert graph.edge_label.tolist() == [1] * 4


def test_whole_numbers_in_x_may_be_codes():
    data = Data(edge_index=EDGES, x=torch.tensor([[6], [8], [6]]))
    with pytest.warns(UserWarning, match=r"2 distinct whole numbers \(6, 8, …\).*vertex_labels=x"):
        as_graphs([data])
    assert as_graph(data, fields=FieldNames(vertex_labels="x")).label.tolist() == [6, 8, 6]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_graph(data, fields=FieldNames(vertex_attributes="x"))
        as_graph(Data(edge_index=EDGES, x=torch.eye(3).long()))  # one-hot vectors


def test_a_name_that_a_graph_does_not_have_is_answered_with_those_it_has():
    message = "graph 1: it has no vertex attribute 'atom'; its vertex attributes are: element"
    with pytest.raises(ValueError, match=message):
        as_graphs([NAMED, chain()], fields=ATOM)


ATOM = FieldNames(vertex_labels="atom", vertex_attributes=(), edge_labels=(), edge_attributes=())
NAMED = nx.path_graph(2)
nx.set_node_attributes(NAMED, "C", "atom")


@pytest.fixture
def lines(tmp_path):
    """Molecules whose class is the element of their first atom."""
    path = tmp_path / "chains.jsonl"
    graphs = [nx.node_link_data(chain("NO"[k % 2]), edges="links") for k in range(24)]
    rows = [json.dumps(graph | {"y": k % 2}) for k, graph in enumerate(graphs)]
    path.write_text("\n".join(rows))
    return path


def test_a_file_is_read_by_names_and_a_model_remembers_them(lines, tmp_path):
    with pytest.warns(UserWarning, match=r"(vertex_labels=element)|(edge_labels=bond)"):
        assert "label" not in read_graphs(lines).graphs[0]
    names = ["--vertex-labels", "element", "--vertex-attributes", "place", "--edge-labels", "bond"]
    names += ["--edge-attributes", ""]
    options = ["--epochs", "60", "--latent-vertices", "3", "--no-progress", "--json"]
    options += [
        "--encoded",
        "none",
        "--permute-by",
        "mixed",
    ]  # vectors with the attributes themselves
    done = run_command("train", lines, "--out", tmp_path / "run", *names, *options)
    assert done.exit_code == 0, done.output
    assert "not used" not in done.stderr
    assert json.loads(done.stdout)["test_score"] == 1
    done = run_command("predict", tmp_path / "run", lines, "--out", tmp_path / "p.csv", "--json")
    assert json.loads(done.stdout)["score"] == 1
    names = PiGNNClassifier.load(tmp_path / "run" / "model").get_feature_names_out().tolist()
    assert {"element_0_N", "attribute_2_place_1", "edge_bond_0_1_single"} <= set(names)


INPUTS = {
    "rows of edges": ([(0, 1), (1, 2)], 3),
    "a (2, E) array": (np.array([[0, 1, 1], [1, 2, 0]]), 3),
    "triples with weights": ([(0, 1, 1.0), (1, 2, 1.0)], 3),
}


@pytest.mark.parametrize("case", INPUTS)
def test_edges_are_read_in_every_usual_form(case):
    if case == "a (2, E) array":
        with pytest.raises(ValueError, match=r"edge \(1, 2\) is listed in one direction only"):
            as_graph(INPUTS[case])
        graph = as_graph((np.array([[0, 1, 1, 2], [1, 0, 2, 1]]), 3))
    else:
        graph = as_graph(INPUTS[case])
    assert torch.equal(graph.edge_index, EDGES)
    assert "edge_weight" not in graph


def test_weights_of_an_edge_list_are_weights():
    assert as_graph(([(0, 1, 2.5), (1, 2, 4)], 3)).edge_weight.tolist() == [2.5, 2.5, 4, 4]


def test_a_molecule_of_rdkit_is_the_graph_of_its_smiles():
    chem = pytest.importorskip("rdkit.Chem")
    mol, text = as_graph(chem.MolFromSmiles("C=CO")), as_graph("C=CO")
    assert mol.label == text.label == ["C", "C", "O"]
    assert mol.edge_label == text.edge_label
    assert torch.equal(mol.edge_index, text.edge_index)


def test_a_data_frame_is_an_adjacency_matrix_if_rows_and_columns_are_named_alike():
    pandas = pytest.importorskip("pandas")
    names = ["a", "b", "c"]
    matrix = [[0, 1, 0], [1, 0, 2], [0, 2, 0]]
    frame = pandas.DataFrame(matrix, index=names, columns=names)
    assert as_graph(frame).edge_weight.tolist() == [1, 1, 2, 2]
    with pytest.raises(ValueError, match="got a DataFrame with the columns size, smiles"):
        as_graphs(pandas.DataFrame({"size": [1], "smiles": ["C"]}))
    with pytest.raises(ValueError, match="3 rows and 3 columns whose names differ"):
        as_graph(pandas.DataFrame(matrix, columns=names))


class Graph:
    """Stands for a graph of igraph."""

    __module__ = "igraph"


REFUSED = {
    "a 2 × 2 array": (np.array([[0, 1], [1, 2]]), "may be an adjacency matrix or two edges"),
    "a 2 × 2 pair": ((np.array([[0, 1], [2, 0]]), 3), "whose rows or columns may be edges"),
    "edges alone": (np.array([[0, 1, 2], [1, 2, 0]]), "or edges with the number of vertices"),
    "igraph": (Graph(), "it is a Graph of igraph; pass graph.to_networkx() instead"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_mean_two_things_is_refused_with_the_way_to_say_it(case):
    graph, message = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        as_graph(graph)
    assert message in str(caught.value)


def test_two_vertices_with_or_without_an_edge_are_a_matrix():
    assert as_graph(np.array([[0, 1], [1, 0]])).edge_index.tolist() == [[0, 1], [1, 0]]
    assert as_graph(np.zeros((2, 2), dtype=int)).num_nodes == 2
    assert as_graph(np.array([[0, 2.5], [2.5, 0]])).edge_weight.tolist() == [2.5, 2.5]


def test_a_dataset_without_an_iterator_is_a_list_of_graphs():
    class Two:
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return Data(edge_index=EDGES, num_nodes=3 + range(2)[i])

    assert [graph.num_nodes for graph in as_graphs(Two())] == [3, 4]
