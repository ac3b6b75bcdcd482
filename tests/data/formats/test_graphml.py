"""GraphML: what NetworkX writes is read back, and bad files are named."""

import io
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softperm.data.formats import read_graphs
from softperm.data.formats.graphml import read_graphml
from softperm.data.formats.shards import canonical_graph
from softperm.data.formats.tables import Unreadable
from softperm.data.graphs import as_graph
from softperm.errors import errors_about_graph


def read(text: str):
    record = read_graphml(io.BytesIO(text.encode()), "a.graphml")
    with errors_about_graph(0, record.where):
        if isinstance(record, Unreadable):
            raise record.error(0)
        return canonical_graph(record, symmetrise=False)[0], record.targets


def text_of(graph: nx.Graph) -> str:
    return "\n".join(nx.generate_graphml(graph))


def wrapped(inside: str, keys: str = "") -> str:
    space = "http://graphml.graphdrawing.org/xmlns"
    return (
        f'<graphml xmlns="{space}">{keys}<graph edgedefault="undirected">{inside}</graph></graphml>'
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6))
def test_what_networkx_writes_is_read_as_networkx_holds_it(n, seed):
    rng = np.random.default_rng(seed)
    graph = nx.relabel_nodes(nx.gnp_random_graph(n, 0.5, seed=seed), lambda v: f"v{v}")
    for v in graph:
        graph.nodes[v].update(label=f"<{rng.integers(3)}>", x=float(rng.normal()))
    for edge in graph.edges:
        graph.edges[edge].update(label=int(rng.integers(3)), weight=float(rng.uniform(2, 3)))
    found, wanted = read(text_of(graph))[0], as_graph(graph)
    assert found.to_dict().keys() == wanted.to_dict().keys()
    assert found.edge_index.equal(wanted.edge_index)
    assert found.x.equal(wanted.x)
    assert found.label == wanted.label
    if graph.edges:
        assert found.edge_weight.equal(wanted.edge_weight)
        assert found.edge_label.equal(wanted.edge_label)


@pytest.mark.parametrize(
    "written", ["0.5 1 -2e3", "0.5, 1, -2e3", "[0.5, 1, -2e3]", " 0.5\n1\t-2e3 "]
)
def test_a_string_of_numbers_is_a_vector(written):
    graph = nx.path_graph(1)
    graph.nodes[0]["x"] = written
    assert read(text_of(graph))[0].x.tolist() == [[0.5, 1.0, -2000.0]]


def test_defaults_fill_in_missing_data():
    keys = (
        '<key id="k" for="node" attr.name="label" attr.type="string"><default>C</default></key>'
        '<key id="w" for="edge" attr.name="weight" attr.type="double"><default>2</default></key>'
    )
    nodes = '<node id="a"/><node id="b"><data key="k">N</data></node>'
    graph, _ = read(wrapped(nodes + '<edge source="a" target="b"/>', keys))
    assert graph.label == ["C", "N"]
    assert graph.edge_weight.tolist() == [2.0, 2.0]


def test_types_are_those_the_file_declares():
    kinds = {
        "boolean": "true",
        "int": "3",
        "long": "4",
        "float": "0.5",
        "double": "1.5",
        "string": "s",
    }
    keys = "".join(f'<key id="{k}" for="graph" attr.name="{k}" attr.type="{k}"/>' for k in kinds)
    data = "".join(f'<data key="{k}">{v}</data>' for k, v in kinds.items())
    _, targets = read(wrapped(data + '<node id="a"/>', keys))
    assert targets == {
        "boolean": 1,
        "int": 3,
        "long": 4,
        "float": 0.5,
        "double": 1.5,
        "string": "s",
    }


def folder(path: Path, table: str | None = None, **graphs: nx.Graph) -> Path:
    path.mkdir()
    for name, graph in graphs.items():
        (path / f"{name}.graphml").write_text(text_of(graph))
    if table is not None:
        (path / "targets.csv").write_text(table)
    return path


def test_targets_may_stand_in_a_table_beside_the_files(tmp_path):
    table = "file,y,kind\nb.graphml,1,ring\na,0.5,\n"
    graphs = {"a": nx.path_graph(2), "b": nx.cycle_graph(3), "c": nx.path_graph(4)}
    read_back = read_graphs(folder(tmp_path / "g", table, **graphs))
    assert read_back.ids == ("a", "b", "c")
    np.testing.assert_array_equal(read_back.targets["y"], [0.5, 1.0, np.nan])
    assert read_back.targets["kind"].tolist() == ["", "ring", ""]


