"""Files of prepared datasets: arrays come back as written, in any size, and damage is found."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from softperm.data.datasets.prepared import MANIFEST, ArrayWriter, Schema, open_prepared

SCHEMA = Schema("TOY", "classification", class_names=("1", "é"))


def write(folder: Path, *parts: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    writer = ArrayWriter(folder)
    for part in parts:
        for name, rows in part.items():
            writer.append(name, rows)
    writer.stack("pair", "first", "second")
    writer.offsets("ptr", counts="sizes")
    writer.finish(SCHEMA)
    return folder


def sample(seed: int, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "first": rng.integers(0, 9, rows).astype(np.int32),
        "second": rng.integers(0, 9, rows).astype(np.int32),
        "sizes": rng.integers(0, 9, rows),
        "table": rng.normal(size=(rows + 1, 3)).astype(np.float32),
        "small": rng.integers(-5, 5, (rows, 2)).astype(np.int8),
    }


def test_parts_come_back_end_to_end_and_aligned(tmp_path: Path) -> None:
    parts = [sample(0, 5), sample(1, 0), sample(2, 7)]
    prepared = open_prepared(write(tmp_path / "it", *parts))
    assert prepared.schema == SCHEMA
    whole = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    for name in ("table", "small"):
        np.testing.assert_array_equal(prepared.arrays[name], whole[name])
        assert prepared.arrays[name].dtype == whole[name].dtype
    np.testing.assert_array_equal(prepared.arrays["pair"], [whole["first"], whole["second"]])
    np.testing.assert_array_equal(np.diff(prepared.arrays["ptr"]), whole["sizes"])
    assert prepared.arrays["ptr"][0] == 0
    assert all(a.ctypes.data % 64 == 0 for a in prepared.arrays.values())


def test_numpy_opens_every_file(tmp_path: Path) -> None:
    prepared = open_prepared(write(tmp_path / "it", sample(0, 5)))
    assert set(prepared.arrays) == {"pair", "ptr", "table", "small"}
    for name, array in prepared.arrays.items():
        np.testing.assert_array_equal(np.load(prepared.path / f"{name}.npy"), array)


def test_tensors_may_be_written_to_and_the_file_does_not_change(tmp_path: Path) -> None:
    path = write(tmp_path / "it", sample(0, 5))
    before = (path / "table.npy").read_bytes()
    tensor = torch.from_numpy(open_prepared(path).arrays["table"])  # a warning would be an error
    tensor.zero_()
    assert (path / "table.npy").read_bytes() == before
    assert open_prepared(path).arrays["table"].any()


def test_a_file_larger_than_memory_and_swap_opens_and_reads(tmp_path: Path) -> None:
    with open("/proc/meminfo") as lines:
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    count = 1024 * 2 * (kilobytes["MemTotal"] + kilobytes["SwapTotal"]) // 4
    folder = write(tmp_path / "it", sample(0, 5))
    path = folder / "table.npy"
    with path.open("wb") as out:  # sparse: takes no space on the disk
        header = {"descr": "<f4", "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(out, header)
        out.seek(4 * (count - 1), os.SEEK_CUR)
        out.write(np.float32(2.5).tobytes())
    if path.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("this disk has no sparse files")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["arrays"]["table"] |= {"dtype": "<f4", "shape": [count]}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    x = torch.from_numpy(open_prepared(folder).arrays["table"])
    assert x.numel() == count
    assert (x[0].item(), x[-1].item()) == (0.0, 2.5)


@pytest.mark.parametrize("cut", [1, 8, 150])
@pytest.mark.parametrize("file", ["table.npy", MANIFEST])
def test_a_file_cut_short_is_refused(tmp_path: Path, file: str, cut: int) -> None:
    path = write(tmp_path / "it", sample(0, 5))
    os.truncate(path / file, (path / file).stat().st_size - cut)
    with pytest.raises(ValueError, match="is incomplete or damaged"):
        open_prepared(path)


@pytest.mark.parametrize("file", ["table.npy", MANIFEST])
def test_a_missing_file_is_an_error(tmp_path: Path, file: str) -> None:
    path = write(tmp_path / "it", sample(0, 5))
    (path / file).unlink()
    with pytest.raises(ValueError, match="is incomplete or damaged"):
        open_prepared(path)


def test_another_format_and_exchanged_arrays_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "it", sample(0, 5))
    (path / "table.npy").write_bytes((path / "small.npy").read_bytes())
    with pytest.raises(ValueError, match=r"table.npy is another array than the manifest"):
        open_prepared(path)
    (path / MANIFEST).write_text('{"format": 99}')
    with pytest.raises(ValueError, match="has format 99"):
        open_prepared(path)


def test_one_changed_byte_is_found_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "it", sample(0, 5))
    assert open_prepared(path).damaged_arrays() == []
    content = bytearray((path / "table.npy").read_bytes())
    content[-1] ^= 1
    (path / "table.npy").write_bytes(content)
    assert open_prepared(path).damaged_arrays() == ["table"]


def test_the_fingerprint_follows_the_content_and_not_the_parts(tmp_path: Path) -> None:
    part = {k: v for k, v in sample(0, 6).items() if k != "table"}
    halves = [{k: v[:3] for k, v in part.items()}, {k: v[3:] for k, v in part.items()}]
    whole, pieces, other = (
        open_prepared(write(tmp_path / "whole", part)).fingerprint,
        open_prepared(write(tmp_path / "pieces", *halves)).fingerprint,
        open_prepared(
            write(tmp_path / "other", {**part, "small": part["small"] + np.int8(1)})
        ).fingerprint,
    )
    assert whole == pieces != other
