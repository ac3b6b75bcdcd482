"""Reading whatever is at a path: formats told apart, compressed or zipped, and bad files named."""

import gzip
import json
import lzma
import os
import zipfile
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from softperm.data.formats import read_graphs
from softperm.data.graphs import as_graphs
from softperm.data.vocabulary import Vocabulary

TABLE = "smiles,active\nCCO,1\nC#N,0\nc1ccccc1,1\n"
LINES = "".join(
    json.dumps(nx.node_link_data(nx.path_graph(n), edges="links") | {"y": n % 2}) + "\n"
    for n in (2, 3, 4)
)
TU = {
    "TOY_A.txt": "1, 2\n2, 1\n3, 4\n4, 3\n",
    "TOY_graph_indicator.txt": "1\n1\n2\n2\n",
    "TOY_graph_labels.txt": "1\n-1\n",
    "TOY_graph_attributes.txt": "0.5, 1\n1.5, 2\n",
    "TOY_node_labels.txt": "0\n1\n1\n0\n",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def zipped(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def graphml(graph: nx.Graph) -> str:
    return "\n".join(nx.generate_graphml(graph))


GRAPHML = {"a.graphml": graphml(nx.path_graph(2)), "b.graphml": graphml(nx.cycle_graph(3))}


@pytest.mark.parametrize(
    ("name", "opened"), [("t.csv", open), ("t.csv.gz", gzip.open), ("t.CSV.XZ", lzma.open)]
)
def test_a_table_may_be_compressed(tmp_path, name, opened):
    with opened(tmp_path / name, "wt") as stream:
        stream.write(TABLE)
    read = read_graphs(tmp_path / name)
    assert [graph.num_nodes for graph in read.graphs] == [3, 2, 6]
    assert read.targets["active"].tolist() == [1, 0, 1]
    assert read.ids == ("CCO", "C#N", "c1ccccc1")
    assert read.name == "t"


@pytest.mark.parametrize(
    ("files", "sizes", "targets"),
    [
        ({"d/mols.csv": TABLE}, [3, 2, 6], {"active": [1, 0, 1]}),
        ({"d/graphs.jsonl": LINES}, [2, 3, 4], {"y": [0, 1, 0]}),
        (GRAPHML, [2, 3], {}),
        (
            {f"TOY/{name}": text for name, text in TU.items()},
            [2, 2],
            {
                "graph_label": [1, -1],
                "graph_attribute_0": [0.5, 1.5],
                "graph_attribute_1": [1.0, 2.0],
            },
        ),
    ],
)
def test_a_zip_is_read_as_what_it_holds(tmp_path, files, sizes, targets):
    read = read_graphs(zipped(tmp_path / "data.zip", files))
    assert [graph.num_nodes for graph in read.graphs] == sizes
    assert {name: values.tolist() for name, values in read.targets.items()} == targets
    assert len(read.ids) == len(sizes)


def test_a_folder_is_read_as_what_it_holds(tmp_path):
    tu = read_graphs(write(tmp_path / "TOY", TU), target=["target"])
    assert tu.targets["target"].tolist() == [1, -1]
    assert list(tu.targets) == ["target"]
    assert [graph.label.tolist() for graph in tu.graphs] == [[0, 1], [1, 0]]
    assert tu.name == "TOY"
    folder = read_graphs(write(tmp_path / "rings", GRAPHML))
    assert (folder.name, folder.ids) == ("rings", ("a", "b"))
    assert [
        graph.num_nodes for graph in read_graphs(write(tmp_path / "l", {"x.jsonl": LINES})).graphs
    ]


def test_every_format_holds_the_same_graphs(tmp_path):
    graphs = [nx.gnp_random_graph(n, 0.6, seed=n) for n in (3, 5, 8)]
    lines = "".join(json.dumps(nx.node_link_data(g, edges="edges")) + "\n" for g in graphs)
    write(tmp_path / "j", {"g.jsonl": lines})
    write(tmp_path / "x", {f"{i}.graphml": graphml(g) for i, g in enumerate(graphs)})
    both = [sorted({*g.edges, *((v, u) for u, v in g.edges)}) for g in graphs]
    start = [1, 4, 9]
    edges = [(u + s, v + s) for s, listed in zip(start, both, strict=True) for u, v in listed]
    tu = {
        "T_A.txt": "".join(f"{u}, {v}\n" for u, v in edges),
        "T_graph_indicator.txt": "1\n" * 3 + "2\n" * 5 + "3\n" * 8,
    }
    write(tmp_path / "t", tu)
    for wanted, *found in zip(
        as_graphs(graphs), *(read_graphs(tmp_path / f).graphs for f in "jxt"), strict=True
    ):
        for graph in found:
            assert graph.edge_index.equal(wanted.edge_index)
            assert graph.num_nodes == wanted.num_nodes


def test_progress_is_reported_for_every_graph(tmp_path):
    told = []
    write(tmp_path / "g", GRAPHML)
    read_graphs(tmp_path / "g", progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def test_only_requested_targets_must_exist(tmp_path):
    (tmp_path / "t.csv").write_text("SMILES\nCCO\n")
    assert read_graphs(tmp_path / "t.csv").targets == {}
    with pytest.raises(ValueError, match=r"t.csv has no target 'y'; its targets are: none"):
        read_graphs(tmp_path / "t.csv", target=["y"])
    (tmp_path / "t.csv").write_text(TABLE)
    with pytest.raises(ValueError, match=r"no target 'y'; its targets are: active"):
        read_graphs(tmp_path / "t.csv", target="y")
    assert list(read_graphs(tmp_path / "t.csv", target=[]).targets) == []


def test_tu_targets_that_are_missing_are_listed(tmp_path):
    with pytest.raises(ValueError, match="no target 'toxic'; its targets are: graph_label, t"):
        read_graphs(write(tmp_path / "TOY", TU), target=["toxic"])


def test_directed_files_need_symmetrise(tmp_path):
    one_way = TU | {"TOY_A.txt": "1, 2\n4, 3\n"}
    lines = json.dumps(nx.node_link_data(nx.DiGraph([(0, 1)]), edges="links"))
    write(tmp_path / "t", one_way)
    write(tmp_path / "j", {"d.jsonl": lines})
    write(tmp_path / "g", {"d.graphml": graphml(nx.DiGraph([(0, 1)]))})
    for name in "tjg":
        with pytest.raises(ValueError, match="set symmetrise"):
            read_graphs(tmp_path / name)
        found = read_graphs(tmp_path / name, symmetrise=True).graphs[0]
        assert found.edge_index.tolist() == [[0, 1], [1, 0]]


def test_removed_edges_of_a_file_are_counted_in_one_warning(tmp_path):
    noisy = TU | {"TOY_A.txt": "1, 2\n2, 1\n3, 4\n4, 3\n1, 1\n1, 2\n2, 1\n"}
    with pytest.warns(UserWarning, match="1 self-loop and 2 duplicates") as caught:
        read_graphs(write(tmp_path / "TOY", noisy))
    assert len(caught) == 1
    line = '{"nodes": [{"id": 0}, {"id": 1}], "links": [{"source": 0, "target": 1}, '
    line += '{"source": 0, "target": 1}, {"source": 0, "target": 0}]}\n'
    (tmp_path / "d.jsonl").write_text(line * 2)
    with pytest.warns(
        UserWarning, match="2 self-loops and 2 duplicate edges from 2 of 2"
    ) as caught:
        read_graphs(tmp_path / "d.jsonl")
    assert len(caught) == 1


def test_unequal_graphs_are_named_by_their_place_in_the_file(tmp_path):
    plain = json.dumps({"nodes": [{"id": 0}], "links": []})
    other = json.dumps({"nodes": [{"id": 0, "x": 1.5}], "links": []})
    (tmp_path / "d.jsonl").write_text(f"{plain}\n{plain}\n{other}\n")
    with pytest.raises(
        ValueError, match=r"d.jsonl line 3: it has x of 1 value .* 2 other graphs have no"
    ):
        read_graphs(tmp_path / "d.jsonl")


def test_attributes_of_a_tu_folder_that_are_not_finite_are_named(tmp_path):
    files = TU | {"TOY_node_attributes.txt": "1.0\n2.0\n3.0\nnan\n"}
    with pytest.raises(
        ValueError, match=r"graph 1: TOY_node_attributes.txt gives vertex 1 a value"
    ):
        read_graphs(write(tmp_path / "TOY", files))


def test_a_missing_path_is_an_error(tmp_path):
    for name in ("none.csv", "none.zip", "none"):
        with pytest.raises(ValueError, match=f"{name}.*(cannot be read: No such|no such)"):
            read_graphs(tmp_path / name)


def test_unknown_formats_are_answered_with_the_known_ones(tmp_path):
    (tmp_path / "graphs.pickle").write_bytes(b"\x80")
    with pytest.raises(
        ValueError, match=r"is not in a known format; expected a folder or zip in TUDataset"
    ):
        read_graphs(tmp_path / "graphs.pickle")
    write(tmp_path / "empty", {})
    with pytest.raises(ValueError, match="holds no graphs in a known format; expected one dataset"):
        read_graphs(tmp_path / "empty")


MOLECULE = {"a.csv": TABLE}
DRAWING = {"one.graphml": graphml(nx.path_graph(3)), "targets.csv": "file,y\none,1\n"}


@pytest.mark.parametrize(
    ("files", "kinds"),
    [
        (MOLECULE | {"b.tsv": "", "c.jsonl": LINES}, "2 CSV or TSV files (a.csv, …), 1 JSON Lines"),
        (TU | {"b.jsonl": LINES}, "5 files in TUDataset's format (TOY_A.txt, …), 1 JSON Lines"),
        (DRAWING | {"b.jsonl.gz": ""}, "1 JSON Lines file (b.jsonl.gz), 1 GraphML file (one.gra"),
        (TU | DRAWING, "5 files in TUDataset's format (TOY_A.txt, …), 1 GraphML file (one.graph"),
        (
            DRAWING | MOLECULE | {"p.parquet": ""},
            "1 Parquet file (p.parquet), 1 CSV or TSV file (a",
        ),
        (
            MOLECULE | {"p.parquet": ""},
            "1 CSV or TSV file (a.csv), 1 Parquet file (p.parquet); exp",
        ),
    ],
)
def test_files_of_several_formats_are_counted_and_refused(files, kinds, tmp_path):
    write(tmp_path / "mixed", files)
    for source in (tmp_path / "mixed", zipped(tmp_path / "mixed.zip", files)):
        with pytest.raises(ValueError, match="holds files of several formats: ") as error:
            read_graphs(source)
        assert kinds in str(error.value)
        assert str(error.value).endswith("put those of each format in a folder of their own")


@pytest.mark.parametrize(
    ("files", "read"), [(TU, "files in TUDataset's format"), (DRAWING, "GraphML files")]
)
def test_tables_beside_graphs_of_another_format_are_said_not_to_be_read(files, read, tmp_path):
    usual = read_graphs(write(tmp_path / "usual", files))
    mixed = write(tmp_path / "mixed", files | {"p.csv": "graph,prediction\n0,1\n"})
    with pytest.warns(UserWarning, match=f"those in the {read}; 1 CSV .*p.csv. beside them is not"):
        found = read_graphs(mixed)
    assert found.ids == usual.ids


@pytest.mark.parametrize("name", ["../evil.csv", "/tmp/evil.csv", "a/../../evil.csv"])
def test_a_zip_that_points_outside_its_folder_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="is no file inside"):
        read_graphs(zipped(tmp_path / "evil.zip", {"mols.csv": TABLE, name: TABLE}))
    assert not (tmp_path.parent / "evil.csv").exists()


def test_damaged_files_are_named(tmp_path):
    whole = zipped(tmp_path / "whole.zip", {"mols.csv": TABLE * 50}).read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut.zip is not a complete zip archive"):
        read_graphs(tmp_path / "cut.zip")
    at = whole.index(b"mols.csv") + 20
    (tmp_path / "bad.zip").write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    with pytest.raises(ValueError, match=r"bad.zip is damaged"):
        read_graphs(tmp_path / "bad.zip")
    packed = gzip.compress(TABLE.encode() * 50)
    (tmp_path / "cut.csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"cut.csv.gz is damaged or cut short"):
        read_graphs(tmp_path / "cut.csv.gz")
    (tmp_path / "not.csv.gz").write_bytes(b"plain text")
    with pytest.raises(ValueError, match=r"not.csv.gz is damaged or cut short"):
        read_graphs(tmp_path / "not.csv.gz")
    (tmp_path / "latin.csv").write_bytes("smiles,name\nC,méthane\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin.csv line 2: it is not text in UTF-8"):
        read_graphs(tmp_path / "latin.csv")
    (tmp_path / "wide.csv").write_bytes("smiles,name\nC,a\n".encode("utf-16"))
    with pytest.raises(ValueError, match=r"wide.csv is not text in UTF-8"):
        read_graphs(tmp_path / "wide.csv")


def test_a_file_without_read_permission_is_named(tmp_path, monkeypatch):
    path = tmp_path / "secret.csv"
    path.write_text(TABLE)
    path.chmod(0)
    if os.access(path, os.R_OK):  # as root nothing is forbidden, so let the system say no

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ValueError, match=r"secret.csv cannot be read: Permission denied"):
        read_graphs(path)


@pytest.mark.data
def test_a_real_collection_comes_in_whole(data_root):
    read = read_graphs(data_root / "tu" / "MUTAG.zip", target=["target"])
    assert len(read.graphs) == 188
    assert np.unique(read.targets["target"]).tolist() == [-1, 1]
    sizes = [graph.num_nodes for graph in read.graphs]
    assert (max(sizes), min(sizes), round(float(np.mean(sizes)), 2)) == (28, 10, 17.93)
    assert Vocabulary.learn(read.graphs).encode(read.graphs).label_sizes == (7,)
