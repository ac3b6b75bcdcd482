"""Prepared files: what was written is what is mapped, in any size, and damage shows."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from softperm.data.datasets.pack import Spool, content_digest, damaged_arrays, open_pack


def write(folder: Path, *parts: dict[str, np.ndarray]) -> Path:
    work = folder / "work"
    work.mkdir()
    spool = Spool(work)
    for part in parts:
        for name, rows in part.items():
            spool.append(name, rows)
    spool.write(folder / "it.pack", {"said": [1, "é"]}, stacks={"pair": ("first", "second")})
    return folder / "it.pack"


def sample(seed: int, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "first": rng.integers(0, 9, rows).astype(np.int32),
        "second": rng.integers(0, 9, rows).astype(np.int32),
        "table": rng.normal(size=(rows + 1, 3)).astype(np.float32),
        "small": rng.integers(-5, 5, (rows, 2)).astype(np.int8),
    }


def test_parts_come_back_end_to_end_and_aligned(tmp_path: Path) -> None:
    parts = [sample(0, 5), sample(1, 0), sample(2, 7)]
    pack = open_pack(write(tmp_path, *parts))
    assert pack.meta == {"said": [1, "é"]}
    for name in ("table", "small"):
        expected = np.concatenate([p[name] for p in parts])
        np.testing.assert_array_equal(pack.arrays[name], expected)
        assert pack.arrays[name].dtype == expected.dtype
    pair = [np.concatenate([p[name] for p in parts]) for name in ("first", "second")]
    np.testing.assert_array_equal(pack.arrays["pair"], pair)
    assert all(a.ctypes.data % 64 == 0 for a in pack.arrays.values())


def test_tensors_may_be_written_to_and_the_file_stays_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, sample(0, 5))
    before = path.read_bytes()
    tensor = torch.from_numpy(open_pack(path).arrays["table"])  # a warning here would be an error
    tensor.zero_()
    assert path.read_bytes() == before
    assert open_pack(path).arrays["table"].any()


def test_a_file_larger_than_memory_and_swap_opens_and_reads(tmp_path: Path) -> None:
    with open("/proc/meminfo") as lines:
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    size = 1024 * 2 * (kilobytes["MemTotal"] + kilobytes["SwapTotal"])
    path = tmp_path / "large.pack"
    entry = {"dtype": "<f4", "shape": [size // 4], "place": 64, "sha256": ""}
    header = json.dumps({"format": 1, "meta": {}, "arrays": {"x": entry}}).encode()
    with path.open("wb") as out:  # all but the ends is a hole that takes no room on the disk
        out.write(b"softperm")
        out.seek(64 + size - 4)
        out.write(struct.pack("<f", 2.5) + header + struct.pack("<Q", len(header)) + b"softperm")
    if path.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("this disk has no sparse files")
    x = torch.from_numpy(open_pack(path).arrays["x"])
    assert x.numel() == size // 4
    assert (x[0].item(), x[-1].item()) == (0.0, 2.5)


@pytest.mark.parametrize("cut", [1, 8, 200])
def test_a_file_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path, sample(0, 5))
    os.truncate(path, path.stat().st_size - cut)
    with pytest.raises(ValueError, match="is incomplete"):
        open_pack(path)


def test_an_empty_file_and_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pack").touch()
    with pytest.raises(ValueError, match="is incomplete"):
        open_pack(tmp_path / "empty.pack")
    header = json.dumps({"format": 99}).encode()
    end = struct.pack("<Q", len(header)) + b"softperm"
    (tmp_path / "new.pack").write_bytes(b"softperm" + header + end)
    with pytest.raises(ValueError, match="is of format 99"):
        open_pack(tmp_path / "new.pack")


def test_one_changed_byte_is_found_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, sample(0, 5))
    pack = open_pack(path)
    assert list(damaged_arrays(pack)) == []
    table = pack.arrays["table"].tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(table)] ^= 1
    path.write_bytes(content)
    assert list(damaged_arrays(open_pack(path))) == ["table"]


def test_the_digest_follows_the_content_and_not_the_parts(tmp_path: Path) -> None:
    whole, pieces, other = (tmp_path / n for n in ("whole", "pieces", "other"))
    for folder in (whole, pieces, other):
        folder.mkdir()
    part = {k: v for k, v in sample(0, 6).items() if k != "table"}
    halves = [{k: v[:3] for k, v in part.items()}, {k: v[3:] for k, v in part.items()}]
    packs = [
        open_pack(write(whole, part)),
        open_pack(write(pieces, *halves)),
        open_pack(write(other, {**part, "small": part["small"] + np.int8(1)})),
    ]
    digests = [content_digest(p.digests, p.arrays) for p in packs]
    assert digests[0] == digests[1] != digests[2]
