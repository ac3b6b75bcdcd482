"""Files prepared as mapped arrays: the same training data as from a file read into memory."""

import json
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from samples import run_command

from softperm.cli import run_folder
from softperm.data.collection import Collection
from softperm.data.formats import mapped
from softperm.data.formats.mapped import MappedFile, prepare_file
from softperm.data.formats.shards import read_shards
from softperm.training import sources

pytest.importorskip("rdkit")

MOLECULES = ["C" * (1 + i % 6) + ["O", "N", "=O", "c1ccccc1", "#N", "Cl"][i % 6] for i in range(90)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SOFTPERM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def table(path: Path, **columns: list) -> Path:
    rows = zip(MOLECULES, *columns.values(), strict=True)
    lines = [",".join(map(str, ["smiles", *columns]))]
    path.write_text("\n".join(lines + [",".join(map(str, row)) for row in rows]) + "\n")
    return path


def json_lines(path: Path) -> Path:
    lines = []
    for i in range(40):
        n = 3 + i % 5
        nodes = [
            {"id": k, "label": f"l{k % 3}" if i % 2 else k % 3, "x": [k / 7, i]} for k in range(n)
        ]
        weight = {"weight": 1.5} if i > 25 else {}
        edges = [
            {"source": k, "target": (k + 1) % n, "label": (k + i) % 2, **weight} for k in range(n)
        ]
        graph = {"y": i / 3 if i % 7 else None, "kind": f"k{i % 2}"}
        lines.append(json.dumps({"graph": graph, "nodes": nodes, "edges": edges}))
    path.write_text("\n".join(lines) + "\n")
    return path


def both(path: Path, target: list[str] | None, **options):
    """Training data of a file by way of mapped arrays, and read into memory."""
    found = []
    for in_memory in (0, 1 << 40):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            file = sources.read_file(path, target, None, False, in_memory=in_memory, **options)
            assert isinstance(file, MappedFile) == (in_memory == 0)
            task = sources.choose_task("auto", file)
            data = sources.from_file(file, task, test_fraction=0.2, validation_fraction=0.1, seed=1)
        found.append((data, file, sorted(str(w.message) for w in said)))
    return found


def assert_same(path: Path, target: list[str] | None, monkeypatch, **options) -> None:
    monkeypatch.setattr(sources, "ENCODED", 16)
    (one, mapped_file, said), (other, file, expected) = both(path, target, **options)
    assert said == expected
    for f in fields(Collection):
        a, b = getattr(one.graphs, f.name), getattr(other.graphs, f.name)
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a.to(b.dtype), b, rtol=0, atol=0)
        else:
            assert a == b, f.name
    torch.testing.assert_close(one.y, other.y, rtol=0, atol=0, equal_nan=True)
    assert one.y.dtype == other.y.dtype
    assert (one.task, one.vocabulary, one.target_names) == (
        other.task, other.vocabulary, other.target_names
    )  # fmt: skip
    assert list(one.ids) == list(other.ids)
    assert list(mapped_file.places) == list(file.places)
    assert list(mapped_file.problems) == list(file.problems)
    assert np.array_equal(one.classes, other.classes) if other.classes is not None else True
    assert all(torch.equal(a, b) for a, b in zip(one.split.parts, other.split.parts, strict=True))


COLUMNS = {
    "whole": [i % 2 for i in range(90)],
    "real": [i / 7 for i in range(90)],
    "gaps": ["" if i % 5 == 0 else i % 2 for i in range(90)],
    "late": ["NA" if i < 40 else 1 - i % 2 for i in range(90)],
    "word": ["NA" if i == 80 else f"c{i % 2}" for i in range(90)],
    "few": [i % 3 if i != 85 else "x" for i in range(90)],
    "large": [2**53 + i % 2 for i in range(90)],
}


@pytest.mark.parametrize(
    "target", [["whole"], ["real"], ["gaps", "late", "whole"], ["word"], ["few"], ["large"]]
)
def test_a_table_prepared_in_parts_gives_the_training_data_of_memory(target, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "prepare_file", small_parts)
    assert_same(table(tmp_path / "m.csv", **COLUMNS), target, monkeypatch)


def small_parts(path: Path, **options) -> MappedFile:
    return prepare_file(path, **options, rows=16, processes=1)


def test_graphs_with_labels_attributes_and_weights_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "prepare_file", small_parts)
    path = json_lines(tmp_path / "g.jsonl")
    assert_same(path, ["y"], monkeypatch)
    assert_same(path, ["kind"], monkeypatch)


def test_rows_that_cannot_be_read_are_left_out_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "prepare_file", small_parts)
    path = table(tmp_path / "m.csv", whole=COLUMNS["whole"])
    lines = path.read_text().splitlines()
    lines[5], lines[40], lines[41] = "C1CC,0", "C,0,1", "notsmiles,1"
    path.write_text("\n".join(lines) + "\n")
    assert_same(path, ["whole"], monkeypatch)
    file = sources.read_file(path, ["whole"], None, False, in_memory=0)
    assert len(file.ids) == 87
    assert [p.split(":")[0] for p in file.problems] == [f"m.csv line {k}" for k in (6, 41, 42)]
    for in_memory in (0, 1 << 40):
        with pytest.raises(ValueError, match="line 6: "):
            sources.read_file(path, ["whole"], None, False, strict=True, in_memory=in_memory)
    lines[1:20] = ["?,1"] * 19
    path.write_text("\n".join(lines) + "\n")
    for in_memory in (0, 1 << 40):
        with pytest.raises(ValueError, match="21 of 90 rows cannot be read"):
            sources.read_file(path, ["whole"], None, False, in_memory=in_memory)


