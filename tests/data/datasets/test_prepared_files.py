"""Files of prepared datasets: arrays come back as written, in any size, and damage is found."""

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from softperm.data.datasets import prepared as prepared_module
from softperm.data.datasets.prepared import MANIFEST, ArrayWriter, Prepared, Schema, open_prepared

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
    rewrite(folder, manifest)
    x = torch.from_numpy(open_prepared(folder, verify=False).arrays["table"])
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
    with pytest.raises(ValueError, match=r"table.npy is not the array that the manifest describes"):
        open_prepared(path)
    (path / MANIFEST).write_text('{"format": 99}')
    with pytest.raises(ValueError, match="has format 99"):
        open_prepared(path)


def flip(path: Path, place: int = -1, keep_times: bool = False) -> None:
    """Flips one bit of a file; optionally with the time of change that it had."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    if keep_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rewrite(folder: Path, manifest: dict) -> None:
    """Replaces the manifest by one with another content and a right digest, as a forger would."""
    content = {k: v for k, v in manifest.items() if k != "sha256"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps({**content, "sha256": digest}))


@pytest.mark.parametrize("opened_before", [False, True])
@pytest.mark.parametrize("keep_times", [False, True])
def test_one_flipped_bit_is_found_by_name(
    tmp_path: Path, opened_before: bool, keep_times: bool
) -> None:
    path = write(tmp_path / "it", sample(0, 5))
    if opened_before:
        assert open_prepared(path).damaged_arrays() == []
    flip(path / "table.npy", keep_times=keep_times)
    with pytest.raises(ValueError, match=r"damaged \(table changed after it was written\)"):
        open_prepared(path)
    assert open_prepared(path, verify=False).damaged_arrays() == ["table"]


def test_a_damaged_byte_of_the_manifest_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "it", sample(0, 2)) / MANIFEST
    content = path.read_bytes()
    schema = open_prepared(path.parent).schema
    for place in range(0, len(content), 7):
        flip(path, place)
        with suppress(ValueError):  # unless JSON reads the same, as with another blank
            assert open_prepared(path.parent).schema == schema
            assert json.loads(path.read_bytes()) == json.loads(content)
        path.write_bytes(content)


def test_arrays_are_hashed_again_only_after_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "it", sample(0, 5))
    time.sleep(0.06)  # longer than a tick of the file system's clock
    open_prepared(path)
    hashed: list[int] = []
    digest = prepared_module._digest
    monkeypatch.setattr(
        prepared_module, "_digest", lambda array: hashed.append(array.size) or digest(array)
    )
    open_prepared(path)
    assert not hashed
    (path / "table.npy").touch()
    open_prepared(path)
    assert len(hashed) == 4
    time.sleep(0.06)
    open_prepared(path)  # verified in the tick of a change: that may have come afterwards
    hashed.clear()
    open_prepared(path)
    assert not hashed


def test_a_folder_that_cannot_be_written_to_is_verified_once_by_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "it", sample(0, 5))
    time.sleep(0.06)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(prepared_module, "write_atomically", refuse)
    open_prepared(path)
    monkeypatch.setattr(Prepared, "damaged_arrays", refuse)
    open_prepared(path)


def graphs(folder: Path, **changes: np.ndarray) -> Path:
    """Two graphs of 2 and 3 vertices; some arrays replaced by forged ones."""
    folder.mkdir()
    writer = ArrayWriter(folder)
    arrays = {
        "ptr": np.array([0, 2, 5]), "edge_ptr": np.array([0, 2, 6]),
        "edge_index": np.array([[0, 1, 0, 1, 1, 2], [1, 0, 1, 0, 2, 1]], np.int32),
        "label": np.array([[0], [1], [0], [1], [0]], np.int8), "classes": np.array([0, 1]),
    }  # fmt: skip
    for name, array in {**arrays, **changes}.items():
        writer.append(name, array)
    writer.finish(Schema("G", "classification", class_names=("a", "b"), label_values=(("C", "N"),)))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"ptr": np.array([0, 7, 5])}, "ptr does not ascend from 0"),
        ({"ptr": np.array([0, 2, 6])}, "label does not have the 6 rows that ptr describes"),
        ({"edge_ptr": np.array([1, 2, 6])}, "edge_ptr does not ascend from 0"),
        ({"edge_ptr": np.array([0, 6, 6])}, "edge_index names vertices that do not exist"),
        ({"edge_index": np.array([[0, 1, 0, 1, 1, 2], [1, 0, 1, 0, 3, 1]])}, "edge_index names"),
        ({"edge_index": np.array([[0, 1, 0, 1, 1, -1], [1, 0, 1, 0, 2, 1]])}, "edge_index names"),
        ({"label": np.array([[0], [2], [0], [1], [0]], np.int8)}, "label has codes outside"),
        ({"classes": np.array([0, 2])}, "classes has numbers that name no class"),
        ({"classes": np.array([0])}, "classes does not have the 2 rows"),
    ],
)
def test_offsets_and_indices_are_checked_whatever_the_digests_say(
    tmp_path: Path, changes: dict[str, np.ndarray], message: str | None
) -> None:
    folder = graphs(tmp_path / "it", **changes)
    if message is None:
        assert open_prepared(folder).schema.name == "G"
        return
    with pytest.raises(ValueError, match=message):
        open_prepared(folder)


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
