"""Reading in shards: the cuts lose no row, and every format gives the same graphs."""

import gzip
import json
import lzma
import zipfile
from functools import partial

import networkx as nx
import pytest

from softperm.data.formats import read_graphs, shards
from softperm.data.formats.shards import canonical_graph, read_shards
from softperm.data.formats.tables import Unreadable

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SMILES = [("C" * (1 + i % 5)) + ("O" if i % 2 else "N") for i in range(53)]
TABLE = "smiles,name,y\n" + "".join(
    f'{s},"row {i}{chr(10) if i % 7 == 0 else ""}",{i}\n' for i, s in enumerate(SMILES)
)


def rows_of(path, rows: int, **columns) -> list:
    return [record for shard in read_shards(path, rows=rows, **columns) for record in shard.read()]


def zstd(path, mode):
    assert mode == "wb"
    return pa.CompressedOutputStream(str(path), "zstd")


@pytest.mark.parametrize("rows", [1, 2, 10, 53, 1000])
def test_no_row_is_lost_or_repeated_wherever_the_cuts_are(tmp_path, rows):
    (tmp_path / "t.csv").write_text(TABLE)
    records = rows_of(tmp_path / "t.csv", rows)
    assert [record.id for record in records] == SMILES
    assert [record.targets["y"] for record in records] == [str(i) for i in range(53)]
    shares = [shard.share for shard in read_shards(tmp_path / "t.csv", rows=rows)]
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.parametrize(
    ("ending", "opened"), [(".gz", gzip.open), (".xz", lzma.open), (".zst", zstd)]
)
def test_compressed_tables_are_read_in_pieces(tmp_path, ending, opened):
    with opened(tmp_path / f"t.csv{ending}", "wb") as stream:
        stream.write(TABLE.encode())
    pieces = list(read_shards(tmp_path / f"t.csv{ending}", rows=10))
    assert len(pieces) > 4
    assert [r.id for piece in pieces for r in piece.read()] == SMILES
    assert pieces[-1].share == 1


@pytest.mark.parametrize("name", ["t.csv", "."])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, name):
    file = tmp_path / "t.csv"
    file.write_text(TABLE)
    pieces = read_shards(tmp_path / name, rows=10)
    next(pieces)
    with file.open("a") as stream:
        stream.write("C,another,1\n")
    with pytest.raises(ValueError, match=r"t\.csv changed while it was read: run the command ag"):
        list(pieces)


def test_a_folder_of_tables_is_one_table(tmp_path):
    lines = TABLE.replace('\n"', '"').splitlines()
    for k in range(3):
        part = [lines[0], *lines[1:][k * 20 : (k + 1) * 20]]
        (tmp_path / f"part-{k}.csv").write_text("\n".join(part))
    assert [record.id for record in rows_of(tmp_path, 7)] == SMILES
    (tmp_path / "part-9.csv").write_text("smiles,other\nC,1\n")
    with pytest.raises(ValueError, match=r"part-9.csv has the columns smiles, other, but part-0.c"):
        rows_of(tmp_path, 7)


def test_lines_of_several_files_have_different_ids(tmp_path):
    line = json.dumps(nx.node_link_data(nx.path_graph(2), edges="links"))
    with zipfile.ZipFile(tmp_path / "g.zip", "w") as archive:
        for name in ("a.jsonl", "b.jsonl"):
            archive.writestr(name, f"{line}\n{line}\n")
    ids = [record.id for record in rows_of(tmp_path / "g.zip", 1)]
    assert ids == ["a.jsonl:1", "a.jsonl:2", "b.jsonl:1", "b.jsonl:2"]


def test_parquet_gives_the_graphs_of_the_table(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    table = pa.table({"smiles": SMILES, "key": [f"m{i}" for i in range(53)], "y": range(53)})
    pq.write_table(table, tmp_path / "t.parquet")
    records = rows_of(tmp_path / "t.parquet", 10, id_column="key")
    assert [record.id for record in records] == table["key"].to_pylist()
    one, other = read_graphs(tmp_path / "t.csv"), read_graphs(tmp_path / "t.parquet")
    assert one.ids == other.ids
    assert one.targets["y"].tolist() == other.targets["y"].tolist()
    for a, b in zip(one.graphs, other.graphs, strict=True):
        assert a.edge_index.equal(b.edge_index)
        assert a.label == b.label


def test_parquet_edge_lists_are_graphs_as_pyg_holds_them(tmp_path):
    graph = {
        "edge_index": [[[0, 1, 1, 2], [1, 0, 2, 1]], [[], []], [[0], [5]]],
        "num_nodes": [3, 2, 2],
        "label": [["a", "b", "a"], ["b", "b"], ["a", "a"]],
        "x": [[[0.5], [1.0], [2.0]], [[1.0], [0.0]], [[1.0], [1.0]]],
        "edge_label": [[1, 1, 2, 2], [], [1]],
        "y": [[1, 0], [0, None], [1, 1]],
    }
    pq.write_table(pa.table(graph), tmp_path / "g.parquet")
    first, second, third = rows_of(tmp_path / "g.parquet", 2)
    path, _ = canonical_graph(first, False)
    assert path.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert path.label == ["a", "b", "a"]
    assert path.x.tolist() == [[0.5], [1.0], [2.0]]
    assert path.edge_label.tolist() == [1, 1, 2, 2]
    assert first.targets == {"y_0": 1, "y_1": 0}
    assert canonical_graph(second, False)[0].num_nodes == 2
    with pytest.raises(ValueError, match="names vertex 5, but the graph has 2"):
        canonical_graph(third, False)


def test_rows_of_bytes_that_are_not_text_are_named(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"smiles,y\nC,1\n\xff\xfe,2\nCC,3\n")
    _, bad, last = rows_of(tmp_path / "t.csv", 100)
    assert isinstance(bad, Unreadable)
    assert bad.where == "t.csv line 3"
    assert last.id == "CC"


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTPERM_MAX_LINE", "100")
    (tmp_path / "t.csv").write_text("smiles\nC\n" + "C" * 101)
    with pytest.raises(ValueError, match=r"t.csv line 3 is longer than"):
        rows_of(tmp_path / "t.csv", 10)


def test_large_rows_make_small_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BYTES", 100)
    (tmp_path / "t.csv").write_text(TABLE)
    assert len(list(read_shards(tmp_path / "t.csv"))) > 5
    read = partial(rows_of, tmp_path / "t.csv")
    assert [r.id for r in read(1000)] == SMILES