def test_parts_of_a_killed_process_are_used(tmp_path, cache, monkeypatch):
    path = table(tmp_path / "m.csv", whole=COLUMNS["whole"])
    whole = prepare_file(path, rows=16, processes=1).content
    (folder,) = (path for path in (cache / "prepared").glob("file-*") if path.is_dir())
    calls, call = [], mapped.PartWorker.__call__

    def counted(self, shard):
        calls.append(shard.number)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return call(self, shard)

    shutil.rmtree(folder)
    monkeypatch.setattr(mapped.PartWorker, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        prepare_file(path, rows=16, processes=1)
    again = prepare_file(path, rows=16, processes=1)
    assert calls == [0, 1, 2, 3, 3, 4, 5]
    assert again.content == whole
    prepare_file(path, rows=16, processes=1)
    assert len(calls) == 7, "a prepared file is not read again"
    assert not list((cache / "prepared").glob("*.parts"))


@pytest.mark.parametrize("step", ["_write_parts", "_mapped_file"])
def test_a_file_that_is_replaced_while_it_is_prepared_is_refused(step, tmp_path, monkeypatch):
    """Nothing of its new content is used for the old one."""
    path = table(tmp_path / "m.csv", word=COLUMNS["word"])
    other = table(tmp_path / "other.csv", word=COLUMNS["word"][::-1])
    old, real = path.read_bytes(), getattr(mapped, step)

    def replaced(*arguments):
        other.replace(path)
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(mapped, step, replaced)
        with pytest.raises(ValueError, match=r"m\.csv changed while it was read: run the command"):
            prepare_file(path, rows=16, processes=1)
    path.write_bytes(old)
    found = prepare_file(path, rows=16, processes=1)
    assert [None if w == "NA" else w for w in found.targets["word"]] == [
        None if w == "NA" else w for w in COLUMNS["word"]
    ]


def test_parts_of_a_process_killed_at_its_end_are_removed(tmp_path, cache):
    path = table(tmp_path / "m.csv", whole=COLUMNS["whole"])
    prepare_file(path, rows=16, processes=1)
    (folder,) = (path for path in (cache / "prepared").glob("file-*") if path.is_dir())
    folder.with_suffix(".parts").mkdir()
    prepare_file(path, rows=16, processes=1)
    assert not list((cache / "prepared").glob("*.parts"))


def test_a_renamed_file_has_its_own_places_and_words(tmp_path):
    path = table(tmp_path / "m.csv", word=COLUMNS["word"])
    before = prepare_file(path, rows=16, processes=1)
    after = prepare_file(path.rename(tmp_path / "n.csv"), rows=16, processes=1)
    assert list(after.places) == [place.replace("m.csv", "n.csv") for place in before.places]
    assert after.targets["word"].tolist() == before.targets["word"].tolist()


def test_train_from_mapped_arrays_gives_the_same_model(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "prepare_file", small_parts)
    monkeypatch.setattr(run_folder, "_draw_some", lambda *_: 0)
    path = table(tmp_path / "m.csv", whole=COLUMNS["whole"])
    models = []
    for in_memory in (0, 1 << 40):
        monkeypatch.setattr(sources, "IN_MEMORY", in_memory)
        out = tmp_path / f"run-{in_memory}"
        done = run_command(
            "train", path, "--out", out, "--epochs", 1, "--trees", 4, "--no-progress"
        )
        assert done.exit_code == 0, done.output
        models.append((out / "model" / "model.safetensors").read_bytes())
    assert models[0] == models[1]


@pytest.mark.slow
def test_words_of_a_file_that_lost_rows_meanwhile_are_refused(tmp_path):
    """Targets of words are read a second time, when the arrays are opened."""
    path = table(tmp_path / "m.csv", word=COLUMNS["word"])

    def open_shards():
        return read_shards(path, rows=16)

    places = ["m.csv line 2", "m.csv line 91"]
    found = mapped._reread(open_shards, ["word"], places, True, path)
    assert found["word"].tolist() == [COLUMNS["word"][0], COLUMNS["word"][89]]
    path.write_text("\n".join(path.read_text().splitlines()[:50]) + "\n")
    with pytest.raises(ValueError, match=r"m\.csv has changed while it was read: m.csv line 91"):
        mapped._reread(open_shards, ["word"], places, True, path)


@pytest.mark.slow
def test_preparation_survives_kills(tmp_path, cache):
    path = tmp_path / "m.csv"
    rows = "".join(f"{'C' * (i % 30)}O{i % 7 * 'N'},{i % 2}\n" for i in range(40_000))
    path.write_text(f"smiles,y\n{rows}")
    code = (
        "import sys; from pathlib import Path; from softperm.data.formats.mapped import *;"
        "print(prepare_file(Path(sys.argv[1]), rows=1000, processes=2).content)"
    )
    command = [sys.executable, "-c", code, str(path)]
    for parts in (1, 20, 40):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and len(list(cache.rglob("part-*.json"))) < parts:
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL, "it was killed before its end"
        assert not [path for path in cache.rglob("file-*") if path.suffix == "" and path.is_dir()]
    resumed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    shutil.rmtree(cache)
    fresh = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert resumed == fresh
