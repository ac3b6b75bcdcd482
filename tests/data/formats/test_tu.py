"""TUDataset text: parsed exactly, put in order, refused in one sentence where it is not sound."""

import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softperm.data.archive import Archive
from softperm.data.formats.tu import read_numbers, read_tu, to_graphs

FILES = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n3\n",
    "graph_labels": "7\n-1\n7\n",
    "node_labels": "5\n3\n5\n9\n9\n3\n",
    "node_attributes": " 1.5, 2\n-0.25, 1e3\n0, 0\n1, 1\n2, 2\n3, 3\n",
    "edge_labels": "1\n1\n2\n2\n1\n1\n",
    "edge_attributes": "0.5\n0.5\n1\n1\n2\n2\n",
    "graph_attributes": "1.5, 2\nnan, 3\n4, 5\n",
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A folder with the small dataset TOY, some of its files replaced or (None) left out."""

    def make(**changes: str | None) -> Path:
        folder = tmp_path / "toy"
        folder.mkdir(exist_ok=True)
        for kind, text in {**FILES, **changes}.items():
            if text is not None:
                (folder / f"TOY_{kind}.txt").write_text(text)
        return folder

    return make


def zipped(folder: Path, inside: str, method: int) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{inside}{file.name}")
    return path


def same(left: object, right: object) -> None:
    for name in vars(left):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


def test_every_file_of_the_layout_arrives(write: Callable) -> None:
    arrays = read_tu(write())
    assert arrays.name == "TOY"
    assert len(arrays) == 3
    assert arrays.ptr.tolist() == [0, 3, 5, 6]
    assert arrays.edge_ptr.tolist() == [0, 4, 6, 6]
    assert arrays.edge_index.tolist() == [[0, 1, 1, 2, 0, 1], [1, 0, 2, 1, 1, 0]]
    assert arrays.label[:, 0].tolist() == [5, 3, 5, 9, 9, 3]
    assert arrays.attributes[:2].tolist() == [[1.5, 2.0], [-0.25, 1000.0]]
    assert arrays.edge_label[:, 0].tolist() == [1, 1, 2, 2, 1, 1]
    assert arrays.edge_attr[:, 0].tolist() == [0.5, 0.5, 1, 1, 2, 2]
    assert arrays.graph_label[:, 0].tolist() == [7, -1, 7]
    np.testing.assert_array_equal(arrays.graph_attributes, [[1.5, 2], [np.nan, 3], [4, 5]])


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("inside", ["", "TOY/", "TOY//", "some/where/"])
def test_a_zip_archive_reads_like_its_folder(write: Callable, method: int, inside: str) -> None:
    folder = write()
    same(read_tu(zipped(folder, inside, method)), read_tu(folder))


def test_files_an_archiver_adds_are_ignored(write: Callable) -> None:
    path = zipped(write(), "TOY/", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/TOY/._TOY_A.txt", b"\x00\x05\x16\x07")
        archive.writestr("TOY/.DS_Store", b"\x00")
    assert len(read_tu(path)) == 3


@given(
    st.lists(
        st.tuples(
            st.floats(width=64, allow_nan=False).map(repr)
            | st.decimals(-(10**20), 10**20, allow_nan=False, places=12).map(str)
            | st.integers(-(10**18), 10**18).map(str),
            st.sampled_from([", ", ",", " , ", " ", "\t"]),
            st.integers(-(10**6), 10**6).map(str),
            st.sampled_from(["\n", "\r\n", "  \n", "\n\n"]),
        ),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_numbers_are_what_python_reads_with_one_separator_or_several(
    lines: list, one_separator: bool
) -> None:
    """One separator in all lines takes the fast path, several take the slow one."""
    comma = lines[0][1] if one_separator else None
    text = "".join(a + (comma or c) + b + end for a, c, b, end in lines).encode()
    table = numbers_of(text, np.float64)
    np.testing.assert_array_equal(table, [[float(a), float(b)] for a, _, b, _ in lines])


def numbers_of(text: bytes, dtype: type) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "T.txt").write_bytes(text)
        with Archive(Path(folder)) as archive:
            return read_numbers(archive, "T.txt", dtype, 2)


@pytest.mark.parametrize("text", ["1, 2\n3, 4\n", "1, 2\n3 4\n", "1.0, 2\n3, 4"])
def test_text_may_begin_with_a_byte_order_mark(text: str) -> None:
    np.testing.assert_array_equal(numbers_of(text.encode("utf-8-sig"), np.int64), [[1, 2], [3, 4]])


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_any_order_of_lines_gives_the_same_simple_graphs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graphs = [nx.gnp_random_graph(int(n), 0.4, seed=int(n)) for n in rng.integers(1, 12, 5)]
    owner = np.repeat(np.arange(5), [len(g) for g in graphs])
    rng.shuffle(owner)  # vertices of a graph need not stand together
    number = [np.flatnonzero(owner == i) + 1 for i in range(5)]
    lines = [(number[i][u], number[i][v]) for i, g in enumerate(graphs) for u, v in g.edges]
    lines += [(v, u) for u, v in lines]
    loops = [(v, v) for v in rng.integers(1, owner.size + 1, 3)]
    again = [lines[k] for k in rng.integers(0, len(lines), 4)] if lines else []
    listed = rng.permutation([*lines, *loops, *again]).tolist()
    arrays = _read_lines(listed, owner + 1)
    assert (arrays.self_loops, arrays.duplicates) == (3, len(again))
    for i, graph in enumerate(graphs):
        span = slice(*arrays.edge_ptr[i : i + 2])
        expected = np.argwhere(nx.to_numpy_array(graph, nodelist=range(len(graph))))
        np.testing.assert_array_equal(arrays.edge_index[:, span].T, expected)


def _read_lines(listed: list, indicator: np.ndarray):
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "T_A.txt").write_text("".join(f"{u}, {v}\n" for u, v in listed))
        (folder / "T_graph_indicator.txt").write_text("\n".join(map(str, indicator)))
        return read_tu(folder)


def test_vertices_listed_out_of_order_keep_their_labels(write: Callable) -> None:
    folder = write(
        A="1, 3\n3, 1\n2, 4\n4, 2\n",
        graph_indicator="2\n1\n2\n1\n",
        graph_labels="0\n1\n",
        node_labels="10\n20\n30\n40\n",
        node_attributes=None,
        edge_labels="5\n5\n6\n6\n",
        edge_attributes=None,
        graph_attributes=None,
    )
    arrays = read_tu(folder)
    assert arrays.label[:, 0].tolist() == [20, 40, 10, 30]
    assert arrays.edge_label[:, 0].tolist() == [6, 6, 5, 5]
    assert arrays.edge_index.tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]


def test_edges_listed_once_need_symmetrise(write: Callable) -> None:
    changes = {"A": "1, 2\n2, 3\n5, 4\n", "edge_labels": "1\n2\n3\n", "edge_attributes": None}
    with pytest.raises(
        ValueError, match=r"graph 0: TOY_A.txt lists edge \(1, 2\) but not \(2, 1\)"
    ):
        read_tu(write(**changes))
    arrays = read_tu(write(**changes) / "", symmetrise=True)
    assert arrays.edge_index.tolist() == [[0, 1, 1, 2, 0, 1], [1, 0, 2, 1, 1, 0]]
    assert arrays.edge_label[:, 0].tolist() == [1, 1, 2, 2, 3, 3]
    assert arrays.duplicates == 0


def test_one_edge_with_two_labels_is_an_error_unless_the_first_shall_count(write: Callable) -> None:
    changes = {"A": FILES["A"] + "2, 1\n", "edge_labels": "1\n1\n2\n2\n1\n1\n8\n"}
    changes["edge_attributes"] = None
    with pytest.raises(
        ValueError, match=r"graph 0: lines 1 and 7 .* edge \(2, 1\) with \[1\] and \[8\]"
    ):
        read_tu(write(**changes))
    assert read_tu(write(**changes), symmetrise=True).edge_label[:2, 0].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"A": FILES["A"][:-4]}, r"TOY_A.txt line 6: expected 2 numbers .* found '5'.*cut short"),
        ({"A": "1, 2\n2, 1\n2, 3\n3, x\n"}, r"TOY_A.txt line 4: .* found '3, x'"),
        ({"A": "1, 2\n2,, 1\n"}, r"line 2: expected 2 numbers separated by commas, found '2,, 1'"),
        ({"A": "1, 2, 3\n"}, r"line 1: expected 2 numbers .* found '1, 2, 3'"),
        ({"A": "1, 2\n2, 1.5\n"}, r"TOY_A.txt line 2: expected a whole number .* found 1.5"),
        ({"A": "1, 2\n2, 1\n9, 1\n"}, r"line 3: edge \(9, 1\) names vertex 9, .* has 6 vertices"),
        ({"A": "0, 1\n1, 0\n"}, r"line 1: edge \(0, 1\) names vertex 0, .* numbered from 1"),
        (
            {"A": "3, 4\n4, 3\n"},
            r"graph 0: TOY_A.txt line 1 joins its vertex 3 to vertex 4 of graph 1",
        ),
        ({"A": None}, r"expected one file NAME_A.txt, found none"),
        ({"graph_indicator": None}, r"TOY_graph_indicator.txt is missing"),
        ({"graph_indicator": ""}, r"TOY_graph_indicator.txt: .* found an empty file"),
        ({"graph_labels": "7\n-1\n7\n7\n"}, r"TOY_graph_labels.txt: expected 3 lines, .* found 4"),
        (
            {"graph_indicator": "1\n1\n1\n2\n2\n9999\n", "graph_labels": None}
            | {"graph_attributes": None},
            r"graph_indicator.txt line 6: graph number 9,999, but only 3 graphs have vertices",
        ),
        ({"graph_indicator": "0\n1\n1\n2\n2\n3\n"}, r"line 1: expected a graph number from 1 on"),
        ({"graph_labels": "7\n-1\n"}, r"TOY_graph_labels.txt: expected 3 lines, .* found 2"),
        ({"node_labels": "5\n3\n5\n9\n9\n"}, r"TOY_node_labels.txt: expected 6 lines, .* found 5"),
        ({"node_attributes": "1, 2\n"}, r"TOY_node_attributes.txt: expected 6 lines, .* found 1"),
        ({"edge_labels": "1\n1\n2\n2\n1\n"}, r"TOY_edge_labels.txt: expected 6 lines, .* found 5"),
        ({"graph_attributes": "1, 2\n3\n"}, r"TOY_graph_attributes.txt line 2: expected 2 numbers"),
        (
            {"node_labels": f"5\n3\n5\n9\n9\n{2**63}\n"},
            r"TOY_node_labels.txt line 6: expected a whole number below 9223372036854775808",
        ),
        ({"node_labels": "5\n3\n5\n9\n9\n1e30\n"}, r"TOY_node_labels.txt line 6: expected a whole"),
    ],
)
def test_unusable_text_is_refused_and_read_after_correction(
    write: Callable, changes: dict, sentence: str
) -> None:
    folder = write(**changes)
    with pytest.raises(ValueError, match=sentence) as caught:
        read_tu(folder)
    assert "\n" not in str(caught.value)
    assert len(read_tu(write())) == 3


def test_damaged_archives_are_refused_in_one_sentence(write: Callable, tmp_path: Path) -> None:
    path = zipped(write(), "TOY/", zipfile.ZIP_DEFLATED)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("TOY/TOY_A.txt")
    start = (
        info.header_offset + 30 + sum(struct.unpack("<HH", whole[info.header_offset + 26 :][:4]))
    )
    flipped = bytearray(whole)
    flipped[start + 3] ^= 0xFF
    for name, content, sentence in (
        ("flipped", bytes(flipped), r"is damaged: TOY/TOY_A.txt cannot be unpacked"),
        ("short", whole[: len(whole) // 2], r"is not a complete zip archive"),
        ("text", b"not an archive at all", r"is not a complete zip archive"),
        ("empty", b"", r"is not a complete zip archive"),
    ):
        bad = tmp_path / f"{name}.zip"
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=sentence):
            read_tu(bad)
    assert len(read_tu(path)) == 3


@pytest.mark.parametrize(
    "name", ["../TOY_A.txt", "/etc/TOY_A.txt", "a/../../TOY_A.txt", "C:/TOY_A.txt"]
)
def test_an_archive_entry_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "evil.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "1, 2\n2, 1\n")
    with pytest.raises(ValueError, match="is no file inside the archive's folder"):
        Archive(path)


def test_a_missing_path_and_two_datasets_in_one_folder_are_errors(write: Callable) -> None:
    folder = write()
    with pytest.raises(ValueError, match="no such folder or zip archive"):
        read_tu(folder / "nothing")
    (folder / "OTHER_A.txt").write_text("1, 2\n")
    with pytest.raises(ValueError, match="found OTHER, TOY: choose one"):
        read_tu(folder)
    assert read_tu(folder, "TOY").name == "TOY"


def test_graphs_of_their_own_hold_what_the_arrays_hold(write: Callable) -> None:
    first, second, third = to_graphs(read_tu(write()))
    assert (first.num_nodes, second.num_nodes, third.num_nodes) == (3, 2, 1)
    assert first.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert first.edge_index.dtype == torch.int64
    assert first.label.tolist() == [5, 3, 5]
    assert first.edge_label.tolist() == [1, 1, 2, 2]
    assert second.x.tolist() == [[1, 1], [2, 2]]
    assert third.edge_index.shape == (2, 0)
    assert third.edge_attr.shape == (0, 1)


def test_labels_of_several_columns_keep_them(write: Callable) -> None:
    folder = write(node_labels="1, 0\n2, 0\n3, 1\n1, 1\n1, 0\n2, 2\n")
    assert to_graphs(read_tu(folder))[0].label.tolist() == [[1, 0], [2, 0], [3, 1]]


@pytest.mark.data
@pytest.mark.parametrize("name", ["MUTAG", "ENZYMES"])
def test_real_datasets_agree_with_pyg(data_root: Path, tmp_path: Path, name: str) -> None:
    from torch_geometric.io import read_tu_data

    with zipfile.ZipFile(data_root / "tu" / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    theirs, slices, _ = read_tu_data(str(tmp_path / name), name)
    ours = read_tu(data_root / "tu" / f"{name}.zip")
    np.testing.assert_array_equal(ours.edge_ptr, slices["edge_index"])
    np.testing.assert_array_equal(ours.edge_index, theirs.edge_index)
    np.testing.assert_array_equal(
        np.unique(ours.graph_label, return_inverse=True)[1].ravel(), theirs.y
    )
    if ours.label is not None:
        hot = theirs.x[:, 0 if ours.attributes is None else ours.attributes.shape[1] :]
        np.testing.assert_array_equal(ours.label[:, 0] - ours.label.min(), hot.argmax(dim=1))
    if ours.attributes is not None:
        np.testing.assert_array_equal(ours.attributes, theirs.x[:, : ours.attributes.shape[1]])


def test_large_labels_are_exact(write: Callable) -> None:
    """2**53 + 1 is not a float64."""
    arrays = read_tu(write(node_labels=f"5\n3\n5\n9\n9\n{2**53 + 1}\n"))
    assert arrays.label[5, 0] == 2**53 + 1
