"""``explain``: from a run folder to a table, deletion curves and pictures."""

import csv
import json

import networkx as nx
import pytest
from samples import FAST, as_options, labelled_path, run_command, write_json_lines

from softperm.data.formats import read_graphs

MOLECULES = ["CCO", "CCN", "CCCO", "CN", "CO", "CCC", "OCC", "NCC", "OC", "CNC", "COC", "CCCC"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    pytest.importorskip("rdkit")
    folder = tmp_path_factory.mktemp("explain")
    rows = [f"{m},{'yes' if 'O' in m else 'no'}" for m in MOLECULES]
    (folder / "molecules.csv").write_text("\n".join(["smiles,alcohol", *rows]) + "\n")
    done = run_command(
        "train", folder / "molecules.csv", "--target", "alcohol", "--out", folder / "run",
        "--epochs", 3, "--latent-vertices", 4, "--head", "mlp", "--device", "cpu",
        "--encoded", "none", "--permute-by", "mixed",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return folder


def explain(folder, *options):
    return run_command(
        "explain", folder / "run", folder / "molecules.csv", "--device", "cpu", "--json", *options
    )


def test_the_table_adds_up_and_pictures_and_curves_are_written(trained, tmp_path):
    out, curves, pictures = tmp_path / "e.csv", tmp_path / "curves.csv", tmp_path / "pictures"
    options = ("--out", out, "--deletion", curves, "--pictures", pictures, "--graphs", "CCO,CCCC")
    done = explain(trained, *options)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["graphs"] == 2
    assert result["explains"] == "logits of classes, centred"
    assert result["largest_error"] < 1e-4
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert {row["graph"] for row in rows} == {"CCO", "CCCC"}
    assert {row["output"] for row in rows} == {"yes", "no"}
    assert "label O" in {row["attribute"] for row in rows if row["kind"] == "vertex attribute"}
    lines = tmp_path / "e.jsonl"
    assert explain(trained, "--out", lines, "--output", "yes", "--graphs", "CCO").exit_code == 0
    first = json.loads(lines.read_text().splitlines()[0])
    (answer,) = first["outputs"]
    contributions = answer["vertex_contributions"] + answer["edge_contributions"]
    assert sum(contributions) == pytest.approx(answer["output"] - answer["baseline"], rel=1e-4)
    assert answer["edge_contributions"] == [0.0, 0.0]  # the bonds of CCO are there from the start
    assert sum(answer["edge_totals"]) == pytest.approx(sum(contributions), abs=1e-9)
    listed = [float(r["contribution"]) for r in rows if (r["graph"], r["output"]) == ("CCO", "yes")]
    assert sum(listed) == pytest.approx(sum(contributions), abs=1e-9)
    fixed = tmp_path / "fixed.csv"
    fixed_options = ("--out", fixed, "--fixed-permutation", "--graphs", "CCO")
    assert explain(trained, *fixed_options).exit_code == 0
    kinds = {row["kind"] for row in csv.DictReader(fixed.read_text().splitlines())}
    assert "edge" in kinds
    assert "edge" not in {row["kind"] for row in rows}
    points = list(csv.DictReader(curves.read_text().splitlines()))
    assert len(points) == 2 * 11
    assert sorted(path.suffix for path in pictures.iterdir()) == [".svg", ".svg"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--graphs", "CCS"), "--graphs: there is no graph 'CCS'; the first is 'CCO'"),
        (("--output", "maybe"), "--output: there is no 'maybe'; choose one of no, yes"),
        (("--out", "e.txt"), "--out must end in .csv or .jsonl; got e.txt"),
    ],
)
def test_bad_options_are_answered_in_one_sentence(trained, options, words):
    done = explain(trained, *options)
    assert done.exit_code == 2
    assert words in done.stderr


def test_names_that_look_like_markup_or_paths_stay_text(tmp_path):
    """As class, target, vertex label and name of a graph: in tables, and in names of pictures."""
    evil = "<script>alert(1)</script>"
    words = ["aab", "ab", "bba", "abab", "ba", "bb"] * 2
    graphs = [labelled_path(word) for word in words]
    for graph in graphs:
        nx.set_node_attributes(
            graph, {v: evil for v, kind in graph.nodes(data="label") if kind == "a"}, "label"
        )
    folder = tmp_path / "graphs"
    folder.mkdir()
    kinds = [(evil, "fair")[i % 2] for i in range(len(graphs))]
    for k in (0, 1):
        part = slice(6 * k, 6 * k + 6)
        write_json_lines(folder / f"<b>{k}.jsonl", graphs[part], **{evil: kinds[part]})
    run, out, pictures = tmp_path / "run", tmp_path / "e.csv", tmp_path / "all" / "pictures"
    settings = as_options(FAST)
    done = run_command("train", folder, "--target", evil, "--out", run, *settings)
    assert done.exit_code == 0, done.output
    name = read_graphs(folder).ids[3]
    assert "<b>" in name
    options = ("--out", out, "--pictures", pictures, "--graphs", name, "--device", "cpu")
    done = run_command("explain", run, folder, *options)
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert {row["graph"] for row in rows} == {name}
    assert {row["output"] for row in rows} == {evil, "fair"}
    assert f"label {evil}" in {row["attribute"] for row in rows}
    (picture,) = (tmp_path / "all").rglob("*.*")
    assert (picture.parent, picture.suffix) == (pictures, ".png")
    assert "<" not in picture.name
    lines = tmp_path / "e.jsonl"
    done = run_command("explain", run, folder, "--out", lines, "--graphs", name, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert json.loads(lines.read_text())["graph"] == name
