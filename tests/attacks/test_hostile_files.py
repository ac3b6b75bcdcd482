"""Malicious archives and documents: one line that says what is wrong, in little memory and time."""

import gzip
import time
import zipfile
from pathlib import Path

import pytest
from samples import labelled_path, run_command, write_json_lines

from softperm import PiGNNClassifier
from softperm.data.formats import read_graphs
from softperm.lab.recipes import grid_points, read_recipe
from softperm.settings import Rule

GRAPH = '{"nodes": [{"id": 0}], "links": []}'


def refused(path: Path, message: str) -> None:
    """Raises unless the file is refused in one line that matches."""
    with pytest.raises(ValueError, match=message) as caught:
        read_graphs(path)
    assert "\n" not in str(caught.value)


def tu_zip(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("T_A.txt", members.get("edges", b"1, 2\n2, 1\n"))
        archive.writestr("T_graph_indicator.txt", members.get("indicator", b"1\n1\n"))
    return path


def test_a_bomb_in_a_zip_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tu_zip(tmp_path / "bomb.zip", edges=b" " * (1 << 22))
    monkeypatch.setenv("SOFTPERM_MAX_FILE", str(1 << 20))
    assert path.stat().st_size < 10_000
    refused(path, r"T_A\.txt has 4,194,304 bytes unpacked, .*; set SOFTPERM_MAX_FILE to allow more")
    monkeypatch.setenv("SOFTPERM_MAX_FILE", "many")
    refused(path, "SOFTPERM_MAX_FILE must be a number of bytes; got 'many'")
    with zipfile.ZipFile(tmp_path / "g.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.graphml", b"<graphml>" + b" " * (1 << 22))
    monkeypatch.setenv("SOFTPERM_MAX_FILE", str(1 << 20))
    refused(tmp_path / "g.zip", r"a\.graphml has 4,194,313 bytes unpacked")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz"])
def test_a_line_without_end_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTPERM_MAX_LINE", "1000")
    (tmp_path / name).write_bytes(gzip.compress(b" " * 100_000))
    refused(tmp_path / name, f"{name} line 1 is longer than 1,000 bytes; .* SOFTPERM_MAX_LINE")


def test_blank_lines_cost_no_memory_and_are_skipped(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" * (1 << 22) + GRAPH.encode()))
    assert len(read_graphs(path).graphs) == 1


def test_wide_tables_are_read_in_linear_time(tmp_path):
    seconds = []
    for count in (4_000, 16_000):
        names = ",".join(f"c{k}" for k in range(count))
        (tmp_path / "a.csv").write_text(f"smiles,{names}\nCC,{','.join('1' * count)}\n")
        start = time.process_time()
        assert len(read_graphs(tmp_path / "a.csv").targets) == count
        seconds.append(time.process_time() - start)
    assert seconds[1] < 10 * seconds[0] + 0.5  # 16 times where the square of the width counts


def test_long_smiles_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text(f"smiles,y\n{'C' * 100_001},1\n")
    refused(tmp_path / "a.csv", "line 2: its SMILES has 100,001 characters; at most 100,000")


@pytest.mark.parametrize(
    "name", [".", "./.", "/T_A.txt", "../T_A.txt", "C:/T_A.txt", "a\\..\\..\\b"]
)
def test_an_archive_with_odd_entries_is_refused(name, tmp_path):
    path = tu_zip(tmp_path / "odd.zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"x")
    refused(path, "is no file inside the archive's folder; do not use this archive")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<?xml version="1.0" encoding="no-such"?><graphml/>', "is not well-formed XML"),
        ('<?xml version="1.0" encoding="utf-16"?><graphml/>', "is not well-formed XML"),
        ('<?xml version="1.0" encoding="shift_jis"?><graphml/>', "is not well-formed XML"),
        (
            '<graphml><key id="x" for="node" attr.name="x" attr.type="string"/>'
            f'<graph><node id="a"><data key="x">{"[" * 100_000}</data></node></graph></graphml>',
            "not of the type that the file declares",
        ),
        ("<a>" * 100_000, "is not well-formed XML"),
    ],
    ids=["unknown encoding", "wrong encoding", "wide encoding", "nested value", "nested elements"],
)
def test_odd_graphml_is_refused(text, message, tmp_path):
    (tmp_path / "a.graphml").write_text(text)
    refused(tmp_path / "a.graphml", rf"a\.graphml: .*{message}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"nodes": [], "nodes": [{"id": 0}], "links": []}', "the key 'nodes' appears twice"),
        ('{"nodes": [{"id": 0, "label": "C", "label": "N"}], "links": []}', "the key 'label' ap"),
        ('{"nodes": [{"id": 0, "label": "\\ud800"}], "links": []}', "surrogates not allowed"),
        ('{"nodes": [], "links": ' + "[" * 100_000, "it is not JSON"),
        (
            '{"nodes": [{"id": 0, "x": 1' + "0" * 400 + '}], "links": []}',
            "expected a number or a vector",
        ),
        ('{"nodes": [{"id": 0, "x": ' + "9" * 5000 + '}], "links": []}', "it is not JSON"),
    ],
    ids=["key twice", "label twice", "half a surrogate", "nested", "large", "digits"],
)
def test_odd_json_lines_are_refused(line, message, tmp_path):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    refused(tmp_path / "a.jsonl", f"line 1: .*({message})")


