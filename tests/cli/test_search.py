"""``index`` and ``search``: from a table of molecules to look-alikes with two commands."""

import csv
import errno
import json
import os

import matplotlib.image
import networkx as nx
import numpy as np
import pytest
from samples import run_command, write_json_lines

from softperm import GraphIndex

LIBRARY = """smiles,mass
CCO,46
CC,30
c1ccccc1,78
c1ccccc1O,94
Cc1ccccc1O,108
CCCCO,74
Oc1ccccc1N,109
CCO,46
"""


@pytest.fixture
def library(tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "lib.csv").write_text(LIBRARY)
    (tmp_path / "query.csv").write_text("smiles\nOc1ccccc1\nCCCO\n")
    done = run_command("index", tmp_path / "lib.csv", "--out", tmp_path / "lib.index", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["graphs"] == 8
    return tmp_path


def search(folder, *options):
    out = folder / "hits.csv"
    done = run_command("search", folder / "lib.index", folder / "query.csv", *options, "--out", out)
    assert done.exit_code == 0, done.output
    return list(csv.DictReader(out.read_text().splitlines()))


def test_a_table_of_molecules_becomes_a_picture_of_look_alikes_with_two_commands(library):
    matchings, picture = library / "hits.json", library / "hits.png"
    rows = search(library, "-k", "3", "--matchings", matchings, "--picture", picture)
    assert [(row["query"], row["rank"]) for row in rows] == [
        (query, str(rank)) for query in ("Oc1ccccc1", "CCCO") for rank in (1, 2, 3)
    ]
    assert (rows[0]["hit"], float(rows[0]["distance"])) == ("c1ccccc1O", 0.0)
    assert {row["proven"] for row in rows} == {"True"}
    stored = json.loads(matchings.read_text())
    assert [entry["hit"] for entry in stored] == [row["hit"] for row in rows]
    assert len(stored[0]["matching"]) == 7
    pixels = matplotlib.image.imread(picture)
    assert np.ptp(pixels) > 0.5  # something is drawn
    assert pixels.shape[1] > 3 * pixels.shape[0]  # the query and three hits in one row


def test_a_full_disk_leaves_the_old_picture(library, monkeypatch):
    picture, replace = library / "hits.png", os.replace

    def full(source, target):
        if target == picture:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    picture.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", full)
    query, out = library / "query.csv", library / "hits.csv"
    done = run_command("search", library / "lib.index", query, "--out", out, "--picture", picture)
    assert done.exit_code == 2
    assert f"error: {picture}: the disk is full" in done.output
    assert picture.read_bytes() == b"old"


def test_long_names_are_shortened_above_pictures():
    from softperm.explore.matches import _caption

    assert _caption("C" * 60 + "\ndistance 3") == "C" * 20 + "…" + "C" * 9 + "\ndistance 3"
    assert _caption("C$O\nquery") == "C\\$O\nquery"


def test_rows_that_cannot_be_read_are_left_out_and_counted(library):
    good = [f"{'C' * n}O" for n in range(1, 25)]
    for name in ("lib2.csv", "query.csv"):
        (library / name).write_text("\n".join(["smiles", *good[:12], "C1CC", *good[12:]]) + "\n")
    build = ("index", library / "lib2.csv", "--out", library / "lib.index2")
    done = run_command(*build, "--strict")
    assert done.exit_code == 2
    assert "lib2.csv line 14: 'C1CC' is not valid SMILES" in done.output
    done = run_command(*build)
    assert done.exit_code == 0, done.output
    assert "left out 1 row that cannot be read; the first: " in done.output
    assert "lib2.csv line 14: 'C1CC' is not valid SMILES" in done.output
    assert len(GraphIndex.open(library / "lib.index2")) == 24
    found = ("search", library / "lib.index2", library / "query.csv", "-k", 1)
    done = run_command(*found, "--out", library / "h.csv")
    assert done.exit_code == 0, done.output
    assert "query.csv line 14" in done.output
    assert len((library / "h.csv").read_text().splitlines()) == 1 + 24
    assert run_command(*found, "--strict").exit_code == 2


def test_a_table_of_which_most_rows_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "lib.csv").write_text("smiles\nCC\nC1CC\nCCO\n")
    done = run_command("index", tmp_path / "lib.csv", "--out", tmp_path / "lib.index")
    assert done.exit_code == 2
    assert "'C1CC' is not valid SMILES" in done.output


@pytest.mark.filterwarnings("ignore:.*no vertices")
def test_graphs_without_vertices_are_pictured(tmp_path):
    graphs = write_json_lines(tmp_path / "g.jsonl", [nx.Graph(), nx.path_graph(3)])
    index, picture = tmp_path / "index", tmp_path / "hits.png"
    assert run_command("index", graphs, "--out", index).exit_code == 0
    out = ("--out", tmp_path / "hits.csv", "--picture", picture)
    done = run_command("search", index, graphs, *out)
    assert done.exit_code == 0, done.output
    assert picture.stat().st_size > 0


