"""Damaged files: every mutation is read rightly or refused by one line that names the file.

``make attack`` runs a thousand mutations of each kind, the test suite a few.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from attacks.mutations import attack
from lab.test_tables import record
from samples import FAST, labelled_path, rings_and_cliques

from softperm import GraphIndex, PiGNNClassifier
from softperm.data.datasets import load_dataset
from softperm.data.datasets import prepared as prepared_module
from softperm.data.datasets.prepared import MANIFEST, STAMP
from softperm.data.formats import read_graphs
from softperm.distance.matrix import frobenius_intervals
from softperm.lab.recipes import read_recipe
from softperm.lab.records import read_records, write_records
from softperm.training.checkpoints import read_checkpoint, write_checkpoint

COUNT = int(os.environ.get("SOFTPERM_ATTACKS", "20"))
SEED = int(os.environ.get("SOFTPERM_ATTACK_SEED", "1"))


def digest(*arrays: object) -> str:
    """A text that is equal for equal numbers."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    words = [labelled_path("ab" * k + "ba"[k % 2]) for k in range(1, 9)]
    PiGNNClassifier(**{**FAST, "validation_fraction": 0.0}).fit(words, ["yes", "no"] * 4).save(
        folder
    )
    return folder


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_models(name, model, record_property):
    words = [labelled_path("abba"), labelled_path("b")]

    def predictions() -> list:
        estimator = PiGNNClassifier.load(model)
        return [digest(estimator.predict_proba(words)), estimator.predict(words).tolist()]

    counts = attack(model / name, predictions, COUNT, SEED)
    record_property(name, str(counts))
    if name == "config.json":
        assert counts["refused"] == 0, "the copy for people is never read back"


def test_checkpoints(tmp_path):
    path = tmp_path / "checkpoint.bin"
    write_checkpoint(path, "abc", {"w": torch.arange(300.0), "curve": [{"loss": 0.5}], "epoch": 3})

    def state() -> list | None:
        content = read_checkpoint(path, "abc")
        return content and [digest(content["w"]), content["curve"], content["epoch"]]

    attack(path, state, COUNT, SEED)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_records(name, tmp_path):
    path = tmp_path / name
    write_records(path, [record(fold, 0, 0.25 + 0.1 * fold) for fold in range(3)])
    sound = [each.digest for each in read_records(path)]

    def digests() -> str:
        found = [each.digest for each in read_records(path)]
        # Whole lines may be lost or repeated: their runs are trained again, or count once.
        return "records" if set(found) <= set(sound) else str(found)

    attack(path, digests, COUNT, SEED)


def test_checkpoints_of_distances(tmp_path):
    path = tmp_path / "distances.pairs"
    graphs = [nx.path_graph(n) for n in (2, 3, 4, 5)] + [nx.cycle_graph(5)]

    def distances() -> str:
        found = frobenius_intervals(graphs, checkpoint=path, workers=1)
        return digest(found.distance, found.lower_bound, found.exact)

    distances()
    attack(path, distances, COUNT, SEED)


@pytest.fixture
def dataset(tmp_path, monkeypatch) -> Path:
    """The folder of a prepared dataset."""
    raw = tmp_path / "root" / "tu" / "TOY"
    raw.mkdir(parents=True)
    lines = {
        "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n",
        "graph_indicator": "1\n1\n1\n2\n2\n",
        "graph_labels": "1\n-1\n",
        "node_labels": "0\n1\n0\n2\n0\n",
        "node_attributes": "0.5\n1.5\n2.5\n3.5\n4.5\n",
    }
    for kind, text in lines.items():
        (raw / f"TOY_{kind}.txt").write_text(text)
    monkeypatch.setenv("SOFTPERM_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("SOFTPERM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prepared_module, "_structure", lambda part: np.ones((part.sizes.sum(), 2)))
    load_dataset("TOY")
    (folder,) = (tmp_path / "cache" / "prepared").glob("TOY-*[0-9a-f]")
    return folder


FILES = (
    "ptr.npy", "edge_ptr.npy", "edge_index.npy", "classes.npy", "label.npy", "x.npy",
    "structure.npy", MANIFEST, STAMP,
)  # fmt: skip


