"""``explore``: from a table of molecules to the page, to Parquet, and to a server."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from samples import run_command

MOLECULES = ["C" * n + end for n in range(1, 9) for end in ("O", "N", "F")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a table of SMILES: the first of two commands."""
    pytest.importorskip("rdkit")
    folder = tmp_path_factory.mktemp("explore")
    kinds = {"O": "alcohol", "N": "amine", "F": "fluoride"}
    rows = [f"{smiles},{kinds[smiles[-1]]},{len(smiles)}" for smiles in MOLECULES]
    (folder / "molecules.csv").write_text("smiles,kind,size\n" + "\n".join(rows) + "\n")
    done = run_command(
        "train", folder / "molecules.csv", "--target", "kind", "--out", folder / "run", "--epochs",
        30, "--latent-vertices", 5, "--compare", "cosine", "--device", "cpu", "--no-progress",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return folder


def test_from_a_table_of_smiles_to_the_page_with_two_commands(trained):
    table = trained / "map.parquet"
    done = run_command("explore", trained / "run", "--explain", 2, "--export", table, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    page = trained / "run" / "explore.html"
    assert (result["graphs"], result["explained"], result["page"]) == (24, 2, str(page))
    text = page.read_text(encoding="utf-8")
    assert result["bytes"] == len(text.encode())
    about = json.loads(re.search(r'id="about">(.*?)</script>', text)[1])
    assert about["name"] == "molecules.csv"
    assert [column["name"] for column in about["columns"]][:3] == [
        "kind",
        "predicted kind",
        "error",
    ]
    assert "size" in [column["name"] for column in about["columns"]]
    assert len(about["latents"]) == 5
    assert about["labels"] == ["C", "F", "N", "O"]
    assert any("accuracy" in name for name in about["facts"])
    assert len(about["curve"]) == 30
    rows = pytest.importorskip("pyarrow.parquet").read_table(table).to_pylist()
    assert [row["graph"] for row in rows] == MOLECULES
    assert {row["kind"] for row in rows} == {"alcohol", "amine", "fluoride"}
    for i, row in enumerate(rows):
        assert i not in row["neighbors"]["ids"]
        assert row["neighbors"]["distances"] == sorted(row["neighbors"]["distances"])


def test_explanations_end_when_their_time_is_over(trained):
    out = trained / "short.html"
    done = run_command(
        "explore", trained / "run", "--out", out, "--explain-seconds", 1e-9, "--json"
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["explained"] < 3
    assert out.exists()


def test_bad_input_is_one_sentence(trained):
    done = run_command("explore", trained / "run", "--map", "tsne")
    assert (done.exit_code, "pca, umap, pacmap" in done.stderr) == (2, True)
    done = run_command("explore", trained / "run" / "model")
    assert done.exit_code == 2
    assert "softperm explore RUN DATA" in done.stderr


def test_serve_answers_until_it_is_interrupted(trained):
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "softperm", "explore", str(trained / "run"), "--serve"]
    command += ["--port", "0", "--explain", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        for line in server.stderr:
            if found := re.search(r"serving at (\S+);", line):
                break
        request = urllib.request.Request(
            found[1] + "api/predict",
            json.dumps({"graphs": ["CCCCO", "CCCCN"]}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            predictions = json.load(answer)["predictions"]
        assert len(predictions) == 2
        assert predictions[0]["probabilities"].keys() == {"alcohol", "amine", "fluoride"}
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(30) in (0, 130)
        server.stderr.close()