def test_classes_that_differ_by_a_nul_are_not_merged(tmp_path):
    graphs = [labelled_path("ab")] * 4
    with pytest.raises(ValueError, match=r"graph 1: its class 'a\\x00' has the character NUL"):
        PiGNNClassifier().fit(graphs, ["a", "a\0", "a", "b"])
    path = write_json_lines(tmp_path / "a.jsonl", graphs, y=["a", "a\0", "a", "b"])
    refused(path, r"a\.jsonl: the value 'a\\x00' has the character NUL; remove it")


def test_a_deeply_nested_recipe_is_refused(tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text("grid = " + "[" * 100_000)
    with pytest.raises(ValueError, match=r"deep\.toml cannot be read as a recipe"):
        read_recipe(str(path))
    path.write_text(f'datasets = []\nmodels = ["pi-gnn"]\nfinal_runs = {2**70}\n')
    with pytest.raises(ValueError, match="final_runs must be a whole number"):
        read_recipe(str(path))


def test_points_of_a_huge_grid_are_not_all_made():
    grid = {name: list(range(10)) for name in "abcdefghij"}  # 10^10 points
    assert grid_points(grid, 1) == [dict.fromkeys(grid, 0)]
    assert grid_points(grid, 3)[-1] == dict.fromkeys(grid, 9)
    small = {"a": [1, 2], "b": ["x", "y", "z"]}
    assert [tuple(p.values()) for p in grid_points(small)] == [
        (1, "x"), (1, "y"), (1, "z"), (2, "x"), (2, "y"), (2, "z"),
    ]  # fmt: skip


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400])
def test_numbers_beyond_64_bits_are_refused(value):
    for kind in (int, float):
        with pytest.raises(ValueError, match="size must be"):
            Rule("", kind).check("size", value)


@pytest.mark.parametrize("option", ["--seed", "--epochs", "--latent-vertices", "--batch-size"])
def test_options_beyond_64_bits_are_refused(option, tmp_path):
    path = write_json_lines(tmp_path / "a.jsonl", [labelled_path("ab")] * 4, y=[0, 1, 0, 1])
    for value in (2**63, "9" * 400):
        done = run_command("train", path, "--out", tmp_path / "run", option, value)
        assert done.exit_code == 2, done.output
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1


def test_memory_without_gradients_does_not_grow_with_the_iterations():
    import torch

    from softperm.ops.transport import sinkhorn

    scores, ptr = torch.randn(30, 5), torch.tensor([0, 10, 30])
    with torch.no_grad():
        many = sinkhorn(scores, ptr, iterations=10**9)  # would be 80 GB of potentials
    torch.testing.assert_close(many, sinkhorn(scores, ptr, iterations=1000))


def test_splits_of_another_kind_are_refused(tmp_path):
    from softperm.data.datasets.splits import read_folds

    for text in ("[" * 100_000, "3", '[{"test": [1e400]}]', f'[{{"test": [{2**70}]}}]', "null"):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(ValueError, match=r"s\.json: expected a list of folds"):
            read_folds(tmp_path / "s.json", 3)
