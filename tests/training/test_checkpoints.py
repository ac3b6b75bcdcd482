"""Checkpoints: what was written comes back, damage never does."""

import errno
import io
import os
import pickle

import pytest
import torch

from softperm.files import seal
from softperm.training.checkpoints import CheckpointError, read_checkpoint, write_checkpoint

STATE = {
    "model": {"w": torch.arange(6.0).view(2, 3)},
    "curve": [{"number": 1, "loss": 0.5}],
    "best": {"value": float("inf"), "state": None},
}


@pytest.fixture
def place(tmp_path):
    write_checkpoint(tmp_path / "deep" / "checkpoint", "abc", STATE)
    return tmp_path / "deep" / "checkpoint"


def refused(place, message: str, fingerprint: str = "abc") -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_checkpoint(place, fingerprint)
    assert "\n" not in str(caught.value)
    assert str(place) in str(caught.value)


def test_a_state_comes_back_bit_for_bit(place):
    back = read_checkpoint(place, "abc")
    torch.testing.assert_close(back["model"], STATE["model"], rtol=0, atol=0)
    assert back["curve"] == STATE["curve"]
    assert back["best"] == STATE["best"]


def test_a_state_can_be_looked_at_without_its_fingerprint(place):
    assert read_checkpoint(place, None)["curve"] == STATE["curve"]


def test_no_checkpoint_is_a_beginning(tmp_path):
    assert read_checkpoint(tmp_path / "none", "abc") is None


def test_a_checkpoint_of_another_training_is_refused(place):
    refused(place, "belongs to a training with other data or settings: delete it", "abd")


@pytest.mark.parametrize(
    "content", [[1, 2], {"fingerprint": "abc"}, "text", {"fingerprint": "abc", "state": [1]}]
)
def test_a_checkpoint_with_content_of_another_kind_is_refused(content, place):
    body = io.BytesIO()
    torch.save(content, body)
    place.write_bytes(seal(b"softperm checkpoint 4\n", body.getvalue()))
    refused(place, "is no checkpoint")


def test_a_checkpoint_cut_short_anywhere_is_refused(place):
    content = place.read_bytes()
    for length in range(0, len(content), 97):
        place.write_bytes(content[:length])
        refused(place, "is damaged, .* delete it to start again")


def test_a_checkpoint_with_any_damaged_byte_is_refused(place):
    content = place.read_bytes()
    for at in range(0, len(content), 61):
        place.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        refused(place, "is damaged")


class Trap:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_checkpoint_never_runs_code(tmp_path):
    place, mark = tmp_path / "checkpoint", tmp_path / "sprung"
    place.write_bytes(pickle.dumps(Trap(mark)))
    refused(place, "is damaged")
    write_checkpoint(place, "abc", {"model": Trap(mark)})  # with a checksum that is right
    refused(place, "is no checkpoint .*: delete it")
    assert not mark.exists()


def test_a_folder_in_its_place_is_said(tmp_path):
    refused(tmp_path, "cannot be read: Is a directory")


def test_a_full_disk_keeps_the_checkpoint_before(place, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="the disk is full") as caught:
        write_checkpoint(place, "abc", {"model": {}})
    assert caught.value.filename == str(place)
    monkeypatch.undo()
    assert read_checkpoint(place, "abc")["curve"] == STATE["curve"]
    assert [path.name for path in place.parent.iterdir()] == ["checkpoint"]
