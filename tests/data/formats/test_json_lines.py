"""JSON Lines: what NetworkX writes is read back, and a bad line is named."""

import json
import re

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softperm.data.formats import read_graphs
from softperm.data.formats.json_lines import json_records
from softperm.data.formats.shards import canonical_graph
from softperm.data.graphs import as_graph


def read(*lines: str) -> list:
    return list(json_records("g.jsonl", "", 1, "\n".join(lines).encode()))


def line(graph: nx.Graph, edges: str = "links", **beside) -> str:
    return json.dumps(nx.node_link_data(graph, edges=edges) | beside)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6), st.sampled_from(["links", "edges"]))
def test_what_networkx_writes_is_read_as_networkx_holds_it(n, seed, edges):
    rng = np.random.default_rng(seed)
    graph = nx.relabel_nodes(nx.gnp_random_graph(n, 0.5, seed=seed), lambda v: f"v{v}")
    for v in graph:
        graph.nodes[v].update(label=str(rng.integers(3)), x=rng.normal(size=2).tolist())
    for edge in graph.edges:
        graph.edges[edge].update(label=int(rng.integers(3)), x=1.5, weight=float(rng.uniform(2, 3)))
    (record,) = read(line(graph, edges))
    found, wanted = canonical_graph(record, symmetrise=False)[0], as_graph(graph)
    assert found.to_dict().keys() == wanted.to_dict().keys()
    assert found.edge_index.equal(wanted.edge_index)
    assert found.x.equal(wanted.x)
    assert found.label == wanted.label
    if graph.edges:
        assert found.edge_weight.equal(wanted.edge_weight)
        assert found.edge_attr.equal(wanted.edge_attr)
        assert found.edge_label.equal(wanted.edge_label)


def test_targets_come_from_the_graph_or_stand_beside_it():
    graph = nx.path_graph(2)
    graph.graph.update(toxic=True, name="a", table={"left": "aside"})
    (record,) = read(line(graph, target=1.5, y=[0, None]))
    assert record.targets == {"toxic": True, "name": "a", "target": 1.5, "y_0": 0, "y_1": None}
    (record,) = read(line(nx.path_graph(2), y={"mass": 3, "kind": "x"}))
    assert record.targets == {"mass": 3, "kind": "x"}


def test_missing_targets_are_missing_values(tmp_path):
    lines = [line(nx.path_graph(2), y=1), line(nx.path_graph(2)), line(nx.path_graph(2), y=None)]
    (tmp_path / "g.jsonl").write_text("\n".join(lines))
    read_back = read_graphs(tmp_path / "g.jsonl")
    np.testing.assert_array_equal(read_back.targets["y"], [1.0, np.nan, np.nan])
    assert read_back.ids == ("1", "2", "3")


def test_a_matrix_of_one_row_is_its_row():
    (record,) = read('{"nodes": [{"id": 0}], "links": [], "y": [[0.5, 1.5]]}')
    assert record.targets == {"y_0": 0.5, "y_1": 1.5}


def test_blank_lines_count_but_hold_nothing():
    assert [r.where for r in read(line(nx.path_graph(1)), "", line(nx.path_graph(2)), "")] == [
        "g.jsonl line 1",
        "g.jsonl line 3",
    ]


def test_parallel_links_are_duplicates():
    graph = nx.MultiGraph([(0, 1), (0, 1)])
    (record,) = read(line(graph))
    assert canonical_graph(record, symmetrise=False)[1].duplicates == 1


GOOD = '{"nodes": [{"id": 0}], "links": []}'
BAD = {
    "not JSON": ("{nodes}", "g.jsonl line 2: it is not JSON"),
    "cut short": ('{"nodes": [{"id": 0}', "g.jsonl line 2: it is not JSON"),
    "too deep": ("[" * 100_000, "g.jsonl line 2: it is not JSON"),
    "a number without end": ("9" * 5000, "g.jsonl line 2: it is not JSON"),
    "not an object": ("[1]", "g.jsonl line 2: it is not a node-link graph; expected an object"),
    "no nodes": ('{"links": []}', "expected a list of objects under 'nodes'"),
    "no links": ('{"nodes": []}', "expected a list of objects under 'links' or 'edges'"),
    "both": ('{"nodes": [], "links": [], "edges": []}', "under 'links' or 'edges'"),
    "numbers for nodes": ('{"nodes": [1], "links": []}', "a list of objects under 'nodes'"),
    "no id": ('{"nodes": [{}], "links": []}', "g.jsonl line 2: node 0 has no usable 'id'"),
    "same id": (
        '{"nodes": [{"id": 1}, {"id": 1}], "links": []}',
        "line 2: vertex 1 is listed twice",
    ),
    "no source": (
        '{"nodes": [{"id": 1}], "links": [{"target": 1}]}',
        "line 2: link 0 has no usable 'source'",
    ),
    "missing vertex": (
        '{"nodes": [{"id": "a"}], "links": [{"source": "a", "target": "b"}]}',
        "line 2: edge ('a', 'b') names vertex 'b', which is not among the 1 nodes",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_named_and_the_next_is_read(case):
    text, message = BAD[case]
    good, bad, last = read(GOOD, text, GOOD)
    assert re.search(re.escape(message), str(bad.error(1)))
    assert str(bad.error(1)).startswith("g.jsonl line 2: ")
    assert (good.id, last.id) == ("1", "3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"nodes": [{"id": 0, "x": "a"}], "links": []}', "g.jsonl line 1: x of vertex 0 is 'a'"),
        ('{"nodes": [{"id": 0, "x": NaN}], "links": []}', "g.jsonl line 1: x of vertex 0 is nan"),
    ],
)
def test_an_unusable_graph_is_named_by_its_line(tmp_path, text, message):
    (tmp_path / "g.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_graphs(tmp_path / "g.jsonl")