def test_prepared_datasets(dataset, tmp_path):
    """Damage is always mended: the raw files are there."""
    copy = tmp_path / "sound"
    shutil.copytree(dataset, copy)

    def content() -> list:
        found = load_dataset("TOY")
        arrays = [getattr(found.collection, name) for name in ("ptr", "edge_ptr", "edge_index")]
        arrays += [found.collection.label, found.collection.structure, found.y]
        outcome = [digest(*arrays), found.fingerprint, found.class_names]
        for path in copy.iterdir():  # the next mutation starts from a sound folder
            if not (dataset / path.name).exists() or path.name == MANIFEST:
                shutil.copy2(path, dataset / path.name)
        return outcome

    for name in FILES:
        counts = attack(dataset / name, content, -(-COUNT // len(FILES)), SEED, names=dataset)
        assert counts["refused"] == 0


@pytest.mark.parametrize("years", [-10, 10])
def test_a_clock_that_jumps_hides_no_damage(years, dataset):
    """The stamp of the verification, or the damaged file, has a time of long ago or far ahead."""
    expected, path = digest(load_dataset("TOY").y), dataset / "classes.npy"
    moved = path.stat().st_mtime_ns + years * 365 * 24 * 3600 * 10**9
    for jumped in (dataset / STAMP, path):
        content = bytearray(path.read_bytes())
        content[-8] ^= 1
        path.write_bytes(content)
        os.utime(jumped, ns=(moved, moved))
        assert digest(load_dataset("TOY").y) == expected


def test_indexes(tmp_path):
    graphs = [nx.path_graph(n) for n in range(2, 9)] + [nx.cycle_graph(n) for n in range(3, 9)]
    GraphIndex.build(graphs, ids=[f"g{k}" for k in range(len(graphs))]).save(tmp_path / "index")

    def nearest() -> list:
        index = GraphIndex.open(tmp_path / "index")
        return [[hit.id, hit.distance] for hit in index.nearest(nx.path_graph(6), k=3).hits]

    nearest()
    for path in sorted(p for p in (tmp_path / "index").iterdir() if p.suffix != ".lock"):
        attack(path, nearest, COUNT // 2, SEED, names=tmp_path / "index")


GRAPHML = """<?xml version="1.0"?>
<graphml><key id="d0" for="node" attr.name="label" attr.type="string"/>
<key id="d1" for="node" attr.name="x" attr.type="string"/>
<graph edgedefault="undirected"><node id="a"><data key="d0">C</data><data key="d1">1 2</data></node>
<node id="b"><data key="d0">N</data><data key="d1">[3, 4]</data></node><edge source="a" target="b"/>
</graph></graphml>
"""
RECIPE = """title = "Small"
datasets = ["MUTAG"]
models = ["pi-gnn"]
final_runs = 2
[training]
epochs = 3
[grid]
hidden = [8, 16]
"""


@pytest.mark.parametrize("kind", ["jsonl", "csv", "graphml", "tu", "toml"])
def test_files_of_users_are_read_or_refused_in_one_line(kind, tmp_path, record_property):
    """No checksum protects them, so that a mutation may be other data; it is never a traceback."""
    path = tmp_path / f"file.{kind}"
    names = None

    def read() -> None:
        read_graphs(path if kind != "tu" else tmp_path)

    if kind == "jsonl":
        graphs, _ = rings_and_cliques(3)
        rows = [{**nx.node_link_data(g, edges="links"), "y": k} for k, g in enumerate(graphs)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        names = path.name
    elif kind == "csv":
        path.write_text('smiles,y,"log P"\nCCO,1,0.5\n"C1=CC=CC=C1",0,"1,5"\nN#N,1,-2\n')
        names = path.name
    elif kind == "graphml":
        path.write_text(GRAPHML)
        names = path.name
    elif kind == "tu":
        path = tmp_path / "T_A.txt"
        path.write_text("1, 2\n2, 1\n3, 4\n4, 3\n")
        (tmp_path / "T_graph_indicator.txt").write_text("1\n1\n2\n2\n")
        names = "T_A.txt"
    else:
        path.write_text(RECIPE)

        def read() -> None:
            read_recipe(str(path))

    def quietly() -> str:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read()
        return "read"

    counts = attack(path, quietly, COUNT, SEED, names=names and Path(names))
    record_property(kind, str(counts))
