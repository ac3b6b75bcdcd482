"""Records survive the disk unchanged; damaged ones are named."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lab.test_tables import record

from softperm.lab.records import (
    PeakMemory,
    _checksum,
    collect_records,
    find_records,
    read_records,
    write_records,
)


def test_records_come_back_as_they_were_written(tmp_path):
    records = [record(0, 0, 0.1 + 0.2), record(1, 0, None, validation_loss=math.pi)]
    write_records(tmp_path / "a.jsonl", records)
    assert read_records(tmp_path / "a.jsonl") == records


def test_numbers_that_are_not_defined_become_null_and_come_back(tmp_path):
    write_records(tmp_path / "a.jsonl", [record(0, 0, 0.5, validation_loss=math.nan)])
    assert "NaN" not in (tmp_path / "a.jsonl").read_text()
    assert math.isnan(read_records(tmp_path / "a.jsonl")[0].validation_loss)


def test_the_peak_memory_of_a_job_is_its_own():
    """Not that of an earlier job, nor of a later one."""
    memory = PeakMemory(torch.device("cpu"))
    with memory.measure() as large:
        block = torch.ones(2**27, dtype=torch.uint8)
    del block
    with memory.measure() as small:
        pass
    if large.bytes == 0:
        pytest.skip("this system does not tell the peak memory of a process")
    assert large.bytes - small.bytes > 2**26
    assert (large.shared_by, small.shared_by) == (1, 1)


def test_jobs_that_overlap_share_their_peak():
    memory = PeakMemory(torch.device("cpu"))
    with memory.measure() as first:
        block = torch.ones(2**27, dtype=torch.uint8)
        with memory.measure() as second:
            del block
    assert first.bytes >= second.bytes
    assert (first.shared_by, second.shared_by) == (2, 2)


def test_where_the_system_does_not_tell_memory_is_unknown(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)  # as on Windows
    monkeypatch.setattr(Path, "write_text", missing)
    with PeakMemory(torch.device("cpu")).measure() as peak:
        pass
    assert peak.bytes == 0


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "a\0"])
def test_a_name_that_would_leave_the_folder_is_refused(name, tmp_path):
    bad = record(0, 0, 0.5)
    write_records(tmp_path / "a.jsonl", [replace(bad, run=replace(bad.run, dataset=name))])
    with pytest.raises(ValueError, match="names is not valid in a record"):
        read_records(tmp_path / "a.jsonl")


def test_the_digest_sees_numbers_and_not_circumstances():
    first = record(0, 0, 0.5)
    slower = replace(first, circumstances=replace(first.circumstances, seconds=9.0, device="x"))
    assert first.digest == slower.digest
    assert first.digest != replace(first, test_score=0.5 + 1e-16 + 2e-16).digest
    assert first.digest != replace(first, run=replace(first.run, seed=1)).digest


def test_a_record_found_twice_counts_once(tmp_path):
    for name in ("a", "b"):
        write_records(tmp_path / name / "r.jsonl", [record(0, 0, 0.5)])
    assert len(list(find_records(tmp_path))) == 1


def test_compressed_records_come_back_as_they_were_written(tmp_path):
    records = [record(0, 0, 0.1 + 0.2), record(1, 0, None)]
    path = tmp_path / "a.jsonl.gz"
    write_records(path, records)
    assert list(find_records(tmp_path)) == records
    first = path.read_bytes()
    write_records(path, records)
    assert path.read_bytes() == first, "equal records, equal bytes"


@pytest.mark.parametrize("cut", [0, 5, 40, -9])
def test_a_damaged_compressed_file_is_named(cut, tmp_path):
    path = tmp_path / "a.jsonl.gz"
    write_records(path, [record(0, 0, 0.5)])
    path.write_bytes(path.read_bytes()[:cut] + b"x")
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz is damaged"):
        read_records(path)


def test_a_collected_record_counts_once_beside_its_original(tmp_path):
    curve = {name: [0.5] for name in ("train_loss", "validation_loss", "validation_score")}
    original = replace(record(0, 0, 0.5), curve=curve)
    write_records(tmp_path / "records" / "a.jsonl", [original])
    collect_records([original], tmp_path)
    assert list(find_records(tmp_path)) == [original]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"format": 1}', "line 1 is no record of a training"),
        (b"not json", r"line 1 is no record of a training \(.*\); a damaged file may be deleted"),
        (b'{"format": 99}', "line 1 has format 99: upgrade softperm"),
        (b"[1, 2]", "line 1 is no record of a training"),
    ],
)
def test_damaged_records_are_named(content, sentence, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content + b"\n")
    with pytest.raises(ValueError, match=sentence):
        read_records(path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("run", "fold"), 99), (("run", "fold"), "0"), (("run", "folds"), 0),
        (("run", "model"), 3), (("run", "configuration"), None), (("test_score",), "high"),
        (("curve",), "flat"), (("curve",), {"train_loss": [1.0]}),
        (("circumstances", "seconds"), None), (("circumstances", "memory"), "x"),
        (("circumstances", "versions"), {}), (("circumstances", "versions"), None),
        (("test_score",), 9.9), (("test_score",), -0.1), (("validation_score",), 1.01),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_named(place, value, tmp_path):
    write_records(tmp_path / "a.jsonl", [record(0, 0, 0.5)])
    content = json.loads((tmp_path / "a.jsonl").read_text())
    *path, last = place
    table = content
    for key in path:
        table = table[key]
    table[last] = value
    for version in (1, 2):  # lines of format 1 have no checksum
        content.pop("checksum", None)
        content["format"] = version
        if version == 2:
            content["checksum"] = _checksum(content)
        (tmp_path / "a.jsonl").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"line 1 is no record of .* is not valid in a record"):
            read_records(tmp_path / "a.jsonl")


def test_every_flipped_bit_of_a_record_is_named_by_file_and_line(tmp_path):
    path = tmp_path / "a.jsonl"
    write_records(path, [record(0, 0, 0.5), record(1, 0, 0.25)])
    sound, content = read_records(path), path.read_bytes()
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            outcome: object = read_records(path)
        except ValueError as error:
            outcome = re.fullmatch(rf"{path}, line [123] .+", str(error)) and sound
        assert outcome == sound, f"bit {place}: read without an error, or not named"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 2}', "does not match its checksum"),
        ('{"format": 1, "format": 1}', "a key appears twice"),
        ("[" * 100_000, "RecursionError"),
        ('{"format": "2"}', "TypeError"),
    ],
)
def test_odd_lines_are_named(text, message, tmp_path):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(ValueError, match=f"line 1 is no record of a training.*{message}"):
        read_records(tmp_path / "a.jsonl")
