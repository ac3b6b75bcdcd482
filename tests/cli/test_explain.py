"""``explain``: from a run folder to a table, deletion curves and pictures."""

import csv
import json

import pytest
from samples import run_command

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
    assert explain(trained, "--out", lines, "--output", "yes").exit_code == 0
    first = json.loads(lines.read_text().splitlines()[0])
    (answer,) = first["outputs"]
    contributions = answer["vertex_contributions"] + answer["edge_contributions"]
    assert sum(contributions) == pytest.approx(answer["output"] - answer["baseline"], rel=1e-4)
    listed = [float(r["contribution"]) for r in rows if (r["graph"], r["output"]) == ("CCO", "yes")]
    assert sum(listed) == pytest.approx(sum(contributions), abs=1e-9)
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
