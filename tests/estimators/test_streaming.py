"""Collections of any size: the parts of a table are the rows of the whole, however it is made."""

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from samples import FAST, rings_and_cliques, run_command, two_kinds

from softperm import PiGNNClassifier
from softperm.data import molecules as molecule_reading
from softperm.data.formats.shards import canonical_graph, read_shards
from softperm.data.formats.tables import Record
from softperm.data.graphs import as_graphs
from softperm.data.molecules import read_symbols
from softperm.data.vocabulary import UnseenLabels, Vocabulary
from softperm.errors import GraphError
from softperm.estimators import pignn as base
from softperm.estimators import streaming
from softperm.estimators.streaming import ShardWorker, run_shards, write_table
from softperm.files import exclusive

pq = pytest.importorskip("pyarrow.parquet")

MOLECULES = ["C" * (1 + i % 6) + ["O", "N", "=O", "c1ccccc1", "#N"][i % 5] for i in range(60)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[PiGNNClassifier, Path]:
    folder = tmp_path_factory.mktemp("model")
    made = PiGNNClassifier(**FAST).fit(MOLECULES, [i % 2 for i in range(60)])
    made.save(folder)
    return made, folder


def write_molecules(path: Path, count: int) -> Path:
    rows = [f"m{i},{MOLECULES[i % 60]}" for i in range(count)]
    path.write_text("\n".join(["id,smiles", *rows]) + "\n")
    return path


def worker(folder: Path, out: Path, **options) -> ShardWorker:
    return ShardWorker(
        str(folder), "cpu", folder=out, ending=".csv", **{"vectors": False} | options
    )


def load_and_note(log: Path, folder: str, device: str) -> PiGNNClassifier:
    with log.open("a") as stream:
        stream.write(f"{os.getpid()} {device}\n")
    return PiGNNClassifier.load(folder, "cpu")


@pytest.fixture(scope="module")
def in_two_processes(trained, tmp_path_factory) -> Path:
    """The folder of a table that two processes made, and of the log of the models they loaded."""
    folder = tmp_path_factory.mktemp("two")
    shards = partial(read_shards, write_molecules(folder / "m.csv", 130), rows=30, id_column="id")
    made = ShardWorker(
        str(trained[1]), "cuda:0", folder=folder / "t.parts", ending=".csv", vectors=False,
        load=partial(load_and_note, folder / "log"),
    )  # fmt: skip
    write_table(made, shards, folder / "t.csv", {}, partial(run_shards, processes=2))
    return folder


def test_rows_equal_those_in_memory_whatever_the_cuts(trained, in_two_processes, tmp_path):
    made, folder = trained
    path = write_molecules(tmp_path / "m.csv", 130)
    expected = made.predict_proba([MOLECULES[i % 60] for i in range(130)])
    tables = [in_two_processes / "t.csv"]
    for rows in (30, 1000):
        out = tmp_path / f"{rows}.csv"
        shards = partial(read_shards, path, rows=rows, id_column="id")
        one_process = partial(run_shards, processes=1)
        write_table(worker(folder, out.with_suffix(".parts")), shards, out, {}, one_process)
        tables.append(out)
    for out in tables:
        table = np.loadtxt(out, delimiter=",", skiprows=1, dtype=str)
        assert table[:, 0].tolist() == [f"m{i}" for i in range(130)]
        np.testing.assert_allclose(table[:, 2:4].astype(float), expected, rtol=0, atol=1e-5)
    same = tables[0].read_bytes() == tables[1].read_bytes()
    assert same, "the number of processes does not change a bit"


KILLED = """
import sys
from softperm.cli import main
from softperm.estimators import pignn as base, streaming
streaming.ROWS = 40
sys.argv = ["softperm", *{arguments!r}]
main()
"""


def test_parts_that_are_whole_are_not_computed_again(trained, tmp_path):
    """A command that ends after some parts leaves them, and the next one computes the others."""
    shards = partial(read_shards, write_molecules(tmp_path / "m.csv", 100), rows=20, id_column="id")
    computed, limit = [], 0

    class Ending(ShardWorker):
        def __call__(self, shard):
            if len(computed) == limit:
                raise KeyboardInterrupt
            computed.append(shard.number)
            return super().__call__(shard)

    options = {"vectors": False, "ending": ".csv", "folder": tmp_path / "t.csv.parts"}
    ending = Ending(str(trained[1]), "cpu", **options)
    broken, whole = tmp_path / "t.csv", tmp_path / "w.csv"
    one_process = partial(run_shards, processes=1)
    for limit in (2, 3):  # noqa: B007
        with pytest.raises(KeyboardInterrupt):
            write_table(ending, shards, broken, {}, one_process)
        assert not broken.exists()
    limit = 5
    write_table(ending, shards, broken, {}, one_process)
    assert computed == [0, 1, 2, 3, 4]
    write_table(worker(trained[1], tmp_path / "w.parts"), shards, whole, {}, one_process)
    assert broken.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_a_command_that_is_killed_again_and_again_writes_the_same_file(trained, tmp_path):
    """Each time it is killed when the next part is there; parts that are whole stay."""
    path = write_molecules(tmp_path / "m.csv", 200)

    def command(place: Path) -> list[str]:
        words = ["embed", trained[1], path, "--out", place, "--id-column", "id", "--processes", 1]
        return [sys.executable, "-c", KILLED.format(arguments=[str(word) for word in words])]

    whole, broken = tmp_path / "whole.npz", tmp_path / "broken.npz"
    subprocess.run(command(whole), check=True, capture_output=True)
    parts = tmp_path / "broken.npz.parts"
    for wanted in (1, 3):
        process = subprocess.Popen(
            command(broken), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        deadline = time.monotonic() + 60
        while len([*parts.glob("part-*.json")]) < wanted and time.monotonic() < deadline:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not broken.exists()
    assert [*parts.glob("part-*.npz")]
    subprocess.run(command(broken), check=True, capture_output=True)
    assert whole.read_bytes() == broken.read_bytes()
    assert not parts.exists()


BROKEN = {
    "not SMILES": "x{i},hello",
    "an open ring": "x{i},C1CC",
    "an open bracket": "x{i},C(C",
    "no SMILES": "x{i},",
    "two molecules in a cell": "x{i},CC CC",
    "an impossible aromatic ring": "x{i},c1ccc1c",
    "too few cells": "x{i}",
    "too many cells": "x{i},CC,CC",
    "an open quote": 'x{i},"CC',
    "no UTF-8": "x{i},C\udcff",
}


def test_every_broken_row_is_kept_with_line_and_reason_and_all_others_are_predicted(
    trained, tmp_path
):
    rows, broken = ["id,smiles"], {}
    for i in range(1000):
        kind = [*BROKEN][i // 100] if i % 100 == 50 else None
        broken |= {} if kind is None else {i + 2: kind}
        rows.append(BROKEN[kind].format(i=i) if kind else f"m{i},{MOLECULES[i % 60]}")
    path, out = tmp_path / "m.csv", tmp_path / "p.parquet"
    path.write_bytes("\n".join(rows).encode(errors="surrogateescape"))
    done = run_command("predict", trained[1], path, "--out", out, "--id-column", "id", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"graphs": 1000, "problems": 10, "predictions": str(out)}
    assert "10 of 1,000 graphs have no result" in done.stderr
    assert f"m.csv line {min(broken)}: " in done.stderr
    table = pq.read_table(out).to_pylist()
    assert len(table) == 1000
    for line, row in enumerate(table, start=2):
        assert (row["problem"] is None) == (line not in broken)
        assert (row["prediction"] is None) == (line in broken)
        if line in broken:
            assert f"line {line}" in row["problem"]
        else:
            assert row["graph"] == f"m{line - 2}"
    strict = run_command("predict", trained[1], path, "--out", out, "--strict")
    assert strict.exit_code == 2
    assert f"m.csv line {min(broken)}: " in strict.stderr


def test_parts_of_another_command_are_not_mixed_in(trained, tmp_path):
    folder = trained[1]
    path = write_molecules(tmp_path / "m.csv", 10)
    out = tmp_path / "parts"
    assert run_command("predict", folder, path, "--out", out).exit_code == 0
    again = run_command("predict", folder, path, "--out", out)
    assert again.exit_code == 0, "the same command has nothing left to do"
    path.write_text("smiles\nCC\n")
    done = run_command("predict", folder, path, "--out", out)
    assert done.exit_code == 2
    assert "holds the results of another command" in done.stderr


def test_the_score_does_not_depend_on_the_parts(tmp_path, monkeypatch):
    labels = ["yes" if "N" in s else "no" for s in MOLECULES]
    made = PiGNNClassifier(**FAST).fit(MOLECULES, labels)
    made.target_names_ = ("y",)  # as softperm train names it
    made.save(tmp_path / "model")
    path = tmp_path / "m.csv"
    path.write_text("\n".join(["smiles,y", *map(",".join, zip(MOLECULES, labels, strict=True))]))
    monkeypatch.setattr(streaming, "FEW", 1000)  # no other processes
    found = []
    for rows in (1000, 7):
        monkeypatch.setattr(streaming, "ROWS", rows)
        done = run_command(
            "predict", tmp_path / "model", path, "--out", tmp_path / "p.csv", "--json"
        )
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    assert found[0]["score"] == pytest.approx(made.score(MOLECULES, labels))


def test_reading_processes_leave_the_model_off_the_gpu(in_two_processes):
    log = (in_two_processes / "log").read_text().splitlines()
    loaded = dict(line.split(" ") for line in log)
    here = loaded.pop(str(os.getpid()))
    assert here == "cuda:0"
    assert loaded
    assert set(loaded.values()) == {"cpu"}


def test_generators_in_generators_out():
    graphs, y = two_kinds(20)
    made = PiGNNClassifier(**FAST).fit(graphs, y)
    repeated = (graphs[i % 20] for i in range(1200))
    found = made.iter_predict(repeated)
    first = [next(found) for _ in range(20)]
    assert first == made.predict(graphs).tolist()
    next(repeated)  # the rest has not been read
    vectors = np.stack([*made.iter_transform(graphs[i % 20] for i in range(600))])
    np.testing.assert_allclose(vectors[580:600], made.transform(graphs), rtol=0, atol=1e-5)
    with pytest.raises(GraphError, match="graph 600: "):
        list(made.iter_predict(graphs[0] if i < 600 else (None, 1) for i in range(700)))


def test_batches_are_cut_by_vertices_and_change_no_row(monkeypatch):
    graphs, y = two_kinds(20)
    made = PiGNNClassifier(**FAST).fit(graphs, y)
    collection = made._encode(graphs)
    expected = made.transform(graphs), made.predict_proba(graphs)
    for limit in (1, 20, 60):
        monkeypatch.setattr(base, "BATCH_VERTICES", (limit, limit))
        batches = [*made._batches(collection)]
        assert sum(batch.num_graphs for batch in batches) == 20
        assert all(batch.num_nodes <= limit or batch.num_graphs == 1 for batch in batches)
        for one, other in zip(
            expected, (made.transform(graphs), made.predict_proba(graphs)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_compact_vectors_have_the_same_distances(trained, tmp_path):
    folder = trained[1]
    path = write_molecules(tmp_path / "m.csv", 30)
    found = {}
    for name, options in {"whole": [], "compact": ["--compact"], "half": ["--half"]}.items():
        out = tmp_path / f"{name}.npz"
        assert run_command("embed", folder, path, "--out", out, *options).exit_code == 0
        with np.load(out) as arrays:
            found[name] = arrays["vectors"]
            assert arrays["name"].shape == (found[name].shape[1],)
    assert found["compact"].shape[1] < 0.7 * found["whole"].shape[1]
    assert found["half"].dtype == np.float16
    distances = [np.linalg.norm(v[:, None].astype(float) - v[None], axis=2) for v in found.values()]
    np.testing.assert_allclose(distances[1], distances[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(distances[2], distances[0], rtol=1e-2, atol=2e-2)


EVERY_KIND = [
    *MOLECULES, "[Na+].[Cl-]", "C[N+](C)(C)C", "[Cu]<-N", "N->[Pt](Cl)Cl", "C$C", "[2H]C", "*C",
    "CO[Ti](OC)(OC)OC", "c1ccc2[nH]ccc2c1", "B(O)O", "S(=O)(=O)(O)O", "N(=O)(=O)C", "[H][H]",
    "[se]1cccc1", "[Sc]C", "[13CH3:7]Br", "C1=CC=CC=C1Cl", "C~C", "C:C", "F/C=C\\[C@@H](I)S",
    "OC(C)(C)(C)(C)C", "[CH3]", "[cH-]1cccc1", "[#6]C", "[Co]", "Cl%11CC%11", "P(C)(C)(C)(C)C",
    "C" * 600, "not", "C1CC", "",
]  # fmt: skip


def test_molecules_read_at_once_are_the_graphs_read_one_by_one(monkeypatch):
    monkeypatch.setattr(molecule_reading, "_ENTRIES", 100)  # several blocks of matrices
    graphs, bad = [], {}
    for i, text in enumerate(EVERY_KIND):
        try:
            graphs.append(canonical_graph(Record("", "", text), False)[0])
        except ValueError as error:
            bad[i] = str(error)
    molecules, problems = read_symbols(EVERY_KIND)
    assert problems == bad
    assert len(bad) == 3
    vocabulary = Vocabulary.learn(graphs[:60])
    assert vocabulary.of_symbols
    with pytest.warns(UnseenLabels) as caught:
        expected, found = vocabulary.encode(graphs), vocabulary.encode_molecules(molecules)
    assert str(caught[0].message) == str(caught[1].message)
    for name in ("ptr", "edge_ptr", "edge_index", "structure", "label", "edge_label"):
        assert getattr(found, name).equal(getattr(expected, name)), name
    assert found.label_sizes == expected.label_sizes


def test_memory_does_not_grow_with_the_square_of_a_molecule():
    read_symbols(["CC"])
    tracemalloc.start()
    read_symbols(["C" * 2000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2000**2 / 4, "a matrix of bond orders"


def test_parquet_has_dictionaries_of_text_alone(trained, tmp_path):
    path, out = write_molecules(tmp_path / "m.csv", 30), tmp_path / "v.parquet"
    assert run_command("embed", trained[1], path, "--out", out).exit_code == 0
    columns = [pq.ParquetFile(out).metadata.row_group(0).column(i) for i in (0, 1, 2)]
    assert ["RLE_DICTIONARY" in column.encodings for column in columns] == [True, False, False]


def test_two_commands_do_not_write_one_table(trained, tmp_path):
    path = write_molecules(tmp_path / "m.csv", 10)
    (tmp_path / "p.csv.parts").mkdir()
    with exclusive(tmp_path / "p.csv.parts" / "run"):
        done = run_command("predict", trained[1], path, "--out", tmp_path / "p.csv")
    assert done.exit_code == 2
    assert "another command is writing" in done.stderr


def test_datasets_and_files_without_molecules_go_the_same_way(tmp_path):
    graphs, kinds = rings_and_cliques(12)
    made = PiGNNClassifier(**FAST).fit(graphs, kinds)
    made.save(tmp_path / "m")
    collection = made.vocabulary_.encode(as_graphs(graphs))
    ids = [str(i) for i in range(12)]
    shards = partial(streaming.collection_shards, collection, ids, {}, rows=5)
    out = tmp_path / "v.npz"
    options = {"vectors": True, "ending": ".npz"}
    work = ShardWorker(str(tmp_path / "m"), "cpu", folder=tmp_path / "v.parts", **options)
    one_process = partial(run_shards, processes=1)
    summary, _ = write_table(work, shards, out, {}, one_process)
    assert summary.rows == 12
    with np.load(out) as arrays:
        np.testing.assert_allclose(arrays["vectors"], made.transform(graphs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("vectors", [False, True])
def test_a_result_that_is_not_finite_is_a_problem_of_its_row(tmp_path, vectors):
    def path_graph(number: int, value: float) -> dict:
        ends = [{"source": 0, "target": 1}]
        nodes = [{"id": 0, "x": value}, {"id": 1, "x": 1.0}]
        return {"nodes": nodes, "edges": ends, "y": number % 2}

    usual = [path_graph(i, float(i)) for i in range(6)]
    graphs = [nx.Graph([(0, 1)]) for _ in usual]
    for graph, each in zip(graphs, usual, strict=True):
        nx.set_node_attributes(graph, {v["id"]: v["x"] for v in each["nodes"]}, "x")
    model = PiGNNClassifier(**FAST | {"validation_fraction": 0.0}).fit(graphs, [0, 1] * 3)
    model.save(tmp_path / "model")
    nx.set_node_attributes(graphs[1], 1e30, "x")
    with pytest.raises(GraphError, match=r"graph 1: its .* is not a finite number"):
        model.predict(graphs)
    path, out = tmp_path / "a.jsonl", tmp_path / "out.csv"
    rows = [usual[0], path_graph(1, 1e30), *usual[2:]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"vectors": vectors, "half": vectors}  # 1e30 is not finite in 16 bits
    working = worker(tmp_path / "model", tmp_path / "parts", **options)
    summary, _ = write_table(working, partial(read_shards, path), out, {})
    assert (summary.rows, summary.problems) == (6, 1)
    lines = out.read_text().splitlines()
    assert "is not a finite number" in lines[2]
    assert "nan" not in "".join(lines)
    (tmp_path / "strict").mkdir()
    with pytest.raises(ValueError, match="is not a finite number"):
        replace(working, strict=True, folder=tmp_path / "strict")(next(read_shards(path)))


def test_parts_are_not_written_among_other_files(trained, tmp_path):
    """Such as those of a training run, whose folder is easily named by mistake."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    table = tmp_path / "a.csv"
    table.write_text("smiles\nCC\n")
    done = run_command("predict", trained[1], table, "--out", tmp_path / "run")
    assert done.exit_code == 2
    assert "holds other files, such as config.json: choose a new or empty folder" in done.output
    assert (tmp_path / "run" / "config.json").read_text() == "{}"
    assert not list((tmp_path / "run").glob("part-*"))