def test_files_of_one_name_are_distinguished_by_their_folders(tmp_path):
    place = folder(tmp_path / "g", c=nx.path_graph(4))
    for name, graph in (("a", nx.path_graph(2)), ("b", nx.cycle_graph(3))):
        folder(place / name, one=graph)
    table = place / "targets.csv"
    table.write_text("file,y\nb/one.GraphML,1\na/one,0\nc,2\n")
    read_back = read_graphs(place)
    sizes = {"a/one": 2, "b/one": 3, "c": 4}
    assert dict(zip(read_back.ids, (g.num_nodes for g in read_back.graphs), strict=True)) == sizes
    assert dict(zip(read_back.ids, read_back.targets["y"].tolist(), strict=True)) == {
        "a/one": 0, "b/one": 1, "c": 2,
    }  # fmt: skip
    folder(place / "d", c=nx.path_graph(5))
    table.write_text("file,y\nelsewhere/g/b/one.graphml,1\nc.graphml,2\nd/c,3\n")
    read_back = read_graphs(place)
    learnt = dict(zip(read_back.ids, read_back.targets["y"].tolist(), strict=True))
    assert (learnt["b/one"], learnt["c"], learnt["d/c"]) == (1, 2, 3)
    table.write_text("file,y\none,1\n")
    message = "line 2 names 'one', which may be a/one.graphml or b/one.graphml: name the folder too"
    with pytest.raises(ValueError, match=message):
        read_graphs(place)


def test_targets_may_be_data_of_the_graphs(tmp_path):
    graphs = {"a": nx.path_graph(2, create_using=nx.Graph), "b": nx.cycle_graph(3)}
    for name, graph in graphs.items():
        graph.graph.clear()
        graph.graph["y"] = name
    read_back = read_graphs(folder(tmp_path / "g", **graphs), target=["y"])
    assert read_back.targets["y"].tolist() == ["a", "b"]


def test_one_file_is_a_collection_of_one(tmp_path):
    (tmp_path / "ring.graphml").write_text(text_of(nx.cycle_graph(5)))
    read_back = read_graphs(tmp_path / "ring.graphml")
    assert (read_back.name, read_back.ids) == ("ring", ("ring",))
    assert read_back.graphs[0].num_nodes == 5


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("name,y\na,1\n", "targets.csv: expected a column 'file'"),
        ("file,y\na,1\nz,2\n", "targets.csv line 3 names 'z', but there is no such file"),
        ("file,y\na,1\na.graphml,2\n", "targets.csv line 3 names 'a.graphml', twice"),
    ],
)
def test_a_bad_table_is_named_with_its_line(tmp_path, table, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_graphs(folder(tmp_path / "g", table, a=nx.path_graph(2)))


INT = '<key id="k" for="node" attr.name="label" attr.type="int"/>'
BAD = {
    "not XML": ("graph", "a.graphml: it is not well-formed XML"),
    "cut short": (wrapped("")[:40], "a.graphml: it is not well-formed XML"),
    "other XML": ("<html/>", "a.graphml: expected GraphML with one graph in it, found 0"),
    "two graphs": ("<graphml><graph/><graph/></graphml>", "one graph in it, found 2"),
    "hyperedge": (wrapped("<hyperedge/>"), "a.graphml: it contains a hyperedge"),
    "port": (wrapped('<node id="a"><port name="p"/></node>'), "a.graphml: it contains a port"),
    "nested": (wrapped('<node id="a"><graph/></node>'), "a.graphml: it contains a nested graph"),
    "no id": (wrapped("<node/>"), "a.graphml: node without 'id'"),
    "same id": (wrapped('<node id="a"/><node id="a"/>'), "a.graphml: vertex 'a' is listed twice"),
    "missing vertex": (
        wrapped('<node id="a"/><edge source="a" target="b"/>'),
        "edge ('a', 'b') names vertex 'b', which is not among the 1 nodes",
    ),
    "wrong type": (
        wrapped('<node id="a"><data key="k">x</data></node>', INT),
        "label of node a is 'x', which is not of the type",
    ),
    "unknown type": (wrapped("", INT.replace("int", "colour")), "key 'k' has type 'colour'"),
    "NaN": (
        wrapped(
            '<node id="a"><data key="k">nan</data></node>',
            INT.replace("label", "x").replace("int", "double"),
        ),
        "a.graphml: x of vertex 'a' is nan",
    ),
    "entity bomb": (
        '<!DOCTYPE g [<!ENTITY a "'
        + "x" * 5000
        + '"><!ENTITY b "'
        + "&a;" * 2000
        + '"><!ENTITY c "'
        + "&b;" * 2000
        + '">]><graphml>&c;</graphml>',
        "a.graphml: it is not well-formed XML",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_named(case):
    text, message = BAD[case]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read(text)
    assert str(caught.value).startswith("a.graphml")