def test_within_and_where_restrict_the_hits(library):
    rows = search(library, "--within", "1", "--where", "mass < 90")
    assert {(row["query"], row["hit"]) for row in rows} == {
        ("Oc1ccccc1", "c1ccccc1"), ("CCCO", "CCO"), ("CCCO", "CCO #2"), ("CCCO", "CCCCO"),
    }  # fmt: skip
    assert {float(row["distance"]) for row in rows} == {1.0}


def test_adding_skips_what_is_there(library):
    (library / "more.csv").write_text("smiles,mass\nCCO,46\nCCN,45\n")
    add = ("index", library / "more.csv", "--out", library / "lib.index", "--add")
    for present in ("1 graph is", "2 graphs are"):  # the same command again adds nothing
        done = run_command(*add)
        assert done.exit_code == 0, done.output
        assert f"{present} already in the index" in done.stderr
    assert len(GraphIndex.open(library / "lib.index")) == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("search", "lib.index", "query.csv", "-k", "3", "--within", "2"), "exclude each other"),
        (("search", "query.csv", "query.csv"), "is not a graph index"),
        (("search", "lib.index", "query.csv", "--where", "size < 3"), "has no column 'size'"),
        (("search", "lib.index", "query.csv", "--where", "mass == 'a'"), "a number with a string"),
        (("index", "lib.csv", "--out", "lib.index"), "is not empty; use --add"),
        (
            ("index", "names.csv", "--out", "lib.index", "--add"),
            "metadata has the columns name; the index has mass",
        ),
        (("index", "lib.csv", "--out", "other", "--add"), "does not exist; leave out --add"),
        (
            ("index", "lib.csv", "--out", "other", "--engine", "sun"),
            "--engine must be local or ray",
        ),
        (("search", "lib.index", "query.csv", "--engine", "sun"), "--engine must be local or ray"),
    ],
)
def test_bad_input_is_one_sentence(library, arguments, message, monkeypatch):
    (library / "names.csv").write_text("smiles,name\nCCCC,butane\n")
    monkeypatch.chdir(library)
    done = run_command(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_damaged_index_is_one_sentence(library):
    segment = next((library / "lib.index").glob("*.safetensors"))
    segment.write_bytes(segment.read_bytes()[:-3])
    done = run_command("search", library / "lib.index", library / "query.csv")
    assert done.exit_code == 2
    assert "is damaged: build the index again" in done.stderr


def test_neighbours_by_vector_are_ranked_again_by_exact_distance(library):
    pytest.importorskip("faiss")
    train = run_command(
        "train", library / "lib.csv", "--target", "mass", "--out", library / "run", "--epochs", 2,
        "--latent-vertices", 3, "--validation-fraction", 0, "--device", "cpu",
    )  # fmt: skip
    assert train.exit_code == 0, train.output
    out = library / "with.index"
    done = run_command("index", library / "lib.csv", "--out", out, "--vectors", library / "run")
    assert done.exit_code == 0, done.output
    by_vector = ("search", out, library / "query.csv", "--by", "vector", "-k", 2)
    done = run_command(*by_vector, "--out", library / "v.csv")
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((library / "v.csv").read_text().splitlines()))
    assert len(rows) == 4
    assert {row["proven"] for row in rows} == {"False"}
    done = run_command(*by_vector, "--rerank", 8, "--out", library / "r.csv")
    rows = list(csv.DictReader((library / "r.csv").read_text().splitlines()))
    exact = search(library, "-k", "2")
    assert [row["distance"] for row in rows] == [row["distance"] for row in exact]
    (library / "more.csv").write_text("smiles,mass\nCCCO,60\n")
    done = run_command("index", library / "more.csv", "--out", out, "--add")
    assert done.exit_code == 0, done.output
    run_command(*by_vector[:-2], "-k", 9, "--out", library / "v.csv")
    rows = csv.DictReader((library / "v.csv").read_text().splitlines())
    assert "CCCO" in {row["hit"] for row in rows}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--by", "shape"), "--by must be graph or vector; got shape"),
        (("--by", "vector"), "holds no vectors: index it with a model first"),
        (("--by", "vector", "--within", "2"), "--within needs --by graph"),
        (("--rerank", "20"), "--rerank needs --by vector"),
    ],
)
def test_modes_that_do_not_fit_are_refused(library, options, words):
    pytest.importorskip("faiss")
    done = run_command("search", library / "lib.index", library / "query.csv", *options)
    assert done.exit_code == 2
    assert words in done.stderr


def test_names_come_from_the_column_that_is_asked_for(tmp_path):
    pytest.importorskip("rdkit")
    table = tmp_path / "lib.csv"
    table.write_text("smiles,name,mass\nCCO,ethanol,46\nCCN,ethylamine,45\nCCC,propane,44\n")
    done = run_command("index", table, "--out", tmp_path / "lib.index", "--id-column", "name")
    assert done.exit_code == 0, done.output
    out = tmp_path / "hits.csv"
    options = ["-k", 1, "--where", "mass < 46", "--id-column", "name", "--out", out]
    done = run_command("search", tmp_path / "lib.index", table, *options)
    assert done.exit_code == 0, done.output
    rows = [line.split(",") for line in out.read_text().splitlines()[1:]]
    assert [row[0] for row in rows] == ["ethanol", "ethylamine", "propane"]
    assert [row[2] for row in rows][1:] == ["ethylamine", "propane"]
